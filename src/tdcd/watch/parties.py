"""Who takes part in a run, how each stands, and who worked and who waited."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tdcd.federation.party_names import client_of, hub_of
from tdcd.records.timeline import Timeline

MOST_SILOS, MOST_CLIENTS = 30, 24
"""Further ones are counted, unless something is wrong with them."""
LATE_S = 3.0
"""A hub always waits for somebody; for how long before people should know."""

State = Literal["simulated", "connected", "waited for", "left out", "revoked", "away", "ended", "unknown"]
QUIET: tuple[State, ...] = ("simulated", "connected", "ended", "unknown")

Status = Mapping[str, Any]
"""What a hub says of itself, see :mod:`tdcd.runtime.storage.status`."""


def silos_of(facts: Mapping[str, Any], config: Mapping[str, Any], statuses: Mapping[str, Status]) -> list[Any]:
    """The silos with their hubs and clients, as the page draws them.

    Args:
        facts: of ``federation.json``; may be empty before all parties have met.
        config: of ``config.toml``.
        statuses: what hubs say, by their party names; empty for a simulation.
    """
    planned = {str(silo.get("name")): silo for silo in _dicts(config.get("silos"))}
    known = {str(silo.get("name")): silo for silo in _dicts(facts.get("silos"))}
    names = [*known] or [*planned]
    return [_silo(name, known.get(name, {}), planned.get(name, {}), statuses) for name in names[:MOST_SILOS]]


def _silo(
    name: str, known: Mapping[str, Any], planned: Mapping[str, Any], statuses: Mapping[str, Status]
) -> dict[str, Any]:
    rows = [count for count in known.get("clients") or [] if isinstance(count, int)]
    names = _client_names(planned, len(rows))
    hub, status = hub_of(name), statuses.get(hub_of(name))
    clients = []
    for index, client in enumerate(names):
        state, seconds = _state_of(client_of(name, client), status) if statuses else ("simulated", None)
        count = rows[index] if len(rows) == len(names) else None
        clients.append({"name": client, "rows": count, "state": state, "seconds": seconds})
    shown = [client for place, client in enumerate(clients) if place < MOST_CLIENTS or client["state"] not in QUIET]
    return {
        "name": name,
        "features": [size for size in known.get("feature_shape") or [] if isinstance(size, int)],
        "hub": _hub_state(hub, status, statuses),
        "clients": shown[: 2 * MOST_CLIENTS],
        "num_clients": len(clients),
    }


def _client_names(planned: Mapping[str, Any], count: int) -> list[str]:
    """Those of the configuration; numbers if it has none. As :class:`tdcd.config.data_sections.SiloSection` has it."""
    named, clients = _dicts(planned.get("client")), planned.get("clients")
    if named:
        return [str(client.get("name")) for client in named]
    if isinstance(clients, list):
        return [str(client) for client in clients]
    number = count or (clients if isinstance(clients, int) else 1)
    return [f"c{index + 1}" for index in range(number)]


def _state_of(party: str, status: Status | None) -> tuple[State, float | None]:
    """How a party stands, as a hub says, and for how many seconds that waits for it."""
    if status is None or (status["status"] is None and not status["alive"]):
        return "unknown", None
    if status["status"] is not None:
        return "ended", None
    seconds, connected = status.get("missing_s", {}).get(party), party in status["connected"]
    for state in ("revoked", "left_out"):
        if party in status.get(state, []):
            return ("revoked" if state == "revoked" else "left out"), None
    if seconds is not None and (seconds >= LATE_S or not connected):
        return "waited for", seconds
    return ("connected" if connected else "away"), None


def _hub_state(hub: str, status: Status | None, statuses: Mapping[str, Status]) -> dict[str, Any]:
    """How a hub stands, as it says itself, or else as another one says."""
    if not statuses:
        return {"state": "simulated", "seconds": None}
    if status is not None:
        if status["status"] is not None:
            return {"state": "ended", "seconds": None}
        others = [other for name, other in statuses.items() if name != hub and other["alive"]]
        awaited = max((other.get("missing_s", {}).get(hub, 0.0) for other in others), default=0.0)
        if not status["alive"]:
            return {"state": "away", "seconds": awaited or None}
        return {"state": "waited for" if awaited >= LATE_S else "connected", "seconds": awaited or None}
    seen = next(iter(statuses.values()))
    state, seconds = _state_of(hub, seen)
    return {"state": state, "seconds": seconds}


def time_of(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """Of each hub: seconds of work, and of waiting by party, the longest first."""
    return [
        {
            "party": timeline.hub,
            "worked": round(timeline.worked, 3),
            "waited": [[party, round(seconds, 3)] for party, seconds in timeline.waited.items()][:MOST_CLIENTS],
            "waited_in_all": round(sum(timeline.waited.values()), 3),
        }
        for timeline in timelines
        if timeline.spans
    ]


def _dicts(value: Any) -> list[dict[str, Any]]:
    """The entries of a list of tables; nothing of what is none."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
