"""The simulation: a whole federation in one process, or in a few that work as one."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block, with_heads
from tdcd.blocks.linear import is_linear
from tdcd.core import certificate
from tdcd.core.algorithm import Design
from tdcd.core.codecs.codec import Sending, encode_scores, seed_words
from tdcd.core.codecs.fixed_point import FixedPoint
from tdcd.core.execution import Execution
from tdcd.core.family.scaled import mean_products, products
from tdcd.core.losses.figures import Figures
from tdcd.core.objective import Objective, Tree
from tdcd.core.round import CertificateKind, Round, Widths, round_of
from tdcd.core.settings import Settings
from tdcd.core.shared_rows import is_one_step
from tdcd.core.variant import Variant
from tdcd.core.words import counted, there_are
from tdcd.federation.hosts import HostLabels, HostRows, is_mapped, kept_here, labels_kept_here, mapped_rows
from tdcd.federation.partition import selection
from tdcd.federation.silos import Federation, Silo, start_blocks
from tdcd.federation.weights import weighted_mean
from tdcd.simulation import evaluation
from tdcd.simulation.devices import Devices
from tdcd.simulation.engines import choose_engine
from tdcd.simulation.engines.base import ROUNDS_PER_CALL, Call, Problem, Run, State, compiled, weights_of
from tdcd.simulation.ranges import check_features, check_largest, largest_finite, start_largest
from tdcd.simulation.staging import has_wide_rows, on_host, prefetch

if TYPE_CHECKING:
    from tdcd.simulation.host_evaluation import HostScoring

ROWS_AT_ONCE = 4096
"""Evaluation goes over the samples in chunks of this many."""
SCORES_AT_ONCE = 1 << 22
"""For several runs, in chunks with this many scores in all."""
FITS_WELL = 0.5
"""Data that takes up more of the device's memory than this share stays on the host."""


class Simulation:
    """A federation in one process. Between rounds its whole state is that of its hubs: a :class:`State`.

    The functions of :mod:`tdcd.core.algorithm` run over all clients of a silo at once; rounds run in a loop inside one
    compiled program, whose trip count is an argument: any number of rounds gives the same bits as one at a time.
    """

    def __init__(
        self,
        federation: Federation,
        blocks: Sequence[Block],
        objective: Objective,
        settings: Settings,
        execution: Execution | None = None,
        variant: Variant | None = None,
    ) -> None:
        """Put the data where it stays.

        Args:
            blocks: one per silo.
            execution: on which devices and how; by default on JAX's default device.
            variant: the member of the TDCD family; by default Algorithm 1.
        """
        self._set_up((Run(federation, objective, settings),), blocks, execution, variant)

    @classmethod
    def of_runs(
        cls,
        runs: Sequence[Run],
        blocks: Sequence[Block],
        execution: Execution | None = None,
        variant: Variant | None = None,
        most_rounds: int = ROUNDS_PER_CALL,
        turns: int = 1,
    ) -> Self:
        """Several runs that differ only in seed, step size, l2 and row splits, as one simulation.

        Every array of its state, and its scores, have a first axis for the runs if there are more than one.

        Args:
            most_rounds: no more are ever run at a time.
            turns: the rounds of an engine in one communication round: of a baseline whose hubs take turns, one each.
        """
        simulation = cls.__new__(cls)
        simulation._set_up(tuple(runs), blocks, execution, variant, most_rounds)
        simulation.turns = turns
        return simulation

    def _set_up(
        self,
        runs: tuple[Run, ...],
        blocks: Sequence[Block],
        execution: Execution | None,
        variant: Variant | None,
        most_rounds: int = ROUNDS_PER_CALL,
    ) -> None:
        self.federation, self.objective, self.settings = runs[0]
        if self.settings.is_automatic:
            raise ValueError("settings.step_size = 'auto': a simulation takes numbers; tdcd.train chooses them")
        self.turns = 1
        self.variant = variant or Variant()
        self.blocks = with_heads(blocks, self.objective.combine)
        self.execution = execution or Execution()
        self.devices = Devices.first(self.execution.devices)
        self.hosts = self.devices.hosts
        if self.hosts is not None and len(runs) > 1:
            raise ValueError(f"{len(runs)} runs at once need one process: several hosts train one run at a time")
        federation, settings, objective = kept_here(self.federation, self.hosts), self.settings, self.objective
        self.federation = federation
        if self.variant.carried is not None and (self.devices.count > 1 or self.hosts is not None or len(runs) > 1):
            raise ValueError(f"{self.variant.update}: memories of clients need one run on one device")
        for clash in self.variant.clashes(len(blocks), self.objective.combine):
            raise ValueError(clash.sentence)
        if (check_room := getattr(self.variant.block_exchange, "check_room", None)) is not None:
            if self.devices.count > 1 or self.hosts is not None:
                raise ValueError("noise on clients' blocks needs one device, where every place is a client's")
            for silo in self.federation.silos:
                check_room(silo.num_clients)
        if self.variant.has_noise and len(runs) > 1:
            raise ValueError(f"{len(runs)} runs at once cannot have noise of their own: run them one by one")
        if len(blocks) != federation.num_silos:
            raise ValueError(f"{there_are(federation.num_silos, 'silo')}, but {counted(len(blocks), 'block')}")
        if len(getattr(self.variant.timing, "periods", ())) not in (0, len(blocks)):
            raise ValueError(f"{self.variant.timing} must have a period for each of the {len(blocks)} silos, or none")
        self.num_samples = federation.num_samples
        self.batch_size = settings.effective_batch_size(self.num_samples)
        federation = self._checked_labels(federation, objective)
        self.federation, self.runs = federation, (runs[0]._replace(federation=federation), *runs[1:])
        self.num_outputs = objective.num_outputs([federation.labels, federation.test_labels])
        self.phi_width = objective.phi_width(self.num_outputs)
        self._labels_dtype = objective.label_dtype(settings.dtype)
        self.round = self.round_of(self.variant)
        """The flows of its rounds."""
        self._fixed = self.round.summed_phi
        with self._context():
            self._tables = [on_host(silo.features, settings.dtype) for silo in federation.silos]
            check_features(self.round, federation.silos, self._tables)
            problem = Problem(
                self.runs,
                self.blocks,
                self.variant,
                self.round,
                self.batch_size,
                self.phi_width,
                self._tables,
                self._labels(federation),
                None,
                self.devices,
                most_rounds,
                weights_of(federation, settings.dtype),
            )
            tables = zip(federation.silos, self._tables, strict=True)
            stays = self._stays_on_device(problem)
            on_device = [self._held(silo, table) for silo, table in tables] if stays else None
            self._engine = choose_engine(problem._replace(on_device=on_device), self.execution.engine)
        self._on_device = self.devices.here(on_device) if self.hosts is None else None

    def _checked_labels(self, federation: Federation, objective: Objective) -> Federation:
        """The federation, if training can take its labels; of several hosts, each has those of its own rows."""
        everywhere = self.variant.knowledge.are_labels_everywhere
        check = partial(objective.check_labels, everywhere=everywhere)
        if self.hosts is not None and everywhere and not isinstance(federation.labels, HostLabels):
            return labels_kept_here(federation, self.hosts, check)
        if not isinstance(federation.labels, HostLabels):
            check(federation.labels)
        return federation

    def _labels(self, federation: Federation) -> Any:
        """The training labels in the type that the loss takes; in one of several hosts, of those there."""
        labels, dtype = federation.labels, self._labels_dtype
        if not isinstance(labels, HostLabels):
            return labels.astype(dtype)
        return labels if labels.dtype == dtype else mapped_rows(labels, lambda rows: rows.astype(dtype))

    def _held(self, silo: Silo, table: Any) -> Any:
        """A silo's features on the devices, where they stay: all on each, or on several hosts those of its clients."""
        if self.hosts is None:
            return self.devices.hold(table)
        from tdcd.simulation.host_tables import DeviceTable  # noqa: PLC0415 - few runs have several hosts

        return DeviceTable.put(silo, table, self.devices, self.hosts)

    def round_of(self, variant: Variant) -> Round:
        """What rounds and evaluations of a member of the family send here."""
        statistic, weighs = self.objective.statistic_width(self.num_outputs), self.federation.weights is not None
        shared = tuple(index for index, silo in enumerate(self.federation.silos) if silo.shared is not None)
        one_step = is_one_step(self.settings, self.objective.combine, are_linear=self._are_linear)
        kind, mixes = self._certificate_kind(variant), one_step and variant.mixes(self.settings)
        widths = Widths(self.phi_width, statistic, weighs, kind, shared, one_step, mixes)
        return round_of(variant, self.federation.num_silos, widths)

    @property
    def certificate_kind(self) -> CertificateKind:
        """What certificates of its runs are of; nothing where several hosts share the rows."""
        return self._certificate_kind(self.variant)

    def _certificate_kind(self, variant: Variant) -> CertificateKind:
        if self.hosts is not None:
            return ""
        num_scores = self.num_samples * self.phi_width
        return certificate.kind_of(variant, self.objective.combine, self._are_linear, num_scores)

    @property
    def _are_linear(self) -> bool:
        return all(is_linear(block) for block in self.blocks)

    @property
    def tables(self) -> list[Any]:
        """Every silo's training rows, as they lie on the host."""
        return self._tables

    @property
    def engine(self) -> str:
        """The name of the engine that runs the rounds."""
        return self._engine.name

    def _stays_on_device(self, problem: Problem) -> bool:
        """Whether the data goes to the device once, rather than the rows of each call."""
        if self.execution.keep != "auto":
            return self.execution.keep == "device"
        if jax.default_backend() == "cpu":
            if self.hosts is not None or any(is_mapped(table) for table in self._tables):
                return False
            # There the host gathers narrow rows faster; but the clients engine gathers them again.
            by_host = self.execution.engine in ("auto", "grouped") and problem.is_plain
            return not by_host or (self.devices.count == 1 and has_wide_rows(self._tables))
        memory: int = jax.local_devices()[0].memory_stats()["bytes_limit"]
        held = sum(table.nbytes for table in self._tables)
        # Processes whose programs differ would wait for each other.
        largest = held if self.hosts is None else max(self.hosts.gather(lambda: held))
        return bool(largest < FITS_WELL * memory)

    def _context(self) -> Any:
        """The precision in which everything here is compiled and run."""
        context = ExitStack()
        context.enter_context(jax.enable_x64(self.settings.dtype == "float64"))
        context.enter_context(self.execution.matrix_products(self.settings.dtype))
        return context

    def init(self) -> State:
        """The state before round 0, a function of the seed."""
        by_seed = {run.settings.seed: run.settings for run in self.runs}
        started = {
            seed: start_blocks(self.federation, self.blocks, self.num_outputs, settings, self.objective.combine)
            for seed, settings in by_seed.items()
        }
        return self.join([self.state_of(started[run.settings.seed]) for run in self.runs])

    def state_of(self, blocks: Sequence[Tree]) -> State:
        """The state of one run before round 0, with these hub blocks."""
        depth = self.variant.timing.depth
        with self._context():
            updates = [
                self.variant.first_state(block, partial(self._products_of, silo), self.objective)
                for silo, block in enumerate(blocks)
            ]
            # Before round 0 there was no other block.
            past = [jax.tree.map(lambda leaf: jnp.stack([leaf] * depth), b) if depth else () for b in blocks]
        slow = [self.variant.timing.period(silo) > 1 for silo in range(len(blocks))]
        pending = [moved if is_slow else () for is_slow, *moved in zip(slow, blocks, updates, strict=True)]
        largest = start_largest(self.round, self.settings.dtype)
        return State(
            list(blocks), updates, past, [tuple(moved) for moved in pending], largest, self._first_memories(blocks)
        )

    def _products_of(self, silo: int) -> NDArray[Any]:
        return self._products[silo]

    @cached_property
    def _products(self) -> list[NDArray[Any]]:
        """Per silo, the products of its features, from those of its clients as they send them.

        The mean is over all M samples: those that the silo lacks count as zeros.
        """
        summed, dtype, samples = self.round.summed_blocks, self.settings.dtype, self.num_samples
        linear = [block for block in self.blocks if is_linear(block)]
        return [
            mean_products(np.stack(self._client_products(silo, table, block.design)).astype(dtype), silo.shares, summed)
            * (silo.num_rows / samples)
            for silo, table, block in zip(self.federation.silos, self._tables, linear, strict=True)
        ]

    def _spread(self, silo: Silo, table: Any, rows: NDArray[Any] | range) -> Any:
        """A client's features as they are in training: with marks of silos that are dropped."""
        features, marks, rows = table[selection(rows)], silo.marks, np.asarray(rows)
        if marks is None or not marks.silos:
            return features
        from tdcd.federation.missing_rows import presence_of  # noqa: PLC0415 - few runs have such samples

        there = presence_of(self.federation)[[*marks.silos]][:, rows].T
        kept = self.variant.dropout.drawn_once(marks.silos, rows, self.num_samples)
        return marks.of_round(features, ~(there & kept))

    def _client_products(self, silo: Silo, table: Any, design: Design) -> list[Any]:
        """The products of every client of a silo; each of several processes computes those of its own clients."""
        if self.hosts is None:
            return [products(self._spread(silo, table, rows), design) for rows in silo.rows]
        has = self.hosts.has(silo.num_clients)

        def here() -> list[Any]:
            return [
                products(table[selection(rows)], design).tolist() if own else None
                for rows, own in zip(silo.rows, has, strict=True)
            ]

        by_process = self.hosts.gather(here)
        return [next(own for own in client if own is not None) for client in zip(*by_process, strict=True)]

    def _first_memories(self, blocks: Sequence[Tree]) -> Any:
        """Per silo, its clients' memories before round 0; ``()`` if their update carries none."""
        with self._context():
            first = [self.variant.first_memory(block) for block in blocks]
        if not jax.tree.leaves(first):
            return ()
        counts = [silo.num_clients for silo in self.federation.silos]
        return [
            jax.tree.map(lambda leaf, count=count: np.stack([np.asarray(leaf)] * count), memory)
            for memory, count in zip(first, counts, strict=True)
        ]

    def join(self, states: Sequence[State]) -> State:
        """The state of all runs, from one of each."""
        if len(states) == 1:
            return states[0]
        joined: State = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
        return joined

    def part(self, state: State) -> list[State]:
        """The state of each run, from that of all."""
        if len(self.runs) == 1:
            return [state]
        leaves, tree = jax.tree.flatten(state)
        on_host = [np.asarray(leaf) for leaf in leaves]
        return [jax.tree.unflatten(tree, [leaf[run] for leaf in on_host]) for run in range(len(self.runs))]

    def advance(self, state: State, first_round: int, num_rounds: int) -> State:
        """The state ``num_rounds`` rounds later. Returns before the device has finished."""
        devices = self.devices
        first_round, num_rounds = first_round * self.turns, num_rounds * self.turns
        with self._context():
            state = devices.everywhere(state)
        calls = self._calls(first_round, first_round + num_rounds)
        # A thread for a single call would only cost time.
        for call in calls if num_rounds <= self.rounds_per_call else prefetch(calls):
            with self._context():
                state = compiled(self._engine.program, self.rounds_per_call)(state, *call.arguments)
            call.sent(state)
        here: State = devices.here(state)
        return here

    def _calls(self, first_round: int, last_round: int) -> Iterator[Call]:
        """What the engine is to do for these rounds."""
        while first_round < last_round:
            with self._context():
                call = self._engine.prepare(range(first_round, min(last_round, first_round + self.rounds_per_call)))
            first_round += call.rounds
            yield call

    @property
    def rounds_per_call(self) -> int:
        """The most rounds that one compiled call does."""
        return self._engine.rounds_per_call

    @property
    def has_noisy_scores(self) -> bool:
        """Whether the scores of an evaluation have noise."""
        return self.variant.is_private

    def scores(
        self, hub_blocks: list[Tree], features: Sequence[Any] | None = None, evaluated_in: int | None = None
    ) -> NDArray[Any]:
        """The sum of all silos' phi ``[rows, W]``, for the training samples or for others; in chunks of rows.

        With a head, :meth:`Objective.scores` makes scores of it.

        Args:
            features: each silo's columns of the other samples.
            evaluated_in: the round of the evaluation that needs them. Scores that hubs send each other with noise
                have the noise of that round; without a round, they have none.
        """
        tables = self._tables if features is None else features
        if evaluated_in is not None and self.has_noisy_scores:
            return self._noisy_scores(hub_blocks, tables, evaluated_in, "train" if features is None else "test")
        resident = self._on_device if features is None else None
        scores = self._scores(hub_blocks, tables, resident, self.blocks, self._fixed)
        if self._fixed is not None and not np.isfinite(scores).all():
            self._explain(hub_blocks, tables)
        return scores

    def scores_of_run(self, hub_blocks: list[Tree]) -> NDArray[Any]:
        """:meth:`scores` of the training samples, by the blocks of one run of several."""
        return self._scores(hub_blocks, self._tables, None, self.blocks, self._fixed, runs=1)

    def _noisy_scores(
        self, hub_blocks: list[Tree], tables: Sequence[Any], round_index: int, split: str
    ) -> NDArray[Any]:
        """The sum of what every hub sends in an evaluation."""
        seed, parts = seed_words(self.settings.seed), []
        for silo in range(len(tables)):
            only = slice(silo, silo + 1)
            exact = self._scores(hub_blocks[only], tables[only], None, self.blocks[only], None)
            with self._context():
                sending = Sending(seed, np.int32(round_index), silo)
                parts.append(np.asarray(encode_scores(self.variant.exchange, jnp.asarray(exact), sending, split)))
        return np.asarray(sum(parts[1:], start=parts[0]))

    def _explain(self, hub_blocks: list[Tree], tables: Sequence[Any]) -> None:
        """Say whose phi fixed point has no room for, if that is why scores are not finite."""
        each = [slice(silo, silo + 1) for silo in range(len(tables))]
        alone = [self._scores(hub_blocks[only], tables[only], None, self.blocks[only], None) for only in each]
        check_largest(self.round, self.federation.silos, [[*map(largest_finite, alone)], [0.0] * len(alone)])

    def check_range(self, state: State) -> None:
        """Stop a run in fixed point whose phi was beyond the range."""
        if len(state.largest):
            check_largest(self.round, self.federation.silos, state.largest)

    def _scores(
        self,
        hub_blocks: list[Tree],
        tables: Sequence[Any],
        resident: Sequence[Any] | None,
        blocks: tuple[Block, ...],
        fixed: FixedPoint | None,
        runs: int | None = None,
    ) -> NDArray[Any]:
        """The sum of these silos' phi, from tables that may be ``resident`` on the device; by default, of all runs."""
        if self.hosts is not None and isinstance(tables[0], HostRows):
            from tdcd.simulation.host_tables import phi_of_all  # noqa: PLC0415 - few runs have several hosts

            with self._context():
                phis = [phi_of_all(*silo, self.hosts) for silo in zip(hub_blocks, tables, blocks, strict=True)]
                return np.asarray(sum(phis[1:], start=phis[0]) if fixed is None else fixed.sum(phis))
        is_batch, total = (runs or len(self.runs)) > 1, len(tables[0])
        with self._context():
            most = SCORES_AT_ONCE // (len(self.runs) * self.phi_width) if is_batch else ROWS_AT_ONCE
            rows, chunks = min(max(1, most), total), []
            for start in range(0, total, rows):
                # The last chunk starts early enough to be whole, and skips what the one before it had.
                begin = min(start, total - rows)
                held, first = resident, begin
                if held is None:
                    held, first = [table[begin : begin + rows] for table in tables], 0
                chunk = evaluation.scores(
                    hub_blocks, held, first, rows=rows, blocks=blocks, is_batch=is_batch, fixed=fixed
                )
                chunks.append(np.asarray(chunk)[..., start - begin :, :])
        return np.concatenate(chunks, axis=-2)

    def measured(self, hub_blocks: list[Tree], split: str) -> tuple[float, Figures]:
        """The objective and the metrics over the training samples or the held-out ones, by several hosts together.

        Each scores some of them, and they add up.
        """
        # Few runs have several hosts.
        from tdcd.simulation.host_evaluation import measured  # noqa: PLC0415
        from tdcd.simulation.host_tables import phi_of_rows  # noqa: PLC0415

        scoring, federation, is_train = self._scoring[split], self.federation, split == "train"

        def phi_of(silo: int, numbers: NDArray[Any]) -> NDArray[Any]:
            table = scoring.tables[silo]
            return phi_of_rows(hub_blocks[silo], table, self.blocks[silo], table.where(numbers))

        with self._context():
            evaluated = measured(
                scoring,
                phi_of,
                federation.labels if is_train else federation.test_labels,
                federation.weights if is_train else federation.test_weights,
                self.objective,
                label_scale=federation.label_scale,
                label_dtype=self._labels_dtype,
                fixed=self._fixed,
            )
            (penalty,) = evaluation.penalties(hub_blocks, [self.objective])
        if self._fixed is not None and not evaluated.are_finite:
            self._explain(hub_blocks, scoring.tables)
        return evaluated.loss + penalty, evaluated.figures

    @cached_property
    def _scoring(self) -> "dict[str, HostScoring]":
        from tdcd.simulation.host_evaluation import HostScoring  # noqa: PLC0415 - few runs have several hosts

        assert self.hosts is not None
        silos = self.federation.silos
        scoring = {"train": HostScoring(self._tables, [silo.rows for silo in silos], self.hosts)}
        if self.federation.test_labels is not None:
            tables = [silo.test_features for silo in silos]
            scoring["test"] = HostScoring(tables, [silo.test_rows for silo in silos], self.hosts)
        return scoring

    def losses(self, hub_blocks: list[Tree], scores: Any, labels: Any, weights: Any = None) -> list[float]:
        """The objective of every run's global model over samples with these ``scores``; summed in float64."""
        with self._context():
            losses = evaluation.losses(scores, np.asarray(labels, self._labels_dtype), objective=self.objective)
            penalties = evaluation.penalties(hub_blocks, [run.objective for run in self.runs])
        means = weighted_mean(np.asarray(losses), weights).reshape(-1)
        return [float(mean) + penalty for mean, penalty in zip(means, penalties, strict=True)]

    def loss(self, hub_blocks: list[Tree], scores: NDArray[Any], labels: NDArray[Any]) -> float:
        """:meth:`losses` of the only run."""
        return self.losses(hub_blocks, scores, labels)[0]
