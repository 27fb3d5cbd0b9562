"""The simulation engine: all clients of a silo at once, many rounds in one compiled call."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tdcd import program
from tdcd.blocks.base import Block
from tdcd.blocks.start import start_block
from tdcd.federation import Federation
from tdcd.objective import Objective, Tree
from tdcd.placement import Placement, Placer
from tdcd.schedule import batch_ids, num_exchanged
from tdcd.settings import Settings

ROWS_AT_ONCE = 4096
"""Evaluation goes over the samples in chunks of this many."""
INDEX_BYTES = 2 << 20
"""Most bytes of minibatch positions that one call ships to the device, a silo; a call of few rounds ships as many."""

HEAVY, TINY = 1 << 18, 1 << 14
"""A local step is tiny if all clients' rows of a minibatch are fewer numbers than the second; heavy if they are more
than the first, and each client's alone are not tiny."""


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
        self._program = self._compile_for(jax.default_backend() == "cpu")
        labels = federation.labels
        objective.check_labels(labels)
        self.num_outputs = federation.num_classes if objective.loss == "softmax" else 1
        with self._precision():
            self._data = [
                program.SiloData(
                    jnp.asarray(silo.features, settings.dtype),
                    jnp.asarray([len(rows) / self.num_samples for rows in silo.rows], settings.dtype),
                    jnp.asarray([len(rows) for rows in silo.rows], settings.dtype),
                )
                for silo in federation.silos
            ]
            self._labels = jnp.asarray(labels, jnp.int32 if objective.loss == "softmax" else settings.dtype)

    def _compile_for(self, cpu: bool) -> program.Program:
        """How to run this federation on a CPU or on an accelerator.

        Where steps are heavy, it is worth compiling them for several numbers of rows, to pad less; and on a CPU to let
        the clients take turns, since all of them at once would overflow its cache. Tiny steps cost less than the
        loop around them, so several are compiled into one pass of it.
        """
        each = [p.usual * math.prod(shape) for p, shape in zip(self._placers, self._shapes, strict=True)]
        numbers = max(p.num_clients * one for p, one in zip(self._placers, each, strict=True))
        heavy = numbers > HEAVY and max(each) > TINY
        in_turn = heavy and cpu
        return program.Program(
            blocks=self.blocks,
            objective=self.objective,
            gradient=self.settings.gradient,
            steps=self.settings.local_steps,
            prefixes=tuple(p.padding.prefixes(1 if in_turn else p.num_clients) if heavy else () for p in self._placers),
            in_turn=in_turn,
            unroll=min(5, self.settings.local_steps) if numbers < TINY else 1,
        )

    def _precision(self) -> Any:
        return jax.enable_x64(self.settings.dtype == "float64")

    def init(self) -> list[Tree]:
        """The hub blocks before round 0, a function of the seed and the silo's index."""
        return [
            start_block(block, self.settings, index, shape, self.num_outputs)
            for index, (block, shape) in enumerate(zip(self.blocks, self._shapes, strict=True))
        ]

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
            advanced: list[Tree] = program.run_rounds(
                hub_blocks,
                self._data,
                self._labels,
                _padded(ids, room),
                [Placement(*(_padded(part, room) for part in placement)) for placement in placements],
                len(ids),
                jnp.asarray(self.settings.step_size, self.settings.dtype),
                program=self._program,
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
                chunk = program.scores(hub_blocks, held, begin, rows=rows, blocks=self.blocks)
                chunks.append(np.asarray(chunk)[start - begin :])
        return np.concatenate(chunks)

    def loss(self, hub_blocks: list[Tree], scores: NDArray[Any], labels: NDArray[Any]) -> float:
        """The objective of the global model over samples with these ``scores``; the sum is taken in float64."""
        with self._precision():
            losses = program.losses(scores, jnp.asarray(labels, self._labels.dtype), objective=self.objective)
            penalty = sum(float(self.objective.penalty(block)) for block in hub_blocks)
        return float(np.mean(np.asarray(losses), dtype=np.float64)) + penalty


def _padded(part: NDArray[np.int32], capacity: int) -> NDArray[np.int32]:
    """Room for ``capacity`` rounds, so that a shorter call runs the same program."""
    if len(part) == capacity:
        return part
    room = np.zeros((capacity, *part.shape[1:]), part.dtype)
    room[: len(part)] = part
    return room
