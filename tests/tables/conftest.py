import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from two_tables import ROWS, write_csv

from tdcd.data.table import holdout_mask


@pytest.fixture
def bank():
    """The bank's rows, in an order of their own: ids, labels, and an amount with blanks."""
    rng = np.random.default_rng(1)
    age = [f"{value:.3f}" if value > 20 else "" for value in rng.normal(40, 15, ROWS)]
    return {
        "id": rng.permutation(np.arange(ROWS) * 7).tolist(),
        "y": rng.choice(["no", "yes"], ROWS).tolist(),
        "age": age,
        "debt": [f"{value:.4f}" for value in rng.lognormal(3, 1, ROWS)],
    }


@pytest.fixture
def bureau():
    """The bureau's rows of the same ids: an amount and a name."""
    rng = np.random.default_rng(2)
    return {
        "key": rng.permutation(np.arange(ROWS) * 7).tolist(),
        "debt": [f"{value:.4f}" for value in rng.normal(0, 3, ROWS)],
        "city": rng.choice(["Rome", "Oslo", "Bern", ""], ROWS, p=[0.5, 0.3, 0.1, 0.1]).tolist(),
    }


@pytest.fixture
def keys(tmp_path, bank, bureau):
    """The keys of a federation of both, a table each."""
    write_csv(tmp_path / "bank.csv", bank)
    write_csv(tmp_path / "bureau.csv", bureau)
    return {
        "seed": 3,
        "data": {"source": "files", "folder": str(tmp_path), "seed": 5},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": 2, "batch_size": 16},
        "evaluate": {"holdout": 0.25},
        "silos": [
            {"name": "bank", "table": "bank.csv", "clients": 3, "label": "y"},
            {"name": "bureau", "table": "bureau.csv", "clients": 2, "id": "key", "categorical": ["city"]},
        ],
    }


@pytest.fixture
def expected(bank, bureau):
    """The features of both silos and the labels, from the joined table by NumPy, and which samples are held out."""
    held_out = holdout_mask(ROWS, 0.25, seed=5)
    bank = {name: np.array(values)[np.argsort(bank["id"])] for name, values in bank.items()}
    bureau = {name: np.array(values)[np.argsort(bureau["key"])] for name, values in bureau.items()}

    def scaled(texts):
        values = np.array([float(text) if text else np.nan for text in texts])
        mean, scale = np.nanmean(values[~held_out]), np.nanstd(values[~held_out])
        return np.where(np.isnan(values), 0, (values - mean) / scale)

    def told(flags):
        return np.array(flags, float)

    levels = sorted(level for level in {*bureau["city"]} - {""} if (bureau["city"][~held_out] == level).sum() >= 10)
    rare = [city not in (*levels, "") for city in bureau["city"]]
    parts = [
        [scaled(bank["age"]), told(bank["age"] == ""), scaled(bank["debt"]), np.ones(ROWS)],
        [scaled(bureau["debt"]), *(told(bureau["city"] == level) for level in levels), told(rare)],
    ]
    parts[1].append(told(bureau["city"] == ""))
    return [np.stack(part, axis=1) for part in parts], bank["y"] == "yes", held_out


_opened = None
_hooks = []


def _count(event, arguments):
    if event == "open" and _opened is not None:
        _opened[Path(str(arguments[0])).name] += 1


@pytest.fixture
def opened(monkeypatch):
    """How often this process opens the files of each name from now on; a hook cannot be taken away again."""
    counts = Counter()
    if not _hooks:
        sys.addaudithook(_count)
        _hooks.append(_count)
    monkeypatch.setattr(sys.modules[__name__], "_opened", counts)
    return counts
