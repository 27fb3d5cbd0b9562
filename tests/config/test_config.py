"""Errors are part of the interface: every problem at once, with the key, the value and what is allowed."""

import pytest

from tdcd.config import Config, ConfigError, check_config, override, read_config
from tdcd.config.resolve import plan

pytestmark = pytest.mark.quick


def problems(keys):
    with pytest.raises(ConfigError) as caught:
        check_config(keys)
    return caught.value.problems


def test_defaults_are_the_demo():
    assert check_config({}) == Config()
    assert Config().data.source == "digits"


def test_all_problems_come_at_once():
    found = problems(
        {
            "seed": -1,
            "colour": 3,
            "data": {"source": "digit"},
            "federation": {"silos": 0, "clients": [5, 0], "rows": "sorted"},
            "model": {"block": ["mlp", "tree"], "hiden": [3]},
            "train": {"rounds": "many", "step_size": -1},
            "evaluate": {"holdout": 1.0},
        }
    )
    expected = [
        "seed = -1: must be greater than or equal to 0",
        "colour: there is no such key; the keys here are name, seed, dtype, data,",
        "data.source = 'digit': must be one of 'digits', ",
        "federation.silos = 0: must be greater than or equal to 1",
        "federation.clients.1 = 0: must be greater than or equal to 1",
        "federation.rows = 'sorted': must be 'contiguous', 'shuffled' or 'dirichlet'",
        "model.block.1 = 'tree': must be 'linear'",
        "model.hiden: there is no such key; did you mean 'hidden'?",
        "train.rounds = 'many': must be a whole number",
        "train.step_size = -1: must be greater than 0",
        "evaluate.holdout = 1.0: must be less than 1",
    ]
    for line in expected:
        assert any(problem.startswith(line) for problem in found), (line, found)
    assert len(found) == len(expected)


def test_named_silos_are_checked_inside():
    found = problems(
        {
            "silos": [
                {"featurs": ["x"], "hub": "bank"},
                {"name": "a b", "features": []},
                {"name": "c", "clients": ["", 1]},
            ]
        }
    )
    assert found == [
        "silos.0.name: is missing",
        "silos.0.hub = 'bank': must be host:port, for example hub.bank.example:7447",
        "silos.0.featurs: there is no such key; did you mean 'features'?",
        "silos.1.name = 'a b': must be letters, digits, '_' and '-', and begin with a letter or digit",
        "silos.1.features = []: must not be empty",
        "silos.2.clients.0 = '': must be letters, digits, '_' and '-', and begin with a letter or digit",
        "silos.2.clients.1 = 1: must be a string",
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"federation": {"clients": [1, 2, 3]}}, "has 3 entries, but there are 2 silos"),
        ({"model": {"block": ["mlp"]}}, "has 1 entry, but there are 2 silos"),
        ({"federation": {"sizes": [1, 2], "rows": "dirichlet"}}, "draws the shard sizes itself"),
        ({"silos": [{"name": "a", "features": ["x"]}] * 2}, "silos: two silos are called 'a'"),
        ({"silos": [{"name": "a"}], "federation": {"clients": 3}}, "federation.clients = 3: leave it out"),
        ({"silos": [{"name": "a", "features": ["x"]}, {"name": "b"}]}, "name the features of every silo, or of none"),
        ({"silos": [{"name": "a", "clients": ["x", "x"]}]}, "silo 'a': two clients are called 'x'"),
        ({"silos": [{"name": "a", "table": "a.csv"}]}, "silo 'a': tables go with data.source = 'files', not 'digits'"),
        ({"federation": {"aligned": True, "clients": [5, 3]}}, "silos that split rows alike have as many clients"),
        ({"model": {"head_rank": 4}}, "model.head_rank = 4: goes with model.head = 'pairs'; leave it out"),
        (
            {"model": {"head": "pairs", "head_units": 4}},
            "model.head_units = 4: goes with model.head = 'hidden'; leave it out",
        ),
        ({"model": {"head": "trees"}}, "model.head = 'trees': must be 'sum', 'hidden' or 'pairs'"),
        ({"train": {"step_size": float("nan")}}, "must be"),
        ({"train": {"rounds": 1.5}}, "must be a whole number"),
        ({"train": 3}, "train = 3: must be"),
    ],
)
def test_impossible_values(keys, message):
    assert any(message in problem for problem in problems(keys)), problems(keys)


def test_settings_on_top():
    keys = override({"train": {"rounds": 1, "local_steps": 3}}, ["train.rounds=7", "model.hidden=[8, 8]", "seed=2"])
    config = check_config(keys)
    assert (config.train.rounds, config.train.local_steps, config.model.hidden, config.seed) == (7, 3, [8, 8], 2)
    for bad in ("rounds", "a.b.c=1", "=1"):
        with pytest.raises(ConfigError, match=r"write section\.key=value"):
            override({}, [bad])
    with pytest.raises(ConfigError, match="'seed' is not a section"):
        override({"seed": 1}, ["seed.x=1"])


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no such file: .*nothing\.toml"):
        read_config(tmp_path / "nothing.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml has 1 problem:\n  not valid TOML: .*line 1"):
        read_config(bad)


THREE = [{"name": name, "clients": 2} for name in ("bank", "shop", "lab")]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            {"federation": {"labels": "bnk"}},
            "federation.labels = 'bnk': there is no such silo; there are bank, shop, lab",
        ),
        ({"silos": THREE[:1]}, "federation.labels = 'bank': there is no other silo; leave it out"),
        ({"train": {"algorithm": "sgd"}}, "federation.labels = 'bank': goes with train.algorithm = 'tdcd', not 'sgd'"),
        (
            {"train": {"overlap": 1}},
            "train.overlap = 1: does not go with federation.labels = 'bank', since slopes are of",
        ),
        ({"exchange": {"phi_bits": 8}}, "exchange.phi_bits = 8: does not go with federation.labels = 'bank'"),
        ({"evaluate": {"stratify": True}}, "evaluate.stratify = true: does not go with federation.labels = 'bank'"),
        (
            {"silos": [*THREE[:2], {"name": "lab", "label": "y", "period": 2}]},
            "silo 'lab': label = 'y': does not go with federation.labels = 'bank', since it has none",
        ),
    ],
)
def test_labels_at_one_silo_go_with_what_they_can(keys, problem):
    found = problems({"federation": {"labels": "bank"}, "silos": THREE} | keys)
    assert found[0].startswith(problem)


def test_a_silo_with_labels_may_be_named_by_its_number():
    assert check_config({"federation": {"silos": 3, "labels": "silo2"}}).federation.labels == "silo2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"optimizer": "adam"}, ["train.optimizer = 'adam'"]),
        ({"schedule": "cosine", "clip": 1.0}, ["train.schedule = 'cosine'", "train.clip = 1.0"]),
    ],
)
def test_automatic_steps_refuse_what_moves_clients_otherwise_by_the_keys_that_say_so(keys, named):
    with pytest.raises(ConfigError) as refused:
        plan(check_config({"data": {"source": "diabetes"}, "train": keys}))
    words = "step_size = 'auto' goes with plain local steps of the clients; give step_size a number, or leave this out"
    assert refused.value.problems == [f"{key}: {words}" for key in named]


def test_ensembles_with_automatic_steps_stop_early_where_samples_are_held_out():
    def chosen(**keys):
        evaluate = check_config({"model": {"block": "ensemble"}, **keys}).evaluate
        return evaluate.patience, evaluate.keep

    assert chosen() == (24, "best")
    assert chosen(model={"block": ["linear", "ensemble"]}) == (24, "best")
    assert chosen(evaluate={"patience": 3, "keep": "last"}) == (3, "last")
    assert chosen(evaluate={"holdout": 0.0}) == (None, "last")
    assert chosen(train={"step_size": 0.1}) == (None, "last")
    assert chosen(model={"block": "mlp"}) == (None, "last")


def test_ensembles_that_stop_early_may_take_more_rounds():
    ensemble = {"block": "ensemble"}
    assert check_config({"model": ensemble}).train.rounds == 1500
    assert check_config({"model": ensemble, "train": {"rounds": 7}}).train.rounds == 7
    assert check_config({"model": ensemble, "evaluate": {"holdout": 0.0}}).train.rounds == 200
    assert check_config({"model": {"block": "mlp"}}).train.rounds == 200


@pytest.mark.slow
def test_a_step_size_that_is_a_number_is_algorithm_1_as_the_paper_has_it():
    planned = plan(check_config({"data": {"source": "diabetes"}, "train": {"step_size": 0.05, "optimizer": "sgd"}}))
    settings = planned.settings
    assert planned.variant.is_plain
    assert (settings.step_size, settings.local_steps, settings.batch_size) == (0.05, 10, 128)
    assert planned.stopping.steering is None
