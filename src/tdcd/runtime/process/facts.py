"""What a hub says of itself while it runs: the content of its ``status.json``."""

from collections.abc import Mapping
from typing import Any

from tdcd.records.history import Record
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.process.stopwatch import phi_ages
from tdcd.runtime.protocol.hub import Hub


def facts_of(
    hub: Hub, endpoint: Endpoint, silo: str, record: Record | None, waiting: Mapping[str, float], last_error: str
) -> dict[str, Any]:
    """The facts of this moment; ``record`` is the last evaluation, ``waiting`` has seconds by missing party."""
    return {
        "party": hub.name,
        "phase": hub.phase,
        "round": max(0, hub.round),
        "rounds": hub.job.config.train.rounds,
        "train_loss": None if record is None else record.train_loss,
        "test_loss": None if record is None else record.test_loss,
        "metrics": None if record is None else record.metrics,
        "connected": sorted(endpoint.present),
        "missing": [*hub.missing()],
        "missing_s": dict(waiting),
        "left_out": hub.left_out(),
        "needs_all": needs_all(hub),
        "labels": hub.job.where_labels_are(silo),
        "revoked": sorted(endpoint.transport.revoked),
        **links_of(endpoint),
        "phi_age": phi_ages(hub.job, silo, hub.round),
        "bytes_sent": endpoint.wire_bytes,
        "payload_bytes_sent": sum(endpoint.payload.values()),
        "refused": dict(endpoint.refused),
        "dropped": dict(endpoint.transport.dropped),
        "last_error": (hub.status != "finished" and hub.reason) or last_error or endpoint.last_refusal,
        "status": hub.status,
    }


def links_of(endpoint: Endpoint) -> dict[str, Any]:
    """Which processes have no link and why, and for how many days certificates are valid yet."""
    return {"unfit": dict(endpoint.unfit), "certificate_days": endpoint.days_left()}


def needs_all(hub: Hub) -> bool:
    """Whether the hub cannot continue without any of its clients at the moment."""
    if hub.shutdown is not None:
        return False
    return hub.rounds is None or not hub.rounds.phase or hub.rounds.questions.needs_all(hub.round)
