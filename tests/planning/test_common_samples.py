"""What more common samples buy: the fit gives back the curve that it was made from, and a plan can be made smaller."""

import re

import numpy as np
import pytest

from support.simulated import RIDGE, with_keys
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.planning.common_samples import CurvePoint, _on, _with_overlap, fitted, more_samples, overlap_of
from tdcd.training.train import train_plan


def test_a_curve_of_a_plus_b_over_n_is_read_off_exactly():
    points = [CurvePoint(n, 0.3 + 20 / n) for n in (400, 600, 800, 1000)]
    found = fitted(points)
    assert found.gain == pytest.approx(20 / 1000 - 20 / 1100, rel=1e-9)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.in_words.startswith(
        "Another 10 % of common samples (100 more) would make the held-out loss 0.32 lower by about 0.0018"
    )
    # A loss that rises with samples is noise, and no gain.
    assert fitted([point._replace(loss=-point.loss) for point in points]).gain == 0


def test_the_error_is_that_of_repeated_draws():
    draw = np.random.default_rng(0)
    sizes = [400] * 3 + [600] * 3 + [800] * 3 + [1000]
    found = [fitted([CurvePoint(n, 0.3 + 20 / n + draw.normal(0, 0.005)) for n in sizes]) for _ in range(400)]
    assert np.mean([each.error for each in found]) == pytest.approx(np.std([each.gain for each in found]), rel=0.15)


def test_a_plan_on_all_its_samples_is_the_plan():
    planned = plan(with_keys(RIDGE))
    count = planned.federation.num_samples
    whole, again = train_plan(planned), train_plan(_on(planned, np.arange(count)))
    assert [record.without_seconds() for record in whole.history] == [one.without_seconds() for one in again.history]
    half = _on(planned, np.arange(0, count, 2)).federation
    np.testing.assert_array_equal(half.labels, planned.federation.labels[::2])
    for silo, other in zip(half.silos, planned.federation.silos, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate(silo.rows)), np.arange(len(half.labels)))
        for rows, before in zip(silo.rows, other.rows, strict=True):
            assert {*(2 * rows).tolist()} == {row for row in before.tolist() if row % 2 == 0}
        np.testing.assert_array_equal(silo.features, other.features[::2])


def test_it_is_estimated_from_trainings_or_says_why_not():
    found = more_samples(plan(with_keys(RIDGE)), seconds=500)
    assert len(found.points) == 10
    assert [point.samples for point in found.points][:4] == [142, 142, 142, 212]
    assert found.points[-1].loss < found.points[0].loss
    assert "not estimated: no samples are held out" in more_samples(plan(with_keys(RIDGE, evaluate={"holdout": 0.0})))
    few = more_samples(plan(with_keys(RIDGE, data={"rows": 100})))
    assert "there are 80 common training samples, and at least 50 are trained on" in few
    slow = more_samples(plan(with_keys(RIDGE, train={"rounds": 10**6}, evaluate={"every": 10**5})), seconds=0.1)
    assert "give it more with --seconds" in slow


def lacking_plan(folder, samples=900):
    """Amounts of which one part is the partner's column, which knows half of the rows."""
    rng = np.random.default_rng(6)
    own, other = rng.normal(0, 1, (2, samples))
    amounts = own + 2 * other + rng.normal(0, 1, samples)
    known = np.flatnonzero(rng.random(samples) < 0.5)
    bank = [f"{row},{own[row]},{amounts[row]}" for row in range(samples)]
    shop = [f"{row},{other[row]}" for row in known]
    (folder / "bank.csv").write_text("\n".join(["id,x,y", *bank]) + "\n")
    (folder / "shop.csv").write_text("\n".join(["id,z", *shop]) + "\n")
    silos = [{"name": "bank", "table": "bank.csv", "label": "y"}, {"name": "shop", "table": "shop.csv"}]
    keys = {"data": {"source": "files", "folder": str(folder), "samples": "all"}, "silos": silos, "dtype": "float64"}
    return plan(
        check_config(
            {**keys, "evaluate": {"holdout": 0.3}, "train": {"rounds": 10, "step_size": 0.1, "batch_size": 64}}
        )
    )


def test_all_of_the_overlap_is_the_plan_and_less_takes_rows_from_the_partner_alone(tmp_path):
    planned = lacking_plan(tmp_path)
    overlap = overlap_of(planned.federation)
    (known,) = planned.federation.silos[1].rows
    assert not overlap[0].any()
    np.testing.assert_array_equal(np.flatnonzero(overlap[1]), known)
    count = len(known)
    whole, again = train_plan(planned), train_plan(_with_overlap(planned, overlap, np.arange(count)))
    assert [record.without_seconds() for record in whole.history] == [line.without_seconds() for line in again.history]
    half = _with_overlap(planned, overlap, np.arange(0, count, 2)).federation
    np.testing.assert_array_equal(half.silos[1].rows[0], known[::2])
    np.testing.assert_array_equal(half.silos[0].rows[0], planned.federation.silos[0].rows[0])
    assert half.num_samples == planned.federation.num_samples
    # The bank's marks say which rows the shop lacks now.
    marks = half.silos[0].features[:, half.silos[0].columns.index("without shop")]
    np.testing.assert_array_equal(np.flatnonzero(marks == 0), known[::2])


def test_what_more_overlap_buys_is_estimated(tmp_path):
    found = more_samples(lacking_plan(tmp_path), seconds=500)
    assert len(found.points) == 10
    assert "Another 10 % of overlapping rows (" in found.in_words
    few = more_samples(lacking_plan(tmp_path, 100))
    assert re.fullmatch(
        r"What more overlapping rows would buy was not .*: there are \d+ overlapping training rows, .*", few
    )
