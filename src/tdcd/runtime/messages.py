"""What parties say to each other: named arrays and a few words, bound to run, round, sender, receiver and content.

On the wire a message is sixteen bytes of BLAKE2b over the rest, then a safetensors file whose only metadata entry is
the envelope. Nothing is ever unpickled; every length is checked against what has arrived before it is used.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.runfolder import read_metadata

PROTOCOL = 1
"""Parties of different protocol versions refuse each other."""
_DIGEST_BYTES = 16
_ENVELOPE = {"run": str, "kind": str, "round": int, "sender": str, "receiver": str, "note": dict}


class Refused(Exception):  # noqa: N818
    """An incoming message that is not acted upon; the text says why."""


@dataclass(frozen=True, eq=False)
class Message:
    """One message."""

    kind: str
    sender: str
    receiver: str
    round: int = 0
    run: str = ""
    """Which training this belongs to; empty before the hubs have agreed on it."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """Small facts, as JSON."""
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def payload_bytes(self) -> int:
        """The bytes of the arrays: what the ledger counts."""
        return sum(array.nbytes for array in self.arrays.values())

    def to(self, receiver: str) -> "Message":
        """The same message to somebody else."""
        return replace(self, receiver=receiver)


def encode(message: Message) -> bytes:
    """The bytes on the wire; the same message always gives the same bytes."""
    envelope = {name: getattr(message, name) for name in _ENVELOPE}
    arrays = {name: np.asarray(array, order="C") for name, array in message.arrays.items()}
    body: bytes = save(arrays, {"tdcd": json.dumps(envelope)})
    return _digest(body) + body


def decode(data: bytes, *, sender: str, receiver: str) -> Message:
    """The message in ``data``, which came over ``sender``'s link to ``receiver``; anything else is refused."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _digest(body):
        raise Refused("its content does not match its digest")
    try:
        envelope, arrays = json.loads(read_metadata(body)["tdcd"]), load(body)
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refused(f"it is not a message: {error}") from None
    if not isinstance(envelope, dict) or set(envelope) != set(_ENVELOPE):
        raise Refused("its envelope has other fields")
    for name, kind in _ENVELOPE.items():
        if type(envelope[name]) is not kind:
            raise Refused(f"its {name} is not a {kind.__name__}")
    if envelope["sender"] != sender:
        raise Refused(f"it says that it is from {envelope['sender']!r}")
    if envelope["receiver"] != receiver:
        raise Refused(f"it was meant for {envelope['receiver']!r}")
    return Message(arrays=arrays, **envelope)


def array(message: Message, name: str, dtype: Any, shape: Sequence[int | None]) -> NDArray[Any]:
    """The message's array ``name``, if it has this dtype and shape (None fits any length) and only finite numbers."""
    found = message.arrays.get(name)
    if found is None:
        raise Refused(f"it has no array '{name}'")
    fits = len(found.shape) == len(shape) and all(w is None or w == s for w, s in zip(shape, found.shape, strict=True))
    if found.dtype != np.dtype(dtype) or not fits:
        wanted = f"{np.dtype(dtype)} {[*shape]}"
        raise Refused(f"'{name}' is {found.dtype} {[*found.shape]}, not {wanted}".replace("None", "any"))
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise Refused(f"'{name}' has numbers that are not finite")
    return found


def pack(value: Any) -> NDArray[np.uint8]:
    """Anything that JSON can say, as an array: for what is too long for the note."""
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), np.uint8)


def unpack(message: Message, name: str) -> Any:
    """What :func:`pack` packed."""
    try:
        return json.loads(array(message, name, np.uint8, [None]).tobytes().decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"'{name}' is not JSON: {error}") from None


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
