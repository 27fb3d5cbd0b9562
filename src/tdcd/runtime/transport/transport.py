"""Byte messages between named parties: what a transport promises, and the one that stays inside a process.

A party is ``hub.SILO`` or ``client.SILO.CLIENT``. A client is linked to its own hub only; a hub is linked
to its own clients and to every other hub. A link exists while both ends are there and each names the other as a peer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from queue import Empty, SimpleQueue
from threading import Lock, RLock
from typing import NamedTuple, Protocol, Self

from tdcd.runtime.certificates.check import role_of

MAX_MESSAGE_BYTES = 64 * 2**20
"""The largest message that a transport carries by default."""

UNREAD_EVENTS = 1024
"""Events of one peer that may wait to be received."""

UNREAD_FULL_MESSAGES = 4
"""Messages of the largest size, of one peer, that may wait to be received."""


class Received(NamedTuple):
    """A message arrived, whole."""

    sender: str
    data: bytes


class Joined(NamedTuple):
    """The link to this party is up: what is sent to it from now on arrives."""

    party: str


class Left(NamedTuple):
    """The link to this party is down: messages on their way are lost, and so is what is sent before it joins again."""

    party: str


Event = Received | Joined | Left


class Transport(Protocol):
    """One party's end of its links.

    Messages of one sender are received once and in the order sent, for as long as the link is up. ``Joined`` comes
    before the first message of a party, ``Left`` after the last. A party that restarts has left and joined again. Of
    several processes of a party one has the link; the next has it when that one is gone, see
    :mod:`tdcd.runtime.transport.processes`. One thread at a time may send, and one may receive.

    Attributes:
        party: Who this is.
        sent_bytes: Payload bytes handed to each link; messages to absent parties do not count.
        dropped: Events of each peer that were thrown away: messages too large, or too much unread.
        unsealed: What was thrown away since it came in a peer's name, and not from its process that has the link.
        arriving: How many bytes have come of the message that each peer is in the middle of sending.
        revoked: Peers whose certificate was revoked and which have not come with a new one.
        unfit: By peer: a sentence on a process of it that has no link with this one, and why.
        expiries: When the certificates of this party and of its peers expire, as far as known; in seconds since 1970.
    """

    party: str

    @property
    def sent_bytes(self) -> Counter[str]:
        """See above."""

    @property
    def dropped(self) -> Counter[str]:
        """See above."""

    @property
    def unsealed(self) -> Counter[str]:
        """See above."""

    @property
    def arriving(self) -> Counter[str]:
        """See above."""

    @property
    def revoked(self) -> set[str]:
        """See above."""

    @property
    def unfit(self) -> Mapping[str, str]:
        """See above."""

    @property
    def expiries(self) -> Mapping[str, int]:
        """See above."""

    def send(self, receiver: str, data: bytes) -> None:
        """Send ``data`` to a peer. It is lost without notice if the peer is away.

        Waits while the link is full, but not for ever: a link on which nothing moves is closed, and the peer has left.

        Raises:
            ValueError: ``receiver`` is not a peer, or ``data`` is larger than the transport carries.
            RuntimeError: The transport is closed.
        """

    def receive(self, timeout: float | None) -> Event | None:
        """The next event, or None if there is none within ``timeout`` seconds; None as ``timeout`` waits for ever.

        Raises:
            RuntimeError: The transport is closed, before or during the wait.
        """

    def close(self) -> None:
        """Leave. Closing twice does nothing. Peers that still read get what was sent before."""

    def __enter__(self) -> Self:
        """The transport itself, to be closed at the end of the block."""

    def __exit__(self, *error: object) -> None:
        """Close."""


def linked(party: str, other: str) -> bool:
    """Whether the topology has a link between two parties.

    >>> linked("client.bank.north", "hub.bank"), linked("hub.bank", "hub.shop")
    (True, True)
    >>> linked("client.bank.north", "hub.shop"), linked("client.bank.north", "client.bank.south")
    (False, False)
    """
    roles = {role_of(party), role_of(other)}
    same_silo = party.split(".")[1:2] == other.split(".")[1:2]
    return roles == {"hub", "client"} if same_silo else roles == {"hub"}


class Mailbox:
    """What a party has yet to receive, and the rules for what it may send.

    Every peer has a share of its own, in events and in bytes, so that one that floods cannot exhaust the memory; what
    goes over the share is thrown away and counted. Any thread may put.
    """

    def __init__(self, party: str, peers: Iterable[str], max_message_bytes: int) -> None:
        self.party = party
        self.peers = frozenset(peers)
        self.dropped: Counter[str] = Counter()
        self.arriving: Counter[str] = Counter()
        self._pieces: dict[str, bytearray] = {}
        self._max_message_bytes = max_message_bytes
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._unread_events: Counter[str] = Counter()
        self._unread_bytes: Counter[str] = Counter()
        self._lock = Lock()
        self.closed = False
        if strangers := sorted(peer for peer in self.peers if not linked(party, peer)):
            raise ValueError(
                f"{party!r} cannot have the peer {strangers[0]!r}: the peers of client.SILO.CLIENT are hub.SILO alone, "
                "those of hub.SILO are its clients and the other hubs"
            )

    def check(self, receiver: str, data: bytes) -> None:
        """Raise unless the party may send ``data`` to ``receiver``; see :meth:`Transport.send`."""
        self._check_open()
        if receiver not in self.peers:
            raise ValueError(f"{self.party} cannot send to {receiver!r}: its peers are {', '.join(sorted(self.peers))}")
        if len(data) > self._max_message_bytes:
            raise ValueError(
                f"{self.party} cannot send {len(data)} bytes to {receiver}: the most is {self._max_message_bytes}; "
                "raise runtime.max_message_mb everywhere"
            )

    def put_piece(self, sender: str, piece: bytes, *, is_last: bool) -> None:
        """Add the next piece of a message; the message is there when its last piece is."""
        if is_last and sender not in self._pieces:
            self.put(Received(sender, piece))
            return
        with self._lock:
            held = self._pieces.setdefault(sender, bytearray())
            # Of a message that gets too large one byte too many is kept: enough for :meth:`put` to refuse it.
            held += piece[: self._max_message_bytes + 1 - len(held)]
            self.arriving[sender] = 0 if is_last else self.arriving[sender] + len(piece)
        if is_last:
            self.put(Received(sender, bytes(held)))

    def put(self, event: Event) -> None:
        """Add an event of a peer, or drop it if the peer's share is used up. What was in pieces before it is gone."""
        peer, size = event[0], _size(event)
        with self._lock:
            self._pieces.pop(peer, None)
            self.arriving[peer] = 0
            room = UNREAD_FULL_MESSAGES * self._max_message_bytes - self._unread_bytes[peer]
            if self._unread_events[peer] == UNREAD_EVENTS or size > min(room, self._max_message_bytes):
                self.dropped[peer] += 1
                return
            self._unread_events[peer] += 1
            self._unread_bytes[peer] += size
            self._events.put(event)

    def get(self, timeout: float | None) -> Event | None:
        """Take the oldest event; see :meth:`Transport.receive`."""
        self._check_open()
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            return None
        self._check_open()
        assert event is not None  # only close puts None
        with self._lock:
            self._unread_events[event[0]] -= 1
            self._unread_bytes[event[0]] -= _size(event)
        return event

    def forget_messages(self, peer: str) -> None:
        """Discard messages of a peer that have not been received yet; only for the thread that receives."""
        with self._lock:
            self._pieces.pop(peer, None)
            self.arriving[peer] = 0
            for event in [self._events.get_nowait() for _ in range(self._events.qsize())]:
                if isinstance(event, Received) and event.sender == peer:
                    self._unread_events[peer] -= 1
                    self._unread_bytes[peer] -= len(event.data)
                else:
                    self._events.put(event)

    def close(self) -> None:
        """Refuse everything from now on, and wake the thread that waits."""
        self.closed = True
        self._events.put(None)

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError(f"the transport of {self.party} is closed")


def _size(event: Event) -> int:
    return len(event.data) if isinstance(event, Received) else 0


class LocalNetwork:
    """Parties inside one process: the promises of a real network, in a fixed order and without delay.

    >>> network = LocalNetwork()
    >>> hub = network.join("hub.bank", ["client.bank.north"])
    >>> client = network.join("client.bank.north", ["hub.bank"])
    >>> client.send("hub.bank", b"hello")
    >>> hub.receive(0), hub.receive(0), hub.receive(0)
    (Joined(party='client.bank.north'), Received(sender='client.bank.north', data=b'hello'), None)
    """

    def __init__(self) -> None:
        self._ends: dict[str, LocalTransport] = {}
        self._lock = RLock()

    def join(self, party: str, peers: Iterable[str], *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> "LocalTransport":
        """The end of ``party``, linked to those of ``peers`` that are there and name it too."""
        end = LocalTransport(self, Mailbox(party, peers, max_message_bytes))
        with self._lock:
            if party in self._ends:
                raise ValueError(f"{party} is there already; close its transport first")
            self._ends[party] = end
            for other in self._linked_to(party):
                other.mailbox.put(Joined(party))
                end.mailbox.put(Joined(other.party))
        return end

    def leave(self, party: str) -> None:
        """Take ``party`` off the network."""
        with self._lock:
            for other in self._linked_to(party):
                other.mailbox.put(Left(party))
            del self._ends[party]

    def deliver(self, sender: str, receiver: str, data: bytes) -> bool:
        """Give a message to its receiver; False where there is no link."""
        with self._lock:
            ends = [end for end in self._linked_to(sender) if end.party == receiver]
            for end in ends:
                end.mailbox.put(Received(sender, data))
        return bool(ends)

    def _linked_to(self, party: str) -> "list[LocalTransport]":
        peers = self._ends[party].mailbox.peers
        return [end for end in self._ends.values() if end.party in peers and party in end.mailbox.peers]


class LocalTransport:
    """The :class:`Transport` of a party of a :class:`LocalNetwork`."""

    def __init__(self, network: LocalNetwork, mailbox: Mailbox) -> None:
        self.party = mailbox.party
        self.sent_bytes: Counter[str] = Counter()
        self.dropped = mailbox.dropped
        self.unsealed: Counter[str] = Counter()
        self.arriving = mailbox.arriving
        self.revoked: set[str] = set()
        self.unfit: Mapping[str, str] = {}
        self.expiries: Mapping[str, int] = {}
        self.mailbox = mailbox
        self._network = network

    def send(self, receiver: str, data: bytes) -> None:
        """See :meth:`Transport.send`."""
        self.mailbox.check(receiver, data)
        if self._network.deliver(self.party, receiver, data):
            self.sent_bytes[receiver] += len(data)

    def receive(self, timeout: float | None) -> Event | None:
        """See :meth:`Transport.receive`."""
        return self.mailbox.get(timeout)

    def close(self) -> None:
        """See :meth:`Transport.close`."""
        if not self.mailbox.closed:
            self.mailbox.close()
            self._network.leave(self.party)

    def __enter__(self) -> Self:
        """See :meth:`Transport.__enter__`."""
        return self

    def __exit__(self, *error: object) -> None:
        """See :meth:`Transport.__exit__`."""
        self.close()
