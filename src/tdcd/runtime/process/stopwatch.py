"""How long a hub's silo works and how long it waits for others, measured while it runs."""

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence, Set

from tdcd.records.timeline import TIMELINE, Timeline
from tdcd.runtime.job import Job
from tdcd.runtime.machine.hub import Hub
from tdcd.runtime.process.log import event
from tdcd.runtime.storage.hub_folder import HubFolder

WRITE_S = 1.0
"""The file is written no more often than this."""


class Stopwatch:
    """Adds up a hub's time round by round, from its first round to the end of its run.

    Waiting is time in which none of its clients has anything to do, and other hubs' parts are missing; or in which one
    of its clients has, and is not connected.
    """

    def __init__(self, hub: Hub, folder: HubFolder, clock: Callable[[], float]) -> None:
        """Continue from what the folder holds, if it belongs to this run."""
        self._hub, self._folder, self._clock, self._parties = hub, folder, clock, {*hub.clients, *hub.peers}
        self.timeline = _taken_up(hub.name, folder)
        # Rounds are placed by the time of day, so that hubs of one machine can be compared; it may be set back.
        self._to_time_of_day = max(time.time(), self.timeline.end) - clock()
        self._round: int | None = None
        self._since, self._written_at = 0.0, -math.inf
        self._waits_for: Sequence[str] = ()

    def received(self) -> None:
        """The wait for an event is over; what follows is work, as what came before was if no party was waited for."""
        if self._round is not None and self._waits_for:
            self._add(self._round, self._waits_for)

    def handled(self, missing: Collection[str], present: Set[str]) -> None:
        """Everything that follows from the event is done: who is ``missing`` now, and who is connected."""
        hub, before = self._hub, self._round
        is_training = hub.shutdown is None and hub.rounds is not None and bool(hub.rounds.phase)
        self._round = hub.round if is_training else None
        # Called with every message: it must not go through all clients while they are there.
        self._waits_for = [party for party in hub.peers if party in missing]
        if not self._waits_for and len(present) < len(self._parties):
            self._waits_for = [party for party in sorted(self._parties - present) if party in missing]
        if before is None:
            self._since = self._clock()
        elif self._waits_for or self._round != before:
            # Until then, what follows is work too.
            self._add(before, ())
            if not is_training or self._since - self._written_at > WRITE_S:
                self.write()

    def write(self) -> None:
        """Replace the file."""
        self._written_at = self._since
        self._folder.replace_quickly(TIMELINE, self.timeline.to_json())

    def _add(self, round_index: int, waited_for: Sequence[str]) -> None:
        now, shift = self._clock(), self._to_time_of_day
        self.timeline.add(round_index, self._since + shift, now + shift, waited_for)
        self._since = now


def _taken_up(hub: str, folder: HubFolder) -> Timeline:
    """What the folder holds, or an empty timeline."""
    path = folder.path / TIMELINE
    if path.exists():
        try:
            timeline = Timeline.read(path)
            if (timeline.hub, timeline.run) == (hub, folder.nonce):
                return timeline
            event("timeline", logging.WARNING, why=f"{path} is of another hub or run, and is not used")
        except ValueError as damage:
            event("timeline", logging.WARNING, why=str(damage))
    return Timeline(hub, folder.nonce)


def phi_ages(job: Job, silo: str, round_index: int) -> dict[str, int]:
    """The age in rounds of the phi of each other silo that a round uses; silos with this round's phi are left out."""
    timing = job.timing
    if not timing.rounds and timing.longest_period == 1:
        return {}
    names = [section.name for section in job.config.silos]
    return {name: round_index - timing.sent_in(index, round_index) for index, name in enumerate(names) if name != silo}
