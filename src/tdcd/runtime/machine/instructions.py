"""What a hub's state machine asks of whoever runs it, in the order in which it is to be done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
from numpy.typing import NDArray

from tdcd.records.files import NO_LINES, Mark
from tdcd.records.history import Record
from tdcd.records.outcome import NO_CONTROL, NO_COURSES, Best, Courses
from tdcd.records.steering import StepControl
from tdcd.runtime.messages.messages import EndStatus, Part
from tdcd.runtime.messages.structure import Arrays, Message


class HubState(msgspec.Struct, frozen=True, eq=False):
    """What a hub needs to continue from the start of a round."""

    run: str
    round: int
    block: Arrays
    outbox: tuple[Part, ...] = ()
    """What it sent its peers in the rounds before."""
    digests: Mapping[int, Mapping[str, str]] = {}
    """The digest of what each hub sent, in the exchanges of the last rounds."""
    recorded: int = 0
    """The round of the last line of the history; 0 before the first."""
    rows: tuple[str, ...] = ()
    """A digest of each client's rows, in client order; then of the list of samples, if there is one."""
    history: Mark = NO_LINES
    """The lines of the history before this round."""
    absences: Mark = NO_LINES
    """The absences that were noted before this round."""
    memory: Arrays = {}
    """What the hub's update remembers."""
    unrecorded: tuple[int, ...] = ()
    """The rounds before this one that were evaluated, and for which other hubs' scores were not there."""
    best: Best | None = None
    """The best line of the history so far."""
    courses: Courses = NO_COURSES
    """How the training loss went."""
    candidates: Arrays = {}
    """The blocks with which the run may have to end, see :class:`tdcd.runtime.machine.evaluations.Candidates`."""
    hubs: Mapping[str, str] = {}
    """By which nonce and key for masks each hub is in this run; of checkpoints before protocol 6, nothing."""
    control: StepControl = NO_CONTROL
    """Where steered steps stand."""
    uncertified: Arrays = {}
    """What certificates of lines that are not written yet may be made of, see
    :class:`tdcd.runtime.machine.evaluations.Evaluations`."""
    certified: int = 0
    """How many lines have had a certificate."""
    proven: float | None = None
    """No model's training loss is below this, as certificates have proven."""
    chain: Mapping[int, str] | None = None
    """What masks follow from, see :class:`tdcd.runtime.machine.exchange.HubExchange`; None before protocol 10."""


@dataclass(frozen=True)
class Append:
    """Add this line to the history."""

    record: Record
    test_scores: NDArray[Any] | None = field(default=None, compare=False)
    """``[m, C]``: if the model of this line stays, its scores of the held-out samples; not a number for absent ones."""
    subsets: Mapping[str, Any] | None = field(default=None, compare=False)
    """If the model of this line stays, what it reaches with every subset of silos."""


@dataclass(frozen=True)
class Save:
    """Make this state durable when there is time, at the latest before the next one."""

    state: HubState


@dataclass(frozen=True)
class Absence:
    """A client is left out from this question of this round on, or takes part again; durable before what follows."""

    client: str
    round: int
    question: str | None
    """The flow down that it did not answer; None if it takes part again from this round on."""


@dataclass(frozen=True)
class TurnedAway:
    """A party that came back with other data or settings was sent away; the run waits for the right one."""

    party: str
    reason: str


@dataclass(frozen=True)
class End:
    """The run is over; the others are yet to confirm."""

    status: EndStatus
    reason: str = ""
    in_block: bool = False
    """Whether something in the silo stopped being finite, which the other hubs do not know yet."""
    round: int | None = None
    """The last round whose local steps everybody began, if that is not the round that the hub stands at."""


Instruction = Message | Append | Save | Absence | TurnedAway | End


OutcomeStatus = EndStatus | Literal["interrupted"]


class RunOutcome(NamedTuple):
    """How the run of a party ended."""

    status: OutcomeStatus
    reason: str = ""
