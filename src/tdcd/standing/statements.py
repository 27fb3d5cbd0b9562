"""What parties of a standing federation sign: one entry after the other, each with the digest of the one before.

An entry has one form only, as JSON with its fields in order; that is what is signed, sent and kept.
"""

import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from tdcd.runtime.messages.wire import RejectedMessage

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
PARTY = r"^(hub|client)(\.[A-Za-z0-9][A-Za-z0-9_-]{0,23}){1,2}$"
"""What the name of a party looks like."""
PartyName = Annotated[str, Meta(pattern=PARTY)]
Timestamp = Annotated[int, Meta(ge=0, lt=2**37)]
Number = Annotated[int, Meta(ge=0, lt=2**16)]
"""Of an entry in its chain; a chain has no more."""
Words = Annotated[str, Meta(max_length=1000)]
Text = Annotated[str, Meta(max_length=1 << 16)]
Step = Literal["align", "train", "predict", "audit", "delete", "join"]
JobKind = Literal["train", "predict", "audit", "delete", "join"]
"""What a job is for: its last step."""
STEPS: tuple[tuple[Step, ...], ...] = (
    ("align", "train"),
    ("train",),
    ("predict",),
    ("audit",),
    ("delete",),
    ("join",),
)
"""What a job may consist of."""
Ending = Literal["finished", "diverged", "refused", "lost"]
NOTHING = "0" * 64
"""What stands for the digest of the entry before the first."""


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is"):
    pass


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be computed. Its digest is the job's name."""

    federation: Sha256
    """The digest of who took part when the log began: see :func:`tdcd.standing.jobs.membership`."""
    proposer: PartyName
    shared_file: Text
    """The shared TOML file."""
    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=2)]
    purpose: Words
    contact: Words
    expires: Timestamp
    """When it must have begun."""
    nonce: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    of: Sha256 | None = None
    """The former job whose model predicts, or whose folder is deleted; for an alignment the one whose common ids
    are not compared again; for a job by which members join the one by which members joined before."""
    to: Annotated[tuple[PartyName, ...], Meta(max_length=1000)] = ()
    """The hubs that get predictions."""

    @property
    def job(self) -> str:
        """The name of the job: a digest of all that it is."""
        return hashlib.sha256(_json.encode(self)).hexdigest()

    @property
    def kind(self) -> JobKind:
        """What it is for."""
        last = self.steps[-1]
        return "train" if last == "align" else last


class Proposed(_Signed, frozen=True, tag="proposed"):
    """A job is offered to all."""

    offer: Offer


class Approved(_Signed, frozen=True, tag="approved"):
    """The party's organisation agrees to a job that begins before ``expires``."""

    job: Sha256
    expires: Timestamp
    by: Literal["person", "policy"]


class Refused(_Signed, frozen=True, tag="refused"):
    """The party does not take part in a job, or no longer."""

    job: Sha256
    because: Words


class Called(_Signed, frozen=True, tag="called"):
    """The hub that keeps the queue calls all parties to a step of a job."""

    job: Sha256
    step: Step
    attempt: Annotated[int, Meta(ge=1, le=1000)]


class Started(_Signed, frozen=True, tag="started"):
    """The party has checked all approvals, and begins."""

    job: Sha256
    step: Step
    attempt: Annotated[int, Meta(ge=1, le=1000)]


class StepEnded(_Signed, frozen=True, tag="ended"):
    """The party's part of a step is over; "lost" if it has to be done again by all."""

    job: Sha256
    step: Step
    attempt: Annotated[int, Meta(ge=1, le=1000)]
    ending: Ending


class Closed(_Signed, frozen=True, tag="closed"):
    """The hub that keeps the queue ends a job."""

    job: Sha256
    ending: Ending


class Rejected(_Signed, frozen=True, tag="rejected"):
    """Something that a party sent was not acted upon."""

    sender: PartyName
    because: Words


Statement = Proposed | Approved | Refused | Called | Started | StepEnded | Closed | Rejected


class LogEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement in its place in a party's chain."""

    federation: Sha256
    party: PartyName
    number: Number
    previous: Sha256
    """The digest of the party's entry before."""
    time: Timestamp
    statement: Statement

    @property
    def digest(self) -> str:
        """SHA-256 of what is signed."""
        return hashlib.sha256(self.signed).hexdigest()

    @property
    def signed(self) -> bytes:
        """The bytes that the party signs."""
        return b"tdcd standing entry 1\n" + _json.encode(self)


class SignedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry with its party's signature."""

    entry: LogEntry
    certificate: Annotated[bytes, Meta(max_length=1 << 14)]
    """In DER form."""
    signature: Annotated[bytes, Meta(max_length=1 << 10)]


class Have(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="have"):
    """How many entries of each party's chain the sender has."""

    counts: Annotated[dict[PartyName, Number], Meta(max_length=10_000)]


MOST_AT_ONCE = 32
"""Entries in a message."""


class Entries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="entries"):
    """Entries that the receiver lacks."""

    entries: Annotated[list[SignedEntry], Meta(max_length=MOST_AT_ONCE)]


_json = msgspec.json.Encoder(order="deterministic")
_messages: msgspec.json.Decoder[Have | Entries] = msgspec.json.Decoder(Have | Entries)
_lines = msgspec.json.Decoder(SignedEntry)
_Read = TypeVar("_Read")


def written(value: Have | Entries | SignedEntry) -> bytes:
    """The one form of a message between services, or of a line of a chain's file."""
    return _json.encode(value)


def read_message(data: bytes) -> Have | Entries:
    """A message of another party's service."""
    return _strictly(data, _messages)


def read_line(line: bytes) -> SignedEntry:
    """A line of a chain's file."""
    return _strictly(line, _lines)


def _strictly(data: bytes, decoder: msgspec.json.Decoder[_Read]) -> _Read:
    try:
        value = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RejectedMessage(f"it is not what parties that stand by send: {error}") from None
    if _json.encode(value) != data:
        raise RejectedMessage("it is not written as the protocol writes it")
    return value
