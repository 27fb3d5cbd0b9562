"""One run as the page shows it: its facts, its figures, its state in a word and a sentence, and its parties:
how each stands, who worked and who waited.
"""

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from tdcd.config.user_code import resume_command
from tdcd.federation import client_of, hub_of
from tdcd.pages.live.folders import MOST_BYTES, STATUS, FoundRun, SmallFile
from tdcd.pages.live.history import Budget, HistoryReader, ThinnedHistory
from tdcd.pages.live.page import DAMAGED_FILES
from tdcd.records.files import parse_json, parse_toml, read_plain
from tdcd.records.history import Record
from tdcd.records.outcome import NO_CONTROL, NO_COURSES, Best, Stopping
from tdcd.records.run_folder import CONFIG, FACTS, HISTORY, REPORT
from tdcd.records.steering import StepControl
from tdcd.records.timeline import TIMELINE, Timeline
from tdcd.runtime.storage.status import read_status

MOST_SILOS, MOST_CLIENTS = 30, 24
"""Further ones are counted, unless something is wrong with them."""
MOST_COUNTED = 10_000
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
    return [f"c{index + 1}" for index in range(min(number, MOST_COUNTED))], number


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


QUIET_S, QUIET_GAPS = 20.0, 10
"""A simulation is quiet after so many seconds without a line, if that is also many times as long as usual."""
MOST_LATE = 5

RunState = Literal[
    "running", "waiting", "finished", "diverged", "stopped", "refused", "quiet", "reading", "empty", "gone", "damaged"
]


class Standing(NamedTuple):
    """A word for the state, and what people should know about it."""

    state: RunState
    words: str = ""


def of_simulation(
    resume: str,
    latest: Record,
    ending: Stopping,
    best: Best | None,
    control: StepControl,
    verdict: str,
    written: float,
    reported: float,
    gap: float,
) -> Standing:
    """How a simulation stands, which says nothing of itself but lines of its history.

    Args:
        resume: the command that continues it.
        verdict: on the model that stays if this is the end, see :mod:`tdcd.records.outcome`.
        written: when the last line was; ``reported``: when the report was, 0 if there is none.
        gap: the seconds between two lines, as far as they are known.
    """
    if latest.diverged:
        return Standing("diverged", f"The loss stopped being a finite number by round {latest.round}.")
    if latest.round == ending.rounds or ending.is_spent(best, control):
        return finished(ending, best, control, latest.round, verdict)
    # A run that is asked to stop still writes its report.
    if reported >= written:
        return Standing("stopped", f"Interrupted in round {latest.round}. To continue: {resume}")
    silent = time.time() - written
    if silent > max(QUIET_S, QUIET_GAPS * gap):
        words = f"No line for {silent:.0f} s: a round takes long, or the process is gone. Then: {resume}"
        return Standing("quiet", words)
    return Standing("running")


def of_hubs(
    statuses: Sequence[Mapping[str, Any]],
    ending: Stopping,
    best: Best | None,
    last: int,
    verdict: str,
    control: StepControl = NO_CONTROL,
) -> Standing:
    """The worst of what the hubs of a run say."""
    if verdict and all(status["status"] == "diverged" for status in statuses):
        return finished(ending, best, control, last, verdict)
    for status in statuses:
        if status["status"] not in (None, "finished"):
            state: RunState = "diverged" if status["status"] == "diverged" else "refused"
            return Standing(state, f"{status['party']}: {status['last_error'] or status['status']}")
    for status in statuses:
        if status["status"] is None and not status["alive"]:
            words = f"The process of {status['party']} is gone: give the same command again, and it continues."
            return Standing("stopped", words)
    if all(status["status"] == "finished" for status in statuses):
        return finished(ending, best, control, last, "")
    late = [
        f"{party} ({seconds:.0f} s{'' if connected else ', not connected'})"
        for party, (seconds, connected) in late_in({str(status["party"]): status for status in statuses}).items()
    ]
    if late:
        more = f" and {len(late) - MOST_LATE} more" * (len(late) > MOST_LATE)
        return Standing("waiting", f"Waits for {', '.join(late[:MOST_LATE])}{more}.")
    return Standing("running")


def finished(ending: Stopping, best: Best | None, control: StepControl, last: int, verdict: str) -> Standing:
    """A run that has come to its end, with a model that is to be trusted or not."""
    words = "; ".join(filter(None, [verdict, ending.in_words(best, last, control)]))
    return Standing("diverged" if verdict else "finished", f"{words[:1].upper()}{words[1:]}." if words else "")


DAMAGED = Standing("damaged", "The history cannot be read any further; the training is not affected by that.")
READING = Standing("reading", "Its history is being read.")
RECENT = 50
"""The last lines, from which the time left follows."""


class WatchedRun:
    """What the files of one run say, as of the last look."""

    def __init__(self, run: FoundRun, number: int) -> None:
        """Nothing is read before the first look."""
        self.number = number
        self.problem = ""
        """What no file of a run should say, if the last look ended there."""
        self._follow(run)

    def _follow(self, run: FoundRun) -> None:
        """Begin with the files of a run."""
        self.files = run
        home = run.homes[0] if run.homes else run.path
        self._history = HistoryReader(home / HISTORY)
        self._config = SmallFile(home / CONFIG, _read_config)
        self._facts = SmallFile(home / FACTS, _read_facts)
        self._timelines = [SmallFile(path / TIMELINE, Timeline.read) for path in run.homes]
        self._statuses: dict[str, dict[str, Any]] = {}
        self._problems: list[str] = []
        self._is_gone = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget the history."""
        self._curve = ThinnedHistory()
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._latest: Record | None = None
        self._best: Best | None = None
        self._control = NO_CONTROL
        self._courses = NO_COURSES

    @property
    def has_begun(self) -> bool:
        """Whether there was ever anything to show."""
        return self._latest is not None or bool(self._statuses)

    @property
    def is_behind(self) -> bool:
        """Whether the next look has more to read."""
        return self._history.is_behind and not self._is_gone

    def look(self, run: FoundRun | None, budget: Budget) -> None:
        """Read what is new; ``run`` is None for a run that is no longer there, which stays as it was last."""
        self.problem = ""
        self._is_gone = run is None or not run.path.is_dir() or (run.kind == "nothing" and self.has_begun)
        if run is None or self._is_gone:
            return
        if run != self.files:
            self._follow(run)
        small: list[SmallFile[Any]] = [self._config, self._facts, *self._timelines]
        for file in small:
            file.look()
        self._problems = [file.problem for file in small if file.problem]
        if run.kind in ("hub", "trial"):
            self._look_at_hubs()
        self._look_at_history(budget)

    def _look_at_hubs(self) -> None:
        self._statuses = {}
        for home in self.files.homes:
            try:
                status = read_status(home)
            except (OSError, ValueError) as error:
                if (home / STATUS).exists():
                    self._problems.append(str(error))
            else:
                self._statuses[str(status["party"])] = status

    def _look_at_history(self, budget: Budget) -> None:
        if self._history.has_begun_anew():
            self._begin_anew()
        try:
            for record in self._history.news(budget):
                self._add(record)
        except OSError:
            return
        if self._history.problem:
            self._problems.append(self._history.problem)

    def _add(self, record: Record) -> None:
        figures: dict[str, float | None] = {"loss.train": record.train_loss}
        if record.test_loss is not None:
            figures["loss.test"] = record.test_loss
        for split, metrics in record.metrics.items():
            figures |= {f"{name}.{split}": value for name, value in metrics.items()}
        self._curve.add(record.round, figures)
        self._recent.append((record.round, record.seconds))
        self._best = self._best if record.diverged else Best.after(self._best, record)
        self._courses, _ = self._courses.after(record, self._best)
        if self._ending.steering is not None:
            self._control = self._ending.steering.after(self._control, record)
        self._latest = record

    # What the page gets.

    def facts(self) -> dict[str, Any]:
        """Everything that the page shows of it."""
        facts, latest, standing = self._facts.content or {}, self._latest, self._standing()
        reached = max((int(status["round"]) for status in self._statuses.values()), default=0)
        current, rounds = max(reached, self._last_round), self._ending.rounds
        return {
            **self._about(),
            "title": str(self._settings.get("name") or facts.get("name") or ""),
            "samples": facts.get("num_samples"),
            **standing._asdict(),
            "problems": self._problems,
            "round": current,
            "rounds": rounds,
            "left_s": self._seconds_for(rounds - current) if standing.state == "running" else None,
            "latest": None if latest is None else json.loads(latest.to_json(), parse_constant=lambda _: None),
            "silos": silos_of(facts, self._settings, self._statuses),
            "num_silos": len(facts.get("silos") or self._settings.get("silos") or []),
            "time": time_of([file.content for file in self._timelines if file.content is not None]),
            "curve": self._curve,
        }

    def as_damaged(self, problem: str) -> dict[str, Any]:
        """A run whose files say what they should not."""
        return {**self._about(), **Standing("damaged", DAMAGED_FILES)._asdict(), "problems": [*self._problems, problem]}

    def _about(self) -> dict[str, Any]:
        run = self.files
        return {"id": self.number, "name": run.name, "group": run.group, "kind": run.kind}

    @property
    def _settings(self) -> dict[str, Any]:
        return self._config.content or {}

    @property
    def _ending(self) -> Stopping:
        return Stopping.of(self._settings)

    @property
    def _verdict(self) -> str:
        """On the model that stays if the run ends with the last line, see :mod:`tdcd.records.outcome`."""
        return self._courses.in_words(self._ending, self._best, self._last_round, self._control)

    @property
    def _last_round(self) -> int:
        return self._latest.round if self._latest else 0

    def _seconds_for(self, rounds: int) -> float | None:
        """What so many rounds take, if they take as long as the last ones did."""
        if len(self._recent) < 2:
            return None
        (first, begin), (last, end) = self._recent[0], self._recent[-1]
        return max(0, rounds) * (end - begin) / (last - first) if last > first else None

    def _standing(self) -> Standing:
        run, latest = self.files, self._latest
        if self._is_gone:
            return _of_missing(run.path, has_begun=self.has_begun)
        if self._history.problem or self._history.is_behind:
            return DAMAGED if self._history.problem else READING
        if self._statuses:
            statuses = [self._statuses[hub] for hub in sorted(self._statuses)]
            return of_hubs(statuses, self._ending, self._best, self._last_round, self._verdict, self._control)
        if run.kind == "nothing":
            return Standing("empty", f"There is no run in {run.path} yet; it is shown here as soon as it begins.")
        if latest is None:
            return Standing("waiting", "It is starting: there is no figure yet.")
        written, reported = _modified(self._history.path), _modified(run.path / REPORT)
        gap = self._seconds_for(1) or 0.0
        resume = resume_command(run.path, self._settings)
        return of_simulation(
            resume, latest, self._ending, self._best, self._control, self._verdict, written, reported, gap
        )


def _of_missing(path: Path, *, has_begun: bool) -> Standing:
    if has_begun:
        return Standing("gone", f"The run in {path} is no longer there; this is its last state.")
    return Standing("empty", f"{path} is not there yet; a run in it is shown here as soon as it begins.")


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_config(path: Path) -> dict[str, Any]:
    try:
        settings = parse_toml(read_plain(path, MOST_BYTES))
        Stopping.of(settings)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a run's configuration: {error}") from None
    return settings


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        return dict(parse_json(read_plain(path, MOST_BYTES)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
