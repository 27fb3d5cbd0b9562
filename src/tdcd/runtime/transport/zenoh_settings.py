"""The configuration of zenoh: where to listen and whom to dial, its limits, and who may say what on which link."""

import base64
import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tdcd.runtime.certificates.check import AUTHORITY, authority_path, company_of, explain, role_of

LEASE_S = 6.0
"""A peer that is silent for so long, although its connection stands, has left."""

STALL_LEASES = 5
"""A link that takes nothing for so many leases is closed. The system's queue holds up to a minute's worth of a slow
link, and says that it has room only when a third of it is free."""

HANDSHAKE_LEASES = 4
"""A connection that is not a link after so many is given up: opening takes four round trips, two of them zenoh's."""

BATCH_BYTES = 2**15
"""What zenoh writes at a time; a receiver gives a link up that takes longer than the lease for so much."""

BATCHES = 16
"""What a link holds that is not written yet, zenoh's most; 2 by default. The one thread that writes also answers what a
party asks that arrives: it waits for room that it alone could make, until the link is closed as one that stalls. With
2, of ten hubs that all come at once, one was so for half a minute nearly every time."""

PIECE_BYTES = BATCH_BYTES - 1024
"""The largest piece of a message, with room for zenoh's own fields."""

THREADS = {"ZENOH_RUNTIME": "(rx: (worker_threads: 1), tx: (handover: rx))"}
"""What the environment must have before the first session. Zenoh reads and writes a TLS link in two threads that share
the buffers of rustls without a lock. A record that does not decrypt makes the reader write too, an alert: bytes to be
sent are then freed twice, and the process dies. So one thread does both."""

_OVERHEAD_BYTES = 1024
"""Room for zenoh's own fields, in addition to the payload."""


class Tls(NamedTuple):
    """The files with which a party shows who it is: PEM, the key without a passphrase."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, party: str) -> "Tls":
        """A party's files in its folder of certificates."""
        return cls(folder / AUTHORITY, folder / f"{party}.pem", folder / f"{party}.key")

    @property
    def trusted(self) -> tuple[Path, ...]:
        """Whose certificates the other end may show: the federation's authority's, and to a hub, its company's.

        A company's authority signs for its own hub alone: no other one trusts it.
        """
        party = self.certificate.stem
        company = self.authority.with_name(f"{company_of(party)}.pem")
        return (self.authority, *([company] if role_of(party) == "hub" and company.exists() else []))


def zenoh_settings(
    party: str,
    peers: Iterable[str],
    addresses: Mapping[str, str],
    listen: str | None,
    tls: Tls | None,
    max_message_bytes: int,
    lease_s: float,
    names: Mapping[str, Sequence[str]],
    dialled: Collection[str] | None = None,
) -> dict[str, Any]:
    """Zenoh's configuration for a party; the arguments are those of its transport.

    ``names`` has, for the party and for each peer, the common names of certificates that are or may become valid.
    """
    peers = [*peers]
    settings = _links(_endpoints(party, peers, addresses, listen, tls, dialled), max_message_bytes, lease_s)
    if tls is not None:
        settings["transport"]["link"]["tls"] = _authentication(party, tls)
        settings["access_control"] = _permissions(names[party][0], [name for peer in peers for name in names[peer]])
    return settings


def message_key(receiver: str, sender: str, to: str = "*") -> str:
    """The key of messages to the receiver's process with the nonce ``to``.

    A process subscribes to its own key exactly, and the process that sends is in an attachment: for every wildcard in a
    subscription or a rule, zenoh takes a third longer to pass a message on.
    """
    return f"tdcd/1/{receiver}/{sender}/message/{to}"


def alive_key(receiver: str, sender: str, process: str = "*") -> str:
    """The key of the token that is there while the sender's process is, and that says what this is."""
    return f"tdcd/1/{receiver}/{sender}/alive/{process}"


def _endpoints(
    party: str,
    peers: Iterable[str],
    addresses: Mapping[str, str],
    listen: str | None,
    tls: Tls | None,
    dialled: Collection[str] | None,
) -> dict[str, list[str]]:
    """Where to listen and whom to dial, as zenoh writes them."""
    if (listen is not None) != (role_of(party) == "hub"):
        raise ValueError(f"{party} listens on {listen}: a hub needs an address to listen on, a client has none")
    hubs = [peer for peer in peers if role_of(peer) == "hub"]
    if missing := [hub for hub in hubs if hub not in addresses]:
        raise ValueError(f"{party} has no address of {missing[0]}: give HOST:PORT of every hub")
    if listen is None and len(hubs) != 1:
        raise ValueError(f"{party} has {len(hubs)} hubs: a client has one")
    # Only one of two hubs dials: two links at the same moment would get in each other's way.
    if dialled is None:
        dialled = [hub for hub in hubs if role_of(party) == "client" or hub < party]
    dials = [addresses[hub] for hub in hubs if hub in dialled]
    listened = [] if listen is None else [listen]
    if tls is None:
        for address in (*listened, *dials):
            _check_loopback(address)
        return {
            "listen": [f"tcp/{address}" for address in listened],
            "connect": [f"tcp/{address}" for address in dials],
        }
    # Zenoh compares whatever stands before the port with the names on the certificate, and brackets are in none.
    return {
        "listen": [f"tls/{address}" for address in listened],
        "connect": [f"tls/{address.replace('[', '').replace(']', '')}" for address in dials],
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
    # A hub sends a zenoh peer all that it listens to, of every other party too, and a zenoh client what it asked for.
    # Where no access rules keep them in, hubs would pass clients' questions on to each other, and wait for answers.
    is_client = not endpoints["listen"] and all(endpoint.startswith("tls/") for endpoint in endpoints["connect"])
    return {
        "mode": "client" if is_client else "peer",
        "listen": {"endpoints": endpoints["listen"], "timeout_ms": 0, "exit_on_failure": True},
        "connect": {
            "endpoints": endpoints["connect"],
            # A zenoh client's session opens with its link or not at all, so whoever opens it tries again.
            "timeout_ms": 0 if is_client else -1,
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
                    "queue": {
                        "size": {"data": BATCHES},
                        "congestion_control": {"block": {"wait_before_close": 1000 * STALL_LEASES * lease_ms}},
                    },
                },
            },
        },
    }


def _authentication(party: str, tls: Tls) -> dict[str, Any]:
    """Both ends of every link show a certificate of the federation's authority."""
    if problems := explain(tls.certificate, tls.key, authority_path(tls.authority.parent, party), party=party):
        raise ValueError("; ".join(problems))
    # Not by name: zenoh would read the files again whenever it dials, between two that are being replaced, too.
    certificate, key = _contents(tls.certificate), _contents(tls.key)
    return {
        "root_ca_certificate_base64": _contents(*tls.trusted),
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
        "listen_certificate_base64": certificate,
        "listen_private_key_base64": key,
        "connect_certificate_base64": certificate,
        "connect_private_key_base64": key,
    }


def _contents(*files: Path) -> str:
    return base64.b64encode(b"\n".join(file.read_bytes() for file in files)).decode()


def _permissions(party: str, peers: Iterable[str]) -> dict[str, Any]:
    """What may pass on the link to each peer. All are known by the common name on their certificates, and a later name
    of the same party has keys of its own. Nothing else passes.
    """
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
    """What ``sender`` may send ``receiver``: messages to it, what it subscribes to from it, and that it is there."""
    allowed = {
        "put": message_key(receiver, sender),
        "declare_subscriber": message_key(sender, receiver),
        "liveliness_token": alive_key(receiver, sender),
        "declare_liveliness_subscriber": alive_key(sender, receiver),
    }
    name, allow = f"{sender} to {receiver}", {"permission": "allow", "flows": [flow]}
    return [{"id": f"{name}: {kind}", **allow, "messages": [kind], "key_exprs": [key]} for kind, key in allowed.items()]
