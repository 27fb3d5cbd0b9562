"""What a client computes: the functions of :mod:`tdcd.algorithm` on its own rows, compiled."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd import algorithm
from tdcd.blocks.base import Block
from tdcd.objective import Objective, Tree
from tdcd.placement import Padding
from tdcd.schedule import batch_ids
from tdcd.settings import Settings


class Share(NamedTuple):
    """A client's part of one round's minibatches."""

    batch: NDArray[np.int64]
    """``[n]``: in which minibatch each of its rows is; rows are ordered by minibatch, then by place in it."""
    place: NDArray[np.int64]
    """``[n]``: at which of the E minibatches' padded places."""
    rows: NDArray[np.int32]
    """``[E, P]``: the client's row numbers, 0 on padding."""
    counts: NDArray[np.int32]
    """``[E]``: how many rows are not padding."""


class ClientCompute:
    """One client's rows on its device, and Algorithm 1's client lines over them."""

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
        """Put the training rows on the device.

        Args:
            features: ``[n_k, ...]``.
            samples: ``[n_k]``, which of the M samples each row is.
            num_samples: M.
        """
        self.settings, self.num_samples = settings, num_samples
        self.batch_size = num_samples if settings.minibatches == "full" else settings.batch_size
        self._block, self._objective = block, objective
        self._row_of = np.full(num_samples, -1, np.int32)
        self._row_of[samples] = np.arange(len(samples), dtype=np.int32)
        self._padding = Padding(len(samples), num_samples, self.batch_size)
        with self.precision():
            self._features = jnp.asarray(features, settings.dtype)
            self._labels = jnp.asarray(labels, jnp.int32 if objective.loss == "softmax" else settings.dtype)

    def precision(self) -> Any:
        """The context in which arrays have the settings' precision."""
        return jax.enable_x64(self.settings.dtype == "float64")

    def share(self, round_index: int) -> Share:
        """Which of the client's rows are in the round's minibatches, and where."""
        settings = self.settings
        ids = batch_ids(
            settings.seed,
            [round_index],
            num_samples=self.num_samples,
            batch_size=self.batch_size,
            local_steps=settings.local_steps,
            minibatches=settings.minibatches,
        )[0]
        rows = self._row_of[ids]
        held = rows >= 0
        batch = np.nonzero(held)[0]
        counts = held.sum(axis=1).astype(np.int32)
        place = np.arange(len(batch)) - np.repeat(np.cumsum(counts) - counts, counts)
        padded = np.zeros((len(ids), int(self._padding.widths(counts.max()))), np.int32)
        padded[batch, place] = rows[held]
        return Share(batch, place, padded, counts)

    def phi(self, block: Tree, share: Share) -> NDArray[Any]:
        """``[n, C]``: what the client's columns add to the scores of its rows of the minibatches."""
        with self.precision():
            padded = _phi(block, self._features, share.rows, model=self._block)
        return np.asarray(padded)[share.batch, share.place]

    def steps(self, block: Tree, share: Share, phi_others: NDArray[Any]) -> Tree:
        """The client's block after Q local steps."""
        padded = np.zeros((*share.rows.shape, phi_others.shape[1]), phi_others.dtype)
        padded[share.batch, share.place] = phi_others
        settings = self.settings
        with self.precision():
            return jax.device_get(
                _steps(
                    block,
                    self._features,
                    self._labels,
                    share.rows,
                    share.counts,
                    padded,
                    jnp.asarray(settings.step_size, settings.dtype),
                    model=self._block,
                    objective=self._objective,
                    gradient=settings.gradient,
                    steps=settings.local_steps,
                    num_samples=self.num_samples,
                    batch_size=self.batch_size,
                )
            )

    def scores(self, block: Tree, features: NDArray[Any] | None = None) -> NDArray[Any]:
        """``[rows, C]``: the phi of all training rows, or of other rows."""
        with self.precision():
            held = self._features if features is None else jnp.asarray(features, self.settings.dtype)
            return np.asarray(_phi(block, held, np.arange(len(held), dtype=np.int32)[None], model=self._block)[0])


@partial(jax.jit, static_argnames=("model",))
def _phi(block: Tree, features: Array, rows: Array, *, model: Block) -> Array:
    return algorithm.phi(block, features[rows], apply=model.phi)


@partial(jax.jit, static_argnames=("model", "objective", "gradient", "steps", "num_samples", "batch_size"))
def _steps(
    block: Tree,
    features: Array,
    labels: Array,
    rows: Array,
    counts: Array,
    phi_others: Array,
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
        rows.shape[1],
        gradient=gradient,
        num_samples=num_samples,
        batch_size=batch_size,
        held=jnp.asarray(len(features), features.dtype),
    )
    return algorithm.local_steps(
        block,
        features[rows],
        labels[rows],
        phi_others,
        weights,
        apply=model.phi,
        objective=objective,
        step_size=step_size,
        steps=steps,
    )
