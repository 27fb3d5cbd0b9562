"""``tdcd status``: what a hub or a client is doing, from its folder."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.style import Style
from rich.text import Text

from tdcd.cli.terminal import reported, screen
from tdcd.records.timeline import TIMELINE, Timeline
from tdcd.runtime.storage.status import in_words, read_status

CELLS = 24
HEIGHTS, PLAIN_HEIGHTS = " ▁▂▃▄▅▆▇█·", " .:-=+*%#x"
"""How much of a cell's time was work, and last a hub that did not run; the second for terminals of ASCII only."""
WORK, WAIT = "blue", "yellow"

Folder = Annotated[
    Path, typer.Argument(help="A hub's run folder, the folder of `tdcd up`, or --out of a client.", metavar="FOLDER")
]


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="The facts as JSON, one line per hub.")] = False,
) -> None:
    """Say what a hub is doing: its round and loss, who is connected, who is missing and for how long.

    A client that was given --out says its round and whether its hub is connected. The bar is a hub's time in training
    so far: the higher, the more of it was work; the rest was waiting for others.

    Exit status: 0 the party is alive or its run is over, 1 its process is gone in the middle of a run, 2 bad input.
    """
    with reported():
        found = [(read_status(hub), _timeline(hub)) for hub in _hubs_in(folder)]
    for facts, timeline in found:
        if as_json:
            print(json.dumps({**facts, **_as_facts(timeline)}))
        else:
            screen.print(in_words(facts), soft_wrap=True, highlight=False)
            for line in _as_lines(timeline):
                screen.print(line, soft_wrap=True, highlight=False)
    if any(not facts["alive"] and facts["status"] is None for facts, _ in found):
        raise typer.Exit(1)


def _hubs_in(folder: Path) -> list[Path]:
    """The folder itself, or those of all hubs of a trial."""
    return sorted(path.parent for path in folder.glob("silos/*/status.json")) or [folder]


def _timeline(folder: Path) -> Timeline | str | None:
    """The hub's time; why it cannot be read; None before its first round."""
    try:
        found = Timeline.read(folder / TIMELINE) if (folder / TIMELINE).exists() else None
    except ValueError as damage:
        return str(damage)
    return found if found is not None and found.shares(CELLS) else None


def _as_facts(timeline: Timeline | str | None) -> dict[str, Any]:
    if not isinstance(timeline, Timeline):
        return {}
    waited = {party: round(seconds, 3) for party, seconds in timeline.waited.items()}
    return {"worked_s": round(timeline.worked, 3), "waited_s": waited}


def _as_lines(timeline: Timeline | str | None) -> list[Text]:
    if timeline is None:
        return []
    if isinstance(timeline, str):
        return [Text(f"  time        {timeline}")]
    total = timeline.worked + sum(timeline.waited.values())
    percent = round(100 * timeline.worked / total)
    words = f"  worked {percent} %, waited {100 - percent} %"
    most = next(iter(timeline.waited), None)
    if most is not None and percent < 100:
        words += f", {'most of it ' * (len(timeline.waited) > 1)}for {most}"
    return [Text("  time        ").append_text(_bar(timeline)).append(words)]


def _bar(timeline: Timeline) -> Text:
    """Cells of equal time."""
    heights = HEIGHTS if screen.encoding.startswith("utf") else PLAIN_HEIGHTS
    bar = Text()
    for worked, waited in timeline.shares(CELLS):
        # What is not work is below the top, and what is work is above the bottom, however little it is.
        height = min(max(round(8 * worked), worked > 0.01), 8 - (waited > 0.01)) if worked + waited > 0.01 else -1
        bar.append(heights[height], Style(color=WORK, bgcolor=WAIT if waited > 0.01 else None))
    return bar
