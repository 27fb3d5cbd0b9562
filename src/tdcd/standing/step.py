"""One party's part of one step of a job, as a process of its own: what ``tdcd align``, ``hub`` and ``client`` do.

The party's service has closed its links, and this process opens them. It ends when its service does. It makes way when
a party that it waits for stands by: that one has to be asked by the service what has become of the step.
"""

import json
import math
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from tdcd.core.words import one_line
from tdcd.records.files import write_durably
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.process.align import align_as_client, align_as_hub
from tdcd.runtime.process.log import event, open_log
from tdcd.runtime.process.party import PartySection, run_client, run_hub
from tdcd.runtime.storage.status import STATUS
from tdcd.runtime.transport.processes import DOING
from tdcd.standing.home import IDS, Home
from tdcd.standing.jobs import JobState

MADE_WAY, REFUSED = 75, 2
EXITS = {"finished": 0, "diverged": 3, "refused": REFUSED, "interrupted": MADE_WAY}
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
                facts = json.loads(status.read_text())
                self.note("" if facts["status"] else " ".join(facts.get("unfit", {}).values()))
        return self.is_due()


class AlignWaiting:
    """Watches an alignment."""

    def __init__(self, making_way: MakingWay) -> None:
        self._making_way = making_way

    def show(self, missing: list[str]) -> None:
        """See :class:`~tdcd.runtime.process.dialogue.Waiting`."""
        self._making_way.note(" ".join(missing))

    def progress(self, done: float) -> None:
        """See :class:`~tdcd.runtime.process.dialogue.Waiting`."""

    def should_stop(self) -> bool:
        """See :class:`~tdcd.runtime.process.dialogue.Waiting`."""
        return self._making_way.is_due()


def run_step(home: Home, state: JobState, step: str, patience_s: float) -> RunOutcome:
    """Take the party's part; a job that was not approved by all is refused here, too."""
    jobs, now = home.jobs(), time.time()
    state = jobs.named(state.name)
    # What began in time may take longer than approvals are valid.
    if problems := jobs.problems(state, min(now, state.offer.expires)):
        return RunOutcome("refused", "; ".join(problems))
    folder, making_way = home.job_folder(state), MakingWay(patience_s)
    job, ids = home.job_of(state), folder / IDS
    own = PartySection(
        **home.own.model_dump(include={"certs", "listen", "metrics", "data", "labels", "label_key"}),
        out=str(folder / RUN),
        ids=str(ids) if "align" in state.offer.steps else home.own.ids,
    )
    silo, client = home.own.silo, home.own.client
    if step == "train":
        status = folder / RUN / STATUS
        if client is None:
            return run_hub(job, silo, own, lambda: making_way.is_due_by(status))
        return run_client(job, silo, client, own, lambda: making_way.is_due_by(status))
    waiting = AlignWaiting(making_way)
    if client is None:
        aligned = align_as_hub(job, silo, [], own, waiting)
    else:
        aligned = align_as_client(job, silo, client, [Path(own.data or "")], own, waiting)
    if aligned.outcome.status == "finished":
        fewest = home.policy.rows if home.policy is not None else 0
        if home.is_hub and len(aligned.common) < fewest:
            return RunOutcome("refused", f"all silos have {len(aligned.common)} samples; policy: rows = {fewest}")
        write_durably(ids, "".join(f"{sample}\n" for sample in aligned.common).encode())
    return aligned.outcome


def _end_with_service() -> None:
    """Wait for the end of the standard input, which the service holds open; then end as by a kill."""
    while os.read(0, 1):
        pass
    os._exit(EXITS["interrupted"])


def main(path: str, name: str, step: str, patience_s: str) -> int:
    """Run a step; the exit status says how it ended."""
    Thread(target=_end_with_service, daemon=True).start()
    home = Home(Path(path))
    open_log(home.party)
    try:
        outcome = run_step(home, home.jobs().named(name), step, float(patience_s))
    except (ValueError, OSError) as error:
        outcome = RunOutcome("refused", str(error))
    event("step over", job=name[:12], step=step, outcome=outcome.status, why=one_line(outcome.reason))
    return EXITS[outcome.status]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
