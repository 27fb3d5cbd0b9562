"""What a policy approves: each rule alone, and all of them together, for many policies and jobs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.config import ConfigError
from tdcd.standing.policy import DAY_S, MONTH_S, Facts, Policy, judge

pytestmark = pytest.mark.quick

SILOS, PURPOSES, COLUMNS = ["bank", "shop", "bureau"], ["credit", "fraud"], ["age", "debt", "bought"]
EPSILONS = st.sampled_from([None, 0.5, 1.0, 2.0])
NOON = 1_794_916_800
some = lambda names: st.lists(st.sampled_from(names), unique=True)  # noqa: E731

POLICIES = st.builds(
    Policy,
    proposers=some(SILOS),
    purposes=some(PURPOSES),
    columns=some(COLUMNS),
    protect=st.sampled_from(["none", "mask"]),
    protect_blocks=st.booleans(),
    label_epsilon=EPSILONS,
    share_model=st.booleans(),
    silos=st.integers(1, 4),
    rounds=st.integers(1, 20),
    jobs_per_day=st.integers(0, 3),
    jobs_per_month=st.integers(0, 3),
    hours=st.lists(st.integers(0, 24), min_size=2, max_size=2),
)
FACTS = st.builds(
    Facts,
    proposer=st.sampled_from(SILOS),
    purpose=st.sampled_from(PURPOSES),
    columns=st.none() | some(COLUMNS).map(frozenset),
    protect=st.sampled_from(["none", "mask"]),
    protect_blocks=st.booleans(),
    label_epsilon=EPSILONS,
    share_model=st.booleans(),
    silos=st.integers(1, 4),
    steps=st.sampled_from([("align", "train"), ("train",)]),
    rounds=st.integers(1, 20),
    now=st.integers(NOON, NOON + DAY_S),
    approved=st.lists(st.integers(NOON - 2 * MONTH_S, NOON), max_size=4).map(tuple),
)
OPEN = Policy(
    proposers=SILOS,
    purposes=PURPOSES,
    columns=COLUMNS,
    protect="none",
    protect_blocks=False,
    share_model=True,
    silos=1,
    jobs_per_day=100,
    jobs_per_month=100,
)


def is_within(policy, job):
    """The same as a truth table, written on its own."""
    hour = job.now % 86_400 // 3600
    return (
        job.proposer in policy.proposers
        and job.purpose in policy.purposes
        and job.columns is not None
        and all(column in policy.columns for column in job.columns)
        and (policy.protect, job.protect) != ("mask", "none")
        and (job.protect_blocks or not policy.protect_blocks)
        and (policy.label_epsilon is None or (job.label_epsilon or 9e9) <= policy.label_epsilon)
        and (policy.share_model or not job.share_model)
        and policy.silos <= job.silos
        and job.steps == ("align", "train")
        and job.rounds <= policy.rounds
        and len([at for at in job.approved if at > job.now - 24 * 3600]) < policy.jobs_per_day
        and len([at for at in job.approved if at > job.now - 30 * 24 * 3600]) < policy.jobs_per_month
        and hour in range(*policy.hours)
    )


@num_examples(2000)
@given(POLICIES, FACTS)
def test_a_policy_approves_what_every_rule_allows_and_nothing_else(policy, job):
    assert (judge(policy, job) == []) == is_within(policy, job)


@num_examples(300)
@given(POLICIES, FACTS)
def test_the_reasons_are_those_of_the_rules_one_by_one(policy, job):
    alone = [OPEN.model_copy(update={key: getattr(policy, key)}) for key in Policy.model_fields]
    assert {*judge(policy, job)} == {reason for rule in alone for reason in judge(rule, job)}


@given(FACTS)
def test_an_empty_policy_approves_nothing(job):
    assert judge(Policy(), job)


def test_each_reason_names_its_key():
    job = Facts("bank", "credit", frozenset(COLUMNS), "mask", True, 1.0, False, 3, ("align", "train"), 10, NOON)
    allowed = OPEN.model_copy(update={"protect": "mask", "protect_blocks": True, "label_epsilon": 1.0})
    assert judge(allowed, job) == []
    for change, key in (
        ({"proposer": "lab"}, "proposers"),
        ({"purpose": "other"}, "purposes"),
        ({"columns": None}, "columns"),
        ({"columns": frozenset(["name"])}, "columns"),
        ({"protect": "none"}, "protect"),
        ({"protect_blocks": False}, "protect_blocks"),
        ({"label_epsilon": None}, "label_epsilon"),
        ({"label_epsilon": 1.5}, "label_epsilon"),
        ({"label_epsilon": float("nan")}, "label_epsilon"),
        ({"silos": 0}, "silos"),
        ({"steps": ("train",)}, "rows"),
        ({"rounds": 1001}, "rounds"),
        ({"approved": (NOON - 60,) * 100}, "jobs_per_day"),
    ):
        assert judge(allowed, replace(job, **change))[0].startswith(key), change


def test_a_key_that_no_policy_has_is_refused(tmp_path):
    (tmp_path / "policy.toml").write_text("collumns = ['age']")
    with pytest.raises(ConfigError, match="collumns: there is no such key; did you mean 'columns'"):
        Policy.read(tmp_path / "policy.toml")
