"""``subsets.json`` of a simulated run: what it says agrees with the history and with the model's own phi."""

import numpy as np
import pytest

import tdcd
from tdcd import Federation, Linear, Mlp, Objective, Settings, load, standardize
from tdcd.config import check_config
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.variant import Variant
from tdcd.records.run_folder import RunFolder
from tdcd.training.run import run

SETTINGS = Settings(local_steps=3, batch_size=32, step_size=0.1)


def federation(silos, holdout=0.2):
    rows, held_out = standardize(*load("breast_cancer").split(holdout, seed=0))
    return Federation.cut(rows, held_out, silos=silos, clients=2, bias=True)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_the_figures_of_all_silos_are_those_of_the_history(rate, tmp_path):
    variant = Variant(dropout=SiloDropout(rate, 0 if rate else None))
    blocks = (Linear(), Mlp((4,)), Linear())
    parts = federation(3), blocks, Objective("logistic", l2=0.01), SETTINGS
    result = tdcd.train(*parts, rounds=4, out=tmp_path / "run", variant=variant)
    found = RunFolder(tmp_path / "run").subsets()
    assert (found["silo_dropout"], found["samples"], len(found["subsets"])) == (rate, "test", 8)
    whole, last = found["subsets"][-1], result.history[-1]
    assert whole["silos"] == found["silos"] == ["silo1", "silo2", "silo3"]
    assert whole["loss"] == pytest.approx(last.test_loss, rel=1e-5)
    assert whole["metrics"] == pytest.approx(last.metrics["test"])
    weight = result.blocks["silo1"]["weight"]
    if rate:
        assert found["stand_in"] == {"silo1": [pytest.approx(float(weight[-1, 0]))], "silo2": [0.0], "silo3": [0.0]}
    else:
        assert found["stand_in"] == found["mean_phi"]
    # Standardised columns have mean zero, so that only the intercept is left of a linear silo's mean.
    assert found["mean_phi"]["silo1"] == pytest.approx([float(weight[-1, 0])], abs=1e-5)
    alone = parts[0].silos[2].test_features @ np.asarray(result.blocks["silo3"]["weight"])
    base = sum(found["stand_in"][name][0] for name in ("silo1", "silo2"))
    label = parts[0].test_labels
    accuracy = np.mean(((alone[:, 0] + base) > 0) == label)
    assert found["subsets"][3]["silos"] == ["silo3"]
    assert found["subsets"][3]["metrics"]["accuracy"] == pytest.approx(accuracy)


def test_without_held_out_samples_they_are_of_the_training_samples(tmp_path):
    keys = {
        "data": {"source": "diabetes"},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": 2, "silo_dropout": 0.2},
        "evaluate": {"holdout": 0.0},
    }
    result = run(check_config(keys), tmp_path / "run")
    found = RunFolder(tmp_path / "run").subsets()
    assert found["samples"] == "train"
    assert found["subsets"][-1]["loss"] == pytest.approx(result.history[-1].train_loss, rel=1e-5)
