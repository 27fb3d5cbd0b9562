"""Training: the round loop, evaluation, history and checkpoints."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.federation import Federation
from tdcd.history import Record
from tdcd.ledger import Apart, Sent, by_link, round_messages
from tdcd.metrics import metrics
from tdcd.objective import Objective, Tree
from tdcd.runfolder import RunFolder, describe
from tdcd.schedule import num_exchanged
from tdcd.settings import Settings
from tdcd.simulate import Simulation

SECONDS_PER_CALL = 0.3
"""How long the engine may run before progress shows and a request to stop is heard."""
SECONDS_PER_CHECKPOINT = 5.0

Status = Literal["finished", "interrupted", "diverged"]


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
    folder: Path | None = None

    def scores(self, features: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The trained model's scores ``[rows, C]`` for other samples: each silo's columns of them."""
        return self.simulation.scores(list(self.blocks.values()), features)


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
) -> Result:
    """Train a federation in one process.

    Args:
        blocks: one for all silos, or one each.
        rounds: communication rounds in all, those before a resume counted in.
        evaluate_every: rounds between two evaluations of the global model; the last round is always evaluated.
        apart: who is on a machine of its own, and so what counts as sent.
        out: the run folder to write; none by default.
        config: what ``config.toml`` there shall say; by default the arguments of this call.
        resume: go on from what is in ``out``.
        observe: called after every engine call.
        should_stop: asked after every engine call; true ends the run early, with a checkpoint.
    """
    if rounds < 0 or evaluate_every < 1:
        raise ValueError(f"rounds must be at least 0 and evaluate_every at least 1, not {rounds} and {evaluate_every}")
    chosen = tuple(blocks) if isinstance(blocks, Sequence) else (blocks,) * federation.num_silos
    simulation = Simulation(federation, chosen, objective, settings)
    run = _Run(federation, simulation, simulation.init(), apart)
    if out is not None:
        described = config or _describe(chosen, objective, settings, rounds, evaluate_every)
        run.attach(Path(out), described, evaluate_every if resume else None)
    due = run.round % evaluate_every == 0 or run.round == rounds
    if due and (not run.history or run.history[-1].round < run.round):
        run.evaluate()
    observe(Progress(run.round, rounds, run.history[-1]))
    while run.round < rounds and not run.diverged:
        if should_stop():
            return run.result("interrupted")
        target = min(rounds, (run.round // evaluate_every + 1) * evaluate_every)
        run.advance(target)
        record = run.evaluate() if run.round == target else None
        observe(Progress(run.round, rounds, record))
    return run.result("diverged" if run.diverged else "finished")


class _Run:
    """The moving parts of one training run."""

    def __init__(self, federation: Federation, simulation: Simulation, hub_blocks: list[Tree], apart: Apart) -> None:
        self.federation, self.simulation, self.hub_blocks = federation, simulation, hub_blocks
        self.apart = apart
        self.round, self.seconds = 0, 0.0
        self.history: list[Record] = []
        self.folder: RunFolder | None = None
        self.names = [silo.name for silo in federation.silos]
        self.parameters = [sum(leaf.size for leaf in jax.tree.leaves(block)) for block in hub_blocks]
        self._pace, self._saved_at = 1.0, -math.inf
        self._finite = (hub_blocks, 0)

    @property
    def diverged(self) -> bool:
        return self.history[-1].diverged

    def attach(self, path: Path, config: Mapping[str, Any], resume_every: int | None) -> None:
        """Write to ``path`` from now on; to resume, take up what is there, evaluated every so many rounds."""
        if resume_every is None:
            self.folder = RunFolder.create(path, config, describe(self.federation, self.parameters))
            return
        self.folder = RunFolder.open(path)
        self.hub_blocks, self.round = self.folder.load_blocks(self.names, self.hub_blocks)
        self.history = self.folder.rewind(self.round, resume_every)
        self.seconds = self.history[-1].seconds if self.history else 0.0
        self._finite = (self.hub_blocks, self.round)
        self.folder.write_config(config)

    def advance(self, target: int) -> None:
        """Run towards round ``target``, for as many rounds as fit in one call's time."""
        count = min(target - self.round, max(1, int(self._pace)))
        began = time.perf_counter()
        self.hub_blocks = self.simulation.advance(self.hub_blocks, self.round, count)
        jax.block_until_ready(self.hub_blocks)  # type: ignore[no-untyped-call]
        elapsed = time.perf_counter() - began
        self._pace = min(2 * max(self._pace, count), count * SECONDS_PER_CALL / max(elapsed, 1e-9))
        self.round += count
        self.seconds += elapsed

    def evaluate(self) -> Record:
        """Add a record of the global model as it is, and a checkpoint when one is due."""
        simulation, federation, settings = self.simulation, self.federation, self.simulation.settings
        loss = simulation.objective.loss
        scores = simulation.scores(self.hub_blocks)
        train_loss = simulation.loss(self.hub_blocks, scores, federation.labels)
        figures = {"train": metrics(loss, scores, federation.labels, federation.label_scale)}
        test_loss = None
        if federation.test_labels is not None:
            held_out = [silo.test_features for silo in federation.silos if silo.test_features is not None]
            scores = simulation.scores(self.hub_blocks, held_out)
            test_loss = simulation.loss(self.hub_blocks, scores, federation.test_labels)
            figures["test"] = metrics(loss, scores, federation.test_labels, federation.label_scale)
        record = Record(
            round=self.round,
            iteration=self.round * settings.local_steps,
            train_loss=train_loss,
            test_loss=test_loss,
            metrics=figures,
            bytes=by_link(self._sent(), "bytes") * self.round,
            messages=by_link(self._sent(), "messages") * self.round,
            seconds=round(self.seconds, 6),
        )
        self.history.append(record)
        if self.folder is not None:
            self.folder.append(record)
        if not record.diverged:
            self._finite = (self.hub_blocks, self.round)
            if time.monotonic() - self._saved_at > SECONDS_PER_CHECKPOINT:
                self._checkpoint()
        return record

    def _sent(self) -> tuple[Sent, ...]:
        """The messages of one round."""
        simulation, settings = self.simulation, self.simulation.settings
        return round_messages(
            self.parameters,
            [silo.num_clients for silo in self.federation.silos],
            samples=num_exchanged(settings.minibatches, settings.local_steps) * simulation.batch_size,
            outputs=simulation.num_outputs,
            itemsize=np.dtype(settings.dtype).itemsize,
            apart=self.apart,
        )

    def _checkpoint(self) -> None:
        if self.folder is not None:
            self.folder.save_blocks(self.names, self.hub_blocks, self.round)
            self._saved_at = time.monotonic()

    def result(self, status: Status) -> Result:
        """Close the run: the last finite model is the one that stays."""
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.hub_blocks))
        if status == "diverged" or not finite:
            self.hub_blocks, self.round = self._finite
        self._checkpoint()
        folder = None if self.folder is None else self.folder.path
        blocks = dict(zip(self.names, self.hub_blocks, strict=True))
        return Result(self.history, blocks, self.round, status, self.simulation, folder)


def _describe(
    blocks: Sequence[Block], objective: Objective, settings: Settings, rounds: int, evaluate_every: int
) -> dict[str, Any]:
    chosen = asdict(settings)
    return {
        "seed": chosen.pop("seed"),
        "dtype": chosen.pop("dtype"),
        "model": {"block": [repr(block) for block in blocks], **asdict(objective)},
        "train": {"rounds": rounds, **chosen},
        "evaluate": {"every": evaluate_every},
    }
