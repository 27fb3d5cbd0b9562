"""What hubs and clients say of themselves while they run: the content of ``status.json``.

It is for ``tdcd status``, and so for probes; a client writes it only if it has a folder for it.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tdcd.records.history import Record
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.process.stopwatch import phi_ages
from tdcd.runtime.storage.status import lock, write_status


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
        "gap": None if record is None else record.gap,
        "gradient_norm": None if record is None else record.gradient_norm,
        "ended": None if hub.status is None else end_of(hub),
        "reason": hub.reason,
        # Of the silos that send phi; lines are the same at all hubs.
        "epsilon": record.epsilon if record is not None and hub.sends_phi else None,
        "block_epsilon": None if record is None else record.block_epsilon,
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


def end_of(hub: Hub) -> str | None:
    """What ended the run: convergence, the limit of rounds, early stopping, or a failure."""
    if hub.status != "finished" or hub.rounds is None:
        return hub.status
    return hub.rounds.evaluations.candidates.end(hub.round)


def links_of(endpoint: Endpoint) -> dict[str, Any]:
    """Which processes have no link and why, and for how many days certificates are valid yet."""
    return {"unfit": dict(endpoint.unfit), "certificate_days": endpoint.days_left()}


def needs_all(hub: Hub) -> bool:
    """Whether the hub cannot continue without any of its clients at the moment."""
    if hub.shutdown is not None:
        return False
    return hub.rounds is None or not hub.rounds.phase or hub.rounds.questions.needs_all(hub.round)


SHOW_S = 1.0


class ClientStatus:
    """The ``status.json`` of a client, and a lock that ends with its process. Nothing in it is needed to continue."""

    def __init__(self, folder: Path, name: str, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the folder this process's own, before it has a driver.

        Raises:
            FileExistsError: another process has it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._rounds, self._clock = folder, name, rounds, clock
        self._party: tuple[Client, Endpoint] | None = None
        self._lock = lock(folder)
        self.show()

    def close(self) -> None:
        """Say the last, and let another process have the folder."""
        self.show()
        os.close(self._lock)

    def shown_before(self, client: Client, endpoint: Endpoint, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """The same question, which a driver asks after each step; now and then it is also the time to say something."""
        self._party = client, endpoint

        def ask() -> bool:
            if self._clock() - self._shown_at > SHOW_S:
                self.show()
            return should_stop()

        return ask

    def show(self) -> None:
        """Write what it does now."""
        self._shown_at = self._clock()
        write_status(self._folder, self._facts())

    def _facts(self) -> dict[str, Any]:
        known = {"party": self._name, "rounds": self._rounds}
        if self._party is None:
            nothing: dict[str, Any] = {
                "connected": [],
                "bytes_sent": 0,
                "refused": {},
                "last_error": "",
                "status": None,
            }
            return {**known, "phase": "starting", "round": 0, **nothing}
        client, endpoint = self._party
        outcome = client.outcome
        phase = "joining" if client.round < 0 else "training"
        refused = outcome.reason if outcome is not None and outcome.status == "refused" else ""
        return {
            **known,
            "phase": phase if client.hub in endpoint.present else "dialling",
            "round": max(0, client.round),
            "connected": sorted(endpoint.present),
            "bytes_sent": endpoint.wire_bytes,
            "refused": dict(endpoint.refused),
            **links_of(endpoint),
            "last_error": refused or endpoint.last_refusal,
            "status": None if outcome is None else outcome.status,
        }
