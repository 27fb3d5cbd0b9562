"""The simulation engine: all clients of a silo at once, many rounds in one compiled call."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd import algorithm
from tdcd.blocks.base import Block
from tdcd.federation import Federation
from tdcd.objective import Objective, Tree
from tdcd.placement import Placement, Placer
from tdcd.schedule import batch_ids, num_exchanged
from tdcd.settings import Settings

ROWS_AT_ONCE = 4096
"""Evaluation goes over the samples in chunks of this many."""
INDEX_BYTES = 16 << 20
"""Most bytes of minibatch positions that one call ships to the device, a silo."""


class SiloData(NamedTuple):
    """What the compiled program needs of one silo."""

    features: Array
    """``[M, ...]``."""
    shares: Array
    """``[K]``: n_k / M."""
    held: Array
    """``[K]``: n_k."""


class Simulation:
    """A federation in one process. Between rounds its whole state is the list of hub blocks.

    The functions of :mod:`tdcd.algorithm` are mapped over each silo's clients; rounds run in a loop inside one
    compiled program, whose trip count is an argument: any number of rounds gives the same bits as one at a time.
    """

    def __init__(
        self, federation: Federation, blocks: Sequence[Block], objective: Objective, settings: Settings
    ) -> None:
        """Put the data on the device.

        Args:
            blocks: one a silo.
        """
        if len(blocks) != federation.num_silos:
            raise ValueError(f"there are {federation.num_silos} silos, but {len(blocks)} blocks")
        self.blocks, self.objective, self.settings = tuple(blocks), objective, settings
        self.num_samples = federation.num_samples
        self.batch_size = self.num_samples if settings.minibatches == "full" else settings.batch_size
        if self.batch_size > self.num_samples:
            raise ValueError(f"batch_size is {self.batch_size}, but there are only {self.num_samples} samples")
        self._shapes = [silo.feature_shape for silo in federation.silos]
        owners = [silo.owner() for silo in federation.silos]
        self._placers = [Placer(owner, self.batch_size) for owner in owners]
        # Silos that split the rows alike share their placements.
        self._twins = [next(i for i, o in enumerate(owners) if np.array_equal(o, owner)) for owner in owners]
        labels = federation.labels
        self.num_outputs = int(labels.max()) + 1 if objective.loss == "softmax" else 1
        with self._precision():
            self._data = [
                SiloData(
                    jnp.asarray(silo.features, settings.dtype),
                    jnp.asarray([len(rows) / self.num_samples for rows in silo.rows], settings.dtype),
                    jnp.asarray([len(rows) for rows in silo.rows], settings.dtype),
                )
                for silo in federation.silos
            ]
            self._labels = jnp.asarray(labels, jnp.int32 if objective.loss == "softmax" else settings.dtype)

    def _precision(self) -> Any:
        return jax.enable_x64(self.settings.dtype == "float64")

    def init(self) -> list[Tree]:
        """The hub blocks before round 0, a function of the seed and the silo's index."""
        # Drawn in single precision, so that both precisions start alike.
        with jax.enable_x64(False):
            high, low = divmod(self.settings.seed, 2**32)
            root = jax.random.fold_in(jax.random.key(low), high)
            keys = [jax.random.fold_in(root, index) for index in range(len(self.blocks))]
            drawn = [
                block.init(key, shape, self.num_outputs)
                for block, key, shape in zip(self.blocks, keys, self._shapes, strict=True)
            ]
        with self._precision():
            return [jax.tree.map(lambda leaf: jnp.asarray(leaf, self.settings.dtype), block) for block in drawn]

    def advance(self, hub_blocks: list[Tree], first_round: int, num_rounds: int) -> list[Tree]:
        """The hub blocks ``num_rounds`` rounds later. Returns before the device has finished."""
        settings, last_round = self.settings, first_round + num_rounds
        while first_round < last_round:
            ids = batch_ids(
                settings.seed,
                range(first_round, min(last_round, first_round + self.rounds_per_call)),
                num_samples=self.num_samples,
                batch_size=self.batch_size,
                local_steps=settings.local_steps,
                minibatches=settings.minibatches,
            )
            counts = [placer.count(ids) for placer in self._placers]
            widths = np.stack([p.widths(count) for p, count in zip(self._placers, counts, strict=True)], axis=1)
            # Rounds that need another padding run in a call of their own: how rounds are grouped never shows.
            same = (widths == widths[0]).all(axis=1)
            done = len(ids) if same.all() else int(np.argmin(same))
            placements: list[Placement] = []
            for index, twin in enumerate(self._twins):
                placer, count = self._placers[index], counts[index][:done]
                placed = placements[twin] if twin < index else placer.place(ids[:done], count, int(widths[0, index]))
                placements.append(placed)
            hub_blocks = self._call(hub_blocks, ids[:done], placements)
            first_round += done
        return hub_blocks

    @property
    def rounds_per_call(self) -> int:
        """The most rounds that one compiled call does."""
        exchanged = num_exchanged(self.settings.minibatches, self.settings.local_steps)
        cells = max(placer.num_clients * placer.usual for placer in self._placers)
        return int(np.clip(INDEX_BYTES // (4 * cells * exchanged), 1, 64))

    def _call(self, hub_blocks: list[Tree], ids: NDArray[np.int32], placements: list[Placement]) -> list[Tree]:
        room = self.rounds_per_call
        with self._precision():
            advanced: list[Tree] = _rounds(
                hub_blocks,
                self._data,
                self._labels,
                _padded(ids, room),
                [Placement(*(_padded(part, room) for part in placement)) for placement in placements],
                len(ids),
                jnp.asarray(self.settings.step_size, self.settings.dtype),
                blocks=self.blocks,
                objective=self.objective,
                gradient=self.settings.gradient,
                steps=self.settings.local_steps,
            )
        return advanced

    def scores(self, hub_blocks: list[Tree], features: Sequence[Any] | None = None) -> NDArray[Any]:
        """The global model's scores ``[rows, C]``, for the training samples or for others; in chunks of rows.

        Args:
            features: each silo's columns of the other samples.
        """
        with self._precision():
            held = [data.features for data in self._data]
            if features is not None:
                held = [jnp.asarray(part, self.settings.dtype) for part in features]
            total = len(held[0])
            rows = min(ROWS_AT_ONCE, total)
            chunks = []
            for start in range(0, total, rows):
                # The last chunk starts early enough to be whole, and skips what the one before it had.
                begin = min(start, total - rows)
                chunk = _scores(hub_blocks, held, begin, rows=rows, blocks=self.blocks)
                chunks.append(np.asarray(chunk)[start - begin :])
        return np.concatenate(chunks)

    def loss(self, hub_blocks: list[Tree], scores: NDArray[Any], labels: NDArray[Any]) -> float:
        """The objective of the global model over samples with these ``scores``; the sum is taken in float64."""
        with self._precision():
            losses = _losses(scores, jnp.asarray(labels, self._labels.dtype), objective=self.objective)
            penalty = sum(float(self.objective.penalty(block)) for block in hub_blocks)
        return float(np.mean(np.asarray(losses), dtype=np.float64)) + penalty


def _padded(part: NDArray[np.int32], capacity: int) -> NDArray[np.int32]:
    """Room for ``capacity`` rounds, so that a shorter call runs the same program."""
    if len(part) == capacity:
        return part
    room = np.zeros((capacity, *part.shape[1:]), part.dtype)
    room[: len(part)] = part
    return room


@partial(jax.jit, static_argnames=("blocks", "objective", "gradient", "steps"))
def _rounds(
    hub_blocks: list[Tree],
    silos: list[SiloData],
    labels: Array,
    ids: Array,
    placements: list[Placement],
    num_rounds: Array,
    step_size: Array,
    *,
    blocks: tuple[Block, ...],
    objective: Objective,
    gradient: algorithm.Gradient,
    steps: int,
) -> list[Tree]:
    """Rounds 0 .. ``num_rounds`` - 1 of ``ids`` ``[R, E, B]`` and ``placements``, one after another."""

    def body(index: Array, hub_blocks: list[Tree]) -> list[Tree]:
        now = [Placement(*(part[index] for part in placement)) for placement in placements]
        return one_round(
            hub_blocks,
            silos,
            labels,
            ids[index],
            now,
            step_size,
            blocks=blocks,
            objective=objective,
            gradient=gradient,
            steps=steps,
        )

    advanced: list[Tree] = jax.lax.fori_loop(0, num_rounds, body, hub_blocks)
    return advanced


def one_round(
    hub_blocks: list[Tree],
    silos: list[SiloData],
    labels: Array,
    ids: Array,
    placements: list[Placement],
    step_size: Array,
    *,
    blocks: tuple[Block, ...],
    objective: Objective,
    gradient: algorithm.Gradient,
    steps: int,
) -> list[Tree]:
    """One communication round of Algorithm 1 for all silos, from hub blocks to hub blocks."""
    phis = [
        algorithm.stack(algorithm.phi(block, silo.features[placement.rows], apply=model.phi), placement.slots)
        for model, block, silo, placement in zip(blocks, hub_blocks, silos, placements, strict=True)
    ]
    updated = []
    for index, (model, silo, placement) in enumerate(zip(blocks, silos, placements, strict=True)):
        phi_others = algorithm.sum_others(phis, index)
        # The sample ids of every client's rows, [K, E, P].
        rows = jax.vmap(lambda positions: jnp.take_along_axis(ids, positions, axis=1))(placement.positions)
        weights = jax.vmap(
            partial(
                algorithm.row_weights,
                num_rows=placement.positions.shape[2],
                gradient=gradient,
                num_samples=len(labels),
                batch_size=ids.shape[1],
            )
        )(placement.counts, held=silo.held)
        client_blocks = jax.vmap(
            partial(
                algorithm.local_steps,
                hub_blocks[index],
                apply=model.phi,
                objective=objective,
                step_size=step_size,
                steps=steps,
            )
        )(
            silo.features[rows],
            labels[rows],
            jax.vmap(partial(algorithm.project, phi_others))(placement.positions),
            weights,
        )
        updated.append(algorithm.average(client_blocks, silo.shares))
    return updated


@partial(jax.jit, static_argnames=("rows", "blocks"))
def _scores(
    hub_blocks: list[Tree], features: list[Array], begin: Array, *, rows: int, blocks: tuple[Block, ...]
) -> Array:
    """The summed phi of all silos, for ``rows`` samples from ``begin`` on."""
    phis = [
        model.phi(block, jax.lax.dynamic_slice_in_dim(part, begin, rows))
        for model, block, part in zip(blocks, hub_blocks, features, strict=True)
    ]
    return sum(phis[1:], start=phis[0])


@partial(jax.jit, static_argnames=("objective",))
def _losses(scores: Array, labels: Array, *, objective: Objective) -> Array:
    return objective.losses(scores, labels)
