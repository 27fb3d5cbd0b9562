"""Who takes part in a run, how each stands, and who worked and who waited."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from tdcd.federation.party_names import client_of, hub_of
from tdcd.records.timeline import Timeline

MOST_SILOS, MOST_CLIENTS = 30, 24
"""Further ones are counted, unless something is wrong with them."""
MOST_NAMES = 10_000
"""Clients that are looked at."""
LATE_S = 3.0
"""Seconds: a hub always waits for some party, and only longer waiting is shown."""

Listed = TypeVar("Listed")
PartyState = Literal["simulated", "connected", "waited for", "left out", "revoked", "away", "ended", "unknown"]
QUIET: tuple[PartyState, ...] = ("simulated", "connected", "ended", "unknown")

HubStatus = Mapping[str, Any]
"""What a hub says of itself, see :mod:`tdcd.runtime.storage.status`."""


def silos_of(facts: Mapping[str, Any], config: Mapping[str, Any], statuses: Mapping[str, HubStatus]) -> list[Any]:
    """The silos with their hubs and clients, as the page draws them.

    Args:
        facts: of ``federation.json``; may be empty before all parties have met.
        config: of ``config.toml``.
        statuses: what hubs say, by their party names; empty for a simulation.
    """
    planned = {str(silo.get("name")): silo for silo in _entries(config.get("silos"), dict)}
    known = {str(silo.get("name")): silo for silo in _entries(facts.get("silos"), dict)}
    names = [*known] or [*planned]
    return [_silo(name, known.get(name, {}), planned.get(name, {}), statuses) for name in names[:MOST_SILOS]]


def _silo(
    name: str, known: Mapping[str, Any], planned: Mapping[str, Any], statuses: Mapping[str, HubStatus]
) -> dict[str, Any]:
    rows = _entries(known.get("clients"), int)
    names, number = _client_names(planned, len(rows))
    hub, status = hub_of(name), statuses.get(hub_of(name))
    clients: list[dict[str, Any]] = []
    for index, client in enumerate(names if statuses else names[:MOST_CLIENTS]):
        state, seconds = _state_of(client_of(name, client), status) if statuses else ("simulated", None)
        if index < MOST_CLIENTS or state not in QUIET:
            count = rows[index] if len(rows) == number else None
            clients.append({"name": client, "rows": count, "state": state, "seconds": seconds})
    return {
        "name": name,
        "features": _entries(known.get("feature_shape"), int),
        "hub": _hub_state(hub, status, statuses),
        "clients": clients[: 2 * MOST_CLIENTS],
        "num_clients": number,
    }


def _client_names(planned: Mapping[str, Any], count: int) -> tuple[Sequence[str], int]:
    """Those of the configuration, or c1, c2, ... for ``count``, as far as they may be shown; and how many there are."""
    named, clients = _entries(planned.get("client"), dict), planned.get("clients")
    names = [str(client.get("name")) for client in named] or _entries(clients, str)
    if names:
        return names, len(names)
    number = count or (clients if isinstance(clients, int) else 1)
    return [f"c{index + 1}" for index in range(min(number, MOST_NAMES))], number


def _state_of(party: str, status: HubStatus | None) -> tuple[PartyState, float | None]:
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


def late_in(statuses: Mapping[str, HubStatus]) -> dict[str, tuple[float, bool]]:
    """The parties that a hub has waited for too long: for how many seconds, and whether they are connected.

    A hub that waits for clients of its own is not what the others wait for in the end.
    """
    late = {hub: _late(status) for hub, status in statuses.items()}
    held_up = {hub for hub, parties in late.items() if any(party.startswith("client.") for party in parties)}
    return {
        party: (seconds, party in statuses[hub]["connected"])
        for hub, parties in late.items()
        for party, seconds in parties.items()
        if party not in held_up
    }


def _late(status: HubStatus) -> dict[str, float]:
    return {party: seconds for party, seconds in status.get("missing_s", {}).items() if seconds >= LATE_S}


def _hub_state(hub: str, status: HubStatus | None, statuses: Mapping[str, HubStatus]) -> dict[str, Any]:
    """How a hub stands, as it says itself, or else as another one says."""
    if not statuses:
        return {"state": "simulated", "seconds": None}
    if status is not None:
        if status["status"] is not None:
            return {"state": "ended", "seconds": None}
        awaited, _ = late_in(statuses).get(hub, (None, True))
        if not status["alive"]:
            return {"state": "away", "seconds": awaited}
        return {"state": "connected" if awaited is None else "waited for", "seconds": awaited}
    seen = next(iter(statuses.values()))
    state, seconds = _state_of(hub, seen)
    return {"state": state, "seconds": seconds}


def time_of(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """The time of each hub: seconds of work, and of waiting by party, the longest first."""
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


def _entries(value: Any, kind: type[Listed]) -> list[Listed]:
    """What a list has of one kind; nothing of what is no list."""
    return [entry for entry in value if isinstance(entry, kind)] if isinstance(value, list) else []
