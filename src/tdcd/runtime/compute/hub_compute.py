"""What a hub computes: its lines of :mod:`tdcd.core.algorithm`, on what its clients and peers sent."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.blocks.start import start_block
from tdcd.core import algorithm
from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import draws_of
from tdcd.core.update import HubUpdate, TakeAverage
from tdcd.core.variant import AsItIs, Exchange, LabelsEverywhere, Sending, Wire, seed_words
from tdcd.federation.partition import shares_of
from tdcd.records.metrics import metrics
from tdcd.records.run_folder import named_leaves
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.sample_index import IncompatibleParties, SampleIndex
from tdcd.runtime.protocol.structure import Arrays

AT_ONCE, SAMPLES_AT_ONCE = 32, 1 << 16
"""The most rounds that are laid out at once, and the most samples of them: a round takes less time so."""


class Layout(NamedTuple):
    """Which client holds which samples of a round's E minibatches, seen as one run of E * B samples."""

    places: list[NDArray[np.int64]]
    """Of each client: where its samples are."""
    slots: NDArray[np.int64]
    """``[1, E * B]``: where each sample is if the clients' rows follow one another."""


class Left(NamedTuple):
    """What is left of a round's minibatches for one client, if clients are absent."""

    absent: NDArray[np.uint8]
    """``[n]``: 1 for those of the client's rows that take no part."""
    present: NDArray[np.int32]
    """``[E]``: how many samples each minibatch still has."""
    rows: int
    """How many samples the silo's clients that take part hold."""


class HubCompute:
    """A silo's numbers, as its hub sees them: phi and blocks, never features."""

    def __init__(self, job: Job, silo: int, sample_index: SampleIndex, feature_shape: tuple[int, ...]) -> None:
        """Take the silo's index, its samples and the shape of one of them."""
        self.settings, self.sample_index, self.silo = job.settings, sample_index, silo
        self.objective = Objective(sample_index.loss(job.config), job.config.model.l2)
        self.variant = job.variant
        self.num_outputs = self.objective.num_outputs([sample_index.labels])
        self.batch_size = self.settings.effective_batch_size(sample_index.num_samples)
        self.num_exchanged = self.settings.num_exchanged
        self.phi_shape = (self.num_exchanged, self.batch_size, self.num_outputs)
        self.wire = self.variant.exchange.layout(self.phi_shape, self.settings.dtype)
        """The dtype and shape of every array that hubs send each other for a round's phi, by name."""
        self._draws = draws_of(self.settings, sample_index.num_samples)
        # NumPy sorts few different numbers fastest in 16 bits.
        self._owner = sample_index.train_owner.astype(np.min_scalar_type(max(256, len(sample_index.rows))))
        self._labels = sample_index.train_labels
        self._num_clients = len(sample_index.rows)
        self._places = [sample_index.places(client) for client in range(self._num_clients)]
        self._held = np.array([int((train >= 0).sum()) for train, _ in self._places])
        started = start_block(
            job.blocks[silo], self.settings, silo, feature_shape, self.num_outputs, job.config.silos[silo].name
        )
        self.start: Tree = jax.tree.map(np.asarray, started)
        self._structure = jax.tree.structure(self.start)
        with self._precision():
            self.memory: Tree = jax.tree.map(np.asarray, self.variant.hub_update.start(self.start))
        """What the hub's update remembers before round 0."""
        self.shapes: dict[str, tuple[int, ...]] = {n: leaf.shape for n, leaf in named_leaves(self.start).items()}
        """The shape of every array of the block, by name."""
        self._at_once = max(1, min(AT_ONCE, SAMPLES_AT_ONCE // (self.num_exchanged * self.batch_size)))
        self._layouts = lru_cache(maxsize=2)(self._lay_out)
        self._shares = lru_cache(maxsize=2)(self._shares_of)

    @property
    def num_parameters(self) -> int:
        """Of the silo's block."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.start))

    def tree(self, leaves: Arrays) -> Tree:
        """A block from its named arrays."""
        return jax.tree.unflatten(self._structure, [leaves[name] for name in self.shapes])

    def layout(self, round_index: int) -> Layout:
        """Who holds the samples of a round's minibatches."""
        return self._layouts(round_index // self._at_once)[round_index % self._at_once]

    def _lay_out(self, which: int) -> list[Layout]:
        """The layouts of as many rounds as are laid out at once."""
        first = which * self._at_once
        ids = np.stack([self._draws(index).ravel() for index in range(first, first + self._at_once)])
        holders = self._owner[ids]
        orders = np.argsort(holders, axis=1, kind="stable")
        slots = np.empty_like(orders)
        np.put_along_axis(slots, orders, np.arange(orders.shape[1]), axis=1)
        bounds = [np.cumsum(np.bincount(one, minlength=self._num_clients))[:-1] for one in holders]
        return [Layout(np.split(orders[i], bounds[i]), slots[i : i + 1]) for i in range(self._at_once)]

    def count(self, round_index: int, client: int) -> int:
        """How many samples of a round's minibatches a client holds."""
        return len(self.layout(round_index).places[client])

    def phi_part(
        self, round_index: int, answers: Sequence[NDArray[Any] | None]
    ) -> tuple[Arrays, NDArray[np.uint8] | None]:
        """The silo's part of a round's exchange (line 11), from each client's phi.

        Returns:
            Phi ``[E, B, C]`` in minibatch order, as the exchange encodes it; and, if the samples of clients without an
            answer are among them, ``[E * B]``, 1 where phi is zero for that reason.
        """
        layout = self.layout(round_index)
        rows = [
            self._zeros(len(place)) if answer is None else answer
            for answer, place in zip(answers, layout.places, strict=True)
        ]
        stacked: Any = algorithm.stack(np.concatenate(rows)[None], layout.slots)  # type: ignore[arg-type]
        phi, sending = np.asarray(stacked[0]).reshape(self.phi_shape), self._sending(round_index, self.silo)
        mask = _mask(len(stacked[0]), [answer is None for answer in answers], layout.places)
        absent = mask if mask.any() else None
        if self.variant.exchange == AsItIs():
            return {"phi": phi}, absent
        with self._precision():
            sent = _encode(phi, sending.seed, sending.round, silo=self.silo, exchange=self.variant.exchange)
        return {name: np.asarray(sent[name]) for name in self.wire}, absent

    def _sending(self, round_index: int, silo: int) -> Sending:
        return Sending(seed_words(self.settings.seed), np.int32(round_index), silo)

    def _decoded(self, round_index: int, silo: int, part: Arrays) -> Any:
        """A silo's phi ``[E, B, C]``, from what its hub sent."""
        if self.variant.exchange == AsItIs():
            return part["phi"]
        sending, sent = self._sending(round_index, silo), {name: part[name] for name in self.wire}
        with self._precision():
            phi = _decode(sent, sending.seed, sending.round, silo=silo, exchange=self.variant.exchange)
            return np.asarray(phi)

    def _precision(self) -> Any:
        """The context in which JAX's arrays have the settings' precision."""
        return jax.enable_x64(self.settings.dtype == "float64")

    def _rows(self, answer: Arrays | None, name: str, count: int) -> NDArray[Any]:
        """An array of a client's answer; zeros if it has none."""
        if answer is not None and name in answer:
            return answer[name]
        return self._zeros(count)

    def _zeros(self, count: int) -> NDArray[Any]:
        return np.zeros((count, self.num_outputs), self.settings.dtype)

    def project(self, round_index: int, parts: Sequence[Arrays]) -> list[NDArray[Any]]:
        """What each client gets of the exchange (lines 13 and 14), from every hub's part: ``[n, C]`` per client."""
        phis = [self._decoded(round_index, silo, part) for silo, part in enumerate(parts)]
        labels: Any = self._labels.take(self._draws(round_index))
        with self._precision() if self.variant.knowledge != LabelsEverywhere() else nullcontext():
            passed: Any = self.variant.knowledge.pass_on(self.silo, phis, labels, self.objective)
        rows = np.asarray(passed).reshape(1, -1, self.num_outputs)
        places = self.layout(round_index).places
        return [np.asarray(algorithm.project(rows, place[None])[0]) for place in places]  # type: ignore[arg-type]

    def presence(
        self, round_index: int, absent: NDArray[np.bool_] | None, clients: Collection[int]
    ) -> list[Left | None]:
        """What each client must know to step on the samples that are left; None if all are.

        Args:
            absent: ``[E * B]``, the samples that some silo lacks.
            clients: those of this silo that do not take part.
        """
        places, shape = self.layout(round_index).places, (self.num_exchanged, self.batch_size)
        if absent is None and not clients:
            return [None for _ in places]
        missing = np.zeros(shape, np.uint8) if absent is None else absent.astype(np.uint8).reshape(shape)
        present = self.batch_size - missing.sum(axis=1, dtype=np.int32)
        rows = int(self.sample_index.num_samples - self._held[[*clients]].sum())
        return [Left(missing.ravel()[place], present, rows) for place in places]

    def average(self, answers: Sequence[Arrays | None]) -> Tree:
        """The mean of the clients' blocks (line 8), weighted by the rows of those that sent one."""
        blocks = [answer for answer in answers if answer is not None]
        stacked = self.tree({name: np.stack([block[name] for block in blocks]) for name in self.shapes})
        return algorithm.average(stacked, self._shares(tuple(answer is not None for answer in answers)))

    def next_block(self, block: Tree, average: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """The hub's next block and what its update remembers (line 5), from the average of its clients' blocks."""
        if self.variant.hub_update == TakeAverage():
            return average, memory
        with self._precision():
            moved = _hub_step(block, average, memory, update=self.variant.hub_update)
            as_arrays: tuple[Tree, Tree] = jax.tree.map(np.asarray, moved)
            return as_arrays

    def remembered(self, leaves: Arrays) -> Tree:
        """What the hub's update remembers, from its named arrays; refuses others."""
        wanted = named_leaves(self.memory)
        for name, leaf in wanted.items():
            if name not in leaves or leaves[name].shape != leaf.shape or leaves[name].dtype != leaf.dtype:
                raise IncompatibleParties(f"the checkpoint's '{name}' does not fit train.hub_optimizer: begin anew")
        return jax.tree.unflatten(jax.tree.structure(self.memory), [leaves[name] for name in wanted])

    def _shares_of(self, present: tuple[bool, ...]) -> Any:
        """What part of the rows each of these clients holds."""
        return shares_of(self._held[np.array(present)]).astype(self.settings.dtype)

    def scores_part(self, answers: Sequence[Arrays | None]) -> Arrays:
        """The silo's part of an evaluation, from each client's scores.

        Returns:
            ``train`` ``[M, C]`` and ``test`` ``[m, C]``, phi of all training and all held-out samples in sample order;
            if clients have no answer, ``train_absent`` and ``test_absent``, 1 for their samples.
        """
        part: dict[str, NDArray[Any]] = {}
        masks: dict[str, NDArray[np.uint8]] = {}
        for name, held_out in (("train", False), ("test", True)):
            places = [both[held_out][both[held_out] >= 0] for both in self._places]
            total = int(self.sample_index.held_out.sum()) if held_out else self.sample_index.num_samples
            part[name] = np.empty((total, self.num_outputs), self.settings.dtype)
            for answer, place in zip(answers, places, strict=True):
                part[name][place] = self._rows(answer, name, len(place))
            masks[f"{name}_absent"] = _mask(total, [answer is None for answer in answers], places)
        return {**part, **{name: mask for name, mask in masks.items() if mask.any()}}

    def rows_of(self, client: int, held_out: bool) -> int:
        """How many training rows, or held-out ones, a client has."""
        return int((self._places[client][held_out] >= 0).sum())

    def penalty(self, block: Tree) -> float:
        """The regulariser of the silo's block."""
        with self._precision():
            return float(self.objective.penalty(block))

    def figures(
        self, scores: NDArray[Any], held_out: bool, penalty: float, absent: NDArray[np.bool_] | None = None
    ) -> tuple[float, dict[str, float | None]]:
        """The global model's loss and metrics from its scores, over the samples that are not absent."""
        sample_index, chosen = self.sample_index, slice(None) if absent is None else ~absent
        labels = sample_index.test_labels if held_out else sample_index.train_labels
        with self._precision():
            truth = jnp.asarray(labels, self.objective.label_dtype(self.settings.dtype))
            losses = _losses(scores, truth, objective=self.objective)
        loss = float(np.mean(np.asarray(losses)[chosen], dtype=np.float64)) + penalty
        return loss, metrics(self.objective.loss, scores[chosen], labels[chosen], sample_index.label_scale)


@partial(jax.jit, static_argnames=("silo", "exchange"))
def _encode(phi: Array, seed: Array, round_index: Array, *, silo: int, exchange: Exchange) -> Wire:
    return exchange.encode(phi, Sending(seed, round_index, silo))


@partial(jax.jit, static_argnames=("silo", "exchange"))
def _decode(sent: Wire, seed: Array, round_index: Array, *, silo: int, exchange: Exchange) -> Array:
    return exchange.decode(sent, Sending(seed, round_index, silo))


@partial(jax.jit, static_argnames=("update",))
def _hub_step(block: Tree, average: Tree, memory: Tree, *, update: HubUpdate) -> tuple[Tree, Tree]:
    return update.step(block, average, memory)


@partial(jax.jit, static_argnames=("objective",))
def _losses(scores: Array, labels: Array, *, objective: Objective) -> Array:
    return objective.losses(scores, labels)


def _mask(size: int, is_absent: Sequence[bool], places: Sequence[NDArray[np.int64]]) -> NDArray[np.uint8]:
    """1 for the samples of clients without an answer."""
    absent = np.zeros(size, np.uint8)
    for is_missing, place in zip(is_absent, places, strict=True):
        if is_missing:
            absent[place] = 1
    return absent
