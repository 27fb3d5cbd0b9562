"""Draws the picture of docs/scorecards.md next to this file: ``python docs/pictures/draw_scorecard.py RUN``.

RUN is the run folder of that page. The picture has the four columns that decide most, as ``tdcd export --scorecard``
draws them.
"""

import sys
from itertools import groupby
from pathlib import Path

from tdcd.pages.scorecard import drawing, spread
from tdcd.prediction.model import Model
from tdcd.prediction.scorecard import scorecard

WIDTH, HEIGHT, SHOWN = 490, 224, 4
STYLE = """
.paper { fill: #ffffff } svg { color: #5d6b7c; font-family: system-ui, sans-serif } text { fill: currentColor }
.title { fill: #1b2430; font-size: 14px; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1a212b } svg { color: #9aa8b8 } .title { fill: #e6ebf1 }
}"""


def picture(run: Path) -> str:
    """The whole file."""
    _, *lines = scorecard(Model.load(run)).lines
    columns = [list(own) for _, own in groupby(lines, lambda line: (line.silo, line.column))]
    parts = []
    for place, own in enumerate(sorted(columns, key=spread, reverse=True)[:SHOWN]):
        x, y = place % 2 * WIDTH + 15, place // 2 * HEIGHT + 10
        parts.append(f'<text class="title" x="{x}" y="{y + 14}">{own[0].silo}: {own[0].column}</text>')
        parts.append(drawing(own).replace("<svg ", f'<svg x="{x}" y="{y + 22}" width="460" height="190" ', 1))
    size = f"0 0 {2 * WIDTH} {SHOWN // 2 * HEIGHT + 10}"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    Path(__file__).with_name("scorecard.svg").write_text(picture(Path(sys.argv[1])), encoding="utf-8")
