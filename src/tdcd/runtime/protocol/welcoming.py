"""What a client takes of its hub's welcome."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.config import ModelSection
from tdcd.runtime.protocol.messages import Welcome
from tdcd.runtime.protocol.taking import take, take_loss
from tdcd.runtime.protocol.wire import RejectedMessage


def check_welcome(message: Welcome, rows: int, model: ModelSection, *, has_labels: bool) -> None:
    """Refuse places and labels that nothing could be computed with, for a client with so many rows."""
    train, _ = places_in(message, rows)
    labels = labels_in(message, rows, has_labels=has_labels)
    if message.weights is not None and not has_labels:
        raise RejectedMessage("it has weights of a silo without labels")
    samples, outputs = message.num_samples, message.num_outputs
    if not 0 < outputs <= samples:
        raise RejectedMessage("'num_samples' and 'num_outputs' must be numbers of samples and of outputs")
    chosen = train[train >= 0]
    if len(np.unique(chosen)) != len(chosen) or (chosen >= samples).any():
        raise RejectedMessage("two rows are the same sample, or one is a sample that is not there")
    if take_loss(message.loss, model).target == "classes" and not np.isin(labels, np.arange(outputs)).all():
        raise RejectedMessage(f"'labels' must be classes from 0 to {outputs - 1}")


def labels_in(message: Welcome, rows: int, *, has_labels: bool) -> NDArray[Any]:
    """Of every row, as the hub says; zeros, which nothing looks at, where the silo has none."""
    if (message.labels is None) == has_labels:
        raise RejectedMessage("it has no array 'labels'" if has_labels else "it has labels of a silo without any")
    return np.zeros(rows) if message.labels is None else take(message.labels, "labels", np.float64, [rows])


def places_in(message: Welcome, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every row: which training sample it is, and which held-out one; -1 where it is not one."""
    train, test = take(message.train, "train", np.int64, [rows]), take(message.test, "test", np.int64, [rows])
    if not ((train >= 0) ^ (test >= 0)).all():
        raise RejectedMessage("a row must be a training sample or a held-out one")
    return train, test
