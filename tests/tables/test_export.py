import csv
import sys

import numpy as np
import pytest
from two_tables import ROWS, called, write_csv

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.prediction.coefficients import write_coefficients
from tdcd.prediction.model import Model
from tdcd.prediction.scores import combine
from tdcd.training.train import train_plan


def trained(keys, out, **sections):
    for name, changes in sections.items():
        keys = keys | {name: keys.get(name, {}) | changes}
    train_plan(plan(check_config(keys)), out)
    return out


def by_name(table):
    return {(row.silo, row.column): row.values for row in table.rows}


def test_a_linear_law_is_found_in_its_own_units(tmp_path):
    """Noiseless amounts that are linear in the columns: training must arrive at the law that made them."""
    rng = np.random.default_rng(0)
    age, rent = rng.uniform(20, 60, 60), rng.uniform(300, 900, 60)
    city = rng.choice(["Rome", "Oslo"], 60)
    price = 5 * age - 0.25 * rent + 30 * (city == "Rome") + 1000
    ids = range(60)
    write_csv(tmp_path / "a.csv", {"id": ids, "price": price, "age": age})
    write_csv(tmp_path / "b.csv", {"id": ids, "rent": rent, "city": city})
    keys = {
        "dtype": "float64",
        "data": {"source": "files", "folder": str(tmp_path)},
        "model": {"block": "linear"},
        "train": {"rounds": 300, "minibatches": "full", "step_size": 0.3, "local_steps": 5},
        "evaluate": {"every": 300},
        "silos": [
            {"name": "a", "table": "a.csv", "label": "price"},
            {"name": "b", "table": "b.csv", "categorical": ["city"]},
        ],
    }
    table = Model.load(trained(keys, tmp_path / "run")).coefficients()
    found = by_name(table)
    assert table.outputs == ["coefficient"]
    assert list(found)[-1] == ("", "intercept")
    np.testing.assert_allclose(found["a", "age"], 5, rtol=1e-4)
    np.testing.assert_allclose(found["b", "rent"], -0.25, rtol=1e-4)
    np.testing.assert_allclose(found["b", "city=Rome"] - found["b", "city=Oslo"], 30, rtol=1e-4)
    np.testing.assert_allclose(found["", "intercept"] + found["b", "city=Oslo"], 1000, rtol=1e-4)
    # A name that was never seen counts as none.
    assert found["b", "city=other"] == 0
    # No column had a blank.
    assert not [column for _, column in found if column.endswith("missing")]


def by_hand(folder, tables):
    """``[n, C]``: the scores of rows of raw cells, given by silo, from the exported file alone."""
    with (folder / "coefficients.csv").open(newline="", encoding="utf-8") as file:
        _, *lines = csv.reader(file)
    found = {(silo, column): np.array(values, float) for silo, column, *values in lines}
    scores = []
    for rows in zip(*tables.values(), strict=True):
        score = found["", "intercept"].copy()
        for silo, row in zip(tables, rows, strict=True):
            for column, cell in row.items():
                if cell == "":
                    score += found[silo, f"{column} missing"]
                elif (silo, column) in found:
                    score += found[silo, column] * float(cell)
                else:
                    score += found.get((silo, f"{column}={cell}"), found[silo, f"{column}=other"])
        scores.append(score)
    return np.array(scores)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_scores_by_hand_equal_predictions(keys, tmp_path, bank, bureau, loss):
    folder = trained(keys, tmp_path / "run", model={"loss": loss})
    write_coefficients(folder / "coefficients.csv", Model.load(folder).coefficients())
    bank |= {"age": ["", "35.5", "20"], "debt": ["1e2", "40", "-3"], "id": [3, 1, 2], "y": ["no"] * 3}
    bureau |= {"debt": ["0.5", "7", "-2"], "city": ["Rome", "", "Paris"], "key": [3, 1, 2]}
    for name, columns in (("bank", bank), ("bureau", bureau)):
        write_csv(tmp_path / f"new_{name}.csv", columns)
    parts = {name: Model.load(folder).silo_scores(name, tmp_path / f"new_{name}.csv") for name in ("bank", "bureau")}
    cells = {
        "bank": [{"age": bank["age"][row], "debt": bank["debt"][row]} for row in range(3)],
        "bureau": [{"debt": bureau["debt"][row], "city": bureau["city"][row]} for row in range(3)],
    }
    np.testing.assert_allclose(combine(parts).scores, by_hand(folder, cells), rtol=1e-4, atol=1e-5)


def test_several_classes_have_a_column_each(keys, tmp_path):
    table = Model.load(trained(keys, tmp_path / "run", model={"loss": "softmax"})).coefficients()
    assert table.outputs == ["coefficient_no", "coefficient_yes"]
    assert all(len(row.values) == 2 for row in table.rows)


def test_parts_exported_one_by_one_add_up(keys, tmp_path, bank):
    bank["y"] = [float(number) for number in range(100, 100 + ROWS)]
    write_csv(tmp_path / "bank.csv", bank)
    folder = trained(keys, tmp_path / "run", model={"loss": "squared"})
    whole = by_name(Model.load(folder).coefficients())
    together = {}
    for silo, other in (("bank", "bureau"), ("bureau", "bank")):
        path = folder / "preparation" / f"{other}.json"
        path.rename(path.with_suffix(".away"))
        part = Model.load(folder).coefficients()
        path.with_suffix(".away").rename(path)
        assert part.absent == [other]
        assert {row.silo for row in part.rows} == {silo, ""}
        for name, values in by_name(part).items():
            together[name] = together.get(name, 0) + values
    assert together.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_allclose(together[name], values, rtol=1e-12)
    assert whole["", "intercept"] > 50


def test_only_columns_that_had_blanks_have_a_row_for_them(keys, tmp_path):
    table = Model.load(trained(keys, tmp_path / "run")).coefficients()
    blanks = [(row.silo, row.column) for row in table.rows if row.column.endswith("missing")]
    assert blanks == [("bank", "age missing"), ("bureau", "city missing")]


def test_many_classes_are_shown_whole_in_eighty_columns(keys, tmp_path, bank):
    names = [f"profession number {number}" for number in range(12)]
    write_csv(tmp_path / "bank.csv", bank | {"y": [names[row % 12] for row in range(ROWS)]})
    folder = trained(keys, tmp_path / "run", train={"rounds": 1})
    status, said = called("export", folder, columns=80)
    assert status == 0
    assert "…" not in said
    found = Model.load(folder).coefficients()
    for heading in found.outputs:
        assert heading in said
    for row in found.rows:
        assert all(f"{value:.6g}" in said for value in row.values), row


def test_columns_that_may_not_be_blank_have_no_row_for_it(keys, tmp_path, bank, bureau):
    bank["age"] = ["30"] * 40 + ["40"] * 40
    bureau["city"] = ["Rome"] * 40 + ["Oslo"] * 40
    write_csv(tmp_path / "bank.csv", bank)
    write_csv(tmp_path / "bureau.csv", bureau)
    table = Model.load(trained(keys, tmp_path / "run", data={"missing": "refuse"})).coefficients()
    names = [f"{row.silo} {row.column}".strip() for row in table.rows]
    cities = ["bureau city=Oslo", "bureau city=Rome", "bureau city=other"]
    assert names == ["bank age", "bank debt", "bureau debt", *cities, "intercept"]


def test_a_block_without_coefficients_is_refused(keys, tmp_path):
    folder = trained(keys, tmp_path / "run", model={"block": ["linear", "mlp"], "hidden": [2]}, train={"rounds": 0})
    with pytest.raises(ValueError, match="silo 'bureau' has a block of kind 'mlp': only linear ones have coefficients"):
        Model.load(folder).coefficients()


def test_the_command_shows_or_writes(keys, tmp_path):
    folder, out = trained(keys, tmp_path / "run", train={"rounds": 1}), tmp_path / "c.csv"
    status, said = called("export", folder)
    assert status == 0
    for row in Model.load(folder).coefficients().rows:
        assert f"{row.silo} {row.column} {row.values[0]:.6g}".strip() in said
    assert called("export", folder, "--out", out) == (0, f"Coefficients: {out}")
    lines = out.read_text().splitlines()
    assert lines[0] == "silo,column,coefficient"
    assert lines[-1].startswith(",intercept,")
    assert called("export", folder, "--out", out)[0] == 2
    (folder / "model" / "bureau.safetensors").unlink()
    status, said = called("export", folder, "--out", out, "--force")
    assert (status, said.endswith("Only a part of the model: " + f"{folder} does not have that of bureau.")) == (
        0,
        True,
    )
    (folder / "model" / "bank.safetensors").unlink()
    status, said = called("export", folder)
    assert (status, f"{folder} holds no model: let the run end" in said) == (2, True)


def test_without_the_onnx_package_a_sentence_says_what_to_install(keys, tmp_path, monkeypatch):
    folder, out = trained(keys, tmp_path / "run", train={"rounds": 0}), tmp_path / "bank.onnx"
    monkeypatch.setitem(sys.modules, "onnx", None)
    for options in ([], ["--silo", "bank"], ["--from-phi"]):
        assert called("export", folder, "--onnx", "--out", out, *options) == (
            2,
            "Error: an ONNX file needs the onnx package: pip install 'tdcd[onnx]'",
        )
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tdcd\[onnx\]'"):
        Model.load(folder).to_onnx(out)
    assert not out.exists()
