"""A silo is missing: the model with silo dropout beats the best silo that is left, and the missing phi's mean.

The figures of more seeds, and of credit data, are those of ``python -m benchmarks.silo_dropout``.
"""

import numpy as np

from tdcd.compare.baselines import rewrite
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.records.run_folder import RunFolder
from tdcd.training.train import train, train_plan

KINDS = {
    "size": ("radius", "perimeter", "area"),
    "surface": ("texture", "smoothness", "symmetry", "fractal dimension"),
    "shape": ("compactness", "concavity", "concave points"),
}
SILOS = [
    {"name": silo, "clients": 2, "features": [f"mean {one}" for one in kinds] + [f"worst {one}" for one in kinds]}
    for silo, kinds in KINDS.items()
]
TRAIN = {"rounds": 80, "local_steps": 5, "batch_size": 64, "step_size": 0.1}


def planned(rate):
    train = {**TRAIN, "silo_dropout": rate}
    evaluate = {"every": TRAIN["rounds"], "stratify": True, "holdout": 0.3}
    keys = {"data": {"source": "breast_cancer"}, "model": {"block": "linear"}, "silos": SILOS}
    return plan(check_config({**keys, "train": train, "evaluate": evaluate}))


def alone(silo):
    """Held-out loss and AUC of a silo that trains alone."""
    own = rewrite(planned(0.0), "local-sgd", silo)
    rounds = own.config.train.rounds
    result = train(own.federation, own.blocks, own.objective, own.settings, rounds=rounds, evaluate_every=rounds)
    return result.history[-1].test_loss, result.history[-1].metrics["test"]["auc"]


def test_it_beats_the_best_silo_alone_and_the_mean_of_what_is_missing(tmp_path):
    found = {}
    for rate in (0.0, 0.3):
        train_plan(planned(rate), tmp_path / str(rate))
        subsets = RunFolder(tmp_path / str(rate)).subsets()["subsets"]
        found[rate] = {tuple(one["silos"]): (one["loss"], one["metrics"]["auc"]) for one in subsets}
    single = {silo: alone(silo) for silo in KINDS}
    ways = {"best": [], "mean": [], "dropout": []}
    for missing in KINDS:
        left = tuple(silo for silo in KINDS if silo != missing)
        ways["best"].append((min(single[silo][0] for silo in left), max(single[silo][1] for silo in left)))
        ways["mean"].append(found[0.0][left])
        ways["dropout"].append(found[0.3][left])
    (best_loss, best_auc), (mean_loss, mean_auc), (loss, auc) = (np.mean(ways[way], axis=0) for way in ways)
    assert loss < 0.95 * mean_loss
    assert loss < 0.95 * best_loss
    assert auc > mean_auc
    assert auc > best_auc
    # All silos together lose little by it.
    assert found[0.3][tuple(KINDS)][1] > found[0.0][tuple(KINDS)][1] - 0.01
