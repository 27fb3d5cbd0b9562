"""Running a state machine for real: messages over a transport, instructions into a folder, reminders by the clock."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.exchange import most_unsaved
from tdcd.runtime.machine.hub import Hub, Shutdown
from tdcd.runtime.machine.instructions import Absence, Append, End, HubState, Instruction, RunOutcome, Save, TurnedAway
from tdcd.runtime.messages.messages import Want
from tdcd.runtime.messages.structure import Message
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.runtime.process.endpoint import Backoff, Endpoint, is_worth_logging
from tdcd.runtime.process.log import event
from tdcd.runtime.process.metrics import Metrics
from tdcd.runtime.process.status import facts_of
from tdcd.runtime.process.stopwatch import Stopwatch
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.runtime.transport.transport import Event, Joined, Received, Transport


class Grace:
    """Finds the questions that have been open for longer than the grace period."""

    def __init__(self, seconds: float, pace_s: float, clock: Callable[[], float]) -> None:
        """Take the grace period, and how often :meth:`over` will be called."""
        self._seconds, self._pace, self._clock = seconds, pace_s, clock
        self._since: dict[Message, float] = {}
        self._looked_at = clock()

    def is_due(self) -> bool:
        """Whether :meth:`over` was last called some time ago."""
        return self._clock() - self._looked_at > 2 * self._pace

    def restart(self) -> None:
        """Give every question its whole time again."""
        self._since = {}

    def over(self, questions: Iterable[Message]) -> list[Message]:
        """The open ``questions`` whose time is over; their clock restarts."""
        now = self._clock()
        # A hub that slept cannot know who was late: all get their time again.
        known = self._since if now - self._looked_at <= self._seconds + 2 * self._pace else {}
        self._looked_at = now
        self._since = {question: known.get(question, now) for question in questions}
        late = [question for question, since in self._since.items() if now - since > self._seconds]
        self._since |= dict.fromkeys(late, now)
        return late


TICK_S = 0.25
"""How often a waiting party looks whether it should stop or show something."""


class HubDriver:
    """A hub at work."""

    def __init__(
        self,
        hub: Hub,
        transport: Transport,
        folder: HubFolder,
        resend_s: float,
        clock: Callable[[], float] = time.monotonic,
        metrics: Metrics | None = None,
    ) -> None:
        runtime = hub.job.config.runtime
        self.hub, self.folder, self.endpoint = hub, folder, Endpoint(transport)
        self._backoff = Backoff(resend_s, runtime.longest_resend_s, clock)
        self._stopwatch = Stopwatch(hub, folder, clock)
        grace = hub.job.config.federation.client_grace_s
        self._grace = None if grace is None else Grace(grace, TICK_S, clock)
        self._linger, self._clock, self._began = runtime.linger_s, clock, clock()
        self._unsaved: HubState | None = None
        self._last: Append | None = None
        self._described, self._metrics = False, metrics
        self._stage: tuple[str, int] | None = None
        self._num_missing, self._looked_at = 0, -math.inf
        self._arriving: dict[str, int] = {}
        self._ended_at, self._shown_at = None if hub.shutdown is None else clock(), -math.inf
        self._missing_since: dict[str, float] = {}
        self._num_unaware = -1 if hub.shutdown is None else len(hub.shutdown.unaware)
        self._disk_errors, self._last_error = 0, ""
        self._period, self._most_unsaved = (
            hub.job.timing.period(hub.job.hubs.index(hub.name)),
            most_unsaved(hub.job.timing),
        )
        self._saving: HubState | None = None
        self._is_held = False
        """Whether the hub stays where it is until a state is durable."""

    def run(self, should_stop: Callable[[], bool]) -> RunOutcome:
        """Until the run is over and everybody knows, or until ``should_stop``."""
        while (outcome := self.step()) is None:
            if should_stop():
                return self._leave() if self._ended_at is None else self._depart()
        return outcome

    def step(self) -> RunOutcome | None:
        """Act on the next event, or on the lack of one; how the run ended, if that was all."""
        news = self.endpoint.transport.receive(TICK_S)
        self._stopwatch.received()
        if isinstance(news, Received):
            self._receive(news)
        elif news is not None:
            self.endpoint.note_presence(news)
            self._backoff.disturb()
            if isinstance(news, Joined):
                self._perform(self.hub.joined(news.party))
        if news is None:
            # Whoever is waited for may be long: nothing should be lost meanwhile.
            self._save(wait=True)
        self._note_held()
        if self._grace is not None and not self._is_held and (news is None or self._grace.is_due()):
            # Everything that has arrived is read; or that never happens.
            for question in self._grace.over(self.hub.open_questions()):
                self._perform(self.hub.overdue(question))
        missing = self.hub.missing()
        self._note_progress(news, len(missing))
        self._stopwatch.handled(missing, self.endpoint.present)
        self.endpoint.look()
        now = self._clock()
        if not self._is_held and (news is None or now - self._looked_at > TICK_S):
            self._look_after(missing)
        if self.hub.shutdown is not None:
            self._note_confirmed(self.hub.shutdown)
        if self._ended_at is not None and self._is_done(self._ended_at):
            return self._depart()
        if now - self._shown_at > TICK_S:
            self._show()
        return None

    def _receive(self, news: Received) -> None:
        try:
            message = self.endpoint.read(news)
            if self._is_held and type(message) is not Want:
                return  # It is asked for again.
            instructions = self.hub.receive(message)
        except RejectedMessage as refusal:
            self.endpoint.refuse(news.sender, refusal)
        else:
            self._perform(instructions)

    def _note_held(self) -> None:
        """Stop before the others forget what this hub would need if it went back to its last durable state.

        Its clients have been asked, and no peer has been sent anything of this round: what arrives is dropped until the
        disk has taken a state, and then asked for again.
        """
        hub, was_held = self.hub, self._is_held
        unsaved = hub.round - hub.round % self._period - self.folder.checkpoints.durable
        self._is_held = hub.shutdown is None and bool(hub.peers) and unsaved > self._most_unsaved
        if self._is_held and not was_held:
            event("held", logging.ERROR, round=hub.round, durable=self.folder.checkpoints.durable, why=self._last_error)
        elif was_held and not self._is_held:
            event("continued", round=hub.round)
            if self._grace is not None:
                self._grace.restart()
            self._perform(hub.remind())

    def _note_progress(self, news: Event | None, num_missing: int) -> None:
        """See whether an event brought the hub on. This happens with every message, so it must not go through all."""
        stage = self.hub.phase, self.hub.round
        if (stage, num_missing) == (self._stage, self._num_missing):
            return
        self._backoff.restart(is_next_stage=stage != self._stage)
        if isinstance(news, Received):
            # Who has answered is not late, though asked again.
            self._missing_since.pop(news.sender, None)
        self._stage, self._num_missing = stage, num_missing

    def _look_after(self, missing: Collection[str]) -> None:
        """Remind those who are missing when nothing has come of them for long enough."""
        self._looked_at, arriving = self._clock(), self.endpoint.transport.arriving
        before, self._arriving = self._arriving, {party: size for party in missing if (size := arriving[party])}
        if self._arriving != before:
            self._backoff.prolong()
        elif self._backoff.is_over():
            self._remind()
            # A slow link takes its time for the reminder, too.
            self._backoff.prolong()

    def _remind(self) -> None:
        waiting = self._waiting()
        if waiting:
            event("waiting", logging.WARNING, seconds=waiting, round=self.hub.round, **self.endpoint.reasons(waiting))
        self._perform(self.hub.remind())

    def _note_confirmed(self, shutdown: Shutdown) -> None:
        """Write down at once who has confirmed the end: a hub that comes back would wait for them in vain."""
        if shutdown.status != "refused" and len(shutdown.unaware) != self._num_unaware:
            self._num_unaware = len(shutdown.unaware)
            self._keep(partial(self.folder.note_confirmed, shutdown))

    def _is_done(self, ended_at: float) -> bool:
        unaware = set(self.hub.missing())
        if self.hub.status == "refused":
            # Nothing here is of use to those who are away.
            unaware &= self.endpoint.present
        return not unaware or self._clock() - ended_at > self._linger

    def _depart(self) -> RunOutcome:
        """The run has ended, and everybody knows or has had the time to."""
        assert self.hub.status is not None
        if self.hub.status != "refused":
            self.folder.report()
            if self.hub.is_over:
                self.folder.close_run()
        if not self.hub.is_over:
            event("left without confirmation", logging.WARNING, parties=self.hub.missing())
        self._show()
        return RunOutcome(self.hub.status, self.hub.reason)

    def _perform(self, instructions: list[Instruction]) -> None:
        if not instructions:
            return
        if self.hub.phase != "stepping" or any(isinstance(instruction, Save) for instruction in instructions):
            self._settle()  # Answers are used; a silo alone goes from steps to steps.
        for instruction in instructions:
            if isinstance(instruction, Message):
                self.endpoint.send(instruction)
            elif isinstance(instruction, Append):
                self._append(instruction)
            elif isinstance(instruction, Save):
                self._save(wait=True)
                self._unsaved = self.folder.marked(instruction.state)
            elif isinstance(instruction, Absence):
                self._note_absence(instruction)
            elif isinstance(instruction, TurnedAway):
                self._last_error = f"{instruction.party} was turned away: {instruction.reason}"
                event("turned away", logging.WARNING, who=instruction.party, why=instruction.reason)
            else:
                self._finish(instruction)
        if self.hub.rounds is not None and self.hub.rounds.phase == "stepping":
            self.hub.rounds.prefetch_next_round()
            self._save()

    def _keep(self, write: Callable[[], None]) -> bool:
        """Write to the folder; a disk that takes nothing is reported, and does not stop the training at once."""
        try:
            write()
        except OSError as error:
            self._disk_errors += 1
            self._last_error = f"{self.folder.path} could not be written: {error}"
            if is_worth_logging(self._disk_errors):
                event("disk", logging.ERROR, why=str(error), round=self.hub.round, count=self._disk_errors)
            return False
        return True

    def _save(self, *, wait: bool = False) -> None:
        """Begin to make durable what is not, while the clients are at work; or wait until it is, before anything newer.

        What a hub computes follows, to the last bit, from its state, the absences that it wrote down and what its peers
        sent. So a round may begin before its state is durable: a crash sends the hub back by one, which it plays alike.
        """
        if self._unsaved is not None and self._keep(partial(self.folder.save, self._unsaved)):
            self._saving, self._unsaved = self._unsaved, None
        if wait:
            self._settle()

    def _settle(self) -> None:
        """Wait until the state that was written last is durable; one that the disk did not keep is written again."""
        saving, self._saving = self._saving, None
        if not self._keep(self.folder.checkpoints.settle) and self._unsaved is None:
            self._unsaved = saving

    def _note_absence(self, absence: Absence) -> None:
        self._keep(partial(self.folder.note_absence, absence))
        if absence.question is None:
            event("back", who=absence.client, round=absence.round)
        else:
            event("left out", logging.WARNING, who=absence.client, round=absence.round, asked=absence.question)

    def _append(self, line: Append) -> None:
        if not self._described:
            self._keep(partial(self.folder.describe, self.hub.handshake))
            self._described = True
        self._keep(partial(self.folder.append, line.record, self._clock() - self._began))
        self._last = line
        if line.test_scores is not None:
            self._keep(partial(self.folder.save_figures, self.hub.handshake, line))
        event("evaluated", round=line.record.round, train_loss=line.record.train_loss, test_loss=line.record.test_loss)
        self._show()

    def _finish(self, end: End) -> None:
        """Leave a complete folder. One that was refused stays as it is: put right, the same command continues."""
        self._ended_at = self._clock()
        self._save(wait=True)
        rounds, shutdown = self.hub.rounds, self.hub.shutdown
        level = logging.INFO if end.status == "finished" else logging.ERROR
        event("ended", level, status=end.status, reason=end.reason)
        if rounds is not None and shutdown is not None and end.status != "refused":
            blocks = {hub.removeprefix("hub."): block for hub, block in rounds.models().items()}
            others = {hub.removeprefix("hub."): preparation for hub, preparation in rounds.preparations().items()}
            self.folder.finish(blocks, others, shutdown, rounds.final()[0])

    def _leave(self) -> RunOutcome:
        """Asked to stop: the last checkpoint stays, and the same command continues from there."""
        self._save(wait=True)
        at, durable = self.hub.round, self.folder.checkpoints.durable
        self._stopwatch.write()
        event("interrupted", round=self.hub.round)
        self._show()
        if self._unsaved is None:
            return RunOutcome("interrupted", f"in round {at}; the same command continues from here")
        where = f"the same command continues from round {durable}, whose state is durable"
        return RunOutcome("interrupted", f"in round {at}; {where}. {self._last_error}")

    def _waiting(self) -> dict[str, float]:
        """For how many seconds each missing party has been missing."""
        now, missing = self._clock(), self.hub.missing()
        self._missing_since = {party: self._missing_since.get(party, now) for party in missing}
        return {party: round(now - since, 1) for party, since in self._missing_since.items()}

    def _show(self) -> None:
        self._shown_at = self._clock()
        record = None if self._last is None else self._last.record
        facts = facts_of(self.hub, self.endpoint, self.folder.silo, record, self._waiting(), self._last_error)
        self.folder.write_status(facts)
        if self._metrics is not None:
            self._metrics.update(facts, self.endpoint, self._stopwatch.timeline, record)


class ClientDriver:
    """A client at work."""

    def __init__(self, client: Client, transport: Transport) -> None:
        self.client, self.endpoint = client, Endpoint(transport)

    def run(self, should_stop: Callable[[], bool]) -> RunOutcome:
        """Until the hub says that the run is over, or until ``should_stop``."""
        while (outcome := self.step()) is None:
            if should_stop():
                return RunOutcome("interrupted", "the hub waits; the same command continues from here")
        return outcome

    def step(self) -> RunOutcome | None:
        """Act on the next event; how the run ended, if that was all."""
        news = self.endpoint.transport.receive(TICK_S)
        if isinstance(news, Received):
            try:
                answers = self.client.receive(self.endpoint.read(news))
            except RejectedMessage as refusal:
                self.endpoint.refuse(news.sender, refusal)
            else:
                for answer in answers:
                    self.endpoint.send(answer)
                self.client.prefetch_next_round()
        elif news is not None:
            self.endpoint.note_presence(news)
        self.endpoint.look()
        return self.client.outcome
