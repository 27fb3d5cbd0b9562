"""A hub's checkpoints: the last few states, of which the newest sound one is used.

A checkpoint is a message of the hub to itself, so the same digest and the same checks guard it.
"""

import os
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from tdcd.records.files import PRIVATE, Mark, sync_folder, write_all, write_durably
from tdcd.runtime.machine.hub import Shutdown
from tdcd.runtime.machine.instructions import HubState
from tdcd.runtime.messages.former_parts import FiguresPart, FormerPart, ModelPart, PhiPart, ScoresPart, SlopePart
from tdcd.runtime.messages.messages import (
    Checkpoint,
    Ended,
    FiguresFacts,
    Hello,
    ModelFacts,
    Opening,
    Part,
    ScoresFacts,
)
from tdcd.runtime.messages.structure import arrays_of, named
from tdcd.runtime.messages.wire import IN_FILES, RejectedMessage, decode, encode
from tdcd.runtime.storage.failpoints import failpoint

KEPT, SUFFIX = 3, ".tdcd"
Outcomes = SimpleQueue[BaseException | None]
"""Results of making files durable: None for each that is."""
Files = SimpleQueue[tuple[int, Path | None, Outcomes]]
"""Open files that are to be: each with the folder that it is new in, and where to say how it went."""


class Checkpoints:
    """The last states of a hub, each in a file that is written over when it is the oldest.

    Nothing but a file's content has to be made durable then, which takes a third of the time that a new file takes. A
    crash in between leaves a file that is part new and part old: its digest shows it, and the one before is used.
    """

    def __init__(self, folder: Path, hub: str, run: str | None = None) -> None:
        """Read what the folder holds, which need not be there; states of other runs than ``run`` are not sound."""
        self._hub = hub
        self.states: dict[Path, HubState] = {}
        """The sound states, the newest first."""
        self.complaints: list[str] = []
        """What is wrong with the files that are not sound."""
        states, torn = {}, []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                states[path] = _read(path, hub, run)
            except (RejectedMessage, ValueError, OSError) as error:
                self.complaints.append(f"{path} is not used: {error}")
                torn.append(path)
        self.states = dict(sorted(states.items(), key=lambda item: -item[1].round))
        known = {*states, *torn}
        room = [path for path in (folder / f"{index}{SUFFIX}" for index in range(KEPT)) if path not in known]
        # What is not sound is written over first: a crash leaves one such file at most, however many crashes there are.
        self._files = [*torn, *room[: max(0, KEPT - len(known))], *reversed(self.states)]
        self._is_settled, self._outcomes = True, Outcomes()
        self._saved = 0
        self.durable = next((state.round for state in self.states.values()), 0)
        """The round that a crash at this moment would go back to, at most."""

    @property
    def newest(self) -> HubState | None:
        """The newest sound state."""
        return next(iter(self.states.values()), None)

    def save(self, state: HubState) -> None:
        """Write a state in place of the oldest, and begin to make it durable; :meth:`settle` waits for that."""
        self.settle()
        content = Checkpoint(
            self._hub,
            self._hub,
            state.round,
            state.run,
            block=named(state.block),
            memory=named(state.memory),
            outbox=state.outbox,
            digests={stage: dict(digests) for stage, digests in state.digests.items()},
            unrecorded=state.unrecorded,
            best=state.best,
            courses=state.courses,
            control=state.control,
            candidates=named(state.candidates),
            uncertified=named(state.uncertified),
            certified=state.certified,
            proven=state.proven,
            recorded=state.recorded,
            rows=state.rows,
            history=state.history,
            absences=state.absences,
            hubs=dict(state.hubs),
            chain=None if state.chain is None else dict(state.chain),
        )
        data = encode(content, IN_FILES)
        failpoint("save.before")
        _write_over(self._files[0], data, self._outcomes)
        self._is_settled, self._saved = False, state.round
        failpoint("save.written")

    def settle(self) -> None:
        """Wait until the last state that was saved is durable; if that fails, the same place is for the next."""
        if self._is_settled:
            return
        error = self._outcomes.get()
        self._is_settled = True
        if error is not None:
            raise error
        failpoint("save.after")
        self.durable = self._saved
        self._files.append(self._files.pop(0))


def _write_over(path: Path, content: bytes, outcomes: Outcomes) -> None:
    """Make this a file's content, in the place that the file has on the disk; ``outcomes`` says when it is durable."""
    is_new, to_sync = False, _written()
    try:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        is_new = True
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        half = len(content) // 2
        write_all(file, content[:half])
        failpoint("save.half")
        write_all(file, content[half:])
        if os.fstat(file).st_size > len(content):
            os.ftruncate(file, len(content))
    except BaseException:
        os.close(file)
        raise
    to_sync.put((file, path.parent if is_new else None, outcomes))


@cache
def _written() -> Files:
    """Open files for a thread of its own to make durable: a hub has better things to do than to wait for the disk."""
    files = Files()
    Thread(target=_sync_all, args=[files], daemon=True).start()
    return files


if hasattr(os, "register_at_fork"):
    # A fork has no threads but the one that forked.
    os.register_at_fork(after_in_child=_written.cache_clear)


def _sync_all(files: Files) -> None:
    while True:
        file, new_in, outcomes = files.get()
        try:
            _sync(file, new_in)
        except BaseException as error:
            # Of any kind: the hub waits for it.
            outcomes.put(error)
        else:
            outcomes.put(None)


def _sync(file: int, new_in: Path | None) -> None:
    """Make an open file's content durable, and its name where it is new in a folder; closes the file."""
    try:
        getattr(os, "fdatasync", os.fsync)(file)
    finally:
        os.close(file)
    if new_in is not None:
        sync_folder(new_in)


def _read(path: Path, hub: str, run: str | None) -> HubState:
    checkpoint = decode(path.read_bytes(), sender=hub, receiver=hub, form=IN_FILES)
    if not isinstance(checkpoint, Checkpoint):
        raise RejectedMessage(f"it is a '{checkpoint.kind}' of round {checkpoint.round}")
    if run is not None and checkpoint.run != run:
        raise RejectedMessage(f"it belongs to run {checkpoint.run}, and this is run {run}")
    return HubState(
        checkpoint.run,
        checkpoint.round,
        arrays_of(checkpoint.block),
        tuple(_as_part(message) for message in checkpoint.outbox if not isinstance(message, Hello | Opening)),
        checkpoint.digests,
        checkpoint.recorded,
        checkpoint.rows,
        Mark.read([*checkpoint.history]),
        Mark.read([*checkpoint.absences]),
        arrays_of(checkpoint.memory),
        checkpoint.unrecorded,
        checkpoint.best,
        checkpoint.courses,
        arrays_of(checkpoint.candidates),
        checkpoint.hubs,
        checkpoint.control,
        arrays_of(checkpoint.uncertified),
        checkpoint.certified,
        checkpoint.proven,
        checkpoint.chain,
    )


def save_shutdown(path: Path, shutdown: Shutdown) -> None:
    """Make the end of a run durable, with what slower hubs may still ask for."""
    content = Ended(
        shutdown.name,
        shutdown.name,
        shutdown.round,
        shutdown.run,
        status=shutdown.status,
        reason=shutdown.reason,
        in_block=shutdown.in_block,
        peers=shutdown.peers,
        unaware=tuple(sorted(shutdown.unaware)),
        outbox=shutdown.outbox,
    )
    write_durably(path, encode(content, IN_FILES))


def read_shutdown(path: Path, hub: str, run: str | None) -> Shutdown:
    """What :func:`save_shutdown` wrote, if it belongs to ``run``."""
    ended = decode(path.read_bytes(), sender=hub, receiver=hub, form=IN_FILES)
    if not isinstance(ended, Ended) or (run is not None and ended.run != run):
        raise RejectedMessage(f"it is a '{ended.kind}' of run {ended.run}, and this is run {run}")
    end = (ended.status, ended.reason, ended.in_block)
    outbox = tuple(message if isinstance(message, Hello | Opening) else _as_part(message) for message in ended.outbox)
    return Shutdown(hub, ended.run, ended.round, *end, ended.peers, outbox, set(ended.unaware))


def _as_part(former: Part | FormerPart) -> Part:
    """What a hub sent, as it is sent now."""
    if isinstance(former, Part):
        return former
    part = Part(former.sender, former.receiver, former.round, former.run, flow="phi", digests=former.received)
    if isinstance(former, FiguresPart):
        facts = FiguresFacts(figures=former.figures, absent=former.absent, unscored=former.unscored)
        return part.replace(flow="figures", facts=facts)
    if isinstance(former, ModelPart):
        return part.replace(flow="model", arrays=former.block, facts=ModelFacts(preparation=former.preparation))
    arrays = {} if not isinstance(former, PhiPart) else dict(former.arrays)
    names = ("slope", "weights", "train", "test", "train_absent", "test_absent", "intercept")
    arrays |= {name: getattr(former, name) for name in names if getattr(former, name, None) is not None}
    if isinstance(former, ScoresPart):
        scored = ScoresFacts(penalty=former.penalty, absent=former.absent, unscored=former.unscored)
        return part.replace(flow="scores", arrays=arrays, facts=scored)
    if former.absent is not None:
        arrays["absent"] = former.absent
    return part.replace(flow="slope" if isinstance(former, SlopePart) else "phi", arrays=arrays)
