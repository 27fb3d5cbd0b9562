"""The federation as a drawing: silos, each a hub with its clients, and the rail over which the hubs exchange phi."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from tdcd.core.words import counted
from tdcd.pages.kit.html import Html, escape
from tdcd.records.run import FederationFacts, SiloFacts

MAX_SILOS = 30
MAX_CLIENTS = 12
FIRST_CLIENTS = 8
"""Of a silo with more than :data:`MAX_CLIENTS`, this many are drawn and the others counted."""

# Lengths are in the drawing's own units; the page scales it.
_WIDTH, _MARGIN, _GAP = 960, 24, 16
_SILOS_PER_LINE, _NARROWEST, _WIDEST = 5, 150, 520
_RAIL_Y, _HUB_Y, _CLIENTS_Y = 14, 46, 104
_CELL_WIDTH, _CELL_HEIGHT, _LARGEST_RADIUS, _SMALLEST_RADIUS = 44, 54, 16, 4
_MORE_HEIGHT, _NAME_HEIGHT, _LETTER_WIDTH = 22, 50, 8


@dataclass(frozen=True)
class _Box:
    """A silo and where it stands; heights count from the top of its line."""

    silo: SiloFacts
    left: float
    width: float

    @property
    def centre(self) -> float:
        return self.left + self.width / 2

    @property
    def num_shown(self) -> int:
        return len(self.silo.clients) if len(self.silo.clients) <= MAX_CLIENTS else FIRST_CLIENTS

    @property
    def num_hidden(self) -> int:
        return len(self.silo.clients) - self.num_shown

    @property
    def num_lines(self) -> int:
        return ceil(self.num_shown / (self.width // _CELL_WIDTH))

    @property
    def bottom(self) -> int:
        clients = _CLIENTS_Y + self.num_lines * _CELL_HEIGHT - _CELL_HEIGHT // 2
        return clients + _MORE_HEIGHT * bool(self.num_hidden) + _NAME_HEIGHT

    def client_places(self) -> list[tuple[float, float]]:
        """The drawn clients' centres: lines of equal length, the last one centred too."""
        per_line = ceil(self.num_shown / self.num_lines)
        places: list[tuple[float, float]] = []
        for index in range(self.num_shown):
            line, column = divmod(index, per_line)
            in_line = min(per_line, self.num_shown - line * per_line)
            places.append((self.centre + (column - (in_line - 1) / 2) * _CELL_WIDTH, _CLIENTS_Y + line * _CELL_HEIGHT))
        return places


def federation_svg(federation: FederationFacts) -> Html:
    """Silos as boxes, wider with more columns; clients as circles, larger with more rows; and the links between."""
    most_rows = max(rows for silo in federation.silos for rows in silo.clients)
    shown = federation.silos[:MAX_SILOS]
    parts: list[str] = []
    top, last_top = 0, 0
    for boxes in _layout(shown):
        bottom, last_top = max(box.bottom for box in boxes), top
        silos = "\n".join(_silo_svg(box, bottom, most_rows) for box in boxes)
        parts.append(f'<g transform="translate(0 {top})">\n{_rail_svg(boxes, len(shown))}\n{silos}\n</g>')
        top += bottom + _GAP
    if last_top:
        parts.append(f'<path class="exchange" d="M{_MARGIN / 2:g} {_RAIL_Y}V{last_top + _RAIL_Y}"/>')
    if hidden := len(federation.silos) - len(shown):
        parts.append(f'<text class="more" x="{_WIDTH / 2:g}" y="{top + 8}">… {counted(hidden, "more silo")}</text>')
        top += _MORE_HEIGHT
    body = "\n".join(parts)
    words = f"{counted(len(federation.silos), 'silo')}, {counted(federation.num_clients, 'client')} in all"
    return Html(
        f'<svg class="federation" role="img" aria-label="The federation: {words}" viewBox="0 0 {_WIDTH} {top}">\n'
        f"{body}\n</svg>"
    )


def _layout(silos: Sequence[SiloFacts]) -> list[list[_Box]]:
    """Lines of boxes. All lines use one scale: the largest at which each of them fits."""
    per_line = ceil(len(silos) / ceil(len(silos) / _SILOS_PER_LINE))
    lines = [silos[start : start + per_line] for start in range(0, len(silos), per_line)]
    room = _WIDTH - 2 * _MARGIN
    scale = min(
        ((room - len(line) * _NARROWEST - (len(line) - 1) * _GAP) / sum(silo.num_features for silo in line))
        for line in lines
    )
    placed = []
    for line in lines:
        widths = [min(_WIDEST, _NARROWEST + scale * silo.num_features) for silo in line]
        left = _MARGIN + (room - sum(widths) - (len(line) - 1) * _GAP) / 2
        boxes = []
        for silo, width in zip(line, widths, strict=True):
            boxes.append(_Box(silo, left, width))
            left += width + _GAP
        placed.append(boxes)
    return placed


def _rail_svg(boxes: Sequence[_Box], num_silos: int) -> str:
    """The links between hubs: every hub sends to every other, so all are drawn to one rail."""
    if num_silos == 1:
        return ""
    start = boxes[0].centre if len(boxes) == num_silos else _MARGIN / 2
    drops = "".join(f"M{box.centre:.1f} {_RAIL_Y}V{_HUB_Y}" for box in boxes)
    return f'<path class="exchange" d="M{start:.1f} {_RAIL_Y}H{boxes[-1].centre:.1f}{drops}"/>'


def _silo_svg(box: _Box, bottom: int, most_rows: int) -> str:
    silo, places = box.silo, box.client_places()
    links = "".join(f"M{box.centre:.1f} {_HUB_Y}L{x:.1f} {y}" for x, y in places)
    clients = [_client_svg(index, silo.clients[index], most_rows, x, y) for index, (x, y) in enumerate(places)]
    letters = int((box.width - 12) // _LETTER_WIDTH)
    name = silo.name if len(silo.name) <= letters else silo.name[: letters - 1] + "…"
    more = ""
    if box.num_hidden:
        y = _CLIENTS_Y + box.num_lines * _CELL_HEIGHT - 8
        more = f'<text class="more" x="{box.centre:.1f}" y="{y}">… {box.num_hidden:,} more</text>'
    num_clients, parameters = counted(len(silo.clients), "client"), counted(silo.parameters, "parameter")
    title = f"{silo.name}: {silo.features_in_words}, {num_clients}, {parameters}"
    return "\n".join(
        [
            f"<g><title>{escape(title)}</title>",
            f'<rect class="silo" x="{box.left:.1f}" y="{_HUB_Y}" width="{box.width:.1f}" '
            f'height="{bottom - _HUB_Y}" rx="10"/>',
            f'<path class="link" d="{links}"/>',
            *clients,
            more,
            f'<rect class="hub" x="{box.centre - 20:.1f}" y="{_HUB_Y - 13}" width="40" height="26" rx="6"/>',
            f'<text class="hub" x="{box.centre:.1f}" y="{_HUB_Y + 4}">hub</text>',
            f'<text class="name" x="{box.centre:.1f}" y="{bottom - 28}">{escape(name)}</text>',
            f'<text x="{box.centre:.1f}" y="{bottom - 11}">{escape(silo.features_in_words)}</text>',
            "</g>",
        ]
    )


def _client_svg(index: int, rows: int, most_rows: int, x: float, y: float) -> str:
    radius = max(_SMALLEST_RADIUS, _LARGEST_RADIUS * sqrt(rows / most_rows))
    return (
        f"<g><title>client {index}: {counted(rows, 'row')}</title>"
        f'<circle class="client" cx="{x:.1f}" cy="{y}" r="{radius:.1f}"/>'
        f'<text class="rows" x="{x:.1f}" y="{y + _LARGEST_RADIUS + 12}">{rows:,}</text></g>'
    )
