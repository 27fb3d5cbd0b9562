"""Figures for subsets of silos: a pure function, and the file of the run folder."""

import numpy as np
import pytest

from tdcd.prediction.subsets import Phis, describe_subsets, silo_importances, subsets_of
from tdcd.records.run_folder import RunFolder

RNG = np.random.default_rng(0)
PHI = {(name,): RNG.normal(size=(5, 2)).astype(np.float32) + 1 for name in ("bank", "lab", "shop")}
NAMES = ["bank", "lab", "shop"]


def total(scores):
    return float(scores.astype(np.float64).sum()), {"rows": float(len(scores))}


def test_up_to_six_silos_have_all_subsets_and_more_have_the_telling_ones():
    assert len(subsets_of(6)) == 64
    assert subsets_of(3)[:4] == [(), (0,), (1,), (2,)]
    many = subsets_of(7)
    assert len(many) == 1 + 7 + 7 + 1
    assert many[-1] == (0, 1, 2, 3, 4, 5, 6)


def test_a_missing_silo_is_its_mean_over_the_training_rows():
    train = {group: 2 * phi for group, phi in PHI.items()}
    found = describe_subsets(Phis(NAMES, train, PHI, "test"), 0.0, {}, total)
    mean = {group[0]: phi.mean(axis=0, dtype=np.float64) for group, phi in train.items()}
    assert found["mean_phi"] == found["stand_in"] == {name: mean[name].tolist() for name in NAMES}
    by = {tuple(one["silos"]): one["loss"] for one in found["subsets"]}
    assert len(by) == 8
    assert by["bank", "shop"] == pytest.approx(PHI["bank",].sum() + PHI["shop",].sum() + 5 * mean["lab"].sum())
    assert by["bank", "lab", "shop"] == total(sum(PHI.values()))[0]


def test_with_dropout_it_is_nothing_but_the_intercept():
    found = describe_subsets(Phis(NAMES, PHI, PHI, "test"), 0.3, {"bank": np.array([1.0, 2.0])}, total)
    assert found["stand_in"] == {"bank": [1.0, 2.0], "lab": [0.0, 0.0], "shop": [0.0, 0.0]}
    by = {tuple(one["silos"]): one["loss"] for one in found["subsets"]}
    assert by[()] == 15
    assert by["lab",] == pytest.approx(PHI["lab",].sum() + 15, rel=1e-6)


def test_where_only_a_sum_is_known_there_are_fewer_subsets():
    sums = {("lab",): PHI["lab",], ("bank", "shop"): PHI["bank",] + PHI["shop",]}
    found = describe_subsets(Phis(NAMES, sums, sums, "test"), 0.0, {}, total)
    assert [one["silos"] for one in found["subsets"]] == [[], ["lab"], ["bank", "shop"], ["lab", "bank", "shop"]]
    assert [*found["mean_phi"]] == ["lab"]


def test_a_silo_that_is_shuffled_costs_what_its_part_explains():
    """With squared errors of a sum: twice the covariance with the labels, less that with the other silos."""
    rng = np.random.default_rng(3)
    strong, weak = rng.normal(size=(2, 4000, 1))
    labels = 2 * strong + 0.5 * weak

    def squared(scores):
        error = float(((scores - labels) ** 2).mean())
        return error, {"error": error, "unknown": None}

    parts = {("bank",): 2 * strong, ("lab",): 0.5 * weak}
    bank, lab = silo_importances(parts, squared)
    assert (bank["silos"], lab["silos"]) == (["bank"], ["lab"])
    assert bank["loss"] == bank["metrics"]["error"] == pytest.approx(2 * 4 * strong.var(), rel=0.05)
    assert lab["loss"] == pytest.approx(2 * 0.25 * weak.var(), rel=0.05)
    assert lab["metrics"]["unknown"] is None
    assert silo_importances({("bank",): strong}, squared) == []


def test_samples_without_a_score_stay_where_they_are():
    phi = {group: values.copy() for group, values in PHI.items()}
    phi["lab",][2] = np.nan

    def of_those_with_one(scores):
        return total(scores[[0, 1, 3, 4]])

    changes = silo_importances(phi, of_those_with_one)
    assert [entry["loss"] for entry in changes] == pytest.approx([0, 0, 0], abs=1e-5)


def test_the_file_comes_back_and_damage_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.subsets() == {}
    found = describe_subsets(Phis(NAMES, PHI, PHI, "train"), 0.3, {}, total)
    folder.write_subsets(found)
    assert folder.subsets() == found
    folder.subsets_file.write_text("[]")
    with pytest.raises(ValueError, match=r"subsets.json is damaged: it does not give the figures"):
        folder.subsets()
