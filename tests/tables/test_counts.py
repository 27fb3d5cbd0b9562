"""Counts in files, with the Poisson loss: from the tables to predictions, coefficients and every page."""

import csv
import json
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance
from two_tables import write_csv

from support.command import tdcd
from tdcd import LabelsAt, Loss, Objective, Variant
from tdcd.audit import Mode, audit, modes_of
from tdcd.compare.tables import gain
from tdcd.config import check_config
from tdcd.config.reading import read_config
from tdcd.config.resolve import plan
from tdcd.core.family.encrypted import EncryptedSlopes
from tdcd.core.knowledge import LabelsEverywhere
from tdcd.pages.audit import page
from tdcd.planning.facts import gather_facts, why_no_constants
from tdcd.planning.forecast import computing
from tdcd.theory.progress import silent
from tdcd.training.train import simulate

COUNT = 400
CONFIG = """
dtype = "float64"
[data]
source = "files"
[model]
block = "linear"
loss = "poisson"
l2 = 0.001
[train]
rounds = 150
minibatches = "full"
step_size = 0.3
local_steps = 1
[evaluate]
every = 150
[[silos]]
name = "insurer"
table = "insurer.csv"
label = "claims"
clients = 2
[[silos]]
name = "garage"
table = "garage.csv"
"""


@dataclass(frozen=True)
class Own(Loss):
    """Says nothing but what a loss is."""

    def losses(self, scores, labels):
        return (scores[..., 0] - labels) ** 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tables, a configuration, and a finished run."""
    path, rng = tmp_path_factory.mktemp("counts"), np.random.default_rng(0)
    age, power, km = rng.uniform(18, 80, COUNT), rng.normal(0, 1, COUNT), rng.exponential(12, COUNT)
    claims = rng.poisson(np.exp(0.3 - 0.02 * (age - 40) + 0.4 * power + 0.01 * km))
    write_csv(path / "insurer.csv", {"id": range(COUNT), "claims": claims, "age": age, "power": power})
    write_csv(path / "garage.csv", {"id": range(COUNT), "km": km})
    (path / "counts.toml").write_text(CONFIG)
    shown = tdcd("run", "counts.toml", "--out", "run", cwd=path)
    assert shown.exit_code == 0, shown.output
    # Nothing but the loss says that these small whole numbers are no classes.
    assert 'amounts 0 to 7 (model.loss = "poisson")' in json.loads((path / "run/federation.json").read_text())["labels"]
    return path


def columns_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name not in ("silo", "column")}


def test_held_out_deviance_is_that_of_scikit_learn_on_the_joined_table(folder):
    insurer, garage = columns_of(folder / "insurer.csv"), columns_of(folder / "garage.csv")
    table = np.stack([insurer["age"], insurer["power"], garage["km"]], axis=1)
    held_out = columns_of(folder / "run/held-out.csv")
    chosen = np.isin(insurer["id"], held_out["id"])
    mean, scale = table[~chosen].mean(axis=0), table[~chosen].std(axis=0)
    features = np.hstack([(table - mean) / scale, np.ones((COUNT, 1))])
    unit = insurer["claims"][~chosen].mean()
    theirs = PoissonRegressor(alpha=0.001, fit_intercept=False, tol=1e-8).fit(
        features[~chosen], insurer["claims"][~chosen] / unit
    )
    expected = unit * theirs.predict(features[chosen])
    order = np.argsort(held_out["id"])
    np.testing.assert_allclose(held_out["prediction"][order], expected, rtol=1e-4)
    deviance = mean_poisson_deviance(held_out["label"], held_out["prediction"])
    assert deviance == pytest.approx(mean_poisson_deviance(insurer["claims"][chosen], expected), rel=1e-3)
    last = json.loads((folder / "run/history.jsonl").read_text().splitlines()[-1])
    assert last["metrics"]["test"]["deviance"] == pytest.approx(deviance, rel=1e-9)
    assert list(last["metrics"]["test"]) == ["deviance", "d2", "mae"]


def test_coefficients_are_of_the_logarithm_of_the_expected_count(folder):
    shown = tdcd("export", "run", "--out", "coefficients.csv", cwd=folder)
    assert shown.exit_code == 0, shown.output
    with (folder / "coefficients.csv").open(newline="", encoding="utf-8") as file:
        found = {row["column"]: float(row["coefficient"]) for row in csv.DictReader(file)}
    shown = tdcd(
        "predict",
        "run",
        "--data",
        "insurer=insurer.csv",
        "--data",
        "garage=garage.csv",
        "--out",
        "new.csv",
        cwd=folder,
    )
    assert shown.exit_code == 0, shown.output
    insurer, garage, new = (columns_of(folder / name) for name in ("insurer.csv", "garage.csv", "new.csv"))
    score = found["intercept"] + found["age"] * insurer["age"] + found["power"] * insurer["power"]
    np.testing.assert_allclose(new["prediction"], np.exp(score + found["km"] * garage["km"]), rtol=1e-9)


def test_the_report_knows_it_and_the_bound_is_refused(folder):
    report = (folder / "run/report.html").read_text()
    assert "deviance" in report
    assert "D²" in report
    bound = tdcd("bound", "run", cwd=folder)
    assert bound.exit_code == 2
    words = "model.loss = 'poisson': the poisson loss has no known bound of its second derivative, and Theorem 1 rests"
    assert words in " ".join(bound.output.split())


def test_what_a_plan_and_an_audit_cannot_say_they_say(folder):
    planned = plan(check_config(read_config(folder / "counts.toml")))
    facts = gather_facts(planned, 1.0, silent)
    assert (facts.constants, facts.noise, facts.least) == (None, None, 0.0)
    assert why_no_constants(planned).startswith("the poisson loss has no known bound")
    # Encrypted slopes are among the modes where their library is installed.
    modes = {mode.knowledge for mode in modes_of(planned, 1.0)}
    assert modes - {EncryptedSlopes(0)} == {LabelsEverywhere(), LabelsAt(0)}
    found = audit(planned, rounds=2, modes=[Mode("plain", LabelsAt(0))])
    # What a client takes is measured on what it is told: two numbers of each row.
    assert computing(planned._replace(variant=Variant(knowledge=LabelsAt(0))), None).step_seconds > 0
    (labels,) = [one for one in found.findings if one.line == "labels of hub"]
    assert labels.recovered == pytest.approx(1)
    assert "the slope of the loss and the expected count, for every sample of a minibatch" in page(found)
    own = planned._replace(objective=Objective(Own()))
    assert {mode.knowledge for mode in modes_of(own, 1.0)} == {LabelsEverywhere()}
    at_one = own._replace(variant=Variant(knowledge=LabelsAt(0)))
    for call in (simulate, audit):
        with pytest.raises(
            ValueError, match=r"labels at one silo: the .*Own loss has no `change` to follow it from its slope"
        ):
            call(at_one)


def test_less_deviance_is_a_gain():
    assert gain("held-out deviance", 0.75, 0.5) == gain("held-out MAE", 0.75, 0.5) == 0.25


def test_the_insurer_alone_may_know_the_counts(folder):
    shown = tdcd("run", "counts.toml", "--set=federation.labels=insurer", "--out", "one-silo", cwd=folder)
    assert shown.exit_code == 0, shown.output
    ours, theirs = (
        [json.loads(line) for line in (folder / name / "history.jsonl").read_text().splitlines()]
        for name in ("one-silo", "run")
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-10)
    # Slopes and expected counts, in place of phi.
    assert ours[-1]["bytes"]["hub_to_hub"] == 1.5 * theirs[-1]["bytes"]["hub_to_hub"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["federation.label_epsilon=1"],
            "randomised response needs classes, and model.loss = 'poisson' predicts amounts",
        ),
        (["model.huber_delta=2"], "model.huber_delta = 2: goes with model.loss = 'huber'; leave it out"),
        (
            ["model.loss=poison"],
            "model.loss = 'poison': must be 'squared', 'logistic', 'softmax', 'poisson' or 'huber' or ",
        ),
        (["model.loss=logistic"], "model.loss = 'logistic': there are 8 different labels, not two"),
    ],
)
def test_what_does_not_go_with_it_is_refused(folder, words, text):
    shown = tdcd("run", "counts.toml", *(f"--set={word}" for word in words), "--out", "no", cwd=folder)
    assert shown.exit_code == 2, shown.output
    assert text in " ".join(shown.output.split()), shown.output


def test_a_negative_count_is_refused(folder, tmp_path):
    write_csv(tmp_path / "insurer.csv", {"id": range(4), "claims": [0, 1, -2, 3], "age": range(4), "power": range(4)})
    write_csv(tmp_path / "garage.csv", {"id": range(4), "km": range(4)})
    (tmp_path / "counts.toml").write_text(CONFIG)
    shown = tdcd("run", "counts.toml", "--out", "no", cwd=tmp_path)
    assert shown.exit_code == 2
    text = "model.loss = 'poisson': takes labels that are counts: 0 or more, not necessarily whole, not -2"
    assert text in " ".join(shown.output.split())
