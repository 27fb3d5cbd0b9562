"""Running TDCD and its baselines, each into a run folder of its own, and timing their rounds on a network.

A run that is finished is not run again, and one that was interrupted continues. The network changes no run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tdcd.compare.compute import Compute, given, measured
from tdcd.compare.prediction import Prediction, predict
from tdcd.config import Config, ConfigError, LinkSection, NetworkSection
from tdcd.config.baselines import BASELINES, baseline_plans
from tdcd.config.resolve import Plan, plan
from tdcd.core.network import Link, Network, preset
from tdcd.records.history import Record
from tdcd.report.folder import Run
from tdcd.simulation.simulate import Simulation
from tdcd.training.run import finish, simulate
from tdcd.training.sweep.runner import SweepProgress
from tdcd.training.train import Progress, ledger_of


@dataclass(frozen=True)
class Contender:
    """One algorithm's run, and what its rounds would take on the network."""

    label: str
    silo: str | None
    """The silo that trained alone, where one did."""
    run: Run
    compute: Compute
    prediction: Prediction

    @cached_property
    def _ends(self) -> list[float]:
        return self.prediction.ends(self.run.history[-1].round)

    def seconds(self, record: Record) -> float:
        """The predicted time until this record's round is over."""
        return self._ends[record.round]

    def reached(self, loss: float) -> Record | None:
        """The first evaluation at which the training loss is at most ``loss``; none if it never is."""
        return next((record for record in self.run.history if record.train_loss <= loss), None)


@dataclass(frozen=True)
class Comparison:
    """All contenders, TDCD first."""

    network: Network
    contenders: tuple[Contender, ...]

    @property
    def tdcd(self) -> Contender:
        """The one that the others are compared with."""
        return self.contenders[0]

    @property
    def together(self) -> list[Contender]:
        """Those that train on the columns of all silos."""
        return [contender for contender in self.contenders if contender.silo is None]

    @property
    def silo_only(self) -> list[Contender]:
        """Those that train on the columns of one."""
        return [contender for contender in self.contenders if contender.silo is not None]


def plan_all(config: Config, names: Sequence[str], devices: int | None = 1) -> dict[str, Plan]:
    """TDCD's plan and those of the baselines ``names``, by label; ``devices`` as for :func:`.plan`."""
    problems = [
        f"--with {name}: there is no such baseline; there are {', '.join(BASELINES)}"
        for name in names
        if name not in BASELINES
    ]
    if config.train.algorithm != "tdcd":
        problems.append(f"train.algorithm = {config.train.algorithm!r}: a comparison starts from TDCD; leave it out")
    if problems:
        raise ConfigError(problems)
    # No run depends on the network: with another one, the runs that are there still serve.
    planned = plan(config.model_copy(update={"network": NetworkSection()}), devices=devices)
    plans = {"tdcd": planned}
    for name in names:
        plans |= baseline_plans(name, planned)
    return plans


def network_of(section: NetworkSection) -> Network:
    """The network that a configuration describes: its own figures where it gives them, else the preset's."""

    def link(own: LinkSection | None, default: Link) -> Link:
        return default if own is None else Link.of(own.latency_ms, own.mbit_s)

    named = preset(section.preset)
    return Network(link(section.client_hub, named.client_hub), link(section.hub_hub, named.hub_hub))


def compare(
    plans: Mapping[str, Plan],
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
    contenders = []
    for place, (label, planned) in enumerate(plans.items()):

        def news(progress: Progress, label: str = label, before: int = place) -> None:
            observe(SweepProgress(label, 1, progress, before + progress.round / max(progress.rounds, 1)))

        finish(planned, out / label, observe=news, should_stop=should_stop)
        contenders.append(_gather(label, planned, out / label, network, step_seconds, slower or {}))
    return Comparison(network, tuple(contenders))


def _gather(
    label: str, planned: Plan, folder: Path, network: Network, step_seconds: float | None, slower: Mapping[str, float]
) -> Contender:
    run, simulation = Run.read(folder), simulate(planned)
    if step_seconds is None:
        compute = _measured_once(planned, simulation, folder / "compute.json")
    else:
        compute = given(step_seconds, planned)
    ledger = ledger_of(simulation, simulation.init().blocks, planned.colocation)
    prediction = predict(planned, ledger, network, compute, slower)
    return Contender(label, planned.config.train.silo, run, compute, prediction)


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
