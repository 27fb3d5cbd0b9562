"""From a TOML file to a checked configuration."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tdcd.config.checks import cross_checks
from tdcd.config.errors import ConfigError, problems_in
from tdcd.config.schema import Config
from tdcd.core.choices import PYTHON
from tdcd.data import SOURCES

HANDED_OVER = (
    "train() was handed this run's data in Python, and no file says where that is from: continue in Python, with "
    "train(..., out=FOLDER, resume=True), whose result also scores new rows"
)


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a configuration, not yet checked. A run is called as its file, unless that says otherwise; folders of
    tables and modules are absolute.
    """
    keys = read_toml(path)
    keys.setdefault("name", path.stem[:80])
    data, model, train = (keys.get(section) for section in ("data", "model", "train"))
    if isinstance(data, dict) and data.get("source") == "files":
        _beside(path, data)
    if isinstance(model, dict) and ("module" in model or ":" in f"{model.get('loss')}{model.get('block')}"):
        _beside(path, model)
    if isinstance(train, dict) and "variant" in train:
        _beside(path, train)
    return keys


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError([f"there is no such file: {path}"]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from None
    except RecursionError:
        raise ConfigError(["not valid TOML: its lists and tables are too deep in each other"], str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"not valid TOML: {error}"], str(path)) from None


def _beside(path: Path, section: dict[str, Any]) -> None:
    """Make a section's folder absolute; without one it is that of the configuration file."""
    if isinstance(section.setdefault("folder", ""), str):
        section["folder"] = str(path.absolute().parent / section["folder"])


def check_config(keys: Mapping[str, Any], where: str = "the configuration") -> Config:
    """The configuration that ``keys`` describe, or all that is wrong with them at once.

    >>> check_config({"train": {"rouns": 5, "step_size": -1.0}})
    Traceback (most recent call last):
    tdcd.config.errors.ConfigError: the configuration has 2 problems:
      train.step_size = -1.0: must be greater than 0 or must be 'auto'
      train.rouns: there is no such key; did you mean 'rounds'?
    """
    source = keys.get("data", {}).get("source") if isinstance(keys.get("data"), Mapping) else None
    if source == PYTHON:
        raise ConfigError([f"data.source = {PYTHON!r}: {HANDED_OVER}"], where)
    problems: list[str] = []
    config = Config()
    try:
        config = Config.model_validate(dict(keys))
    except ValidationError as error:
        problems += problems_in(error, keys, Config)
    if isinstance(source, str) and source not in (*SOURCES, "files"):
        problems.append(f"data.source = {source!r}: must be one of {', '.join(map(repr, (*SOURCES, 'files')))}")
    problems += cross_checks(config)
    if problems:
        raise ConfigError(problems, where)
    return config


def stored_config(keys: Mapping[str, Any], where: str, *, allow_code: bool = False) -> Config:
    """The configuration that a run folder or a model file keeps, which anyone may have written.

    Args:
        allow_code: whether the person who reads it wants the code that it names.
    """
    train = keys.get("train")
    if isinstance(train, Mapping) and "draws" not in train:
        # What was written before there was a choice.
        keys = {**keys, "train": {**train, "draws": "stream"}}
    config = check_config(keys, where)
    if not allow_code:
        from tdcd.config.user_code import refuse_code  # noqa: PLC0415 - a run of the user's own file asks nothing

        refuse_code(keys, where)
    return config


def override(keys: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """``keys`` with ``section.key=value`` assignments on top; a value that is not TOML is taken as a string.

    >>> override({}, ["train.rounds=5", "data.source=digits"])
    {'train': {'rounds': 5}, 'data': {'source': 'digits'}}
    """
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in keys.items()}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        *sections, key = path.strip().split(".")
        if not equals or not key or len(sections) > 1:
            raise ConfigError([f"--set {assignment}: write section.key=value, for example train.rounds=50"])
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        target = merged
        for section in sections:
            if not isinstance(merged.setdefault(section, {}), dict):
                raise ConfigError([f"--set {assignment}: '{section}' is not a section"])
            target = merged[section]
        target[key] = value
    return merged


def varied_keys(keys: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys that list values though the schema wants a single one, as ``section.key``, and their values.

    Keys that are lists by nature keep their meaning; a list of lists is several of them.

    >>> varied_keys({"seed": [0, 1], "train": {"local_steps": [1, 5]}, "model": {"hidden": [8, 4]}})
    {'seed': [0, 1], 'train.local_steps': [1, 5]}
    >>> varied_keys({"federation": {"clients": [[2, 2], [5, 3]]}})
    {'federation.clients': [[2, 2], [5, 3]]}
    """
    return {path: value for path, value in _values(keys) if isinstance(value, list) and _lists_values(path, value)}


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
