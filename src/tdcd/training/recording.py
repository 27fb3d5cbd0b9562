"""A run between its rounds: where it is, what was measured, and what of it is on disk."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.config.errors import ConfigError
from tdcd.config.resolve import Plan
from tdcd.core import certificate
from tdcd.core.certificate import Certificate
from tdcd.core.codecs.codec import epsilon_of_blocks, epsilon_until
from tdcd.core.ledger import Ledger, by_link, is_evaluated
from tdcd.core.objective import Tree
from tdcd.core.timing import followed
from tdcd.core.words import counted
from tdcd.federation.hosts import HostLabels, Hosts, is_mapped
from tdcd.federation.silos import Federation
from tdcd.records.files import NO_LINES, digest_of, marks_of
from tdcd.records.history import Record
from tdcd.records.manifest import Manifest, client_digests, held_out_digests, keyed, schedule_of
from tdcd.records.outcome import NO_CONTROL, NO_COURSES, Best, Courses, verdict
from tdcd.records.run_folder import RunFolder, federation_facts
from tdcd.simulation.devices import of_first, whole
from tdcd.simulation.engines.base import State
from tdcd.tables.preparation import encoding_of, save_prepared

if TYPE_CHECKING:
    from tdcd.prediction.predictions import Named

SECONDS_PER_CALL = 0.3
"""How long the engine may run before progress shows and a request to stop is noticed."""

FREE_FACTS = ("federation.name", "federation.labels", "federation.engine")
"""What the folder says of a federation that may differ when a run is resumed."""

RunStatus = Literal["finished", "interrupted", "diverged"]


class Evaluation(NamedTuple):
    """What an evaluation of the global model gives."""

    train_loss: float
    test_loss: float | None
    metrics: dict[str, dict[str, float | None]]
    """``train`` and ``test`` figures by name."""


Certify = Callable[[State], Certificate]
"""The certificate of the model of a state."""


class CallSizer:
    """How many rounds to ask of the engine at a time, learnt from the calls so far."""

    def __init__(self) -> None:
        self._rounds = 1.0

    def rounds(self, left: int) -> int:
        """How many of the rounds that are left to do next."""
        return min(left, max(1, int(self._rounds)))

    def took(self, rounds: int, seconds: float) -> None:
        """Learn what a call took."""
        self._rounds = min(2 * max(self._rounds, rounds), rounds * SECONDS_PER_CALL / max(seconds, 1e-9))


class TrainingRun:
    """One run: the state after its last round, its history, and its run folder if it has one."""

    def __init__(
        self,
        plan: Plan,
        state: State,
        ledger: Ledger,
        engine: str,
        hosts: Hosts | None = None,
    ) -> None:
        """Before round 0.

        Args:
            ledger: what its rounds send.
            engine: the name of the one that runs the rounds.
            hosts: the processes that run it together, if there are several.
        """
        self._num_certified = 0
        self._hosts, self._clients = hosts, dict[str, str]()
        self.plan, self.state, self.stopping = plan, state, plan.stopping
        self.round, self.seconds = 0, 0.0
        self.history: list[Record] = []
        self.folder: RunFolder | None = None
        self.names = [silo.name for silo in plan.federation.silos]
        self._ledger, self._engine = ledger, engine
        self._coverage = certificate.Coverage(plan.variant, plan.settings, plan.federation.num_samples)
        self._mark, self._data = NO_LINES, ""
        self._finite = (state, 0)
        self._best: Best | None = None
        self._best_blocks = state.blocks
        self._courses = NO_COURSES
        self._control, self._held = NO_CONTROL, state
        """Where steered steps stand, and the state of the line that they continue from."""

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being a finite number, which ends it."""
        return bool(self.history) and self.history[-1].diverged

    @property
    def is_over(self) -> bool:
        """Whether it goes no further, whatever rounds are left."""
        return self.diverged or self.stopping.is_spent(self._best, self._control)

    @property
    def model(self) -> tuple[list[Tree], int]:
        """The hub blocks that stay, and the round that they are of."""
        if self.stopping.keep == "best" and self._best is not None:
            return self._best_blocks, self._best.round
        kept = self.stopping.kept_round(self._best, self.round, self._control)
        return (self.state.blocks, self.round) if kept == self.round else (self._held.blocks, kept)

    @property
    def verdict(self) -> str:
        """Why the model that stays is not to be trusted; nothing if training made it better."""
        return verdict(self.history, self.stopping)

    @property
    def in_words(self) -> str:
        """Why it ended early, and which model stays, if that is not as usual."""
        return self.stopping.in_words(self._best, self.round, self._control)

    @property
    def converged(self) -> bool | None:
        """Whether the training loss no longer changes; None if the run does not look at it, or patience ended it.

        Early stopping is there to end a run before it has converged.
        """
        if self.stopping.steering is None:
            return None
        has_converged = self.stopping.has_converged(self._control)
        ended_by_patience = self.is_over and not has_converged and not self.diverged
        return None if ended_by_patience else has_converged

    def attach(self, path: Path, *, resume: bool, by: str = "simulation") -> None:
        """Write to ``path`` from now on; to resume, take up what is there.

        Of several processes the first one does so, and all call this.

        Args:
            by: who runs it, for the manifest.
        """
        federation = self.plan.federation
        self._clients = client_digests(federation, self._hosts)
        held_out, labels = held_out_digests(federation, self._hosts), federation.labels
        if self._hosts is not None and isinstance(labels, HostLabels) and not is_mapped(labels):
            labels = whole(labels, labels.copied().rows, self._hosts)
        self._data = _data_digest(federation, labels, self._clients, held_out)

        def opened() -> list[str]:
            self._open(path, resume, by)
            return [record.to_json() for record in self.history]

        lines = opened() if self._hosts is None else self._hosts.broadcast(opened)
        if self._hosts is not None and resume:
            self._follow([Record.from_json(line) for line in lines], self._hosts)
        if self.folder is not None:
            save_prepared(path, federation, self.plan.objective)

    def _follow(self, history: list[Record], hosts: Hosts) -> None:
        """In several processes, take over what the first one resumes."""
        self.state, self._best_blocks, at = of_first((self.state, self._best_blocks, np.int64(self.round)), hosts)
        self.round, self.history, self._best, self._courses = int(at), history, Best.of(history), Courses.of(history)
        self._finite = (self.state, self.round)

    def _open(self, path: Path, resume: bool, by: str) -> None:
        facts = federation_facts(self.plan.federation, count_parameters(self.state.blocks), self._engine)
        if not resume:
            self.folder = RunFolder.create(path, self.plan.description, facts)
            self._begin_manifest(self.folder, by)
            return
        self.folder = folder = RunFolder.open(path)
        settings_before, before = folder.checked_config(), _known_facts(folder)
        # Facts about the same rows can only differ by damage, and are written again.
        same_rows = folder.data_digest() == self._data
        settings = _agreed(folder, settings_before, self.plan.description, facts, {} if same_rows else before)
        # The folder's settings name the loss that was decided from the labels: only the facts still say so.
        facts["labels"] = before.get("labels", facts["labels"])
        self.state, known = self._saved(folder)
        if known["data"] and known["data"] != self._data:
            raise ValueError(f"the data of {path} has changed since it was begun: restore it, or start the run again")
        self.history = folder.records_before(self.round, self.plan.config.evaluate.every, known["history"])
        self._take_best(known["round"], path)
        # That of a run with fewer rounds had a certificate since it was the last one.
        ready = self.stopping.ready(self.history)
        certified = [
            (line.round in ready or self._is_certified(line.round))
            and not line.diverged
            and self._coverage.is_whole(line.round)
            for line in self.history
        ]
        self._num_certified = sum(certified)
        if self.history and not self.is_over and not certified[-1]:
            self.history[-1] = self._with_evaluations(replace(self.history[-1], gap=None, gradient_norm=None))
        self.seconds = self.history[-1].seconds if self.history else 0.0
        self._finite = (self.state, self.round)
        self._mark = marks_of(record.without_seconds() for record in self.history)[-1]
        if settings != settings_before:
            folder.write_config(settings)
        folder.write_facts(facts)
        if self._mark != known["history"]:
            # Before the lines go that the next ones take the place of: a crash leaves at least what is marked.
            self.checkpoint()
        folder.rewrite_history(self.history)
        self._begin_manifest(folder, by)

    def _begin_manifest(self, folder: RunFolder, by: str) -> None:
        manifest = Manifest(folder)
        manifest.begin(by)
        data = keyed(manifest.key(), self._clients)
        manifest.note(schedule_of(self.plan.settings, self.plan.federation.num_samples), data)

    def _saved(self, folder: RunFolder) -> tuple[State, dict[str, Any]]:
        """What :meth:`checkpoint` wrote."""
        names, memory = self.names, self._memory
        kept = [index for index, tree in enumerate(memory) if jax.tree.leaves(tree)]
        # Next to the best blocks are those of the last round.
        last = [f"{name}.last" for name in names if self._keeps_apart]
        files = [*names, *last, *(f"{names[index]}.memory" for index in kept)]
        blocks = self.state.blocks * (2 if last else 1)
        trees, known = folder.load_checkpoint(files, [*blocks, *(memory[index] for index in kept)])
        for index, tree in zip(kept, trees[len(blocks) :], strict=True):
            memory[index] = tree
        updates, past, pending, carried, held = zip(*memory, strict=True)
        self._best_blocks, self.round = trees[: len(names)], known.get("last", known["round"])
        now = trees[len(last) : len(last) + len(names)]
        self._held = self._held._replace(blocks=[*held])
        state = self.state._replace(blocks=now, updates=[*updates], past=[*past], pending=[*pending])
        return state._replace(carried=[*carried] if state.carried else ()), known

    def _take_best(self, kept: int, path: Path) -> None:
        """Find the best line again; ``kept`` is the round of the blocks that were saved as the best."""
        self._best, self._courses = Best.of(self.history), Courses.of(self.history)
        self._control = self.stopping.control_of(self.history)
        is_other = self._best is None or self._best.round != kept
        # Else the last round is evaluated again at once.
        if self.stopping.keep == "best" and is_other and self.round < self.stopping.rounds:
            raise ConfigError(
                [
                    f"train.rounds = {self.stopping.rounds}: evaluate.keep = 'best' kept the model of round {kept}, "
                    "and a run of so many rounds does not evaluate that one; start a new run"
                ],
                f"resuming {path}",
            )

    @property
    def _keeps_apart(self) -> bool:
        """Whether the model that stays may be of another round than the last: then both are saved."""
        return self.stopping.keep == "best" or self.stopping.steering is not None

    @property
    def _memory(self) -> list[Tree]:
        """What each hub remembers besides its block."""
        state, nothing = self.state, [()] * len(self.names)
        held = nothing if self.stopping.steering is None else self._held.blocks
        return list(zip(state.updates, state.past, state.pending, state.carried or nothing, held, strict=True))

    @property
    def is_due(self) -> bool:
        """Whether this round is to be evaluated, and is not yet."""
        due = is_evaluated(self.round, self.plan.config.evaluate.every, self.stopping.rounds)
        return due and (not self.history or self.history[-1].round < self.round)

    def advanced(self, rounds: int, seconds: float) -> None:
        """Count so many more rounds; :attr:`state` follows when it is needed."""
        self.round += rounds
        self.seconds += seconds

    def _is_certified(self, round_index: int) -> bool:
        """Whether an evaluated round gets a certificate, however the run goes."""
        least = certificate.spacing(self.plan.settings, self.plan.federation.num_samples)
        return certificate.is_due(round_index, self.plan.config.evaluate.every, least, self.stopping.rounds)

    def _certified(self, record: Record, certify: Certify) -> Record:
        """The line with its gap or, where there can be none, the norm of the gradient."""
        before = [line.train_loss - line.gap for line in self.history if line.gap is not None]
        return record.certified(certify(self.state), before)

    def _with_evaluations(self, record: Record) -> Record:
        """The line with what evaluations and certificates have sent so far."""
        every, rounds = self.plan.config.evaluate.every, self.stopping.rounds
        sent = self._ledger.evaluations(record.round, every, rounds, self._num_certified)
        return replace(record, evaluation_bytes=by_link(sent, "bytes"), evaluation_messages=by_link(sent, "messages"))

    def add(self, figures: Evaluation, certify: Certify | None = None) -> Record:
        """Add a record of the global model as it is; without ``certify``, never with a certificate."""
        if any(map(self.plan.variant.is_lost, self.state.updates)):
            test_loss = None if figures.test_loss is None else math.nan
            figures = figures._replace(train_loss=math.nan, test_loss=test_loss)
        record = Record(
            round=self.round,
            iteration=self.round * self.plan.settings.local_steps,
            train_loss=figures.train_loss,
            test_loss=figures.test_loss,
            metrics=figures.metrics,
            bytes=self._ledger.traffic(self.round, "bytes"),
            messages=self._ledger.traffic(self.round, "messages"),
            seconds=round(self.seconds, 6),
            epsilon=self._spent(self.round),
            block_epsilon=self._spent_of_blocks(self.round),
        )
        if self.stopping.steering is not None:
            self._control, record = self.stopping.steering.judge(self._control, record)
            if self._control.round == self.round:
                self._held = self.state
        if math.isfinite(record.train_loss):
            self._finite = (self.state, self.round)
            self._best = Best.after(self._best, record)
            if self._best.round == record.round:
                self._best_blocks = self.state.blocks
            is_due = self._is_certified(self.round) or self.stopping.is_spent(self._best, self._control)
            if certify is not None and is_due and self._coverage.is_whole(self.round):
                self._num_certified += 1
                record = self._certified(record, certify)
        self._control = self.stopping.proven(self._control, record)
        record = self._with_evaluations(record)
        self._courses, record = self._courses.after(record, self._best)
        self.history.append(record)
        if self.folder is not None:
            self._mark = self._mark.after(record.without_seconds())
            self.folder.append(record)
        return record

    def _spent(self, round_index: int) -> float | None:
        """What real hubs would have spent of a sample's phi when they write the line of a round."""
        plan = self.plan
        timing, every = followed(plan.variant.timing, len(self.names)), plan.config.evaluate.every
        return epsilon_until(plan.variant.exchange, round_index, plan.settings, timing, every, self.stopping.rounds)

    def _spent_of_blocks(self, round_index: int) -> float | None:
        """The same of a client's changes of its block."""
        plan = self.plan
        timing = followed(plan.variant.timing, len(self.names))
        return epsilon_of_blocks(plan.variant.block_exchange, round_index, timing, self.stopping.rounds)

    @property
    def steered_in(self) -> int | None:
        """The round in which the next decision about the steps takes effect; None if none is open."""
        steering, control = self.stopping.steering, self._control
        if steering is None or not control.is_changed or self.round >= control.counted + steering.delay:
            return None
        return control.counted + steering.delay

    def steer(self) -> State:
        """The state with the last decision about the steps, in the round in which it takes effect."""
        control, variant = self._control, self.plan.variant
        assert self.stopping.steering is not None
        rounds, period = self.stopping.steering.wait, variant.timing.period
        waits = [rounds // period(silo) if control.is_back else None for silo in range(len(self.names))]
        each = zip(self.state.updates, waits, strict=True)
        updates = [variant.with_factor(own, control.factor, wait=wait) for own, wait in each]
        blocks = self._held.blocks if control.is_back else self.state.blocks
        self.state = self.state._replace(blocks=blocks, updates=updates)
        return self.state

    def checkpoint(self) -> None:
        """Save the state."""
        if self.folder is not None:
            # What a power cut leaves of the history must be at least what the blocks have a mark of.
            self.folder.sync_history()
            blocks, kept = self.model
            last = (self.state.blocks, self.round) if self._keeps_apart else None
            self.folder.save_blocks(self.names, blocks, kept, self._mark, self._data, self._memory, last)

    def close(self, status: RunStatus) -> None:
        """End the run: the last finite model is the one that stays."""
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.state.blocks))
        if status == "diverged" or not finite:
            self.state, self.round = self._finite
        self.checkpoint()

    def conclude(self, scores: NDArray[Any] | None, named: "Named | None" = None) -> None:
        """Write what the model that stays says of the held-out samples, and what it reaches with every subset of silos.

        Of several processes the first one does so, and all call this.

        Args:
            scores: ``[m, C]``, the silos' sums for the held-out samples; None if there are none.
            named: what those samples are called; by default as in the tables that they are from, or by number.
        """
        # Only the end of a run predicts.
        from tdcd.prediction.predictions import write_held_out  # noqa: PLC0415
        from tdcd.prediction.subsets import temperature_in  # noqa: PLC0415
        from tdcd.training.subsets import Trained, write_subsets  # noqa: PLC0415

        plan, (hub_blocks, _) = self.plan, self.model
        subsets: dict[str, Any] = {}
        if not self.diverged:
            trained = Trained(plan.federation, plan.models, plan.objective, plan.variant, self._hosts)
            subsets = write_subsets(self.folder, trained, hub_blocks)
        if scores is not None and self.folder is not None:
            called = named or _named_in(plan) or _numbered(plan)
            form: dict[str, Any] = {"randomized": plan.objective.label_epsilon is not None}
            form["temperature"] = temperature_in(subsets)
            write_held_out(self.folder.path, called, plan.objective.scores(scores), plan.objective.loss, **form)
        if self.folder is not None:
            Manifest(self.folder).seal()


def _known_facts(folder: RunFolder) -> dict[str, Any]:
    """What the folder says of the federation; nothing if that is lost: it follows from the rest."""
    try:
        return folder.facts()
    except (OSError, ValueError):
        return {}


def _agreed(
    folder: RunFolder,
    recorded: Mapping[str, Any],
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """The folder's settings, ``recorded``, with as many rounds as ``config`` asks for; all else would be another run.

    Args:
        facts: of the federation; ``before`` are those of the folder.
    """
    from tdcd.training.description import differences  # noqa: PLC0415 - only a run that continues is compared

    problems = differences(config, recorded)
    problems += differences({"federation": facts}, {"federation": before}, FREE_FACTS)
    rounds, done = config.get("train", {}).get("rounds"), folder.history()[-1].round
    if rounds is not None and rounds < done:
        problems.append(f"train.rounds = {rounds}: {folder.path} has {counted(done, 'round')} already")
    schedule, before_rounds = (recorded.get("train", {}).get(key) for key in ("schedule", "rounds"))
    if schedule not in (None, "constant") and rounds not in (None, before_rounds):
        problems.append(
            f"train.rounds = {rounds}: train.schedule = {schedule!r} lets the step size end with the run's "
            f"{counted(before_rounds, 'round')}; start a new run"
        )
    for key in ("epsilon", "block_epsilon"):
        epsilon = recorded.get("exchange", {}).get(key)
        if epsilon is not None and rounds not in (None, before_rounds):
            problems.append(
                f"train.rounds = {rounds}: the noise of exchange.{key} = {epsilon:g} was made for the run's "
                f"{counted(before_rounds, 'round')}; start a new run"
            )
    if problems:
        raise ConfigError(problems, f"resuming {folder.path}")
    return {**recorded} if rounds is None else {**recorded, "train": {**recorded.get("train", {}), "rounds": rounds}}


def _data_digest(federation: Federation, labels: Any, clients: Mapping[str, str], held_out: Mapping[str, str]) -> str:
    """A digest of all rows, from those of each client, and who holds them; the same in one process and in several.

    Labels of a mapped file are in those of the clients alone: no host has to read them all.
    """
    arrays: dict[str, Any] = {"test": federation.test_labels}
    if not is_mapped(labels):
        arrays["labels"] = labels
    arrays |= {"weights": federation.weights, "test weights": federation.test_weights}
    known = {name: array for name, array in arrays.items() if array is not None}
    return digest_of({"clients": clients, "held out": held_out}, known)


def count_parameters(hub_blocks: Sequence[Tree]) -> list[int]:
    """The numbers in each silo's block."""
    return [sum(leaf.size for leaf in jax.tree.leaves(block)) for block in hub_blocks]


def _named_in(plan: Plan) -> "Named | None":
    """What the held-out samples of a plan from files are called; None if they have numbers."""
    assembled, federation = plan.assembled, plan.federation
    if assembled is None or plan.handed_over is not None:
        return None
    from tdcd.prediction.predictions import Named  # noqa: PLC0415 - as in conclude

    # The only silo of those who hold all columns is none of the file's.
    named = (silo.id for silo in plan.config.silos if silo.name == federation.silos[0].name)
    id_column = next(named, plan.config.silos[0].id)
    return Named(id_column, assembled.test_ids, assembled.test_labels, assembled.label_encoding)


def _numbered(plan: Plan) -> "Named":
    """What held-out samples without ids are called."""
    from tdcd.prediction.predictions import Named  # noqa: PLC0415 - as in conclude

    federation, objective = plan.federation, plan.objective
    assert federation.test_labels is not None
    outputs = objective.num_outputs([federation.labels, federation.test_labels])
    ids = [str(federation.num_samples + place) for place in range(len(federation.test_labels))]
    return Named.by_number(ids, federation.test_labels, encoding_of(federation, objective), outputs)
