"""Running TDCD and its baselines, each into a run folder of its own, and timing their rounds on a network.

A run that is finished is not run again, and one that was interrupted continues. The network changes no run.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tdcd.compare.compute import Compute, given, measured
from tdcd.compare.entries import Entry, changed_plan, parse_entries
from tdcd.compare.prediction import Prediction, predict
from tdcd.config import Config, ConfigError, LinkSection, NetworkSection
from tdcd.config.baselines import baseline_plans
from tdcd.config.resolve import Plan
from tdcd.core.network import Link, Network, preset
from tdcd.records.history import Record
from tdcd.report.folder import Run
from tdcd.simulation.simulate import Simulation
from tdcd.training.run import finish, simulate
from tdcd.training.sweep.plans import plan_alike
from tdcd.training.sweep.runner import SweepProgress
from tdcd.training.train import Progress, ledger_of

NEAR = 0.01
"""A loss that is above TDCD's by this fraction at most is as good: the last steps of a run win next to nothing."""


@dataclass(frozen=True)
class Contender:
    """One algorithm's runs, and what their rounds would take on the network."""

    label: str
    silo: str | None
    """The silo that trained alone, where one did."""
    runs: tuple[Run, ...]
    """One per seed."""
    compute: Compute
    prediction: Prediction

    @property
    def title(self) -> str:
        """The label with blanks at which a line may break."""
        return self.label.replace(",", ", ")

    @property
    def run(self) -> Run:
        """That of the configuration's seed."""
        return self.runs[0]

    @property
    def diverged(self) -> int:
        """How many of the runs did."""
        return sum(run.diverged for run in self.runs)

    @cached_property
    def _ends(self) -> list[float]:
        return self.prediction.ends(max(run.history[-1].round for run in self.runs))

    def seconds(self, record: Record) -> float:
        """The predicted time until this record's round is over."""
        return self._ends[record.round]

    def reached(self, losses: Sequence[float]) -> list[Record | None]:
        """For each run, the first evaluation at which the training loss is at most this; None if it never is.

        Args:
            losses: one per run.
        """
        return [
            next((record for record in run.history if record.train_loss <= loss), None)
            for run, loss in zip(self.runs, losses, strict=True)
        ]


@dataclass(frozen=True)
class Comparison:
    """All contenders, TDCD first."""

    network: Network
    contenders: tuple[Contender, ...]
    slower: Mapping[str, float] = field(default_factory=dict)
    """How many times longer the clients of a silo compute, by its name."""

    @property
    def tdcd(self) -> Contender:
        """The one that the others are compared with."""
        return self.contenders[0]

    @property
    def num_seeds(self) -> int:
        """Runs of each contender."""
        return len(self.tdcd.runs)

    @property
    def levels(self) -> list[float]:
        """What counts as reaching TDCD's final training loss, with each seed."""
        losses = [run.final.train_loss for run in self.tdcd.runs]
        # Corrected losses of randomised labels can be below 0.
        return [(1 + math.copysign(NEAR, loss)) * loss for loss in losses]

    @property
    def together(self) -> list[Contender]:
        """Those that train on the columns of all silos."""
        return [contender for contender in self.contenders if contender.silo is None]

    @property
    def silo_only(self) -> list[Contender]:
        """Those that train on the columns of one."""
        return [contender for contender in self.contenders if contender.silo is not None]


def plan_all(
    config: Config, names: Sequence[str], devices: int | None = 1, *, seeds: int = 1
) -> dict[str, tuple[Plan, ...]]:
    """By label the plans of TDCD and of what it is compared with, one per seed.

    Args:
        names: baselines, and TDCD with other settings such as ``"tdcd,overlap=2"``; see :func:`.parse_entries`.
        devices: as for :func:`.plan`.
        seeds: how many, from the configuration's on.
    """
    if config.train.algorithm != "tdcd":
        raise ConfigError(
            [f"train.algorithm = {config.train.algorithm!r}: a comparison starts from TDCD; leave it out"]
        )
    if seeds < 1:
        raise ConfigError([f"--seeds {seeds}: must be at least 1"])
    entries = parse_entries(names, config.silo_names)
    # No run depends on the network: with another one, the runs that are there still serve.
    plain = config.model_copy(update={"network": NetworkSection()})
    configs = [plain.model_copy(update={"seed": config.seed + number}) for number in range(seeds)]
    plans: dict[str, tuple[Plan, ...]] = {}
    for planned in plan_alike(configs, devices):
        for label, own in _contenders(planned, entries).items():
            plans[label] = (*plans.get(label, ()), own)
    return plans


def _contenders(planned: Plan, entries: Sequence[Entry]) -> dict[str, Plan]:
    found = {"tdcd": planned}
    for entry in entries:
        if entry.changes:
            found[entry.label] = changed_plan(planned, entry)
        else:
            found |= baseline_plans(entry.name, planned)
    return found


def network_of(section: NetworkSection) -> Network:
    """The network that a configuration describes: its own figures where it gives them, else the preset's."""

    def link(own: LinkSection | None, default: Link) -> Link:
        return default if own is None else Link.of(own.latency_ms, own.mbit_s)

    named = preset(section.preset)
    return Network(link(section.client_hub, named.client_hub), link(section.hub_hub, named.hub_hub))


def compare(
    plans: Mapping[str, Sequence[Plan]],
    network: Network,
    out: Path,
    *,
    step_seconds: float | None = None,
    slower: Mapping[str, float] | None = None,
    observe: Callable[[SweepProgress], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Run what is missing under ``out`` and gather all contenders.

    Args:
        plans: from :func:`plan_all`.
        step_seconds: what a client takes for a local step; by default measured here.
        slower: how many times longer the clients of a silo compute, by its name.
    """
    done, contenders = 0, []
    for label, by_seed in plans.items():
        runs = []
        for planned in by_seed:

            def news(progress: Progress, label: str = label, before: int = done) -> None:
                observe(SweepProgress(label, 1, progress, before + progress.round / max(progress.rounds, 1)))

            folder = _folder(out, label, planned, by_seed[0])
            finish(planned, folder, observe=news, should_stop=should_stop)
            runs.append(Run.read(folder))
            done += 1
        # Clients that compute the same are timed once: timings differ, and would look like the variant's doing.
        timed = out / "tdcd" if _computes_alike(by_seed[0], plans["tdcd"][0]) else runs[0].path
        compute, prediction = _predict(by_seed[0], timed, network, step_seconds, slower or {})
        contenders.append(Contender(label, by_seed[0].config.train.silo, tuple(runs), compute, prediction))
    return Comparison(network, tuple(contenders), slower or {})


def _folder(out: Path, label: str, planned: Plan, first: Plan) -> Path:
    """The first seed's runs are where those of a single seed are, so that more seeds can follow."""
    return out / label if planned.config.seed == first.config.seed else out / f"seed-{planned.config.seed}" / label


def _computes_alike(planned: Plan, tdcd: Plan) -> bool:
    """Whether a client's phi and local steps are the same work."""
    settings = replace(planned.settings, step_size=tdcd.settings.step_size)
    return planned.federation is tdcd.federation and (settings, planned.variant.update) == (
        tdcd.settings,
        tdcd.variant.update,
    )


def _predict(
    planned: Plan, folder: Path, network: Network, step_seconds: float | None, slower: Mapping[str, float]
) -> tuple[Compute, Prediction]:
    simulation = simulate(planned)
    if step_seconds is None:
        compute = _measured_once(planned, simulation, folder / "compute.json")
    else:
        compute = given(step_seconds, planned)
    ledger = ledger_of(simulation, simulation.init().blocks, planned.colocation)
    return compute, predict(planned, ledger, network, compute, slower)


def _measured_once(planned: Plan, simulation: Simulation, path: Path) -> Compute:
    """Measured, and kept beside the run: the same folder gives the same page."""
    if path.exists():
        try:
            return Compute(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and the time is measured again") from None
    compute = measured(planned, simulation)
    path.write_text(json.dumps(compute._asdict()) + "\n")
    return compute
