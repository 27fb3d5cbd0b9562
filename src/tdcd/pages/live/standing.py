"""How a run stands, in a word and a sentence."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tdcd.pages.live.parties import late_in
from tdcd.records.history import Record
from tdcd.records.patience import Best, Stopping

QUIET_S, QUIET_GAPS = 20.0, 10
"""A simulation is quiet after so many seconds without a line, if that is also many times as long as usual."""
MOST_NAMES = 5

State = Literal[
    "running", "waiting", "finished", "diverged", "stopped", "refused", "quiet", "reading", "empty", "gone", "damaged"
]


class Standing(NamedTuple):
    """A word for the state, and what people should know about it."""

    state: State
    words: str = ""


def of_simulation(
    resume: str,
    latest: Record,
    ending: Stopping,
    best: Best | None,
    verdict: str,
    written: float,
    reported: float,
    gap: float,
) -> Standing:
    """How a simulation stands, which says nothing of itself but lines of its history.

    Args:
        resume: the command that continues it.
        verdict: on the model that stays if this is the end, see :mod:`tdcd.records.verdict`.
        written: when the last line was; ``reported``: when the report was, 0 if there is none.
        gap: the seconds between two lines, as far as they are known.
    """
    if latest.diverged:
        return Standing("diverged", f"The loss stopped being a finite number by round {latest.round}.")
    if latest.round == ending.rounds or ending.is_spent(best):
        return finished(ending, best, latest.round, verdict)
    # A run that is asked to stop still writes its report.
    if reported >= written:
        return Standing("stopped", f"Interrupted in round {latest.round}. To continue: {resume}")
    silent = time.time() - written
    if silent > max(QUIET_S, QUIET_GAPS * gap):
        words = f"No line for {silent:.0f} s: a round takes long, or the process is gone. Then: {resume}"
        return Standing("quiet", words)
    return Standing("running")


def of_hubs(
    statuses: Sequence[Mapping[str, Any]], ending: Stopping, best: Best | None, last: int, verdict: str
) -> Standing:
    """The worst of what the hubs of a run say."""
    if verdict and all(status["status"] == "diverged" for status in statuses):
        return finished(ending, best, last, verdict)
    for status in statuses:
        if status["status"] not in (None, "finished"):
            state: State = "diverged" if status["status"] == "diverged" else "refused"
            return Standing(state, f"{status['party']}: {status['last_error'] or status['status']}")
    for status in statuses:
        if status["status"] is None and not status["alive"]:
            words = f"The process of {status['party']} is gone: give the same command again, and it continues."
            return Standing("stopped", words)
    if all(status["status"] == "finished" for status in statuses):
        return finished(ending, best, last, "")
    late = [
        f"{party} ({seconds:.0f} s{'' if connected else ', not connected'})"
        for party, (seconds, connected) in late_in({str(status["party"]): status for status in statuses}).items()
    ]
    if late:
        more = f" and {len(late) - MOST_NAMES} more" * (len(late) > MOST_NAMES)
        return Standing("waiting", f"Waits for {', '.join(late[:MOST_NAMES])}{more}.")
    return Standing("running")


def finished(ending: Stopping, best: Best | None, last: int, verdict: str) -> Standing:
    """A run that has come to its end, with a model that is to be trusted or not."""
    words = "; ".join(filter(None, [verdict, ending.in_words(best, last)]))
    return Standing("diverged" if verdict else "finished", f"{words[:1].upper()}{words[1:]}." if words else "")
