"""Measuring many models on the same samples at once."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd import algorithm
from tdcd.blocks.base import Block
from tdcd.metrics import metrics
from tdcd.objective import Objective, Tree
from tdcd.recording import Figures
from tdcd.run import Plan
from tdcd.sweep.together import num_outputs

SCORES_AT_ONCE = 1 << 22
"""Most scores that one call computes."""


class Evaluator:
    """Measures the models of runs that share their data."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Put the samples on the device, once for all runs."""
        first = plans[0]
        self._blocks, self._loss, federation = first.blocks, first.objective.loss, first.federation
        self._l2 = np.array([plan.objective.l2 for plan in plans])
        self._scale, self._outputs = federation.label_scale, num_outputs(first)
        self._samples = {"train": ([jnp.asarray(silo.features) for silo in federation.silos], federation.labels)}
        if federation.test_labels is not None:
            held_out = [jnp.asarray(silo.test_features) for silo in federation.silos]
            self._samples["test"] = (held_out, federation.test_labels)

    def __call__(self, hub_blocks: list[Tree]) -> list[Figures]:
        """The figures of every run, from its hub blocks ``[S, ...]``."""
        penalties = self._l2 * np.asarray(_half_squares(hub_blocks), np.float64)
        losses, figures = {}, {}
        for split, (features, labels) in self._samples.items():
            scores, mean = self._scores(hub_blocks, features, labels)
            losses[split] = mean + penalties
            figures[split] = [metrics(self._loss, own, labels, self._scale) for own in scores]
        return [
            Figures(
                float(losses["train"][run]),
                float(losses["test"][run]) if "test" in losses else None,
                {split: own[run] for split, own in figures.items()},
            )
            for run in range(len(penalties))
        ]

    def _scores(
        self, hub_blocks: list[Tree], features: list[Array], labels: NDArray[np.generic]
    ) -> tuple[NDArray[np.generic], NDArray[np.float64]]:
        """The scores ``[S, rows, C]``, and ``[S]`` mean losses; in chunks of rows, the sums in float64."""
        total, runs = len(labels), len(self._l2)
        rows = min(total, max(1, SCORES_AT_ONCE // (runs * self._outputs)))
        dtype = jax.tree.leaves(hub_blocks)[0].dtype
        truth = jnp.asarray(labels, jnp.int32 if self._loss == "softmax" else dtype)
        parts, sums = [], np.zeros(runs)
        for start in range(0, total, rows):
            # The last chunk starts early enough to be whole, and skips what the one before it had.
            begin = min(start, total - rows)
            scores, losses = _evaluate(
                hub_blocks, features, truth, begin, rows=rows, blocks=self._blocks, loss=self._loss
            )
            parts.append(np.asarray(scores)[:, start - begin :])
            sums += np.sum(np.asarray(losses)[:, start - begin :], axis=1, dtype=np.float64)
        return np.concatenate(parts, axis=1), sums / total


@partial(jax.jit, static_argnames=("rows", "blocks", "loss"))
def _evaluate(
    hub_blocks: list[Tree],
    features: list[Array],
    labels: Array,
    begin: Array,
    *,
    rows: int,
    blocks: tuple[Block, ...],
    loss: str,
) -> tuple[Array, Array]:
    """``[S, rows, C]`` scores and ``[S, rows]`` losses of the samples from ``begin`` on."""
    dtype = jax.tree.leaves(hub_blocks)[0].dtype
    parts = [jax.lax.dynamic_slice_in_dim(part, begin, rows).astype(dtype) for part in features]
    truth = jax.lax.dynamic_slice_in_dim(labels, begin, rows)

    def one(hub_blocks: list[Tree]) -> tuple[Array, Array]:
        phis = [
            algorithm.phi(block, part[None], apply=model.phi)[0]
            for model, block, part in zip(blocks, hub_blocks, parts, strict=True)
        ]
        scores = sum(phis[1:], start=phis[0])
        return scores, Objective(loss).losses(scores, truth)  # type: ignore[arg-type]

    scores, losses = jax.vmap(one)(hub_blocks)
    return scores, losses


@jax.jit
def _half_squares(hub_blocks: list[Tree]) -> Array:
    """``[S]``: half the sum of a run's squared parameters."""
    return jax.vmap(lambda block: Objective(l2=1.0).penalty(block))(hub_blocks)
