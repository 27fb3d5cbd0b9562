"""A hub's checkpoints: one file a round, of which the last few are kept and the newest sound one is used.

A checkpoint is a message of the hub to itself, so the same digest and the same checks guard it.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tdcd.runfolder import write_durably
from tdcd.runtime.failpoints import failpoint
from tdcd.runtime.farewell import Farewell
from tdcd.runtime.instructions import Arrays, State
from tdcd.runtime.messages import Message, Refused, decode, encode

KEPT, SUFFIX = 3, ".tdcd"


def save_state(folder: Path, hub: str, state: State) -> None:
    """Make a state durable, then forget the oldest."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {**{f"block/{name}": leaf for name, leaf in state.block.items()}, **_packed(state.said)}
    note = {"heard": state.heard, "recorded": state.recorded}
    content = Message("checkpoint", hub, hub, state.round, state.run, note, arrays)
    failpoint("save.before")
    found = sorted(os.listdir(folder))  # noqa: PTH208
    # What was begun and not finished takes room that this one may need.
    for torn in (name for name in found if name.endswith(".tmp")):
        (folder / torn).unlink()
    name = f"{state.round:08d}{SUFFIX}"
    write_durably(folder / name, encode(content))
    failpoint("save.after")
    for old in [other for other in found if other.endswith(SUFFIX) and other != name][: 1 - KEPT]:
        (folder / old).unlink()


def newest_state(folder: Path, hub: str) -> tuple[State | None, list[str]]:
    """The newest sound state, and what is wrong with newer files that are not."""
    complaints: list[str] = []
    for path in sorted(folder.glob(f"*{SUFFIX}"), reverse=True):
        try:
            return _read(path, hub), complaints
        except (Refused, OSError) as error:
            complaints.append(f"{path} is not used: {error}")
    return None, complaints


def _read(path: Path, hub: str) -> State:
    message = decode(path.read_bytes(), sender=hub, receiver=hub)
    if message.kind != "checkpoint" or path.stem != f"{message.round:08d}":
        raise Refused(f"it is a '{message.kind}' of round {message.round}")
    block = {name.removeprefix("block/"): part for name, part in message.arrays.items() if name.startswith("block/")}
    heard, recorded = message.note.get("heard"), message.note.get("recorded", 0)
    return State(message.run, message.round, block, _unpacked(message, hub), heard, recorded)


def save_farewell(path: Path, farewell: Farewell) -> None:
    """Make the end of a run durable, with the hub's last words."""
    note = {name: getattr(farewell, name) for name in ("status", "reason", "in_block", "peers")}
    note["unaware"] = sorted(farewell.unaware)
    name = farewell.name
    content = Message("farewell", name, name, farewell.round, farewell.run, note, _packed(farewell.words))
    write_durably(path, encode(content))


def read_farewell(path: Path, hub: str) -> Farewell:
    """What :func:`save_farewell` wrote."""
    message = decode(path.read_bytes(), sender=hub, receiver=hub)
    note = message.note
    return Farewell(
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


def _packed(said: Sequence[Message]) -> Arrays:
    """Messages as arrays, byte for byte."""
    return {f"said/{index:04d}": np.frombuffer(encode(message), np.uint8) for index, message in enumerate(said)}


def _unpacked(message: Message, hub: str) -> tuple[Message, ...]:
    names = sorted(name for name in message.arrays if name.startswith("said/"))
    return tuple(decode(message.arrays[name].tobytes(), sender=hub, receiver="") for name in names)
