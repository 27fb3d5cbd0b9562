"""What a hub computes: the functions of :mod:`tdcd.algorithm` that are a hub's, on what its clients and peers sent."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tdcd import algorithm, program
from tdcd.blocks.start import start_block
from tdcd.metrics import metrics
from tdcd.objective import Objective, Tree
from tdcd.runfolder import named_leaves
from tdcd.runtime.job import Job
from tdcd.runtime.roll import Roll
from tdcd.schedule import num_exchanged
from tdcd.settings import draws_of


class Layout(NamedTuple):
    """Which client holds which samples of a round's E minibatches, seen as one run of E * B samples."""

    places: list[NDArray[np.int64]]
    """Of each client: where its samples are."""
    slots: NDArray[np.int64]
    """``[1, E * B]``: where each sample is if the clients' rows follow one another."""


class HubCompute:
    """A silo's numbers, as its hub sees them: phi and blocks, never features."""

    def __init__(self, job: Job, silo: int, roll: Roll, feature_shape: tuple[int, ...]) -> None:
        """Take the silo's index, its samples and the shape of one of them."""
        self.settings, self.roll, self.silo = job.settings, roll, silo
        self.objective = Objective(roll.loss(job.config), job.config.model.l2)
        self.num_outputs = int(roll.labels.max()) + 1 if self.objective.loss == "softmax" else 1
        full = self.settings.minibatches == "full"
        self.batch_size = roll.num_samples if full else self.settings.batch_size
        self.num_exchanged = num_exchanged(self.settings.minibatches, self.settings.local_steps)
        self._draws = draws_of(self.settings, roll.num_samples)
        self._owner = roll.train_owner
        self._num_clients = len(roll.rows)
        self._places = [roll.places(client) for client in range(self._num_clients)]
        counts = np.array([int((train >= 0).sum()) for train, _ in self._places])
        self._shares = (counts / roll.num_samples).astype(self.settings.dtype)
        started = start_block(job.blocks[silo], self.settings, silo, feature_shape, self.num_outputs)
        self.start: Tree = jax.tree.map(np.asarray, started)
        self._structure = jax.tree.structure(self.start)
        self.layout = lru_cache(maxsize=2)(self._layout)

    @property
    def num_parameters(self) -> int:
        """Of the silo's block."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.start))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every array of the block, by name."""
        return {name: leaf.shape for name, leaf in named_leaves(self.start).items()}

    def tree(self, leaves: dict[str, NDArray[Any]]) -> Tree:
        """A block from its named arrays."""
        return jax.tree.unflatten(self._structure, [leaves[name] for name in self.shapes()])

    def _layout(self, round_index: int) -> Layout:
        ids = self._draws(round_index)
        holders = self._owner[ids.ravel()]
        order = np.argsort(holders, kind="stable")
        bounds = np.cumsum(np.bincount(holders, minlength=self._num_clients))[:-1]
        slots = np.empty_like(order)
        slots[order] = np.arange(len(order))
        return Layout(np.split(order, bounds), slots[None])

    def stack(self, round_index: int, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """``[E * B, C]``: the clients' phi in minibatch order (line 11)."""
        stacked: Any = algorithm.stack(np.concatenate(parts)[None], self.layout(round_index).slots)  # type: ignore[arg-type]
        return np.asarray(stacked[0])

    def project(self, round_index: int, phis: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """What each client gets of the other silos' sum (lines 13 and 14): ``[n, C]`` a client."""
        others: Any = algorithm.sum_others([phi[None] for phi in phis], self.silo)  # type: ignore[misc]
        places = self.layout(round_index).places
        return [np.asarray(algorithm.project(others, place[None])[0]) for place in places]  # type: ignore[arg-type]

    def average(self, blocks: Sequence[Tree]) -> Tree:
        """The mean of the clients' blocks (line 8)."""
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *blocks)
        return algorithm.average(stacked, self._shares)  # type: ignore[arg-type]

    def gather(self, parts: Sequence[NDArray[Any]], held_out: bool) -> NDArray[Any]:
        """``[rows, C]``: the clients' phi of all training samples, or of all held-out ones, in sample order."""
        total = int(self.roll.held_out.sum()) if held_out else self.roll.num_samples
        scores = np.empty((total, self.num_outputs), self.settings.dtype)
        for part, (train, test) in zip(parts, self._places, strict=True):
            places = test if held_out else train
            scores[places[places >= 0]] = part
        return scores

    def rows_of(self, client: int, held_out: bool) -> int:
        """How many training rows, or held-out ones, a client has."""
        return int((self._places[client][held_out] >= 0).sum())

    def penalty(self, block: Tree) -> float:
        """The regulariser of the silo's block."""
        with jax.enable_x64(self.settings.dtype == "float64"):
            return float(self.objective.penalty(block))

    def figures(self, scores: NDArray[Any], held_out: bool, penalty: float) -> tuple[float, dict[str, float | None]]:
        """The global model's loss and metrics from its scores."""
        roll = self.roll
        labels = roll.test_labels if held_out else roll.train_labels
        kind = jnp.int32 if self.objective.loss == "softmax" else self.settings.dtype
        with jax.enable_x64(self.settings.dtype == "float64"):
            losses = program.losses(scores, jnp.asarray(labels, kind), objective=self.objective)
        loss = float(np.mean(np.asarray(losses), dtype=np.float64)) + penalty
        return loss, metrics(self.objective.loss, scores, labels, roll.label_scale)
