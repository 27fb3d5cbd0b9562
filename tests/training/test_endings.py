"""How a run ends: a model that got worse is said, everywhere alike and after a resume; Ctrl-C keeps what there is."""

import json
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning

from support.command import tdcd
from tdcd import Federation, Linear, Objective, Settings, Table, TwoTierClassifier, Variant, load, standardize, train
from tdcd.compare.comparison import compare, network_of, plan_all
from tdcd.config import NetworkSection, check_config
from tdcd.config.resolve import plan
from tdcd.core.family.automatic import FAR
from tdcd.core.family.overlap import Overlap
from tdcd.training.run import resume, run
from tdcd.training.sweep.grid import expand
from tdcd.training.sweep.sweep import run_sweep

KEYS = {
    "data": {"source": "breast_cancer"},
    "federation": {"silos": 2, "clients": [3, 2]},
    "model": {"block": "linear"},
    "train": {"rounds": 6, "local_steps": 3, "batch_size": 64, "step_size": 500.0},
    "evaluate": {"every": 3},
}
WORDS = r"the training loss ended at \S+, above 0.6931 before training"


def config_of(**train):
    return check_config({**KEYS, "train": {**KEYS["train"], **train}})


def lines(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def federation():
    rows, held_out = standardize(*load("breast_cancer").split(0.2, seed=0))
    return Federation.cut(rows, held_out, silos=2, clients=[3, 2], bias=True)


SETTINGS = {"local_steps": 3, "batch_size": 64}


def test_a_run_that_made_its_model_worse_is_warned_about(federation):
    with pytest.warns(ConvergenceWarning, match=f"The{WORDS[3:]}; the step size is 500: lower it"):
        result = train(federation, "linear", "logistic", {**SETTINGS, "step_size": 500.0}, rounds=6, evaluate_every=3)
    assert result.status == "diverged"
    assert result.history[-1].train_loss > result.history[0].train_loss
    assert [record.worse_than for record in result.history] == ["", "start", "start"]
    quiet = train(federation, "linear", "logistic", {**SETTINGS, "step_size": 500.0}, rounds=6, quiet=True)
    assert quiet.status == "diverged"


def nearly_copied():
    """A silo whose columns are those of the other one and a little noise, which alone says what the labels are."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(600, 3))
    noise = rng.normal(size=(600, 3))
    labels = noise @ np.array([1.0, -1.0, 0.5])
    rows = Table("copied", np.concatenate([first, first + 0.001 * noise], axis=1), labels / labels.std(), "regression")
    return Federation.cut(standardize(rows)[0], silos=2, clients=3)


def test_a_loss_that_hardly_falls_far_from_the_best_one_is_not_convergence(tmp_path):
    federation, objective = nearly_copied(), Objective("squared", 1e-7)
    # Late blocks are not mixed, and momentum alone makes no way.
    arguments, late = (federation, Linear(), objective, Settings()), Variant(timing=Overlap(1))
    with pytest.warns(ConvergenceWarning, match=r"is not proven to be near the best .*: at most \d.* above it"):
        result = train(*arguments, rounds=60, variant=late)
    assert result.converged is False
    assert result.reason.startswith("limit of 60 rounds reached, the training loss changes by less than 0.01 %")
    features = np.concatenate([silo.features for silo in federation.silos], axis=1).astype(np.float64)
    labels, ridge = federation.labels, 1e-7 * np.eye(6)
    best = np.linalg.solve(features.T @ features / 600 + ridge, features.T @ labels / 600)
    least = ((features @ best - labels) ** 2).mean() / 2 + 1e-7 / 2 * (best**2).sum()
    distance = result.history[-1].train_loss - least
    assert 0.3 < distance <= result.history[-1].gap
    # Its certificates are lines of the history, as in a run that is interrupted and continued.
    train(*arguments, rounds=25, out=tmp_path / "run", quiet=True, variant=late)
    resumed = train(*arguments, rounds=60, out=tmp_path / "run", resume=True, quiet=True, variant=late)
    lines = [[line.without_seconds() for line in own.history] for own in (resumed, result)]
    assert lines[0] == lines[1]
    assert sum(line.gap is not None for line in result.history) > 2


def test_the_verdict_is_the_same_after_a_resume(tmp_path):
    calls = iter([False, True])
    assert run(config_of(), tmp_path / "cut", should_stop=lambda: next(calls)).status == "interrupted"
    resumed, whole = resume(tmp_path / "cut", []), run(config_of(), tmp_path / "whole")
    assert (resumed.status, resumed.reason) == (whole.status, whole.reason)
    assert whole.status == "diverged"
    without = [[{**line, "seconds": 0} for line in lines(tmp_path / name)] for name in ("cut", "whole")]
    assert without[0] == without[1]
    # It stands, and is judged again, if nothing is left to do; and more rounds go on from there.
    assert resume(tmp_path / "whole", []).reason == whole.reason
    assert resume(tmp_path / "whole", ["train.rounds=9"]).history[-1].round == 9


def test_the_command_ends_with_status_3(tmp_path):
    (tmp_path / "wild.toml").write_text(
        '[data]\nsource = "breast_cancer"\n[federation]\nsilos = 2\nclients = [3, 2]\n[model]\nblock = "linear"\n'
        "[train]\nrounds = 6\nlocal_steps = 3\nbatch_size = 64\nstep_size = 500.0\n[evaluate]\nevery = 3\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = tdcd("run", "wild.toml", "--out", "r", cwd=tmp_path)
    words = " ".join(shown.stdout.split())
    assert shown.exit_code == 3, shown.output
    assert "Diverged: the training loss ended at" in words
    assert "Try a smaller train.step_size (it is 500)" in words
    assert " for evaluation, " in words
    assert lines(tmp_path / "r")[-1]["worse_than"] == "start"
    assert "This run diverged: the training loss ended at" in (tmp_path / "r" / "report.html").read_text()
    assert "--resume" in tdcd("run", "--help", cwd=tmp_path).stdout
    assert tdcd("run", "--resume", "r", cwd=tmp_path).exit_code == 3
    assert tdcd("run", "wild.toml", "--set=train.step_size=0.1", cwd=tmp_path).exit_code == 0


def test_sweeps_and_comparisons_name_it(tmp_path):
    sweep = run_sweep(expand({**KEYS, "train": {**KEYS["train"], "step_size": [0.1, 500.0]}}), tmp_path / "sweep")
    assert [outcome.status for outcome in sweep.outcomes] == ["finished", "diverged"]
    assert sweep.best == 0
    comparison = compare(plan_all(config_of(), []), network_of(NetworkSection()), tmp_path / "c", step_seconds=1e-4)
    assert comparison.tdcd.diverged == 1


def test_no_rounds_and_a_start_at_the_optimum_are_no_divergence():
    """Labels that no column says anything of: minibatches move the model a little away from its best."""
    rng = np.random.default_rng(0)
    table = Table("noise", rng.normal(size=(400, 4)), rng.normal(size=400), "regression")
    federation = Federation.cut(table, silos=2, clients=2)
    settings = Settings(local_steps=2, batch_size=100, step_size=0.02)
    assert train(federation, Linear(), Objective("squared"), settings, rounds=0).status == "finished"
    assert train(federation, Linear(), Objective("squared"), settings, rounds=10).status == "finished"


@pytest.fixture
def python_handles_ctrl_c():
    """As in a script or a notebook, whatever the process that runs the tests does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def pressing_ctrl_c(times=1):
    """An observer that presses Ctrl-C after the first rounds."""

    def observe(progress):
        if progress.round:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return observe


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_ctrl_c_returns_what_there_is_and_a_folder_that_continues(federation, tmp_path):
    parts = (federation, "linear", "logistic", {**SETTINGS, "step_size": 0.1})
    keys = {"rounds": 12, "evaluate_every": 2}
    cut = train(*parts, **keys, observe=pressing_ctrl_c(), out=tmp_path / "cut")
    assert cut.status == "interrupted"
    assert 0 < cut.round < 12
    assert cut.history[-1].round <= cut.round
    shorter = train(*parts, rounds=cut.round, evaluate_every=2)
    for name, block in shorter.blocks.items():
        np.testing.assert_allclose(cut.blocks[name]["weight"], block["weight"], rtol=1e-5)
    assert cut.model.silos == tuple(silo.name for silo in federation.silos)
    resumed, whole = train(*parts, **keys, out=tmp_path / "cut", resume=True), train(*parts, **keys)
    assert resumed.status == whole.status == "finished"
    assert [record.train_loss for record in resumed.history] == [record.train_loss for record in whole.history]


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_ctrl_c_twice_and_a_keyboard_interrupt_of_the_observer(federation):
    parts = (federation, "linear", "logistic", {**SETTINGS, "step_size": 0.1})

    def raising(progress):
        raise KeyboardInterrupt

    assert train(*parts, rounds=12, observe=raising).status == "interrupted"
    # The second one is raised where the observer stands, which is where a run can still end well.
    assert train(*parts, rounds=12, observe=pressing_ctrl_c(times=2)).status == "interrupted"


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_an_interrupted_fit_keeps_what_was_trained_and_says_so(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    estimator = TwoTierClassifier(rounds=10**6, evaluate_every=1, local_steps=3, out=tmp_path / "run")

    def press():
        history, deadline = tmp_path / "run" / "history.jsonl", time.monotonic() + 300
        while time.monotonic() < deadline and not (history.exists() and history.read_text().count("\n") > 2):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.warns(
        ConvergenceWarning, match=r"Interrupted after round \d+ of 1000000: the model of that round is kept"
    ):
        assert estimator.fit(X, y) is estimator
    presser.join()
    assert estimator.n_iter_ >= estimator.history_[-1].round
    assert 0 < estimator.history_[-1].round < 10**6
    assert estimator.predict(X).shape == y.shape


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("linar", "logistic"), "blocks must be linear, mlp, ensemble, cnn, .*or blocks themselves .*, not 'linar'"),
        ((["linear", "torch"], "logistic"), "blocks must be .*, not 'torch'"),
        (("linear", "logit"), "loss must be one of squared, logistic, softmax, poisson, huber, .*, not 'logit'"),
        (("linear", "nowhere:Loss"), "model.loss = 'nowhere:Loss': there is no nowhere.py in"),
        (("linear", "logistic", {"step": 1}), "settings: there is no 'step'; there are local_steps, batch_size"),
    ],
)
def test_texts_that_say_nothing_get_the_choices(federation, arguments, text):
    with pytest.raises(ValueError, match=text):
        train(federation, *arguments, rounds=1)


def test_texts_are_those_of_a_configuration(federation, tmp_path):
    planned = plan(check_config({**KEYS, "model": {"block": ["linear", "mlp"], "loss": "logistic"}}))
    named = train(federation, ["linear", "mlp"], "logistic", {**SETTINGS, "step_size": 0.1}, rounds=1)
    assert named.simulation.blocks == planned.blocks
    assert named.simulation.objective == planned.objective
    chosen = train(federation, "linear", "logistic", rounds=0, quiet=True).simulation.settings
    assert (chosen.step_size, chosen.local_steps, chosen.minibatches) == (FAR, 1, "full")
