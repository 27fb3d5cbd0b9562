"""Training: the round loop, evaluation, history and checkpoints."""

import math
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

from tdcd.blocks.base import Block
from tdcd.config import Config, ModelSection
from tdcd.config.baselines import labelled_silos, rewrite
from tdcd.config.losses import named_loss
from tdcd.config.resolve import Plan, block_named
from tdcd.config.schema import NAMED
from tdcd.core.choices import KeepModel
from tdcd.core.codecs.codec import bytes_up, tree_bytes
from tdcd.core.execution import Execution
from tdcd.core.ledger import Centre, Colocation, Ledger, Moved, Sizes
from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.federation.silos import Federation
from tdcd.prediction.predictions import Named
from tdcd.records.history import Record
from tdcd.records.manifest import Manifest
from tdcd.records.metrics import metrics
from tdcd.records.run_folder import RunFolder
from tdcd.simulation.devices import agreed
from tdcd.simulation.engines.base import ROUNDS_PER_CALL, Run
from tdcd.simulation.simulate import Simulation
from tdcd.tables.preparation import say_what_labels_are
from tdcd.training.description import describe
from tdcd.training.recording import CallSizer, Figures, Status, TrainingRun, count_parameters
from tdcd.training.result import Result
from tdcd.training.terms import on_terms

SECONDS_PER_CHECKPOINT = 5.0
CHECKPOINT_FRACTION = 0.1
"""Of the time, at most so much goes into checkpoints."""


class Progress(NamedTuple):
    """News from a run."""

    round: int
    rounds: int
    """Rounds in all."""
    record: Record | None
    """The global model's figures, when this round was evaluated."""


Observer = Callable[[Progress], None]


def train(
    federation: Federation,
    blocks: Block | str | Sequence[Block | str],
    objective: Objective | str,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    rounds: int,
    evaluate_every: int = 5,
    patience: int | None = None,
    keep: KeepModel = "last",
    colocation: Colocation = "none",
    moved: Sequence[Moved] = (),
    out: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    resume: bool = False,
    observe: Observer = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    execution: Execution | None = None,
    variant: Variant | None = None,
    named: Named | None = None,
    quiet: bool = False,
) -> Result:
    """Train a federation in one process.

    Ctrl-C ends it after the current rounds: the result has the model so far and ``status = "interrupted"``. A second
    Ctrl-C raises KeyboardInterrupt.

    Args:
        blocks: one for all silos, or one each; ``"linear"``, ``"mlp"`` and ``"cnn"`` are those of a configuration.
        objective: or the name of a loss, as in a configuration.
        settings: or a mapping with some of their fields; the defaults if there are none.
        rounds: communication rounds in all, those before a resume counted in.
        evaluate_every: rounds between two evaluations of the global model; the last round is always evaluated.
        patience: end when so many evaluations in a row gave no lower loss than the lowest before: of the held-out
            samples, or of the training samples if there are none.
        keep: the model that stays, of the ``"last"`` round or of the evaluation with the ``"best"`` such loss.
        colocation: which parties share a machine: what they tell each other does not count as sent.
        moved: the raw data that was moved first, where a baseline needs that; it counts as sent.
        out: the run folder to write; none by default.
        config: what ``config.toml`` there shall say; by default the arguments of this call.
        resume: continue from what is in ``out``. Its settings stay, but for ``rounds``: other ones are refused.
        observe: called after every engine call.
        should_stop: asked after every engine call; true ends the run early, with a checkpoint.
        execution: on which devices and how. Of several processes only the first writes ``out``, and is asked to stop.
        variant: the member of the TDCD family; by default Algorithm 1, with labels where the federation has them.
        named: what ``held-out.csv`` there calls the held-out samples; by default they have numbers.
        quiet: whether there is no warning if the run diverged; :attr:`.Result.status` says so too.

    Warns:
        ConvergenceWarning: that of scikit-learn, if the run diverged, see :mod:`tdcd.records.verdict`.
    """
    if rounds < 0 or evaluate_every < 1:
        raise ValueError(f"rounds must be at least 0 and evaluate_every at least 1, not {rounds} and {evaluate_every}")
    if (patience is not None and patience < 1) or keep not in get_args(KeepModel):
        raise ValueError(f"patience must be at least 1 and keep 'last' or 'best', not {patience} and {keep!r}")
    chosen = _blocks(blocks, federation.num_silos)
    objective, settings = _objective(objective), _settings(settings)
    objective, variant = on_terms(federation, objective, settings, variant)
    # As they are: NumPy's numbers are not those of a TOML file.
    evaluate = {"every": evaluate_every, "patience": patience, "keep": keep}
    plan = Plan(
        _with_keys(Config(), {"train": {"rounds": rounds}, "evaluate": evaluate}),
        federation,
        chosen,
        objective,
        settings,
        variant or Variant(),
        execution or Execution(),
        colocation,
        tuple(moved),
    )
    folder = None
    if out is not None:
        folder, plan = Path(out), plan._replace(handed_over=config or describe(plan))
    result = train_plan(plan, folder, resume=resume, observe=observe, should_stop=should_stop, named=named)
    if result.status == "diverged" and not quiet:
        warn_of_divergence(result, stacklevel=3)
    return result


def train_plan(
    plan: Plan,
    out: Path | None = None,
    *,
    resume: bool = False,
    observe: Observer = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    named: Named | None = None,
) -> Result:
    """Train what was planned; the arguments are those of :func:`train`."""
    _check_classes(plan.federation, plan.objective)
    simulation = simulate(plan)
    # Of several processes, each has the features of its own clients only.
    federation, hosts = simulation.federation, simulation.hosts
    if hosts is None or not hosts.here:
        say_what_labels_are(federation, plan.objective)
    state, config = simulation.init(), plan.config
    ledger = ledger_of(simulation, state.blocks, plan.colocation, plan.moved)
    run = TrainingRun(plan._replace(federation=federation), state, ledger, simulation.engine, hosts)
    if out is not None:
        run.attach(out, resume=resume)
    with _ending_on_interrupt(observe, should_stop) as watch:
        status = Training(simulation, [run]).train(*watch)
    hub_blocks, kept = run.model
    if out is not None:
        # Several processes score together, and the first one writes.
        has_held_out = federation.test_labels is not None
        tables = [silo.test_features for silo in federation.silos]
        run.conclude(simulation.scores(hub_blocks, tables, kept) if has_held_out else None, named)
    verdict = "" if status == "interrupted" else run.verdict
    reason = "; ".join(filter(None, [verdict, run.in_words if status == "finished" else ""]))
    by_silo = dict(zip(run.names, hub_blocks, strict=True))
    status = "diverged" if verdict else status
    folder = None if run.folder is None else run.folder.path
    if out is not None and config.evaluate.alone and config.train.algorithm == "tdcd" and status == "finished":
        train_silo_only(plan, out, should_stop)
    return Result(run.history, by_silo, kept, status, simulation, federation, folder, reason)


def train_silo_only(
    plan: Plan, folder: Path, should_stop: Callable[[], bool] = lambda: False
) -> dict[str, dict[str, float | None]]:
    """Train every silo that has labels on its own columns with its own clients, for as many local steps as the plan.

    Several processes train together, as for the plan itself, and the first one writes ``alone.json``. Nothing else of
    these runs is kept. With the whole federation's model in ``folder``, its report shows both.

    Args:
        plan: of TDCD.
        should_stop: asked between two engine calls; true leaves the folder as it is.

    Returns:
        By silo, its model's metrics on the held-out samples, or on the training ones if none are held out; nothing
        if it was stopped.
    """
    found, evaluate = {}, plan.config.evaluate
    is_judged = evaluate.patience is not None or evaluate.keep == "best"
    for silo in labelled_silos(plan):
        silo_only = rewrite(plan, "local-sgd", silo)
        every = evaluate.every if is_judged else max(silo_only.config.train.rounds, 1)
        seldom = _with_keys(silo_only.config, {"evaluate": {"every": every}})
        result = train_plan(silo_only._replace(config=seldom), should_stop=should_stop)
        if result.status == "interrupted":
            return {}
        if result.status == "diverged":
            warn_of_divergence(result, stacklevel=3)
        figures = result.final.metrics if is_judged else result.history[-1].metrics
        found[silo] = figures.get("test", figures["train"])
    if jax.process_index() == 0:
        run = RunFolder(folder)
        run.write_alone(found)
        if (manifest := Manifest(run)).exists:
            manifest.seal()
    return found


def simulate(*plans: Plan, most_rounds: int = ROUNDS_PER_CALL) -> Simulation:
    """The simulation of a plan; or of several that differ in nothing but seed, step size and l2."""
    first, runs = plans[0], [Run(plan.federation, plan.objective, plan.settings) for plan in plans]
    return Simulation.of_runs(runs, first.blocks, first.execution, first.variant, most_rounds)


def _with_keys(config: Config, sections: Mapping[str, Mapping[str, Any]]) -> Config:
    """The configuration with other values for some keys, by section; they are not checked."""
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update={**keys}) for name, keys in sections.items()}
    )


def _blocks(blocks: Block | str | Sequence[Block | str], num_silos: int) -> tuple[Block, ...]:
    """One block per silo, whether they are given or named."""
    each = [blocks] * num_silos if isinstance(blocks, str) or not isinstance(blocks, Sequence) else blocks
    for name in each:
        if isinstance(name, str) and name not in ("linear", "mlp", "cnn") and not re.match(NAMED, name):
            raise ValueError(
                "blocks must be linear, mlp, cnn, package.module:name, or blocks themselves such as tdcd.Linear(), "
                f"not {name!r}"
            )
    return tuple(block_named(block) if isinstance(block, str) else block for block in each)


def _objective(objective: Objective | str) -> Objective:
    if not isinstance(objective, str):
        return objective
    if not re.match(NAMED, objective):
        return Objective(objective)
    return Objective(named_loss(ModelSection(loss=objective), objective))


def _settings(settings: Settings | Mapping[str, Any] | None) -> Settings:
    if isinstance(settings, Settings):
        return settings
    given, known = dict(settings or {}), [field.name for field in fields(Settings)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"settings: there is no {unknown[0]!r}; there are {', '.join(known)}")
    return Settings(**given)


def warn_of_divergence(result: Result, stacklevel: int) -> None:
    """Say in scikit-learn's way that a run diverged, and what to do."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  (only those who are warned need it)

    size = result.simulation.settings.step_size
    words = f"{result.reason[:1].upper()}{result.reason[1:]}; the step size is {size:g}: lower it, or see tdcd plan."
    warnings.warn(words, ConvergenceWarning, stacklevel=stacklevel)


@contextmanager
def _ending_on_interrupt(
    observe: Observer, should_stop: Callable[[], bool]
) -> Iterator[tuple[Observer, Callable[[], bool]]]:
    """What a run tells and asks, so that a first Ctrl-C ends it as ``should_stop`` does.

    Where somebody else handles the signal, as the command does, or in another thread, only a KeyboardInterrupt of
    ``observe`` does that.
    """
    interrupted = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def watched(progress: Progress) -> None:
        try:
            observe(progress)
        except KeyboardInterrupt:
            interrupted.set()

    is_main = threading.current_thread() is threading.main_thread()
    takes_over = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes_over:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield watched, lambda: interrupted.is_set() or should_stop()
    finally:
        if takes_over:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Training:
    """The training loop: one run, or several that are at the same round of a simulation of all of them."""

    def __init__(self, simulation: Simulation, runs: Sequence[TrainingRun]) -> None:
        """Take the runs as they stand."""
        config = runs[0].plan.config
        self._simulation, self._runs = simulation, runs
        self._rounds, self._every = config.train.rounds, config.evaluate.every
        self._state = simulation.join([run.state for run in runs])
        # Many runs are not worth a checkpoint each before anything has happened.
        self._saved_at = -math.inf if len(runs) == 1 else time.monotonic()
        self._save_after = SECONDS_PER_CHECKPOINT

    def train(self, observe: Observer, should_stop: Callable[[], bool]) -> Status:
        """Run what is left."""
        now, sizer = self._runs[0].round, CallSizer()
        self._record()
        observe(Progress(now, self._rounds, self._runs[0].history[-1]))
        while now < self._rounds and self._running():
            if agreed(should_stop()):
                return self._close("interrupted")
            target = min(self._rounds, (now // self._every + 1) * self._every)
            rounds = agreed(sizer.rounds(target - now))
            began = time.perf_counter()
            self._state = self._simulation.advance(self._state, now, rounds)
            jax.block_until_ready(self._state)  # type: ignore[no-untyped-call]
            seconds = time.perf_counter() - began
            self._simulation.check_range(self._state)
            sizer.took(rounds, seconds)
            for run in self._running():
                run.advanced(rounds, seconds / len(self._runs))
            now += rounds
            record = self._record() if now == target else None
            observe(Progress(now, self._rounds, record))
        self._close("finished")
        return "diverged" if all(run.diverged for run in self._runs) else "finished"

    def _running(self) -> list[TrainingRun]:
        return [run for run in self._runs if not run.is_over]

    def _record(self) -> Record | None:
        """Evaluate the runs that are due and go on; the first one's record."""
        self._hand_out()
        if not any(run.is_due for run in self._running()):
            return None
        for run, figures in zip(
            self._runs, measure(self._simulation, self._state.blocks, self._runs[0].round), strict=True
        ):
            if run.is_due and not run.is_over:
                run.add(figures)
                if run.is_over:
                    run.close("diverged" if run.diverged else "finished")
        if time.monotonic() - self._saved_at > self._save_after:
            self._checkpoint()
        return self._runs[0].history[-1]

    def _hand_out(self) -> None:
        """Give every run its state."""
        for run, state in zip(self._runs, self._simulation.part(self._state), strict=True):
            if not run.is_over:
                run.state = state

    def _checkpoint(self) -> None:
        began = time.monotonic()
        for run in self._running():
            run.checkpoint()
        self._saved_at = time.monotonic()
        self._save_after = max(SECONDS_PER_CHECKPOINT, (self._saved_at - began) / CHECKPOINT_FRACTION)

    def _close(self, status: Status) -> Status:
        self._hand_out()
        for run in self._running():
            run.close(status)
        return status


def _check_classes(federation: Federation, objective: Objective) -> None:
    """Refuse classes that are counted from 1 on: there would be a score for a class that no sample has."""
    held_out = [] if federation.test_labels is None else [federation.test_labels]
    labels = np.concatenate([federation.labels, *held_out])
    if objective.kind.target == "classes" and labels.min() > 0:
        raise ValueError(
            f"no sample has class 0: the labels go from {labels.min()} to {labels.max()}, but classes are counted "
            "from 0 on; number them with numpy.unique(labels, return_inverse=True)[1]"
        )


def measure(simulation: Simulation, hub_blocks: list[Tree], round_index: int) -> list[Figures]:
    """Every run's losses and metrics of its global model after a round, over the training samples and the held-out
    ones.
    """
    federation, objective, runs = simulation.federation, simulation.objective, range(len(simulation.runs))
    scale = federation.label_scale
    samples: dict[str, tuple[Any, Any, Any]] = {"train": (None, federation.labels, federation.weights)}
    if federation.test_labels is not None:
        held_out = [silo.test_features for silo in federation.silos]
        samples["test"] = held_out, federation.test_labels, federation.test_weights
    losses, figures = {}, {}
    for split, (features, labels, weights) in samples.items():
        scores = simulation.scores(hub_blocks, features, round_index)
        losses[split] = simulation.losses(hub_blocks, scores, labels, weights)
        each = scores if len(runs) > 1 else [scores]
        figures[split] = [
            metrics(objective.loss, objective.scores(own), labels, scale, objective.label_epsilon) for own in each
        ]
    return [
        Figures(
            losses["train"][run],
            losses["test"][run] if "test" in losses else None,
            {split: own[run] for split, own in figures.items()},
        )
        for run in runs
    ]


def ledger_of(
    simulation: Simulation,
    hub_blocks: Sequence[Tree],
    colocation: Colocation = "none",
    moved: Sequence[Moved] = (),
    settings: Settings | None = None,
    variant: Variant | None = None,
) -> Ledger:
    """What a run's rounds send, and what was ``moved`` before them.

    Args:
        hub_blocks: those of one run.
        settings: in place of the simulation's, as is ``variant``.
    """
    settings, variant = settings or simulation.settings, variant or simulation.variant
    federation = simulation.federation
    clients = [silo.num_clients for silo in federation.silos]
    scored = simulation.num_samples + (0 if federation.test_labels is None else len(federation.test_labels))
    sizes = Sizes(
        (settings.num_exchanged, settings.effective_batch_size(simulation.num_samples)),
        scored,
        settings.dtype,
        count_parameters(hub_blocks),
        [bytes_up(block, variant.block_exchange) for block in hub_blocks],
        [] if variant.carried is None else [tree_bytes(variant.carried.memory(block)) for block in hub_blocks],
    )
    return Ledger.of(
        simulation.round_of(variant),
        sizes,
        clients,
        colocation,
        [variant.timing.period(silo) for silo in range(len(hub_blocks))],
        _answering(variant, clients),
        tuple(moved),
        Centre(*variant.centre) if variant.centre else None,
    )


def _answering(variant: Variant, clients: Sequence[int]) -> list[int] | None:
    """Of each silo, how many clients answer in a round; None if all do, be it hub by hub."""
    if variant.all_answer or variant.turns > 1:
        return None
    return [int(variant.participation.answering(0, 0, silo, count).sum()) for silo, count in enumerate(clients)]
