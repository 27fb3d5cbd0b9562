"""Merged bins: pool adjacent violators against its definition, and a merged model that scores as its scorecard says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from tdcd.blocks import Linear
from tdcd.core.losses import loss_of
from tdcd.prediction.model import Model, SiloModel
from tdcd.prediction.monotone import isotonic, monotone, nearest_monotone
from tdcd.prediction.scorecard import PointScale, evidence, evidence_of, scorecard, write_scorecard
from tdcd.tables.encodings import Binned, Cell, OneHot, encoding_from_json
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import Columns
from tdcd.tables.summary import Summary, summarize

NUMBERS = st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 3)), min_size=1, max_size=12)


@given(NUMBERS)
def test_pools_are_the_nearest_rising_sequence_and_keep_the_mean(pairs):
    values, weights = (np.array(part) for part in zip(*pairs, strict=True))
    found = isotonic(values, weights)
    assert (np.diff(found) >= -1e-12).all()
    assert weights @ found == pytest.approx(weights @ values, abs=1e-9)
    np.testing.assert_allclose(found, isotonic_regression(values, sample_weight=weights), atol=1e-9)
    np.testing.assert_allclose(isotonic(found, weights), found, atol=1e-9)
    either = nearest_monotone(values, weights)
    off = [weights @ (one - values) ** 2 for one in (either, found, -isotonic(-values, weights))]
    assert off[0] == pytest.approx(min(off[1:]))


def model_of(weights, encodings, silo="bank"):
    preparation = Preparation(encodings)
    block = np.array(weights, np.float32)[:, None]
    columns = Columns("id").only([*encodings], preparation.categorical)
    part = SiloModel(columns, preparation, (len(block),), Linear(), {"weight": block})
    return Model((silo,), {silo: part}, LabelEncoding("binary", ("good", "bad")), loss_of("logistic"))


AGE = Binned((10.0, 20.0, 30.0), (0.1, 0.4, 0.2, 0.2, 0.1), indicator=True)
CITY = OneHot(("Oslo", "Rome"), False, False, (0.5, 0.5))
# Four bins that rise but for the third, blanks, two cities, and a column of ones.
WEIGHTS = [0.0, 2.0, 1.0, 3.0, -1.0, 0.5, -0.5, 0.25]


def test_neighbours_become_one_bin_with_their_weighted_mean():
    model = model_of(WEIGHTS, {"age": AGE, "city": CITY})
    found, merged = monotone(model, ["age"])
    part = found.part("bank")
    binned = part.preparation.parts["age"]
    assert (binned.cuts, binned.indicator) == ((10.0, 30.0), True)
    assert binned.shares == pytest.approx((0.1, 0.6, 0.2, 0.1))
    pooled = (0.4 * 2 + 0.2 * 1) / 0.6
    np.testing.assert_allclose(part.parameters["weight"][:, 0], [0, pooled, 3, -1, 0.5, -0.5, 0.25], rtol=1e-6)
    assert [tuple(one) for one in merged] == [("bank", "age", 4, 3)]
    assert monotone(found).merged[0].after == 3
    for same in ("bank.age", "all"):
        assert monotone(model, [same]).model.part("bank").preparation == part.preparation


def test_the_merged_model_scores_as_its_scorecard_and_survives_a_file(tmp_path):
    found, _ = monotone(model_of(WEIGHTS, {"age": AGE, "city": CITY}))
    found.save(tmp_path / "card.tdcd")
    table = {"age": [5.0, 15.0, 25.0, 35.0, None], "city": ["Oslo", "Rome", "Oslo", "Rome", "Oslo"]}
    for model in (found, Model.load(tmp_path / "card.tdcd")):
        scores = model.scores({"bank": table})[:, 0]
        np.testing.assert_allclose(scores[1] - scores[2], -1.0, rtol=1e-6)
        card = scorecard(model, PointScale(points=0, double=math.log(2), favours="bad"))
        own = [line.value for line in card.lines if line.column == "age"]
        np.testing.assert_allclose(np.array(own) - own[0], np.array([0, 5 / 3, 3, -1]), rtol=1e-5)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("city", "in silo 'bank' it has levels, not bins"),
        ("size", "no such column is in bins; the columns are age, city"),
    ],
)
def test_columns_without_bins_are_refused(column, words):
    with pytest.raises(ValueError, match=f"--monotone {column}: {words}"):
        monotone(model_of(WEIGHTS, {"age": AGE, "city": CITY}), [column])


# Weight of evidence.


def test_evidence_has_its_closed_forms():
    # A share p of one class and q of the other in the first of two bins.
    p, q = 0.75, 0.25
    found = evidence([75, 25], [10, 30])
    woe = [math.log(p / q), math.log((1 - p) / (1 - q))]
    assert [one.woe for one in found] == pytest.approx(woe)
    assert sum(one.iv for one in found) == pytest.approx((p - q) * (woe[0] - woe[1]))
    # The symmetrised Kullback-Leibler divergence, which is 0 for equal distributions and symmetric.
    assert sum(one.iv for one in evidence([5, 10], [50, 100])) == pytest.approx(0)
    swapped = evidence([10, 30], [75, 25])
    assert [one.iv for one in swapped] == pytest.approx([one.iv for one in found])
    assert [one.woe for one in swapped] == pytest.approx([-value for value in woe])
    # An empty bin says nothing, and one without a class counts half a row of it.
    empty, without = evidence([0, 0, 10], [0, 5, 5])[:2]
    assert (empty.woe, empty.iv) == (None, 0)
    assert without.woe == pytest.approx(math.log((0.5 / 10) / (5 / 10)))
    with pytest.raises(ValueError, match="one class only"):
        evidence([1, 2], [0, 0])


def test_rows_are_counted_by_bin_and_joined_by_id(tmp_path):
    bank, bureau = (
        model_of(WEIGHTS, {"age": AGE, "city": CITY}),
        model_of([1.0, 0.0], {"debt": Binned((5.0,), (0.5, 0.5), False)}),
    )
    model = Model(
        ("bank", "bureau"),
        {"bank": bank.part("bank"), "bureau": bureau.part("bank")},
        bank.label_encoding,
        bank.loss,
    )
    table = {
        "id": ["a", "b", "c", "d"],
        "age": [5.0, 15.0, 15.0, None],
        "city": ["Oslo", "Oslo", "Paris", "Rome"],
        "y": ["good", "good", "bad", "bad"],
    }
    other = {"id": ["d", "c", "b", "x"], "debt": [1.0, None, 9.0, 9.0]}
    found = evidence_of(model, {"bank": table, "bureau": other}, "y", "good")
    assert [(one.favoured, one.others) for one in found["bank", "age"]] == [(1, 0), (1, 1), (0, 0), (0, 0), (0, 1)]
    # Paris has no feature and counts as "other", the last cell.
    assert [(one.favoured, one.others) for one in found["bank", "city"]] == [(2, 0), (0, 1), (0, 1)]
    # Only labelled rows count, and a blank that training never had is in no bin.
    assert [(one.favoured, one.others) for one in found["bureau", "debt"]] == [(0, 1), (1, 0)]
    card = scorecard(model, tables={"bank": table}, label="y")
    assert card.information == {
        ("bank", column): pytest.approx(sum(one.iv for one in found["bank", column])) for column in ("age", "city")
    }
    write_scorecard(tmp_path / "card.csv", card)
    assert (tmp_path / "card.csv").read_text().splitlines()[0].endswith("share,rows,favoured,woe,iv")
    with pytest.raises(ValueError, match="none of the tables has the column 'y'"):
        evidence_of(model, {"bureau": other}, "y", "good")
    with pytest.raises(ValueError, match="--label COLUMN"):
        scorecard(model, tables={"bank": table})


# Dates.


def test_dates_are_dates():
    opened = Binned((19723.0, 19754.5), (0.25, 0.5, 0.25), False, is_date=True)
    assert opened.names("opened") == [
        "opened <= 2024-01-01",
        "opened 2024-01-01 to 2024-02-01 12:00:00",
        "opened > 2024-02-01 12:00:00",
    ]
    assert encoding_from_json(opened.to_json()) == opened
    assert "is_date" not in AGE.to_json()
    assert Cell(above=2.0, up_to=4.5).ends == ("2", "4.5")


def test_a_table_with_dates_gives_a_card_with_dates(tmp_path):
    opened = Binned((19723.0,), (0.5, 0.5), False, is_date=True)
    card = scorecard(model_of([0.0, 1.0, 0.0, 1.0], {"opened": opened, "debt": Binned((2.5,), (0.5, 0.5), False)}))
    write_scorecard(tmp_path / "card.csv", card)
    lines = (tmp_path / "card.csv").read_text().splitlines()
    assert lines[2].startswith("bank,opened,,2024-01-01,")
    assert lines[5].startswith("bank,debt,2.5,,")


def test_clients_say_that_a_column_holds_dates(tmp_path):
    path = tmp_path / "dates.csv"
    path.write_text("id,opened,debt\n" + "".join(f"{n},2024-{n % 12 + 1:02d}-10,{n}\n" for n in range(60)))
    rows = read_rows(path, Columns("id"))
    halves = [summarize(rows, np.arange(60) % 2 == half, 4).to_json() for half in (0, 1)]
    assert [half["opened"]["is_date"] for half in halves] == [True, True]
    assert "is_date" not in halves[0]["debt"]
    first, second = map(Summary.from_json, halves)
    parts = Preparation.fit(first.merge(second), bins=4).parts
    assert (parts["opened"].is_date, parts["debt"].is_date) == (True, False)
