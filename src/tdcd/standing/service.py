"""A party that stands by: it passes signed entries on, decides what its policy allows, and works when all are called.

While a step runs, its process has the party's port and links, and the service has none. So nothing of a step differs
from the command that a person would type, and what parties say meanwhile is passed on when the step is over.
"""

import logging
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import msgspec

from tdcd.config import ConfigError
from tdcd.core.words import one_line
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.driver import TICK_S
from tdcd.runtime.process.endpoint import Endpoint, is_worth_logging
from tdcd.runtime.process.log import event
from tdcd.runtime.process.party import open_transport
from tdcd.runtime.process.status import links_of
from tdcd.runtime.storage.status import lock, write_status
from tdcd.runtime.transport.transport import Joined, Received, Transport
from tdcd.standing.home import Home
from tdcd.standing.jobs import Jobs, JobState, entries_of, have_all
from tdcd.standing.statements import (
    MOST_AT_ONCE,
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
from tdcd.standing.step import EXITS, MADE_WAY

PATIENCE_S, LONGEST_PATIENCE_S = 10.0, 600.0
"""How long a step waits for a party that stands by, before it makes way; twice as long each time."""
PORT_S = 60.0
"""How long a service waits for its port: the process of a step that it has ended may still have it."""
POLL_S = 0.2
DECIDE_S = 1.0
"""How often a party looks at its policy and at the clock, when there is no news."""
LISTEN_S = 5.0
"""How long a party that has made way listens to those who stand by, before it tries again."""
DESCRIBE_S = 60.0
"""How often the status looks at the clock for what approvals and jobs have expired."""
_ENDINGS: Mapping[int, Ending] = {0: "finished", 3: "diverged", 2: "refused"}


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
        self._open: dict[str, str] = {}
        """By job that is not over: how it stands."""
        self._described_at = -math.inf
        self._opened_at = time.monotonic()
        self.decided_at = -math.inf
        """When it last thought about what to do, by the monotonic clock."""

    def step(self, made_way: Called | None = None) -> Called | None:
        """Act on the next event; the call that the party follows now, if there is one.

        Args:
            made_way: the call that the party has tried to follow before, in vain.
        """
        news = self.endpoint.transport.receive(TICK_S)
        if isinstance(news, Received):
            self._receive(news)
        elif news is not None:
            self.endpoint.note_presence(news)
            self._counts.pop(news.party, None)
            if isinstance(news, Joined):
                self._send(news.party, Have(self.home.log.counts))
        self.endpoint.look()
        call = None
        if news is not None or self.home.log.refresh() or time.monotonic() - self.decided_at > DECIDE_S:
            self.decided_at = time.monotonic()
            call = self._decide(made_way)
        self._announce()
        return call

    def _receive(self, news: Received) -> None:
        try:
            message = read_message(news.data)
            if isinstance(message, Have):
                self._counts[news.sender] = message.counts
                self._exchange(news.sender, message.counts)
                return
            for signed in message.entries:
                self.home.log.accept(signed)
        except RejectedMessage as refusal:
            self.endpoint.refuse(news.sender, refusal)
            if is_worth_logging(self.endpoint.refused[news.sender]):
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

    def _decide(self, made_way: Called | None) -> Called | None:
        """Say what the party has to say, and find the call that it follows."""
        home, now = self.home, self._clock()
        is_new = home.log.counts != self._known
        if is_new:
            self._jobs = home.jobs()
            self._known = home.log.counts
        jobs = self._jobs
        if is_new or now - self._described_at > DESCRIBE_S:
            self._described_at = now
            self._open = {name: jobs.in_words(state, now) for name, state in jobs.states.items() if not state.is_over}
        for state in jobs.states.values():
            self._judge(jobs, state, now)
        if home.is_hub:
            self._reject(jobs)
        if home.party == jobs.leader and (statement := jobs.next_statement(now)) is not None:
            event(type(statement).__name__.lower(), **msgspec.structs.asdict(statement))
            home.say(statement)
            return None
        called = [state for state in jobs.states.values() if state.call is not None]
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
        if home.is_hub and home.party in state.approvals:
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

    def _follow(self, jobs: Jobs, state: JobState, now: float, made_way: Called | None) -> Called | None:
        home, call, party = self.home, state.calls[-1], self.home.party
        partners = home.partners
        if (party, call) in state.endings:
            return None
        if not home.is_hub and call.step in ("train", "predict", "audit") and (home.hub, call) in state.endings:
            # A hub ends when its clients know how.
            self._end(call, state.endings[home.hub, call])
            return None
        if made_way == call and any((partner, call) in state.endings for partner in partners):
            self._end(call, "lost")
            return None
        if (party, call) not in state.started:
            self._begin(jobs, state, call, now)
            return None
        if made_way == call and time.monotonic() - self._opened_at < LISTEN_S:
            return None
        wanted = {**entries_of(jobs, state), party: home.log.counts[party]}
        ready = [self._is_ready(partner, wanted, (partner, call) in state.started) for partner in partners]
        return call if all(ready) else None

    def _begin(self, jobs: Jobs, state: JobState, call: Called, now: float) -> None:
        """Begin a step, the first one only if every organisation has approved the job; else say why not."""
        home = self.home
        if not any(party == home.party for party, _ in state.started):
            if any(hub not in state.approvals for hub in home.standing.hubs):
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
            "jobs": {name[:12]: words for name, words in self._open.items()},
        }

    def _wait(self, state: JobState, why: str, what: str = "waits") -> None:
        if self._waiting.get(state.name) != why:
            self._waiting[state.name] = why
            event(what, job=state.name[:12], proposer=state.offer.proposer, why=one_line(why))


class Service:
    """The process of a party that stands by."""

    def __init__(self, home: Home) -> None:
        """Take the party's files."""
        self.home = home
        self._made_way: Called | None = None
        self._patience = PATIENCE_S
        self._shown: Mapping[str, Any] = {}

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Until ``should_stop``."""
        descriptor = lock(self.home.folder)
        try:
            while not should_stop():
                call = self._stand_by(should_stop)
                if call is not None:
                    self._work(call, should_stop)
        finally:
            os.close(descriptor)

    def _stand_by(self, should_stop: Callable[[], bool]) -> Called | None:
        with closing(self._open()) as transport:
            event("standing by", party=self.home.party)
            desk, shown_at = Desk(self.home, transport), 0.0
            while not should_stop():
                call = desk.step(self._made_way)
                if desk.decided_at != shown_at:
                    shown_at = desk.decided_at
                    self._show({"phase": "standing by", **desk.facts()})
                if call is not None:
                    return call
        return None

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
                return open_transport(home.standing, home.party, home.partners, home.own, "stand")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def _work(self, call: Called, should_stop: Callable[[], bool]) -> None:
        """Run a step in a process of its own, and say how it ended."""
        home = self.home
        if self._made_way != call:
            self._patience = PATIENCE_S
        state = home.jobs().named(call.job)
        words = [str(home.path.absolute()), call.job, call.step, str(self._patience)]
        with (home.prepared_folder(state) / f"{call.step}.log").open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tdcd.standing.step", *words],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._show({"phase": f"{call.step} of job {call.job[:12]}, attempt {call.attempt}"})
        assert process.stdin is not None
        with process.stdin:
            while process.poll() is None:
                if should_stop() or (home.log.refresh() and home.jobs().named(call.job).call != call):
                    break
                time.sleep(POLL_S)
        # Its standard input has ended, and so does it.
        status = process.wait()
        if status in _ENDINGS:
            event("ended", job=call.job[:12], step=call.step, attempt=call.attempt, ending=_ENDINGS[status])
            home.say(StepEnded(call.job, call.step, call.attempt, _ENDINGS[status]))
            return
        if status not in (MADE_WAY, EXITS["interrupted"]):
            event("step crashed", logging.ERROR, job=call.job[:12], step=call.step, status=status)
            time.sleep(min(self._patience, PATIENCE_S))
        self._made_way = call
        self._patience = min(2 * self._patience, LONGEST_PATIENCE_S)
