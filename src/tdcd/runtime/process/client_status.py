"""What a client says of itself while it runs, if it has a folder for that: for ``tdcd status``, and so for probes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tdcd.runtime.process.driver import ClientDriver
from tdcd.runtime.process.facts import links_of
from tdcd.runtime.storage.lock import lock
from tdcd.runtime.storage.status import write_status

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
        self._driver: ClientDriver | None = None
        self._lock = lock(folder)
        self.show()

    def close(self) -> None:
        """Say the last, and let another process have the folder."""
        self.show()
        os.close(self._lock)

    def shown_before(self, driver: ClientDriver, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """The same question, which a driver asks after each step; now and then it is also the time to say something."""
        self._driver = driver

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
        if self._driver is None:
            nothing: dict[str, Any] = {
                "connected": [],
                "bytes_sent": 0,
                "refused": {},
                "last_error": "",
                "status": None,
            }
            return {**known, "phase": "starting", "round": 0, **nothing}
        client, endpoint = self._driver.client, self._driver.endpoint
        ending = client.ending
        phase = "joining" if client.round < 0 else "training"
        refused = ending.reason if ending is not None and ending.status == "refused" else ""
        return {
            **known,
            "phase": phase if client.hub in endpoint.present else "dialling",
            "round": max(0, client.round),
            "connected": sorted(endpoint.present),
            "bytes_sent": endpoint.wire_bytes,
            "refused": dict(endpoint.refused),
            **links_of(endpoint),
            "last_error": refused or endpoint.last_refusal,
            "status": None if ending is None else ending.status,
        }
