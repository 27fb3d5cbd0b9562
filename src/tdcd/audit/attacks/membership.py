"""Whether a sample was trained on."""

import numpy as np

from tdcd.audit.recording import Floats
from tdcd.records.metrics import auc


def by_loss(train: Floats, test: Floats) -> float:
    """The AUC of telling training samples from others by their smaller loss.

    Yeom et al. 2018, "Privacy risk in machine learning: analyzing the connection to overfitting".
    """
    members = np.arange(len(train) + len(test)) < len(train)
    return auc(-np.concatenate([train, test]), members) or 0.5
