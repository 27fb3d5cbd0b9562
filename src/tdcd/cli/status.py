"""``tdcd status``: what a hub is doing, from its run folder."""
# ruff: noqa: PLC0415

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tdcd.cli.terminal import reported, screen

Folder = Annotated[Path, typer.Argument(help="A hub's run folder, or the folder of `tdcd up`.", metavar="FOLDER")]


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="The facts as JSON, one line a hub.")] = False,
) -> None:
    """Say what a hub is doing: its round and loss, who is connected, who is missing and for how long.

    Exit status: 0 the hub is alive or its run is over, 1 its process is gone in the middle of a run, 2 bad input.
    """
    with reported():
        found = [read_status(hub) for hub in _hubs_in(folder)]
    for facts in found:
        print(json.dumps(facts)) if as_json else screen.print(in_words(facts), soft_wrap=True, highlight=False)
    if any(not facts["alive"] and facts["status"] is None for facts in found):
        raise typer.Exit(1)


def read_status(folder: Path) -> dict[str, Any]:
    """What the hub said last, and whether its process is ``alive``."""
    from tdcd.runtime.storage.lock import is_alive

    path = folder / "status.json"
    if not path.exists():
        raise ValueError(f"{folder} has no status.json: give the run folder of a hub (--out of tdcd hub)")
    try:
        facts: dict[str, Any] = {**json.loads(path.read_text()), "alive": is_alive(folder)}
        in_words(facts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}; a hub that is alive writes it anew in a moment") from None
    return facts


def in_words(facts: dict[str, Any]) -> str:
    """The facts as a few lines for people."""
    gone = "ended" if facts["status"] is not None else "its process is gone: give the same command again"
    lines = [
        f"{facts['party']}: {facts['status'] or facts['phase']}, {'alive' if facts['alive'] else gone}",
        f"  round       {facts['round']} of {facts['rounds']}",
        f"  train loss  {_number(facts['train_loss'])}",
        f"  test loss   {_number(facts['test_loss'])}",
        f"  connected   {', '.join(facts['connected']) or 'nobody'}",
    ]
    for party, seconds in facts.get("missing_s", {}).items():
        away = "" if party in facts["connected"] else ", not connected"
        lines.append(f"  waits for   {party}, {seconds:.0f} s{away}")
    lines += [f"  left out    {party}" for party in facts.get("left_out", [])]
    lines += [f"  refused     {count} messages of {party}" for party, count in facts["refused"].items()]
    if facts["last_error"]:
        lines.append(f"  last error  {facts['last_error']}")
    return "\n".join(lines)


def _hubs_in(folder: Path) -> list[Path]:
    """The folder itself, or those of all hubs of a trial."""
    return sorted(path.parent for path in folder.glob("silos/*/status.json")) or [folder]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
