"""A party that stands by, as the page shows it: who is connected, its jobs, who has approved them, and the queue."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tdcd.pages.live.folders import FoundRun
from tdcd.pages.live.history import Budget
from tdcd.pages.live.page import DAMAGED_FILES
from tdcd.runtime.storage.status import read_status

STANDING_BY = "standing by"
MOST_JOBS, MOST_HUBS = 100, 20
SOON_DAYS = 30


class WatchedParty:
    """What the status of one party says, as of the last look."""

    is_behind = False
    """Its file is read at once."""

    def __init__(self, run: FoundRun, number: int) -> None:
        """Nothing is read before the first look."""
        self.number, self.files, self.problem = number, run, ""
        self._status: Mapping[str, Any] | None = None
        self._is_gone = False

    @property
    def has_begun(self) -> bool:
        """Whether there was ever anything to show."""
        return self._status is not None

    def look(self, run: FoundRun | None, budget: Budget) -> None:
        """Read what is new; a party that is no longer there stays as it was last."""
        self.problem, self._is_gone = "", run is None or run.kind != "party"
        if not self._is_gone:
            try:
                self._status = read_status(self.files.path)
            except (OSError, ValueError) as error:
                self.problem = str(error)

    def facts(self) -> dict[str, Any]:
        """Everything that the page shows of it."""
        status = self._status or {}
        state, words = self._stands(status)
        jobs = [self._job(entry) for entry in status.get("queue", []) if isinstance(entry, dict)]
        return {
            **self._about(),
            "title": str(status.get("party", "")),
            "state": state,
            "words": words,
            "problems": [],
            # Those that are not over in the order of the queue, then the others, the last one first.
            "jobs": ([job for job in jobs if not job["is_over"]] + [job for job in jobs[::-1] if job["is_over"]])[
                :MOST_JOBS
            ],
            "links": self._links(status),
        }

    def as_damaged(self, problem: str) -> dict[str, Any]:
        """A party whose file says what it should not."""
        return {**self._about(), "state": "damaged", "words": DAMAGED_FILES, "problems": [problem]}

    def _about(self) -> dict[str, Any]:
        return {"id": self.number, "name": self.files.name, "group": self.files.group, "kind": "party"}

    def _stands(self, status: Mapping[str, Any]) -> tuple[str, str]:
        if self._is_gone:
            return "gone", f"{self.files.path} is no longer there; this is the party's last state."
        if not status.get("alive"):
            return "stopped", "The party's process is gone: start tdcd party again, and it continues."
        phase = str(status.get("phase", ""))
        return (STANDING_BY, "") if phase == STANDING_BY else ("running", phase)

    def _job(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        answers = entry.get("answers")
        known = [*answers.items()] if isinstance(answers, dict) else []
        return {
            **{name: str(entry.get(name, "")) for name in ("job", "kind", "purpose", "proposer", "state")},
            "proposed": _moment(entry.get("proposed")),
            "is_over": bool(entry.get("is_over")),
            "answers": [(str(party), str(answer)) for party, answer in known[:MOST_HUBS]],
        }

    def _links(self, status: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What there is to say of who is there."""
        lines = [("connected", ", ".join(map(str, status.get("connected") or ())) or "none")]
        if status.get("missing"):
            lines.append(("not connected", ", ".join(map(str, status["missing"]))))
        lines += [
            ("certificate", f"of {party}: {days:.0f} days left")
            for party, days in (status.get("certificate_days") or {}).items()
            if days < SOON_DAYS
        ]
        lines += [("refused", f"{count} messages of {party}") for party, count in (status.get("refused") or {}).items()]
        left = status.get("epsilon_left") or {}
        return lines + [("epsilon left", f"{rest:.4g} of {limit}") for limit, rest in left.items()]


def _moment(seconds: Any) -> str:
    """When something was, to the minute; nothing for what is no time."""
    if not isinstance(seconds, int) or not 0 <= seconds < 2**37:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
