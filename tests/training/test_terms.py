"""Frames and files are one path: what a section says is done, or refused with the place where it is said."""

import csv

import numpy as np
import pyarrow as pa
import pytest

from tdcd import Federation, Huber, LabelsAt, Linear, Objective, Overlap, Quantised, Settings, Variant, train
from tdcd.config import Config, ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.tables.from_frames import ELSEWHERE, HONOURED, SINGLE
from tdcd.training.train import train_plan

ROWS = 120
SETTINGS = Settings(batch_size=32, local_steps=3, step_size=0.1)


@pytest.fixture(scope="module")
def frames():
    draw = np.random.default_rng(4)
    ids = draw.permutation(ROWS).tolist()
    age, debt = draw.normal(40, 9, ROWS).round(3), draw.normal(0, 3, ROWS).round(3)
    owes = np.where(age + 3 * debt + draw.normal(0, 9, ROWS) > 45, "yes", "no").tolist()
    order = draw.permutation(ROWS)
    bank = pa.table({"id": ids, "owes": owes, "age": age})
    bureau = pa.table(
        {"id": np.array(ids)[order], "debt": debt[order], "town": draw.choice(["a", "b"], ROWS, p=[0.75, 0.25])}
    )
    return {"bank": bank, "bureau": bureau}


def made(frames, **keys):
    return Federation.from_frames(frames, id="id", label="owes", clients=[3, 2], **keys)


def trained(federation, loss="logistic", rounds=4, settings=SETTINGS, **options):
    objective = Objective(loss) if isinstance(loss, str) else loss
    return train(federation, Linear(), objective, settings, rounds=rounds, evaluate_every=2, **options)


def from_files(frames, folder, federation, **extra):
    """The same by ``tdcd run``."""
    for name, table in frames.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.column_names)
            writer.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
    train = {"rounds": 4, "batch_size": 32, "local_steps": 3, "step_size": 0.1, **extra}
    silos = [
        {"name": "bank", "table": "bank.csv", "clients": 3, "label": "owes"},
        {"name": "bureau", "table": "bureau.csv", "clients": 2, "categorical": ["town"]},
    ]
    keys = {"data": {"source": "files", "folder": str(folder)}, "model": {"block": "linear"}, "train": train}
    return train_plan(
        plan(check_config({**keys, "federation": federation, "evaluate": {"every": 2}, "silos": silos})), folder / "run"
    )


NOISE = {"label_epsilon": 1.0, "label_classes": ["no", "yes"]}


@pytest.mark.parametrize("federation", [{"labels": "bank"}, NOISE, {"labels": "bank", **NOISE}])
def test_frames_train_as_their_files_do(frames, tmp_path, federation):
    ours, theirs = trained(made(frames, federation=federation)), from_files(frames, tmp_path, federation)
    assert ours.simulation.variant == theirs.simulation.variant
    assert ours.simulation.objective == theirs.simulation.objective
    assert [one.train_loss for one in ours.history] == [one.train_loss for one in theirs.history]
    assert [one.metrics for one in ours.history] == [one.metrics for one in theirs.history]
    assert [one.bytes for one in ours.history] == [one.bytes for one in theirs.history]


def test_weights_of_classes_with_labels_at_one_silo_are_those_of_files(frames, tmp_path):
    federation = {"labels": "bank"}
    ours = trained(made(frames, federation=federation).class_weighted("balanced"))
    theirs = from_files(frames, tmp_path, federation, class_weights="balanced")
    assert [one.train_loss for one in ours.history] == [one.train_loss for one in theirs.history]


def test_what_contradicts_the_labels_is_refused(frames):
    federation = made(frames, federation={"labels": "bank"})
    for variant, message in (
        (Variant(knowledge=LabelsAt(1)), r"knowledge = LabelsAt\(silo=1\), and federation.labels = 'bank' is LabelsAt"),
        (Variant(timing=Overlap(1)), r"timing = Overlap\(rounds=1.*\) does not go with federation.labels = 'bank'"),
        (Variant(exchange=Quantised(8)), r"exchange = Quantised\(bits=8\) does not go with federation.labels = 'bank'"),
    ):
        with pytest.raises(ValueError, match=message):
            trained(federation, variant=variant)
    same = trained(federation, variant=Variant(knowledge=LabelsAt(0)), rounds=2)
    assert same.history[-1].train_loss == trained(federation, rounds=2).history[-1].train_loss
    twice = {**frames, "bureau": frames["bureau"].append_column("owes", [["no"] * ROWS])}
    with pytest.raises(ValueError, match=r"frame 'bureau': column 'owes' is the label, and only silo 'bank' may have"):
        made(twice, federation={"labels": "bank"})
    with pytest.raises(ConfigError, match=r"federation.labels = 'shop': there is no such silo"):
        made(frames, federation={"labels": "shop"})


def test_what_contradicts_how_labels_and_features_were_prepared_is_refused(frames):
    noisy = made(frames, federation=NOISE)
    with pytest.raises(ValueError, match=r"label_epsilon=2\): the labels were randomised with federation"):
        trained(noisy, Objective("logistic", label_epsilon=2.0))
    with pytest.raises(ValueError, match=r"Objective\('squared'\): .* took the labels for 2 classes no, yes"):
        trained(made(frames), "squared")
    with pytest.raises(ValueError, match=r"was given the loss 'softmax', and prepared the labels for it"):
        trained(made(frames, model={"loss": "softmax"}))
    amounts = {**frames, "bank": frames["bank"].set_column(1, "owes", [np.arange(ROWS)])}
    with pytest.raises(ValueError, match=r"Objective\('poisson'\): .* took the labels for amounts .*standardised them"):
        trained(made(amounts), "poisson")
    with pytest.raises(ValueError, match="was given the loss 'huber'"):
        trained(made(amounts, model={"loss": "huber", "huber_delta": 2.0}), Objective(Huber(3.0)))
    with pytest.raises(ValueError, match=r"dtype='float64'\): .* prepared the features in float32; give it dtype"):
        trained(made(frames), settings=Settings(batch_size=32, dtype="float64", step_size=0.05))


def every_key():
    for section, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        yield from [section] if inner is None or section not in HONOURED else [f"{section}.{key}" for key in inner]


def features(federation):
    return [silo.features.tolist() for silo in federation.silos]


def clients(federation):
    return [[rows.tolist() for rows in silo.rows] for silo in federation.silos]


def reading(federation):
    return [dict(silo.reading) for silo in federation.silos]


EFFECTS = {
    "name": ("mine", lambda one: one.name, {}),
    "seed": (7, clients, {}),
    "dtype": ("float64", lambda one: (one.terms.dtype, one.silos[0].features.dtype), {}),
    "data.standardize": (False, features, {}),
    "data.seed": (3, features, {}),
    "data.missing": ("refuse", reading, {}),
    "data.rare": (40, lambda one: one.silos[1].columns, {}),
    "data.delimiter": (";", reading, {}),
    "data.encoding": ("latin-1", reading, {}),
    "data.decimal": (",", reading, {}),
    "data.blank": (["a"], lambda one: one.silos[1].columns, {}),
    "data.ids": ("plain", reading, {}),
    "data.samples": ("all", lambda one: one.terms.samples, {}),
    "data.standin": ("none", lambda one: one.terms.standin, {"data": {"samples": "all"}}),
    "data.align": (True, lambda one: sorted(one.alignment), {}),
    "federation.rows": ("contiguous", clients, {}),
    "federation.sizes": ([[1.0, 2.0, 3.0], [1.0, 2.0]], clients, {}),
    "federation.alpha": (0.3, clients, {"federation": {"rows": "dirichlet"}}),
    "federation.aligned": (True, clients, {"clients": [2, 2]}),
    "federation.labels": ("bank", lambda one: one.terms.label_silo, {}),
    "federation.label_epsilon": (1.0, lambda one: one.terms.label_epsilon, {"federation": NOISE}),
    "federation.label_classes": (["no", "yes", "?"], lambda one: one.classes, {"federation": NOISE}),
    "model.loss": ("softmax", lambda one: one.terms.loss, {}),
    "model.huber_delta": (2.0, lambda one: one.terms.loss, {"model": {"loss": "huber"}}),
    "model.folder": (None, lambda one: one.terms.loss, {}),
    "model.encoding": ("piecewise", lambda one: one.silos[0].columns, {}),
    "model.bins": (4, lambda one: one.silos[0].columns, {}),
    "evaluate.holdout": (0.5, lambda one: one.num_samples, {}),
    "evaluate.stratify": (True, lambda one: one.test_labels.tolist(), {}),
}
"""A value of every key that is honoured; what it changes; and what it needs."""


@pytest.mark.parametrize("key", [*every_key()])
def test_no_key_is_dropped(frames, key, tmp_path):
    """Every key of the schema has an effect, or is refused with the place where it is set."""
    section, _, name = key.partition(".")
    if key in ELSEWHERE:
        with pytest.raises(ConfigError) as refused:
            made(frames, **{section: {name: 1} if name else {}})
        assert refused.value.problems == [f"{key}: {ELSEWHERE[key]}"]
        return
    assert key in SINGLE or name in HONOURED[section]
    value, seen, needs = EFFECTS[key]
    number, without = needs.get("clients", [3, 2]), {one: dict(keys) for one, keys in needs.items() if one != "clients"}
    with_it = {**without, section: {**without.get(section, {}), name: value} if name else value}
    if key == "federation.label_epsilon":
        without = {}
    if key == "model.folder":
        (tmp_path / "far_away.py").write_text(
            "from tdcd.core.losses.softmax import Softmax\n\n\nclass Far(Softmax): ...\n"
        )
        with_it = {"model": {"loss": "far_away:Far", "folder": str(tmp_path)}}
    if key == "model.huber_delta":
        frames = {**frames, "bank": frames["bank"].set_column(1, "owes", [np.arange(ROWS) % 77 + 0.5])}
    first, second = (
        Federation.from_frames(frames, id="id", label="owes", clients=number, **keys) for keys in (with_it, without)
    )
    assert seen(first) != seen(second)


def test_a_key_that_no_section_has_is_refused(frames):
    with pytest.raises(ConfigError, match=r"federation.lables: there is no such key; did you mean 'labels'"):
        made(frames, federation={"lables": "bank"})
    with pytest.raises(ConfigError, match="federation = 3: must be a table of keys"):
        made(frames, federation=3)
