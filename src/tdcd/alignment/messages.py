"""What silos send each other to align their ids, and what is wrong with it when it is refused."""

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted

Answer = Literal["ids", "counts"]
"""What a silo learns of another one: which of its own ids the other has, or only how many."""
ANSWERS: tuple[Answer, ...] = get_args(Answer)
ComparisonStep = Literal["announced", "blinded", "returned", "numbered"]
STEPS: tuple[ComparisonStep, ...] = get_args(ComparisonStep)

MAX_IDS = 10_000_000
"""The largest set a silo may announce: 320 MB of points."""

ByteRows = NDArray[np.uint8]

_LAYOUT = struct.Struct("<QIIQ16s16s")


class AlignmentError(ValueError):
    """A silo's ids or a message from a silo cannot be used; the text names the silo."""


@dataclass(frozen=True)
class Outgoing:
    """A message to one silo.

    Attributes:
        receiver: the silo's index.
        step: ``announced``, ``blinded`` (the sender's ids), ``returned`` (the receiver's ids, blinded twice) or
            ``numbered`` (which of the samples that the sender is the first to have the receiver's ids are).
        payload: ``[n, width]`` bytes, one row per id (one row for ``announced``; a count before those of ``numbered``).
    """

    receiver: int
    step: ComparisonStep
    payload: ByteRows


@dataclass(frozen=True)
class Announcement:
    """What every silo announces first: what it runs and how many ids it has, before any of them travels.

    Attributes:
        size: how many ids the silo compares with the receiver's.
        num_silos: how many silos it believes there are.
        answer: what it asks for.
        num_known: how many ids were found to be common to both before, and are not compared again.
        known_check: 16 bytes that are the same for silos with the same known ids.
        secret_check: 16 bytes that are the same for all silos with the same secret.
    """

    size: int
    num_silos: int
    answer: Answer
    num_known: int
    known_check: bytes
    secret_check: bytes

    @classmethod
    def of(
        cls, size: int, num_silos: int, answer: Answer, secret: bytes = b"", known: Sequence[str] = ()
    ) -> "Announcement":
        """The announcement of a silo that compares ``size`` ids; ``known`` are those that it need not compare."""
        listed = "".join(f"{len(name)}:{name}" for name in sorted(known)).encode()
        return cls(
            size,
            num_silos,
            answer,
            len(known),
            hashlib.sha256(b"tdcd alignment 2: known" + listed).digest()[:16],
            hmac.digest(secret, b"tdcd alignment 2: secret", "sha256")[:16],
        )

    def encode(self) -> ByteRows:
        """The announcement as one row of bytes."""
        packed = _LAYOUT.pack(
            self.size,
            self.num_silos,
            ANSWERS.index(self.answer),
            self.num_known,
            self.known_check,
            self.secret_check,
        )
        return np.frombuffer(packed, np.uint8).reshape(1, -1)

    @classmethod
    def decode(cls, payload: ByteRows, sender: int) -> "Announcement":
        """Read what :meth:`encode` wrote."""
        checked_rows(payload, 1, _LAYOUT.size, f"the announcement of silo {sender}")
        size, num_silos, code, num_known, known, secret = _LAYOUT.unpack(payload.tobytes())
        if code >= len(ANSWERS):
            raise AlignmentError(f"silo {sender} asks for an answer that is not known here: run the same version")
        return cls(size, num_silos, ANSWERS[code], num_known, known, secret)

    def require_like(self, own: "Announcement", sender: int) -> None:
        """Refuse another setting than one's ``own``, and a set that is empty or too large."""
        if self.answer != own.answer:
            raise AlignmentError(f"silo {sender} asks for {self.answer} and this silo for {own.answer}: choose one")
        if self.num_silos != own.num_silos:
            raise AlignmentError(
                f"silo {sender} counts {counted(self.num_silos, 'silo')} and this silo {own.num_silos}"
            )
        if not hmac.compare_digest(self.secret_check, own.secret_check):
            raise AlignmentError(f"silo {sender} has another secret: give all silos the same one")
        if (self.num_known, self.known_check) != (own.num_known, own.known_check):
            raise AlignmentError(
                f"silo {sender} knows {counted(self.num_known, 'common id')} and this silo {own.num_known}, or others: "
                "give all silos the same list of a former alignment, or none"
            )
        least = 0 if self.num_known else 1
        if not least <= self.size <= MAX_IDS:
            raise AlignmentError(f"silo {sender} announces {self.size} ids: there must be {least} to {MAX_IDS}")


def checked_rows(payload: ByteRows, num_rows: int, width: int, what: str) -> ByteRows:
    """``payload`` if it is ``[num_rows, width]`` bytes; ``what`` says whose it is."""
    if payload.dtype != np.uint8 or payload.shape != (num_rows, width):
        raise AlignmentError(
            f"{what} must be {num_rows} x {width} bytes, not {payload.dtype} of shape {payload.shape}: "
            "it was cut short, altered, or made by another version"
        )
    return payload
