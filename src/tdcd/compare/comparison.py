"""TDCD and what it is compared with: planned, run, and their rounds timed on a network. The network changes no run.

``--with`` names the entries: baselines, models of scikit-learn, and TDCD with other settings, as ``tdcd,overlap=2``.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from tdcd.compare.baselines import BASELINES, baseline_plans
from tdcd.compare.compute import Compute, given, measured
from tdcd.compare.prediction import Prediction, predict
from tdcd.compare.running import num_runs, run_entries
from tdcd.compare.scikit_learn import MODELS, JoinedModel, fit_all, joined_plan
from tdcd.config import Config, ConfigError, LinkSection, NetworkSection, check_config
from tdcd.config.losses import combine_of
from tdcd.config.members import is_scalable, variant_of, with_steps
from tdcd.config.resolve import Plan, settings_of
from tdcd.config.schema import ExchangeSection, TrainSection
from tdcd.core.network import Link, Network, preset
from tdcd.core.settings import AUTO
from tdcd.records.history import Record
from tdcd.records.run_folder import RecordedRun
from tdcd.simulation.simulate import Simulation
from tdcd.training.sweep.runner import SweepProgress, plan_alike, with_arrays_of
from tdcd.training.sweep.runner import planned as plan_again
from tdcd.training.train import Progress, ledger_of, simulate

NOT_VARIED = ("algorithm", "silo", "start", "rounds", "folder", "precision", "engine")
"""Keys under ``[train]`` that say how long, where or on what to train, and not how."""
SECTIONS = {
    **{key: "train" for key in TrainSection.model_fields if key not in NOT_VARIED},
    **dict.fromkeys(ExchangeSection.model_fields, "exchange"),
    **dict.fromkeys(("head", "head_units", "head_rank"), "model"),
}
"""The keys that a variant may change, and the section that each is in."""
CLIENTS, PERIOD = "clients", "period."


class Entry(NamedTuple):
    """A baseline, a model of scikit-learn, or TDCD with some keys changed."""

    name: str
    changes: tuple[tuple[str, str], ...] = ()
    """Keys, and their values as they were written."""

    @property
    def label(self) -> str:
        """The name in tables and of its run folder."""
        return ",".join([self.name, *(f"{key}={text}" for key, text in self.changes)])


def parse_entries(texts: Sequence[str], silos: Sequence[str]) -> list[Entry]:
    """The entries that ``texts`` name, or all that is wrong with them at once.

    Names have commas between them; what has an equals sign changes the TDCD before it.

    Args:
        silos: their names.

    >>> [entry.label for entry in parse_entries(["sgd, fedbcd", "tdcd,overlap=2,period.lab=4"], ["lab", "bank"])]
    ['sgd', 'fedbcd', 'tdcd,overlap=2,period.lab=4']
    """
    entries: list[Entry] = []
    problems: list[str] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        own: list[Entry] = []
        for part in parts:
            key, equals, value = (side.strip() for side in part.partition("="))
            if not equals:
                own.append(Entry(part))
            elif own and own[-1].name == "tdcd":
                own[-1] = Entry("tdcd", (*own[-1].changes, (key, value)))
                problems += _wrong_key(text, key, silos)
            else:
                problems.append(f"--with {text}: '{part}' changes nothing; write tdcd before it, as in tdcd,{part}")
        problems += [problem for entry in own for problem in _wrong_name(entry)]
        entries += own
    if problems:
        raise ConfigError(problems, "what to compare with")
    return entries


def _wrong_name(entry: Entry) -> list[str]:
    if entry.name == "tdcd":
        return [] if entry.changes else ["--with tdcd: it is there anyway; say what to change, as in tdcd,overlap=2"]
    if entry.name in (*BASELINES, *MODELS):
        return []
    listed = ", ".join((*BASELINES, *MODELS))
    return [f"--with {entry.name}: there is no such baseline; there are {listed}, and tdcd,KEY=VALUE"]


def _wrong_key(text: str, key: str, silos: Sequence[str]) -> list[str]:
    keys = [*SECTIONS, CLIENTS, *(PERIOD + silo for silo in silos)]
    if key in keys:
        return []
    near = difflib.get_close_matches(key, keys, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return [f"--with {text}: there is no key '{key}' that changes how TDCD trains.{hint} There are {', '.join(keys)}"]


def changed_plan(planned: Plan, entry: Entry) -> Plan:
    """TDCD's plan with an entry's keys, for as many local steps."""
    keys, where = planned.config.model_dump(), f"--with {entry.label}"
    for key, text in entry.changes:
        value = _toml_value(text)
        if key.startswith(PERIOD):
            _set_period(keys, planned.config, key.removeprefix(PERIOD), value)
        elif key == CLIENTS:
            _set_clients(keys, value, where)
        else:
            keys[SECTIONS[key]][key] = value
    if planned.config.train.is_automatic and is_scalable(planned.config) and keys["model"]["head"] != "sum":
        # Steps that are scaled by curvature are of sums; a head takes those of networks, for as many rounds.
        keys["train"] |= {"local_steps": AUTO, "batch_size": AUTO, "minibatches": "fresh"}
    config = _as_many_steps(check_config(keys, where), planned.config)
    settings = settings_of(config)
    try:
        settings.effective_batch_size(planned.federation.num_samples)
    except ValueError as error:
        raise ConfigError([f"train.{error}"], where) from None
    settings, variant = with_steps(config, settings, variant_of(config))
    settings = settings.at(planned.federation.num_samples)
    objective = replace(planned.objective, combine=combine_of(config.model))
    changed = planned._replace(config=config, settings=settings, variant=variant, objective=objective)
    if config.client_counts == planned.config.client_counts:
        return changed
    split = plan_again(config, planned.execution.devices)
    federation = with_arrays_of(split.federation, planned.federation)
    return changed._replace(federation=federation, assembled=split.assembled)


def _toml_value(text: str) -> Any:
    """What is not TOML is taken as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _set_clients(keys: dict[str, Any], clients: Any, where: str) -> None:
    """Give every silo so many clients."""
    if any(silo["client"] for silo in keys["silos"]):
        raise ConfigError([f"clients = {clients}: the tables of [[silos.client]] say who holds which rows"], where)
    if not keys["silos"]:
        keys["federation"][CLIENTS] = clients
    for silo in keys["silos"]:
        silo[CLIENTS] = clients


def _set_period(keys: dict[str, Any], config: Config, name: str, period: Any) -> None:
    """Give a silo a period; silos that are only counted get entries of their own first."""
    if not keys["silos"]:
        counted = zip(config.silo_names, config.client_counts, strict=True)
        keys["silos"] = [{"name": silo, "clients": clients} for silo, clients in counted]
        keys["federation"] |= {"silos": None, "clients": None}
    for silo in keys["silos"]:
        if silo["name"] == name:
            silo["period"] = period


def _as_many_steps(config: Config, before: Config) -> Config:
    """As many local steps in all as before, and evaluated at the same ones, as far as rounds allow."""
    steps, others = before.train.local_steps, config.train.local_steps
    if steps == others or isinstance(steps, str) or isinstance(others, str):
        return config
    times = steps / others
    train = config.train.model_copy(update={"rounds": ceil(before.train.rounds * times)})
    evaluate = config.evaluate.model_copy(update={"every": max(1, round(before.evaluate.every * times))})
    return config.model_copy(update={"train": train, "evaluate": evaluate})


def computes_alike(planned: Plan, tdcd: Plan) -> bool:
    """Whether a client's phi and local steps are the same work."""
    settings = replace(planned.settings, step_size=tdcd.settings.step_size)
    same_phi = planned.federation is tdcd.federation and planned.objective.combine == tdcd.objective.combine
    return same_phi and (settings, planned.variant.update) == (tdcd.settings, tdcd.variant.update)


def time_rounds(
    planned: Plan, folder: Path, network: Network, step_seconds: float | None, slower: Mapping[str, float]
) -> tuple[Compute, Prediction]:
    """What a client takes, as given or measured once and kept in ``folder``, and what rounds do."""
    simulation = simulate(planned)
    if step_seconds is None:
        compute = _measured_once(planned, simulation, folder / "compute.json")
    else:
        compute = given(step_seconds, planned)
    ledger = ledger_of(simulation, simulation.init().blocks, planned)
    return compute, predict(planned, ledger, network, compute, slower)


def _measured_once(planned: Plan, simulation: Simulation, path: Path) -> Compute:
    """Measured, and kept next to the run: the same folder gives the same page."""
    if path.exists():
        try:
            return Compute(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and the time is measured again") from None
    compute = measured(planned, simulation)
    path.write_text(json.dumps(compute._asdict()) + "\n")
    return compute


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
