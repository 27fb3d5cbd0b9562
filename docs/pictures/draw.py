"""Draws the two pictures of docs/architecture.md next to this file: ``python docs/pictures/draw.py``.

They carry their own background and two palettes, so that they can be read on a light and on a dark page. Texts of the
class ``code`` are names in the package; the tests look them up.
"""

from html import escape
from pathlib import Path

HERE = Path(__file__).parent

LIGHT = {
    "paper": "#ffffff",
    "band": "#eef3f8",
    "box": "#ffffff",
    "line": "#7d8fa3",
    "ink": "#1f2933",
    "soft": "#5a6b7b",
}
LIGHT |= {"code": "#0b5394", "warm": "#b45309", "core": "#e3f1e8"}
DARK = {"paper": "#12171d", "band": "#1c242d", "box": "#12171d", "line": "#7f92a6", "ink": "#e6edf3", "soft": "#a7b4c1"}
DARK |= {"code": "#7cc0ff", "warm": "#f0a35c", "core": "#173326"}

LAYERS = [
    (
        "Commands",
        [
            ("cli", "one module per|group of commands"),
            ("pages.live", "a live page|from run folders"),
            ("estimators", "scikit-learn's|interface"),
            ("pages.comparison", "and the other|studies' pages"),
        ],
    ),
    (
        "Studies",
        [
            ("audit", "attacks on what|each party sees"),
            ("reproduction", "the paper's figures|and claims"),
            ("planning", "how many local steps;|the bound of a run"),
            ("compare.comparison", "TDCD and|its baselines"),
            ("theory", "Theorem 1 and its|constants"),
        ],
    ),
    (
        "Training",
        [
            ("training", "round loop, evaluation, checkpoints,|resume, sweeps"),
            ("standing", "parties that wait for jobs|and sign what they approve"),
            ("serving", "predictions by id, from phi|that partners publish"),
        ],
    ),
    (
        "Rounds",
        [
            ("simulation", "one process, all clients at once|engines: clients, grouped, flat, full"),
            (
                "runtime",
                "hubs and clients as processes: certificates, transport,|messages, compute, machine, storage, process",
            ),
        ],
    ),
    (
        "Results",
        [
            ("prediction", "models: scores of new|samples, coefficients"),
            ("pages.report", "one HTML page|from a run folder"),
            ("pages.kit", "what all pages|are made of"),
            ("tracking", "MLflow, TensorBoard|from a run folder"),
        ],
    ),
    (
        "Inputs",
        [
            ("config.resolve", "configuration to plan;|baselines rewrite it"),
            ("alignment", "the ids that|all silos have"),
            ("tables", "CSV and Parquet|to features"),
            ("records", "history, metrics,|run folder"),
            ("config.reading", "TOML, schema,|mistakes"),
        ],
    ),
    (
        "Holdings",
        [("federation", "who holds which|columns and rows"), ("data", "embedded and public|data sets")],
    ),
    (
        "Mathematics",
        [
            ("blocks", "a silo's model:|init and phi"),
            ("core", "Algorithm 1, what a round is, the family,|losses, settings, ledger"),
        ],
    ),
]
"""From the top down, in each band from left to right: the order of [tool.importlinter] in pyproject.toml."""


class Picture:
    """An SVG in the making."""

    def __init__(self, width: int, height: int, description: str) -> None:
        """Begin with an empty sheet; ``description`` is for those who cannot see it."""
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-label="{escape(description)}">'
        )
        self._parts = [f'<rect class="paper" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="10"/>']

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """A rectangle with its corner at ``x``, ``y``."""
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """A line of text on the base line ``y``."""
        self._parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points: list[tuple[float, float]], kind: str = "arrow") -> None:
        """A line through points; with a head, unless it is the life of a party."""
        path = " ".join(f"{'L' if number else 'M'}{x},{y}" for number, (x, y) in enumerate(points))
        self._parts.append(f'<path class="{kind}" d="{path}"/>')
        if kind != "life":
            (x, y), (left, top) = points[-1], points[-2]
            over, down = (x > left) - (x < left), (y > top) - (y < top)
            corners = [(x, y), (x - 8 * over - 4 * down, y - 8 * down - 4 * over)]
            corners.append((x - 8 * over + 4 * down, y - 8 * down + 4 * over))
            self._parts.append(f'<path class="head {kind}" d="M{" L".join(f"{a},{b}" for a, b in corners)} Z"/>')

    def style(self, rules: str) -> None:
        """Rules of this picture alone."""
        self._parts.append(f"<style>{rules}</style>")

    def save(self, path: Path) -> None:
        """Write the file."""
        style = f"<style>{_rules(LIGHT)}@media (prefers-color-scheme: dark){{{_rules(DARK)}}}</style>"
        path.write_text("\n".join([self._head, style, *self._parts, "</svg>", ""]), encoding="utf-8")


def _rules(palette: dict[str, str]) -> str:
    p = palette
    return (
        f"text{{font:13px system-ui,sans-serif;fill:{p['ink']}}}.title{{font-weight:600;font-size:15px}}"
        f".soft{{fill:{p['soft']};font-size:12px}}.code{{font-family:ui-monospace,monospace;fill:{p['code']}}}"
        f".sent{{fill:{p['warm']};font-weight:600}}"
        f".paper{{fill:{p['paper']};stroke:{p['line']};stroke-opacity:.4}}.band{{fill:{p['band']}}}"
        f".box{{fill:{p['box']};stroke:{p['line']}}}.core{{fill:{p['core']};stroke:{p['line']}}}"
        f"path{{fill:none;stroke:{p['line']};stroke-width:1.4}}.life{{stroke-dasharray:2 4;opacity:.7}}"
        f".message{{stroke:{p['warm']}}}.head{{fill:{p['line']}}}.head.message{{fill:{p['warm']}}}"
    )


def layers(path: Path) -> None:
    """The folders of the package; each may import what comes after it."""
    picture = Picture(
        900, 84 + 78 * len(LAYERS), "The layers of the package, from the command line down to the algorithm"
    )
    picture.text(
        24, 34, "src/tdcd: a folder imports only what stands below it, or right of it in its band", "title", "start"
    )
    for row, (band, folders) in enumerate(LAYERS):
        top = 54 + 78 * row
        picture.box(16, top, 868, 70, "band")
        picture.text(32, top + 40, band, "title", "start")
        width = (868 - 140 - 8 * (len(folders) + 1)) / len(folders)
        for number, (name, words) in enumerate(folders):
            left = 156 + number * (width + 8)
            picture.box(left, top + 6, width, 58, "core" if name == "core" else "box")
            picture.text(left + width / 2, top + 24, name, "code folder")
            for line, part in enumerate(words.split("|")):
                picture.text(left + width / 2, top + 41 + 15 * line, part, "soft")
    picture.text(24, 54 + 78 * len(LAYERS) + 16, "simulation and runtime do not import each other.", "soft", "start")
    picture.save(path)


PROGRAM, MIDDLE, CLIENT, HUB, OTHERS = 150, 440, 702, 898, 1042
"""The columns of a round."""
ROUND = [
    ("core", 58, "line 6: minibatches from (seed, round)", ["schedule.batch_ids"], "both"),
    ("message", 60, "block: the hub's", "hub", "client"),
    ("core", 58, "line 9: every client's phi", ["algorithm.phi"], ("client", "ClientCompute.phi")),
    ("message", 40, "phi of its rows", "client", "hub"),
    (
        "core",
        75,
        "lines 11, 12: minibatch order, then sent",
        ["algorithm.stack", "Codec.encode"],
        ("hub", "HubCompute.phi_part"),
    ),
    ("message", 40, "phi", "hub", "others"),
    (
        "core",
        109,
        "lines 13, 14: what the others contribute",
        ["Codec.decode", "Knowledge.received", "algorithm.sum_others", "algorithm.project"],
        ("hub", "HubCompute.project"),
    ),
    ("message", 40, "received: the others' phi", "hub", "client"),
    (
        "core",
        109,
        "line 19: Q local steps, the others frozen",
        ["algorithm.local_steps", "algorithm.local_step", "algorithm.local_update", "Update.step"],
        ("client", "ClientCompute.steps"),
    ),
    ("message", 40, "block", "client", "hub"),
    ("core", 58, "line 5: the clients' average", ["algorithm.average"], ("hub", "HubCompute.average")),
    ("core", 58, "the hub's next block", ["HubUpdate.step"], ("hub", "HubCompute.next_block")),
]
"""From the top down: a step of Algorithm 1 with its functions and who calls them, or a message between parties."""


def a_round(path: Path) -> None:
    """A round, simulated and for real, and the functions that both call."""
    tops, end = [], 168
    for row in ROUND:
        tops.append(end)
        end += int(row[1]) + 8
    picture = Picture(
        1100, end + 92, "A round of Algorithm 1, simulated on the left and with real parties on the right"
    )
    picture.text(PROGRAM, 32, "Simulated: one process", "title")
    picture.text(MIDDLE, 32, "Algorithm 1: src/tdcd/core", "title")
    picture.text(872, 32, "Real: one process per party", "title")
    for column, name in ((CLIENT, "client"), (HUB, "hub"), (OTHERS, "other hubs")):
        picture.text(column, 56, name, "soft")
        picture.line([(column, 64), (column, end + 8)], "life")
    _simulated(picture, tops, end)
    for column, names in (
        (CLIENT, ["ClientDriver.step", "Client.receive"]),
        (HUB, ["HubDriver.step", "Hub.receive", "Rounds.advance"]),
    ):
        _stack(picture, column, 72, names)
    for row, top in zip(ROUND, tops, strict=True):
        if row[0] == "message":
            _message(picture, top, *row[2:])
        else:
            _step(picture, top, *row[1:])
    _stack(picture, HUB, end + 14, ["HubFolder.save"])
    picture.text(MIDDLE, end + 32, "the hubs' blocks begin the next round", "soft")
    picture.line([(420, end + 66), (460, end + 66)], "call")
    picture.text(468, end + 70, "calls", "soft", "start")
    picture.line([(540, end + 66), (580, end + 66)], "message")
    picture.text(588, end + 70, "message: runtime.messages over a Transport", "soft", "start")
    picture.save(path)


def _simulated(picture: Picture, tops: list[int], end: int) -> None:
    """The left column: the training loop, the engine, and the compiled program that runs a round."""
    _stack(picture, PROGRAM, 72, ["Training.train"])
    picture.line([(PROGRAM, 98), (PROGRAM, tops[0] + 16)])
    _stack(picture, PROGRAM, tops[0] + 16, ["Simulation.advance"])
    picture.line([(PROGRAM, tops[0] + 42), (PROGRAM, tops[1] - 6)])
    _stack(picture, PROGRAM, tops[1] - 6, ["Engine.prepare", "base.compiled", "base.run_rounds"])
    picture.line([(PROGRAM, tops[1] + 54), (PROGRAM, tops[2] + 8)])
    picture.box(PROGRAM - 106, tops[2] + 8, 212, end - tops[2] - 16, "band")
    picture.text(PROGRAM, tops[2] + 42, "ClientsProgram.one_round", "code")
    notes = {3: ["compiled; many rounds per call,", "all clients of a silo at once"]}
    notes[6] = ["nothing is sent: bytes are", "counted as if it were"]
    notes[8] = ["The linear engines take", "linear_step, with the same", "local_update"]
    for number, lines in notes.items():
        for line, words in enumerate(lines):
            picture.text(PROGRAM, tops[number] + 30 + 16 * line, words, "soft")
    picture.line([(PROGRAM, end - 8), (PROGRAM, end + 14)])
    _stack(picture, PROGRAM, end + 14, ["TrainingRun.checkpoint"])


def _stack(picture: Picture, column: float, top: float, names: list[str]) -> None:
    """Functions in a box, each calling the next."""
    picture.box(column - 92, top, 184, 9 + 17 * len(names))
    for line, name in enumerate(names):
        picture.text(column, top + 17 + 17 * line, name, "code")


def _step(
    picture: Picture, top: int, height: int, words: str, names: list[str], callers: str | tuple[str, str]
) -> None:
    """A step of the algorithm in the middle, and who calls it on either side."""
    centre = top + height / 2
    picture.line([(PROGRAM + 92 if callers == "both" else PROGRAM + 106, centre), (MIDDLE - 140, centre)], "call")
    picture.box(MIDDLE - 140, top, 280, height, "core")
    picture.text(MIDDLE, top + 20, words, "soft")
    for line, name in enumerate(names):
        picture.text(MIDDLE, top + 41 + 17 * line, name, "code")
    parties = [("hub", "HubCompute.holdings"), ("client", "ClientCompute.rows")] if callers == "both" else [callers]
    for party, name in parties:
        column = CLIENT if party == "client" else HUB
        picture.line([(column - 92, centre), (MIDDLE + 140, centre)], "call")
        _stack(picture, column, centre - 13, [str(name)])


def _message(picture: Picture, top: int, words: str, sender: str, receiver: str) -> None:
    """A message between two parties."""
    columns = {"client": CLIENT, "hub": HUB, "others": OTHERS}
    start, stop = columns[sender], columns[receiver]
    picture.text((start + stop) / 2, top + 14, words, "sent")
    picture.line([(start, top + 26), (stop, top + 26)], "message")
    if receiver == "others":
        picture.line([(stop, top + 34), (start, top + 34)], "message")


def draw(folder: Path) -> None:
    """Both pictures into a folder."""
    layers(folder / "layers.svg")
    a_round(folder / "round.svg")


if __name__ == "__main__":
    draw(HERE)
