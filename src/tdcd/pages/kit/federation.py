"""The federation as a drawing: silos, each a hub with its clients, and the rail over which the hubs exchange phi."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from tdcd.core.words import counted
from tdcd.pages.kit.html import Html, escape

# Lengths are in the drawing's own units; the page scales it.
_MARGIN, _GAP = 24, 16
_NARROWEST, _WIDEST = 150, 520
_RAIL_Y, _HUB_Y, _CLIENTS_Y = 14, 46, 104
_CELL_WIDTH, _CELL_HEIGHT, _LARGEST_RADIUS, _SMALLEST_RADIUS, _USUAL_RADIUS = 44, 54, 16, 4, 12
_MORE_HEIGHT, _NAME_HEIGHT, _LETTER_WIDTH = 22, 50, 8
FEW = 2
"""More silos in a line can scroll on a narrow screen."""


@dataclass(frozen=True)
class DrawnParty:
    """A hub or a client."""

    label: str
    """What stands in a hub, or below a client."""
    words: str
    """The text of its tooltip."""
    state: str = ""
    """A class of the stylesheet, such as ``away``."""
    sign: str = ""
    """A letter in a client's circle."""
    rows: int | None = None
    """A client's circle is larger the more rows it holds; None if that is unknown."""


@dataclass(frozen=True)
class DrawnSilo:
    """A hub with its clients."""

    name: str
    below: str
    """A few words below the name."""
    words: str
    """The text of its tooltip."""
    size: float
    """Boxes are wider the larger it is: numbers in a sample."""
    hub: DrawnParty
    clients: Sequence[DrawnParty]
    """The clients that are drawn."""
    num_hidden: int = 0
    """Further clients, which are counted."""


@dataclass(frozen=True)
class _Box:
    """A silo and where it stands; heights count from the top of its line."""

    silo: DrawnSilo
    left: float
    width: float

    @property
    def centre(self) -> float:
        return self.left + self.width / 2

    @property
    def num_lines(self) -> int:
        return ceil(len(self.silo.clients) / (self.width // _CELL_WIDTH))

    @property
    def bottom(self) -> int:
        clients = _CLIENTS_Y + self.num_lines * _CELL_HEIGHT - _CELL_HEIGHT // 2
        return clients + _MORE_HEIGHT * bool(self.silo.num_hidden) + _NAME_HEIGHT

    def client_places(self) -> list[tuple[float, float]]:
        """The clients' centres: lines of equal length, the last one centred too."""
        count = len(self.silo.clients)
        per_line = ceil(count / max(1, self.num_lines))
        places: list[tuple[float, float]] = []
        for index in range(count):
            line, column = divmod(index, per_line)
            in_line = min(per_line, count - line * per_line)
            places.append((self.centre + (column - (in_line - 1) / 2) * _CELL_WIDTH, _CLIENTS_Y + line * _CELL_HEIGHT))
        return places


def federation_svg(
    silos: Sequence[DrawnSilo], words: str, *, num_hidden: int = 0, per_line: int = 5, width: int = 960
) -> Html:
    """Silos as boxes, clients as circles, and the links between.

    Args:
        words: the federation in a few words, for screen readers.
        num_hidden: further silos, which are counted.
        per_line: as many silos next to each other at most.
        width: in the drawing's own units.
    """
    rows = [client.rows or 0 for silo in silos for client in silo.clients]
    most_rows = max(rows, default=0)
    parts: list[str] = []
    top, last_top = 0, 0
    for boxes in _layout(silos, per_line, width):
        bottom, last_top = max(box.bottom for box in boxes), top
        drawn = "\n".join(_silo_svg(box, bottom, most_rows) for box in boxes)
        parts.append(f'<g transform="translate(0 {top})">\n{_rail_svg(boxes, len(silos))}\n{drawn}\n</g>')
        top += bottom + _GAP
    if last_top:
        parts.append(f'<path class="exchange" d="M{_MARGIN / 2:g} {_RAIL_Y}V{last_top + _RAIL_Y}"/>')
    if num_hidden:
        parts.append(f'<text class="more" x="{width / 2:g}" y="{top + 8}">… {counted(num_hidden, "more silo")}</text>')
        top += _MORE_HEIGHT
    body = "\n".join(parts)
    kind = "federation many" if per_line > FEW else "federation"
    return Html(
        f'<svg class="{kind}" role="img" aria-label="{escape(words)}" viewBox="0 0 {width} {top}">\n{body}\n</svg>'
    )


def _layout(silos: Sequence[DrawnSilo], most_per_line: int, width: int) -> list[list[_Box]]:
    """Lines of boxes. All lines use one scale: the largest at which each of them fits."""
    per_line = ceil(len(silos) / ceil(len(silos) / most_per_line))
    lines = [silos[start : start + per_line] for start in range(0, len(silos), per_line)]
    room = width - 2 * _MARGIN
    scale = min(
        ((room - len(line) * _NARROWEST - (len(line) - 1) * _GAP) / max(1.0, sum(silo.size for silo in line)))
        for line in lines
    )
    placed = []
    for line in lines:
        widths = [min(_WIDEST, _NARROWEST + scale * silo.size) for silo in line]
        left = _MARGIN + (room - sum(widths) - (len(line) - 1) * _GAP) / 2
        boxes = []
        for silo, own in zip(line, widths, strict=True):
            boxes.append(_Box(silo, left, own))
            left += own + _GAP
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
    letters = int((box.width - 12) // _LETTER_WIDTH)
    name = silo.name if len(silo.name) <= letters else silo.name[: letters - 1] + "…"
    more = ""
    if silo.num_hidden:
        y = _CLIENTS_Y + box.num_lines * _CELL_HEIGHT - 8
        more = f'<text class="more" x="{box.centre:.1f}" y="{y}">… {silo.num_hidden:,} more</text>'
    return "\n".join(
        [
            f"<g><title>{escape(silo.words)}</title>",
            f'<rect class="silo" x="{box.left:.1f}" y="{_HUB_Y}" width="{box.width:.1f}" '
            f'height="{bottom - _HUB_Y}" rx="10"/>',
            f'<path class="link" d="{links}"/>',
            *(_client_svg(client, most_rows, x, y) for client, (x, y) in zip(silo.clients, places, strict=True)),
            more,
            f'<g class="{_kind("hub", silo.hub)}"><title>{escape(silo.hub.words)}</title>'
            f'<rect class="hub" x="{box.centre - 20:.1f}" y="{_HUB_Y - 13}" width="40" height="26" rx="6"/>'
            f'<text class="hub" x="{box.centre:.1f}" y="{_HUB_Y + 4}">{escape(silo.hub.label)}</text></g>',
            f'<text class="name" x="{box.centre:.1f}" y="{bottom - 28}">{escape(name)}</text>',
            f'<text x="{box.centre:.1f}" y="{bottom - 11}">{escape(silo.below)}</text>',
            "</g>",
        ]
    )


def _client_svg(client: DrawnParty, most_rows: int, x: float, y: float) -> str:
    radius: float = _USUAL_RADIUS
    if client.rows is not None and most_rows:
        radius = max(_SMALLEST_RADIUS, _LARGEST_RADIUS * sqrt(client.rows / most_rows))
    sign = f'<text class="sign" x="{x:.1f}" y="{y + 4}">{escape(client.sign)}</text>' if client.sign else ""
    return (
        f'<g class="{_kind("party", client)}"><title>{escape(client.words)}</title>'
        f'<circle class="client" cx="{x:.1f}" cy="{y}" r="{radius:.1f}"/>{sign}'
        f'<text class="rows" x="{x:.1f}" y="{y + _LARGEST_RADIUS + 12}">{escape(client.label)}</text></g>'
    )


def _kind(kind: str, party: DrawnParty) -> str:
    return f"{kind} {escape(party.state)}" if party.state else kind
