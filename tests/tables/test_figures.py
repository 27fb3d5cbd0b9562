"""What the public two-party tables are trained to, against scikit-learn and least squares on the joined table."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.core.losses.figures import auc
from tdcd.data import data_folder
from tdcd.training.train import train


def trained(name, *, id_column="id", label="y", **settings):
    """The held-out figures after 200 rounds of 10 local steps, and the federation."""
    folder = data_folder() / name
    if not (folder / "guest.csv").exists():
        pytest.skip(f"{folder} has no guest.csv and host.csv: set TDCD_DATA to a folder with the two-party tables")
    silos = [
        {"name": "guest", "table": "guest.csv", "clients": 5, "id": id_column, "label": label},
        {"name": "host", "table": "host.csv", "clients": 3, "id": id_column},
    ]
    keys = {"data": {"source": "files", "folder": str(folder)}, "model": {"block": "linear"}, "silos": silos}
    planned = plan(check_config(keys | {"train": {"rounds": 200, "local_steps": 10, **settings}}))
    result = train(
        planned.federation, planned.blocks, planned.objective, planned.settings, rounds=200, evaluate_every=200
    )
    return result.history[-1].metrics["test"], planned.federation


def logistic(federation, silos):
    """The held-out AUC of scikit-learn's logistic regression on these silos' columns."""
    train_rows = np.concatenate([silo.features for silo in silos], axis=1)
    test_rows = np.concatenate([silo.test_features for silo in silos], axis=1)
    model = LogisticRegression(max_iter=2000).fit(train_rows, federation.labels)
    return auc(model.decision_function(test_rows), federation.test_labels == 1)


def least_squares(federation, silos):
    """The held-out R2 of closed-form least squares on these silos' columns."""
    train_rows = np.concatenate([silo.features for silo in silos], axis=1).astype(float)
    test_rows = np.concatenate([silo.test_features for silo in silos], axis=1)
    weights = np.linalg.lstsq(train_rows, federation.labels, rcond=None)[0]
    labels = federation.test_labels
    return 1 - np.sum((test_rows @ weights - labels) ** 2) / np.sum((labels - labels.mean()) ** 2)


def test_credit_is_as_good_as_joined_and_better_than_either_alone():
    figures, federation = trained("credit", batch_size=512, step_size=0.05)
    assert figures["auc"] > logistic(federation, federation.silos) - 0.003
    assert figures["auc"] > max(logistic(federation, [silo]) for silo in federation.silos)


def test_breast_cancer_is_classified():
    figures, _ = trained("breast", batch_size=128, step_size=0.05)
    assert figures["auc"] >= 0.985


def test_motor_is_as_good_as_joined_and_better_than_either_alone():
    figures, federation = trained("motor", id_column="idx", label="motor_speed", minibatches="full", step_size=0.2)
    assert figures["r2"] > least_squares(federation, federation.silos) - 0.01
    assert figures["r2"] > max(least_squares(federation, [silo]) for silo in federation.silos)
