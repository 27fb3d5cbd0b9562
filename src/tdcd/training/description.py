"""A run in the words of a configuration, and how it differs from what a run folder says.

A run of a TOML file is its configuration. What Python hands over has the same keys where a configuration has words for
it, and else words that differ if the values do, in whatever process: see :func:`identity`.
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from itertools import takewhile
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from tdcd.blocks import Block
from tdcd.config.resolve import Plan, block_keys, one_or_each
from tdcd.core.choices import PYTHON
from tdcd.core.losses import Huber
from tdcd.core.objective import Objective
from tdcd.core.settings import AUTO
from tdcd.core.variant import Variant

ROUNDS = "train.rounds"
"""The only setting that may differ when a run is resumed."""
UNSAID: Mapping[str, Any] = {
    "train.variant": None,
    "federation.label_epsilon": None,
    "evaluate.patience": None,
    "evaluate.keep": "last",
}
"""Keys that mean as much if they are missing: without a variant of its own, a run is what the other keys say."""
SHOWN = 80
"""Characters of a value that a message shows."""
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype)
"""Values that Python shows as they are."""
_UNKNOWN = re.compile(r"<unknown ([\w.<>]+)>")

OWN = ("aggregate", "key")
"""What a silo's tables are read by that is of its own."""


def describe(plan: Plan) -> dict[str, Any]:
    """What Python handed over, in the keys of a configuration."""
    chosen, objective, evaluate = asdict(plan.settings), plan.objective, plan.config.evaluate
    chosen.pop("limits_batch")
    if plan.variant.is_steered:
        chosen |= {"step_size": AUTO, "tol": plan.config.train.tol}
    silos = plan.federation.silos
    # All silos' tables were read alike, but for what is of each silo's own.
    reading = {key: value for key, value in silos[0].reading.items() if key not in OWN}
    own = {
        "id": {silo.name: silo.id_column for silo in silos if silo.id_column},
        **{key: {silo.name: silo.reading[key] for silo in silos if key in silo.reading} for key in OWN},
    }
    reading |= {key: by_silo for key, by_silo in own.items() if by_silo}
    return {
        "seed": chosen.pop("seed"),
        "dtype": chosen.pop("dtype"),
        "data": {"source": PYTHON, "keep": plan.execution.keep, **reading},
        "federation": {"label_epsilon": objective.label_epsilon},
        "model": {**_model(plan.blocks), **_loss(objective), **objective.combine.keys, "l2": objective.l2},
        "train": {
            "rounds": plan.config.train.rounds,
            **chosen,
            **_member(plan.variant),
            "precision": plan.execution.precision,
        },
        "evaluate": {"every": evaluate.every, "patience": evaluate.patience, "keep": evaluate.keep},
    }


def _model(blocks: Sequence[Block]) -> dict[str, Any]:
    """The blocks as a configuration has them; where it has no words for them, in words of their own."""
    return block_keys(blocks) or {"block": one_or_each([identity(block) for block in blocks])}


def _loss(objective: Objective) -> dict[str, Any]:
    """The loss as a configuration has it; one of the user's own that no configuration could name, in its own words."""
    loss = objective.loss
    if isinstance(loss, str):
        return {"loss": loss}
    if isinstance(loss, Huber):
        return {"loss": loss.name, "huber_delta": loss.delta}
    with suppress(Exception):
        if importable(type(loss)) and type(loss)() == loss:
            return {"loss": f"{type(loss).__module__}:{type(loss).__qualname__}"}
    return {"loss": identity(loss)}


def _member(variant: Variant) -> dict[str, Any]:
    """The variant as a configuration has Algorithm 1, or the parts that differ in words of their own."""
    if variant.is_plain:
        return {"optimizer": "sgd", "schedule": "constant", "hub_optimizer": "average", "participation": 1.0}
    return {"variant": ", ".join(f"{part}={identity(getattr(variant, part))}" for part in variant.changed)}


def differences(asked: Mapping[str, Any], recorded: Mapping[str, Any], free: Sequence[str] = (ROUNDS,)) -> list[str]:
    """What is asked for that the folder's run does not have: one line per key, with both values.

    A key that one of them lacks, such as one that a later version added, is not compared. A value that could be another
    although its words are the same counts as different.

    >>> differences({"train": {"rounds": 9, "step_size": 0.1}}, {"train": {"rounds": 5, "step_size": 0.05}})
    ['train.step_size = 0.1: the run has 0.05; give that, or another folder']
    >>> moved = ["tdcd.core.family.momentum.ClientMomentum(0.9)", "tdcd.core.momentum.ClientMomentum(0.9)"]
    >>> differences(*({"train": {"variant": f"update={variant}"}} for variant in moved))
    []

    Args:
        free: the keys that may differ.
    """
    before, now = ({**UNSAID, **dict(_flat(keys))} for keys in (recorded, asked))
    unknown = {key: unknown_in(str(now[key])) for key in ("train.variant", "model.block", "model.loss") if key in now}
    return [
        f"{key}: a run folder cannot distinguish one {kind} from another, so such a run cannot be resumed: make it a "
        "frozen dataclass that holds numbers, texts, arrays or functions"
        for key, kind in unknown.items()
        if kind
    ] + [
        "{} = {}: the run has {}; give that, or another folder".format(key, *_short(value, before[key]))
        for key, value in now.items()
        if key in before and key not in free and _without_modules(value) != _without_modules(before[key])
        # Python may hand over the very data that a configuration names: federation.json shows whether it fits.
        if (key, value) != ("data.source", PYTHON)
        # A hub does not know the names of other silos' columns.
        if not (key.endswith(".columns") and [] in (value, before[key]))
    ]


def _without_modules(value: Any) -> Any:
    """The words of a value without the modules of this package, whose classes may have moved since the run began.

    >>> _without_modules("dropout=tdcd.core.dropout.SiloDropout(rate=0.3)")
    'dropout=tdcd.SiloDropout(rate=0.3)'
    """
    return re.sub(r"\btdcd\.(?:\w+\.)+", "tdcd.", value) if isinstance(value, str) else value


def _flat(keys: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as dotted ones; entries of a list that have a name go by it."""
    for key, value in keys.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _flat(value, dotted)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
            yield dotted, [item["name"] for item in value]
            yield from _flat({item["name"]: item for item in value}, dotted)
        else:
            yield dotted, one_or_each(value) if key == "block" and isinstance(value, list) else value


def _short(*values: Any) -> list[str]:
    """Different values, each cut to a few characters from where they begin to differ."""
    texts = [repr(value) for value in values]
    same = len([*takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))])
    start = max(0, same - SHOWN // 2) if min(map(len, texts)) > SHOWN else 0
    return [
        ("..." if start else "") + text[start : start + SHOWN] + ("..." if start + SHOWN < len(text) else "")
        for text in texts
    ]


def identity(value: Any, within: tuple[Any, ...] = ()) -> str:
    """A value in words.

    A function that can be imported counts by its name. One that cannot, such as a lambda or what an Optax optimiser is
    made of, counts by its code and by what it uses: its defaults, its closure, and what it reads from its module.
    Objects count by their attributes. What cannot be distinguished from others of its kind is called unknown, see
    :func:`unknown_in`.

    >>> identity(partial(round, ndigits=2))
    "partial(builtins.round, (), {'ndigits': 2})"

    Args:
        within: what the value is a part of, to end where something is a part of itself.
    """
    if isinstance(value, PLAIN):
        return repr(value)
    if any(value is outer for outer in within):
        return "itself"
    inner = partial(identity, within=(*within, value))
    if isinstance(value, np.ndarray | jax.Array):
        return _array(value, inner)
    if isinstance(value, Mapping | Sequence | Set):
        return _container(value, inner)
    return _callable(value, inner) or _object(value, inner)


def unknown_in(words: str) -> str:
    """The type of something in the words of :func:`identity` that cannot be distinguished; empty if there is none.

    >>> unknown_in(identity([1, object()])), unknown_in(identity([1, 2]))
    ('builtins.object', '')
    """
    match = _UNKNOWN.search(words)
    return match[1] if match else ""


def _array(value: Any, inner: Any) -> str:
    is_key = isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
    numbers = np.asarray(jax.random.key_data(value) if is_key else value)
    # An array of objects holds only where they lie in memory.
    content = inner(numbers.tolist()) if numbers.dtype.hasobject else _digest(numbers.tobytes())
    return f"array({value.dtype}{[*value.shape]} {content})"


def _container(value: Any, inner: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {inner(item)}" for key, item in value.items()) + "}"
    parts = [inner(item) for item in value]
    name = "" if type(value) in (tuple, list) else _name(type(value))
    comma = "," if len(parts) == 1 else ""
    return f"{name}({', '.join(sorted(parts) if isinstance(value, Set) else parts)}{comma})"


def _callable(value: Any, inner: Any) -> str:
    """The words for a function or class; none for anything else."""
    if isinstance(value, partial):
        return f"partial({inner(value.func)}, {inner(value.args)}, {inner(value.keywords)})"
    if isinstance(value, MethodType):
        return f"{inner(value.__self__)}.{value.__name__}"
    if isinstance(value, type | ModuleType) or importable(value):
        return _name(value)
    if isinstance(value, FunctionType):
        uses = "".join(f", {name}={inner(item)}" for name, item in _uses(value))
        return f"{_name(value)}({_digest(_code(value.__code__))}{uses})"
    # What jax.jit and functools.wraps make of a function.
    wrapped = getattr(value, "__wrapped__", None)
    return "" if wrapped is None else f"{type(value).__name__}({inner(wrapped)})"


def _object(value: Any, inner: Any) -> str:
    name = _name(type(value))
    if is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "__dict__"):
        attributes = vars(value)
    else:
        return f"<unknown {name}>"
    return f"{name}({', '.join(f'{key}={inner(item)}' for key, item in attributes.items())})"


def _name(value: Any) -> str:
    """With its module, but for blocks and parts that come with the package."""
    if isinstance(value, ModuleType):
        return value.__name__
    own = isinstance(value, type) and value.__module__.startswith("tdcd.")
    return value.__qualname__ if own else f"{value.__module__}.{value.__qualname__}"


def importable(value: Any) -> bool:
    """Whether another process can find the same thing by its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    named: Any = sys.modules.get(module)
    for part in name.split("."):
        named = getattr(named, part, None)
    return named is value


def _uses(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function uses besides its arguments, by name."""
    if function.__defaults__ or function.__kwdefaults__:
        yield "defaults", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # Not assigned yet.
    for name in sorted({name for code in _codes(function.__code__) for name in code.co_names}):
        item = function.__globals__.get(name)
        if item is not None and not isinstance(item, type | ModuleType):
            yield name, item


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _code(code: CodeType) -> bytes:
    """What a function does, without where it was written."""
    return repr(
        [
            (
                function.co_code,
                function.co_names,
                [identity(item) for item in function.co_consts if not isinstance(item, CodeType)],
            )
            for function in _codes(code)
        ]
    ).encode()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
