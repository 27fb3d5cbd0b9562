"""A party that stands by: it passes signed entries on, decides what its policy allows, and works when all are called.

While a step runs, its process has the party's port and links, and the service has none. So nothing of a step differs
from the command that a person would type, and what parties say meanwhile is passed on when the step is over.
"""

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from tdcd.config import ConfigError
from tdcd.core.words import one_line
from tdcd.records.files import parse_json, read_plain
from tdcd.runtime.messages.wire import PROTOCOL, RejectedMessage
from tdcd.runtime.process.driver import TICK_S
from tdcd.runtime.process.endpoint import Endpoint, is_worth_logging
from tdcd.runtime.process.log import event, logger
from tdcd.runtime.process.metrics import Metrics
from tdcd.runtime.process.party import open_transport
from tdcd.runtime.process.status import links_of
from tdcd.runtime.storage.status import MOST_BYTES, STATUS, lock, write_status
from tdcd.runtime.transport.transport import Event, Joined, Received, Transport
from tdcd.standing.children import StepServer, start_child
from tdcd.standing.home import Home
from tdcd.standing.jobs import Jobs, JobState, WaitsFor, have_all
from tdcd.standing.statements import (
    MOST_AT_ONCE,
    Approved,
    Called,
    Ending,
    Entries,
    Have,
    Rejected,
    Started,
    StepEnded,
    read_message,
    written,
)
from tdcd.standing.step import EXITS, LEFT, MADE_WAY, RUN, too_little_memory
from tdcd.standing.step import main as run_step

PATIENCE_S, LONGEST_PATIENCE_S = 10.0, 600.0
"""How long a step waits for a party that stands by, before it makes way; twice as long each time."""
PORT_S = 60.0
"""How long a service waits for its port: the process of a step that it has ended may still have it."""
POLL_S = 0.2
DECIDE_S = 1.0
"""How often a party looks at its policy and at the clock, when there is no news."""
LISTEN_S = 5.0
"""How long a party that has made way listens to those who stand by, before it tries again."""
GRACE_S = 15.0
"""How long the process that answers may take to end."""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""How long before it is started again when it has ended; twice as long each time."""
DESCRIBE_S = 60.0
"""How often the status looks at the clock for what approvals and jobs have expired."""
MOST_NEWS = 64
"""Events that a party takes in before it decides."""
MOST_OPEN, MOST_OVER = 50, 10
"""Jobs that the page shows."""
_ENDINGS: Mapping[int, Ending] = {0: "finished", 3: "diverged", 2: "refused"}


class MadeWay(NamedTuple):
    """A call whose step a party has left, since others stood by."""

    call: Called
    ending: Ending = "lost"
    """How its part has ended: what is not done is lost once others have ended theirs."""

    def is_over(self, have_ended: Sequence[bool]) -> bool:
        """Whether it need not try again, by which of its partners have ended; to others a part that is done may be of
        use.
        """
        return any(have_ended) if self.ending == "lost" else all(have_ended)


class Desk:
    """A party's side of the dialogue between services, over one transport."""

    def __init__(self, home: Home, transport: Transport, clock: Callable[[], float] = time.time) -> None:
        """No other party is here yet."""
        self.home, self.endpoint, self._clock = home, Endpoint(transport, clock), clock
        self._counts: dict[str, Mapping[str, int]] = {}
        """By party that is here: how many entries of each chain it has."""
        self._sent: dict[str, int] = {}
        """What all parties were informed of."""
        self._waiting: dict[str, str] = {}
        """By job: for what it waits, as the log says."""
        self._jobs = home.jobs()
        self._known = home.log.counts
        """What the jobs follow from."""
        self._described_at = -math.inf
        self.summary: dict[str, Any] = {}
        """See :func:`summary_of`."""
        self._missing_since: dict[str, float] = {}
        self._opened_at = time.monotonic()
        self.decided_at = -math.inf
        """When it last thought about what to do, by the monotonic clock."""

    def step(self, made_way: MadeWay | None = None) -> Called | None:
        """Act on the next events; the call that the party follows now, if there is one.

        Args:
            made_way: a call that the party has tried to follow before, in vain.
        """
        transport, taken = self.endpoint.transport, 0
        news = transport.receive(TICK_S)
        # What has come together is thought about once.
        while news is not None:
            self._take(news)
            taken += 1
            news = transport.receive(0.0) if taken < MOST_NEWS else None
        self.endpoint.look()
        call = None
        if taken or self.home.log.refresh() or time.monotonic() - self.decided_at > DECIDE_S:
            self.decided_at = time.monotonic()
            # A disk that takes nothing is noticed where more depends on it.
            with suppress(OSError):
                self.home.keep_public_files()
            call = self._decide(made_way)
        self._announce()
        return call

    def _take(self, news: Event) -> None:
        """Act on an event."""
        if isinstance(news, Received):
            self._receive(news)
            return
        self.endpoint.note_presence(news)
        self._counts.pop(news.party, None)
        if isinstance(news, Joined):
            self._send(news.party, Have(self.home.log.counts))

    def _receive(self, news: Received) -> None:
        try:
            message = read_message(news.data)
            if isinstance(message, Have):
                self._counts[news.sender] = message.counts
                self._exchange(news.sender, message.counts)
                return
            self.home.log.accept(*message.entries, sender=news.sender)
        except RejectedMessage as refusal:
            self.endpoint.refuse(news.sender, refusal)
            if self.home.has_joined and is_worth_logging(self.endpoint.refused[news.sender]):
                self.home.say(Rejected(news.sender, one_line(str(refusal), 300)))

    def _reject(self, jobs: Jobs) -> None:
        """Say of proposals that came without the right to make them that they were refused, once each."""
        if not jobs.unentitled:
            return
        logged = [signed.entry.statement for signed in self.home.log.chains[self.home.party]]
        count: Counter[str] = Counter()
        for party, why in jobs.unentitled:
            count[party] += 1
            rejected = Rejected(party, one_line(why, 300))
            if is_worth_logging(count[party]) and rejected not in logged:
                event("refused", logging.WARNING, sender=party, why=rejected.because)
                self.home.say(rejected)

    def _exchange(self, party: str, counts: Mapping[str, int]) -> None:
        """Send what a party lacks, and ask for what it has."""
        log = self.home.log
        lacking = log.lacking(counts)
        for start in range(0, len(lacking), MOST_AT_ONCE):
            self._send(party, Entries(lacking[start : start + MOST_AT_ONCE]))
        if not have_all(log.counts, {name: count for name, count in counts.items() if name in log.chains}):
            self._send(party, Have(log.counts))

    def _announce(self) -> None:
        """Inform all who are here of what is new."""
        counts = self.home.log.counts
        if counts != self._sent:
            self._sent = counts
            for party in self.endpoint.present:
                self._send(party, Have(counts))

    def _send(self, party: str, message: Have | Entries) -> None:
        if party in self.endpoint.present:
            self.endpoint.transport.send(party, written(message))

    def _decide(self, made_way: MadeWay | None) -> Called | None:
        """Say what the party has to say, and find the call that it follows."""
        home, now = self.home, self._clock()
        is_new = home.log.counts != self._known
        if is_new:
            self._jobs = home.jobs()
            self._known = home.log.counts
        jobs = self._jobs
        if is_new or now - self._described_at > DESCRIBE_S:
            self._described_at = now
            self.summary = summary_of(home, jobs, now)
        if not home.has_joined:
            return None
        # To approve one reads on.
        for state in [*jobs.states.values()]:
            self._judge(jobs, state, now)
        if home.is_hub:
            self._reject(jobs)
        if home.party == jobs.leader and (statement := jobs.next_statement(now)) is not None:
            event(type(statement).__name__.lower(), **msgspec.structs.asdict(statement))
            home.say(statement)
            return None
        open_states = [state for state in jobs.states.values() if state.call is not None]
        called = [state for state in open_states if home.has_part_in(jobs, state)]
        return self._follow(jobs, called[0], now, made_way) if called else None

    def _judge(self, jobs: Jobs, state: JobState, now: float) -> None:
        """Answer a proposal: a hub approves what its policy allows, and all else waits for a person; a client refuses
        what its policy does not allow.
        """
        home = self.home
        if state.is_over or any(party == home.party for party, _ in state.started):
            return
        # A job that all were called to in time waits for a client, however late: it begins or refuses.
        if now > state.offer.expires and (home.is_hub or state.call is None):
            return
        # Of one that it has no part in a refusal would not count, and be signed again and again.
        if (home.is_hub and home.party in state.approvals) or not home.has_part_in(jobs, state):
            return
        if reasons := jobs.unfit(state.offer):
            if home.is_hub:
                home.refuse(state, one_line("; ".join(reasons), 300))
            return
        if reasons := jobs.not_yet(state.offer):
            self._wait(state, "; ".join(reasons))
            return
        try:
            reasons = home.verdict(jobs, state, int(now))
        except ConfigError as error:
            self._wait(state, str(error))
            return
        if home.is_hub and not reasons:
            event("approved by policy", job=state.name[:12], proposer=state.offer.proposer)
            home.approve(state, "policy")
        elif home.is_hub:
            self._wait(state, "; ".join(reasons), "waits for a person")
        elif reasons:
            event("refused by policy", job=state.name[:12], proposer=state.offer.proposer, why="; ".join(reasons))
            home.refuse(state, one_line("; ".join(reasons), 300))

    def _follow(self, jobs: Jobs, state: JobState, now: float, made_way: MadeWay | None) -> Called | None:
        home, call, party = self.home, state.calls[-1], self.home.party
        partners = home.partners_in(jobs.members_of(state))
        if (party, call) in state.endings:
            return None
        if not home.is_hub and call.step in ("train", "predict", "audit") and (home.hub, call) in state.endings:
            # A hub ends when its clients know how.
            self._end(call, state.endings[home.hub, call])
            return None
        has_tried = made_way is not None and made_way.call == call
        if made_way is not None and has_tried and made_way.is_over([(who, call) in state.endings for who in partners]):
            self._end(call, made_way.ending)
            return None
        if (party, call) not in state.started:
            self._begin(jobs, state, call, now)
            return None
        if has_tried and time.monotonic() - self._opened_at < LISTEN_S:
            return None
        wanted = {**state.entries, party: home.log.counts[party]}
        ready = [self._is_ready(partner, wanted, (partner, call) in state.started) for partner in partners]
        return call if all(ready) and not self._is_upgraded_too_early(state, partners) else None

    def _begin(self, jobs: Jobs, state: JobState, call: Called, now: float) -> None:
        """Begin a step, the first one only if every organisation has approved the job; else say why not."""
        home = self.home
        if not any(party == home.party for party, _ in state.started):
            if any(hub not in state.approvals for hub in jobs.members_of(state).hubs):
                self._wait(state, "it is called, and an approval is missing here")
                return
            if not home.is_hub and self._is_barred(jobs, state, now):
                return
            if problems := jobs.problems(state, now):
                event("refused", logging.WARNING, job=state.name[:12], why="; ".join(problems))
                home.refuse(state, one_line("; ".join(problems), 300))
                return
        event("begins", job=state.name[:12], step=call.step, attempt=call.attempt)
        home.say(Started(call.job, call.step, call.attempt))

    def _is_barred(self, jobs: Jobs, state: JobState, now: float) -> bool:
        """Whether a client's own policy keeps it from beginning; :meth:`_judge` says so to all."""
        try:
            return bool(self.home.verdict(jobs, state, int(now)))
        except ConfigError as error:
            self._wait(state, str(error))
            return True

    def _is_ready(self, partner: str, wanted: Mapping[str, int], has_started: bool) -> bool:
        """Whether a partner will come: it has left for the step, or it is here and has all that it needs for that."""
        counts = self._counts.get(partner)
        if counts is None:
            return has_started and partner not in self.endpoint.present
        return have_all(counts, wanted) and have_all(self.home.log.counts, counts)

    def _is_upgraded_too_early(self, state: JobState, partners: Sequence[str]) -> bool:
        """Whether partners speak another protocol, and so cannot end with this party what they have begun."""
        for partner in partners:
            why = self.endpoint.unfit.get(partner, "")
            if why.startswith((f"{partner} speaks protocol ", f"{partner} does not say which protocol ")):
                self._wait(state, f"{why}; a job that runs ends first, with the version that it began with")
                return True
        return False

    def _end(self, call: Called, ending: Ending) -> None:
        event("ended", job=call.job[:12], step=call.step, attempt=call.attempt, ending=ending)
        self.home.say(StepEnded(call.job, call.step, call.attempt, ending))

    def facts(self) -> dict[str, Any]:
        """For the status: who is here, and which jobs wait for what."""
        links = links_of(self.endpoint)
        days = {party: math.floor(left) for party, left in links["certificate_days"].items()}
        return {
            "connected": sorted(self.endpoint.present),
            "missing": [party for party in self.home.partners if party not in self.endpoint.present],
            **links,
            "certificate_days": days,
            "refused": dict(self.endpoint.refused),
            "last_error": self.endpoint.last_refusal,
            **self.summary,
        }

    def figures(self) -> dict[str, Any]:
        """The same for Prometheus, with figures that always change."""
        now, away = time.monotonic(), [party for party in self.home.partners if party not in self.endpoint.present]
        self._missing_since = {party: self._missing_since.get(party, now) for party in away}
        missing_s = {party: now - since for party, since in self._missing_since.items()}
        dropped = dict(self.endpoint.transport.dropped)
        return {**self.facts(), **links_of(self.endpoint), "missing_s": missing_s, "dropped": dropped}

    def _wait(self, state: JobState, why: str, what: str = "waits") -> None:
        if self._waiting.get(state.name) != why:
            self._waiting[state.name] = why
            event(what, job=state.name[:12], proposer=state.offer.proposer, why=one_line(why))


def summary_of(home: Home, jobs: Jobs, now: float) -> dict[str, Any]:
    """Of all jobs, and of what is left to spend: for the status, for the page, and for Prometheus."""
    states = [*jobs.states.values()]
    open_states = [state for state in states if not state.is_over]
    over = [state for state in states if state.is_over][-MOST_OVER:]
    waiting = Counter(jobs.waits_for(state, home.party) for state in open_states)
    left: dict[str, tuple[float, float]] = {}
    # What is wrong with the files is reported where they are used.
    with suppress(ValueError, OSError):
        left = home.epsilon_left(jobs, int(now))
    return {
        "jobs": {state.name[:12]: jobs.in_words(state, now) for state in open_states},
        "queue": [_in_queue(jobs, state, now) for state in [*over, *open_states[:MOST_OPEN]]],
        "waiting_jobs": {what: waiting[what] for what in get_args(WaitsFor)},
        "epsilon_left": {limit: rest for limit, (rest, _) in left.items()},
        "epsilon_left_ratio": {limit: rest / whole for limit, (rest, whole) in left.items()},
    }


def _in_queue(jobs: Jobs, state: JobState, now: float) -> dict[str, Any]:
    """A job as the page shows it."""
    answers = dict.fromkeys(jobs.members_of(state).hubs, "")
    for hub, signed in state.approvals.items():
        statement = signed.entry.statement
        answers[hub] = f"by {statement.by}" if isinstance(statement, Approved) else ""
    answers |= dict.fromkeys(state.refusals, "refused")
    return {
        "job": state.name[:12],
        "kind": state.offer.kind,
        "purpose": one_line(state.offer.purpose, 100),
        "proposer": state.offer.proposer,
        "proposed": state.proposal.entry.time,
        "is_over": state.is_over,
        "answers": answers,
        "state": jobs.in_words(state, now),
    }


class AnsweringProcess:
    """The process of a hub that answers, if its file says so: started again whenever it ends."""

    def __init__(self, home: Home) -> None:
        """Nothing runs before the first :meth:`look`."""
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._due, self._pause, self._began_at = 0.0, PAUSE_S, 0.0
        missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
        if home.own.serve is not None and missing:
            why = f"serve = {home.own.serve!r}: needs an HTTP framework: pip install 'tdcd[serve]'"
            raise ConfigError([why], str(home.path))

    def look(self) -> None:
        """Start it, if it does not run and should."""
        if self._home.own.serve is None:
            return
        now = time.monotonic()
        if self._process is not None and (status := self._process.poll()) is not None:
            event("answers", logging.WARNING, why=f"its process has ended with status {status}; it is started again")
            self._release()
            self._due = now + self._pause
            lasted = now - self._began_at > LONGEST_PAUSE_S
            self._pause = PAUSE_S if lasted else min(2 * self._pause, LONGEST_PAUSE_S)
        if self._process is None and now >= self._due:
            self._began_at = now
            level = logging.getLevelName(logger.level).lower()
            self._process = start_child("tdcd.standing.answers", [str(self._home.path.absolute()), level])

    def stop(self) -> None:
        """End it; requests that have begun are answered."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._release()

    def _release(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


class Service:
    """The process of a party that stands by."""

    def __init__(self, home: Home) -> None:
        """Take the party's files."""
        self.home = home
        self._made_way: MadeWay | None = None
        self._patience = PATIENCE_S
        self._shown: Mapping[str, Any] = {}
        self._answers = AnsweringProcess(home)
        self._metrics = Metrics(None, ())
        self._jobs: Mapping[str, Any] = {}
        """See :func:`summary_of`."""

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Until ``should_stop``."""
        # Before there are threads, and a lock that a copy of this process would hold, too.
        with closing(StepServer(partial(run_step, self.home), self.home.jobs)) as steps:
            descriptor = lock(self.home.folder)
            try:
                with self._served():
                    while not should_stop():
                        call = self._stand_by(should_stop)
                        if call is not None:
                            self._work(steps, call, should_stop)
            finally:
                self._answers.stop()
                os.close(descriptor)

    def _served(self) -> AbstractContextManager[str | None]:
        """The figures for Prometheus, where the party's file says so."""
        own, standing = self.home.own, self.home.meets
        if own.metrics is None:
            return nullcontext()
        address = standing.config.silos[standing.silo_index(own.silo)].hub or ""
        return self._metrics.served(own.metrics, [address.rpartition(":")[0]] * self.home.is_hub)

    def _stand_by(self, should_stop: Callable[[], bool]) -> Called | None:
        with closing(self._open()) as transport:
            event("standing by", party=self.home.party, version=sys.modules["tdcd"].__version__, protocol=PROTOCOL)
            desk, shown_at, partners = Desk(self.home, transport), 0.0, self.home.partners
            # Members that join have links at once: they are opened anew.
            while not should_stop() and self.home.partners == partners:
                call = desk.step(self._made_way)
                if desk.decided_at != shown_at:
                    shown_at = desk.decided_at
                    self._answers.look()
                    self._show({"phase": "standing by", **desk.facts()})
                    self._measure("standing by", desk.figures())
                if call is not None:
                    self._jobs = desk.summary
                    return call
        return None

    def _measure(self, phase: str, figures: Mapping[str, Any], taken_at: float | None = None) -> None:
        """Replace the figures for Prometheus."""
        facts = {"party": self.home.party, "status": None, **figures, "phase": phase}
        self._metrics.show(facts, time.time() if taken_at is None else taken_at, tuple(self.home.partners))

    def _measure_step(self, folder: Path, call: Called, began: float) -> None:
        """The same while a step runs, from what its process says of itself in a file."""
        taken_at = time.time()
        figures: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            file = (folder / RUN if call.step == "train" else folder) / STATUS
            written_at = file.stat().st_mtime
            if written_at >= began:
                figures = parse_json(read_plain(file, MOST_BYTES))
                # A hub that trains says something all the time.
                taken_at = written_at if call.step == "train" and self.home.is_hub else taken_at
        self._measure(call.step, {**figures, **self._jobs}, taken_at)

    def _show(self, facts: Mapping[str, Any]) -> None:
        """Write the status, where it changed."""
        if facts != self._shown:
            self._shown = facts
            nothing: dict[str, Any] = {"connected": [], "refused": {}, "last_error": ""}
            write_status(self.home.folder, {"party": self.home.party, "status": None, **nothing, **facts})

    def _open(self) -> Transport:
        home, deadline = self.home, time.monotonic() + PORT_S
        while True:
            try:
                return open_transport(home.meets, home.party, home.partners, home.own, "stand")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def _work(self, steps: StepServer, call: Called, should_stop: Callable[[], bool]) -> None:
        """Run a step in a process of its own, and say how it ended."""
        home = self.home
        if self._made_way is None or self._made_way.call != call:
            self._patience = PATIENCE_S
        state = home.jobs().named(call.job)
        folder, began = home.prepared_folder(state), time.time()
        process = steps.start([call.job, call.step, str(self._patience)], folder / f"{call.step}.log")
        phase = f"{call.step} of job {call.job[:12]}, attempt {call.attempt}"
        self._show({"phase": phase, **self._jobs})
        measured_at = 0.0
        while process.poll() is None:
            self._answers.look()
            if time.time() - measured_at > DECIDE_S:
                measured_at = time.time()
                self._measure_step(folder, call, began)
            if should_stop():
                break
            if home.log.refresh():
                jobs = home.jobs()
                self._jobs = summary_of(home, jobs, time.time())
                self._show({"phase": phase, **self._jobs})
                if jobs.named(call.job).call != call:
                    break
            time.sleep(POLL_S)
        # Its input ends, and so does it.
        process.end_input()
        status = process.wait()
        if status in _ENDINGS:
            event("ended", job=call.job[:12], step=call.step, attempt=call.attempt, ending=_ENDINGS[status])
            home.say(StepEnded(call.job, call.step, call.attempt, _ENDINGS[status]))
            return
        if status == -signal.SIGABRT and home.own.memory is not None:
            # Compiled code cannot say it any better.
            home.refuse(home.jobs().named(call.job), too_little_memory(call.step, home.own.memory))
            return
        if status not in (MADE_WAY, *LEFT.values()):
            event("step crashed", logging.ERROR, job=call.job[:12], step=call.step, status=status)
            time.sleep(min(self._patience, PATIENCE_S))
        done: dict[int, Ending] = {left: _ENDINGS[EXITS[ending]] for ending, left in LEFT.items()}
        self._made_way = MadeWay(call, done.get(status, "lost"))
        self._patience = min(2 * self._patience, LONGEST_PATIENCE_S)
