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

import ipaddress
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import zenoh
from zenoh.handlers import Callback

from tdcd.runtime.certificates.check import explain, role_of
from tdcd.runtime.transport.transport import MAX_MESSAGE_BYTES, Event, Joined, Left, Mailbox, pieces

LEASE_S = 6.0
"""A peer that is silent for so long, although its connection stands, has left."""

STALL_LEASES = 5
"""A link that takes nothing for so many leases is closed. The system's queue holds up to a minute's worth of a slow
link, and says that it has room only when a third of it is free."""

HANDSHAKE_LEASES = 4
"""A connection that is not a link after so many is given up: opening takes four round trips, two of them zenoh's."""

BATCH_BYTES = 2**15
"""What zenoh writes at a time; a receiver gives a link up that takes longer than the lease for so much."""

PIECE_BYTES = BATCH_BYTES - 1024
"""The largest piece of a message, with room for zenoh's own fields beside it."""

MORE = b"more"
"""The attachment of a piece that is not the last of its message."""

# Zenoh reads and writes a TLS link in two threads that share the buffers of rustls without a lock. A record that does
# not decrypt makes the reader write too, an alert: bytes to be sent are then freed twice, and the process dies. So one
# thread does both. Zenoh asks only the environment, once in a process; whatever was set there is overruled.
os.environ["ZENOH_RUNTIME"] = "(rx: (worker_threads: 1), tx: (handover: rx))"

_OVERHEAD_BYTES = 1024
"""Room for zenoh's own fields beside the payload."""


class Tls(NamedTuple):
    """The files with which a party shows who it is: PEM, the key without a passphrase."""

    authority: Path
    certificate: Path
    key: Path


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
        endpoints = _endpoints(party, ordered, addresses, listen, tls)
        config = _links(endpoints, max_message_bytes, lease_s)
        if tls is not None:
            config["transport"]["link"]["tls"] = _authentication(party, tls)
            config["access_control"] = _permissions(party, ordered)
        self._session = _open(party, config)
        self._publishers = {peer: self._link(peer) for peer in ordered}
        # Tokens come last: who sees one can rely on the subscriptions above.
        incarnation = str(self._session.zid())
        self._tokens = [
            self._session.liveliness().declare_token(_alive(peer, party, incarnation)) for peer in self._publishers
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
        self._session.declare_subscriber(_message(self.party, peer), on_message)
        self._session.liveliness().declare_subscriber(_alive(self.party, peer), on_presence, history=True)
        return self._session.declare_publisher(
            _message(peer, self.party),
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


def _message(receiver: str, sender: str) -> str:
    return f"tdcd/1/{receiver}/{sender}/message"


def _alive(receiver: str, sender: str, incarnation: str = "*") -> str:
    return f"tdcd/1/{receiver}/{sender}/alive/{incarnation}"


def _endpoints(
    party: str, peers: Iterable[str], addresses: Mapping[str, str], listen: str | None, tls: Tls | None
) -> dict[str, list[str]]:
    """Where to listen and whom to dial, as zenoh writes them."""
    if (listen is not None) != (role_of(party) == "hub"):
        raise ValueError(f"{party} listens on {listen}: a hub needs an address to listen on, a client has none")
    hubs = [peer for peer in peers if role_of(peer) == "hub"]
    if missing := [hub for hub in hubs if hub not in addresses]:
        raise ValueError(f"{party} has no address of {missing[0]}: give HOST:PORT of every hub")
    # Only one of two hubs dials: two links at the same moment would get in each other's way.
    dialled = [addresses[hub] for hub in hubs if role_of(party) == "client" or hub < party]
    listened = [] if listen is None else [listen]
    if tls is None:
        for address in (*listened, *dialled):
            _check_loopback(address)
    scheme = "tcp" if tls is None else "tls"
    return {
        "listen": [f"{scheme}/{address}" for address in listened],
        "connect": [f"{scheme}/{address}" for address in dialled],
    }


def _check_loopback(address: str) -> None:
    host = address.rpartition(":")[0].strip("[]")
    try:
        safe = ipaddress.ip_address(host).is_loopback
    except ValueError:
        safe = host == "localhost"
    if not safe:
        raise ValueError(f"{address} is not a loopback address: without TLS, use 127.0.0.1, or give certificates")


def _links(endpoints: Mapping[str, list[str]], max_message_bytes: int, lease_s: float) -> dict[str, Any]:
    """Zenoh's settings but for security: no discovery, fast redialling, first in first out, bounded sizes."""
    lease_ms = round(1000 * lease_s)
    handshake_ms = HANDSHAKE_LEASES * lease_ms
    return {
        "mode": "peer",
        "listen": {"endpoints": endpoints["listen"], "timeout_ms": 0, "exit_on_failure": True},
        "connect": {
            "endpoints": endpoints["connect"],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 1.5},
        },
        "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "timestamping": {"enabled": False},
        "adminspace": {"enabled": False},
        "transport": {
            "shared_memory": {"enabled": False},
            # One queue instead of one per priority: not even the news that its sender left overtakes a message.
            "unicast": {"qos": {"enabled": False}, "open_timeout": handshake_ms, "accept_timeout": handshake_ms},
            "link": {
                "protocols": sorted({endpoint.partition("/")[0] for group in endpoints.values() for endpoint in group}),
                "rx": {"max_message_size": max_message_bytes + _OVERHEAD_BYTES},
                "tx": {
                    "lease": lease_ms,
                    "batch_size": BATCH_BYTES,
                    "queue": {"congestion_control": {"block": {"wait_before_close": 1000 * STALL_LEASES * lease_ms}}},
                },
            },
        },
    }


def _authentication(party: str, tls: Tls) -> dict[str, Any]:
    """Both ends of every link show a certificate of the federation's authority."""
    if problems := explain(tls.certificate, tls.key, tls.authority, party=party):
        raise ValueError("; ".join(problems))
    certificate, key = str(tls.certificate), str(tls.key)
    return {
        "root_ca_certificate": str(tls.authority),
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
        "listen_certificate": certificate,
        "listen_private_key": key,
        "connect_certificate": certificate,
        "connect_private_key": key,
    }


def _permissions(party: str, peers: Iterable[str]) -> dict[str, Any]:
    """What may pass on the link to each peer, known by the common name on its certificate. Nothing else passes."""
    rules = {peer: [*_rules("ingress", peer, party), *_rules("egress", party, peer)] for peer in peers}
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": [rule for of_peer in rules.values() for rule in of_peer],
        "subjects": [{"id": peer, "cert_common_names": [peer]} for peer in rules],
        "policies": [
            {"rules": [rule["id"] for rule in of_peer], "subjects": [peer]} for peer, of_peer in rules.items()
        ],
    }


def _rules(flow: str, sender: str, receiver: str) -> list[dict[str, Any]]:
    """What ``sender`` may tell ``receiver``: messages to it, what it wants to hear from it, and that it is there."""
    allowed = {
        "put": _message(receiver, sender),
        "declare_subscriber": _message(sender, receiver),
        "liveliness_token": _alive(receiver, sender),
        "declare_liveliness_subscriber": _alive(sender, receiver),
    }
    name, allow = f"{sender} to {receiver}", {"permission": "allow", "flows": [flow]}
    return [{"id": f"{name}: {kind}", **allow, "messages": [kind], "key_exprs": [key]} for kind, key in allowed.items()]


def _open(party: str, config: Mapping[str, Any]) -> zenoh.Session:
    # Zenoh writes to standard output, and repeats itself while a peer is away: only for those who set RUST_LOG.
    zenoh.init_log_from_env_or("off")
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    except zenoh.ZError as error:
        reason = str(error).partition(" at /")[0]
        raise OSError(f"{party} cannot open {config['listen']['endpoints'] or 'its links'}: {reason}") from error
