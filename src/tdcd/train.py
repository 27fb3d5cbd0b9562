"""Training: the round loop, evaluation, history and checkpoints."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.blocks.fitting import start_fitting
from tdcd.data.table import numbers
from tdcd.described import describe_call
from tdcd.devices import agreed
from tdcd.execution import Execution
from tdcd.federation import Federation
from tdcd.history import Record
from tdcd.ledger import Apart, Sent, round_messages
from tdcd.metrics import metrics
from tdcd.objective import Objective, Tree
from tdcd.recording import SECONDS_PER_CHECKPOINT, Figures, Pace, Status, TrainingRun, count_parameters
from tdcd.schedule import num_exchanged
from tdcd.settings import Settings
from tdcd.simulate import Simulation


class Progress(NamedTuple):
    """News from a run."""

    round: int
    rounds: int
    """Rounds in all."""
    record: Record | None
    """The global model's figures, when this round was evaluated."""


Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """What training gave."""

    history: list[Record]
    blocks: dict[str, Tree]
    """The hub block of each silo, by name."""
    round: int
    """The round those blocks are of."""
    status: Status
    simulation: Simulation
    federation: Federation
    folder: Path | None = None

    def scores(self, features: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The trained model's scores ``[rows, C]`` for other samples: each silo's columns of them.

        Of a regression, ``scores * federation.label_scale + federation.label_mean`` are amounts in the data's own
        units.
        """
        silos = self.federation.silos
        tables = [numbers(table, f"features {index}") for index, table in enumerate(features)]
        if len(tables) != len(silos):
            raise ValueError(f"there are {len(silos)} silos, but features of {len(tables)}: give every silo's columns")
        for silo, table in zip(silos, tables, strict=True):
            wanted = (len(tables[0]), *silo.feature_shape)
            if table.shape != wanted:
                raise ValueError(f"silo '{silo.name}': features have shape {table.shape}, but must have {wanted}")
        return self.simulation.scores(list(self.blocks.values()), tables)


def train(
    federation: Federation,
    blocks: Block | Sequence[Block],
    objective: Objective,
    settings: Settings,
    *,
    rounds: int,
    evaluate_every: int = 5,
    apart: Apart = "clients",
    out: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    resume: bool = False,
    observe: Observer = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
    execution: Execution | None = None,
) -> Result:
    """Train a federation in one process.

    Args:
        blocks: one for all silos, or one each.
        rounds: communication rounds in all, those before a resume counted in.
        evaluate_every: rounds between two evaluations of the global model; the last round is always evaluated.
        apart: who is on a machine of its own, and so what counts as sent.
        out: the run folder to write; none by default.
        config: what ``config.toml`` there shall say; by default the arguments of this call.
        resume: go on from what is in ``out``. Its settings stay, but for ``rounds``: other ones are refused.
        observe: called after every engine call.
        should_stop: asked after every engine call; true ends the run early, with a checkpoint.
        execution: on which devices and how. Of several processes only the first writes ``out``, and is asked to stop.
    """
    if rounds < 0 or evaluate_every < 1:
        raise ValueError(f"rounds must be at least 0 and evaluate_every at least 1, not {rounds} and {evaluate_every}")
    chosen = tuple(blocks) if isinstance(blocks, Sequence) else (blocks,) * federation.num_silos
    _check_classes(federation, objective)
    simulation = Simulation(federation, chosen, objective, settings, execution)
    start = start_fitting(federation, chosen, simulation.num_outputs, settings)
    run = TrainingRun(
        federation, settings, start, messages_of(federation, settings, start, simulation.num_outputs, apart)
    )
    if out is not None and jax.process_index() == 0:
        described = config or describe_call(
            chosen, objective, settings, simulation.execution, rounds=rounds, evaluate_every=evaluate_every
        )
        run.attach(Path(out), described, evaluate_every if resume else None)

    def evaluate() -> Record:
        record = run.add(measure(simulation, federation, run.hub_blocks))
        if not record.diverged:
            run.checkpoint(at_least=SECONDS_PER_CHECKPOINT)
        return record

    def result(status: Status) -> Result:
        run.close(status)
        folder = None if run.folder is None else run.folder.path
        named = dict(zip(run.names, run.hub_blocks, strict=True))
        return Result(run.history, named, run.round, status, simulation, federation, folder)

    if run.is_due(evaluate_every, rounds):
        evaluate()
    observe(Progress(run.round, rounds, run.history[-1]))
    pace = Pace()
    while run.round < rounds and not run.diverged:
        if agreed(should_stop()):
            return result("interrupted")
        target = min(rounds, (run.round // evaluate_every + 1) * evaluate_every)
        _advance(run, simulation, agreed(pace.rounds(target - run.round)), pace)
        record = evaluate() if run.round == target else None
        observe(Progress(run.round, rounds, record))
    return result("diverged" if run.diverged else "finished")


def _check_classes(federation: Federation, objective: Objective) -> None:
    """Refuse classes that are counted from 1 on: there would be a score for a class that no sample has."""
    held_out = [] if federation.test_labels is None else [federation.test_labels]
    labels = np.concatenate([federation.labels, *held_out])
    if objective.loss == "softmax" and labels.min() > 0:
        raise ValueError(
            f"no sample has class 0: the labels go from {labels.min()} to {labels.max()}, but classes are counted "
            "from 0 on; number them with numpy.unique(labels, return_inverse=True)[1]"
        )


def _advance(run: TrainingRun, simulation: Simulation, rounds: int, pace: Pace) -> None:
    began = time.perf_counter()
    hub_blocks = simulation.advance(run.hub_blocks, run.round, rounds)
    jax.block_until_ready(hub_blocks)  # type: ignore[no-untyped-call]
    seconds = time.perf_counter() - began
    pace.took(rounds, seconds)
    run.advanced(hub_blocks, rounds, seconds)


def measure(simulation: Simulation, federation: Federation, hub_blocks: list[Tree]) -> Figures:
    """The global model's losses and metrics, over the training samples and the held-out ones."""
    loss = simulation.objective.loss
    scores = simulation.scores(hub_blocks)
    train_loss = simulation.loss(hub_blocks, scores, federation.labels)
    figures = {"train": metrics(loss, scores, federation.labels, federation.label_scale)}
    test_loss = None
    if federation.test_labels is not None:
        held_out = [silo.test_features for silo in federation.silos if silo.test_features is not None]
        scores = simulation.scores(hub_blocks, held_out)
        test_loss = simulation.loss(hub_blocks, scores, federation.test_labels)
        figures["test"] = metrics(loss, scores, federation.test_labels, federation.label_scale)
    return Figures(train_loss, test_loss, figures)


def messages_of(
    federation: Federation, settings: Settings, hub_blocks: list[Tree], num_outputs: int, apart: Apart
) -> tuple[Sent, ...]:
    """The messages of one round."""
    batch_size = federation.num_samples if settings.minibatches == "full" else settings.batch_size
    return round_messages(
        count_parameters(hub_blocks),
        [silo.num_clients for silo in federation.silos],
        samples=num_exchanged(settings.minibatches, settings.local_steps) * batch_size,
        outputs=num_outputs,
        itemsize=np.dtype(settings.dtype).itemsize,
        apart=apart,
    )
