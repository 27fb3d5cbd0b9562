"""Private set intersection as messages in, messages out: it opens no connection and no file."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.alignment import ristretto
from tdcd.alignment.messages import (
    ANSWERS,
    MAX_IDS,
    STEPS,
    AlignmentError,
    Announcement,
    Answer,
    ByteRows,
    ComparisonStep,
    Outgoing,
    checked_rows,
)
from tdcd.core.words import counted
from tdcd.tables.rows import id_order
from tdcd.tables.sample_list import SampleList

Mask = NDArray[np.bool_]


class BlindedIds:
    r"""A silo's ids for one comparison with others: in a random order, as points times a scalar of its own.

    An id becomes a point :math:`H(id)` of ristretto255. Silo i sends :math:`s_i H(id)` of its ids, and returns the
    other's points times its own :math:`s_i`, in the order in which they came. Since
    :math:`s_i s_j H(id) = s_j s_i H(id)`, silo i then has both sets in a form that is the same for equal ids, and knows
    its own order. Who lacks one of the scalars can test no guess. They serve once: runs could be compared otherwise.
    """

    def __init__(
        self,
        ids: Sequence[str],
        *,
        workers: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        """Shuffle the ids and draw a scalar.

        Args:
            workers: threads; by default one a processor.
            advance: called with the number of points, as they are done.
        """
        self.ids = _shuffled(ids)
        self._scalar = ristretto.random_scalar()
        self._workers, self._advance = workers, advance

    def points(self) -> ByteRows:
        """This silo's ids, blinded: ``[n, 32]``, what the others may see."""
        return self.blind(ristretto.hash_to_points(self.ids, workers=self._workers))

    def blind(self, points: ByteRows) -> ByteRows:
        """Points times this silo's scalar, in their order."""
        return ristretto.blind(points, self._scalar, workers=self._workers, advance=self._advance)


def checked_points(payload: ByteRows, num_rows: int, what: str) -> ByteRows:
    """``payload`` if it is so many different points; ``what`` says whose they are."""
    checked_rows(payload, num_rows, ristretto.POINT_BYTES, what)
    if (row := ristretto.first_invalid(payload)) is not None:
        raise AlignmentError(f"{what} is damaged: row {row} is no point of the group, or is its identity")
    if len(np.unique(comparable(payload))) < len(payload):
        raise AlignmentError(f"{what} holds the same id twice: a silo may give each id once")
    return payload


def comparison_of(*points: ByteRows) -> str:
    """The name of a comparison: a digest of the points that two silos sent each other, whoever asks.

    Who comes back blinds its ids with another scalar, in another order. An answer to its former points belongs to
    another comparison: it would find nothing in common, or the wrong rows.
    """
    each = sorted(hashlib.sha256(rows.tobytes()).digest() for rows in points)
    return hashlib.sha256(b"".join(each)).hexdigest()[:32]


def comparable(rows: ByteRows) -> NDArray[Any]:
    """``[n, width]`` bytes as ``[n]`` values that compare as a whole; equal widths make trailing zeros harmless."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").ravel()


class Alignment:
    """One silo's part in finding which of its ids the other silos have, pair by pair.

    Every silo announces how many ids it has and what it asks for. When all have, each sends its :class:`BlindedIds` to
    those that it is compared with, and returns theirs. Ids are equal when their characters are: nothing is trimmed or
    normalised. It holds against silos that follow the protocol and are curious about what they see (semi-honest). A
    silo learns

    - how many ids each other silo has;
    - ``ids``: which of its own ids each single other silo has. What two others have in common it does not learn;
    - ``counts``: only how many of its ids each other silo has. Points are returned in another order.

    Where silos may lack samples (``labelled``), every id that a silo with labels has is a sample, and has a number: see
    :mod:`tdcd.tables.sample_list`. Silos with labels send each other silo the places of those ids that both have, among
    the ids that they are the first to have, and how many those are.

    A silo that does not follow the protocol can claim ids that it does not have, and so test them, or alter points, so
    that ids are missed: neither is noticed.

    Give the messages of :meth:`start` and :meth:`receive` to their receivers; they may arrive in any order. Both calls
    compute before they return: about 70 microseconds of one processor for each id of every silo.

    A silo whose process was killed makes a new ``Alignment``: it announces itself and sends its ids again, with another
    scalar and in another order. The others compare them anew, and return and number what they had; also when they were
    done. What they return to its former process must not be given to it: see :func:`comparison_of`.
    """

    def __init__(
        self,
        silo_index: int,
        num_silos: int,
        ids: Iterable[str],
        secret: bytes = b"",
        *,
        answer: Answer = "ids",
        known: Collection[str] | Mapping[int, Collection[str]] = (),
        compared: Collection[int] | None = None,
        labelled: Collection[int] = (),
        workers: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Check the ids and shuffle them; nothing is sent yet.

        Args:
            secret: random bytes that the silos agreed on; they compare that they have the same, and need none.
            known: ids that a former alignment found in all silos, the same for all; or by silo, those that it found
                there too. They are not compared again.
            compared: the silos whose ids are compared with this one's; all others by default.
            labelled: the silos with labels, where samples get numbers.
            workers: threads; by default one a processor.
            progress: called with the fraction of this silo's computation that is done, up to 1.
        """
        if answer not in ANSWERS:
            raise ValueError(f"answer = {answer!r}: must be one of {', '.join(ANSWERS)}")
        if not 0 <= silo_index < num_silos:
            raise ValueError(f"silo_index = {silo_index}: must be between 0 and {num_silos - 1}")
        self._index = silo_index
        self._others = [silo for silo in range(num_silos) if silo != silo_index]
        self._compared = [silo for silo in self._others if compared is None or silo in compared]
        self._labelled = sorted(labelled)
        by_silo = known if isinstance(known, Mapping) else dict.fromkeys(self._compared, known)
        self._known = {silo: [*dict.fromkeys(by_silo.get(silo, ()))] for silo in self._compared}
        self._ids = _checked_ids(silo_index, ids)
        unknown = _unknown(silo_index, self._ids, self._known)
        needed = {name for names in unknown.values() for name in names} if self._compared else {*self._ids}
        self._own = BlindedIds([name for name in self._ids if name in needed], workers=workers, advance=self._advance)
        self._rows = {
            silo: np.array([row for row, name in enumerate(self._own.ids) if name in names], np.int64)
            for silo, names in unknown.items()
        }
        """Which of the blinded ids are compared with each silo."""
        self._progress = progress
        self._computed = 0
        self._announcements = {
            silo: Announcement.of(
                len(unknown.get(silo, self._ids)), num_silos, answer, secret, self._known.get(silo, ())
            )
            for silo in self._others
        }
        self._answer = answer
        self._sizes: dict[int, int] = {}
        self._arrived: list[tuple[int, ComparisonStep, ByteRows]] = []
        self._num_compared: Counter[int] = Counter()
        """By silo: how often it sent its ids."""
        self._repeated = 0
        """How many points were multiplied for silos that came back."""
        self._awaited = {(silo, "announced") for silo in self._others}
        self._awaited |= {(silo, step) for silo in self._compared for step in COMPARING}
        self._numbering = self._labelled if answer == "ids" else []
        """The silos that number samples."""
        self._awaited |= {(silo, "numbered") for silo in self._compared if silo in self._numbering}
        self._unnumbered = {*self._compared}
        """The silos that this one has yet to send places to, if it numbers samples."""
        self._is_started = False
        self._theirs: dict[int, ByteRows] = {}
        """The others' ids, blinded by them and by this silo."""
        self._returned: dict[int, ByteRows] = {}
        """This silo's ids, blinded by it and by each other silo."""
        self._before: dict[int, set[str] | int] = {}
        """By silo that came back: what it had in common with this one before."""
        self._places: dict[int, _Places] = {}
        """By silo with labels: how many samples it is the first to have, and the places among them of this silo's."""

    @property
    def done(self) -> bool:
        """Whether everything is here and was answered."""
        return self._is_started and not self._awaited and not self._arrived and self._has_numbered

    @property
    def _has_numbered(self) -> bool:
        return self._index not in self._numbering or (self._index in self._places and not self._unnumbered)

    @property
    def counts(self) -> dict[int, int]:
        """How many of this silo's ids each other silo has that it was compared with."""
        self._check_done()
        return {silo: len(self._known[silo]) + int(self._mask(silo).sum()) for silo in self._compared}

    @property
    def common(self) -> list[str]:
        """The ids that all silos have, in the order that all silos give them."""
        self._check_ids()
        common = [*set(self._ids).intersection(*map(self._shared, self._compared))]
        return [common[place] for place in id_order(common)]

    def samples(self, names: Sequence[str]) -> SampleList:
        """What this silo knows of the list of all samples, if the silos have these ``names``."""
        self._check_ids()
        start, number_of = 0, dict[str, int]()
        for silo in self._numbering:
            count, places = self._places[silo]
            number_of |= {name: start + place for name, place in places.items()}
            start += count
        if not number_of:
            raise AlignmentError(
                f"silo {self._index} has none of the {counted(start, 'sample')} that have a label: check that the id "
                "columns mean the same"
            )
        ids = sorted(number_of, key=number_of.__getitem__)
        numbers, shared = np.array([number_of[name] for name in ids], np.int64), map(self._shared, self._compared)
        held_by = {
            names[silo]: np.array([n in has for n in ids]) for silo, has in zip(self._compared, shared, strict=True)
        }
        return SampleList(start, tuple(ids), numbers, held_by)

    def start(self) -> list[Outgoing]:
        """The announcement to every other silo."""
        if self._is_started:
            raise RuntimeError("start() was called before: make a new Alignment, with a new secret scalar")
        self._is_started = True
        announced = [Outgoing(silo, "announced", own.encode()) for silo, own in self._announcements.items()]
        return [*announced, *self._proceed()]

    def receive(self, sender: int, step: str, payload: ByteRows) -> list[Outgoing]:
        """Take one message of another silo, as it was in :class:`Outgoing`; what is to be sent then.

        Raises:
            AlignmentError: the message does not belong here or is damaged. The alignment cannot continue.
        """
        name = next((name for name in STEPS if name == step), None)
        has_sent = {"announced": sender in self._sizes, "blinded": self._num_compared[sender] > 0}
        is_again = name is not None and has_sent.get(name, False)
        if name is None or ((sender, name) not in self._awaited and not is_again):
            raise AlignmentError(
                f"silo {sender} sent '{step[:40]}', which silo {self._index} does not expect from it or already has: "
                "start all silos again, with the same version and order of silos"
            )
        self._awaited.discard((sender, name))
        if name == "announced":
            announcement = Announcement.decode(payload, sender)
            announcement.require_like(self._announcements[sender], sender)
            self._sizes[sender] = announcement.size
            return [] if is_again else self._proceed()
        if name == "blinded":
            if is_again:
                self._compare_anew(sender)
            self._num_compared[sender] += 1
        self._arrived.append((sender, name, payload))
        return self._take_arrived()

    def _compare_anew(self, silo: int) -> None:
        """Forget what follows from the ids of a silo's former process, but for what they had in common."""
        if self._num_compared[silo] == MOST_COMPARISONS:
            raise AlignmentError(f"silo {silo} has sent its ids {MOST_COMPARISONS} times: start all silos again")
        if silo in self._theirs:
            self._repeated += len(self._theirs[silo])
        if self._is_compared(silo):
            self._before[silo] = self._in_common(silo)
        self._theirs.pop(silo, None)
        self._returned.pop(silo, None)
        self._arrived = [part for part in self._arrived if part[0] != silo]
        self._awaited.add((silo, "returned"))
        if silo in self._numbering:
            self._awaited.add((silo, "numbered"))
        self._unnumbered.add(silo)

    def _is_compared(self, silo: int) -> bool:
        return silo in self._theirs and silo in self._returned

    def _in_common(self, silo: int) -> set[str] | int:
        """The ids that a silo has too, or how many."""
        return self._shared(silo) if self._answer == "ids" else int(self._mask(silo).sum())

    def _check_as_before(self, silo: int) -> None:
        """Refuse a silo that came back with other ids: others may have the result of its former ones."""
        if silo in self._before and self._is_compared(silo) and self._in_common(silo) != self._before[silo]:
            raise AlignmentError(f"silo {silo} came back with other ids than before: start all silos again")

    def _check_ids(self) -> None:
        self._check_done()
        if self._answer == "counts":
            raise RuntimeError("only counts were asked for: no party knows which ids are common")

    def _check_done(self) -> None:
        if not self.done:
            missing = sorted({silo for silo, _ in self._awaited})
            raise RuntimeError(f"the alignment is not done: messages of silos {missing} have not arrived")

    def _mask(self, silo: int) -> Mask:
        """Which of the ids that were compared with a silo's it has, in the order in which they were returned."""
        return np.isin(comparable(self._returned[silo]), comparable(self._theirs[silo]))

    def _shared(self, silo: int) -> set[str]:
        """The ids that a silo has too."""
        rows = self._rows[silo][self._mask(silo)]
        return {*self._known[silo], *(self._own.ids[row] for row in rows)}

    @property
    def _is_met(self) -> bool:
        """Whether all silos have announced themselves."""
        return self._is_started and len(self._sizes) == len(self._others)

    def _proceed(self) -> list[Outgoing]:
        """Once all silos have announced themselves: send the own ids, and take what came before its time."""
        if not self._is_met:
            return []
        points = self._own.points() if self._compared else None
        sent = [Outgoing(silo, "blinded", points[self._rows[silo]]) for silo in self._compared if points is not None]
        return [*sent, *self._take_arrived()]

    def _take_arrived(self) -> list[Outgoing]:
        if not self._is_met:
            return []
        arrived, self._arrived = self._arrived, []
        out = [message for part in arrived for message in self._take(*part)]
        return out + self._number()

    def _take(self, sender: int, step: ComparisonStep, payload: ByteRows) -> list[Outgoing]:
        """Check a set of ids, or places, and do with it what its step asks for."""
        size = len(self._rows[sender])
        if step == "returned":
            what = f"the set of silo {self._index} that silo {sender} returned"
            self._returned[sender] = checked_points(payload, size, what)
            self._check_as_before(sender)
            return []
        if step == "numbered":
            names = [*_in_order(self._known[sender]), *(self._own.ids[row] for row in self._rows[sender])]
            places = _Places.read(payload, names, sender)
            if self._places.setdefault(sender, places) != places:
                raise AlignmentError(f"silo {sender} came back with other ids than before: start all silos again")
            return []
        what = f"the set of silo {sender} that it sent"
        theirs = self._own.blind(checked_points(payload, self._sizes[sender], what))
        self._theirs[sender] = theirs
        self._check_as_before(sender)
        if self._answer == "counts":
            theirs = theirs[np.argsort(comparable(theirs))]
        return [Outgoing(sender, "returned", theirs)]

    def _number(self) -> list[Outgoing]:
        """Once all comparisons are done, a silo with labels sends the places of the samples that it is the first of."""
        if self._has_numbered or not all(map(self._is_compared, self._compared)):
            return []
        if self._index not in self._places:
            earlier = [silo for silo in self._numbering if silo < self._index and silo in self._compared]
            known_before = set[str]().union(*map(self._shared, earlier))
            firsts = [name for name in _in_order(self._ids) if name not in known_before]
            self._places[self._index] = _Places(len(firsts), {name: place for place, name in enumerate(firsts)})
        own, receivers = self._places[self._index], sorted(self._unnumbered)
        self._unnumbered.clear()
        return [Outgoing(silo, "numbered", own.sent(self._names_of(silo))) for silo in receivers]

    def _names_of(self, silo: int) -> list[str | None]:
        """Of each id that was known to be common, and of each one that a silo sent, what it is here, if it is here."""
        mine = {
            point: self._own.ids[row]
            for row, point in zip(self._rows[silo], comparable(self._returned[silo]).tolist(), strict=True)
        }
        return [*_in_order(self._known[silo]), *(mine.get(point) for point in comparable(self._theirs[silo]).tolist())]

    def _advance(self, count: int) -> None:
        """Report progress: this silo multiplies its points, and those of every silo that it is compared with."""
        self._computed += count
        if self._progress is not None:
            total = len(self._own.ids) + sum(self._sizes[silo] for silo in self._compared) + self._repeated
            self._progress(self._computed / total)


class _Places(NamedTuple):
    """The samples that a silo with labels is the first to have."""

    total: int
    places: Mapping[str, int]
    """Of those that this silo knows, too: which of them each is."""

    def sent(self, names: Sequence[str | None]) -> ByteRows:
        """As another silo is sent them, that has these ids; None is one that is not here."""
        places = [ABSENT if name is None else self.places.get(name, ABSENT) for name in names]
        return np.array([self.total, *places], "<i8").view(np.uint8).reshape(-1, 8)

    @classmethod
    def read(cls, payload: ByteRows, names: Sequence[str], sender: int) -> Self:
        """What :meth:`sent` gave, for the ids ``names``."""
        what = f"the places of samples that silo {sender} sent"
        numbers = np.ascontiguousarray(checked_rows(payload, 1 + len(names), 8, what)).view("<i8").ravel()
        count, places = int(numbers[0]), numbers[1:]
        given = places[places != ABSENT]
        is_place = 0 <= count <= MAX_IDS and (given >= 0).all() and (given < count).all()
        if not is_place or len(np.unique(given)) < len(given):
            raise AlignmentError(f"{what} are damaged: they are not different places of so many")
        return cls(count, {name: place for name, place in zip(names, places.tolist(), strict=True) if place != ABSENT})


ABSENT = -1
MOST_COMPARISONS = 20
"""How often a silo may send its ids: after a crash it sends them again."""
COMPARING: tuple[ComparisonStep, ...] = ("blinded", "returned")


def _in_order(ids: Sequence[str]) -> list[str]:
    return [ids[place] for place in id_order(ids)]


def _checked_ids(silo_index: int, ids: Iterable[str]) -> list[str]:
    counts = Counter(ids)
    if not 1 <= len(counts) <= MAX_IDS:
        raise AlignmentError(f"silo {silo_index} has {counted(len(counts), 'id')}: there must be 1 to {MAX_IDS}")
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise AlignmentError(
            f"silo {silo_index} has {counted(len(repeated), 'id')} more than once: {_some(repeated)}; "
            "keep one row of each id"
        )
    return list(counts)


def _unknown(silo_index: int, ids: Sequence[str], known: Mapping[int, Sequence[str]]) -> dict[int, set[str]]:
    """By silo, the ids that are still to be compared with its."""
    own, unknown = {*ids}, {}
    lost = [name for name in dict.fromkeys(name for names in known.values() for name in names) if name not in own]
    if lost:
        raise AlignmentError(
            f"silo {silo_index} no longer has {counted(len(lost), 'known id')}: {_some(sorted(lost))}; "
            "align anew without the former list"
        )
    for silo, names in known.items():
        unknown[silo] = own - {*names}
    return unknown


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (", ..." if len(names) > 5 else "")


def _shuffled(ids: Sequence[str]) -> list[str]:
    """The ids in an order drawn from the system's random source, since it must not be guessed."""
    keys = np.frombuffer(os.urandom(8 * len(ids)), np.uint64)
    return [ids[row] for row in np.argsort(keys)]
