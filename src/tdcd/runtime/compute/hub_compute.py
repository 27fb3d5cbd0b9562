"""What a hub computes: its lines of :mod:`tdcd.core.algorithm`, on what its clients and peers sent."""

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.absent import Absent, ones_left
from tdcd.blocks.start import FormerBlock, start_block
from tdcd.config.resolve import objective_of
from tdcd.core import algorithm, certificate, lazy
from tdcd.core.algorithm import Descent
from tdcd.core.certificate import Samples
from tdcd.core.codecs.codec import TO_CLIENTS, TO_HUB, Layout
from tdcd.core.family.scaled import mean_products
from tdcd.core.knowledge import Knowledge
from tdcd.core.lazy import compiled
from tdcd.core.losses import metrics
from tdcd.core.objective import Objective, Tree
from tdcd.core.round import Flow, FlowName, Widths, is_of_rows, round_of
from tdcd.core.settings import draws_of
from tdcd.core.shared_rows import SharedCounts, SharedRows, is_sent_whole
from tdcd.core.traits import stated
from tdcd.core.trees import leaves_of, like, map_tree, named_leaves
from tdcd.core.update import HubUpdate
from tdcd.federation.partition import shares_of
from tdcd.federation.weights import weighted_mean
from tdcd.runtime.compute.encrypted_rounds import EncryptedRounds
from tdcd.runtime.compute.links import MEMORY, Links, precision
from tdcd.runtime.compute.sample_index import SampleIndex
from tdcd.runtime.compute.secure_sums import Masks, What, add_steps
from tdcd.runtime.job import NONE_ABSENT, IncompatibleParties, Job
from tdcd.runtime.messages.structure import Arrays
from tdcd.runtime.messages.validation import are_finite


class Holdings(NamedTuple):
    """Which client holds which samples of a round's E minibatches, seen as one run of E * B samples."""

    places: list[NDArray[np.int64]]
    """Per client: where its samples are."""
    slots: NDArray[np.int64]
    """``[1, E * B]``: where each sample is if the clients' rows follow one another; last those that no client has."""
    rows: list[NDArray[np.int64]]
    """Per client: which of its distinct rows its samples have; empty where no client sends phi of all of them."""


def mask_of(size: int, is_absent: Sequence[bool], places: Sequence[NDArray[np.int64]]) -> NDArray[np.uint8]:
    """1 for the samples of clients without an answer."""
    absent = np.zeros(size, np.uint8)
    for is_missing, place in zip(is_absent, places, strict=True):
        if is_missing:
            absent[place] = 1
    return absent


def absent_in(parts: Sequence[Arrays], name: str = "absent") -> NDArray[np.bool_] | None:
    """The samples that are absent in at least one hub's part; None if no hub lacks any."""
    masks = [part[name] for part in parts if name in part]
    return np.logical_or.reduce(masks) if masks else None


class PartLayout(NamedTuple):
    """What the arrays of a part have to be."""

    arrays: Layout
    masks: dict[str, int]
    """Those that are there only if clients are left out: of so many samples, 1 for each that is absent."""


CARRIED = "carried."
"""How a checkpoint calls the memory of a client, before its number."""
AT_ONCE, SAMPLES_AT_ONCE = 32, 1 << 16
"""The most rounds that are laid out at once, and the most samples of them: a round takes less time so."""


class HubCompute:
    """A silo's numbers, as its hub sees them: phi and blocks, never features."""

    def __init__(
        self,
        job: Job,
        silo: int,
        sample_index: SampleIndex,
        feature_shape: tuple[int, ...],
        masks: Masks | None = None,
        noise_key: bytes = b"",
        products: Sequence[NDArray[Any]] = (),
        run: str = "",
        absent: Absent = NONE_ABSENT,
        former: FormerBlock | None = None,
    ) -> None:
        """Take the silo's index, its samples, the shape of one of them, and the hub's masks and the secret of its noise
        if it has any; what clients sent of the products of their features, where the hub's steps need them; the run;
        and the stand-ins of its block; and the block that it starts from, if that is one of a former run.
        """
        self.settings = job.settings.at(sample_index.num_samples)
        self.sample_index, self.silo = sample_index, silo
        outputs = sample_index.outputs(job.config)
        self.objective = objective_of(job.config, outputs.loss, sample_index.num_samples)
        self.num_outputs = outputs.count
        self.variant = job.variant
        self.batch_size = self.settings.effective_batch_size(sample_index.num_samples)
        self.num_exchanged = self.settings.num_exchanged
        self.phi_width = self.objective.phi_width(self.num_outputs)
        self.phi_shape = (self.num_exchanged, self.batch_size, self.phi_width)
        statistic = self.objective.statistic_width(self.num_outputs)
        num_scores = sample_index.num_samples * self.phi_width
        self.certificate_kind = certificate.kind_of(self.variant, self.objective.combine, job.are_linear, num_scores)
        # Minibatches may have every sample only for so many samples.
        mixes = job.is_one_step and self.variant.mixes(self.settings)
        widths = Widths(
            self.phi_width, statistic, job.sends_weights, self.certificate_kind, job.keyed, job.is_one_step, mixes
        )
        self.round = round_of(job.variant, len(job.hubs), widths)
        self._sends_weights, self._has_labels = job.sends_weights, job.has_labels(silo)
        self.links = Links(self.variant, self.settings, silo, self.phi_shape, job.hubs[silo], masks, noise_key)
        self.encrypted: EncryptedRounds | None = None
        """What the hub does with ciphertexts, if slopes are encrypted."""
        if (form := self.round.encrypted) is not None:
            self.encrypted = EncryptedRounds(form, job, silo, noise_key, run, self.batch_size, self.phi_width)
        self._num_scored = {"train": sample_index.num_samples, "test": int(sample_index.held_out.sum())}
        self.between_hubs = self._layouts()
        """By flow and silo: what the silo's hub sends."""
        self._draws = draws_of(self.settings, sample_index.num_samples)
        # NumPy sorts few different numbers fastest in 16 bits. Samples that the silo lacks come last.
        owner = sample_index.train_owner
        owner = np.where(owner < 0, len(sample_index.rows), owner)
        self._owner = owner.astype(np.min_scalar_type(max(256, len(sample_index.rows))))
        self._labels = None if sample_index.meaning is None else sample_index.train_labels
        self._weights = sample_index.weights_at(~sample_index.held_out)
        self.num_clients = len(sample_index.rows)
        self._places = [sample_index.places(client) for client in range(self.num_clients)]
        self._held = np.array([int((train >= 0).sum()) for train, _ in self._places])
        self._take_shared(job)
        self._model, self._num_features = job.block(silo, absent), feature_shape[-1]
        started = start_block(
            self._model,
            self.settings,
            silo,
            feature_shape,
            self.num_outputs,
            job.config.silos[silo].name,
            self.objective.combine,
            former,
        )
        self.start: Tree = map_tree(np.asarray, started)
        self._step_size = np.asarray(self.settings.step_size, self.settings.dtype)
        self.summed = self.round.summed_blocks
        """The form of its clients' blocks, if it can use nothing but their sum."""
        self._takes_numpy = bool(stated(self.variant.hub_update, "takes_numpy"))
        with nullcontext() if self._takes_numpy else precision(self.settings.dtype):
            state = self.variant.first_state(self.start, lambda: self._mean_products(products), self.objective)
            self.memory: Tree = map_tree(np.asarray, state)
            """What the hub's update remembers before round 0."""
        memory = map_tree(np.asarray, self.variant.first_memory(self.start))
        self.carried: list[Tree] = [memory] * self.num_clients if leaves_of(memory) else []
        """Every client's memory before round 0, if their update carries one."""
        self.memory_layout: Layout = {
            f"{MEMORY}{name}": (str(leaf.dtype), leaf.shape)
            for first in self.carried[:1]
            for name, leaf in named_leaves(first).items()
        }
        """What a client's memory is: the dtype and shape of every array, by name."""
        self._names = [*named_leaves(self.start)]
        self.block_layout = self.links.block_layout(self.start)
        """What clients send of their blocks: the dtype and shape of every array, by name."""
        self._sent_after_steps = {**self.block_layout, **self.memory_layout}
        self._at_once = max(1, min(AT_ONCE, SAMPLES_AT_ONCE // (self.num_exchanged * self.batch_size)))
        # Phi is of later rounds than the steps.
        spread = job.timing.rounds + job.timing.longest_period
        self._all_holdings = lru_cache(maxsize=2 + spread // self._at_once)(self._lay_out)
        self._shares = lru_cache(maxsize=2)(self._shares_of)
        self.sends = lru_cache(maxsize=2)(partial(job.sends, silo))
        """The rounds whose phi the silo sends in this one; asked for with every answer."""

    def _take_shared(self, job: Job) -> None:
        """Take which distinct row of its client each sample has, where rows belong to many samples."""
        self._shared: list[tuple[SharedRows, SharedRows]] = []
        self.shared: SharedCounts | None = None
        """How many distinct rows its clients have, where rows belong to many samples."""
        self._row_of = np.zeros(0, np.int64)
        self._adds_up = is_of_rows(self.round.flow("received", "hub_to_client", self.silo))
        self.of_samples: list[list[Any]] = [[slice(None)] * 2] * self.num_clients
        """By client: which of the rows that it sends each training sample has, and each held-out one."""
        self._whole = [0] * self.num_clients
        """By client: how many rows it sends phi of in every round; 0 if that is of the round's samples."""
        self._num_sent = [[int((numbers >= 0).sum()) for numbers in places] for places in self._places]
        """By client: how many distinct training rows it has, and held-out ones."""
        if self.silo not in job.keyed:
            return
        total, drawn = self.sample_index.num_samples, self.num_exchanged * self.batch_size
        indices = self.sample_index.shared_rows(job.config, self.silo, job.block(self.silo))
        self._shared = [(SharedRows.of(train), SharedRows.of(test)) for train, test in indices]
        self.shared = SharedCounts.of([own for own, _ in indices], [own for _, own in indices], total, drawn)
        self._row_of = np.zeros(total, np.int64)
        for place, (train, _) in zip(self.train_places, self._shared, strict=True):
            self._row_of[place] = train.index
        self._num_sent = [[len(train), len(test)] for train, test in self._shared]
        self.of_samples = [[train.index, test.index] for train, test in self._shared]
        if is_of_rows(self.round.flow("phi", "client_to_hub", self.silo)):
            each = [(train, held) for (train, _), held in zip(self._num_sent, self._held.tolist(), strict=True)]
            self._whole = [own if is_sent_whole(own, held, total, drawn) else 0 for own, held in each]

    def by_rows(self, client: int, values: NDArray[Any]) -> NDArray[Any]:
        """What is for each of a client's training samples, ``[n, C]``, summed by its rows."""
        return self._shared[client][0].summed(values) if self._shared else values

    def _layouts(self) -> dict[tuple[FlowName, int], PartLayout]:
        sizes = {name: (size,) for name, size in self._num_scored.items()}
        layouts: dict[tuple[FlowName, int], PartLayout] = {}
        for flow in (*self.round.between_hubs(), *self.round.ending):
            is_scored = flow in self.round.evaluation
            for silo in range(self.round.num_silos):
                if not flow.is_of(silo):
                    continue
                layout = layouts.setdefault((flow.within or flow.name, silo), PartLayout({}, {}))
                if flow.carries == "encrypted":
                    # Known when all hubs have sent how large their silos are.
                    continue
                if flow.carries == "vector":
                    layout.arrays[flow.name] = flow.dtype or self.settings.dtype, (flow.width,)
                elif flow.carries == "samples" and flow in self.round.certificate:
                    numbers = flow.dtype or self.settings.dtype if flow.codec is None else self.links.scores_dtype
                    layout.arrays[flow.name] = numbers, (self._num_scored["train"], flow.width)
                elif flow.carries == "samples" and is_scored:
                    for name, shape in sizes.items():
                        layout.arrays[name] = self.links.scores_dtype, (*shape, flow.width)
                        layout.masks[f"{name}_absent"] = shape[0]
                elif flow.carries == "samples":
                    layout.arrays.update(self._layout(flow))
                    layout.masks["absent"] = self.num_exchanged * self.batch_size
        return layouts

    def meet(self, parameters: Sequence[int]) -> None:
        """Take the number of parameters of every silo's block, of which the sizes of encrypted sums follow."""
        if self.encrypted is None:
            return
        self.encrypted.meet(parameters)
        for flow in self.round.training:
            for silo in range(self.round.num_silos):
                if flow.link == "hub_to_hub" and flow.carries == "encrypted" and flow.is_of(silo):
                    layout = self.encrypted.layout(flow.name, silo)
                    self.between_hubs[flow.name, silo] = PartLayout(layout, {})

    def _layout(self, flow: Flow) -> Layout:
        """What a flow carries of the round's samples."""
        drawn = self.num_exchanged, self.batch_size
        if flow.within is not None:
            return {flow.name: (self.settings.dtype, drawn)}
        shape = (*drawn, flow.width)
        if flow.codec is None:
            return {flow.name: (self.settings.dtype, shape)}
        layout: Layout = flow.codec.layout(shape, self.settings.dtype)
        return layout

    def of_client(self, flow: FlowName, round_index: int, client: int) -> Layout:
        """What a client sends of a flow in a round."""
        if flow == "phi":
            return {
                f"{sent}.{name}": array
                for sent in self.sends(round_index)
                for name, array in self.links.rows_layout(
                    self._whole[client] or len(self.holdings(sent).places[client])
                ).items()
            }
        if flow == "block":
            return self._sent_after_steps
        if flow == "share":
            assert self.encrypted is not None
            return self.encrypted.layout(flow, self.silo)
        if flow == "witness_scores":
            width = (2 if self.certificate_kind == "witness" else 1) * self.phi_width
            return {flow: ("float64", (self._num_sent[client][False], width))}
        if flow == "gradient":
            return self.gradient_layout
        rows = dict(zip(("train", "test"), self._num_sent[client], strict=True))
        shapes = {name: (count, self.phi_width) for name, count in rows.items() if count or name == "train"}
        return {name: (self.settings.dtype, shape) for name, shape in shapes.items()}

    @cached_property
    def gradient_layout(self) -> Layout:
        """What clients send in a certificate: the dtype and shape of every array, by name."""
        flow = self.round.flow("gradient", "client_to_hub")
        assert flow is not None
        sent = flow.dtype or self.settings.dtype
        return {name: (sent, leaf.shape) for name, leaf in named_leaves(self.start).items()}

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the silo's block."""
        return sum(leaf.size for leaf in leaves_of(self.start))

    @property
    def bytes_up(self) -> int:
        """The bytes of a block that a client sends."""
        return sum(math.prod(shape) * np.dtype(kind).itemsize for kind, shape in self.block_layout.values())

    @property
    def memory_bytes(self) -> int:
        """The bytes of a client's memory."""
        return sum(math.prod(shape) * np.dtype(kind).itemsize for kind, shape in self.memory_layout.values())

    def tree(self, leaves: Arrays) -> Tree:
        """A block from its named arrays."""
        return like(self.start, [leaves[name] for name in self._names])

    def holdings(self, round_index: int) -> Holdings:
        """Who holds the samples of a round's minibatches."""
        return self._all_holdings(round_index // self._at_once)[round_index % self._at_once]

    def _lay_out(self, which: int) -> list[Holdings]:
        """The holdings of as many rounds as are laid out at once."""
        first = which * self._at_once
        ids = np.stack([self._draws(index).ravel() for index in range(first, first + self._at_once)])
        holders = self._owner.take(ids)
        orders = np.argsort(holders, axis=1, kind="stable")
        slots, everywhere = np.empty_like(orders), np.arange(orders.shape[1])
        for slot, order in zip(slots, orders, strict=True):
            slot[order] = everywhere
        counts = [np.bincount(clients, minlength=self.num_clients)[: self.num_clients] for clients in holders]
        bounds = np.cumsum(counts, axis=1).tolist()
        places = [[order[a:b] for a, b in pairwise([0, *ends])] for order, ends in zip(orders, bounds, strict=True)]
        rows: list[list[NDArray[np.int64]]] = [[] for _ in places]
        if any(self._whole):
            rows = [[self._row_of[drawn[its]] for its in own] for drawn, own in zip(ids, places, strict=True)]
        return [Holdings(own, slots[place : place + 1], rows[place]) for place, own in enumerate(places)]

    def phi_part(self, round_index: int, answers: Sequence[Arrays | None]) -> Arrays:
        """The silo's part of a round's exchange (line 11), from what each client sent.

        Returns:
            Phi ``[E, B, C]`` in minibatch order, as the exchange encodes it; and, if the samples of clients without an
            answer are among them, ``absent`` ``[E * B]``, 1 where phi is zero for that reason.
        """
        holdings = self.holdings(round_index)
        rows = [
            self._zeros(len(place))
            if answer is None
            else answer[f"{round_index}.phi"].take(holdings.rows[client], axis=0)
            if self._whole[client]
            else self.links.decode_rows(round_index, TO_HUB, place, answer, f"{round_index}.")
            for client, (answer, place) in enumerate(zip(answers, holdings.places, strict=True))
        ]
        lacking = holdings.slots.size - sum(map(len, rows))
        rows += [self._zeros(lacking)] if lacking else []
        stacked: Any = algorithm.stack(np.concatenate(rows)[None], holdings.slots)  # type: ignore[arg-type]
        phi = np.asarray(stacked[0]).reshape(self.phi_shape)
        sent = self.links.to_hubs(round_index, phi)
        if None not in answers:
            return sent
        mask = mask_of(len(stacked[0]), [answer is None for answer in answers], holdings.places)
        return {**sent, "absent": mask} if mask.any() else sent

    def _rows(self, answer: Arrays | None, name: str, count: int) -> NDArray[Any]:
        """An array of a client's answer; zeros if it has none."""
        if answer is not None and name in answer:
            return answer[name]
        return self._zeros(count)

    def _zeros(self, count: int) -> NDArray[Any]:
        return np.zeros((count, self.phi_width), self.settings.dtype)

    # What overflows is not finite, and is found by that: here and below.
    @np.errstate(over="ignore", invalid="ignore")
    def slope_part(self, round_index: int, parts: Sequence[Arrays]) -> Arrays:
        """What clients of the silos without labels get of the exchange, from every hub's part; zero for absent samples.

        Returns:
            ``slope`` ``[E, B, W]``; ``weights`` ``[E, B]``, if samples do not weigh the same; and ``absent``.
        """
        if self.encrypted is not None:
            return self._encrypted_slopes(self.encrypted, round_index, parts)
        absent = absent_in(parts)
        # All of those silos get the same.
        arrays = {"slope": self._passed(0 if self.silo else 1, round_index, parts)}
        if self._sends_weights:
            assert self._weights is not None
            arrays["weights"] = self._weights.take(self._draws(round_index)).astype(self.settings.dtype)
        if absent is None:
            return arrays
        missing = absent.reshape(self.phi_shape[:2])
        arrays["slope"] = np.where(missing[..., None], 0, arrays["slope"])
        if self._sends_weights:
            arrays["weights"] = np.where(missing, 0, arrays["weights"])
        return {**arrays, "absent": absent.astype(np.uint8)}

    def _encrypted_slopes(self, encrypted: EncryptedRounds, round_index: int, parts: Sequence[Arrays]) -> Arrays:
        """The same, encrypted; nothing if a score is not finite."""
        slopes = self._passed(0 if self.silo else 1, round_index, parts)
        exact = slopes
        if not are_finite([slopes]):
            assert self._labels is not None
            scores: Any = self.links.own(round_index, parts[self.silo]) + self.links.others(round_index, parts)
            drawn = self._labels.take(self._draws(round_index))
            labels: Any = drawn.astype(self.objective.label_dtype(self.settings.dtype))
            with precision(self.settings.dtype), np.errstate(all="ignore"):
                exact = np.asarray(self.objective.score_slopes(scores, labels))
            if not are_finite([exact]):
                return {}
        return encrypted.slopes(round_index, slopes, exact)

    def descended(self, block: Tree, gradient: NDArray[Any]) -> Tree:
        """The block after a plain step along the gradient of the data term: what its clients' average would be."""
        step_size: Any = self._step_size
        descent = Descent(self.objective.losses, self.objective.l2, self.variant.update, step_size)
        moved, _ = algorithm.local_update((block, ()), like(block, [gradient]), descent)
        return map_tree(lambda leaf: np.asarray(leaf, self.settings.dtype), moved)

    def _passed(self, silo: int, round_index: int, parts: Sequence[Arrays]) -> NDArray[Any]:
        """What clients of a silo get of the exchange (line 13), all together, from every hub's part."""
        others: Any = self.links.others(round_index, parts)
        knowledge = self.variant.knowledge
        if knowledge.receives_sum(silo):
            # Those who have the labels get the others' phi: no need to compute with it here.
            return np.asarray(others)
        own: Any = self.links.own(round_index, parts[self.silo])
        assert self._labels is not None
        drawn = self._labels.take(self._draws(round_index))
        labels: Any = drawn.astype(self.objective.label_dtype(self.settings.dtype))
        if self.objective.is_written_out:
            with np.errstate(all="ignore"):
                return np.asarray(knowledge.received(silo, own, others, labels, self.objective))
        with precision(self.settings.dtype):
            return np.asarray(_received(own, others, labels, silo=silo, knowledge=knowledge, objective=self.objective))

    @np.errstate(over="ignore", invalid="ignore")
    def project(self, round_index: int, parts: Sequence[Arrays], without: Collection[int]) -> list[dict[str, Any]]:
        """What each client is sent of the exchange (line 14); nothing if the sum of all parts is not finite.

        Args:
            parts: every hub's phi; of a silo without labels, the slopes that its hub was sent.
            without: the clients of this silo that do not take part.
        """
        passed = self._passed(self.silo, round_index, parts) if self._has_labels else parts[0]["slope"]
        if not are_finite([passed]):
            return []
        weights = None if self._has_labels else parts[0].get("weights")
        if self._adds_up:
            passed, weights = self._start_slopes(passed, weights), None
        absent = absent_in(parts)
        left = self.left(round_index, absent, without) if absent is not None or without else []
        rows: Any = passed.reshape(1, -1, passed.shape[-1])
        sent = []
        for client, place in enumerate(self.holdings(round_index).places):
            its: Any = place[None]
            projected = np.asarray(algorithm.project(rows, its)[0])
            if self._adds_up and self._whole[client]:
                shared = replace(self._shared[client][0], index=self.holdings(round_index).rows[client])
                projected = shared.summed(projected)
            own = dict(self.links.encode_rows(round_index, TO_CLIENTS, place, projected))
            if weights is not None:
                own["weights"] = weights.ravel()[place]
            sent.append({**own, **left[client]} if left else own)
        return sent

    def _start_slopes(self, received: NDArray[Any], weights: NDArray[Any] | None) -> NDArray[Any]:
        """The slopes of samples at the round's start, times what the samples weigh."""
        knowledge, objective, given = self.variant.knowledge, self.objective, cast("Any", received)
        with nullcontext() if objective.is_written_out else precision(self.settings.dtype):
            slopes = np.asarray(knowledge.start_slopes(given, self.phi_width, objective))
        return slopes if weights is None else weights[..., None] * slopes

    def left(
        self, round_index: int, absent: NDArray[np.bool_] | None, without: Collection[int]
    ) -> list[dict[str, NDArray[Any]]]:
        """What each client must know to step on the samples that are left.

        Args:
            absent: ``[E * B]``, the samples that some silo lacks; None: those of the clients that do not take part.
            without: the clients of this silo that do not take part.
        """
        shape, places = (self.num_exchanged, self.batch_size), self.holdings(round_index).places
        is_absent = [client in without for client in range(self.num_clients)]
        mask = mask_of(math.prod(shape), is_absent, places) if absent is None else absent.astype(np.uint8)
        missing = mask.reshape(shape)
        present = self.batch_size - missing.sum(axis=1, dtype=np.int32)
        rows = np.array([self._held.sum() - self._held[[*without]].sum()], np.int64)
        return [{"absent": missing.ravel()[place], "present": present, "rows": rows} for place in places]

    def average(self, round_index: int, block: Tree, answers: Sequence[Arrays | None]) -> Tree:
        """The mean of the clients' blocks (line 8), weighted by the rows of those that sent one."""
        sent = {client: answer for client, answer in enumerate(answers) if answer is not None}
        if self.summed is not None:
            total = {name: add_steps([answer[name] for answer in sent.values()]) for name in self.block_layout}
            return self.summed.average(self.tree(total), self.settings.dtype)
        stacked = self.links.decode_blocks(round_index, block, [*sent.values()], [*sent], self.block_layout)
        return algorithm.average(stacked, self._shares(tuple(answer is not None for answer in answers)))

    def next_block(self, block: Tree, average: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """The hub's next block and what its update remembers (line 5), from the average of its clients' blocks."""
        if self._takes_numpy:
            return self.variant.hub_update.step(block, average, memory)
        with precision(self.settings.dtype):
            moved = _step(block, average, memory, update=self.variant.hub_update)
            as_arrays: tuple[Tree, Tree] = map_tree(np.asarray, moved)
            return as_arrays

    def products_part(self, round_index: int, memory: Tree) -> Arrays:
        """What the hub sends of its newest gradient with its phi, where hubs mix models; nothing elsewhere."""
        if not self.round.mixes:
            return {}
        sent = np.asarray(self.variant.products(memory, self.round.largest_product))
        return {"step_products": self.links.products_part("step_products", round_index, sent)}

    def products_sum(self, parts: Sequence[Arrays]) -> NDArray[Any]:
        """The sum of what all hubs sent of their newest gradients."""
        return self.links.products_sum([part["step_products"] for part in parts]).astype(self.settings.dtype)

    def _mean_products(self, products: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The products of the silo, from those of its clients; what was masked is added up.

        The mean is over all M samples: those that the silo lacks count as zeros.
        """
        share = int(self._held.sum()) / self.sample_index.num_samples
        if self.summed is not None:
            return np.asarray(self.summed.average(add_steps(products), self.settings.dtype)) * share
        return np.asarray(mean_products(np.stack(products), shares_of(self._held)) * share)

    def memory_of(self, part: Arrays) -> Tree:
        """A client's memory, from the arrays that it sent."""
        return like(self.carried[0], [part[name] for name in self.memory_layout])

    def carried_in(self, leaves: Arrays) -> list[Tree]:
        """The clients' memories of a checkpoint; refuses others."""
        memories = []
        for client, first in enumerate(self.carried):
            names = [f"{CARRIED}{client}.{name}" for name in named_leaves(first)]
            wrong = [name for name in names if name not in leaves]
            if wrong:
                raise IncompatibleParties(f"the checkpoint lacks '{wrong[0]}', a client's memory: start over")
            memories.append(like(first, [leaves[name] for name in names]))
        return memories

    def remembered(self, leaves: Arrays) -> Tree:
        """What the hub's update remembers, from its named arrays; refuses others."""
        wanted = named_leaves(self.memory)
        for name, leaf in wanted.items():
            if name not in leaves or leaves[name].shape != leaf.shape or leaves[name].dtype != leaf.dtype:
                raise IncompatibleParties(
                    f"the checkpoint has no '{name}' of this run: it was written with another train.hub_optimizer, or "
                    "by another version with other steps: continue with that one, or start over"
                )
        return like(self.memory, [leaves[name] for name in wanted])

    def _shares_of(self, present: tuple[bool, ...]) -> Any:
        """What part of the rows each of these clients holds."""
        return shares_of(self._held[np.array(present)]).astype(self.settings.dtype)

    @np.errstate(over="ignore", invalid="ignore")
    def scores_part(self, round_index: int, block: Tree, answers: Sequence[Arrays | None]) -> Arrays:
        """The silo's part of an evaluation, from each client's scores.

        Returns:
            ``train`` ``[M, C]`` and ``test`` ``[m, C]``, phi of all training and all held-out samples in sample order,
            as hubs send it; if clients have no answer, ``train_absent`` and ``test_absent``, 1 for their samples; and
            ``intercept`` ``[C]``, what is left of the silo's phi where it is dropped, if anything is.
        """
        part: dict[str, NDArray[Any]] = {}
        masks: dict[str, NDArray[np.uint8]] = {}
        sets: tuple[tuple[What, bool], ...] = (("train", False), ("test", True))
        for name, held_out in sets:
            places = [numbers[held_out][numbers[held_out] >= 0] for numbers in self._places]
            total = self._num_scored[name]
            # Of samples that the silo lacks, phi is zero.
            scores = np.zeros((total, self.phi_width), self.settings.dtype)
            for client, (answer, place) in enumerate(zip(answers, places, strict=True)):
                own = self._rows(answer, name, self._num_sent[client][held_out])
                scores[place] = own[self.of_samples[client][held_out]]
            part[name] = self.links.scores_part(name, round_index, scores)
            masks[f"{name}_absent"] = mask_of(total, [answer is None for answer in answers], places)
        part |= {name: mask for name, mask in masks.items() if mask.any()}
        return part if (alone := self._intercept(block)) is None else {**part, "intercept": alone}

    @cached_property
    def train_places(self) -> list[NDArray[np.int64]]:
        """Of each client: which training samples its rows are, in their order."""
        return [train[train >= 0] for train, _ in self._places]

    @cached_property
    def samples(self) -> Samples:
        """What certificates need to know of the training samples, at a hub with labels."""
        labels = self.sample_index.train_labels.astype(self.objective.label_dtype("float64"))
        return Samples.of(self.objective, labels, self._weights)

    def rows_of(self, client: int, held_out: bool) -> int:
        """How many training rows, or held-out ones, a client has."""
        return int((self._places[client][held_out] >= 0).sum())

    @np.errstate(over="ignore", invalid="ignore")
    def penalty(self, block: Tree) -> float:
        """The regulariser of the silo's block."""
        return float(self.objective.penalty(block))

    def _intercept(self, block: Tree) -> NDArray[Any] | None:
        """``[C]``: what is left of the silo's phi where it is dropped; None if nothing is."""
        dropout = self.variant.dropout
        if not dropout.leaves_intercept(self.silo):
            return None
        index = self.sample_index
        ones = ones_left(self._model, index.num_rows, index.num_samples)
        if ones is None:
            return np.zeros(self.phi_width, self.settings.dtype)
        with precision(self.settings.dtype):
            return np.asarray(dropout.alone(self.silo, block, self._model.phi, self._num_features, ones))

    def figures(
        self, scores: NDArray[Any], held_out: bool, penalty: float, absent: NDArray[np.bool_] | None = None
    ) -> tuple[float, dict[str, float | None]]:
        """The global model's loss and metrics from its scores, over the samples that are not absent."""
        sample_index, chosen = self.sample_index, slice(None) if absent is None else ~absent
        labels = sample_index.test_labels if held_out else sample_index.train_labels
        losses = self._losses(scores, labels.astype(self.objective.label_dtype(self.settings.dtype)))
        weights = sample_index.weights_at(sample_index.held_out == held_out)
        loss = float(weighted_mean(np.asarray(losses)[chosen], None if weights is None else weights[chosen])) + penalty
        scale, epsilon = sample_index.known.label_scale, self.objective.label_epsilon
        return loss, metrics(self.objective.loss, self.objective.scores(scores[chosen]), labels[chosen], scale, epsilon)

    def _losses(self, scores: Any, labels: Any) -> NDArray[Any]:
        if self.objective.is_written_out:
            with np.errstate(all="ignore"):
                return np.asarray(self.objective.losses(scores, labels))
        with precision(self.settings.dtype):
            return np.asarray(_losses(scores, labels, objective=self.objective))


@compiled("update")
def _step(block: Tree, average: Tree, memory: Tree, *, update: HubUpdate) -> tuple[Tree, Tree]:
    """The hub's next block, and what its update remembers."""
    return update.step(block, average, memory)


@compiled("silo", "knowledge", "objective")
def _received(
    own: lazy.Array, others: lazy.Array, labels: lazy.Array, *, silo: int, knowledge: Knowledge, objective: Objective
) -> lazy.Array:
    """What a hub passes on to its clients, of its own phi and the others'."""
    return knowledge.received(silo, own, others, labels, objective)


@compiled("objective")
def _losses(scores: lazy.Array, labels: lazy.Array, *, objective: Objective) -> lazy.Array:
    """The loss of every sample."""
    return objective.losses(scores, labels)
