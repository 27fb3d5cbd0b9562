"""What messages are made of: a header that says who sends them to whom, typed arrays, and other typed fields."""

from collections.abc import Mapping
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

MOST_NUMBERS = 2**40
"""The most numbers of an array; no axis is longer."""
MOST_ARRAYS = 10_000
"""The most arrays of a block: an empty array takes a few bytes of a message, and a hundred times as many in memory."""
_ArrayName = Annotated[str, Meta(max_length=200)]


# Safetensors has its own use for one name.
_NameInFiles = Annotated[str, Meta(pattern=r"^(?!__metadata__$)[^\x00-\x1f\x7f-\x9f]{0,200}$")]
BoundedCount = Annotated[int, Meta(ge=0, lt=2**31)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Nonce = Annotated[str, Meta(pattern="^[ -~]*$")]
FeatureShape = Annotated[tuple[Annotated[int, Meta(gt=0)], ...], Meta(max_length=32)]
SettingValue = (
    str
    | bool
    | int
    | float
    | None
    | Annotated[list[None], Meta(max_length=0)]
    | Annotated[dict[str, None], Meta(max_length=0)]
)
"""A setting of the shared file, by its dotted key; a list or table only if it is empty."""
LossWord = Annotated[str, Meta(pattern=r"^[\w.]+(:\w+)?$", max_length=200)]
"""A loss, as a configuration names it."""
ClassNames = Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=1000)]
Json = str
"""A document of another module, as JSON."""
Code = Literal["<f8", "<f4", "<i8", "<i4", "|i1", "<u4", "|u1"]
DTYPES: Mapping[str, np.dtype[Any]] = {code: np.dtype(code) for code in get_args(Code)}
"""The types of numbers that arrays can have, by their names on the wire."""


class Array(msgspec.Struct, frozen=True, eq=False, dict=True, array_like=True, forbid_unknown_fields=True):
    """The type and shape of an array; its numbers follow the message's header."""

    code: Code
    # No axis is taken as it is, not even next to one of length 0.
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=MOST_NUMBERS)], ...], Meta(max_length=32)]
    # No field, which would be in the header; each array's own numbers are put into its ``__dict__``.
    values: ClassVar[NDArray[Any]]
    """The numbers."""

    @classmethod
    def of(cls, values: Any) -> Self:
        """The numbers of a NumPy array."""
        contiguous = np.asarray(values, order="C")
        code: Any = contiguous.dtype.str
        array = cls(code, contiguous.shape)
        array.__dict__["values"] = contiguous
        return array

    @classmethod
    def maybe(cls, values: Any) -> Self | None:
        """The same; None of None."""
        return None if values is None else cls.of(values)


class EvaluationFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The global model's loss and metrics: see :class:`tdcd.records.history.Record`."""

    train_loss: float
    test_loss: float | None
    metrics: dict[str, dict[str, float | None]]


Arrays = Mapping[str, NDArray[Any]]
NamedArrays = Annotated[dict[_ArrayName, Array], Meta(max_length=MOST_ARRAYS)]
"""The arrays of a block, or of an exchange, by name: those with expected names are taken, and the others left."""
NamedArraysInFiles = Annotated[dict[_NameInFiles, Array], Meta(max_length=MOST_ARRAYS)]
"""The same, if they go into a file as they are."""


def named(arrays: Arrays) -> NamedArrays:
    """NumPy arrays as a message has them."""
    by_name = {}
    for name, values in arrays.items():
        by_name[name] = Array.of(values)
    return by_name


def arrays_of(arrays: NamedArrays) -> dict[str, NDArray[Any]]:
    """What :func:`named` was given."""
    return {name: array.values for name, array in arrays.items()}


class Message(
    msgspec.Struct, frozen=True, eq=False, dict=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """One message: who sends it to whom, in which round of which run."""

    sender: str
    receiver: str
    round: int = 0
    run: str = ""
    """Which training this belongs to; empty before the hubs have agreed on it."""

    @classmethod
    def tag(cls) -> str:
        """The structure's name on the wire."""
        return str(cls.__struct_config__.tag)

    @property
    def kind(self) -> str:
        """The same, of this message."""
        return str(self.__struct_config__.tag)

    @property
    def topic(self) -> str:
        """What it is about: of several messages of a dialogue about the same, the receiver needs the last."""
        return self.kind

    @property
    def payload_bytes(self) -> int:
        """The bytes of the arrays: what the ledger counts."""
        return sum(map(_bytes_of, self.all_arrays))

    @property
    def all_arrays(self) -> list[Array]:
        """All arrays, in the order of the fields; looked for once."""
        known: list[Array] | None = self.__dict__.get("all_arrays")
        if known is not None:
            return known
        arrays: list[Array] = []
        self.__dict__["all_arrays"] = arrays
        left: list[Any] = [self]
        # With every message: one function, whose code is soon at hand, and none that calls itself.
        while left:
            value = left.pop()
            kind = type(value)
            if kind is Array:
                arrays.append(value)
            elif kind is dict:
                arrays += value.values()
            elif kind is tuple:
                left += value[::-1]
            elif isinstance(value, msgspec.Struct):
                left += map(getattr, repeat(value), _fields_with_arrays(type(value)))
        return arrays

    def to(self, receiver: str) -> Self:
        """The same message to another party."""
        return self if receiver == self.receiver else msgspec.structs.replace(self, receiver=receiver)

    def replace(self, **changes: Any) -> Self:
        """The same message with other values in some fields."""
        return msgspec.structs.replace(self, **changes)


_bytes_of = attrgetter("values.nbytes")


@cache
def _fields_with_arrays(structure: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a structure that may have arrays in them, the last one first: most messages have one such field."""
    hints = get_type_hints(structure)
    return tuple(name for name in reversed(structure.__struct_fields__) if _may_have_arrays(hints[name]))


def _may_have_arrays(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint is Array or bool(_fields_with_arrays(hint))
    return any(_may_have_arrays(part) for part in get_args(hint))
