"""A hub's figures in the text format that Prometheus reads."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

Sample = tuple[Mapping[str, str], float | None]
"""Labels and a value; None for one that there is not yet."""


@dataclass(frozen=True)
class Snapshot:
    """A hub at one moment. The driver replaces it now and then; whoever reads it never makes the driver wait."""

    facts: Mapping[str, Any]
    """What ``status.json`` says."""
    partners: tuple[str, ...] = ()
    """The hub's clients and the other hubs."""
    sent: Mapping[str, int] = field(default_factory=dict)
    """Bytes, by receiver."""
    received: Mapping[str, int] = field(default_factory=dict)
    """Bytes, by sender."""
    worked_s: float = 0.0
    waited_s: Mapping[str, float] = field(default_factory=dict)
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
    return lambda now: [({}, now.facts[key])]


def _count(key: str) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda now: [({}, len(now.facts[key]))]


def _of_partners(label: str, found: Callable[[Snapshot], Mapping[str, float]]) -> Callable[[Snapshot], list[Sample]]:
    """One sample per partner, 0 where there is nothing: what never appears cannot be seen to grow."""
    return lambda now: [({label: party}, found(now).get(party, 0)) for party in now.partners]


def _figures(now: Snapshot) -> list[Sample]:
    parts = (now.facts["metrics"] or {}).items()
    return [({"samples": part, "figure": name}, value) for part, found in parts for name, value in found.items()]


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
        lambda now: [({"party": now.facts["party"], "version": version("tdcd")}, 1)],
    ),
    Metric(
        "tdcd_phase",
        "gauge",
        "1 for what the hub is doing, or for how its run ended.",
        lambda now: [({"phase": now.facts["status"] or now.facts["phase"]}, 1)],
    ),
    Metric("tdcd_round", "gauge", "The round that the hub stands at.", _fact("round")),
    Metric("tdcd_rounds", "gauge", "The rounds of the whole run.", _fact("rounds")),
    Metric("tdcd_train_loss", "gauge", "The training loss at the last evaluation.", _fact("train_loss")),
    Metric("tdcd_held_out_loss", "gauge", "The held-out loss at the last evaluation.", _fact("test_loss")),
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
        _of_partners("party", lambda now: dict.fromkeys(now.facts["connected"], 1)),
    ),
    Metric("tdcd_connected_parties", "gauge", "How many parties are connected.", _count("connected")),
    Metric(
        "tdcd_missing_seconds",
        "gauge",
        "For how long a party has been waited for now; 0 if it is not.",
        _of_partners("party", lambda now: now.facts["missing_s"]),
    ),
    Metric(
        "tdcd_certificate_days_left",
        "gauge",
        "For how many days a certificate is valid yet: this hub's own, and those of parties that were connected.",
        lambda now: [({"party": party}, days) for party, days in now.facts.get("certificate_days", {}).items()],
    ),
    Metric("tdcd_left_out_clients", "gauge", "How many clients this round continues without.", _count("left_out")),
    Metric(
        "tdcd_rejected_messages_total",
        "counter",
        "Messages that were not acted upon, by sender.",
        _of_partners("sender", lambda now: now.facts["refused"]),
    ),
    Metric(
        "tdcd_dropped_messages_total",
        "counter",
        "Messages that were thrown away unread, too large or too many, by sender.",
        _of_partners("sender", lambda now: now.facts["dropped"]),
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
        "Seconds since the hub last updated these figures; it does so about four times a second.",
        lambda now: [({}, _age(now.taken_at))],
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
