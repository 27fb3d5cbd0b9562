"""Predictions without a silo: in the command, in Python and between hubs, the same numbers."""

import csv

import numpy as np
import pytest
from two_tables import ROWS, called

from tdcd import Model
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.prediction.scores import SiloScores, StandIns, combine
from tdcd.records.run_folder import RunFolder
from tdcd.training.train import train_plan


def chances_in(path):
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id" if "id" in row else "key"]: (float(row["probability_yes"]), row["missing"])
                for row in csv.DictReader(file)}  # fmt: skip


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_the_command_the_model_and_a_saved_model_say_the_same(keys, tmp_path, rate):
    keys["train"]["silo_dropout"] = rate
    result = train_plan(plan(check_config(keys)), tmp_path / "run")
    stand_in = RunFolder(tmp_path / "run").subsets()["stand_in"]
    bureau, out = tmp_path / "bureau.csv", tmp_path / "p.csv"
    status, said = called("predict", tmp_path / "run", "--data", f"bureau={bureau}", "--without", "bank", "--out", out)
    assert status == 0
    assert f"{ROWS} of them are scored without the part of silo 'bank'." in said
    assert ("its phi is replaced by its mean over the training rows" in said) == (not rate)
    model = Model.load(tmp_path / "run")
    alone = model.silo_scores("bureau", bureau)
    intercept = float(np.asarray(result.blocks["bank"]["weight"])[-1, 0])
    if rate:
        assert stand_in == {"bank": [pytest.approx(intercept)], "bureau": [0.0]}
    expected = 1 / (1 + np.exp(-(alone.phi[:, 0].astype(float) + stand_in["bank"][0])))
    assert chances_in(out) == {
        one: (pytest.approx(chance), "bank") for one, chance in zip(alone.ids, expected, strict=True)
    }
    model.save(tmp_path / "model.tdcd")
    for one in (model, Model.load(tmp_path / "model.tdcd"), result.model):
        with pytest.warns(UserWarning, match="may be far off") if not rate else np.errstate():
            found = one.predict_proba({"bureau": bureau}, without=["bank"])
        np.testing.assert_allclose(found[:, 1], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="the table of silo 'bank' is missing"):
        model.predict({"bureau": bureau})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--without", "shop"], "without 'shop': there is no such silo; there are bank, bureau"),
        (["--without", "bank"], "without 'bank': there is a table of it; leave one of the two out"),
    ],
)
def test_what_cannot_be_missing_is_refused(keys, tmp_path, options, message):
    train_plan(plan(check_config(keys)), tmp_path / "run")
    data = ["--data", f"bank={tmp_path / 'bank.csv'}"]
    status, said = called("predict", tmp_path / "run", *data, *options, "--out", tmp_path / "p.csv")
    assert (status, message in said) == (2, True)
    with pytest.raises(ValueError, match="that is every silo, and nothing is left to predict from"):
        Model.load(tmp_path / "run").predict({}, without=["bank", "bureau"])


def scores_of(**phi):
    return SiloScores([name[1:] for name in phi], np.array([[value] for value in phi.values()]))


def test_a_silo_that_lacks_some_ids_and_one_that_lacks_all_are_replaced_alike():
    parts = {"bank": scores_of(_1=1.0, _2=2.0), "lab": scores_of(), "shop": scores_of(_2=10.0, _3=20.0)}
    parts["lab"] = SiloScores((), np.zeros((0, 1)))
    stand_ins = StandIns({"bank": [0.5], "lab": [0.25], "shop": [5.0]}, 0.3)
    with pytest.raises(ValueError, match="silo 'bank' lacks 1 of 3 ids"):
        combine(parts, without=["lab"], stand_ins=stand_ins)
    found = combine(parts, True, without=["lab"], stand_ins=stand_ins)
    assert found.scores[:, 0].tolist() == [6.25, 12.25, 20.75]
    assert [*map(tuple, found.missing)] == [("lab", "shop"), ("lab",), ("bank", "lab")]
    common = combine(parts, common_only=True, without=["lab"], stand_ins=stand_ins)
    assert (list(common.ids), common.scores[:, 0].tolist()) == (["2"], [12.25])
