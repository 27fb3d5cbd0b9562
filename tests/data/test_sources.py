import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.data import SOURCES, data_folder, load

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("source", "shape", "task", "num_classes"),
    [
        ("digits", (1797, 8, 8), "multiclass", 10),
        ("breast_cancer", (569, 30), "binary", 1),
        ("diabetes", (442, 10), "regression", 1),
    ],
)
def test_embedded_tables(source, shape, task, num_classes):
    table = load(source)
    assert (table.name, table.features.shape, table.task, table.num_classes) == (source, shape, task, num_classes)
    assert table.features.dtype == (np.float32 if table.is_images else np.float64)
    assert len(table.columns) == (0 if table.is_images else shape[1])
    assert table.held_out is None
    assert source in SOURCES


@pytest.mark.slow  # importing scikit-learn takes longer than all tests of this module
def test_embedded_tables_are_those_of_scikit_learn():
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

    digits, breast_cancer, diabetes = load_digits(), load_breast_cancer(), load_diabetes(scaled=False)
    np.testing.assert_array_equal(load("digits").features, digits.images / 16)
    for table, theirs in ((load("breast_cancer"), breast_cancer), (load("diabetes"), diabetes)):
        np.testing.assert_array_equal(table.features, theirs.data)
        assert list(table.columns) == list(theirs.feature_names)
        np.testing.assert_array_equal(table.labels, theirs.target)
    np.testing.assert_array_equal(load("digits").labels, digits.target)
    assert list(load("breast_cancer").classes) == list(breast_cancer.target_names)


def test_pixels_of_the_digits_run_from_0_to_1():
    features = load("digits").features
    assert (features.min(), features.max()) == (0, 1)
    assert (features * 16 == np.round(features * 16)).all()


def test_diabetes_is_in_its_own_units():
    table = load("diabetes")
    age = table.features[:, table.columns.index("age")]
    assert (age.min(), age.max()) == (19, 79)
    assert (table.labels.min(), table.labels.max()) == (25, 346)


def test_rows_are_drawn_by_the_seed_in_the_sources_order():
    whole, part, larger = load("diabetes"), load("diabetes", rows=50, seed=5), load("diabetes", rows=80, seed=5)
    samples = [tuple(row) for row in whole.features]
    drawn = [samples.index(tuple(row)) for row in part.features]
    assert len(set(drawn)) == 50
    assert drawn == sorted(drawn)
    assert (part.labels == whole.labels[drawn]).all()
    assert set(drawn) <= {samples.index(tuple(row)) for row in larger.features}
    assert (load("diabetes", rows=50, seed=5).labels == part.labels).all()
    assert (load("diabetes", rows=50, seed=6).labels != part.labels).any()
    assert (load("diabetes", rows=442).labels == whole.labels).all()


@pytest.mark.parametrize("rows", [0, 443])
def test_more_rows_than_there_are(rows):
    with pytest.raises(ValueError, match=f"data source 'diabetes' has 442 rows: cannot draw {rows} of them"):
        load("diabetes", rows=rows)


def test_an_unknown_source_lists_the_known_ones():
    with pytest.raises(ValueError, match=f"there is no data source 'iris': choose one of {', '.join(SOURCES)}"):
        load("iris")


def test_the_folder_is_the_argument_or_the_variable_or_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TDCD_DATA", "~/corpora")
    assert data_folder(tmp_path / "mine") == tmp_path / "mine"
    assert data_folder("~/mine") == tmp_path / "mine"
    assert data_folder() == tmp_path / "corpora"
    monkeypatch.setenv("TDCD_DATA", "")
    assert data_folder() == tmp_path / ".cache" / "tdcd"
    monkeypatch.chdir(tmp_path)
    assert data_folder(Path("here")) == tmp_path / "here"


@pytest.mark.slow
def test_its_tables_are_read_without_scikit_learn():
    # Subprocess, because other tests import it here.
    code = (
        "import sys; from tdcd.data import load; load('digits'), load('diabetes'); sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("standardized", [True, False])
def test_a_run_in_float64_has_the_features_in_float64(standardized):
    exact = load("diabetes").features
    keys = {"data": {"source": "diabetes", "standardize": standardized}, "evaluate": {"holdout": 0}}
    for dtype in ("float32", "float64"):
        silos = plan(check_config({**keys, "dtype": dtype, "federation": {"bias": False}})).federation.silos
        features = np.concatenate([silo.features for silo in silos], axis=1)
        expected = (exact - exact.mean(axis=0)) / exact.std(axis=0) if standardized else exact
        assert features.dtype == dtype
        np.testing.assert_allclose(features, expected, rtol=1e-12 if dtype == "float64" else 1e-6, atol=1e-14)
