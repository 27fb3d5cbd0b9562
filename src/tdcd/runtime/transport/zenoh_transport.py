"""Messages between organisations: Eclipse zenoh links under mutual TLS, without a broker.

Every party is a zenoh peer that finds nobody by itself: a hub listens, and dials the hubs whose names sort before its
own; a client dials its hub and has no port. Who dials never gives up. A link has two keys in each direction, and the
common name on a certificate fixes which ones its holder may use. A large message goes in pieces, all but the last one
marked by an attachment: zenoh closes a link that has not taken what it was given within a fixed time.

==============================================  ======================================================
``tdcd/1/RECEIVER/SENDER/message``              messages
``tdcd/1/RECEIVER/SENDER/alive/INCARNATION``    a liveliness token, there while the sender's process is
==============================================  ======================================================
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Self

import zenoh
from zenoh.handlers import Callback

from tdcd.runtime.transport.transport import MAX_MESSAGE_BYTES, Event, Joined, Left, Mailbox, pieces
from tdcd.runtime.transport.zenoh_settings import LEASE_S, PIECE_BYTES, Tls, alive_key, message_key, zenoh_settings

MORE = b"more"
"""The attachment of a piece that is not the last of its message."""


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
    ) -> None:
        self._mailbox = Mailbox(party, peers, max_message_bytes)
        self.party = party
        self.sent_bytes: Counter[str] = Counter()
        self.dropped = self._mailbox.dropped
        self.arriving = self._mailbox.arriving
        self._incarnations: dict[str, str] = {}
        self._lock = Lock()
        ordered = sorted(self._mailbox.peers)
        settings = zenoh_settings(party, ordered, addresses, listen, tls, max_message_bytes, lease_s)
        self._session = _open(party, settings)
        self._publishers = {peer: self._link(peer) for peer in ordered}
        # Tokens come last: who sees one can rely on the subscriptions above.
        incarnation = str(self._session.zid())
        self._tokens = [
            self._session.liveliness().declare_token(alive_key(peer, party, incarnation)) for peer in self._publishers
        ]

    def send(self, receiver: str, data: bytes) -> None:
        """See :meth:`Transport.send <tdcd.runtime.transport.transport.Transport.send>`."""
        self._mailbox.check(receiver, data)
        incarnation = self._incarnations.get(receiver)
        for piece, is_last in pieces(data, PIECE_BYTES):
            # Who is away, or came back in the meantime, could not put the pieces together.
            if incarnation is None or self._incarnations.get(receiver) != incarnation:
                return
            self._publishers[receiver].put(piece, attachment=None if is_last else MORE)
        self.sent_bytes[receiver] += len(data)

    def receive(self, timeout: float | None) -> Event | None:
        """See :meth:`Transport.receive <tdcd.runtime.transport.transport.Transport.receive>`."""
        return self._mailbox.get(timeout)

    def close(self) -> None:
        """See :meth:`Transport.close <tdcd.runtime.transport.transport.Transport.close>`."""
        if not self._mailbox.closed:
            self._mailbox.close()
            # Zenoh gives up closing after ten seconds: some connection is still being opened, to somebody who is away.
            with suppress(zenoh.ZError):
                self._session.close()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        """The transport itself, to be closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def _link(self, peer: str) -> zenoh.Publisher:
        """Hear a peer's messages, its coming and its going; the result carries messages to it."""
        # Direct callbacks run on the one thread that reads the link, so that events keep their order.
        on_message = Callback(partial(self._on_message, peer), indirect=False)
        on_presence = Callback(partial(self._on_presence, peer), indirect=False)
        self._session.declare_subscriber(message_key(self.party, peer), on_message)
        self._session.liveliness().declare_subscriber(alive_key(self.party, peer), on_presence, history=True)
        return self._session.declare_publisher(
            message_key(peer, self.party),
            # By default zenoh throws messages away when a link is busy.
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            express=True,
        )

    def _on_message(self, sender: str, sample: zenoh.Sample) -> None:
        self._mailbox.put_piece(sender, sample.payload.to_bytes(), is_last=sample.attachment is None)

    def _on_presence(self, peer: str, sample: zenoh.Sample) -> None:
        incarnation = str(sample.key_expr).rpartition("/")[2]
        with self._lock:
            known = self._incarnations.get(peer)
            if sample.kind == zenoh.SampleKind.PUT:
                if known is not None:
                    self._mailbox.put(Left(peer))
                self._incarnations[peer] = incarnation
                self._mailbox.put(Joined(peer))
            elif known == incarnation:
                del self._incarnations[peer]
                self._mailbox.put(Left(peer))


def _open(party: str, settings: Mapping[str, Any]) -> zenoh.Session:
    # Zenoh writes to standard output, and repeats itself while a peer is away: only for those who set RUST_LOG.
    zenoh.init_log_from_env_or("off")
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
    except zenoh.ZError as error:
        reason = str(error).partition(" at /")[0]
        raise OSError(f"{party} cannot open {settings['listen']['endpoints'] or 'its links'}: {reason}") from error
