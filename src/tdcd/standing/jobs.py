"""The jobs of a standing federation: what follows from what its parties have signed.

Everything here is a function of the parties' chains. The first silo's hub keeps the queue: it calls all to the steps of
a job, one job after the other. It cannot have anything computed that is not approved, since every party checks that.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, assert_never

from tdcd.config import Config, ConfigError
from tdcd.config.reading import check_config
from tdcd.config.user_code import code_in
from tdcd.core.words import one_line
from tdcd.records.files import parse_toml
from tdcd.runtime.certificates.check import when
from tdcd.runtime.job import Job
from tdcd.standing.facts import not_audited, paths_outside
from tdcd.standing.log import SKEW_S, Log
from tdcd.standing.statements import (
    STEPS,
    Approved,
    Called,
    Closed,
    Ending,
    Offer,
    Proposed,
    Refused,
    Rejected,
    SignedEntry,
    Started,
    StepEnded,
)

WaitsFor = Literal["person", "others", "queue", "running"]
"""An approval of the own organisation, or of others; the jobs before it; or it does not wait."""
JOB_NAME = re.compile("[0-9a-f]{64}")
MOST_ATTEMPTS = 5
"""How often all begin a step again of which a party has lost its part."""


def membership(config: Config, authority: str) -> str:
    """A digest of who takes part, at which addresses, who dials, and who has issued their certificates."""
    members = [[silo.name, silo.hub, silo.accept_hubs, [*silo.client_names]] for silo in config.silos]
    return hashlib.sha256(json.dumps([members, authority]).encode()).hexdigest()


def parties_of(job: Job) -> list[str]:
    """All hubs, then all clients."""
    return [*job.hubs, *(client for silo in range(len(job.hubs)) for client in job.clients(silo))]


def newcomers(before: Job, after: Job) -> list[str]:
    """The parties of a federation that were none of it before."""
    there = {*parties_of(before)}
    return [party for party in parties_of(after) if party not in there]


def join_problems(before: Job, after: Job) -> list[str]:
    """Why members cannot join by this shared file: those that are there stay as they are, and new ones follow."""
    problems, later = [], {silo.name: silo for silo in after.config.silos}
    name, names = before.config.federation.name, before.config.silo_names
    if after.config.federation.name != name:
        was = "was not set" if name is None else f"was {name!r}"
        problems.append(
            f"federation.name = {after.config.federation.name!r}: stays, since certificates name it; it {was}"
        )
    if after.config.silo_names[: len(names)] != names:
        problems.append(
            f"its silos do not begin with {', '.join(names)}: members stay, in their order, and others follow"
        )
        return problems
    for silo in before.config.silos:
        new = later[silo.name]
        if (new.hub, new.accept_hubs) != (silo.hub, silo.accept_hubs):
            problems.append(f"silo '{silo.name}': hub and accept_hubs stay {silo.hub!r} and {silo.accept_hubs}")
        if (*new.client_names,)[: len(silo.client_names)] != (*silo.client_names,):
            there = ", ".join(silo.client_names)
            problems.append(f"silo '{silo.name}': its clients do not begin with {there}: they stay, and others follow")
    for silo in after.config.silos[len(names) :]:
        if silo.hub is None:
            problems.append(f"silo '{silo.name}': hub is missing; add hub = \"host:port\"")
    if not problems and not newcomers(before, after):
        problems.append("it names no hub and no client that is new")
    return problems


def without_code(keys: Mapping[str, Any], where: str) -> Job:
    """The training that a file describes which others may have written: code that it names is refused."""
    if named := code_in(keys):
        problems = [f"{key} = {name!r}: code is not a part of a job" for key, name in named.items()]
        raise ConfigError(problems, where)
    return Job(check_config(keys, where))


@lru_cache(maxsize=64)
def job_of(offer: Offer) -> Job:
    """The training that an offer describes."""
    where = "the job's shared file"
    try:
        return without_code(parse_toml(offer.shared_file.encode()), where)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([f"not valid TOML: {error}"], where) from None


@lru_cache(maxsize=8)
def together(*offers: Offer) -> Job:
    """The first offer's training, with the parties of the others: of several by which members would join, one will."""
    job = job_of(offers[0])
    for other in map(job_of, offers[1:]):
        silos = {silo.name: silo for silo in job.config.silos}
        for silo in other.config.silos:
            names = (*silos.setdefault(silo.name, silo).client_names, *silo.client_names)
            silos[silo.name] = silos[silo.name].model_copy(update={"clients": [*dict.fromkeys(names)], "client": []})
        job = Job(job.config.model_copy(update={"silos": [*silos.values()]}))
    return job


def misfits(offer: Offer, job: Job) -> list[str]:
    """Why a job can be none of a federation that stands by, whoever its members are."""
    data, epsilon, problems = job.config.data, job.config.exchange.epsilon, paths_outside(job.config)
    if "align" in offer.steps and data.source != "files":
        problems.append(f"data.source = {data.source!r}: only tables have ids to align")
    if offer.steps == ("train",) and data.samples == "all":
        problems.append("data.samples = 'all': only an alignment finds the list of samples; do not leave it out")
    if offer.kind == "audit":
        problems += not_audited(job.config)
    if offer.kind == "predict" and data.samples == "all":
        problems.append("data.samples = 'all': jobs do not predict with such a model yet; give tdcd predict")
    if offer.kind == "predict" and epsilon is not None:
        # No other variant is private: those of one's own are code, which is refused.
        problems.append(f"exchange.epsilon = {epsilon:g}: training sends phi with noise, and predictions without it")
    return problems + _receiver_problems(offer, job)


def _receiver_problems(offer: Offer, job: Job) -> list[str]:
    """What is wrong with who gets predictions."""
    if offer.kind != "predict":
        return ["only predictions are for chosen silos"] * bool(offer.to)
    if not offer.to:
        return ["it does not say who gets the predictions"]
    able = [hub for silo, hub in enumerate(job.hubs) if job.has_labels(silo)]
    unable = [hub for hub in dict.fromkeys(offer.to) if hub not in able]
    return [f"{hub} cannot get predictions: labels are at {', '.join(able)}" for hub in unable]


def _unlike(former: "JobState", job: Job) -> list[str]:
    """Why ids that were common in a former job are not those that a job would find."""
    config, theirs = job.config, former.job.config
    is_like = (config.silo_names, config.data.ids, config.data.samples) == (
        theirs.silo_names,
        theirs.data.ids,
        theirs.data.samples,
    )
    if is_like and "align" in former.offer.steps:
        return []
    return [f"the ids of job {former.name[:12]} say nothing here: its silos, data.ids or data.samples are others"]


@dataclass
class JobState:
    """What parties have stated about a job."""

    offer: Offer
    proposal: SignedEntry
    approvals: dict[str, SignedEntry] = field(default_factory=dict)
    """By hub, the latest."""
    refusals: dict[str, str] = field(default_factory=dict)
    """By party: why."""
    calls: list[Called] = field(default_factory=list)
    started: set[tuple[str, Called]] = field(default_factory=set)
    endings: dict[tuple[str, Called], Ending] = field(default_factory=dict)
    closed: Ending | None = None
    closed_at: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    """How many entries of each chain show that it was called: its proposal, approvals, refusals and calls."""
    name: str = field(init=False)
    """The job's digest."""

    def __post_init__(self) -> None:
        """Work the digest out, once."""
        self.name = self.offer.job

    @property
    def is_over(self) -> bool:
        """Whether nothing more is computed for it."""
        return self.closed is not None or bool(self.refusals)

    @property
    def is_finished_in_time(self) -> bool:
        """Whether it was closed as finished before it expired; what is called is checked by every party instead."""
        return self.closed == "finished" and self.closed_at <= self.offer.expires + SKEW_S

    @property
    def call(self) -> Called | None:
        """What all parties are called to, if it is not over."""
        return self.calls[-1] if self.calls and not self.is_over else None

    @property
    def job(self) -> Job:
        """The training; ConfigError if it is none."""
        return job_of(self.offer)


@dataclass
class Jobs:
    """All jobs of a federation, as far as the log says."""

    members: dict[str | None, Job]
    """The parties, and where they are, of the shared file that the log began with; and by each job by which others
    joined, from then on."""
    log: Log
    states: dict[str, JobState] = field(default_factory=dict)
    unentitled: list[tuple[str, str]] = field(default_factory=list)
    """Who proposed something without the right to, and why it is no job."""
    _taken: dict[str, int] = field(default_factory=dict)
    """How many entries of each chain were read."""
    _early: dict[str, list[SignedEntry]] = field(default_factory=dict)
    """By job whose proposal is not here yet: the entries about it."""

    @classmethod
    def of(cls, founding: Job, log: Log) -> "Jobs":
        """Read the chains; what a party says without the right to is nothing.

        Args:
            founding: the parties when the log began.
            log: takes entries of all who joined, and of those whom all organisations let join.
        """
        return cls({None: founding}, log).read_on()

    def read_on(self) -> "Jobs":
        """The jobs with what chains say that was not read yet: these, or others if members have joined."""
        jobs = self
        jobs._read()
        while jobs._grow():
            # What former entries mean depends on who the members are.
            jobs = Jobs(jobs.members, jobs.log)
            jobs._read()
        return jobs

    @property
    def standing(self) -> Job:
        """The parties now."""
        return self.members[self.joined]

    @property
    def joined(self) -> str | None:
        """The last job by which members joined."""
        return next(reversed(self.members))

    @property
    def leader(self) -> str:
        """The hub that keeps the queue."""
        return self.standing.hubs[0]

    def members_of(self, state: JobState) -> Job:
        """Who takes part in a job: the members that its shared file names."""
        try:
            return state.job
        except (ConfigError, ModuleNotFoundError):
            # It is refused, and waits for no party.
            return self.standing

    def newcomers(self, offer: Offer) -> list[str]:
        """Who joins by a job."""
        before = self.members.get(offer.of) if offer.kind == "join" else None
        try:
            return [] if before is None else newcomers(before, job_of(offer))
        except (ConfigError, ModuleNotFoundError):
            # It is refused, and no party joins.
            return []

    def meeting(self, now: float) -> Job:
        """The parties that have links: those of now, and those whom all organisations that are there let join."""
        let_in = []
        for state in self.states.values():
            if not self._is_let_in(state) or not self._may_join(state) or now > state.offer.expires + SKEW_S:
                continue
            if state.closed is not None or not any(self.badly_approved(hub, state) for hub in self.standing.hubs):
                let_in.append(state.offer)
        return together(*let_in) if let_in else self.standing

    def named(self, prefix: str) -> JobState:
        """The job whose name begins so."""
        states = [state for name, state in self.states.items() if name.startswith(prefix)]
        if len(states) == 1 and prefix:
            return states[0]
        if states:
            raise ValueError(f"{prefix!r} is the beginning of {len(states)} jobs: give more of its name")
        raise ValueError(f"there is no job {prefix!r}; tdcd jobs lists them")

    def problems(self, state: JobState, now: float) -> list[str]:
        """Why a job may not begin now, a sentence each; every party asks this itself."""
        problems = self.offer_problems(state.offer)
        if now > state.offer.expires + SKEW_S:
            problems.append(f"it had to begin by {when(state.offer.expires)}")
        problems += [f"{party} refused: {one_line(why)}" for party, why in state.refusals.items()]
        problems += self._badly_signed("its proposal", state.proposal)
        for hub in self.members_of(state).hubs:
            signed = state.approvals.get(hub)
            if signed is None:
                problems.append(f"{hub} has not approved")
                continue
            statement = signed.entry.statement
            assert isinstance(statement, Approved)
            if now > statement.expires + SKEW_S:
                problems.append(f"the approval of {hub} expired on {when(statement.expires)}")
            problems += self.badly_approved(hub, state)
        return problems

    def badly_approved(self, hub: str, state: JobState) -> list[str]:
        """What is wrong with the certificate of a hub that has approved a job."""
        signed = state.approvals.get(hub)
        return [f"{hub} has not approved"] if signed is None else self._badly_signed(f"the approval of {hub}", signed)

    def unfit(self, offer: Offer) -> list[str]:
        """Why a job cannot be one of this federation."""
        try:
            job = job_of(offer)
        except (ConfigError, ModuleNotFoundError) as error:
            return error.problems if isinstance(error, ConfigError) else [str(error)]
        if offer.kind == "join":
            if offer.of == self.joined:
                return join_problems(self.standing, job)
            return ["the members have changed since it was proposed"] * (self._awaited_before(offer) is None)
        if not self._is_of_members(job) and self._awaited_for(job) is None:
            return ["its silos, hubs, clients or accept_hubs are not those of this federation"]
        problems, former = misfits(offer, job), self.former(offer)
        if offer.proposer not in job.hubs:
            problems.append(f"{offer.proposer} has no part in it: its shared file does not name that silo")
        is_about = offer.kind in ("predict", "delete")
        if is_about != (offer.of is not None) and (is_about or "align" not in offer.steps):
            problems.append("a job that predicts or deletes is about a former one, and no other is that aligns nothing")
        if former is not None and "align" in offer.steps:
            problems += _unlike(former, job)
        elif former is not None and offer.shared_file != former.offer.shared_file:
            problems.append(f"its shared file is not that of job {former.name[:12]}")
        if (start := job.config.train.start) is not None and not JOB_NAME.fullmatch(start):
            problems.append(f"train.start = {start!r}: in a job it is the whole name of a former job")
        return problems

    def started_from(self, offer: Offer) -> JobState | None:
        """The job from whose model a training starts, if it is known here."""
        start = job_of(offer).config.train.start
        return None if start is None else self.states.get(start)

    def former(self, offer: Offer) -> JobState | None:
        """The job that a job is about, if it is known here."""
        return None if offer.of is None else self.states.get(offer.of)

    def offer_problems(self, offer: Offer) -> list[str]:
        """Why a job can be neither proposed nor approved now."""
        return self.unfit(offer) or self.not_yet(offer)

    def not_yet(self, offer: Offer) -> list[str]:
        """Why a job has to wait for those that it is about; what others have signed about them may still come."""
        job = job_of(offer)
        awaited = self._awaited_before(offer) if offer.kind == "join" else self._awaited_for(job)
        if awaited is not None:
            return [f"job {awaited.name[:12]}, by which its members join, has not finished"]
        if offer.kind == "join":
            return []
        start = job.config.train.start if offer.kind == "train" else None
        names = dict.fromkeys(name for name in (start, offer.of) if name is not None)
        return [problem for name in names for problem in self._not_yet_about(name, offer)]

    def _not_yet_about(self, name: str, offer: Offer) -> list[str]:
        former = self.states.get(name)
        if former is None or former.offer.kind != "train":
            return [f"there is no training {name[:12]}"]
        if offer.kind == "delete":
            return [] if former.is_over else [f"job {former.name[:12]} is not over"]
        if former.closed != "finished":
            return [f"job {former.name[:12]} has not finished"]
        deletion = self.deletion_of(former)
        return [] if deletion is None else [f"job {former.name[:12]} was deleted by job {deletion.name[:12]}"]

    def deletion_of(self, former: JobState) -> JobState | None:
        """The job that deletes the folder of another one, once it was called."""
        others = (state for state in self.states.values() if state.offer.of == former.name)
        return next((state for state in others if state.offer.kind == "delete" and state.calls), None)

    def next_statement(self, now: float) -> Called | Closed | None:
        """What the hub that keeps the queue has to say."""
        running = [state for state in self.states.values() if state.call is not None]
        if running:
            return self._after(running[0])
        for state in self.states.values():
            if state.is_over or not {*self.members_of(state).hubs} <= {*state.approvals}:
                continue
            if not self.problems(state, now):
                is_join = state.offer.kind == "join"
                return Closed(state.name, "finished") if is_join else Called(state.name, state.offer.steps[0], 1)
        return None

    def in_words(self, state: JobState, now: float) -> str:
        """How a job stands."""
        if (deletion := self.deletion_of(state)) is not None:
            return f"{state.closed or 'refused'}; deleted by job {deletion.name[:12]}"
        if state.closed is not None:
            return state.closed
        if state.refusals:
            return "; ".join(f"refused by {party}: {one_line(why)}" for party, why in state.refusals.items())
        if state.call is not None:
            call = state.call
            left = [party for party in parties_of(self.members_of(state)) if (party, call) not in state.endings]
            return f"{call.step}, attempt {call.attempt}, waits for {', '.join(left)}"
        if problems := self.problems(state, now):
            return one_line("; ".join(problems))
        before = next((other.name for other in self.states.values() if other.call is not None), None)
        return f"approved; waits for job {before[:12]}" if before else f"approved; waits for {self.leader} to call"

    def waits_for(self, state: JobState, party: str) -> WaitsFor:
        """What a job waits for that is not over, as a party sees it."""
        if state.call is not None:
            return "running"
        lacking = {*self.members_of(state).hubs} - {*state.approvals}
        if party in lacking:
            return "person"
        return "others" if lacking else "queue"

    def history(self, state: JobState) -> str:
        """What a job was for, who approved it, and how each of its steps ended."""
        offer, words = state.offer, []
        about = "" if offer.of is None else f" about job {offer.of[:12]}"
        if offer.kind == "join":
            about = f" of {', '.join(self.newcomers(offer)) or 'none'}"
        receivers = f", predictions for {', '.join(offer.to)}" if offer.to else ""
        words.append(f"{', '.join(offer.steps)}{about}{receivers}, proposed by {offer.proposer}")
        words.append(f"approved by {', '.join(sorted(state.approvals)) or 'none'}")
        words += [f"refused by {', '.join(sorted(state.refusals))}"] * bool(state.refusals)
        for call in state.calls:
            endings = [ending for (_, ended), ending in state.endings.items() if ended == call]
            counts = ", ".join(f"{endings.count(ending)} {ending}" for ending in dict.fromkeys(endings))
            words.append(f"{call.step}, attempt {call.attempt}: {counts or 'not ended'}")
        return "; ".join([*words, state.closed or "not closed"])

    def _after(self, state: JobState) -> Called | Closed | None:
        """What follows when all have ended a step."""
        call = state.calls[-1]
        endings = {state.endings.get((party, call)) for party in parties_of(self.members_of(state))}
        worst: Sequence[Ending] = ("refused", "diverged")
        for ending in worst:
            if ending in endings:
                return Closed(state.name, ending)
        if None in endings:
            return None
        if "lost" in endings:
            again = Called(state.name, call.step, call.attempt + 1)
            return again if call.attempt < MOST_ATTEMPTS else Closed(state.name, "lost")
        after = state.offer.steps[state.offer.steps.index(call.step) + 1 :]
        return Called(state.name, after[0], 1) if after else Closed(state.name, "finished")

    def _badly_signed(self, what: str, signed: SignedEntry) -> list[str]:
        try:
            signed_at = datetime.fromtimestamp(signed.entry.time, UTC)
            self.log.authority.check(signed.entry.party, signed.entry.signed, signed, what, signed_at)
        except ValueError as error:
            return [str(error)]
        return []

    def _read(self) -> None:
        """Take what the chains say that was not read yet."""
        chains = self.log.chains.items()
        new = [signed for party, chain in chains for signed in chain[self._taken.get(party, 0) :]]
        self._taken = self.log.counts
        for signed in new:
            if isinstance(signed.entry.statement, Proposed):
                self._propose(signed)
        for signed in new:
            self._apply(signed)

    def _grow(self) -> bool:
        """Take the next members that have joined, and entries of those who may; whether there were any."""
        for state in self.states.values():
            if self._is_let_in(state):
                if self.log.admit(parties_of(state.job)):
                    return True
                if state.is_finished_in_time and {*state.job.hubs} <= {*state.approvals}:
                    self.members[state.name] = state.job
                    return True
        return False

    def _is_let_in(self, state: JobState) -> bool:
        """Whether all organisations that are there have approved that members join."""
        if state.offer.kind != "join" or not {*self.standing.hubs} <= {*state.approvals}:
            return False
        return state.offer.of == self.joined and not self.unfit(state.offer)

    def _may_join(self, state: JobState) -> bool:
        """Whether members may still join by a job; of one that has finished, approvals may not be here yet."""
        is_open = state.is_finished_in_time or not state.is_over
        return state.offer.kind == "join" and state.name not in self.members and is_open

    def _awaited_before(self, offer: Offer) -> JobState | None:
        """The job by which members are to join before those of this one do."""
        before = self.states.get(offer.of or "")
        return before if before is not None and self._may_join(before) else None

    def _is_of_members(self, job: Job) -> bool:
        """Whether it names the members of now, or of before others joined."""
        theirs = membership(job.config, "")
        return any(membership(each.config, "") == theirs for each in self.members.values())

    def _awaited_for(self, job: Job) -> JobState | None:
        """The job by which members join that it names, if they are still to join."""
        if self._is_of_members(job):
            return None
        theirs, open_joins = membership(job.config, ""), filter(self._may_join, self.states.values())
        return next((state for state in open_joins if self._names(state, theirs)), None)

    def _names(self, state: JobState, members: str) -> bool:
        """Whether a job names these members."""
        return membership(self.members_of(state).config, "") == members

    def _propose(self, signed: SignedEntry) -> None:
        statement = signed.entry.statement
        assert isinstance(statement, Proposed)
        offer = statement.offer
        party, problem = signed.entry.party, None
        if party not in self.standing.hubs:
            problem = "only hubs propose jobs"
        elif offer.proposer != party:
            problem = f"it is in the name of {offer.proposer}"
        elif offer.federation != self.log.federation:
            problem = "it is of another federation"
        elif offer.steps not in STEPS:
            problem = f"a job has no such steps: {', '.join(offer.steps)}"
        if problem is not None:
            self.unentitled.append((party, f"its proposal {offer.job[:12]}: {problem}"))
            return
        state = JobState(offer, signed)
        state.entries[party] = signed.entry.number + 1
        if state.name not in self.states:
            last = next(reversed(self.states.values()), None)
            self.states[state.name] = state
            if last is not None and _order(signed) < _order(last.proposal):
                self.states = dict(sorted(self.states.items(), key=lambda item: _order(item[1].proposal)))
            for entry in self._early.pop(state.name, []):
                self._apply(entry)

    def _apply(self, signed: SignedEntry) -> None:
        party, statement = signed.entry.party, signed.entry.statement
        if isinstance(statement, Proposed | Rejected):
            return
        state = self.states.get(statement.job)
        if state is None:
            self._early.setdefault(statement.job, []).append(signed)
            return
        if isinstance(statement, Approved | Called | Refused):
            state.entries[party] = signed.entry.number + 1
        if isinstance(statement, Approved):
            # Which hubs have to approve is asked when it matters: that takes the job's file.
            if party.startswith("hub.") and statement.expires >= signed.entry.time:
                state.approvals[party] = signed
        elif isinstance(statement, Refused):
            # Members that have no part in it have no say in it either.
            if party in parties_of(self.members_of(state)):
                state.refusals.setdefault(party, statement.because)
        elif isinstance(statement, Called | Closed):
            if party == self.leader:
                self._lead(state, statement, signed.entry.time)
        elif isinstance(statement, Started):
            state.started.add((party, Called(statement.job, statement.step, statement.attempt)))
        elif isinstance(statement, StepEnded):
            call = Called(statement.job, statement.step, statement.attempt)
            state.endings.setdefault((party, call), statement.ending)
        else:
            assert_never(statement)

    def _lead(self, state: JobState, statement: Called | Closed, said_at: int) -> None:
        if isinstance(statement, Closed):
            if state.closed is None:
                state.closed, state.closed_at = statement.ending, said_at
        elif state.closed is None and statement.step in state.offer.steps and statement.step != "join":
            state.calls.append(statement)


def _order(proposal: SignedEntry) -> tuple[int, str]:
    """Jobs are in the order in which they were proposed."""
    return proposal.entry.time, proposal.entry.digest


def have_all(counts: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether a party that has so many entries of each chain has all that are wanted."""
    return all(counts.get(party, 0) >= count for party, count in wanted.items())
