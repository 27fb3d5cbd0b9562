"""What a hub continues from when it is started again: all that its run folder holds is checked before it is used.

A checkpoint has a mark of the lines of ``history.jsonl`` and ``absences.jsonl`` that led to it, so that a line that is
missing or was changed is found. What cannot be put right ends with a sentence that says what can still be done.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tdcd.records.files import Mark, marks_of, parse_json, read_plain
from tdcd.records.history import Record
from tdcd.runtime.job import WAY_ON
from tdcd.runtime.machine.instructions import Absence, HubState
from tdcd.runtime.storage.checkpoint import Checkpoints

COPY_HISTORY = "Copy history.jsonl from another hub's run folder, where it is the same but for the seconds; or else:"
SHUTDOWN = "shutdown.tdcd"
ENDED = "The run has ended, and parties that do not know it yet wait"
RESTORE = "restore the run folder from a backup and give the same command again"


def way_on(folder: Path) -> str:
    """What can still be done for a hub that cannot continue from its run folder, and who waits for it."""
    return f"{ENDED}: {RESTORE}" if (folder / SHUTDOWN).exists() else WAY_ON


def about_text(about: Mapping[str, Any]) -> str:
    """The content of ``hub.json``, with a digest of itself."""
    return json.dumps({**about, "digest": _digest(about)}, indent=1) + "\n"


def read_about(path: Path) -> dict[str, Any]:
    """What :func:`about_text` wrote; refuses a file that was changed since."""
    try:
        about = parse_json(read_plain(path))
        if not isinstance(about, dict) or about.pop("digest", None) != _digest(about):
            raise ValueError("its content does not match its digest")
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}. {way_on(path.parent)}") from None
    return about


def is_over(about: Mapping[str, Any]) -> bool:
    """Whether the run of a hub has ended, and everybody knows."""
    return about["status"] is not None and bool(about.get("everybody_knows"))


def holds_whole_run(folder: Path) -> bool:
    """Whether a hub that is started with this folder leaves at once, since its run is over."""
    path = folder / "hub.json"
    try:
        return path.exists() and is_over(read_about(path))
    except ValueError:
        return False  # The hub says what is wrong with it.


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def readable(lines: Sequence[str]) -> list[Record]:
    """The records of a history up to the first line that is none."""
    records = []
    for line in lines:
        try:
            record = Record.from_json(line)
            if not math.isfinite(record.seconds) or type(record.round) is not int:
                break
            record.to_json()
        except (ValueError, TypeError, KeyError, AttributeError):
            break
        records.append(record)
    return records


def check_ended(path: Path, about: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Refuse a run that has ended and whose history is not what it was then."""
    marks, mark = _marks(readable(lines)), Mark.read(about.get("history"))
    difference = mark.difference(marks) or ("has more lines than were written" if mark.lines < len(lines) else "")
    if difference:
        who = "The run has ended, and no party waits" if about.get("everybody_knows") else ENDED
        copy = "copy history.jsonl from another hub's run folder, where it is the same but for the seconds"
        raise ValueError(f"{path / 'history.jsonl'} {difference}. {who}: {copy}, or {RESTORE}")


def state_to_continue(
    path: Path, checkpoints: Checkpoints, records: Sequence[Record], kept: float
) -> tuple[HubState | None, list[str]]:
    """The newest state whose lines of the history are all there, and what is wrong with newer ones.

    A hub that goes back by a round or two plays them again alike, and writes the same lines.

    Args:
        kept: for how many rounds other hubs, if there are any, keep what they sent this one.
    """
    complaints, marks = [*checkpoints.complaints], _marks(records)
    for file, state in checkpoints.states.items():
        difference = state.history.difference(marks)
        if not difference:
            return state, complaints
        complaints.append(f"{file} is not used: {path / 'history.jsonl'} {difference}")
    if checkpoints.states:
        raise ValueError(f"{path} cannot be continued: {'; '.join(complaints)}. {COPY_HISTORY} {WAY_ON}")
    # A crash leaves one torn checkpoint at most, and a hub without any can only begin again if the others just began.
    if len(complaints) > 1 or (records and records[-1].round > kept):
        reasons = "; ".join(complaints) or f"there is no checkpoint, and the history goes to round {records[-1].round}"
        raise ValueError(f"{path} cannot be continued: {reasons}. {WAY_ON}")
    return None, complaints


def _marks(records: Sequence[Record]) -> list[Mark]:
    return marks_of(record.without_seconds() for record in records)


def absence_line(absence: Absence, nonce: str, before: Mark) -> tuple[str, Mark]:
    """A line of ``absences.jsonl``, bound to the run and to the lines before it."""
    mark = before.after(json.dumps([nonce, asdict(absence)]))
    return json.dumps({**asdict(absence), "digest": mark.digest}), mark


_FORMER = {"evaluate": "evaluated", "begin": "block", "steps": "received"}
"""What questions were called in version 0.2."""


def read_absences(
    path: Path, lines: Sequence[str], nonce: str, clients: Sequence[str], newest: HubState | None
) -> tuple[list[Absence], Mark]:
    """What ``absences.jsonl`` holds; refused unless it is as it was written, and at least as long as ``newest`` knew.

    A hub whose absences are lost cannot go back by a round: it would play it with other clients than it reported.
    """
    absences, marks = [], [Mark()]
    for number, line in enumerate(lines, start=1):
        try:
            fields = parse_json(line)
            digest, absence = fields.pop("digest"), Absence(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            digest = absence = None
        mark = None if absence is None else absence_line(absence, nonce, marks[-1])[1]
        if absence is None or mark is None or digest != mark.digest or absence.client not in clients:
            raise ValueError(f"{path}, line {number} is not as it was written: {line[:80]!r}. {WAY_ON}")
        absences.append(replace(absence, question=_FORMER.get(absence.question or "", absence.question)))
        marks.append(mark)
    difference = "" if newest is None else newest.absences.difference(marks)
    if difference:
        raise ValueError(f"{path} {difference}. {WAY_ON}")
    return absences, marks[-1]
