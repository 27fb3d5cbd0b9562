import math

import numpy as np
import pytest

from tdcd.data import load
from tdcd.data.superconductors import COLUMNS, PROPERTIES, STATISTICS, statistics


@pytest.fixture(scope="module")
def table():
    return load("superconductors", seed=0)


def by_loop(values, proportions):
    """The ten statistics of one compound, from their definitions."""
    t, p = zip(*((v, q) for v, q in zip(values, proportions, strict=True) if q > 0), strict=True)
    m = len(t)
    mean, wtd_mean = sum(t) / m, sum(q * v for q, v in zip(p, t, strict=True))
    w = [v / sum(t) for v in t]
    a = [q * v / sum(r * u for r, u in zip(p, w, strict=True)) for q, v in zip(p, w, strict=True)]
    pt = [q * v for q, v in zip(p, t, strict=True)]
    return [
        mean,
        wtd_mean,
        math.prod(t) ** (1 / m),
        math.prod(v**q for q, v in zip(p, t, strict=True)),
        -sum(x * math.log(x) for x in w),
        -sum(x * math.log(x) for x in a),
        max(t) - min(t),
        max(pt) - min(pt),
        math.sqrt(sum((v - mean) ** 2 for v in t) / m),
        math.sqrt(sum(q * (v - wtd_mean) ** 2 for q, v in zip(p, t, strict=True))),
    ]


def test_statistics_of_the_published_example():
    # Re6Zr1 by thermal conductivity: Hamidieh 2018, table 2.
    found = statistics(np.array([[48.0, 23.0]]), np.array([[6 / 7, 1 / 7]]))[0]
    published = [35.5, 44.43, 33.23, 43.21, 0.63, 0.26, 25, 37.86, 12.5, 8.75]
    np.testing.assert_allclose(found, published, atol=0.006)


def test_statistics_agree_with_their_definitions():
    rng = np.random.default_rng(1)
    values = rng.lognormal(2, 1, size=(20, 9))
    amounts = rng.lognormal(size=(20, 9)) * (np.arange(9) < rng.integers(1, 10, size=(20, 1)))
    amounts[0, 1:] = 0  # An element alone.
    proportions = amounts / amounts.sum(axis=1, keepdims=True)
    expected = [by_loop(*compound) for compound in zip(values, proportions, strict=True)]
    np.testing.assert_allclose(statistics(values, proportions), expected, rtol=1e-9, atol=1e-12)


def test_shape_and_names_are_those_of_the_real_table(table):
    assert table.name == "superconductors (synthetic)"
    assert table.task == "regression"
    assert table.features.shape == (21263, 81)
    assert table.features.dtype == np.float64
    assert table.columns == COLUMNS
    assert COLUMNS[:3] == ("number_of_elements", "mean_atomic_mass", "wtd_mean_atomic_mass")
    assert COLUMNS[-1] == "wtd_std_Valence"
    assert {"wtd_gmean_Density", "wtd_entropy_fie", "range_ElectronAffinity"} < set(COLUMNS)


def test_the_seed_determines_the_table(table):
    again, other = load("superconductors", seed=0), load("superconductors", seed=1)
    assert (again.features == table.features).all()
    assert (again.labels == table.labels).all()
    assert (other.features != table.features).any()


def test_rows_are_part_of_the_table(table):
    part = load("superconductors", seed=0, rows=500)
    assert part.features.shape == (500, 81)
    assert set(part.labels) <= set(table.labels)


def test_columns_obey_the_laws_of_their_statistics(table):
    column = dict(zip(table.columns, table.features.T.astype(np.float64), strict=True))
    number = column["number_of_elements"]
    assert set(number) == set(range(1, 10))
    for name in PROPERTIES:
        mean, _, gmean, _, entropy, wtd_entropy, spread, _, std, _ = (column[f"{s}_{name}"] for s in STATISTICS)
        assert (gmean > 0).all()
        assert (gmean <= mean * (1 + 1e-6)).all()
        assert (np.maximum(entropy, wtd_entropy) <= np.log(number) + 1e-6).all()
        assert (std <= spread / 2 * (1 + 1e-6)).all()
        assert (spread[number == 1] == 0).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_target_resembles_critical_temperatures(seed):
    table = load("superconductors", seed=seed)
    labels = table.labels
    assert labels.min() > 0
    assert 120 < labels.max() <= 140
    assert labels.mean() == pytest.approx(34.4, abs=1.5)
    assert labels.std() == pytest.approx(34.3, abs=2.5)
    assert ((labels - labels.mean()) ** 3).mean() / labels.std() ** 3 > 0.8
    features = np.column_stack([np.ones(len(labels)), table.features])
    scaled = features / np.abs(features).max(axis=0)
    residuals = labels - scaled @ np.linalg.lstsq(scaled, labels, rcond=None)[0]
    assert 0.60 < 1 - residuals.var() / labels.var() < 0.75


def test_features_are_strongly_correlated(table):
    correlations = np.abs(np.corrcoef(table.features, rowvar=False))
    np.fill_diagonal(correlations, 0)
    assert np.median(correlations.max(axis=0)) > 0.9
