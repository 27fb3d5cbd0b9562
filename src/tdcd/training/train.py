"""Training: the round loop, evaluation, history and checkpoints."""

import math
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import jax
import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.blocks.linear import is_linear
from tdcd.config import Config, ModelSection
from tdcd.config.losses import named_loss
from tdcd.config.resolve import Plan, block_named
from tdcd.config.schema import NAMED
from tdcd.core.certificate import Certificate, in_words
from tdcd.core.choices import KeepModel
from tdcd.core.codecs.codec import bytes_up, tree_bytes
from tdcd.core.execution import Execution
from tdcd.core.ledger import Colocation, Ledger, Moved, Sizes
from tdcd.core.losses import fitting, metrics
from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.core.words import SPLITS, figure, metric_title, there_are
from tdcd.data.table import numbers
from tdcd.federation.silos import Federation
from tdcd.records.history import Record, flat
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder
from tdcd.simulation.devices import agreed
from tdcd.simulation.engines.base import ROUNDS_PER_CALL, Run, State
from tdcd.simulation.simulate import Simulation
from tdcd.tables.preparation import say_what_labels_are
from tdcd.training.recording import CallSizer, Evaluation, RunStatus, TrainingRun, count_parameters

if TYPE_CHECKING:
    from tdcd.prediction.model import Model
    from tdcd.prediction.predictions import Named

_NOT_FIGURES = ("absent", "unscored", "worse_than", "taken_back")
"""The fields of a record that are no columns of a frame."""
_FEW_POINTS = 30
"""So many points of a curve are marked."""


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a training run: its history, and the model that stays."""

    history: list[Record]
    blocks: dict[str, Tree]
    """The hub block of each silo, by name."""
    round: int
    """The round those blocks are of."""
    status: RunStatus
    """``"finished"``, or ``"interrupted"`` by Ctrl-C or a request to stop, or ``"diverged"``: the loss stopped being
    finite, or the model is worse than before training or far above the best (:mod:`tdcd.records.outcome`)."""
    simulation: Simulation
    federation: Federation
    folder: Path | None = None
    reason: str = ""
    """Why it diverged, why it ended before its last round, or which other round's model is kept."""
    converged: bool | None = None
    """Whether the training loss no longer changes; None where the number of rounds was fixed, or early stopping by
    ``patience`` ended the run."""

    @property
    def n_iter(self) -> int:
        """The rounds that were run."""
        return self.history[-1].round

    @property
    def final(self) -> Record:
        """The line of the model that stays, or the last one before it if it was not evaluated."""
        return next(record for record in reversed(self.history) if record.round <= self.round and not record.diverged)

    @property
    def engine(self) -> str:
        """The name of the engine that ran the rounds."""
        return self.simulation.engine

    @property
    def model(self) -> "Model":
        """The trained model, which predicts from raw rows."""
        from tdcd.prediction.model import Model  # noqa: PLC0415 - training itself reads no rows
        from tdcd.training.subsets import Trained, stand_ins_of, temperature_of  # noqa: PLC0415

        simulation, hosts = self.simulation, self.simulation.hosts
        hub_blocks = [self.blocks[silo.name] for silo in self.federation.silos]
        trained = Trained(self.federation, simulation.blocks, simulation.objective, simulation.variant, hosts)
        stand_ins = stand_ins_of(trained, hub_blocks, self.folder)
        dtype = simulation.settings.dtype
        temperature = temperature_of(trained, hub_blocks, self.folder)
        objective = simulation.objective
        return Model.of(self.federation, simulation.blocks, hub_blocks, objective, dtype, stand_ins, temperature)

    def to_frame(self) -> Any:
        """The history as a pandas DataFrame: one row per evaluation, with the names of ``history.jsonl``.

        Nested fields have dotted names, such as ``metrics.test.auc`` and ``bytes.hub_to_hub``; a field without
        any value, such as ``test_loss`` if nothing is held out, is no column. It needs pandas.
        """
        lines = [flat(msgspec.to_builtins(record)) for record in self.history]
        names = {name: None for line in lines for name in line if name not in _NOT_FIGURES}
        columns = {name: [line.get(name) for line in lines] for name in names}
        known = {name: values for name, values in columns.items() if any(value is not None for value in values)}
        try:
            return pa.table(known).to_pandas()
        except ModuleNotFoundError:
            raise ModuleNotFoundError("Result.to_frame needs pandas: pip install pandas") from None

    def plot(self, metric: str = "loss", ax: Any = None) -> Any:
        """Draw the course of the loss, or of another metric, and return the Matplotlib axes.

        Args:
            metric: ``"loss"``, or one that the history has, such as ``"auc"``.
            ax: the axes to draw on; new ones by default.
        """
        courses = {title: self._course(split, metric) for split, title in SPLITS.items()}
        drawn = {title: points for title, points in courses.items() if points}
        if not drawn:
            known = {name for record in self.history for figures in record.metrics.values() for name in figures}
            raise ValueError(f"metric = {metric!r}: the history has {', '.join(['loss', *sorted(known)])}")
        if ax is None:
            from matplotlib import pyplot  # noqa: PLC0415  (it takes a second, and few need it)

            _, ax = pyplot.subplots()
        for title, points in drawn.items():
            ax.plot(*zip(*points, strict=True), label=title, marker="." if len(points) < _FEW_POINTS else "")
        ax.set_xlabel("round")
        ax.set_ylabel(metric_title(metric))
        ax.legend()
        return ax

    def _course(self, split: str, metric: str) -> list[tuple[int, float]]:
        """A metric of the training samples, or of the held-out ones, by round."""
        values = [
            (
                record.round,
                getattr(record, f"{split}_loss") if metric == "loss" else record.metrics.get(split, {}).get(metric),
            )
            for record in self.history
        ]
        return [(round_, value) for round_, value in values if value is not None]

    def __repr__(self) -> str:
        """One line: how it ended, and the losses of the model that stays."""
        return f"Result: {self._in_words}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures of the model that stays."""
        from tdcd.core.notebook import summary_html  # noqa: PLC0415 - only notebooks need it

        final = self.final
        splits = [split for split in SPLITS if split == "train" or final.test_loss is not None]
        losses = ["loss", *(figure(getattr(final, f"{split}_loss")) for split in splits)]
        metrics = [
            [metric_title(name), *(figure(final.metrics[split].get(name)) for split in splits)]
            for name in final.metrics["train"]
        ]
        sentence = self._in_words + (f" ({self.reason})" if self.reason else "")
        return summary_html("Result", sentence, ["", *(SPLITS[split] for split in splits)], [losses, *metrics])

    @property
    def _in_words(self) -> str:
        final = self.final
        known = in_words(final.gap, final.gradient_norm)
        losses = [f"training loss {final.train_loss:.4g}" + (f", {known}" if known else "")]
        if final.test_loss is not None:
            losses.append(f"held-out loss {final.test_loss:.4g}")
        converged = {True: ", converged", False: ", not converged", None: ""}[self.converged]
        return f"{self.status} after round {self.n_iter}{converged}: {', '.join(losses)}"

    def scores(self, features: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The trained model's scores ``[rows, C]`` for other samples: each silo's prepared features of them.

        For raw rows see :attr:`model`.

        Of a regression, ``scores * federation.label_scale + federation.label_mean`` are amounts in the data's own
        units.
        """
        silos = self.federation.silos
        tables = [numbers(table, f"features {index}") for index, table in enumerate(features)]
        if len(tables) != len(silos):
            raise ValueError(
                f"{there_are(len(silos), 'silo')}, but features of {len(tables)}: give every silo's columns"
            )
        for silo, table in zip(silos, tables, strict=True):
            wanted = (len(tables[0]), *silo.feature_shape)
            if table.shape != wanted:
                raise ValueError(f"silo '{silo.name}': features have shape {table.shape}, but must have {wanted}")
        total = self.simulation.scores(list(self.blocks.values()), tables)
        return np.asarray(self.simulation.objective.scores(total))


SECONDS_PER_CHECKPOINT = 5.0
CHECKPOINT_FRACTION = 0.1
"""The most of the time that goes into checkpoints."""


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
    blocks: Block | str | Sequence[Block | str] | Any,
    objective: Objective | str,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    rounds: int,
    evaluate_every: int = 5,
    tol: float | None = None,
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
    named: "Named | None" = None,
    quiet: bool = False,
    verbose: int = 1,
) -> Result:
    """Train a federation in one process.

    Ctrl-C ends it after the current rounds: the result has the model so far and ``status = "interrupted"``. A second
    Ctrl-C raises KeyboardInterrupt.

    Args:
        blocks: one for all silos, or one each; ``"linear"``, ``"mlp"``, ``"ensemble"`` and ``"cnn"`` are those of a
            configuration. A module of Flax or Equinox is a block, too, see docs/pytorch.md.
        objective: or the name of a loss, as in a configuration; then l2 is chosen as there, too.
        settings: or a mapping with some of their fields; the defaults if there are none.
        rounds: communication rounds in all, those before a resume counted in; the most there are where
            ``settings.step_size`` is ``"auto"``, and the run ends when it has converged.
        evaluate_every: rounds between two evaluations of the global model; the last round is always evaluated.
        tol: with ``settings.step_size = "auto"``, the run has converged when the training loss changes by less than
            this part in 10 rounds; 0.0001 by default. With 0 it takes all rounds.
        patience: end when so many evaluations in a row gave no lower loss than the lowest before: of the held-out
            samples, or of the training samples if there are none.
        keep: the model that stays, of the ``"last"`` round or of the evaluation with the ``"best"`` such loss.
        colocation: which parties share a machine: what they exchange does not count as sent.
        moved: the raw data that was moved first, where a baseline needs that; it counts as sent.
        out: the run folder to write; none by default.
        config: what ``config.toml`` there shall say; by default the arguments of this call.
        resume: continue from what is in ``out``. Its settings stay, but for ``rounds``: other ones are refused.
        observe: called after every engine call.
        should_stop: asked after every engine call; true ends the run early, with a checkpoint.
        execution: on which devices and how. Of several processes only the first writes ``out``, and is asked to stop.
        variant: the member of the TDCD family; by default Algorithm 1, with labels where the federation has them.
        named: what ``held-out.csv`` there calls the held-out samples; by default they have numbers.
        quiet: whether there is no warning if the run diverged or has not converged; :class:`.Result` says so too.
        verbose: 0 shows no progress; by default there is a bar in a terminal or a notebook, until the run ends.

    Warns:
        ConvergenceWarning: that of scikit-learn, if the run diverged, see :mod:`tdcd.records.outcome`; and if it was to
            end when it has converged, and has not.
    """
    # The command, whose plan has all this, needs none of it.
    from tdcd.blocks.ensemble import Ensemble  # noqa: PLC0415
    from tdcd.core.family.automatic import automatic, automatic_l2  # noqa: PLC0415
    from tdcd.federation.missing_rows import with_stand_ins  # noqa: PLC0415
    from tdcd.training.description import describe  # noqa: PLC0415
    from tdcd.training.display import progress_shown  # noqa: PLC0415

    if rounds < 0 or evaluate_every < 1:
        raise ValueError(f"rounds must be at least 0 and evaluate_every at least 1, not {rounds} and {evaluate_every}")
    if (patience is not None and patience < 1) or keep not in get_args(KeepModel):
        raise ValueError(f"patience must be at least 1 and keep 'last' or 'best', not {patience} and {keep!r}")
    chosen = _blocks(blocks, federation.num_silos)
    is_named = isinstance(objective, str)
    objective, settings = _objective(objective), _settings(settings)
    objective, variant = on_terms(federation, objective, settings, variant)
    if tol is not None and not (settings.is_automatic and tol >= 0):
        raise ValueError(f"tol = {tol}: must be at least 0, and goes with step_size = 'auto', not {settings.step_size}")
    is_scalable = scalable(chosen, objective)
    if is_named and is_scalable and settings.is_automatic:
        objective = replace(objective, l2=automatic_l2(objective.kind, federation.num_samples))
    settings, variant = automatic(
        settings,
        variant or Variant(),
        is_scalable=is_scalable,
        num_silos=federation.num_silos,
        are_ensembles=all(isinstance(block, Ensemble) for block in chosen),
    )
    settings = settings.at(federation.num_samples)
    # As they are: NumPy's numbers are not those of a TOML file.
    evaluate = {"every": evaluate_every, "patience": patience, "keep": keep}
    federation, chosen = with_stand_ins(federation, chosen, drops_silos=variant.dropout.drops_silos)
    plan = Plan(
        _with_keys(Config(), {"train": {"rounds": rounds, "tol": tol}, "evaluate": evaluate}),
        federation,
        chosen,
        objective,
        settings,
        variant,
        execution or Execution(),
        colocation,
        tuple(moved),
    )
    folder = None
    if out is not None:
        folder, plan = Path(out), plan._replace(handed_over=config or describe(plan))
    with progress_shown(verbose) as show:

        def show_and_observe(progress: Progress) -> None:
            show(progress)
            observe(progress)

        result = train_plan(plan, folder, resume=resume, observe=show_and_observe, should_stop=should_stop, named=named)
    if not quiet:
        warn(result, stacklevel=2)
    return result


def train_plan(
    plan: Plan,
    out: Path | None = None,
    *,
    resume: bool = False,
    observe: Observer = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    named: "Named | None" = None,
) -> Result:
    """Train what was planned; the arguments are those of :func:`train`."""
    simulation = simulate(plan)
    # Of several processes, each has the features and labels of its own clients only.
    federation, hosts = simulation.federation, simulation.hosts
    _check_classes(federation, plan.objective)
    if hosts is None or not hosts.here:
        say_what_labels_are(federation, plan.objective)
    state, config = simulation.init(), plan.config
    ledger = ledger_of(simulation, state.blocks, plan)
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
    return Result(run.history, by_silo, kept, status, simulation, federation, folder, reason, run.converged)


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
    from tdcd.compare.baselines import labelled_silos, rewrite  # noqa: PLC0415 - training itself needs no baseline

    by_silo, evaluate = {}, plan.config.evaluate
    is_judged = evaluate.patience is not None or evaluate.keep == "best"
    for silo in labelled_silos(plan):
        silo_only = rewrite(plan, "local-sgd", silo)
        every = evaluate.every if is_judged else max(silo_only.config.train.rounds, 1)
        seldom = _with_keys(silo_only.config, {"evaluate": {"every": every}})
        result = train_plan(silo_only._replace(config=seldom), should_stop=should_stop)
        if result.status == "interrupted":
            return {}
        if result.status == "diverged":
            warn(result, stacklevel=3)
        figures = result.final.metrics if is_judged else result.history[-1].metrics
        by_silo[silo] = figures.get("test", figures["train"])
    if jax.process_index() == 0:
        run = RunFolder(folder)
        run.write_alone(by_silo)
        if (manifest := Manifest(run)).exists:
            manifest.seal()
    return by_silo


def simulate(*plans: Plan, most_rounds: int = ROUNDS_PER_CALL) -> Simulation:
    """The simulation of a plan; or of several that differ in nothing but seed, step size and l2."""
    first, runs = plans[0], [Run(plan.federation, plan.objective, plan.settings) for plan in plans]
    return Simulation.of_runs(runs, first.blocks, first.execution, first.variant, most_rounds, first.turns)


def _with_keys(config: Config, sections: Mapping[str, Mapping[str, Any]]) -> Config:
    """The configuration with other values for some keys, by section; they are not checked."""
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update={**keys}) for name, keys in sections.items()}
    )


def _blocks(blocks: Block | str | Sequence[Block | str] | Any, num_silos: int) -> tuple[Block, ...]:
    """One block per silo, whether they are given or named."""
    each = [blocks] * num_silos if isinstance(blocks, str) or not isinstance(blocks, Sequence) else blocks
    for name in each:
        if isinstance(name, str) and name not in ("linear", "mlp", "ensemble", "cnn") and not re.match(NAMED, name):
            raise ValueError(
                "blocks must be linear, mlp, ensemble, cnn, package.module:name, or blocks themselves such as "
                f"tdcd.Linear(), not {name!r}"
            )
    return tuple(block_named(block) if isinstance(block, str) else _given(block) for block in each)


def _given(block: Any) -> Block:
    """A block as it is, or made of a Flax or Equinox module."""
    from tdcd.blocks.modules import as_block  # noqa: PLC0415 - a configuration names its blocks

    made = as_block(block)
    if made is None:
        raise ValueError(f"blocks: {type(block).__name__} is no block, since it lacks the functions init and phi")
    return made


def scalable(blocks: Sequence[Block], objective: Objective) -> bool:
    """Whether the silos' curvature is known before training: linear blocks, sums, and a loss with bounded curvature."""
    are_linear = all(is_linear(block) for block in blocks)
    return are_linear and objective.combine.is_additive and objective.kind.curvature is not None


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


def warn(result: Result, stacklevel: int) -> None:
    """Warn in scikit-learn's way of a run that diverged, or that has not converged, and say what to do."""
    is_open = result.status == "finished" and result.converged is False
    if result.status != "diverged" and not is_open:
        return
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  (only those who are warned need it)

    if is_open:
        advice = "give it more rounds, or a larger tol"
    elif result.simulation.variant.is_steered:
        advice = "look at the scale of the columns and labels, or give a smaller step_size"
    else:
        size = result.simulation.settings.step_size
        advice = f"the step size is {size:g}: lower it, or see tdcd plan"
    words = f"{result.reason[:1].upper()}{result.reason[1:]}; {advice}."
    warnings.warn(words, ConvergenceWarning, stacklevel=stacklevel + 1)


@contextmanager
def _ending_on_interrupt(
    observe: Observer, should_stop: Callable[[], bool]
) -> Iterator[tuple[Observer, Callable[[], bool]]]:
    """The callbacks of a run, changed so that a first Ctrl-C ends it as ``should_stop`` does.

    Where other code handles the signal, as the command does, or in another thread, only a KeyboardInterrupt of
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
        self._certifies = bool(simulation.certificate_kind)
        self._state = simulation.join([run.state for run in runs])
        # Many runs are not worth a checkpoint each before anything has happened.
        self._saved_at = -math.inf if len(runs) == 1 else time.monotonic()
        self._save_after = SECONDS_PER_CHECKPOINT

    def train(self, observe: Observer, should_stop: Callable[[], bool]) -> RunStatus:
        """Run what is left."""
        now, sizer = self._runs[0].round, CallSizer()
        self._record()
        observe(Progress(now, self._rounds, self._runs[0].history[-1]))
        while now < self._rounds and self._running():
            if agreed(should_stop()):
                return self._close("interrupted")
            due = [run.steered_in for run in self._running()]
            steered = min((round_ for round_ in due if round_ is not None), default=self._rounds)
            target = min(self._rounds, (now // self._every + 1) * self._every, steered)
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
            if now == steered:
                self._steer(due)
            record = self._record() if now == target else None
            observe(Progress(now, self._rounds, record))
        self._close("finished")
        return "diverged" if all(run.diverged for run in self._runs) else "finished"

    def _steer(self, due: Sequence[int | None]) -> None:
        """Let the runs continue with the steps that were decided, if that is due now."""
        self._hand_out()
        for run, round_ in zip(self._running(), due, strict=True):
            if run.round == round_:
                run.steer()
        self._state = self._simulation.join([run.state for run in self._runs])

    def _running(self) -> list[TrainingRun]:
        return [run for run in self._runs if not run.is_over]

    def _record(self) -> Record | None:
        """Evaluate the runs that are due, and continue; the first one's record."""
        self._hand_out()
        if not any(run.is_due for run in self._running()):
            return None
        measured = measure(self._simulation, self._state.blocks, self._runs[0].round)
        for index, (run, figures) in enumerate(zip(self._runs, measured, strict=True)):
            if run.is_due and not run.is_over:
                run.add(figures, partial(self._certify, index) if self._certifies else None)
                if run.is_over:
                    run.close("diverged" if run.diverged else "finished")
        if time.monotonic() - self._saved_at > self._save_after:
            self._checkpoint()
        return self._runs[0].history[-1]

    def _certify(self, index: int, state: State) -> Certificate:
        """The certificate of a run's model."""
        from tdcd.simulation.certificate import certify  # noqa: PLC0415 - few evaluations have one

        return certify(self._simulation, index, state)

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

    def _close(self, status: RunStatus) -> RunStatus:
        self._hand_out()
        for run in self._running():
            run.close(status)
        return status


def _check_classes(federation: Federation, objective: Objective) -> None:
    """Refuse classes that are counted from 1 on: there would be a score for a class that no sample has."""
    if objective.kind.target != "classes":
        return
    parts = [part for part in (federation.labels, federation.test_labels) if part is not None]
    least, greatest = min(part.min() for part in parts), max(part.max() for part in parts)
    if least > 0:
        raise ValueError(
            f"no sample has class 0: the labels go from {least:g} to {greatest:g}, but classes are counted "
            "from 0 on; number them with numpy.unique(labels, return_inverse=True)[1]"
        )


@np.errstate(over="ignore", invalid="ignore")
def measure(simulation: Simulation, hub_blocks: list[Tree], round_index: int) -> list[Evaluation]:
    """Every run's losses and metrics of its global model after a round, over the training samples and the held-out
    ones.
    """
    federation, objective, runs = simulation.federation, simulation.objective, range(len(simulation.runs))
    if simulation.hosts is not None and not simulation.has_noisy_scores:
        splits = ["train"] if federation.test_labels is None else ["train", "test"]
        measured = {split: simulation.measured(hub_blocks, split) for split in splits}
        test_loss = measured["test"][0] if "test" in measured else None
        return [Evaluation(measured["train"][0], test_loss, {split: own for split, (_, own) in measured.items()})]
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
        Evaluation(
            losses["train"][run],
            losses["test"][run] if "test" in losses else None,
            {split: own[run] for split, own in figures.items()},
        )
        for run in runs
    ]


def ledger_of(
    simulation: Simulation,
    hub_blocks: Sequence[Tree],
    plan: Plan | None = None,
    settings: Settings | None = None,
    variant: Variant | None = None,
) -> Ledger:
    """What a run's rounds send, and what its plan says was moved before them.

    Args:
        hub_blocks: those of one run.
        plan: of the run; of TDCD itself, there is nothing to know of it.
        settings: in place of the simulation's, as is ``variant``.
    """
    settings, variant = settings or simulation.settings, variant or simulation.variant
    federation = simulation.federation
    clients = [silo.num_clients for silo in federation.silos]
    scored = simulation.num_samples + (0 if federation.test_labels is None else len(federation.test_labels))
    drawn = settings.num_exchanged, settings.effective_batch_size(simulation.num_samples)
    sizes = Sizes(
        drawn,
        scored,
        settings.dtype,
        count_parameters(hub_blocks),
        [bytes_up(block, variant.block_exchange) for block in hub_blocks],
        [tree_bytes(variant.first_memory(block)) for block in hub_blocks],
        simulation.num_samples,
        []
        if federation.is_complete
        else [(silo.num_rows, silo.num_rows + silo.num_test_rows) for silo in federation.silos],
        [silo.shared_counts(simulation.num_samples, drawn[0] * drawn[1]) for silo in federation.silos],
    )
    ledger = Ledger.of(
        simulation.round_of(variant),
        sizes,
        clients,
        "none" if plan is None else plan.colocation,
        [variant.timing.period(silo) for silo in range(len(hub_blocks))],
        variant.answering(clients) if simulation.turns == 1 else None,
        () if plan is None else plan.moved,
    )
    return ledger if plan is None or plan.tier is None else plan.tier.ledger(ledger)


MADE = "Federation.from_frames"


def on_terms(
    federation: Federation, objective: Objective, settings: Settings, variant: Variant | None
) -> tuple[Objective, Variant | None]:
    """The objective and the variant with what the federation's terms add; refuses those that contradict them."""
    _check_preparation(federation, objective, settings)
    return _corrected(federation, objective), _with_knowledge(federation, variant)


def _check_preparation(federation: Federation, objective: Objective, settings: Settings) -> None:
    """Refuse a loss for which the labels were not prepared, and a precision that the features do not have."""
    terms, loss = federation.terms, objective.kind
    if terms.dtype is not None and settings.dtype != terms.dtype:
        raise ValueError(
            f"Settings(dtype={settings.dtype!r}): {MADE} prepared the features in {terms.dtype}; give it "
            f"dtype={settings.dtype!r} too"
        )
    if terms.loss is not None and terms.loss != loss:
        raise ValueError(
            f"Objective({loss.name!r}): {MADE} was given the loss {terms.loss.name!r}, and prepared the labels for it; "
            "give both the same"
        )
    if terms.loss is None and terms.task is not None:
        taken = f"{MADE} took the labels for " + (federation.labels_in_words or terms.task)
        if terms.task not in loss.tasks:
            use = " or ".join(repr(name) for name in fitting(terms.task))
            raise ValueError(
                f"Objective({loss.name!r}): {taken}. Give it model={{'loss': {loss.name!r}}}, or train with {use}"
            )
        if federation.label_scale != 1 and not loss.standardizes:
            raise ValueError(
                f"Objective({loss.name!r}): {taken}, and standardised them. Give it model={{'loss': {loss.name!r}}}"
            )


def _corrected(federation: Federation, objective: Objective) -> Objective:
    epsilon, given = federation.terms.label_epsilon, objective.label_epsilon
    if epsilon is None or given == epsilon:
        return objective
    if given is not None:
        raise ValueError(
            f"Objective(label_epsilon={given:g}): the labels were randomised with federation.label_epsilon = "
            f"{epsilon:g}; leave it out"
        )
    return replace(objective, label_epsilon=epsilon)


def _with_knowledge(federation: Federation, variant: Variant | None) -> Variant | None:
    silo = federation.terms.label_silo
    if silo is None:
        return variant
    from tdcd.core.family.labels import LabelsAt  # noqa: PLC0415 - as in tdcd.config.members

    chosen = variant or Variant()
    here = LabelsAt([own.name for own in federation.silos].index(silo))
    if "knowledge" not in chosen.changed:
        chosen = replace(chosen, knowledge=here)
    elif chosen.knowledge.route != here.route:
        raise ValueError(
            f"variant: its knowledge = {chosen.knowledge}, and federation.labels = {silo!r} is {here}; leave it out"
        )
    for part, why in chosen.knowledge.excludes(chosen, federation.num_silos):
        raise ValueError(
            f"variant: {part} = {getattr(chosen, part)} does not go with federation.labels = {silo!r}, since {why}; "
            "leave one of them out"
        )
    return chosen
