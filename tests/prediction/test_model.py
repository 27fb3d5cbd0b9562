"""A model from any run predicts from raw rows what the engine that trained it says of the prepared ones."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tdcd import Federation, Linear, Mlp, Model, Objective, Settings, Table, load, standardize, train
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.tables.errors import TableError
from tdcd.training.train import train_plan

SETTINGS = Settings(local_steps=2, batch_size=16, step_size=0.1)


def raw(source, features=None):
    """Samples of a source by silo, as `Federation.cut` deals their columns to two silos; all by default."""
    table = load(source)
    features = table.features if features is None else features
    if table.is_images:
        half = features.shape[2] // 2
        return {"silo1": features[:, :, :half], "silo2": features[:, :, half:]}
    columns, half = dict(zip(table.columns, features.T, strict=True)), len(table.columns) // 2
    names = {"silo1": table.columns[:half], "silo2": table.columns[half:]}
    return {silo: {name: columns[name] for name in some} for silo, some in names.items()}


@pytest.mark.parametrize(
    ("source", "block", "standard"),
    [("diabetes", "linear", True), ("breast_cancer", "linear", False), ("digits", "mlp", True)],
)
@pytest.mark.parametrize("head", ["sum", "hidden", "pairs"])
def test_a_run_of_embedded_data_predicts_raw_rows(tmp_path, source, block, standard, head):
    data = {"source": source, "rows": 120, "standardize": standard}
    keys = {
        "data": data,
        "model": {"block": block, "hidden": [4], "head": head},
        "train": {"step_size": 0.05 if standard else 1e-4, "rounds": 3, "batch_size": 32},
    }
    planned = plan(check_config(keys))
    result = train_plan(planned, tmp_path / "run")
    expected = result.scores([silo.features for silo in planned.federation.silos])
    rows = load(source, rows=120).split(0.2, 0)[0].features
    result.model.save(tmp_path / "file.tdcd")
    for model in (result.model, Model.load(tmp_path / "run"), Model.load(tmp_path / "file.tdcd")):
        np.testing.assert_allclose(model.scores(raw(source, rows)), expected, rtol=5e-5, atol=5e-5)


def test_amounts_classes_and_probabilities_are_in_the_labels_own_words(tmp_path):
    keys = {"data": {"source": "diabetes"}, "model": {"block": "linear"}}
    train_plan(plan(check_config(keys)), tmp_path / "a")
    predicted = Model.load(tmp_path / "a").predict(raw("diabetes"))
    truth = load("diabetes").labels
    assert 1 - np.mean((predicted - truth) ** 2) / truth.var() == pytest.approx(0.5, abs=0.05)
    keys = {
        "data": {"source": "breast_cancer"},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": 20},
    }
    train_plan(plan(check_config(keys)), tmp_path / "b")
    model, rows = Model.load(tmp_path / "b"), raw("breast_cancer")
    classes, chances = model.predict(rows), model.predict_proba(rows)
    assert model.classes.tolist() == ["malignant", "benign"]
    assert np.mean(classes == np.array(["malignant", "benign"])[load("breast_cancer").labels]) > 0.95
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_array_equal(classes, model.classes[chances.argmax(axis=1)])
    with pytest.raises(ValueError, match="predicts amounts, which have no probabilities"):
        Model.load(tmp_path / "a").predict_proba(raw("diabetes"))


@pytest.fixture(scope="module")
def two_frames():
    draw = np.random.default_rng(5)
    ids = [f"p{number:03}" for number in range(160)]
    age, income = draw.uniform(20, 70, 160), draw.lognormal(8, 1, 160)
    city = draw.choice(["rome", "oslo", "lima"], 160)
    income[::9] = np.nan
    wants = ["yes" if one else "no" for one in (age > 45) | (city == "oslo")]
    bank = pa.table({"id": ids, "age": age, "income": income, "wants": wants})
    shop = pa.table({"city": pa.array(city).dictionary_encode(), "visits": draw.poisson(3, 160), "id": ids})
    return bank, shop.take(draw.permutation(160))


@pytest.fixture(scope="module")
def trained(two_frames, tmp_path_factory):
    bank, shop = two_frames
    federation = Federation.from_frames({"bank": bank, "shop": shop}, id="id", label="wants", clients=[2, 1])
    folder = tmp_path_factory.mktemp("frames") / "run"
    return train(federation, Linear(), Objective("logistic"), SETTINGS, rounds=40, out=folder)


def test_frames_that_are_apart_give_a_model_that_takes_such_frames(trained, two_frames, tmp_path):
    bank, shop = two_frames
    model = trained.model
    assert model.classes.tolist() == ["no", "yes"]
    predicted = model.predict({"bank": bank, "shop": shop})
    assert np.mean(predicted == np.array(bank["wants"].to_pylist())) > 0.7
    model.save(tmp_path / "wants.tdcd")
    aligned = shop.take(np.argsort(np.array(shop["id"].to_pylist())))
    for same in (Model.load(tmp_path / "wants.tdcd"), Model.load(trained.folder)):
        np.testing.assert_allclose(
            same.scores({"shop": shop, "bank": bank}), model.scores({"bank": bank, "shop": shop})
        )
        # Without ids, rows with the same place are about the same sample.
        by_place = {"bank": bank.drop_columns(["id", "wants"]), "shop": aligned.drop_columns("id")}
        np.testing.assert_allclose(same.predict_proba(by_place), model.predict_proba({"bank": bank, "shop": aligned}))


def test_a_file_is_written_where_it_can_be_and_refused_where_it_cannot(trained, tmp_path):
    trained.model.save(tmp_path / "new" / "folder" / "wants.tdcd")
    assert Model.load(tmp_path / "new" / "folder" / "wants.tdcd").silos == ("bank", "shop")
    with pytest.raises(OSError, match=rf"^{tmp_path}/new is a folder: give a file, such as {tmp_path}/new/model.tdcd$"):
        trained.model.save(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=rf"^{tmp_path}/file/wants.tdcd cannot be written: {tmp_path}/file is no folder$"):
        trained.model.save(tmp_path / "file" / "wants.tdcd")


def test_a_module_of_a_script_cannot_be_kept_in_a_file(trained, tmp_path):
    pytest.importorskip("torch", reason="PyTorch blocks need the extra tdcd[torch]")
    from tdcd.blocks.torch import TorchBlock

    def make():
        raise NotImplementedError

    make.__module__, make.__qualname__ = "__main__", "make"
    parts = {name: part._replace(block=TorchBlock(make)) for name, part in trained.model.parts.items()}
    with pytest.raises(ValueError, match=r"the module of TorchBlock is made by __main__:make, .* put make into a file"):
        replace(trained.model, parts=parts).save(tmp_path / "wants.tdcd")


def test_coefficients_of_frames_are_those_of_the_scores(trained, two_frames):
    bank, shop = two_frames
    found = trained.model.coefficients()
    by_name = {(row.silo, row.column): float(row.values[0]) for row in found.rows}
    assert {("bank", "age"), ("bank", "income missing"), ("shop", "city=oslo"), ("", "intercept")} <= set(by_name)
    row = {"bank": bank.slice(0, 1), "shop": shop.filter(pa.compute.equal(shop["id"], "p000"))}
    city, visits = row["shop"]["city"][0].as_py(), row["shop"]["visits"][0].as_py()
    score = (
        by_name["", "intercept"] + by_name["bank", "age"] * bank["age"][0].as_py() + by_name["bank", "income missing"]
    )
    score += by_name["shop", f"city={city}"] + by_name["shop", "visits"] * visits
    assert trained.model.scores(row)[0, 0] == pytest.approx(score, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bank, shop: {"bank": bank}, "the table of silo 'shop' is missing: give one for each of bank, shop"),
        (lambda bank, shop: {"bank": bank, "shop": shop, "x": shop}, "there is no silo 'x'"),
        (lambda bank, shop: {"bank": bank.drop_columns("age"), "shop": shop}, "table 'bank': has no column 'age'"),
        (
            lambda bank, shop: {"bank": bank.select(["income", "wants"]), "shop": shop.drop_columns("id")},
            "table 'bank': has no column 'age'; there are 'income', 'wants'$",
        ),
        (lambda bank, shop: {"bank": bank, "shop": shop.drop_columns("id")}, "'shop' has no id column 'id'"),
        (lambda bank, shop: {"bank": bank, "shop": shop.slice(1)}, "1 id is not in all tables: silo 'shop' lacks"),
        (
            lambda bank, shop: {"bank": bank.set_column(1, "age", [["old"] * 160]), "shop": shop},
            "table 'bank', column 'age': holds 'old', which is not an amount",
        ),
        (
            lambda bank, shop: {"bank": bank, "shop": shop.set_column(0, "city", [[0.5] * 160])},
            "table 'shop', column 'city': holds amounts such as 0.5, not names",
        ),
        (
            lambda bank, shop: {"bank": bank.set_column(1, "age", [[float("inf")] * 160]), "shop": shop},
            "table 'bank', column 'age': row 0 is inf, which is too large",
        ),
        (
            lambda bank, shop: {"bank": np.ones((3, 3)), "shop": np.ones((3, 2))},
            "table 'bank': ndarray is not a table: it has 3 columns, and there should be 2: age, income",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused_in_words(trained, two_frames, change, message):
    with pytest.raises((ValueError, TableError), match=message):
        trained.model.predict(change(*two_frames))


def test_frames_that_no_federation_can_be_made_of_are_refused(two_frames):
    bank, shop = two_frames
    with pytest.raises(TableError, match="no frame has the column 'want'"):
        Federation.from_frames({"bank": bank, "shop": shop}, id="id", label="want")
    with pytest.raises(TableError, match="must have the same rows in the same order: 'bank' has 160, 'shop' has 159"):
        Federation.from_frames({"bank": bank, "shop": shop.slice(1)}, label="wants")
    with pytest.raises(TableError, match="column 'lists': is of type list"):
        Federation.from_frames(
            {"bank": bank.append_column("lists", [[[1]] * 160]), "shop": shop}, label="wants", id="id"
        )


def test_a_table_that_was_standardised_in_python_predicts_raw_rows(tmp_path):
    draw = np.random.default_rng(0)
    features, classes = draw.normal(5, 3, (90, 4)), draw.integers(0, 3, 90)
    rows, held_out = standardize(*Table("mine", features, classes, "multiclass").split(0.2, 0))
    federation = Federation.cut(rows, held_out, silos=2, clients=2, bias=True)
    result = train(federation, [Linear(), Mlp((3,))], Objective("softmax"), SETTINGS, rounds=2, out=tmp_path / "run")
    expected = result.scores([silo.test_features for silo in federation.silos])
    raw_rows = Table("mine", features, classes, "multiclass").split(0.2, 0)[1].features
    for model in (result.model, Model.load(tmp_path / "run")):
        found = model.scores({"silo1": raw_rows[:, :2], "silo2": raw_rows[:, 2:]})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert model.predict({"silo1": raw_rows[:, :2], "silo2": raw_rows[:, 2:]}).dtype.kind == "i"


class Doubled:
    """A block of the user's own."""

    def init(self, key, feature_shape, num_outputs):
        return {"weight": np.ones((feature_shape[0], num_outputs), np.float32)}

    def phi(self, block, features):
        return 2 * features @ block["weight"]


def test_a_block_of_ones_own_is_given_again(tmp_path):
    table = Table("mine", np.arange(24.0).reshape(12, 2), np.arange(12.0), "regression")
    federation = Federation.cut(standardize(table)[0], silos=2)
    settings = Settings(local_steps=1, batch_size=4, step_size=0.01)
    result = train(federation, Doubled(), Objective("squared"), settings, rounds=1, out=tmp_path / "run")
    rows = {"silo1": table.features[:, :1], "silo2": table.features[:, 1:]}
    with pytest.raises(ValueError, match=r"is a block of your own: give it, Model.load\(path, blocks\)"):
        Model.load(tmp_path / "run")
    found = Model.load(tmp_path / "run", Doubled()).predict(rows)
    np.testing.assert_allclose(found, result.model.predict(rows), rtol=1e-6)
    with pytest.raises(ValueError, match=r"cannot keep blocks of your own \(Doubled\)"):
        result.model.save(tmp_path / "model.tdcd")


def test_a_damaged_file_is_not_a_model(trained, tmp_path):
    trained.model.save(tmp_path / "m.tdcd")
    content = bytearray((tmp_path / "m.tdcd").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m.tdcd").write_bytes(content)
    with pytest.raises(ValueError, match=r"m.tdcd is not a model, or is damaged: its content does not match"):
        Model.load(tmp_path / "m.tdcd")


def test_a_model_reads_tables_as_training_did(two_frames, tmp_path):
    bank, shop = two_frames
    income = np.nan_to_num(bank["income"].to_numpy(), nan=-999.0)
    marked = bank.set_column(2, "income", [income])
    data = {"blank": ["-999"]}
    federation = Federation.from_frames({"bank": marked, "shop": shop}, id="id", label="wants", data=data)
    result = train(federation, Linear(), Objective("logistic"), SETTINGS, rounds=5, out=tmp_path / "run")
    result.model.save(tmp_path / "m.tdcd")
    for model in (result.model, Model.load(tmp_path / "run"), Model.load(tmp_path / "m.tdcd")):
        ours, theirs = (model.scores({"bank": one, "shop": shop}) for one in (marked, bank))
        np.testing.assert_array_equal(ours, theirs)
        by_place = {"bank": marked.drop_columns("id"), "shop": shop.drop_columns("id")}
        plain = {"bank": bank.drop_columns("id"), "shop": shop.drop_columns("id")}
        np.testing.assert_array_equal(model.scores(by_place), model.scores(plain))
    strict = Federation.from_frames(
        {"bank": bank.drop_columns("income"), "shop": shop}, id="id", label="wants", data={"missing": "refuse"}
    )
    model = train(strict, Linear(), Objective("logistic"), SETTINGS, rounds=1).model
    blank = bank.set_column(1, "age", [[None, *bank["age"].to_pylist()[1:]]])
    with pytest.raises(TableError, match="table 'bank', column 'age': row 0 is blank"):
        model.predict({"bank": blank, "shop": shop})


def test_a_silo_that_is_missing_counts_with_its_mean_with_and_without_a_folder(two_frames, trained, recwarn):
    bank, shop = two_frames
    federation = Federation.from_frames({"bank": bank, "shop": shop}, id="id", label="wants", clients=[2, 1])
    again = train(federation, Linear(), Objective("logistic"), SETTINGS, rounds=40)
    for one in (again, trained):
        found = one.model.scores({"bank": bank}, without=["shop"])
        np.testing.assert_allclose(found, trained.model.scores({"bank": bank}, without=["shop"]), rtol=1e-5)


def test_sections_that_only_training_reads_are_refused(two_frames):
    bank, shop = two_frames
    with pytest.raises(ValueError, match="train: says how to train, not how a federation is made"):
        Federation.from_frames({"bank": bank, "shop": shop}, id="id", label="wants", train={"rounds": 3})


def test_without_a_silo_pairs_give_the_mean_score_over_its_training_rows(tmp_path):
    keys = {
        "dtype": "float64",
        "data": {"source": "diabetes", "rows": 90},
        "model": {"block": "linear", "head": "pairs"},
        "train": {"step_size": 0.05, "rounds": 3, "batch_size": 32},
        "evaluate": {"holdout": 0},
    }
    result = train_plan(plan(check_config(keys)), tmp_path / "run")
    tables = raw("diabetes", load("diabetes", rows=90).features)
    # Every row of the first silo with every row of the second.
    crossed = {
        "silo1": {name: np.repeat(values, 90) for name, values in tables["silo1"].items()},
        "silo2": {name: np.tile(values, 90) for name, values in tables["silo2"].items()},
    }
    expected = result.model.scores(crossed).reshape(90, 90).mean(axis=1)
    for model in (result.model, Model.load(tmp_path / "run")):
        with pytest.warns(UserWarning, match="without silo 'silo2', its phi is replaced by its mean"):
            found = model.scores({"silo1": tables["silo1"]}, without=["silo2"])
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9)
    with pytest.raises(
        ValueError, match=r"has model\.head = 'pairs': a table of coefficients is of a model whose score"
    ):
        result.model.coefficients()
