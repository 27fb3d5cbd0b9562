"""What ``--with`` names: baselines, models of scikit-learn, and TDCD with other settings, as ``tdcd,overlap=2``."""

import difflib
import tomllib
from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

from tdcd.compare.baselines import BASELINES
from tdcd.compare.scikit_learn import MODELS
from tdcd.config import ConfigError, check_config
from tdcd.config.members import variant_of, with_steps
from tdcd.config.resolve import Plan, settings_of
from tdcd.config.schema import Config, ExchangeSection, TrainSection
from tdcd.training.sweep.runner import planned as plan_again
from tdcd.training.sweep.runner import with_arrays_of

NOT_VARIED = ("algorithm", "silo", "rounds", "folder", "precision", "engine")
"""Keys under ``[train]`` that say how long, where or on what to train, and not how."""
SECTIONS = {
    **{key: "train" for key in TrainSection.model_fields if key not in NOT_VARIED},
    **dict.fromkeys(ExchangeSection.model_fields, "exchange"),
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
    config = _as_many_steps(check_config(keys, where), planned.config)
    settings = settings_of(config)
    try:
        settings.effective_batch_size(planned.federation.num_samples)
    except ValueError as error:
        raise ConfigError([f"train.{error}"], where) from None
    settings, variant = with_steps(config, settings, variant_of(config))
    settings = settings.at(planned.federation.num_samples)
    changed = planned._replace(config=config, settings=settings, variant=variant)
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
