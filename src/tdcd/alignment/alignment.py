"""The alignment of one silo as messages in, messages out: it opens no connection and no file."""

import hmac
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.alignment import ristretto
from tdcd.alignment.messages import (
    MAX_IDS,
    METHODS,
    AlignmentError,
    Announcement,
    AwaitedMessage,
    ByteRows,
    Method,
    Outgoing,
    awaited,
    checked_rows,
)
from tdcd.core.words import counted
from tdcd.tables.rows import id_order

DIGEST_BYTES = 16
"""The length of a keyed digest of an id."""

MIN_SECRET_BYTES = 16


class Alignment:
    r"""One silo's part in finding the ids that all silos have.

    Every silo announces how many ids it has and what it runs. When all have, each set of ids travels, in a random
    order that only its owner knows, in a form that is the same for equal ids; each silo intersects what it was sent.
    Ids are equal when their characters are: nothing is trimmed or normalised.

    ``digests``: silo i sends :math:`\mathrm{HMAC}(secret, id)` of its ids to all. Whoever has the secret can test any
    id against any silo's set, at any time and without asking; for ids that can be listed (phone numbers) that is as
    good as the ids themselves. Only for parties that would show each other their ids.

    ``psi``: silo i hashes its ids to points of ristretto255, multiplies them with a secret scalar :math:`s_i` and sends
    them round the ring i, i+1, ..., i-1. Every silo multiplies with its own scalar, keeping the order, and the last
    publishes :math:`s_0 s_1 \cdots s_{N-1} H(id)` to all. Who lacks one of the scalars can test no guess. It holds
    against silos that follow the protocol and are curious about what they see (semi-honest). They learn

    - how many ids each silo has, and the ids that all have;
    - with more than two silos also which of their own ids each single other silo has, and how large the
      intersection of any group of silos is, their own among them or not.

    A silo that does not follow the protocol can claim ids that it does not have, and so test them, or alter points, so
    that ids are missed: neither is noticed. Scalars are drawn for one alignment and must never be used for another,
    since runs could then be compared; an object therefore serves once.

    Give the messages of :meth:`start` and :meth:`receive` to their receivers; they may arrive in any order. Both calls
    compute before they return: about 70 microseconds of one processor for each id of every silo with ``psi``.
    """

    def __init__(
        self,
        silo_index: int,
        num_silos: int,
        ids: Iterable[str],
        method: Method,
        secret: bytes = b"",
        *,
        workers: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Check the ids and shuffle them; nothing is sent yet.

        Args:
            secret: random bytes that the silos agreed on, the same for all. ``digests`` needs 16 of them at least;
                ``psi`` only compares that silos have the same, and needs none.
            workers: threads for ``psi``; by default one a processor.
            progress: called with the fraction of this silo's computation that is done, up to 1.
        """
        if method not in METHODS:
            raise ValueError(f"method = {method!r}: must be one of {', '.join(METHODS)}")
        if not 0 <= silo_index < num_silos:
            raise ValueError(f"silo_index = {silo_index}: must be between 0 and {num_silos - 1}")
        if method == "digests" and len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"digests need a secret of at least {MIN_SECRET_BYTES} random bytes, not {len(secret)}")
        self._index = silo_index
        self._num_silos = num_silos
        self._ids = _shuffled(_checked_ids(silo_index, ids))
        self._secret = secret
        self._scalar = ristretto.random_scalar() if method == "psi" else b""
        self._workers = workers
        self._progress = progress
        self._computed = 0
        self._announcement = Announcement.of(len(self._ids), num_silos, method, secret)
        self._sizes: dict[int, int] = {}
        self._published: dict[int, ByteRows] = {}
        self._awaited = awaited(silo_index, num_silos, method)
        self._arrived: list[tuple[AwaitedMessage, ByteRows]] = []

    @property
    def done(self) -> bool:
        """Whether the sets of all silos are here."""
        return len(self._published) == self._num_silos

    @property
    def common(self) -> list[str]:
        """The ids that all silos have, in the order that all silos give them."""
        if not self.done:
            missing = [silo for silo in range(self._num_silos) if silo not in self._published]
            raise RuntimeError(f"the alignment is not done: the sets of silos {missing} have not arrived")
        own, *others = (_comparable(self._published[self._silo(hop)]) for hop in range(self._num_silos))
        kept = reduce(np.logical_and, (np.isin(own, other) for other in others), np.ones(len(own), bool))
        common = [self._ids[row] for row in np.flatnonzero(kept)]
        return [common[place] for place in id_order(common)]

    def start(self) -> list[Outgoing]:
        """The announcement to every other silo."""
        if self._index in self._sizes:
            raise RuntimeError("start() was called before: make a new Alignment, with a new secret scalar")
        self._sizes[self._index] = len(self._ids)
        return [*self._to_others("announced", self._index, self._announcement.encode()), *self._proceed()]

    def receive(self, sender: int, kind: str, payload: ByteRows) -> list[Outgoing]:
        """Take one message of another silo, as it was in :class:`Outgoing`; what is to be sent then.

        Raises:
            AlignmentError: the message does not belong here or is damaged. The alignment cannot continue.
        """
        route = self._awaited.pop(kind, None)
        if route is None or route.sender != sender:
            raise AlignmentError(
                f"silo {sender} sent '{kind[:40]}', which silo {self._index} does not expect from it or already has: "
                "start all silos again, with the same version, method and order of silos"
            )
        if route.step == "announced":
            announcement = Announcement.decode(payload, sender)
            announcement.require_like(self._announcement, sender)
            self._sizes[sender] = announcement.size
            return self._proceed()
        self._arrived.append((route, payload))
        return self._take_arrived()

    def _proceed(self) -> list[Outgoing]:
        """Once all silos have announced themselves: send the own set, and take what came before its time."""
        if len(self._sizes) < self._num_silos:
            return []
        if self._announcement.method == "digests":
            digests = keyed_digests(self._ids, self._secret)
            self._advance(len(digests))
            return [*self._publish(self._index, digests), *self._take_arrived()]
        points = ristretto.hash_to_points(self._ids, workers=self._workers)
        return [*self._blind(self._index, points), *self._take_arrived()]

    def _take_arrived(self) -> list[Outgoing]:
        if len(self._sizes) < self._num_silos:
            return []
        arrived, self._arrived = self._arrived, []
        return [message for route, payload in arrived for message in self._take(route, payload)]

    def _take(self, route: AwaitedMessage, payload: ByteRows) -> list[Outgoing]:
        """Check a set of ids and do with it what its step asks for."""
        what = f"the set of silo {route.owner} that silo {route.sender} sent"
        psi = self._announcement.method == "psi"
        checked_rows(payload, self._sizes[route.owner], ristretto.POINT_BYTES if psi else DIGEST_BYTES, what)
        if psi and (row := ristretto.first_invalid(payload)) is not None:
            raise AlignmentError(f"{what} is damaged: row {row} is no point of the group, or is its identity")
        if len(np.unique(_comparable(payload))) < len(payload):
            raise AlignmentError(f"{what} holds the same id twice: a silo may give each id once")
        if route.step == "blinded":
            return self._blind(route.owner, payload)
        self._published[route.owner] = payload
        return []

    def _blind(self, owner: int, points: ByteRows) -> list[Outgoing]:
        """Multiply with the secret scalar and send on, to the next silo or, after the last one, to all."""
        blinded = ristretto.blind(points, self._scalar, workers=self._workers, advance=self._advance)
        following = self._silo(1)
        if following == owner:
            return self._publish(owner, blinded)
        return [Outgoing(following, f"blinded-{owner}", blinded)]

    def _publish(self, owner: int, rows: ByteRows) -> list[Outgoing]:
        self._published[owner] = rows
        return self._to_others("published", owner, rows)

    def _to_others(self, step: str, owner: int, payload: ByteRows) -> list[Outgoing]:
        return [Outgoing(self._silo(hop), f"{step}-{owner}", payload) for hop in range(1, self._num_silos)]

    def _silo(self, hops: int) -> int:
        """The silo so many hops after this one on the ring."""
        return (self._index + hops) % self._num_silos

    def _advance(self, count: int) -> None:
        """Report progress: with ``psi`` this silo multiplies the points of every silo once."""
        self._computed += count
        if self._progress is not None:
            total = sum(self._sizes.values()) if self._announcement.method == "psi" else len(self._ids)
            self._progress(self._computed / total)


def _checked_ids(silo_index: int, ids: Iterable[str]) -> list[str]:
    counts = Counter(ids)
    if not 1 <= len(counts) <= MAX_IDS:
        raise AlignmentError(f"silo {silo_index} has {counted(len(counts), 'id')}: there must be 1 to {MAX_IDS}")
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        shown = ", ".join(f"'{name}'" for name in repeated[:5]) + (", ..." if len(repeated) > 5 else "")
        raise AlignmentError(
            f"silo {silo_index} has {counted(len(repeated), 'id')} more than once: {shown}; keep one row of each id"
        )
    return list(counts)


def _shuffled(ids: list[str]) -> list[str]:
    """The ids in an order drawn from the system's random source, since it must not be guessed."""
    keys = np.frombuffer(os.urandom(8 * len(ids)), np.uint64)
    return [ids[row] for row in np.argsort(keys)]


def _comparable(rows: ByteRows) -> NDArray[Any]:
    """``[n, width]`` bytes as ``[n]`` values that compare as a whole; equal widths make trailing zeros harmless."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").ravel()


def keyed_digests(ids: Sequence[str], secret: bytes) -> ByteRows:
    """HMAC-SHA256(secret, id), the first 16 bytes of each: ``[n, 16]``.

    Two of n different ids share a digest with probability about n^2 / 2^129.
    """
    digests = b"".join(hmac.digest(secret, name.encode(), "sha256")[:DIGEST_BYTES] for name in ids)
    return np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)
