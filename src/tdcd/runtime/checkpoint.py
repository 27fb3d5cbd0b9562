"""A hub's checkpoints: one file a round, of which the last few are kept and the newest sound one is used.

A checkpoint is a message of the hub to itself, so the same digest and the same checks guard it.
"""

from pathlib import Path
from typing import Any

from tdcd.runfolder import write_durably
from tdcd.runtime.messages import Message, Refused, decode, encode
from tdcd.runtime.rounds import State

KEPT = 3


def save_state(folder: Path, hub: str, state: State) -> None:
    """Make a state durable, then forget the oldest."""
    arrays = {f"block/{name}": leaf for name, leaf in state.block.items()}
    for kind, parts in state.said.items():
        arrays |= {f"said/{kind}/{name}": part for name, part in parts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    content = encode(Message("checkpoint", hub, hub, state.round, state.run, arrays=arrays))
    write_durably(folder / f"{state.round:08d}.tdcd", content)
    for old in sorted(folder.glob("*.tdcd"))[:-KEPT]:
        old.unlink()


def newest_state(folder: Path, hub: str) -> tuple[State | None, list[str]]:
    """The newest sound state, and what is wrong with newer files that are not."""
    complaints: list[str] = []
    for path in sorted(folder.glob("*.tdcd"), reverse=True):
        try:
            return _read(path, hub), complaints
        except (Refused, OSError) as error:
            complaints.append(f"{path} is not used: {error}")
    return None, complaints


def _read(path: Path, hub: str) -> State:
    message = decode(path.read_bytes(), sender=hub, receiver=hub)
    if message.kind != "checkpoint" or path.stem != f"{message.round:08d}":
        raise Refused(f"it is a '{message.kind}' of round {message.round}")
    block: dict[str, Any] = {}
    said: dict[str, dict[str, Any]] = {}
    for name, part in message.arrays.items():
        what, _, rest = name.partition("/")
        if what == "block":
            block[rest] = part
        else:
            kind, _, key = rest.partition("/")
            said.setdefault(kind, {})[key] = part
    return State(message.run, message.round, block, said)
