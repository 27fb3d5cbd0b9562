"""A party's links, opened again when its certificate has been renewed: no process has to be restarted for that.

To zenoh, certificates are fixed when a session opens. So the session is closed and another one opened, which to all
parties is a link that was down for a moment: what was on its way is sent again, and results are the same to the bit.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Self

from tdcd.runtime.certificates.revocation import LOOK_S
from tdcd.runtime.transport.transport import Event, Joined, Left, Transport

REOPENING_S = 60.0
"""How long the links may take to open again: the port may be in use for a moment."""
PAUSE_S = 0.2


class Renewal:
    """Notices that the files of a party's certificate are others, and good.

    Files are copied one by one: others are looked at when they have stayed as they are for one look.

    Args:
        files: the certificate, its key, and others that it needs, as far as they are there.
        problems: what is wrong with the files that are there now, a sentence each.
        report: called with a sentence on what was done.
        clock: seconds.
    """

    def __init__(
        self,
        files: Sequence[Path],
        problems: Callable[[], Sequence[str]],
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._problems, self._clock = files, problems, clock
        self.report = report
        self._in_use = self._seen = self._reported = self._read()
        self._looked_at = clock()

    def is_due(self) -> bool:
        """Look at the files now and then; whether others are to be used from now on."""
        if self._clock() - self._looked_at < LOOK_S:
            return False
        self._looked_at = self._clock()
        before, self._seen = self._seen, self._read()
        if self._seen != before or self._seen == self._in_use:
            return False
        # What is wrong may not be in the files: a list of revoked ones that is late, or a clock.
        if problems := self._problems():
            if self._seen != self._reported:
                self._reported = self._seen
                self.report(f"new files are not used, and the former ones stay in use: {'; '.join(problems)}")
            return False
        self._in_use = self._seen
        return True

    def _read(self) -> list[bytes | None]:
        return [_contents(file) for file in self._files]


def _contents(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


class RenewedTransport:
    """The :class:`.Transport` of a party whose certificate may be renewed.

    Args:
        opened: opens its links, with the files that are there.
        renewal: says when to do so again.
    """

    def __init__(self, opened: Callable[[], Transport], renewal: Renewal) -> None:
        self._opened, self._renewal = opened, renewal
        self._end = opened()
        self.party = self._end.party
        self._present: set[str] = set()
        self._unread: deque[Event] = deque()
        self._is_closed, self._lock = False, Lock()

    @property
    def sent_bytes(self) -> Counter[str]:
        """See :class:`.Transport`."""
        return self._end.sent_bytes

    @property
    def dropped(self) -> Counter[str]:
        """See :class:`.Transport`."""
        return self._end.dropped

    @property
    def unsealed(self) -> Counter[str]:
        """See :class:`.Transport`."""
        return self._end.unsealed

    @property
    def arriving(self) -> Counter[str]:
        """See :class:`.Transport`."""
        return self._end.arriving

    @property
    def revoked(self) -> set[str]:
        """See :class:`.Transport`."""
        return self._end.revoked

    @property
    def unfit(self) -> Mapping[str, str]:
        """See :class:`.Transport`."""
        return self._end.unfit

    @property
    def expiries(self) -> Mapping[str, int]:
        """See :class:`.Transport`."""
        return self._end.expiries

    def send(self, receiver: str, data: bytes) -> None:
        """See :meth:`.Transport.send`."""
        with self._lock:
            self._end.send(receiver, data)

    def receive(self, timeout: float | None) -> Event | None:
        """See :meth:`.Transport.receive`."""
        ends = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            if not self._is_closed and self._renewal.is_due():
                self._renew()
            if self._unread:
                return self._unread.popleft()
            event = self._end.receive(max(0.0, min(ends - time.monotonic(), LOOK_S)))
            if isinstance(event, Joined):
                self._present.add(event.party)
            elif isinstance(event, Left):
                self._present.discard(event.party)
            if event is not None or time.monotonic() >= ends:
                return event

    def close(self) -> None:
        """See :meth:`.Transport.close`."""
        self._is_closed = True
        self._end.close()

    def __enter__(self) -> Self:
        """The transport itself, to be closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def _renew(self) -> None:
        """Close the links, and open them with the new files."""
        before, deadline = self._end, time.monotonic() + REOPENING_S
        with self._lock:
            before.close()
            self._unread.extend(Left(party) for party in sorted(self._present))
            self._present.clear()
            while True:
                try:
                    self._end = self._opened()
                    break
                except (OSError, ValueError):
                    if self._is_closed or time.monotonic() > deadline:
                        raise
                    time.sleep(PAUSE_S)
        self._end.sent_bytes.update(before.sent_bytes)
        self._end.dropped.update(before.dropped)
        self._end.unsealed.update(before.unsealed)
        if self._is_closed:
            # By another thread, which may have closed the former links alone.
            self._end.close()
            return
        self._renewal.report(f"a new one is in use from now on: {self.party} has opened its links again")
