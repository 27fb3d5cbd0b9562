"""What parties say to each other: named arrays and a few words, bound to run, round, sender, receiver and content.

On the wire: sixteen bytes of BLAKE2b over the rest; eight bytes that say how long the envelope is; the envelope, JSON
with the message's words and each array's name, type and shape; the arrays' bytes, each at a multiple of eight. Nothing
is ever unpickled; every length is checked against what has arrived before it is used.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

PROTOCOL = 1
"""Parties of different protocol versions refuse each other."""
_DIGEST_BYTES, _HEAD_BYTES = 16, 24
_MOST_NUMBERS, _MOST_DEPTH = 2**40, 32
_MOST_WORDS = 2**20
_Code = Literal["<f8", "<f4", "<i8", "<i4", "|u1"]
# No axis is taken as it is, not even beside one of length 0.
_Axis = Annotated[int, msgspec.Meta(ge=0, le=_MOST_NUMBERS)]
_Shape = Annotated[tuple[_Axis, ...], msgspec.Meta(max_length=32)]


class _Envelope(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    run: str
    kind: str
    round: int
    sender: str
    receiver: str
    note: Mapping[str, Any]
    arrays: list[tuple[str, _Code, _Shape]]


_words_of, _envelope_in = msgspec.json.Encoder().encode, msgspec.json.Decoder(_Envelope).decode


class RejectedMessage(Exception):  # noqa: N818
    """An incoming message that is not acted upon; the text says why."""


class Message(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One message."""

    kind: str
    sender: str
    receiver: str
    round: int = 0
    run: str = ""
    """Which training this belongs to; empty before the hubs have agreed on it."""
    note: Mapping[str, Any] = {}
    """Small facts, as JSON: texts, finite numbers of 64 bits, and lists and dicts of them."""
    arrays: Mapping[str, NDArray[Any]] = {}

    @property
    def payload_bytes(self) -> int:
        """The bytes of the arrays: what the ledger counts."""
        return sum(array.nbytes for array in self.arrays.values())

    @cached_property
    def encoded(self) -> bytes:
        """What :func:`encode` gives, for those who need it again."""
        return encode(self)

    def to(self, receiver: str) -> "Message":
        """The same message to somebody else."""
        return self if receiver == self.receiver else self.replace(receiver=receiver)

    def replace(self, **changes: Any) -> "Message":
        """The same message with something else in it."""
        return msgspec.structs.replace(self, **changes)


def encode(message: Message) -> bytes:
    """The bytes on the wire; the same message always gives the same bytes."""
    arrays = [np.asarray(array, order="C") for array in message.arrays.values()]
    described: list[Any] = [
        (name, array.dtype.str, array.shape) for name, array in zip(message.arrays, arrays, strict=True)
    ]
    who, note = (message.sender, message.receiver), message.note
    envelope = _Envelope(message.run, message.kind, message.round, *who, note, described)
    try:
        words = _words_of(envelope)
    except UnicodeEncodeError:
        # A reason may quote what somebody sent: half a character is no reason to fail.
        envelope.note = {name: _whole(value) if isinstance(value, str) else value for name, value in note.items()}
        words = _words_of(envelope)
    parts: list[bytes | memoryview] = [len(words).to_bytes(8, "little"), words, bytes(-len(words) % 8)]
    for array in arrays:
        parts += [array.data, bytes(-array.nbytes % 8)] if array.size else []
    body = b"".join(parts)
    return _digest(body) + body


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def decode(data: bytes, *, sender: str, receiver: str) -> Message:
    """The message in ``data``, which came over ``sender``'s link to ``receiver``; anything else is refused."""
    if data[:_DIGEST_BYTES] != _digest(memoryview(data)[_DIGEST_BYTES:]):
        raise RejectedMessage("its content does not match its digest")
    end = _HEAD_BYTES + int.from_bytes(data[_DIGEST_BYTES:_HEAD_BYTES], "little")
    if end > _HEAD_BYTES + _MOST_WORDS:
        raise RejectedMessage("it is not a message: its envelope is too long")
    try:
        envelope = _envelope_in(data[_HEAD_BYTES:end])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RejectedMessage(f"it is not a message: {error}") from None
    if not _is_shallow(envelope.note, _MOST_DEPTH):
        raise RejectedMessage("it is not a message: its note is too deep")
    if envelope.sender != sender:
        raise RejectedMessage(f"it says that it is from {envelope.sender!r}")
    if envelope.receiver != receiver:
        raise RejectedMessage(f"it was meant for {envelope.receiver!r}")
    arrays = _arrays(envelope.arrays, data, end + -end % 8)
    return Message(envelope.kind, sender, receiver, envelope.round, envelope.run, envelope.note, arrays)


def _arrays(described: list[tuple[str, _Code, _Shape]], data: bytes, place: int) -> dict[str, NDArray[Any]]:
    """The arrays that begin at ``place``: views of ``data``, which they must fill to its end."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, code, shape in described:
        if name in arrays or not name.isprintable() or name == "__metadata__":
            raise RejectedMessage(f"it is not a message: {name[:80]!r} cannot name an array")
        if math.prod(size or 1 for size in shape) > _MOST_NUMBERS:
            raise RejectedMessage(f"it is not a message: '{name[:80]}' has too many numbers")
        dtype, count = np.dtype(code), math.prod(shape)
        end = place + count * dtype.itemsize
        if end > len(data):
            raise RejectedMessage(f"it is not a message: '{name[:80]}' is longer than what arrived")
        arrays[name] = np.frombuffer(data, dtype, count, place).reshape(shape) if count else np.empty(shape, dtype)
        place = end + -end % 8
    if place != len(data):
        raise RejectedMessage(f"it is not a message: it has {len(data)} bytes, and {place} are told of")
    return arrays


def _is_shallow(value: Any, depth: int) -> bool:
    """Whether dicts and lists are at most so deep inside each other."""
    if not isinstance(value, dict | list):
        return True
    return depth > 0 and all(
        _is_shallow(one, depth - 1) for one in (value.values() if isinstance(value, dict) else value)
    )


def array(message: Message, name: str, dtype: Any, shape: Sequence[int | None]) -> NDArray[Any]:
    """The message's array ``name``, if it has this dtype and shape (None fits any length) and only finite numbers."""
    found = message.arrays.get(name)
    if found is None:
        raise RejectedMessage(f"it has no array '{name}'")
    fits = len(found.shape) == len(shape) and all(w is None or w == s for w, s in zip(shape, found.shape, strict=True))
    if found.dtype != np.dtype(dtype) or not fits:
        wanted = f"{np.dtype(dtype)} {[*shape]}"
        raise RejectedMessage(f"'{name}' is {found.dtype} {[*found.shape]}, not {wanted}".replace("None", "any"))
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise RejectedMessage(f"'{name}' has numbers that are not finite")
    return found


def pack(value: Any) -> NDArray[np.uint8]:
    """Anything that JSON can say, as an array: for what is too long for the note."""
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), np.uint8)


def unpack(message: Message, name: str) -> Any:
    """What :func:`pack` packed."""
    try:
        return json.loads(array(message, name, np.uint8, [None]).tobytes().decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise RejectedMessage(f"'{name}' is not JSON: {error}") from None


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
