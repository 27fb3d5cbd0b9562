"""The simulation: a whole federation in one process, or in a few that work as one."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd import program
from tdcd.blocks import Linear
from tdcd.blocks.base import Block
from tdcd.blocks.start import start_block
from tdcd.engines import Call, ClientEngine, Engine, LaneEngine, Problem
from tdcd.execution import Execution
from tdcd.federation import Federation, aligned_empty
from tdcd.objective import Objective, Tree
from tdcd.row_engine import RowEngine
from tdcd.schedule import batch_ids
from tdcd.settings import Settings
from tdcd.shipping import ahead

ROWS_AT_ONCE = 4096
"""Evaluation goes over the samples in chunks of this many."""
FITS_WELL = 0.5
"""Data that takes up more of the device's memory than this share stays on the host."""


class Simulation:
    """A federation in one process. Between rounds its whole state is the list of hub blocks.

    The functions of :mod:`tdcd.algorithm` are mapped over each silo's clients; rounds run in a loop inside one
    compiled program, whose trip count is an argument: any number of rounds gives the same bits as one at a time.
    """

    def __init__(
        self,
        federation: Federation,
        blocks: Sequence[Block],
        objective: Objective,
        settings: Settings,
        execution: Execution | None = None,
    ) -> None:
        """Put the data where it stays.

        Args:
            blocks: one a silo.
            execution: on which devices and how; by default on JAX's default device.
        """
        if len(blocks) != federation.num_silos:
            raise ValueError(f"there are {federation.num_silos} silos, but {len(blocks)} blocks")
        self.blocks, self.objective, self.settings = tuple(blocks), objective, settings
        self.execution = execution or Execution()
        self.num_samples = federation.num_samples
        self.batch_size = self.num_samples if settings.minibatches == "full" else settings.batch_size
        if self.batch_size > self.num_samples:
            raise ValueError(f"batch_size is {self.batch_size}, but there are only {self.num_samples} samples")
        self._shapes = [silo.feature_shape for silo in federation.silos]
        objective.check_labels(federation.labels)
        self.num_outputs = federation.num_classes if objective.loss == "softmax" else 1
        self._labels_dtype = np.dtype(np.int32 if objective.loss == "softmax" else settings.dtype)
        linear = all(type(block) is Linear for block in blocks)
        with self._context():
            self._tables = [_on_host(silo.features, settings.dtype) for silo in federation.silos]
            self._on_device: list[Array] | None = None
            if self._stays_on_device(linear):
                self._on_device = [self.execution.devices.hold(table) for table in self._tables]
            problem = Problem(
                federation,
                self.blocks,
                objective,
                settings,
                self.batch_size,
                self._tables,
                federation.labels.astype(self._labels_dtype),
                self._on_device,
                self.execution.devices,
            )
            kind = RowEngine if linear and RowEngine.suits(problem) else LaneEngine if linear else ClientEngine
            self._engine: Engine = kind(problem)
        self._on_device = self.execution.devices.here(self._on_device)

    def _stays_on_device(self, linear: bool) -> bool:
        """Whether the data goes to the device once, rather than the rows of each call."""
        if self.execution.keep != "auto":
            return self.execution.keep == "device"
        if jax.default_backend() == "cpu":
            # There the host gathers rows faster; but a client engine gathers them again, and a file stays a file.
            return not linear and not any(isinstance(table, np.memmap) for table in self._tables)
        memory: int = jax.local_devices()[0].memory_stats()["bytes_limit"]
        return sum(table.nbytes for table in self._tables) < FITS_WELL * memory

    def _context(self) -> Any:
        """The precision in which everything here is compiled and run."""
        context = ExitStack()
        context.enter_context(jax.enable_x64(self.settings.dtype == "float64"))
        context.enter_context(self.execution.matrix_products(self.settings.dtype))
        return context

    def init(self) -> list[Tree]:
        """The hub blocks before round 0, a function of the seed and the silo's index."""
        return [
            start_block(block, self.settings, index, shape, self.num_outputs)
            for index, (block, shape) in enumerate(zip(self.blocks, self._shapes, strict=True))
        ]

    def advance(self, hub_blocks: list[Tree], first_round: int, num_rounds: int) -> list[Tree]:
        """The hub blocks ``num_rounds`` rounds later. Returns before the device has finished."""
        devices = self.execution.devices
        with self._context():
            hub_blocks = devices.everywhere(hub_blocks)
        calls = self._calls(first_round, first_round + num_rounds)
        # A thread for a single call would only cost time.
        for call in calls if num_rounds <= self.rounds_per_call else ahead(calls):
            with self._context():
                hub_blocks = self._engine.run(hub_blocks, call)
        here: list[Tree] = devices.here(hub_blocks)
        return here

    def _calls(self, first_round: int, last_round: int) -> Iterator[Call]:
        """What the engine is to do for these rounds."""
        settings = self.settings
        while first_round < last_round:
            ids = batch_ids(
                settings.seed,
                range(first_round, min(last_round, first_round + self.rounds_per_call)),
                num_samples=self.num_samples,
                batch_size=self.batch_size,
                local_steps=settings.local_steps,
                minibatches=settings.minibatches,
            )
            with self._context():
                call = self._engine.prepare(ids)
            first_round += call.rounds
            yield call

    @property
    def rounds_per_call(self) -> int:
        """The most rounds that one compiled call does."""
        return self._engine.rounds_per_call

    def scores(self, hub_blocks: list[Tree], features: Sequence[Any] | None = None) -> NDArray[Any]:
        """The global model's scores ``[rows, C]``, for the training samples or for others; in chunks of rows.

        Args:
            features: each silo's columns of the other samples.
        """
        with self._context():
            tables = self._tables if features is None else features
            resident = self._on_device if features is None else None
            total = len(tables[0])
            rows = min(ROWS_AT_ONCE, total)
            chunks = []
            for start in range(0, total, rows):
                # The last chunk starts early enough to be whole, and skips what the one before it had.
                begin = min(start, total - rows)
                held: Sequence[Any] | None = resident
                first = begin
                if held is None:
                    held, first = [table[begin : begin + rows] for table in tables], 0
                chunk = program.scores(hub_blocks, held, first, rows=rows, blocks=self.blocks)
                chunks.append(np.asarray(chunk)[start - begin :])
        return np.concatenate(chunks)

    def loss(self, hub_blocks: list[Tree], scores: NDArray[Any], labels: NDArray[Any]) -> float:
        """The objective of the global model over samples with these ``scores``; the sum is taken in float64."""
        with self._context():
            losses = program.losses(scores, jnp.asarray(labels, self._labels_dtype), objective=self.objective)
            penalty = sum(float(self.objective.penalty(block)) for block in hub_blocks)
        return float(np.mean(np.asarray(losses), dtype=np.float64)) + penalty


def _on_host(features: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The features as they stay: whole numbers and mapped files as they are, other arrays in the run's precision."""
    if isinstance(features, np.memmap) or features.dtype.kind != "f" or features.dtype == dtype:
        return features
    converted = aligned_empty(features.shape, dtype)
    converted[...] = features
    return converted
