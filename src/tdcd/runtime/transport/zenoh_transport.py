"""Messages between organisations: Eclipse zenoh links under mutual TLS, without a broker.

Every party is a zenoh peer that finds nobody by itself: a hub listens, and dials the hubs whose names sort before its
own; a client dials its hub and has no port. Who dials never gives up. A link has two keys in each direction, and the
common name on a certificate fixes which ones its holder may use: RECEIVER and SENDER are common names. A large message
goes in pieces, all but the last one marked by an attachment: zenoh closes a link that has not taken what it was given
within a fixed time.

==============================================  ======================================================
``tdcd/1/RECEIVER/SENDER/message``              messages
``tdcd/1/RECEIVER/SENDER/alive/INCARNATION``    a liveliness token, there while the sender's process is
==============================================  ======================================================
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, Self

import zenoh
from zenoh.handlers import Callback

from tdcd.runtime.certificates.check import facts_of, read_certificate
from tdcd.runtime.certificates.revocation import LOOK_S, RevocationList, WatchedList
from tdcd.runtime.transport.cutting import cut, locator_address
from tdcd.runtime.transport.guard import Guard, loopback_port
from tdcd.runtime.transport.transport import MAX_MESSAGE_BYTES, Event, Joined, Left, Mailbox
from tdcd.runtime.transport.zenoh_settings import (
    HANDSHAKE_LEASES,
    LEASE_S,
    PIECE_BYTES,
    THREADS,
    Tls,
    alive_key,
    message_key,
    zenoh_settings,
)

MORE = b"more"
"""The attachment of a piece that is not the last of its message."""

NAMES_AHEAD = 4
"""How many common names of a peer are in the access rules, which are fixed when the session opens: its current one, and
those that it would have after further revocations."""


class _Link(NamedTuple):
    """What is declared for one peer, under its current common name."""

    publisher: zenoh.Publisher
    messages: zenoh.Subscriber[None]
    presence: zenoh.Subscriber[None]
    token: zenoh.LivelinessToken

    def undeclare(self) -> None:
        """Say and hear nothing any more."""
        for declared in self:
            declared.undeclare()  # type: ignore[no-untyped-call]


class ZenohTransport:
    """The :class:`~tdcd.runtime.transport.transport.Transport` of a party in a process of its own.

    Opening returns at once; peers join when they can be reached, in whatever order the parties start.

    Args:
        party: Who this is; the common name of its certificate.
        peers: Who may talk to it.
        addresses: ``HOST:PORT`` at which each hub among the peers listens.
        listen: ``HOST:PORT`` of a hub's own port; None for a client.
        tls: The party's files. None sends clear text and trusts everybody: for loopback addresses only.
        max_message_bytes: Larger messages are refused, incoming ones before they are put together.
        lease_s: How long a link may be silent; longer than any round trip.
        revocations: Whose certificates are not honoured any more; None to honour all.
        tell: Is told what whoever runs a hub should know of its port.

    Raises:
        ValueError: Something in the arguments or the files is wrong; the text says what.
        OSError: The hub cannot listen.
    """

    def __init__(
        self,
        party: str,
        peers: Iterable[str],
        *,
        addresses: Mapping[str, str],
        listen: str | None = None,
        tls: Tls | None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        lease_s: float = LEASE_S,
        revocations: WatchedList | None = None,
        tell: Callable[[str], None] = lambda news: None,
    ) -> None:
        self._mailbox = Mailbox(party, peers, max_message_bytes)
        self.party = party
        self.sent_bytes: Counter[str] = Counter()
        self.dropped = self._mailbox.dropped
        self.arriving = self._mailbox.arriving
        self._incarnations: dict[str, str] = {}
        self._lock = Lock()
        self._revocations = revocations
        ordered = sorted(self._mailbox.peers)
        honoured = RevocationList() if revocations is None else revocations.current
        self.revoked = {peer for peer in ordered if honoured.is_revoked(peer)}
        self._allowed = {peer: honoured.next_names(peer, NAMES_AHEAD) for peer in ordered}
        self._own_name = party if tls is None else facts_of(read_certificate(tls.certificate)).common_name
        self._names = {peer: names[0] for peer, names in self._allowed.items()}
        names = {party: [self._own_name], **self._allowed}
        inner = None if listen is None or tls is None else _port_behind(tell)
        behind = listen if inner is None else f"127.0.0.1:{inner}"
        settings = zenoh_settings(party, ordered, addresses, behind, tls, max_message_bytes, lease_s, names)
        self._session, self._guard = _open(party, settings), None
        if listen is not None and inner is not None:
            try:
                self._guard = Guard(listen, inner, len(ordered), HANDSHAKE_LEASES * lease_s, tell)
            except OSError as error:
                self._session.close()  # type: ignore[no-untyped-call]
                raise OSError(f"{party} cannot listen on {listen}: {error}") from error
            on_link = partial(_admit, self._guard, inner)
            self._link_events = self._session.info.declare_link_events_listener(on_link, history=True)
        self._links = {peer: self._link(peer) for peer in ordered}

    def send(self, receiver: str, data: bytes) -> None:
        """See :meth:`Transport.send <tdcd.runtime.transport.transport.Transport.send>`."""
        self._mailbox.check(receiver, data)
        incarnation, link = self._incarnations.get(receiver), self._links.get(receiver)
        for piece, is_last in pieces(data, PIECE_BYTES):
            # Who is away, or came back in the meantime, could not put the pieces together.
            if link is None or incarnation is None or self._incarnations.get(receiver) != incarnation:
                return
            link.publisher.put(piece, attachment=None if is_last else MORE)
        self.sent_bytes[receiver] += len(data)

    def receive(self, timeout: float | None) -> Event | None:
        """See :meth:`Transport.receive <tdcd.runtime.transport.transport.Transport.receive>`."""
        ends = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._honour_revocations()
            left = ends - time.monotonic()
            event = self._mailbox.get(max(0.0, min(left, LOOK_S)))
            if event is not None or left <= LOOK_S:
                return event

    def close(self) -> None:
        """See :meth:`Transport.close <tdcd.runtime.transport.transport.Transport.close>`."""
        if not self._mailbox.closed:
            self._mailbox.close()
            # Zenoh gives up closing after ten seconds: some connection is still being opened, to somebody who is away.
            with suppress(zenoh.ZError):
                self._session.close()  # type: ignore[no-untyped-call]
            if self._guard is not None:
                self._guard.close()

    def __enter__(self) -> Self:
        """The transport itself, to be closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def _honour_revocations(self) -> None:
        """Look whether the list has changed, now and then, and close links of those who are on it."""
        if self._revocations is None or not self._revocations.is_due():
            return
        if self._revocations.changed():
            honoured = self._revocations.current
            if self._own_name in honoured.keys:
                raise ValueError(
                    f"the certificate of {self.party} was revoked (list {honoured.number}, {honoured.source}): "
                    "ask for a new one with a new key, tdcd certs request --new-key, and start again"
                )
            for peer, name in self._names.items():
                if name in honoured.keys:
                    self._shut_out(peer, honoured.current_name(peer))
        if revoked := self._revocations.current.keys:
            cut(self._session, revoked)

    def _shut_out(self, peer: str, name: str) -> None:
        """Have nothing to do with a peer from now on, until it comes with a certificate of its next name."""
        with self._lock:
            self._names[peer] = name
            self.revoked.add(peer)
            self._mailbox.forget_messages(peer)
            if self._incarnations.pop(peer, None) is not None:
                self._mailbox.put(Left(peer))
        self._links.pop(peer).undeclare()
        if name in self._allowed[peer]:
            self._links[peer] = self._link(peer)
        else:
            assert self._revocations is not None
            self._revocations.tell(f"{peer} was revoked often: restart {self.party} to let '{name}' in")

    def _link(self, peer: str) -> _Link:
        """Hear a peer's messages, its coming and its going, carry messages to it, and be seen by it."""
        own, name, session = self._own_name, self._names[peer], self._session
        # Direct callbacks run on the one thread that reads the link, so that events keep their order.
        on_message = Callback(partial(self._on_message, peer, name), indirect=False)
        on_presence = Callback(partial(self._on_presence, peer, name), indirect=False)
        publisher = session.declare_publisher(
            message_key(name, own),
            # By default zenoh throws messages away when a link is busy.
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            express=True,
        )
        messages = session.declare_subscriber(message_key(own, name), on_message)
        presence = session.liveliness().declare_subscriber(alive_key(own, name), on_presence, history=True)
        # The token comes last: who sees it can rely on the subscriptions above.
        token = session.liveliness().declare_token(alive_key(name, own, str(session.zid())))
        return _Link(publisher, messages, presence, token)

    def _on_message(self, sender: str, name: str, sample: zenoh.Sample) -> None:
        with self._lock:
            if name == self._names[sender]:
                self._mailbox.put_piece(sender, sample.payload.to_bytes(), is_last=sample.attachment is None)

    def _on_presence(self, peer: str, name: str, sample: zenoh.Sample) -> None:
        incarnation = str(sample.key_expr).rpartition("/")[2]
        with self._lock:
            if name != self._names[peer]:
                return
            known = self._incarnations.get(peer)
            if sample.kind == zenoh.SampleKind.PUT:
                if known is not None:
                    self._mailbox.put(Left(peer))
                self._incarnations[peer] = incarnation
                self.revoked.discard(peer)
                self._mailbox.put(Joined(peer))
            elif known == incarnation:
                del self._incarnations[peer]
                self._mailbox.put(Left(peer))


def _port_behind(tell: Callable[[str], None]) -> int | None:
    """A port for zenoh behind the guard; None where the two could not reach each other."""
    try:
        return loopback_port()
    except OSError as error:
        tell(f"127.0.0.1 cannot be used here: {error}. Nothing limits connections of strangers: ip link set lo up")
        return None


def _admit(guard: Guard, inner: int, event: zenoh.LinkEvent) -> None:
    """Tell the guard of a link that somebody has dialled; those that zenoh dials itself have another port."""
    link = event.link
    if event.kind == zenoh.SampleKind.PUT and locator_address(str(link.src))[1] == inner:
        guard.admit(locator_address(str(link.dst))[1], link.auth_identifier or "")


def pieces(data: bytes, size: int) -> Iterator[tuple[bytes, bool]]:
    """Cut a message; each piece, and whether it is the last.

    >>> [*pieces(b"message", 3)], [*pieces(b"", 3)]
    ([(b'mes', False), (b'sag', False), (b'e', True)], [(b'', True)])
    """
    for start in range(0, max(len(data), 1), size):
        yield data[start : start + size], start + size >= len(data)


def _open(party: str, settings: Mapping[str, Any]) -> zenoh.Session:
    # Zenoh writes to standard output, and repeats itself while a peer is away: only for those who set RUST_LOG.
    zenoh.init_log_from_env_or("off")
    # Zenoh asks the environment alone, once in a process; whatever was set there is overruled.
    os.environ.update(THREADS)
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
    except zenoh.ZError as error:
        reason = str(error).partition(" at /")[0]
        raise OSError(f"{party} cannot open {settings['listen']['endpoints'] or 'its links'}: {reason}") from error
