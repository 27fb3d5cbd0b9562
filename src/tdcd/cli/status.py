"""``tdcd status``: what a hub is doing, from its run folder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.terminal import reported, screen
from tdcd.runtime.storage.status import in_words, read_status

Folder = Annotated[Path, typer.Argument(help="A hub's run folder, or the folder of `tdcd up`.", metavar="FOLDER")]


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="The facts as JSON, one line per hub.")] = False,
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


def _hubs_in(folder: Path) -> list[Path]:
    """The folder itself, or those of all hubs of a trial."""
    return sorted(path.parent for path in folder.glob("silos/*/status.json")) or [folder]
