"""A hub's checkpoints: the last few states, of which the newest sound one is used.

A checkpoint is a message of the hub to itself, so the same digest and the same checks guard it.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.records.mark import Mark
from tdcd.records.run_folder import sync_folder, write_all, write_durably
from tdcd.runtime.protocol.instructions import Arrays, State
from tdcd.runtime.protocol.messages import Message, RejectedMessage, array, decode, encode
from tdcd.runtime.protocol.shutdown import Shutdown
from tdcd.runtime.storage.failpoints import failpoint

KEPT, SUFFIX = 3, ".tdcd"
_ROWS_BYTES = 16
"""Of the digest of one client's rows."""


class Checkpoints:
    """The last states of a hub, each in a file that is written over when it is the oldest.

    Nothing but a file's content has to be made durable then, which takes a third of the time that a new file takes. A
    crash in between leaves a file that is part new and part old: its digest shows it, and the one before is used.
    """

    def __init__(self, folder: Path, hub: str, run: str | None = None) -> None:
        """Read what the folder holds, which need not be there; states of other runs than ``run`` are not sound."""
        self._hub = hub
        self.states: dict[Path, State] = {}
        """The sound states, the newest first."""
        self.complaints: list[str] = []
        """What is wrong with the files that are not sound."""
        found, torn = {}, []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                found[path] = _read(path, hub, run)
            except (RejectedMessage, ValueError, OSError) as error:
                self.complaints.append(f"{path} is not used: {error}")
                torn.append(path)
        self.states = dict(sorted(found.items(), key=lambda item: -item[1].round))
        known = {*found, *torn}
        room = [path for path in (folder / f"{index}{SUFFIX}" for index in range(KEPT)) if path not in known]
        # What is not sound is written over first: a crash leaves one such file at most, however many crashes there are.
        self._files = [*torn, *room[: max(0, KEPT - len(known))], *reversed(self.states)]

    @property
    def newest(self) -> State | None:
        """The newest sound state."""
        return next(iter(self.states.values()), None)

    def save(self, state: State) -> None:
        """Make a state durable in place of the oldest; if that fails, the same place is for the next."""
        arrays = {**{f"block/{name}": leaf for name, leaf in state.block.items()}, **_packed(state.outbox)}
        arrays |= {f"memory/{name}": leaf for name, leaf in state.memory.items()}
        # Digests of many clients' rows would be too long for the note.
        arrays["rows"] = np.frombuffer(bytes.fromhex("".join(state.rows)), np.uint8)
        note: dict[str, Any] = {"digests": state.digests, "recorded": state.recorded}
        note |= {"history": state.history, "absences": state.absences}
        content = encode(Message("checkpoint", self._hub, self._hub, state.round, state.run, note, arrays))
        failpoint("save.before")
        _write_over(self._files[0], content)
        failpoint("save.after")
        self._files.append(self._files.pop(0))


def _write_over(path: Path, content: bytes) -> None:
    """Make this a file's content, in the place that the file has on the disk."""
    is_new = not path.exists()
    if is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        half = len(content) // 2
        write_all(file, content[:half])
        failpoint("save.half")
        write_all(file, content[half:])
        if os.fstat(file).st_size > len(content):
            os.ftruncate(file, len(content))
        getattr(os, "fdatasync", os.fsync)(file)
    finally:
        os.close(file)
    if is_new:
        sync_folder(path.parent)


def _read(path: Path, hub: str, run: str | None) -> State:
    message = decode(path.read_bytes(), sender=hub, receiver=hub)
    if message.kind != "checkpoint":
        raise RejectedMessage(f"it is a '{message.kind}' of round {message.round}")
    if run is not None and message.run != run:
        raise RejectedMessage(f"it belongs to run {message.run}, and this is run {run}")
    digests, recorded = message.note.get("digests"), message.note.get("recorded")
    if not isinstance(digests, dict | None) or not isinstance(recorded, int):
        raise RejectedMessage("'digests' must be digests by hub, and 'recorded' a round")
    rows = array(message, "rows", np.uint8, [None]).tobytes()
    return State(
        message.run,
        message.round,
        _under(message, "block/"),
        _unpacked(message, hub),
        digests,
        recorded,
        tuple(rows[place : place + _ROWS_BYTES].hex() for place in range(0, len(rows), _ROWS_BYTES)),
        Mark.read(message.note.get("history")),
        Mark.read(message.note.get("absences")),
        _under(message, "memory/"),
    )


def _under(message: Message, prefix: str) -> Arrays:
    """The arrays whose names begin so, by what follows."""
    return {name.removeprefix(prefix): part for name, part in message.arrays.items() if name.startswith(prefix)}


def save_shutdown(path: Path, shutdown: Shutdown) -> None:
    """Make the end of a run durable, with what slower hubs may still ask for."""
    note = {name: getattr(shutdown, name) for name in ("status", "reason", "in_block", "peers")}
    note["unaware"] = sorted(shutdown.unaware)
    name = shutdown.name
    content = Message("shutdown", name, name, shutdown.round, shutdown.run, note, _packed(shutdown.outbox))
    write_durably(path, encode(content))


def read_shutdown(path: Path, hub: str, run: str | None) -> Shutdown:
    """What :func:`save_shutdown` wrote, if it belongs to ``run``."""
    message = decode(path.read_bytes(), sender=hub, receiver=hub)
    if message.kind != "shutdown" or (run is not None and message.run != run):
        raise RejectedMessage(f"it is a '{message.kind}' of run {message.run}, and this is run {run}")
    note = message.note
    return Shutdown(
        hub,
        message.run,
        message.round,
        note["status"],
        note["reason"],
        note["in_block"],
        tuple(note["peers"]),
        _unpacked(message, hub),
        set(note["unaware"]),
    )


def _packed(outbox: Sequence[Message]) -> Arrays:
    """Messages as arrays, byte for byte."""
    return {f"outbox/{index:04d}": np.frombuffer(message.encoded, np.uint8) for index, message in enumerate(outbox)}


def _unpacked(message: Message, hub: str) -> tuple[Message, ...]:
    names = sorted(name for name in message.arrays if name.startswith("outbox/"))
    return tuple(decode(message.arrays[name].tobytes(), sender=hub, receiver="") for name in names)
