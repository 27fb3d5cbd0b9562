"""A configuration whose keys list several values: the settings of a sweep, all combinations of them."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from tdcd.config import Config, ConfigError, check_config, override

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


def varied_keys(keys: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys that list values though the schema wants a single one, as ``section.key``, and their values.

    Keys that are lists by nature keep their meaning; a list of lists is several of them.

    >>> varied_keys({"seed": [0, 1], "train": {"local_steps": [1, 5]}, "model": {"hidden": [8, 4]}})
    {'seed': [0, 1], 'train.local_steps': [1, 5]}
    >>> varied_keys({"federation": {"clients": [[2, 2], [5, 3]]}})
    {'federation.clients': [[2, 2], [5, 3]]}
    """
    return {path: value for path, value in _values(keys) if isinstance(value, list) and _lists_values(path, value)}


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


def _lists_values(path: str, given: Sequence[Any]) -> bool:
    if path in _SINGLE:
        return True
    return path in _LISTS and bool(given) and all(isinstance(value, list) for value in given)


def _values(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys as ``section.key``, and their values."""
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", each) for inner, each in value.items())
        else:
            yield key, value


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


def _single(annotation: Any) -> bool:
    """Whether a value of this type is a single number, word or truth value."""
    if get_origin(annotation) is list or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return False
    return all(_single(part) for part in get_args(annotation))


def _schema() -> Iterator[tuple[str, Any]]:
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from ((f"{name}.{key}", inner.annotation) for key, inner in section.model_fields.items())
        else:
            yield name, section


def _flat_list(annotation: Any) -> bool:
    """Whether a value of this type is a list of such, or may be one."""
    if get_origin(annotation) is list:
        return all(_single(part) for part in get_args(annotation))
    return any(_flat_list(part) for part in get_args(annotation)) and not _nested(annotation)


def _nested(annotation: Any) -> bool:
    """Whether a value of this type may be a list of lists."""
    if get_origin(annotation) is list:
        return any(get_origin(part) is list or _nested(part) for part in get_args(annotation))
    return any(_nested(part) for part in get_args(annotation))


_SINGLE = frozenset(path for path, annotation in _schema() if _single(annotation))
"""The keys that take a single value."""
_LISTS = frozenset(path for path, annotation in _schema() if _flat_list(annotation))
"""The keys that take a list of single values."""
