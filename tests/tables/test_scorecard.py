"""``tdcd export --scorecard``: the points of a row add up to a linear function of its log odds, in every folder."""

import csv
import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from two_tables import ROWS, called, write_csv

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.losses import Loss
from tdcd.prediction.model import Model
from tdcd.prediction.scorecard import PointScale, scorecard, write_scorecard
from tdcd.prediction.scores import combine
from tdcd.training.train import train_plan


def trained(keys, out, **sections):
    keys = keys | {"model": {"block": "linear", "bins": 3}, "data": keys["data"] | {"rare": 9}}
    for name, changes in sections.items():
        keys = keys | {name: keys.get(name, {}) | changes}
    train_plan(plan(check_config(keys)), out)
    return out


def by_hand(path, rows):
    """``[n]``: the sums of rows of raw cells by silo and column, from the exported file alone."""
    with path.open(newline="", encoding="utf-8") as file:
        base, *lines = csv.DictReader(file)
    unit = "points" if "points" in base else "contribution"
    assert (base["silo"], base["column"]) == ("", "base")
    totals = []
    for row in rows:
        total = float(base[unit])
        for (silo, column), cell in row.items():
            own = [line for line in lines if (line["silo"], line["column"]) == (silo, column)]
            total += float(worth(own, cell, unit))
        totals.append(total)
    return np.array(totals)


def worth(lines, cell, unit):
    levels = {line["level"]: line[unit] for line in lines}
    if "" not in levels:
        return levels.get(cell or "(blank)", levels["other"])
    if cell == "":
        return levels.get("(blank)", 0)
    (found,) = [
        line[unit]
        for line in lines
        if not line["level"] and float(line["from"] or -math.inf) < float(cell) <= float(line["to"] or math.inf)
    ]
    return found


def new_rows(tmp_path, bank, bureau):
    """Tables of three new rows, with a blank where there was none and a level that nobody has seen; and their cells."""
    bank = bank | {"age": ["", "35.5", "20"], "debt": ["", "40", "-3"], "id": [3, 1, 2], "y": ["no"] * 3}
    bureau = bureau | {"debt": ["0.5", "7", "-2"], "city": ["Rome", "", "Paris"], "key": [3, 1, 2]}
    write_csv(tmp_path / "new_bank.csv", bank)
    write_csv(tmp_path / "new_bureau.csv", bureau)
    names = {"bank": bank, "bureau": bureau}
    columns = [("bank", "age"), ("bank", "debt"), ("bureau", "debt"), ("bureau", "city")]
    return [{(silo, column): names[silo][column][row] for silo, column in columns} for row in range(3)]


def scores(folder, tmp_path):
    parts = {name: Model.load(folder).silo_scores(name, tmp_path / f"new_{name}.csv") for name in ("bank", "bureau")}
    return combine(parts).scores[:, 0]


def test_points_are_linear_in_the_log_odds(keys, tmp_path, bank, bureau):
    folder, cells = trained(keys, tmp_path / "run"), new_rows(tmp_path, bank, bureau)
    for favours, sign in ((None, -1), ("no", -1), ("yes", 1)):
        card = scorecard(Model.load(folder), PointScale(points=500, odds=2, double=30, favours=favours))
        write_scorecard(tmp_path / "card.csv", card)
        wanted = 500 + 30 * (sign * scores(folder, tmp_path) / math.log(2) - 1)
        np.testing.assert_allclose(by_hand(tmp_path / "card.csv", cells), wanted, rtol=1e-5)
        assert "500 points are odds of 2 to 1 in favour of '" + (favours or "no") in card.meaning
    # A column's points are zero on average.
    for column in {(line.silo, line.column) for line in card.lines[1:]}:
        own = [line for line in card.lines if (line.silo, line.column) == column]
        assert sum(line.cell.share for line in own) == pytest.approx(1)
        assert sum(line.cell.share * line.value for line in own) == pytest.approx(0, abs=1e-9)


def test_amounts_have_contributions_in_their_own_unit(keys, tmp_path, bank, bureau):
    write_csv(tmp_path / "bank.csv", bank | {"y": [float(number) for number in range(100, 100 + ROWS)]})
    folder, cells = trained(keys, tmp_path / "run"), new_rows(tmp_path, bank, bureau)
    model = Model.load(folder)
    write_scorecard(tmp_path / "card.csv", scorecard(model))
    encoding = model.label_encoding
    amounts = scores(folder, tmp_path) * encoding.scale + encoding.mean
    np.testing.assert_allclose(by_hand(tmp_path / "card.csv", cells), amounts, rtol=1e-5)


def test_counts_have_factors_too(keys, tmp_path, bank, bureau):
    write_csv(tmp_path / "bank.csv", bank | {"y": [number % 4 for number in range(ROWS)]})
    folder = trained(keys, tmp_path / "run", model={"loss": "poisson"})
    cells, card = new_rows(tmp_path, bank, bureau), tmp_path / "card.csv"
    model = Model.load(folder)
    write_scorecard(card, scorecard(model))
    wanted = scores(folder, tmp_path) + math.log(model.label_encoding.scale)
    np.testing.assert_allclose(by_hand(card, cells), wanted, rtol=1e-5)
    with card.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    contributions, factors = ([float(line[name]) for line in lines] for name in ("contribution", "factor"))
    np.testing.assert_allclose(factors, np.exp(contributions))


def test_a_hub_exports_its_own_columns_and_hubs_add_up(keys, tmp_path):
    folder = trained(keys, tmp_path / "run")
    whole = scorecard(Model.load(folder)).lines
    together, bases = [], []
    for silo, other in (("bank", "bureau"), ("bureau", "bank")):
        path = folder / "preparation" / f"{other}.json"
        path.rename(path.with_suffix(".away"))
        part = scorecard(Model.load(folder))
        path.with_suffix(".away").rename(path)
        assert part.absent == [other]
        base, *own = part.lines
        assert {line.silo for line in own} == {silo}
        together += own
        bases.append(base.value)
    assert together == whole[1:]
    assert sum(bases) == pytest.approx(whole[0].value)


def test_merged_bins_and_evidence_by_command(keys, tmp_path, bank, bureau):
    """The merged model that is written predicts what the merged scorecard adds up to."""
    folder, cells, out = trained(keys, tmp_path / "run"), new_rows(tmp_path, bank, bureau), tmp_path / "card.csv"
    tables = [f"--data={silo}={tmp_path / silo}.csv" for silo in ("bank", "bureau")]
    status, text = called("export", folder, "--scorecard", "--monotone", "all", *tables, "--out", out)
    assert (status, "Merged bins of 'bank.age': 3 became " in text) == (0, True)
    wanted = 600 - 20 * scores(out.with_suffix(".tdcd"), tmp_path) / math.log(2)
    np.testing.assert_allclose(by_hand(out, cells), wanted, rtol=1e-5)
    with out.open(newline="", encoding="utf-8") as file:
        _, *lines = csv.DictReader(file)
    for column in {(line["silo"], line["column"]) for line in lines}:
        own = [line for line in lines if (line["silo"], line["column"]) == column]
        points = np.array([float(line["points"]) for line in own if not line["level"]])
        assert (np.diff(points) > 0).all() or (np.diff(points) < 0).all()
        assert sum(int(line["rows"]) for line in own) == ROWS
        assert sum(float(line["iv"]) for line in own) >= 0
    assert "Information value" in out.with_suffix(".html").read_text(encoding="utf-8")


def test_the_command_shows_or_writes_a_table_and_a_page(keys, tmp_path):
    folder, out = trained(keys, tmp_path / "run", train={"rounds": 1}), tmp_path / "card.parquet"
    status, said = called("export", folder, "--scorecard", "--double", 40)
    assert status == 0
    assert "every 40 points more double them" in said
    assert "(blank)" in said
    status, said = called("export", folder, "--scorecard", "--out", out)
    assert (status, out.exists()) == (0, True)
    assert pq.read_table(out).column_names == ["silo", "column", "from", "to", "level", "points", "share"]
    page = out.with_suffix(".html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    for text in ("city", "Rome", "600 points are odds of 1 to 1 in favour of"):
        assert text in page
    assert "http" not in page.replace("http-equiv", "")
    out.unlink()
    for options, message in (
        (["--scorecard", "--out", out], "card.html"),
        (["--scorecard", "--favours", "maybe"], "--favours maybe: the classes are no and yes"),
        (["--scorecard", "--odds", "0"], "--odds and --double must be above zero"),
        (["--points", "500"], "--points goes with --scorecard"),
        (["--monotone", "all"], "--monotone goes with --scorecard"),
        (["--scorecard", "--label", "y"], "--label goes with --data SILO=FILE"),
        (["--scorecard", "--monotone", "city"], "in silo 'bureau' it has levels, not bins"),
    ):
        status, said = called("export", folder, *options)
        assert status == 2
        assert message in said


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"bins": None}, "silo 'bank': 'age' has no bins: a scorecard needs a run with model.encoding = 'bins'"),
        ({"block": "mlp"}, "silo 'bank' has a block of kind 'mlp': a scorecard is of linear ones"),
        ({"loss": "softmax"}, "has the softmax loss: a scorecard is of two classes with model.loss"),
    ],
)
def test_what_has_no_points_is_refused(keys, tmp_path, model, message):
    folder = trained(keys, tmp_path / "run", train={"rounds": 0}, model=model)
    status, said = called("export", folder, "--scorecard")
    assert status == 2
    assert message in said


def test_a_loss_of_ones_own_has_no_points(keys, tmp_path):
    class Own(Loss):
        name = "own"

    model = replace(Model.load(trained(keys, tmp_path / "run")), loss=Own())
    with pytest.raises(ValueError, match="has a loss of your own, own: what its scores mean is not known here"):
        scorecard(model)
