"""What a policy approves: each rule alone, and all of them together, for many policies and jobs."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from support.policies import COLUMNS, NOON, OPEN, facts_by_chance, is_within, policy_by_chance
from tdcd.config import ConfigError, check_config
from tdcd.standing.facts import Facts, LabelDraw, Reads, epsilons, paths_outside
from tdcd.standing.policy import Policy, judge, judge_content

pytestmark = pytest.mark.quick

SEEDS = st.integers(0, 2**32 - 1)
AT_ONCE = 1000


@num_examples(10)
@given(SEEDS)
def test_a_policy_approves_what_every_rule_allows_and_nothing_else(seed):
    rng, allowed = Random(seed), 0
    for _ in range(AT_ONCE):
        policy, job = policy_by_chance(rng), facts_by_chance(rng)
        assert (judge(policy, job) == []) == is_within(policy, job), (policy, job)
        assert (judge_content(policy, job) == []) == is_within(policy, job, of_client=True), (policy, job)
        allowed += is_within(policy, job)
    assert 0 < allowed < AT_ONCE


@num_examples(100)
@given(SEEDS)
def test_the_reasons_are_those_of_the_rules_one_by_one(seed):
    rng = Random(seed)
    # What counts in place of other rules is no rule of its own.
    policy, job = policy_by_chance(rng, encrypted=False, label_epsilon=None), facts_by_chance(rng)
    open_policy = Policy(**OPEN)
    alone = [open_policy.model_copy(update={key: getattr(policy, key)}) for key in Policy.model_fields]
    assert {*judge(policy, job)} == {reason for rule in alone for reason in judge(rule, job)}


@num_examples(10)
@given(SEEDS)
def test_an_empty_policy_approves_nothing(seed):
    rng = Random(seed)
    for _ in range(AT_ONCE // 10):
        assert judge(Policy(), facts_by_chance(rng))


JOB = Facts(
    proposer="bank",
    purpose="credit",
    columns=frozenset(COLUMNS),
    rare=10,
    protect="mask",
    protect_blocks=True,
    label_epsilon=1.0,
    epsilon_asked=1.0,
    phi_epsilon=2.0,
    share_model=False,
    silos=3,
    steps=("align", "train"),
    rounds=10,
    now=NOON,
)
ALLOWED = Policy(
    **OPEN
    | {"kinds": ["train", "predict"], "protect": "mask", "protect_blocks": True, "label_epsilon": 1.0}
    | {"phi_epsilon": 2.0}
    | {"epsilon_per_month": 2.0, "rare": 10, "samples": "common", "share_model": False, "silos": 2}
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"proposer": "lab"}, "proposers: 'lab' is not among them"),
        ({"purpose": "other"}, "purposes: 'other' is not among them"),
        ({"phi_epsilon": None}, "phi_epsilon = 2: nothing adds noise to what this silo's phi gives away"),
        ({"phi_epsilon": 3.0}, "phi_epsilon = 2: the job has exchange.epsilon = 3"),
        ({"kind": "delete"}, "kinds: 'delete' is not among them"),
        ({"takes_all_columns": True}, "columns: the job does not name the features of this silo, and would use all"),
        ({"columns": frozenset(["visits"])}, "columns: 'visits' is not among them"),
        ({"links": ("x.csv",)}, "links: 'x.csv' is not among them"),
        ({"aggregate": ("min",)}, "aggregate: 'min' is not among them"),
        ({"predictions": ("lab",)}, "predictions: 'lab' is not among them"),
        ({"rare": 9}, "rare = 10: the job has data.rare = 9"),
        ({"samples": "all"}, "samples = 'common': the job has data.samples = 'all'"),
        ({"protect": "none"}, "protect = 'mask': the job has exchange.protect = 'none'"),
        ({"protect_blocks": False}, "protect_blocks = true: the job has exchange.protect_blocks = false"),
        ({"label_epsilon": 1.5}, "label_epsilon = 1: the job has federation.label_epsilon = 1.5"),
        ({"label_epsilon": float("nan")}, "label_epsilon = 1: the job has federation.label_epsilon = nan"),
        ({"epsilon_spent": 1.5}, "epsilon_per_month = 2: 1.5 of it is spent, and the job asks for 1"),
        ({"epsilon_spent": float("nan")}, "epsilon_per_month = 2: nan of it is spent, and the job asks for 1"),
        ({"share_model": True}, "share_model = false: the job has federation.share_model = true"),
        ({"silos": 1}, "silos = 2: the job has 1 silo"),
        ({"steps": ("train",)}, "rows = 100: a job without an alignment does not say how many samples are common"),
        ({"rounds": 1001}, "rounds = 1000: the job has 1001"),
        ({"approved": (NOON - 60,) * 100}, "jobs_per_day = 100: it has approved 100 already"),
    ],
)
def test_each_reason_names_its_key(change, reason):
    assert judge(ALLOWED, JOB) == []
    assert judge(ALLOWED, replace(JOB, **change))[0] == reason


def test_slopes_reveal_labels_unless_these_are_randomised_or_the_slopes_encrypted():
    job = replace(JOB, sends_slopes=True, label_epsilon=None)
    plain = ALLOWED.model_copy(update={"label_epsilon": None, "epsilon_per_month": None, "slopes": False})
    assert judge(plain, job) == ["slopes = false: the job sends slopes of this silo's labels as they are"]
    assert judge(plain.model_copy(update={"slopes": True}), job) == []
    assert judge(ALLOWED.model_copy(update={"slopes": False}), replace(job, label_epsilon=1.0)) == []
    # Encrypted slopes do not go with masks: a policy has to say that they count.
    encrypted = replace(job, sends_slopes=False, is_encrypted=True, protect="none", protect_blocks=False)
    assert len(judge(plain, encrypted)) == 2
    assert judge(plain.model_copy(update={"encrypted": True}), encrypted) == []


def test_hours_may_be_overnight():
    policy = ALLOWED.model_copy(update={"hours": [22, 6]})
    open_hours = [hour for hour in range(24) if not judge(policy, replace(JOB, now=NOON + 3600 * hour))]
    assert sorted((12 + hour) % 24 for hour in open_hours) == [0, 1, 2, 3, 4, 5, 22, 23]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("collumns = ['age']", "collumns: there is no such key; did you mean 'columns'"),
        ("hours = [5, 5]", r"hours = \[5, 5\]: .*must be two different hours; leave it out for all hours"),
        ("members = ['bank.south']", r"members = .*'bank.south' is no party: write hub.SILO or client.SILO.NAME"),
        ("kinds = ['report']", "must be 'train', 'predict', 'audit', 'delete' or 'join'"),
    ],
)
def test_a_policy_that_says_nothing_sensible_is_refused(tmp_path, text, why):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(ConfigError, match=why):
        Policy.read(tmp_path / "policy.toml")


def config(**silo):
    """Two silos, of which the first names its label."""
    keys = {
        "data": {"source": "files"},
        "silos": [
            {"name": "bank", "features": ["age"], "label": "default", "id": "customer", "weight": "w"},
            {"name": "shop", "features": ["visits"], **silo},
        ],
    }
    return check_config(keys)


def test_what_clients_read_is_known_by_what_it_is_for():
    """Also columns that another silo names: labels are called as there where the silo has no name for them."""
    both = config()
    assert Reads.of(both, both.silos[1]).columns == {"visits", "id", "customer", "default", "w"}
    own = config(label="bought", weight="v", categorical=["size"], id="card", key="home", link="homes.csv")
    reads = Reads.of(own, own.silos[1])
    assert reads.columns == {"visits", "size", "card", "customer", "bought", "v", "home"}
    assert reads.in_words() == (
        "features visits, size; id card or customer; label bought; weight v; key home, in the link table homes.csv"
    )
    assert reads.for_prediction().columns == {"visits", "size", "card", "home"}
    at_bank = both.model_copy(update={"federation": both.federation.model_copy(update={"labels": "bank"})})
    assert Reads.of(at_bank, both.silos[1]).columns == {"visits", "id"}


@pytest.mark.parametrize(
    ("link", "is_refused"),
    [
        ("homes.csv", False),
        ("tables/homes.csv", False),
        ("/etc/passwd", True),
        ("../homes.csv", True),
        ("tables/../../homes.csv", True),
        ("C:\\homes.csv", True),
    ],
)
def test_a_path_that_leads_out_of_the_data_folder_is_refused(link, is_refused):
    problems = paths_outside(config(key="home", link=link))
    assert bool(problems) == is_refused
    assert all(f"silo 'shop': link = {link!r}: must be a file in the folder" in problem for problem in problems)


def test_the_same_draw_of_labels_costs_its_epsilon_once_and_another_one_adds_up():
    one, other = (
        LabelDraw(1.0, ("no", "yes"), ("y", "id"), "exact"),
        LabelDraw(0.5, ("no", "yes"), ("y", "id"), "exact"),
    )
    assert epsilons(one, [], []) == (1.0, 0)
    assert epsilons(one, [one, one, other], [one, one, other]) == (0.0, 1.5)
    assert epsilons(other, [one], [one]) == (0.5, 1.0)
    assert epsilons(one, [], [one]) == (0.0, 0)
    assert epsilons(None, [one], [one]) == (0.0, 1.0)
