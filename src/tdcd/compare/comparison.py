"""TDCD and what it is compared with: planned, run, and their rounds timed on a network. The network changes no run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tdcd.compare.baselines import BASELINES, baseline_plans
from tdcd.compare.compute import Compute
from tdcd.compare.entries import Entry, changed_plan, parse_entries
from tdcd.compare.prediction import Prediction
from tdcd.compare.running import num_runs, run_entries
from tdcd.compare.scikit_learn import MODELS, JoinedModel, fit_all, joined_plan
from tdcd.compare.timing import computes_alike, time_rounds
from tdcd.config import Config, ConfigError, LinkSection, NetworkSection
from tdcd.config.resolve import Plan
from tdcd.core.network import Link, Network, preset
from tdcd.records.history import Record
from tdcd.records.run_folder import RecordedRun
from tdcd.training.sweep.runner import SweepProgress, plan_alike, with_arrays_of
from tdcd.training.train import Progress

NEAR = 0.01
"""A loss that is above TDCD's by this fraction at most is as good: the last steps of a run win next to nothing."""


@dataclass(frozen=True)
class Contender:
    """One algorithm's runs, and what their rounds would take on the network."""

    label: str
    silo: str | None
    """The silo that trained alone, where one did."""
    runs: tuple[RecordedRun, ...]
    """One per seed."""
    compute: Compute
    prediction: Prediction
    step_size: float
    tried: Mapping[float, float] = field(default_factory=dict)
    """By step size, the final training loss with the first seed; empty if it was not tuned."""
    needs: str = ""
    """What TDCD leaves where it is, and this needs in another place."""

    @property
    def title(self) -> str:
        """The label with blanks at which a line may break."""
        return self.label.replace(",", ", ")

    @property
    def run(self) -> RecordedRun:
        """The run with the configuration's seed."""
        return self.runs[0]

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
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
    joined: tuple[JoinedModel, ...] = ()
    """What scikit-learn makes of the joined table."""

    @property
    def tdcd(self) -> Contender:
        """The one that the others are compared with."""
        return self.contenders[0]

    @property
    def is_tuned(self) -> bool:
        """Whether several step sizes were tried."""
        return bool(self.tdcd.tried)

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
        """The contenders that train on the columns of all silos."""
        return [contender for contender in self.contenders if contender.silo is None]

    @property
    def silo_only(self) -> list[Contender]:
        """The contenders that train on the columns of one silo."""
        return [contender for contender in self.contenders if contender.silo is not None]


def plan_all(
    config: Config, names: Sequence[str], devices: int | None = 1, *, seeds: int = 1
) -> dict[str, tuple[Plan, ...]]:
    """The plans of TDCD and of its baselines by label, one per seed.

    Args:
        names: baselines, models of scikit-learn, and TDCD with other settings such as ``"tdcd,overlap=2"``; see
            :func:`.parse_entries`.
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
            if label in plans:
                # Columns that an entry has put side by side are in memory once.
                shared = with_arrays_of(own.federation, plans[label][0].federation)
                plans[label] = (*plans[label], own._replace(federation=shared))
            else:
                plans[label] = (own,)
    return plans


def _contenders(planned: Plan, entries: Sequence[Entry]) -> dict[str, Plan]:
    plans = {"tdcd": planned}
    for entry in entries:
        if entry.changes:
            plans[entry.label] = changed_plan(planned, entry)
        elif entry.name in MODELS:
            plans[entry.label] = joined_plan(entry.name, planned)
        else:
            plans |= baseline_plans(entry.name, planned)
    return plans


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
    tune: bool = False,
    observe: Callable[[SweepProgress], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Run what is missing under ``out`` and gather all contenders.

    Args:
        plans: from :func:`plan_all`.
        step_seconds: what a client takes for a local step; by default measured here.
        slower: how many times longer the clients of a silo compute, by its name.
        tune: every entry with its best step size of :data:`.running.GRID`.
    """
    trained = {label: by_seed for label, by_seed in plans.items() if label not in MODELS}
    entrants = run_entries(trained, out, tune=tune, observe=observe, should_stop=should_stop)
    tdcd, contenders = entrants["tdcd"], []
    for label, entrant in entrants.items():
        first = entrant.plans[0]
        # Clients that compute the same are timed once: timings differ, and would look like the variant's doing.
        timed = (tdcd if computes_alike(first, tdcd.plans[0]) else entrant).runs[0].path
        timing = time_rounds(first, timed, network, step_seconds, slower or {})
        needs = _needs(label, tdcd.plans[0])
        contenders.append(
            Contender(
                label, first.config.train.silo, entrant.runs, *timing, first.settings.step_size, entrant.tried, needs
            )
        )
    joined, done = [], num_runs(trained, tune=tune)
    for label, by_seed in plans.items():
        if label in MODELS:

            def news(fitted: int, label: str = label, before: int = done, seeds: int = len(by_seed)) -> None:
                observe(SweepProgress(label, 1, Progress(fitted, seeds, None), before + fitted))

            joined.append(fit_all(label, by_seed, out, network, observe=news, should_stop=should_stop))
            done += len(by_seed)
    return Comparison(network, tuple(contenders), slower or {}, tuple(joined))


def _needs(label: str, tdcd: Plan) -> str:
    """What an entry needs in another place than TDCD does, in words."""
    name = label.partition("/")[0]
    if name not in BASELINES:
        return ""
    has_labels = tdcd.variant.knowledge.are_labels_everywhere or name in ("sgd", "local-sgd")
    return "; ".join(filter(None, [BASELINES[name].needs, "" if has_labels else "labels at every silo"]))
