"""What silos send each other to align their ids, and what is wrong with it when it is refused."""

import hmac
import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted

Method = Literal["digests", "psi"]
METHODS: tuple[Method, ...] = get_args(Method)
MAX_IDS = 10_000_000
"""The largest set a silo may announce: 320 MB of points."""

ByteRows = NDArray[np.uint8]

_LAYOUT = struct.Struct("<QII16s")


class AlignmentError(ValueError):
    """A silo's ids or a message from a silo cannot be used; the text names the silo."""


@dataclass(frozen=True)
class Outgoing:
    """A message to one silo.

    Attributes:
        receiver: the silo's index.
        kind: what it is and whose ids it is about: ``announced-0``, ``blinded-0`` or ``published-0``.
        payload: ``[n, width]`` bytes, one row per id (one row for ``announced``).
    """

    receiver: int
    kind: str
    payload: ByteRows


class AwaitedMessage(NamedTuple):
    """A message that a silo awaits: who sends it, and which step of whose ids it is."""

    sender: int
    step: Literal["announced", "blinded", "published"]
    owner: int


def awaited(silo: int, num_silos: int, method: Method) -> dict[str, AwaitedMessage]:
    """All messages that a silo receives in one alignment, by kind.

    >>> list(awaited(0, 2, "psi"))
    ['announced-1', 'blinded-1', 'published-0']
    """
    others = [owner for owner in range(num_silos) if owner != silo]
    routes = [AwaitedMessage(owner, "announced", owner) for owner in others]
    if method == "digests":
        routes += [AwaitedMessage(owner, "published", owner) for owner in others]
    else:
        routes += [AwaitedMessage((silo - 1) % num_silos, "blinded", owner) for owner in others]
        routes += [AwaitedMessage(last, "published", (last + 1) % num_silos) for last in others]
    return {f"{route.step}-{route.owner}": route for route in routes}


@dataclass(frozen=True)
class Announcement:
    """What every silo announces first: what it runs and how many ids it has, before any of them travels.

    Attributes:
        size: how many ids the silo has.
        num_silos: how many silos it believes there are.
        method: the method it runs.
        secret_check: 16 bytes that are the same for all silos with the same secret.
    """

    size: int
    num_silos: int
    method: Method
    secret_check: bytes

    @classmethod
    def of(cls, size: int, num_silos: int, method: Method, secret: bytes) -> "Announcement":
        """The announcement of a silo with ``size`` ids."""
        return cls(size, num_silos, method, hmac.digest(secret, b"tdcd alignment 1: secret", "sha256")[:16])

    def encode(self) -> ByteRows:
        """The announcement as one row of 32 bytes."""
        packed = _LAYOUT.pack(self.size, self.num_silos, METHODS.index(self.method), self.secret_check)
        return np.frombuffer(packed, np.uint8).reshape(1, -1)

    @classmethod
    def decode(cls, payload: ByteRows, sender: int) -> "Announcement":
        """Read what :meth:`encode` wrote."""
        checked_rows(payload, 1, _LAYOUT.size, f"the announcement of silo {sender}")
        size, num_silos, code, check = _LAYOUT.unpack(payload.tobytes())
        if code >= len(METHODS):
            raise AlignmentError(f"silo {sender} announces a method that is not known here: run the same version")
        return cls(size, num_silos, METHODS[code], check)

    def require_like(self, own: "Announcement", sender: int) -> None:
        """Refuse another setting than one's ``own``, and a set that is empty or too large."""
        if self.method != own.method:
            raise AlignmentError(
                f"silo {sender} aligns by {self.method} and this silo by {own.method}: set the same method"
            )
        if self.num_silos != own.num_silos:
            raise AlignmentError(
                f"silo {sender} counts {counted(self.num_silos, 'silo')} and this silo {own.num_silos}"
            )
        if not hmac.compare_digest(self.secret_check, own.secret_check):
            raise AlignmentError(f"silo {sender} has another secret: give all silos the same one")
        if not 1 <= self.size <= MAX_IDS:
            raise AlignmentError(f"silo {sender} announces {self.size} ids: there must be 1 to {MAX_IDS}")


def checked_rows(payload: ByteRows, num_rows: int, width: int, what: str) -> ByteRows:
    """``payload`` if it is ``[num_rows, width]`` bytes; ``what`` says whose it is."""
    if payload.dtype != np.uint8 or payload.shape != (num_rows, width):
        raise AlignmentError(
            f"{what} must be {num_rows} x {width} bytes, not {payload.dtype} of shape {payload.shape}: "
            "it was cut short, altered, or made by another version"
        )
    return payload
