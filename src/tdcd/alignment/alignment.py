"""Private set intersection as messages in, messages out: it opens no connection and no file."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from typing import Any

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
    Outgoing,
    Step,
    checked_rows,
)
from tdcd.core.words import counted
from tdcd.tables.rows import id_order

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


def comparable(rows: ByteRows) -> NDArray[Any]:
    """``[n, width]`` bytes as ``[n]`` values that compare as a whole; equal widths make trailing zeros harmless."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").ravel()


class Alignment:
    """One silo's part in finding which of its ids the other silos have, pair by pair.

    Every silo announces how many ids it has and what it asks for. When all have, each sends its :class:`BlindedIds` to
    all others, and returns theirs. Ids are equal when their characters are: nothing is trimmed or normalised. It holds
    against silos that follow the protocol and are curious about what they see (semi-honest). A silo learns

    - how many ids each other silo has;
    - ``ids``: which of its own ids each single other silo has. What two others have in common it does not learn;
    - ``counts``: only how many of its ids each other silo has. Points are returned in another order.

    A silo that does not follow the protocol can claim ids that it does not have, and so test them, or alter points, so
    that ids are missed: neither is noticed.

    Give the messages of :meth:`start` and :meth:`receive` to their receivers; they may arrive in any order. Both calls
    compute before they return: about 70 microseconds of one processor for each id of every silo.
    """

    def __init__(
        self,
        silo_index: int,
        num_silos: int,
        ids: Iterable[str],
        secret: bytes = b"",
        *,
        answer: Answer = "ids",
        known: Collection[str] = (),
        workers: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Check the ids and shuffle them; nothing is sent yet.

        Args:
            secret: random bytes that the silos agreed on; they compare that they have the same, and need none.
            known: ids that a former alignment found in all silos, the same for all; they are not compared again.
            workers: threads; by default one a processor.
            progress: called with the fraction of this silo's computation that is done, up to 1.
        """
        if answer not in ANSWERS:
            raise ValueError(f"answer = {answer!r}: must be one of {', '.join(ANSWERS)}")
        if not 0 <= silo_index < num_silos:
            raise ValueError(f"silo_index = {silo_index}: must be between 0 and {num_silos - 1}")
        self._index = silo_index
        self._others = [silo for silo in range(num_silos) if silo != silo_index]
        self._known = [*dict.fromkeys(known)]
        compared = _without(silo_index, _checked_ids(silo_index, ids), self._known)
        self._own = BlindedIds(compared, workers=workers, advance=self._advance)
        self._progress = progress
        self._computed = 0
        self._announcement = Announcement.of(len(compared), num_silos, answer, secret, self._known)
        self._sizes: dict[int, int] = {}
        self._arrived: list[tuple[int, Step, ByteRows]] = []
        self._awaited = {(silo, step) for silo in self._others for step in STEPS}
        self._theirs: dict[int, ByteRows] = {}
        """The others' ids, blinded by them and by this silo."""
        self._returned: dict[int, ByteRows] = {}
        """This silo's ids, blinded by it and by each other silo."""

    @property
    def done(self) -> bool:
        """Whether everything is here and was answered."""
        return self._index in self._sizes and not self._awaited and not self._arrived

    @property
    def counts(self) -> dict[int, int]:
        """How many of this silo's ids each other silo has."""
        return {silo: len(self._known) + int(mask.sum()) for silo, mask in self._masks().items()}

    @property
    def common(self) -> list[str]:
        """The ids that all silos have, in the order that all silos give them."""
        if self._announcement.answer == "counts":
            raise RuntimeError("only counts were asked for: nobody knows which ids are common")
        kept = reduce(np.logical_and, self._masks().values(), np.ones(len(self._own.ids), bool))
        common = [*self._known, *(self._own.ids[row] for row in np.flatnonzero(kept))]
        return [common[place] for place in id_order(common)]

    def start(self) -> list[Outgoing]:
        """The announcement to every other silo."""
        if self._index in self._sizes:
            raise RuntimeError("start() was called before: make a new Alignment, with a new secret scalar")
        self._sizes[self._index] = len(self._own.ids)
        return [*self._to_others("announced", self._announcement.encode()), *self._proceed()]

    def receive(self, sender: int, step: str, payload: ByteRows) -> list[Outgoing]:
        """Take one message of another silo, as it was in :class:`Outgoing`; what is to be sent then.

        Raises:
            AlignmentError: the message does not belong here or is damaged. The alignment cannot continue.
        """
        name = next((name for name in STEPS if name == step), None)
        if name is None or (sender, name) not in self._awaited:
            raise AlignmentError(
                f"silo {sender} sent '{step[:40]}', which silo {self._index} does not expect from it or already has: "
                "start all silos again, with the same version and order of silos"
            )
        self._awaited.remove((sender, name))
        if name == "announced":
            announcement = Announcement.decode(payload, sender)
            announcement.require_like(self._announcement, sender)
            self._sizes[sender] = announcement.size
            return self._proceed()
        self._arrived.append((sender, name, payload))
        return self._take_arrived()

    def _masks(self) -> dict[int, Mask]:
        """Which of the ids that were compared each other silo has, in the order in which they were returned."""
        if not self.done:
            missing = sorted({silo for silo, _ in self._awaited})
            raise RuntimeError(f"the alignment is not done: messages of silos {missing} have not arrived")
        return {
            silo: np.isin(comparable(self._returned[silo]), comparable(self._theirs[silo])) for silo in self._others
        }

    def _proceed(self) -> list[Outgoing]:
        """Once all silos have announced themselves: send the own ids, and take what came before its time."""
        if len(self._sizes) <= len(self._others):
            return []
        if not self._others:
            return []
        return [*self._to_others("blinded", self._own.points()), *self._take_arrived()]

    def _take_arrived(self) -> list[Outgoing]:
        if len(self._sizes) <= len(self._others):
            return []
        arrived, self._arrived = self._arrived, []
        return [message for part in arrived for message in self._take(*part)]

    def _take(self, sender: int, step: Step, payload: ByteRows) -> list[Outgoing]:
        """Check a set of ids and do with it what its step asks for."""
        if step == "returned":
            size, what = self._sizes[self._index], f"the set of silo {self._index} that silo {sender} returned"
            self._returned[sender] = checked_points(payload, size, what)
            return []
        what = f"the set of silo {sender} that it sent"
        theirs = self._own.blind(checked_points(payload, self._sizes[sender], what))
        self._theirs[sender] = theirs
        if self._announcement.answer == "counts":
            theirs = theirs[np.argsort(comparable(theirs))]
        return [Outgoing(sender, "returned", theirs)]

    def _to_others(self, step: Step, payload: ByteRows) -> list[Outgoing]:
        return [Outgoing(silo, step, payload) for silo in self._others]

    def _advance(self, count: int) -> None:
        """Report progress: this silo multiplies the points of every silo once."""
        self._computed += count
        if self._progress is not None:
            self._progress(self._computed / sum(self._sizes.values()))


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


def _without(silo_index: int, ids: list[str], known: Sequence[str]) -> list[str]:
    """The ids that are still to be compared."""
    if lost := [*dict.fromkeys(known).keys() - set(ids)]:
        raise AlignmentError(
            f"silo {silo_index} no longer has {counted(len(lost), 'known id')}: {_some(sorted(lost))}; "
            "align anew without the former list"
        )
    found_before = {*known}
    return [name for name in ids if name not in found_before]


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (", ..." if len(names) > 5 else "")


def _shuffled(ids: Sequence[str]) -> list[str]:
    """The ids in an order drawn from the system's random source, since it must not be guessed."""
    keys = np.frombuffer(os.urandom(8 * len(ids)), np.uint64)
    return [ids[row] for row in np.argsort(keys)]
