"""Figures of a hub, or of a party that stands by, in the text format that Prometheus reads; and its health."""

import ipaddress
import json
import logging
import math
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal, NamedTuple

from tdcd.records.history import Record
from tdcd.records.timeline import Timeline
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.process.log import event

Sample = tuple[Mapping[str, str], float | None]
"""Labels and a value; None for one that there is not yet."""


@dataclass(frozen=True)
class Snapshot:
    """A party at one moment. Whoever replaces it now and then is never made to wait by those who read it."""

    facts: Mapping[str, Any]
    """What ``status.json`` says; figures of what is not in it are left out."""
    partners: tuple[str, ...] = ()
    """A hub's clients and the other hubs; a client's hub."""
    sent: Mapping[str, int] | None = None
    """Bytes, by receiver."""
    received: Mapping[str, int] | None = None
    """Bytes, by sender."""
    worked_s: float | None = None
    waited_s: Mapping[str, float] | None = None
    """By the party that was waited for."""
    evaluated_round: int | None = None
    evaluated_at: float | None = None
    """Seconds since the epoch."""
    taken_at: float = 0.0
    """Seconds since the epoch."""
    checkpoints: Path | None = None
    """The folder of the hub's checkpoints."""


class Metric(NamedTuple):
    """A figure under the name that Prometheus knows it by."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Callable[[Snapshot], Iterable[Sample]]


def _fact(key: str) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda now: [({}, now.facts.get(key))]


def _count(key: str) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda now: [({}, len(now.facts[key]))] if key in now.facts else []


def _by(label: str, key: str) -> Callable[[Snapshot], list[Sample]]:
    """One sample for each entry of a fact."""
    return lambda now: [({label: name}, value) for name, value in now.facts.get(key, {}).items()]


def _of_partners(
    label: str, known: Callable[[Snapshot], Mapping[str, float] | list[str] | None]
) -> Callable[[Snapshot], list[Sample]]:
    """One sample per partner of what is known, 0 where there is nothing: what never appears cannot be seen to grow.

    Those in a list count 1.
    """

    def samples(now: Snapshot) -> list[Sample]:
        counts = known(now)
        if counts is None:
            return []
        of_party = counts if isinstance(counts, Mapping) else dict.fromkeys(counts, 1)
        return [({label: party}, of_party.get(party, 0)) for party in now.partners]

    return samples


def _figures(now: Snapshot) -> list[Sample]:
    parts = (now.facts.get("metrics") or {}).items()
    return [({"samples": part, "figure": name}, value) for part, figures in parts for name, value in figures.items()]


def _checkpoint_age(now: Snapshot) -> list[Sample]:
    saved = [] if now.checkpoints is None else [path.stat().st_mtime for path in now.checkpoints.glob("*.tdcd")]
    return [({}, max(0.0, time.time() - max(saved)) if saved else None)]


def _age(moment: float | None) -> float | None:
    return None if moment is None else max(0.0, time.time() - moment)


METRICS = (
    Metric(
        "tdcd_info",
        "gauge",
        "Always 1; who this is, and the version of tdcd.",
        lambda now: [({"party": now.facts["party"], "version": sys.modules["tdcd"].__version__}, 1)],
    ),
    Metric(
        "tdcd_phase",
        "gauge",
        "1 for what the party is doing, or for how its run ended.",
        lambda now: [({"phase": now.facts["status"] or now.facts["phase"]}, 1)],
    ),
    Metric("tdcd_round", "gauge", "The round that the hub stands at.", _fact("round")),
    Metric("tdcd_rounds", "gauge", "The rounds of the whole run.", _fact("rounds")),
    Metric("tdcd_train_loss", "gauge", "The training loss at the last evaluation.", _fact("train_loss")),
    Metric("tdcd_held_out_loss", "gauge", "The held-out loss at the last evaluation.", _fact("test_loss")),
    Metric(
        "tdcd_epsilon_spent",
        "gauge",
        "What phi with noise has spent at the last evaluation.",
        _fact("epsilon"),
    ),
    Metric("tdcd_figure", "gauge", "Figures of the last evaluation, such as accuracy.", _figures),
    Metric(
        "tdcd_evaluated_round", "gauge", "The round of the last evaluation.", lambda now: [({}, now.evaluated_round)]
    ),
    Metric(
        "tdcd_evaluation_age_seconds",
        "gauge",
        "Seconds since the last evaluation of this process.",
        lambda now: [({}, _age(now.evaluated_at))],
    ),
    Metric(
        "tdcd_working_seconds_total",
        "counter",
        "Seconds of training in which the silo had work.",
        lambda now: [({}, now.worked_s)],
    ),
    Metric(
        "tdcd_waiting_seconds_total",
        "counter",
        "Seconds of training in which the silo could only wait, by the party it waited for.",
        _of_partners("on", lambda now: now.waited_s),
    ),
    Metric(
        "tdcd_connected",
        "gauge",
        "Whether a party is connected: 1 or 0.",
        _of_partners("party", lambda now: now.facts.get("connected")),
    ),
    Metric("tdcd_connected_parties", "gauge", "How many parties are connected.", _count("connected")),
    Metric(
        "tdcd_missing_seconds",
        "gauge",
        "For how long a party has been waited for now; 0 if it is not.",
        _of_partners("party", lambda now: now.facts.get("missing_s")),
    ),
    Metric(
        "tdcd_certificate_days_left",
        "gauge",
        "For how many days a certificate is valid yet: this party's own, and those of parties that were connected.",
        _by("party", "certificate_days"),
    ),
    Metric("tdcd_left_out_clients", "gauge", "How many clients this round continues without.", _count("left_out")),
    Metric(
        "tdcd_rejected_messages_total",
        "counter",
        "Messages that were not acted upon, by sender.",
        _of_partners("sender", lambda now: now.facts.get("refused")),
    ),
    Metric(
        "tdcd_dropped_messages_total",
        "counter",
        "Messages that were thrown away unread, too large or too many, by sender.",
        _of_partners("sender", lambda now: now.facts.get("dropped")),
    ),
    Metric(
        "tdcd_sent_bytes_total", "counter", "Bytes sent, by receiver.", _of_partners("receiver", lambda now: now.sent)
    ),
    Metric(
        "tdcd_received_bytes_total",
        "counter",
        "Bytes received, by sender.",
        _of_partners("sender", lambda now: now.received),
    ),
    Metric("tdcd_checkpoint_age_seconds", "gauge", "Seconds since the last checkpoint.", _checkpoint_age),
    Metric(
        "tdcd_snapshot_age_seconds",
        "gauge",
        "Seconds since the party last updated these figures; a hub does so about four times a second.",
        lambda now: [({}, _age(now.taken_at))],
    ),
    Metric(
        "tdcd_jobs",
        "gauge",
        "Of a party that stands by: jobs that are not over, by what they wait for: person, others, queue, running.",
        _by("waits_for", "waiting_jobs"),
    ),
    Metric(
        "tdcd_epsilon_left",
        "gauge",
        "Of a party that stands by: the epsilon that is left under a limit of its policy or of its account.",
        _by("limit", "epsilon_left"),
    ),
    Metric(
        "tdcd_epsilon_left_ratio",
        "gauge",
        "The same as a part of that limit.",
        _by("limit", "epsilon_left_ratio"),
    ),
)


def exposition(now: Snapshot) -> str:
    """All figures as text. Those that there are not yet are left out."""
    lines = []
    for metric in METRICS:
        samples = [(labels, value) for labels, value in metric.samples(now) if value is not None]
        if samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    r"""Labels as the format wants them.

    >>> print(_labels({"on": 'hub."lab"\\'}))
    {on="hub.\"lab\"\\"}
    """
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """A number as the format wants it.

    >>> [_number(value) for value in (3, 0.25, math.nan, math.inf, -math.inf)]
    ['3', '0.25', 'NaN', '+Inf', '-Inf']
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def health(now: Snapshot) -> tuple[bool, dict[str, Any]]:
    """Whether the party works or waits, rather than being stuck; and what it does, and for whom it waits how long."""
    age = _age(now.taken_at) or 0.0
    is_up = age < STUCK_S
    facts = {
        "up": is_up,
        "party": now.facts["party"],
        "phase": now.facts["status"] or now.facts["phase"],
        **{name: now.facts[key] for name, key in (("round", "round"), ("jobs", "waiting_jobs")) if key in now.facts},
        "waiting_s": {party: round(seconds, 1) for party, seconds in now.facts.get("missing_s", {}).items()},
        "age_s": round(age, 1),
    }
    return is_up, facts


PATTERN = r"^((\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):)?[0-9]{1,5}$"
"""HOST:PORT, or PORT for one of this machine's own address."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STUCK_S = 120.0
"""A hub that has not updated its figures for so long is not well."""
PATIENCE_S = 5.0
"""How long a reader may say nothing."""
READERS = 8
"""How many may be connected at a time; one more takes the place of the one that has been there longest."""


class Metrics:
    """The newest snapshot of a party."""

    def __init__(self, folder: Path | None, partners: tuple[str, ...]) -> None:
        """Take the run folder of a hub, and the parties that the party is linked to."""
        self.snapshot: Snapshot | None = None
        self._blank = Snapshot({}, partners, checkpoints=None if folder is None else folder / "checkpoint")

    def show(self, facts: Mapping[str, Any], taken_at: float, partners: tuple[str, ...]) -> None:
        """Replace the snapshot of a party that stands by, whose partners may become more."""
        self.snapshot = replace(self._blank, facts=facts, taken_at=taken_at, partners=partners)

    def update(self, facts: dict[str, Any], endpoint: Endpoint, timeline: Timeline, record: Record | None) -> None:
        """Replace the snapshot; text is made of it only on request."""
        now, before = time.time(), self.snapshot
        evaluated_at = None if before is None else before.evaluated_at
        if record is not None and (before is None or before.evaluated_round != record.round):
            evaluated_at = now
        self.snapshot = replace(
            self._blank,
            facts=facts,
            sent=dict(endpoint.transport.sent_bytes),
            received=dict(endpoint.received),
            worked_s=timeline.worked,
            waited_s=timeline.waited,
            evaluated_round=None if record is None else record.round,
            evaluated_at=evaluated_at,
            taken_at=now,
        )

    @contextmanager
    def served(self, address: str, names: Collection[str] = ()) -> Iterator[str | None]:
        """Answer at ``address`` until the end of the block; the address, with the port that was taken if it was 0.

        A hub that cannot listen there reports it and trains: no run fails for its metrics. The block then gets None.

        Args:
            address: ``HOST:PORT``, or a port of this machine alone.
            names: By which others know this machine, in addition to its addresses.
        """
        host, _, port = address.rpartition(":")
        bare = host.strip("[]")
        try:
            server = _Server((bare or "127.0.0.1", int(port)), self, {bare, socket.gethostname(), *names} - {""})
        except (OSError, OverflowError) as error:
            why = f"--metrics {address}: cannot listen there: {error}; the metrics of this run cannot be read"
            event("metrics", logging.WARNING, why=why)
            yield None
            return
        taken = f"{host or '127.0.0.1'}:{server.server_port}"
        # A daemon, so that a reader who does not let go cannot keep the hub from ending.
        Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        event("metrics", address=f"http://{taken}/metrics")
        try:
            yield taken
        finally:
            # It waits for a reader that is being answered; the hub does not.
            Thread(target=server.end, daemon=True).start()


class _Server(ThreadingHTTPServer):
    """A few readers at a time, each in a thread of its own: whatever they do, the next one is answered."""

    daemon_threads, block_on_close = True, False

    def __init__(self, address: tuple[str, int], metrics: Metrics, names: Collection[str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.metrics, self.names = metrics, {name.lower() for name in names}
        self._readers: dict[socket.socket, None] = {}
        self._lock = Lock()
        super().__init__(address, _Handler)
        self.is_private = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def server_bind(self) -> None:
        """Bind without looking up the machine's name, which may take long; also where a reader was a moment ago."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "tdcd", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room for a reader, and answer it."""
        with self._lock:
            if len(self._readers) >= READERS:
                oldest = next(iter(self._readers))
                del self._readers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # Its thread notices, and ends.
            self._readers[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A reader is done."""
        with self._lock:
            self._readers.pop(request, None)
        super().shutdown_request(request)

    def end(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that breaks off is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "tdcd", ""
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        """Answer ``GET /metrics`` and ``GET /healthz``."""
        if not self._names_this_machine():
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "Ask for it by this machine's own address")
        elif "Origin" in self.headers or self.headers.get("Sec-Fetch-Site", "none") != "none":
            self.send_error(HTTPStatus.FORBIDDEN, "Not for web pages")
        elif self.path not in ("/metrics", "/healthz"):
            self.send_error(HTTPStatus.NOT_FOUND, "Only /metrics and /healthz are here")
        elif self.server.metrics.snapshot is None:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "It has only just started")
        elif self.path == "/healthz":
            is_up, facts = health(self.server.metrics.snapshot)
            status = HTTPStatus.OK if is_up else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, "application/json", json.dumps(facts) + "\n")
        else:
            self._answer(HTTPStatus.OK, CONTENT_TYPE, exposition(self.server.metrics.snapshot))

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(content)

    def _names_this_machine(self) -> bool:
        """Whether the request does: a page in a browser could use a name of its own to get at it.

        An address is no domain name, and a name without a dot is none on the internet.
        """
        given = self.headers.get_all("Host", ["localhost"])
        host = (given[0] if given[0].endswith("]") else given[0].rpartition(":")[0] or given[0]).lower()
        if len(given) > 1:
            return False
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            is_known = host in self.server.names or re.fullmatch(r"[a-z0-9_-]+", host) is not None
            return host == "localhost" or (is_known and not self.server.is_private)
        return address.is_loopback or not self.server.is_private

    def _refuse(self) -> None:
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", "GET")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Any other method, for which the base class looks for ``do_METHOD``, is refused."""
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: readers come every few seconds."""
