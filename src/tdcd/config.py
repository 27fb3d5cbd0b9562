"""The TOML configuration: its schema, and errors that name the key, the value and what is allowed."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tdcd.algorithm import Gradient
from tdcd.baselines import Algorithm
from tdcd.data import SOURCES
from tdcd.network import Preset
from tdcd.objective import Loss
from tdcd.partition import RowRule
from tdcd.schedule import Minibatches
from tdcd.settings import Dtype

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]
BlockName = Literal["linear", "mlp", "cnn", "torch"]


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one line each."""

    def __init__(self, problems: Sequence[str], where: str = "the configuration") -> None:
        """Join ``problems`` under a heading that names ``where`` they are."""
        self.problems = list(problems)
        count = f"{len(self.problems)} problem" + ("s" if len(self.problems) > 1 else "")
        super().__init__(f"{where} has {count}:\n" + "\n".join(f"  {problem}" for problem in self.problems))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataSection(_Section):
    """Which samples to train on."""

    source: str = "digits"
    """One of the names in ``tdcd.data.SOURCES``."""
    standardize: bool = True
    """Features, and the labels of a regression, to mean 0 and variance 1."""
    rows: Positive | None = None
    """How many samples to draw; all by default."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the samples drawn and held out, so that runs with different seeds can share them."""
    folder: str | None = None
    """Where downloaded data is kept; by default the environment variable TDCD_DATA, or a cache in the home."""


class SiloSection(_Section):
    """A silo by its columns' names."""

    name: Name
    columns: Annotated[list[str], Field(min_length=1)]


class FederationSection(_Section):
    """Who holds which columns and rows."""

    silos: Positive | Annotated[list[SiloSection], Field(min_length=1)] = 2
    clients: Positive | Annotated[list[Positive], Field(min_length=1)] = 5
    rows: RowRule = "shuffled"
    sizes: list[PositiveFloat] | list[list[PositiveFloat]] | None = None
    """Relative shard sizes, one a client, or one such list a silo."""
    alpha: PositiveFloat = 1.0
    """Concentration of a Dirichlet split: the smaller, the more the clients' labels differ."""
    aligned: bool = False
    strips: bool | None = None
    """Cut images into upright strips (the default for images) rather than into runs of pixels."""
    bias: bool | None = None
    """Give the first silo a column of ones; by default for linear blocks."""


class ModelSection(_Section):
    """What each silo trains."""

    block: BlockName | Annotated[list[BlockName], Field(min_length=1)] = "mlp"
    """One for all silos, or one each."""
    hidden: list[Positive] = [32]
    """Widths of an mlp's hidden layers."""
    channels: Annotated[list[Positive], Field(min_length=1)] = [64, 64]
    """Of a cnn's convolutions."""
    kernel: Annotated[list[Positive], Field(min_length=2, max_length=2)] = [5, 3]
    """Height and width of a cnn's convolutions."""
    embedding: Positive = 256
    """Width of a cnn's last hidden layer."""
    module: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] | None = None
    """For torch blocks, ``package.module:function``: called without arguments, it returns the nn.Module."""
    loss: Loss | None = None
    """By default the one that fits the labels."""
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class TrainSection(_Section):
    """Algorithm 1."""

    algorithm: Algorithm = "tdcd"
    """TDCD, or a baseline that takes as many local steps."""
    silo: str | None = None
    """The silo that trains alone, for ``local-sgd``."""
    rounds: Annotated[int, Field(ge=0)] = 200
    local_steps: Positive = 10
    batch_size: Positive = 128
    step_size: PositiveFloat = 0.05
    minibatches: Minibatches = "fresh"
    gradient: Gradient = "unbiased"


class EvaluateSection(_Section):
    """When and on what the global model is measured."""

    every: Positive = 5
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The fraction of samples that nobody trains on."""


class LinkSection(_Section):
    """One kind of link."""

    latency_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    mbit_s: PositiveFloat


class NetworkSection(_Section):
    """The links that ``tdcd plan`` and ``tdcd compare`` predict times for; no run depends on them."""

    preset: Preset = "wan"
    client_hub: LinkSection | None = None
    """In place of the preset's link between a client and its hub."""
    hub_hub: LinkSection | None = None
    """In place of the preset's link between two hubs."""
    step_ms: PositiveFloat | None = None
    """What a client takes for one local step; by default measured on this machine."""


class Config(_Section):
    """A whole configuration. Every key has a default; the defaults are the demo."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    dtype: Dtype = "float32"
    data: DataSection = DataSection()
    federation: FederationSection = FederationSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    network: NetworkSection = NetworkSection()


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a TOML file, not yet checked."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError([f"there is no such file: {path}"]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"not valid TOML: {error}"], str(path)) from None


def check_config(keys: Mapping[str, Any], where: str = "the configuration") -> Config:
    """The configuration that ``keys`` describe, or all that is wrong with them at once.

    >>> check_config({"train": {"rouns": 5, "step_size": -1.0}})
    Traceback (most recent call last):
    tdcd.config.ConfigError: the configuration has 2 problems:
      train.step_size = -1.0: must be greater than 0
      train.rouns: there is no such key; did you mean 'rounds'?
    """
    problems: list[str] = []
    config = Config()
    try:
        config = Config.model_validate(dict(keys))
    except ValidationError as error:
        problems += _problems(error, keys)
    source = keys.get("data", {}).get("source") if isinstance(keys.get("data"), Mapping) else None
    if isinstance(source, str) and source not in SOURCES:
        problems.append(f"data.source = {source!r}: must be one of {', '.join(map(repr, SOURCES))}")
    problems += _cross_checks(config)
    if problems:
        raise ConfigError(problems, where)
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


def _cross_checks(config: Config) -> list[str]:
    """What is wrong between keys that are right by themselves."""
    federation, problems = config.federation, []
    num_silos = federation.silos if isinstance(federation.silos, int) else len(federation.silos)
    for key, value in (("federation.clients", federation.clients), ("model.block", config.model.block)):
        if isinstance(value, list) and len(value) != num_silos:
            problems.append(f"{key} = {value}: has {len(value)} entries, but there are {num_silos} silos")
    if not isinstance(federation.silos, int):
        names = [silo.name for silo in federation.silos]
        problems += [f"federation.silos: two silos are called '{n}'" for n in sorted(set(names)) if names.count(n) > 1]
    blocks = [config.model.block] if isinstance(config.model.block, str) else config.model.block
    if "torch" in blocks and config.model.module is None:
        problems.append("model.module: is missing; a torch block needs 'package.module:function'")
    if federation.aligned and isinstance(federation.clients, list) and len(set(federation.clients)) > 1:
        problems.append(
            f"federation.clients = {federation.clients}: silos that split the rows alike have as many clients"
        )
    if federation.sizes is not None and federation.rows == "dirichlet":
        problems.append("federation.sizes: rows = 'dirichlet' draws the shard sizes itself; leave sizes out")
    if (config.train.algorithm == "local-sgd") != (config.train.silo is not None):
        problems.append("train.silo: give it with algorithm = 'local-sgd', which trains that silo alone, and only then")
    return problems


def _problems(error: ValidationError, keys: Mapping[str, Any]) -> list[str]:
    """One line per key that is wrong; what the members of a union say about it is joined."""
    found: dict[tuple[int | str, ...], list[str]] = {}
    for item in error.errors():
        path, model = _locate(item["loc"], unknown=item["type"] == "extra_forbidden")
        found.setdefault(path, []).append(_explain(item["type"], item["msg"], path, model))
    # A list that is wrong inside was meant as a list: the complaint that it is no number adds nothing.
    deepest = [p for p in found if not any(len(q) > len(p) and q[: len(p)] == p for q in found)]
    lines = []
    for path in deepest:
        value = _value(keys, path)
        shown = "" if value is None or found[path][0].startswith("there is no such key") else f" = {value!r}"
        lines.append(".".join(map(str, path)) + shown + ": " + " or ".join(dict.fromkeys(found[path])))
    return lines


def _explain(kind: str, message: str, path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), list(model.model_fields), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "the keys here are " + ", ".join(model.model_fields)
        return f"there is no such key; {hint}"
    fixed = {
        "missing": "is missing",
        "string_pattern_mismatch": "must be letters, digits, '_', '.' and '-', and begin with a letter or digit",
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "bool_type": "must be true or false",
        "model_type": "must be a table of keys",
    }
    if kind == "string_pattern_mismatch" and path[-1] == "module":
        return "must be 'package.module:function'"
    if kind == "too_short":
        return "must not be empty" if "at least 1 " in message else message.replace("List should", "must")
    return fixed.get(kind, message.replace("Input should be", "must be").replace("a valid ", "a "))


def _locate(loc: tuple[int | str, ...], unknown: bool) -> tuple[tuple[int | str, ...], type[BaseModel]]:
    """The user's key path in a pydantic location, without the names of union members, and the section it is in."""
    path: list[int | str] = []
    model: type[BaseModel] = Config
    for part in loc[:-1] if unknown else loc:
        if isinstance(part, int) or part in model.model_fields:
            path.append(part)
            if isinstance(part, str):
                annotation = model.model_fields[part].annotation
                model = next((kind for kind in (annotation, *get_args(annotation)) if _is_model(kind)), model)
        elif "SiloSection" in part:
            model = SiloSection
    return (*path, *loc[len(loc) - unknown :]), model


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _value(keys: Any, path: tuple[int | str, ...]) -> Any:
    for part in path:
        try:
            keys = keys[part]
        except (KeyError, IndexError, TypeError):
            return None
    return keys
