"""``model = "auto"``: what is compared, which candidate is chosen, and what happens to those that fail."""

import numpy as np
import pandas as pd
import pytest

from tdcd import TwoTierClassifier, TwoTierRegressor
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.training.choice import CANDIDATES, WITHOUT_DROPOUT, choose
from tdcd.training.train import train_plan

KEYS = {
    "data": {"source": "breast_cancer"},
    "federation": {"silos": 2, "clients": 2},
    "train": {"rounds": 10, "step_size": 0.05, "local_steps": 3, "batch_size": 64},
    "evaluate": {"every": 5, "holdout": 0.3},
}
LINEAR, NETWORK = {"block": "linear"}, {"block": "mlp", "hidden": [4]}
LONG = 1e6


def planned(model, **train):
    return plan(check_config({**KEYS, "model": dict(model), "train": {**KEYS["train"], **train}}))


def log_losses(result):
    federation = result.federation
    scores = result.scores([silo.test_features for silo in federation.silos])[:, 0].astype(float)
    return np.log1p(np.exp(-np.where(federation.test_labels == 1, scores, -scores)))


def test_the_choice_has_the_lowest_held_out_loss_and_its_training_is_that_of_its_settings():
    slow = {"block": "linear", "l2": 3.0}
    choice = choose(planned, LONG, candidates={"heavy": slow, "linear": LINEAR})
    results = {name: train_plan(planned(keys)) for name, keys in {"heavy": slow, "linear": LINEAR}.items()}
    losses = {name: log_losses(result) for name, result in results.items()}
    assert (choice.name, choice.rival, dict(choice.keys)) == ("linear", "heavy", LINEAR)
    differences = losses["heavy"] - losses["linear"]
    assert choice.margin == pytest.approx(differences.mean(), rel=1e-5)
    assert choice.standard_error == pytest.approx(differences.std() / len(differences) ** 0.5, rel=1e-5)
    assert [trial.loss for trial in choice.trials] == pytest.approx([loss.mean() for loss in losses.values()], rel=1e-5)
    assert choice.trials[1].score == pytest.approx(results["linear"].history[-1].metrics["test"]["auc"])
    for name, block in choice.result.blocks.items():
        np.testing.assert_array_equal(block["weight"], results["linear"].blocks[name]["weight"])
    assert "is lower than that of heavy by" in choice.in_words


def test_of_candidates_that_do_not_differ_clearly_the_simplest_is_chosen():
    almost = {"block": "linear", "l2": 1e-9}
    choice = choose(planned, LONG, candidates={"linear": {"block": "linear", "l2": 0.0}, "almost": almost})
    assert choice.name == "linear"
    alone = choose(planned, LONG, candidates={"linear": LINEAR})
    assert alone.in_words == "Chosen: linear; no other candidate could be compared."


def test_candidates_that_diverge_or_are_not_possible_are_reported_and_left_out():
    def with_step(model):
        own = {key: value for key, value in model.items() if key != "step"}
        return planned(own, step_size=model.get("step", 0.05))

    lines = []
    candidates = {"linear": LINEAR, "steep": {**NETWORK, "step": 1e6}, "forest": {"block": "linear", "bins": 1}}
    choice = choose(with_step, LONG, candidates=candidates, report=lines.append)
    assert choice.name == "linear"
    assert [trial.loss is None for trial in choice.trials] == [False, True, True]
    assert lines[1].startswith("steep: left out: ")
    assert lines[2].startswith("forest: not possible: the configuration")
    with pytest.raises(ValueError, match="every candidate diverged"):
        choose(with_step, LONG, candidates={"steep": candidates["steep"]})
    with pytest.raises(ConfigError, match=r"model\.bins"):
        choose(with_step, LONG, candidates={"forest": candidates["forest"]})


def test_time_that_runs_out_leaves_the_best_so_far():
    choice = choose(planned, 1e-6, candidates={"linear": LINEAR, "network": NETWORK})
    assert (choice.name, choice.result) == ("linear", None)
    assert choice.trials[0].problem == "cut by the time limit"
    assert 0 < choice.trials[0].rounds < 10
    assert choice.trials[1].in_words == "network: not tried: no time was left"


def test_without_held_out_samples_there_is_nothing_to_compare_on():
    keys = {**KEYS, "evaluate": {"holdout": 0.0}, "model": LINEAR}
    with pytest.raises(ValueError, match=r"model = 'auto' compares candidates on held-out samples"):
        choose(lambda model: plan(check_config(keys)))
    with pytest.raises(ValueError, match="time_limit = 0: must be greater than 0"):
        choose(planned, 0)


def interacting(seed=0, count=600):
    """Labels that columns of two silos decide together, which only a head sees."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(count, 2)), columns=["here", "there"])
    return X, (X["here"] * X["there"] > 0).astype(int)


@pytest.mark.filterwarnings("ignore:Limit of 60 rounds")
def test_an_estimator_takes_the_head_where_columns_of_two_silos_matter_together():
    X, y = interacting()
    form = {"hidden": [8], "members": 2, "clients": 2, "verbose": 0, "rounds": 60, "time_limit": LONG}
    auto = TwoTierClassifier(model="auto", **form).fit(X, y)
    assert auto.choice_.name == "ensemble with head"
    assert [trial.name for trial in auto.choice_.trials] == [*CANDIDATES]
    assert auto.choice_.margin > auto.choice_.standard_error > 0
    said = TwoTierClassifier(block="ensemble", encoding="piecewise", head="pairs", **form).fit(X, y)
    assert said.choice_ is None
    np.testing.assert_array_equal(auto.predict_proba(X), said.predict_proba(X))
    new, truth = interacting(1)
    assert auto.score(new, truth) > 0.9


def test_a_run_folder_has_the_chosen_settings(tmp_path):
    X = interacting(count=200)[0]
    line = X["here"] + 2 * X["there"]
    form = {"silos": 2, "clients": 2, "verbose": 0, "rounds": 100, "hidden": [4], "members": 2, "time_limit": LONG}
    auto = TwoTierRegressor(model="auto", out=tmp_path / "run", **form).fit(X, line)
    assert auto.choice_.name == "linear"
    # Columns explain nearly all: dropout may be too much noise.
    assert [trial.name for trial in auto.choice_.trials] == [*CANDIDATES, WITHOUT_DROPOUT]
    assert auto.choice_.trials[-1].loss != auto.choice_.trials[-3].loss
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'block = "linear"' in config
    assert 'encoding = "standard"' in config


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model": "forest"}, "model = 'forest': must be 'auto' or None"),
        ({"model": "auto", "block": "mlp"}, "block = 'mlp': model = 'auto' chooses block, encoding and head"),
        ({"model": "auto", "head": "pairs"}, "head = 'pairs': model = 'auto' chooses"),
        ({"model": "auto", "holdout": 0.0}, "compares candidates on held-out samples"),
        ({"model": "auto", "time_limit": -1}, "time_limit = -1: must be greater than 0"),
        ({"head": "sun"}, "model.head = 'sun'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(parameters, message):
    X, y = interacting(count=60)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        TwoTierClassifier(verbose=0, **parameters).fit(X, y)
