"""A configuration whose keys list several values: the settings of a sweep, all combinations of them."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tdcd.config import Config, ConfigError, check_config, override
from tdcd.config.reading import varied_keys

MOST_SETTINGS = 10_000


class Setting(NamedTuple):
    """One combination of the varied keys."""

    name: str
    """The values that make it up, such as ``local_steps=5,seed=0``; also the name of its run folder."""
    values: dict[str, Any]
    """By key, ``section.key``."""
    config: Config


@dataclass(frozen=True)
class Grid:
    """All settings of a sweep."""

    keys: dict[str, Any]
    """The configuration's keys, lists and all."""
    varied: tuple[str, ...]
    """The keys that list values, as ``section.key``."""
    settings: tuple[Setting, ...]

    @property
    def titles(self) -> dict[str, str]:
        """What each varied key is called in names and tables: its last part, if no other one ends alike."""
        return _titles(self.varied)


def expand(keys: Mapping[str, Any], where: str = "the configuration") -> Grid:
    """Every combination of the values that ``keys`` list, the last key's changing fastest; each is checked.

    >>> for setting in expand({"train": {"local_steps": [1, 5], "gradient": ["unbiased", "mean"]}}).settings:
    ...     print(setting.name)
    local_steps=1,gradient=unbiased
    local_steps=1,gradient=mean
    local_steps=5,gradient=unbiased
    local_steps=5,gradient=mean
    """
    varied = varied_keys(keys)
    problems = [f"{path} = []: list at least one value" for path, values in varied.items() if not values]
    for path, values in varied.items():
        problems += [f"{path} = {values}: lists {value!r} twice" for value in _repeated(values)]
    count = math.prod(len(values) for values in varied.values())
    if count > MOST_SETTINGS:
        problems.append(f"{', '.join(varied)}: list {count:,} settings; at most {MOST_SETTINGS:,} are run")
    if problems:
        raise ConfigError(problems, where)
    titles, settings = _titles(varied), []
    for combination in itertools.product(*varied.values()):
        chosen = dict(zip(varied, combination, strict=True))
        name = ",".join(f"{titles[path]}={_slug(value)}" for path, value in chosen.items())
        try:
            settings.append(Setting(name, chosen, check_config(_assigned(keys, chosen), where)))
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems, where)
    return Grid(dict(keys), tuple(varied), tuple(settings))


def _assigned(keys: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``keys`` with one value for each key that lists some."""
    assigned = override(keys, [])
    for path, value in values.items():
        *sections, key = path.split(".")
        target = assigned[sections[0]] if sections else assigned
        target[key] = value
    return assigned


def _titles(paths: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    last = [path.rpartition(".")[2] for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def _slug(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(_slug(part) for part in value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text)


def _repeated(values: Sequence[Any]) -> list[Any]:
    names = [_slug(value) for value in values]
    return [value for index, value in enumerate(values) if names[index] in names[:index]]
