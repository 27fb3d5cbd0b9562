"""One party's part of one step of a job, as a copy of its service: what ``tdcd align``, ``hub``, ``client`` and
``predict`` do.

The party's service has closed its links, and this process opens them. It ends when its service does. It makes way when
a party that it waits for stands by: that one has to be asked by the service what has become of the step.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tdcd.core.execution import Interrupted
from tdcd.core.words import one_line
from tdcd.records.files import PRIVATE, write_durably
from tdcd.runtime.job import Job
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.process.align import align_as_client, align_as_hub
from tdcd.runtime.process.dialogue import converse
from tdcd.runtime.process.log import event, open_log
from tdcd.runtime.process.party import PartySection, open_transport, run_client, run_hub
from tdcd.runtime.storage.failpoints import arm_as_asked
from tdcd.runtime.storage.status import STATUS, write_status
from tdcd.runtime.transport.processes import DOING
from tdcd.standing.children import end_with_service, lift_memory_limit, limit_cores, limit_memory
from tdcd.standing.home import Home
from tdcd.standing.jobs import Jobs, JobState

MADE_WAY, REFUSED = 75, 2
EXITS = {"finished": 0, "diverged": 3, "refused": REFUSED, "interrupted": MADE_WAY}
LEFT = {"finished": 76, "diverged": 77}
"""Exit statuses of a party whose run is over, and that has left since all stand by that may still need it."""
IDS, SAMPLES, PREDICTIONS, PHI = "ids.txt", "samples.json", "predictions.csv", "phi.safetensors"
OF_MEMORY = ("allocate memory", "out of memory", "Out of memory", "RESOURCE_EXHAUSTED", "can't start new thread")
OF_JOBS = {"out", "ids", "samples", "start", "cold", "metrics"}
"""Keys of a party's own file that jobs set, or that are the service's."""
RUN = "run"
"""Of a hub: its run folder. Of a client: the folder for its status."""
LOOK_S = 1.0


class MakingWay:
    """Notices parties that stand by for longer than they need to begin the step themselves."""

    def __init__(self, patience_s: float) -> None:
        self._patience, self._since, self._looked_at = patience_s, math.inf, -math.inf
        self._is_standing = False

    def note(self, words: str) -> None:
        """Take what is known of parties that have no link with this process."""
        is_standing = DOING["stand"] in words
        if is_standing and not self._is_standing:
            self._since = time.monotonic()
        self._is_standing = is_standing

    def is_due(self) -> bool:
        """Whether to make way."""
        return self._is_standing and time.monotonic() - self._since > self._patience

    def is_due_by(self, status: Path) -> bool:
        """The same, by the file that the party writes of itself."""
        if time.monotonic() - self._looked_at > LOOK_S:
            self._looked_at = time.monotonic()
            with suppress(OSError, ValueError, AttributeError):
                self.note(_of_waiting(json.loads(status.read_text())))
        return self.is_due()


def _of_waiting(facts: Mapping[str, Any]) -> str:
    """What is known of parties without a link that a party in a training waits for.

    One whose run is over leaves when all stand by that it still waits for: they have ended, or come again.
    """
    unfit: Mapping[str, str] = facts.get("unfit", {})
    if not facts["status"]:
        return " ".join(unfit.values())
    awaited = [unfit.get(party, "") for party in facts.get("missing_s", {})]
    return " ".join(awaited) if all(DOING["stand"] in words for words in awaited) else ""


class StepWaiting:
    """Watches an alignment or a prediction, and says in a file for whom it waits."""

    def __init__(self, making_way: MakingWay, partners: Sequence[str], folder: Path) -> None:
        self._making_way, self._partners, self._folder = making_way, partners, folder
        self._since: dict[str, float] = {}
        self._shown_at = -math.inf

    def show(self, missing: list[str]) -> None:
        """See :class:`~tdcd.runtime.process.dialogue.Waiting`."""
        self._making_way.note(" ".join(missing))
        now = time.monotonic()
        # A party that does something else is in a sentence.
        awaited = [party for party in self._partners if any(party in words.split() for words in missing)]
        self._since = {party: self._since.get(party, now) for party in awaited}
        if now - self._shown_at > LOOK_S:
            self._shown_at = now
            write_status(self._folder, {"missing_s": {party: now - since for party, since in self._since.items()}})

    def progress(self, done: float) -> None:
        """See :class:`~tdcd.runtime.process.dialogue.Waiting`."""

    def should_stop(self) -> bool:
        """See :class:`~tdcd.runtime.process.dialogue.Waiting`."""
        return self._making_way.is_due()


def run_step(home: Home, state: JobState, step: str, making_way: MakingWay) -> RunOutcome:
    """Take the party's part; a job that was not approved by all is refused here, too."""
    jobs, now = home.jobs(), time.time()
    state = jobs.named(state.name)
    # What began in time may take longer than approvals are valid.
    if problems := jobs.problems(state, min(now, state.offer.expires)):
        return RunOutcome("refused", "; ".join(problems))
    if step == "delete":
        former = jobs.former(state.offer)
        assert former is not None
        remove(home.job_folder(former))
        return RunOutcome("finished")
    job = home.job_of(state)
    part = JobPart(home, state, job, jobs.started_from(state.offer))
    if step == "train":
        return part.train(lambda: making_way.is_due_by(part.folder / RUN / STATUS))
    waiting = StepWaiting(making_way, home.partners_in(job), part.folder)
    if step == "align":
        return part.align(waiting, jobs.former(state.offer))
    return part.audit(waiting) if step == "audit" else part.predict(jobs, waiting)


class JobPart:
    """A party's part of a job."""

    def __init__(self, home: Home, state: JobState, job: Job, started_from: JobState | None = None) -> None:
        """Take the party's files, those of the job, and the former job from whose model it starts."""
        self._home, self._state, self._job = home, state, job
        self.folder = home.job_folder(state)
        is_aligned, own = "align" in state.offer.steps, home.own
        is_former = started_from is not None and own.silo in started_from.job.config.silo_names
        self._own = PartySection(
            **own.model_dump(include=PartySection.model_fields.keys() - OF_JOBS),
            start=str(home.job_folder(started_from) / RUN) if started_from and is_former and home.is_hub else None,
            # A silo that has joined since has no former block.
            cold=home.is_hub and started_from is not None and not is_former,
            out=str(self.folder / RUN),
            ids=str(self.folder / IDS) if is_aligned else own.ids,
            samples=str(self.folder / SAMPLES) if is_aligned and home.is_hub and job.may_lack_samples else None,
        )

    def align(self, waiting: StepWaiting, former: JobState | None = None) -> RunOutcome:
        """Find the ids to train on; those that a former job has found are not compared again."""
        home, own, file = self._home, self._own, SAMPLES if self._job.may_lack_samples else IDS
        if home.own.client is None:
            known = None if former is None else home.job_folder(former) / file
            aligned = align_as_hub(self._job, home.own.silo, [], own, waiting, known=known)
        else:
            tables = [Path(own.data or "")]
            aligned = align_as_client(self._job, home.own.silo, home.own.client, tables, own, waiting)
        if aligned.outcome.status != "finished":
            return aligned.outcome
        fewest, count = home.policy.rows if home.policy is not None else 0, len(aligned.common)
        if count < fewest:
            whose = "all silos have" if home.is_hub else "this client has in common with all silos"
            return RunOutcome("refused", f"{whose} {count} samples; policy: rows = {fewest}")
        if aligned.listed is not None:
            aligned.listed.write(self.folder / SAMPLES)
        write_durably(self.folder / IDS, "".join(f"{sample}\n" for sample in aligned.common).encode())
        return aligned.outcome

    def train(self, should_stop: Callable[[], bool]) -> RunOutcome:
        """Train."""
        silo, client = self._home.own.silo, self._home.own.client
        if client is None:
            return run_hub(self._job, silo, self._own, should_stop)
        return run_client(self._job, silo, client, self._own, should_stop)

    def audit(self, waiting: StepWaiting) -> RunOutcome:
        """Attack the client's own rows, and give figures to those who may have them."""
        # Imported where it is asked for: other steps need none of it.
        from tdcd.standing.audit import AuditClient, AuditHub, figures_of, write_report  # noqa: PLC0415

        home, own, job = self._home, self._home.own, self._job
        silo, folder, proposer = job.silo_index(own.silo), self.folder / "audit", self._state.offer.proposer
        party: AuditClient | AuditHub
        if own.client is None:
            party = AuditHub(job, silo, proposer)
        else:
            if own.labels is not None:
                return RunOutcome("refused", f"labels = {own.labels!r}: an audit takes labels from data")
            fewest, ids = home.policy.rows if home.policy is not None else 0, None if own.ids is None else Path(own.ids)
            party = AuditClient(
                job, silo, home.party, figures_of(job, own.silo, Path(own.data or ""), ids, fewest, folder)
            )
        with open_transport(job, party.name, [*party.partners], self._own, "audit") as transport:
            outcome = converse(party, transport, waiting.show, waiting.should_stop)
        if isinstance(party, AuditHub) and outcome.status == "finished" and home.party == proposer:
            folder.mkdir(exist_ok=True)
            write_report(job, party.of_silos, folder)
        return outcome

    def predict(self, jobs: Jobs, waiting: StepWaiting) -> RunOutcome:
        """Score the clients' new rows by the model of the former job; who gets predictions writes them."""
        # Imported where it is asked for: other steps need none of it.
        from tdcd.prediction.predictions import write_sums  # noqa: PLC0415
        from tdcd.runtime.process.predict import predict_with_peers, score_as_client  # noqa: PLC0415
        from tdcd.serving.gathered import write_gathered  # noqa: PLC0415

        home, former = self._home, jobs.former(self._state.offer)
        silo, client, receivers = home.own.silo, home.own.client, self._state.offer.to
        assert former is not None
        try:
            if client is not None:
                rows = Path(home.own.new or "")
                score_as_client(self._job, silo, client, rows, self._own, waiting=waiting)
                return RunOutcome("finished")
            run = home.job_folder(former) / RUN
            model, parts = predict_with_peers(self._job, silo, run, None, self._own, waiting=waiting, to=receivers)
        except Interrupted as stopped:
            return RunOutcome("interrupted", str(stopped))
        if home.party in receivers:
            write_sums(self.folder / PREDICTIONS, model, parts, common=True, in_order_of=silo, mode=PRIVATE)
            if home.own.serve is not None:
                is_masked = self._job.config.exchange.protect == "mask"
                write_gathered(
                    self.folder / PHI, {name: parts[name] for name in model.silos}, silo if is_masked else None
                )
        return RunOutcome("finished")


def remove(folder: Path) -> None:
    """Delete a folder with all that is in it; what is gone already, before a crash, is no mistake."""
    if folder.exists():
        shutil.rmtree(folder)


def is_of_memory(error: Exception) -> bool:
    """Whether the system, a library that is loaded or a compiled program says that there is no more memory.

    >>> [is_of_memory(error) for error in (MemoryError(), OSError(12, "Cannot allocate memory"), ValueError("no"))]
    [True, True, False]
    """
    return isinstance(error, MemoryError) or any(words in str(error) for words in OF_MEMORY)


def too_little_memory(step: str, memory: float) -> str:
    """Why a party ends a job."""
    return f"memory = {memory:g}: its part of the step '{step}' takes more GB than that"


def main(home: Home, name: str, step: str, patience_s: str) -> int:
    """Run a step in a copy of the service, whose files are ``home``; the exit status says how it ended."""
    # As by a kill.
    end_with_service(lambda: os._exit(EXITS["interrupted"]))
    # Its own file may be another one by now.
    home = Home(home.path, home.log)
    open_log(home.party)
    limit_memory(home.own.memory)
    limit_cores(home.own.cores, home.party)
    arm_as_asked()
    making_way = MakingWay(float(patience_s))
    try:
        outcome = run_step(home, home.jobs().named(name), step, making_way)
    except Exception as error:
        if home.own.memory is not None and is_of_memory(error):
            lift_memory_limit()
            outcome = RunOutcome("refused", too_little_memory(step, home.own.memory))
            home.refuse(home.jobs().named(name), outcome.reason)
        elif isinstance(error, ValueError | OSError | ModuleNotFoundError):
            outcome = RunOutcome("refused", str(error))
        else:
            raise
    event("step over", job=name[:12], step=step, outcome=outcome.status, why=one_line(outcome.reason))
    has_left = step == "train" and outcome.status in LEFT and making_way.is_due()
    return (LEFT if has_left else EXITS)[outcome.status]
