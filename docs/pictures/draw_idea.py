"""Draws the picture of the front page and the readme, and the site's icon, next to this file:
``python docs/pictures/draw_idea.py``.
"""

from pathlib import Path

from draw import Picture

HERE = Path(__file__).parent
WIDTH, ROWS, CELL = 720, 12, (50, 19)
SILOS = {
    "bank": (40, ["age", "income", "debt"], [("north", 0, 4), ("south", 4, 9), ("west", 9, 12)]),
    "bureau": (430, ["cards", "loans", "late"], [("first", 0, 6), ("second", 6, 12)]),
}
"""By name, where a silo begins on the sheet, its columns, and its clients with their first and last row."""
TONES = {
    "light": {"tone0": "#cfe3f7", "tone1": "#fbe3c4", "tone2": "#d5edd9", "hub": "#eef3f8", "grid": "#ffffff"},
    "dark": {"tone0": "#23476b", "tone1": "#6b4a1d", "tone2": "#265236", "hub": "#1c242d", "grid": "#12171d"},
}
TOP, HUB = 112, 416
"""Where the tables and the hubs begin."""


def idea(path: Path) -> None:
    """A table that no party has as a whole: silos hold columns, clients hold rows, hubs exchange phi."""
    picture = Picture(WIDTH, 580, "Silos hold columns, clients hold rows, and hubs exchange phi")
    picture.style(_tones())
    picture.text(WIDTH / 2, 34, "One table, split both ways. No party has all of it.", "title")
    for name, (left, columns, clients) in SILOS.items():
        _silo(picture, name, left, columns, clients)
    picture.text(365, TOP + 7 * CELL[1], "the same", "soft")
    picture.text(365, TOP + 7 * CELL[1] + 16, "customers", "soft")
    for row in (0, 3, 8, 11):
        middle = TOP + (row + 1.5) * CELL[1]
        picture.line([(306, middle), (424, middle)], "life")
    _hubs(picture)
    picture.save(path)


def _silo(picture: Picture, name: str, left: int, columns: list[str], clients: list[tuple[str, int, int]]) -> None:
    """Its columns as a table, cut into the rows of its clients."""
    wide, high = CELL
    picture.text(left, 68, f"Silo “{name}”", "title", "start")
    picture.text(left, 88, "holds these columns of every customer", "soft", "start")
    for number, column in enumerate(columns):
        picture.text(left + (number + 0.5) * wide, TOP + 13, column, "soft")
    for number, (client, first, last) in enumerate(clients):
        for row in range(first, last):
            for column in range(len(columns)):
                picture.box(
                    left + column * wide + 1, TOP + (row + 1) * high + 1, wide - 2, high - 2, f"cell tone{number}"
                )
        middle = TOP + (1 + (first + last) / 2) * high
        side = left + len(columns) * wide + 8
        picture.text(side, middle - 8, f"Client “{client}”", "strong", "start")
        picture.text(side, middle + 9, "holds these rows", "soft", "start")
    bottom = TOP + (ROWS + 1) * high + 6
    centre = left + 1.5 * wide
    picture.line([(centre - 8, bottom), (centre - 8, HUB - 4)], "message")
    picture.line([(centre + 8, HUB - 4), (centre + 8, bottom)], "message")
    picture.text(centre + 20, bottom + 24, "to the hub: phi, block", "sent", "start")
    picture.text(centre + 20, bottom + 41, "back: block, others’ phi", "sent", "start")


def _hubs(picture: Picture) -> None:
    """Where they are, what they send each other, and what the model adds up."""
    for name, (left, _, _) in SILOS.items():
        picture.box(left, HUB, 190, 52, "hub")
        picture.text(left + 95, HUB + 22, f"Hub of “{name}”", "strong")
        picture.text(left + 95, HUB + 41, "averages its clients", "soft")
    picture.line([(236, HUB + 18), (424, HUB + 18)], "message")
    picture.line([(424, HUB + 34), (236, HUB + 34)], "message")
    picture.text(WIDTH / 2 - 30, HUB + 8, "phi", "sent")
    for line, words in enumerate(
        [
            "block = a silo’s part of the model, the same at all its clients when a round begins",
            "phi = what a silo’s block makes of its columns of a customer: a number or a few",
            "score of a customer = phi of the bank + phi of the bureau",
        ]
    ):
        picture.text(WIDTH / 2, 506 + 25 * line, words, "strong")


def _tones() -> str:
    light, dark = (
        "".join(f".{name}{{fill:{colour}}}" for name, colour in tones.items() if name != "grid")
        + f".cell{{stroke:{tones['grid']}}}"
        for tones in TONES.values()
    )
    return f".strong{{font-weight:600}}.hub{{stroke:#7d8fa3}}{light}@media (prefers-color-scheme: dark){{{dark}}}"


def icon(path: Path) -> None:
    """A table that is cut both ways."""
    cells = [(2, 2, "#3f51b5"), (18, 2, "#7986cb"), (2, 12, "#7986cb"), (18, 18, "#3f51b5"), (2, 22, "#3f51b5")]
    heights = [8, 14, 8, 12, 8]
    parts = [
        f'<rect x="{x}" y="{y}" width="12" height="{height}" rx="2" fill="{colour}"/>'
        for (x, y, colour), height in zip(cells, heights, strict=True)
    ]
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">{"".join(parts)}</svg>\n', "utf-8")


def draw(folder: Path) -> None:
    """Both pictures into a folder."""
    idea(folder / "idea.svg")
    icon(folder / "icon.svg")


if __name__ == "__main__":
    draw(HERE)
