"""What messages are made of: a header that says who sends them to whom, typed arrays, and other typed fields."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

_MOST_NUMBERS = 2**40
# Safetensors has its own use for one name.
_Name = Annotated[str, Meta(pattern=r"^(?!__metadata__$)[^\x00-\x1f\x7f-\x9f]{0,200}$")]

Count = Annotated[int, Meta(ge=0, lt=2**31)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Nonce = Annotated[str, Meta(pattern="^[ -~]*$")]
Shape = Annotated[tuple[Annotated[int, Meta(gt=0)], ...], Meta(max_length=32)]
Setting = (
    str
    | bool
    | int
    | float
    | None
    | Annotated[list[None], Meta(max_length=0)]
    | Annotated[dict[str, None], Meta(max_length=0)]
)
"""A setting of the shared file, by its dotted key; a list or table only if it is empty."""
Json = str
"""A document of another module, as JSON."""


class Array(msgspec.Struct, frozen=True, eq=False, dict=True, array_like=True, forbid_unknown_fields=True):
    """The type and shape of an array; its numbers follow the message's header."""

    code: Literal["<f8", "<f4", "<i8", "<i4", "|i1", "<u4", "|u1"]
    # No axis is taken as it is, not even beside one of length 0.
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=_MOST_NUMBERS)], ...], Meta(max_length=32)]

    def __post_init__(self) -> None:
        """Refuse a shape that no array can have."""
        if math.prod(size or 1 for size in self.shape) > _MOST_NUMBERS:
            raise ValueError(f"an array of shape {[*self.shape]} has too many numbers")

    @classmethod
    def of(cls, values: Any) -> Self:
        """The numbers of a NumPy array."""
        found = np.asarray(values, order="C")
        code: Any = found.dtype.str
        return cls(code, found.shape).filled(found)

    def filled(self, values: NDArray[Any]) -> Self:
        """The same array with its numbers."""
        self.__dict__["values"] = values
        return self

    @property
    def values(self) -> NDArray[Any]:
        """The numbers."""
        found: NDArray[Any] = self.__dict__["values"]
        return found


Arrays = Mapping[str, NDArray[Any]]
Named = dict[_Name, Array]
"""The arrays of a block, or of an exchange, by name."""


def named(arrays: Arrays) -> Named:
    """NumPy arrays as a message has them."""
    return {name: Array.of(values) for name, values in arrays.items()}


def arrays_of(found: Named) -> dict[str, NDArray[Any]]:
    """What :func:`named` was given."""
    return {name: array.values for name, array in found.items()}


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
        return self.tag()

    @property
    def payload_bytes(self) -> int:
        """The bytes of the arrays: what the ledger counts."""
        return sum(array.values.nbytes for array in self.all_arrays())

    def all_arrays(self) -> list[Array]:
        """All arrays, in the order of the fields."""
        found: list[Array] = []
        _gather(self, found)
        return found

    def to(self, receiver: str) -> Self:
        """The same message to somebody else."""
        return self if receiver == self.receiver else self.replace(receiver=receiver)

    def replace(self, **changes: Any) -> Self:
        """The same message with other values in some fields."""
        return msgspec.structs.replace(self, **changes)


_PLAIN = frozenset({str, int, float, bool, list, type(None)})


def _gather(value: Any, found: list[Array]) -> None:
    """Add the arrays in a structure, a mapping or a tuple; a list never has any."""
    if type(value) is Array:
        found.append(value)
        return
    for inner in (
        [getattr(value, name) for name in value.__struct_fields__]
        if isinstance(value, msgspec.Struct)
        else value.values()
        if isinstance(value, dict)
        else value
    ):
        if type(inner) not in _PLAIN:
            _gather(inner, found)
