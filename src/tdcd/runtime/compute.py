"""What a client computes: the functions of :mod:`tdcd.algorithm` on its own rows, compiled."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd import algorithm
from tdcd.blocks.base import Block
from tdcd.objective import Objective, Tree
from tdcd.placement import Padding
from tdcd.settings import Settings, draws_of


class Share(NamedTuple):
    """A client's part of one round's minibatches."""

    batch: NDArray[np.int64]
    """``[n]``: in which minibatch each of its rows is; rows are ordered by minibatch, then by place in it."""
    place: NDArray[np.int64]
    """``[n]``: at which of the minibatch's P padded places."""
    features: NDArray[Any]
    """``[E, P, ...]``; any row on padding."""
    labels: NDArray[Any]
    """``[E, P]``."""
    counts: NDArray[np.int32]
    """``[E]``: how many rows are not padding."""


class ClientCompute:
    """One client's rows, and Algorithm 1's client lines over them.

    The rows stay in host memory; those of a round's minibatches go to the device.
    """

    def __init__(
        self,
        block: Block,
        objective: Objective,
        settings: Settings,
        features: NDArray[Any],
        labels: NDArray[Any],
        samples: NDArray[np.int64],
        num_samples: int,
    ) -> None:
        """Take the training rows.

        Args:
            features: ``[n_k, ...]``.
            samples: ``[n_k]``, which of the M samples each row is.
            num_samples: M.
        """
        self.settings, self.num_samples = settings, num_samples
        self.batch_size = num_samples if settings.minibatches == "full" else settings.batch_size
        self._block, self._objective = block, objective
        self._draws = draws_of(settings, num_samples)
        self._row_of = np.full(num_samples, -1, np.int32)
        self._row_of[samples] = np.arange(len(samples), dtype=np.int32)
        self._padding = Padding(len(samples), num_samples, self.batch_size)
        self._features = np.asarray(features, settings.dtype)
        self._labels = np.asarray(labels, np.int32 if objective.loss == "softmax" else settings.dtype)
        self._step_size = np.asarray(settings.step_size, settings.dtype)
        self._held = np.asarray(len(samples), settings.dtype)

    def precision(self) -> Any:
        """The context in which arrays have the settings' precision."""
        return jax.enable_x64(self.settings.dtype == "float64")

    def share(self, round_index: int) -> Share:
        """Which of the client's rows are in the round's minibatches, and where."""
        ids = self._draws(round_index)
        rows = self._row_of[ids]
        held = rows >= 0
        batch = np.nonzero(held)[0]
        counts = held.sum(axis=1).astype(np.int32)
        place = np.arange(len(batch)) - np.repeat(np.cumsum(counts) - counts, counts)
        width = self._padding.width(int(self._padding.levels(counts.max())))
        padded = np.zeros((len(ids), width), np.int32)
        padded[batch, place] = rows[held]
        # NumPy gathers faster than a compiled program does.
        return Share(batch, place, self._features.take(padded, axis=0), self._labels[padded], counts)

    def phi(self, block: Tree, share: Share) -> NDArray[Any]:
        """``[n, C]``: what the client's columns add to the scores of its rows of the minibatches."""
        with self.precision():
            padded = _phi(block, share.features, model=self._block)
        return np.asarray(padded)[share.batch, share.place]

    def steps(self, block: Tree, share: Share, phi_others: NDArray[Any]) -> Tree:
        """The client's block after Q local steps."""
        padded = np.zeros((*share.labels.shape, phi_others.shape[1]), phi_others.dtype)
        padded[share.batch, share.place] = phi_others
        with self.precision():
            stepped = _steps(
                block,
                share.features,
                share.labels,
                share.counts,
                padded,
                self._held,
                self._step_size,
                model=self._block,
                objective=self._objective,
                gradient=self.settings.gradient,
                steps=self.settings.local_steps,
                num_samples=self.num_samples,
                batch_size=self.batch_size,
            )
        return jax.tree.map(np.asarray, stepped)

    def scores(self, block: Tree, features: NDArray[Any] | None = None) -> NDArray[Any]:
        """``[rows, C]``: the phi of all training rows, or of other rows."""
        with self.precision():
            held = self._features if features is None else np.asarray(features, self.settings.dtype)
            return np.asarray(_phi(block, held[None], model=self._block)[0])


@partial(jax.jit, static_argnames=("model",))
def _phi(block: Tree, features: Array, *, model: Block) -> Array:
    return algorithm.phi(block, features, apply=model.phi)


@partial(jax.jit, static_argnames=("model", "objective", "gradient", "steps", "num_samples", "batch_size"))
def _steps(
    block: Tree,
    features: Array,
    labels: Array,
    counts: Array,
    phi_others: Array,
    held: Array,
    step_size: Array,
    *,
    model: Block,
    objective: Objective,
    gradient: algorithm.Gradient,
    steps: int,
    num_samples: int,
    batch_size: int,
) -> Tree:
    weights = algorithm.row_weights(
        counts,
        labels.shape[1],
        gradient=gradient,
        num_samples=num_samples,
        batch_size=batch_size,
        held=held,
    )
    return algorithm.local_steps(
        block,
        features,
        labels,
        phi_others,
        weights,
        apply=model.phi,
        objective=objective,
        step_size=step_size,
        steps=steps,
    )
