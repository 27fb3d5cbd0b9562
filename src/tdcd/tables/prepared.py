"""How the raw rows of a federation became features and labels, wherever the federation comes from."""

from math import prod
from pathlib import Path

import numpy as np

from tdcd.core.objective import Objective
from tdcd.data.table import Scaling
from tdcd.federation.silos import Federation, Silo
from tdcd.tables.errors import caution
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.parts import Scaled
from tdcd.tables.preparation import Preparation
from tdcd.tables.preparation_io import save_preparations


def preparation_of(silo: Silo) -> Preparation:
    """How a silo's raw columns became its features; columns without names are called by their places."""
    if isinstance(silo.preparation, Preparation):
        return silo.preparation
    # A column of ones at the end is no raw column.
    shape = silo.feature_shape if silo.preparation is None else np.shape(_scaling(silo).mean)
    names = silo.columns[: prod(shape)] if len(silo.columns) >= prod(shape) else _places(shape)
    scaling = Scaling(np.zeros(shape), np.ones(shape)) if silo.preparation is None else _scaling(silo)
    figures = zip(names, scaling.mean.ravel().tolist(), scaling.scale.ravel().tolist(), strict=True)
    return Preparation({name: Scaled(mean, mean, scale, False) for name, mean, scale in figures})


def _scaling(silo: Silo) -> Scaling:
    assert isinstance(silo.preparation, Scaling)
    return silo.preparation


def _places(shape: tuple[int, ...]) -> tuple[str, ...]:
    """``pixel_ROW_COLUMN`` in images, else ``x0``, ``x1``, ...

    >>> _places((1, 2)), _places((2,))
    (('pixel_0_0', 'pixel_0_1'), ('x0', 'x1'))
    """
    if len(shape) == 1:
        return tuple(f"x{place}" for place in range(shape[0]))
    return tuple("pixel_" + "_".join(map(str, place)) for place in np.ndindex(*shape))


def encoding_of(federation: Federation, objective: Objective) -> LabelEncoding:
    """How a federation's labels became numbers."""
    outputs = objective.num_outputs([federation.labels, federation.test_labels])
    target, task = objective.kind.target, objective.kind.tasks[0]
    if target == "amount":
        return LabelEncoding(task, (), float(federation.label_mean), float(federation.label_scale))
    classes = federation.classes or tuple(str(number) for number in range(max(2, outputs)))
    return LabelEncoding(task, classes)


def save_prepared(folder: Path, federation: Federation, objective: Objective) -> None:
    """Keep in a run folder what it takes to use the model on raw rows."""
    preparations = {silo.name: preparation_of(silo) for silo in federation.silos}
    save_preparations(folder, preparations, encoding_of(federation, objective))


def say_what_labels_are(federation: Federation, objective: Objective) -> None:
    """Warn of labels that can be trained on, but may be a mistake."""
    different = np.unique(federation.labels)[:3] * federation.label_scale + federation.label_mean
    if len(different) == 1:
        number = int(different[0])
        known = objective.kind.target != "amount" and number < len(federation.classes)
        label = repr(federation.classes[number]) if known else f"{different[0]:g}"
        caution(f"every training label is {label}: there is nothing to learn")
    # Counts of at most one are no classes.
    takes_amounts = objective.kind.target == "amount" and objective.kind.standardizes
    if takes_amounts and len(different) == 2 and np.allclose(different, [0, 1], atol=1e-6):
        caution(
            f"the labels are 0 and 1, and the {objective.kind.name} loss predicts amounts: the logistic loss predicts "
            "probabilities"
        )
