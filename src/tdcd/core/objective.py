"""Objectives: the loss of one sample given the summed phi of all silos, and the L2 regulariser."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core.choices import Loss

Tree = Any
"""A block's parameters: any nesting of dicts, lists and tuples of arrays."""


@dataclass(frozen=True)
class Objective:
    r"""What training minimises: a loss per sample plus L2 regularisation of every block.

    .. math:: \mathcal{L}(\theta) = \frac1M \sum_i f\Big(\sum_j \Phi_{(j)}^{(i)}, y^{(i)}\Big)
              + \frac{\lambda}{2} \sum_j \|\theta_{(j)}\|^2

    ========== ================================================ ======================= =========
    loss       f(phi, y)                                        labels                  outputs C
    ========== ================================================ ======================= =========
    squared    (phi - y)^2 / 2                                  real numbers            1
    logistic   log(1 + exp(phi)) - y phi                        0 or 1                  1
    softmax    log(sum_c exp(phi_c)) - phi_y                    0 .. C-1                C classes
    ========== ================================================ ======================= =========

    Paper, section 2.2.

    >>> Objective("squared").losses(jnp.array([[3.0]]), jnp.array([1.0])).tolist()
    [2.0]
    """

    loss: Loss = "squared"
    l2: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an unknown loss and a negative l2."""
        if self.loss not in get_args(Loss):
            raise ValueError(f"loss must be one of {', '.join(get_args(Loss))}, not '{self.loss}'")
        if not 0 <= self.l2 < float("inf"):
            raise ValueError(f"l2 must be a number of at least 0, not {self.l2}")

    def check_labels(self, labels: NDArray[Any]) -> None:
        """Refuse labels that the loss cannot take."""
        wanted = {"squared": "finite numbers", "logistic": "0 or 1", "softmax": "whole numbers from 0 on"}[self.loss]
        fits = np.isfinite(labels)
        if self.loss == "logistic":
            fits &= (labels == 0) | (labels == 1)
        elif self.loss == "softmax":
            fits &= (labels >= 0) & (labels == np.round(labels))
        if not fits.all():
            raise ValueError(f"{self.loss} loss takes labels that are {wanted}, not {labels[~fits][0]}")

    def num_outputs(self, labels: Sequence[NDArray[Any] | None]) -> int:
        """C for these labels: the number of classes of a softmax, held-out labels included; otherwise one."""
        if self.loss != "softmax":
            return 1
        return int(max(some.max() for some in labels if some is not None and len(some))) + 1

    def label_dtype(self, dtype: str) -> np.dtype[Any]:
        """The dtype of labels in a run whose arithmetic has ``dtype``."""
        return np.dtype(np.int32 if self.loss == "softmax" else dtype)

    def losses(self, phi: Array, labels: Array) -> Array:
        """The loss of every sample: ``[..., C]`` summed phi and ``[...]`` labels to ``[...]`` losses."""
        if self.loss == "softmax":
            picked = jnp.take_along_axis(phi, labels[..., None].astype(jnp.int32), axis=-1)[..., 0]
            return jax.nn.logsumexp(phi, axis=-1) - picked
        score = phi[..., 0]
        if self.loss == "logistic":
            return jax.nn.softplus(score) - labels * score
        return (score - labels) ** 2 / 2

    def penalty(self, block: Tree) -> Array:
        """The regulariser of one block, l2 / 2 times the sum of its squared parameters."""
        return self.l2 / 2 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(block)), jnp.zeros(()))
