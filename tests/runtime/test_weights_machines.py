"""Class weights and a column of weights: real parties against the simulation, and against scikit-learn."""

import csv

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from test_absence import Deaf
from test_tables import ROWS, data_of, write_table
from test_tables import same_as_the_simulation as tables_same
from typer.testing import CliRunner

from support.in_process import InProcess
from support.simulated import RIDGE, assert_same_history, simulated, with_keys
from tdcd.cli.app import app
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.records.run_folder import toml_text
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.messages.messages import Enrol, Welcome
from tdcd.runtime.process.trial import write_rows
from tdcd.simulation.simulate import Simulation
from tdcd.tables.client_table import read_client
from tdcd.tables.errors import TableError
from tdcd.training.run import run

CANCER = {**RIDGE, "data": {"source": "breast_cancer"}}


@pytest.mark.parametrize("given", ["balanced", {"malignant": 3.0}], ids=str)
def test_class_weights_in_the_real_federation_are_those_of_the_simulation(given):
    config = with_keys(CANCER, train={"class_weights": given, "optimizer": "momentum"})
    planned, result = simulated(config)
    office = InProcess(config, shards(planned), seed=1).run()
    assert_same_history(office, result)
    # What classes weigh follows from the labels: nothing about it goes up, and rows' weights go to their own client.
    assert all(message.weights is None for message in office.sent if isinstance(message, Enrol))
    welcomes = [message for message in office.sent if isinstance(message, Welcome)]
    assert {message.weights.values.shape for message in welcomes} == {
        message.labels.values.shape for message in welcomes
    }
    _, plain = simulated(with_keys(CANCER, train={"optimizer": "momentum"}))
    assert abs(result.history[-1].train_loss - plain.history[-1].train_loss) > 1e-4


def test_rows_that_are_left_weigh_what_they_did_when_a_client_is_away():
    """The loss of the last line is over the rows that are left, by their weights."""
    config = with_keys(
        CANCER,
        train={"class_weights": "balanced", "rounds": 8},
        federation={"client_grace_s": 5.0},
        evaluate={"every": 4},
    )
    planned = plan(config)
    office = Deaf(config, shards(planned), {"client.lab.north": (4, "block", None)}).run()
    assert {end.status for end in office.ends.values()} == {"finished"}
    last = office.history["hub.lab"][-1]
    assert last.unscored == ["client.lab.north"]
    assert last == office.history["hub.clinic"][-1]
    federation = planned.federation
    simulation = Simulation(federation, planned.blocks, planned.objective, planned.settings)
    blocks = [office.blocks()[hub] for hub in ("hub.clinic", "hub.lab")]
    left = np.concatenate(federation.silos[1].rows[1:])
    scores = simulation.scores(blocks)[left]
    (loss,) = simulation.losses(blocks, scores, federation.labels[left], federation.weights[left])
    assert last.train_loss == pytest.approx(loss, rel=1e-10)


def weighted_table(folder, **changes):
    """The bank has labels and weights, the shop neither."""
    write_table(folder / "all.csv")
    with (folder / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    rng = np.random.default_rng(5)
    for row in rows:
        row["exposure"] = f"{rng.gamma(2.0):.4f}"
    rows[7] |= changes
    kept = {"bank.csv": ["id", "bought", "exposure", "age", "income"], "shop.csv": ["id", "debt", "town"]}
    for name, columns in kept.items():
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    return {
        "dtype": "float64",
        "data": {"source": "files", "folder": str(folder), "rare": 3},
        "silos": [
            {"name": "bank", "table": "bank.csv", "clients": 3, "label": "bought", "weight": "exposure"},
            {"name": "shop", "table": "shop.csv", "clients": ["a", "b"], "categorical": ["town"]},
        ],
        "model": {"block": "linear"},
        "train": {"rounds": 5, "local_steps": 3, "batch_size": 20, "step_size": 0.2},
        "evaluate": {"every": 2},
    }


@pytest.mark.parametrize(
    ("train", "federation"),
    [
        ({}, {}),
        ({"class_weights": "balanced"}, {}),
        ({"class_weights": {"yes": 2.5}}, {}),
        ({"class_weights": "balanced"}, {"labels": "bank"}),
        ({}, {"labels": "bank", "label_epsilon": 2.0, "label_classes": ["no", "yes"]}),
    ],
    ids=str,
)
def test_a_column_of_weights_in_the_real_federation(train, federation, tmp_path):
    keys = weighted_table(tmp_path)
    config = check_config({**keys, "train": {**keys["train"], **train}, "federation": federation})
    planned = plan(config)
    assert all("exposure" not in silo.columns for silo in planned.federation.silos)
    tables_same(config, tmp_path)


def test_randomised_labels_keep_their_weights_next_to_them(tmp_path):
    """The file that the bank gives to the others: they read weights from it, as from one of true labels."""
    noise = {"label_epsilon": 2.0, "label_classes": ["no", "yes"]}
    config = check_config({**weighted_table(tmp_path), "federation": noise})
    (tmp_path / "federation.toml").write_text(toml_text(config.model_dump()))
    words = ["--silo", "bank", "--data", str(tmp_path / "bank.csv"), "--key", str(tmp_path / "labels.key")]
    out = tmp_path / "labels.csv"
    done = CliRunner().invoke(app, ["labels", str(tmp_path / "federation.toml"), *words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = read_client(config, config.silos[1], tmp_path / "shop.csv", out)
    with (tmp_path / "bank.csv").open() as file:
        assert rows.weights.tolist() == [float(row["exposure"]) for row in csv.DictReader(file)]


def test_the_weighted_optimum_is_that_of_scikit_learn(tmp_path):
    keys = weighted_table(tmp_path)
    keys["train"] |= {
        "rounds": 400,
        "local_steps": 1,
        "minibatches": "full",
        "step_size": 1.0,
        "class_weights": "balanced",
    }
    keys |= {"evaluate": {"every": 400, "holdout": 0.0}, "model": {"block": "linear", "l2": 0.05}}
    config = check_config(keys)
    planned = plan(config)
    federation = planned.federation
    result = run(config, tmp_path / "run")
    features = np.concatenate([silo.features for silo in federation.silos], axis=1)
    weights = federation.weights / federation.weights.mean()
    model = LogisticRegression(C=1 / (0.05 * ROWS), fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(features, federation.labels, weights)
    found = np.concatenate([np.asarray(block["weight"])[:, 0] for block in result.blocks.values()])
    np.testing.assert_allclose(found, model.coef_[0], atol=1e-4)


def test_weights_that_are_none_are_refused(tmp_path):
    for value, text in (("-2", "that of id 'k7' is -2"), ("", "that of id 'k7' is blank")):
        keys = weighted_table(tmp_path, exposure=value)
        with pytest.raises(
            TableError, match=f"bank.csv, column 'exposure': a weight is a number of at least 0, and {text}"
        ):
            plan(check_config(keys))


def test_clients_without_the_weights_are_refused(tmp_path):
    config = check_config(weighted_table(tmp_path))
    data = data_of(config, write_rows(plan(config), tmp_path / "data"))
    victim = next(iter(data))
    object.__setattr__(data[victim], "weights", None)
    office = InProcess(config, data).run()
    assert {end.status for end in office.ends.values()} == {"refused"}
    assert f"{victim} has no weights of its rows, and weight is 'exposure' in the shared file" in str(office.ends)


@pytest.mark.parametrize(
    ("sections", "texts"),
    [
        (
            {"train": {"class_weights": "balanced", "engine": "grouped"}},
            ["train.engine = 'grouped': does not go with train.class_weights = 'balanced'"],
        ),
        (
            {"model": {"loss": "squared"}, "train": {"class_weights": {"a": 1.0}}},
            ["model.loss = 'squared': does not go with train.class_weights = {'a': 1.0}, since it predicts amounts"],
        ),
        (
            {"federation": {"label_epsilon": 1.0}, "train": {"class_weights": "balanced"}},
            ["federation.label_epsilon = 1.0: does not go with train.class_weights = 'balanced', since no party knows"],
        ),
        ({"train": {"class_weights": "equal"}}, ["train.class_weights = 'equal': must be"]),
        (
            {"train": {"class_weights": {"a": 0}}},
            ["train.class_weights = .*: must be .balanced. or must be greater than 0"],
        ),
        (
            {"silos": [{"name": "a", "weight": "w"}, {"name": "b", "label": "y"}]},
            [
                "silo 'a': weight goes with data.source = 'files', not 'diabetes'",
                "silo 'a': weight = 'w' goes with label; name both in the silo that has the labels",
                "silo 'b': weight is missing; give it in every silo that has a label",
            ],
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(sections, texts):
    with pytest.raises(ConfigError) as refused:
        with_keys(RIDGE, **sections)
    for text in texts:
        refused.match(text.replace("{'a': 1.0}", r"\{'a': 1.0\}"))


def test_class_weights_of_amounts_and_of_classes_that_are_not_there():
    with pytest.raises(ConfigError, match=r"train.class_weights = 'balanced': the labels are amounts, not classes"):
        plan(with_keys(RIDGE, train={"class_weights": "balanced"}))
    with pytest.raises(
        ConfigError,
        match=r"train.class_weights = \{'yes': 2.0\}: there is no class 'yes'; there are 'malignant', 'benign'",
    ):
        plan(with_keys(CANCER, train={"class_weights": {"yes": 2.0}}))
