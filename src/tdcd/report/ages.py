"""How old the phi is that silos use, where rounds overlap or a silo is slow: one cell per silo and round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdcd.report.html import Html, escape
from tdcd.report.units import counted

if TYPE_CHECKING:
    from tdcd.core.timing import Overlap

MOST_ROUNDS = 40
"""Of the first ones, this many are drawn at most."""

# Lengths are in the drawing's own units; the page scales it.
_WIDTH, _LEFT, _RIGHT = 960, 160, 30
_TOP, _CELL, _ROW, _LETTERS = 24, 30, 40, 18


@dataclass(frozen=True)
class Ages:
    """The ages of every silo's phi when the others use it."""

    timing: "Overlap"
    silos: Sequence[str]
    rounds: int
    """Of the run."""

    def of(self, silo: int, round_index: int) -> int:
        """How many rounds old the block of ``silo`` is."""
        return round_index - self.timing.sent_in(silo, round_index)

    def in_words(self, silo: int) -> str:
        """Such as ``1 to 4 rounds old``; in the first rounds it is younger."""
        youngest, period = self.timing.rounds, self.timing.period(silo)
        oldest = max((self.of(silo, index) for index in range(min(self.rounds, 2 * (youngest + period)))), default=0)
        if not oldest:
            return "of the same round"
        return f"{f'{youngest} to ' * (oldest > youngest)}{counted(oldest, 'round')} old"

    def used_by(self, silo: int) -> str:
        """Of the others' phi, if it is equally old for all of them."""
        ages = {self.in_words(other) for other in range(len(self.silos)) if other != silo}
        return f"uses phi {ages.pop()}" if len(ages) == 1 else ""


def ages_svg(ages: Ages, silos: Sequence[int]) -> Html:
    """One row per silo: the age of its phi in the first rounds, as a number and as a shade."""
    shown = min(ages.rounds, MOST_ROUNDS, max(16, ages.timing.rounds + 3 * ages.timing.longest_period + 1))
    width = (_WIDTH - _LEFT - _RIGHT) / shown
    oldest = max(ages.of(silo, index) for silo in silos for index in range(shown))
    head = "".join(
        f'<text class="tick" x="{_LEFT + (index + 0.5) * width:.1f}" y="14">{index}</text>' for index in range(shown)
    )
    rows = []
    for row, silo in enumerate(silos):
        top, name = _TOP + row * _ROW, ages.silos[silo]
        cut = name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"
        rows.append(
            f"<g><title>{escape(f'phi of {name}: {ages.in_words(silo)}')}</title>"
            f'<text class="name" x="0" y="{top + 13}">{escape(cut)}</text>'
            f'<text class="note" x="0" y="{top + 28}">{ages.in_words(silo)}</text>'
        )
        for index in range(shown):
            age, x = ages.of(silo, index), _LEFT + index * width
            rows.append(
                f'<rect class="age" x="{x:.1f}" y="{top}" width="{width - 2:.1f}" height="{_CELL}" rx="3" '
                f'fill-opacity="{0.08 + 0.6 * age / max(oldest, 1):.2f}"/>'
                f'<text class="tick cell" x="{x + width / 2 - 1:.1f}" y="{top + 20}">{age}</text>'
            )
        rows.append("</g>")
    more = f'<text x="{_WIDTH - _RIGHT + 4}" y="14">…</text>' if shown < ages.rounds else ""
    words = "; ".join(f"{ages.silos[silo]}: {ages.in_words(silo)}" for silo in silos)
    body = "\n".join(rows)
    return Html(
        f'<svg class="timeline" role="img" aria-label="{escape(f"Age of phi in the first rounds: {words}")}" '
        f'viewBox="0 0 {_WIDTH} {_TOP + len(silos) * _ROW}">\n<text x="0" y="14">phi of, in round</text>{head}{more}\n'
        f"{body}\n</svg>"
    )
