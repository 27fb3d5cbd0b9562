"""What the live page shows: the parts of each run, and several runs side by side, made of the kit."""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import numpy as np

from tdcd.core.certificate import rounded_up
from tdcd.core.words import bytes_in_words, counted, duration, figure, metric_title, visible
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import COLOURS, DASHES, Curve, line_figure
from tdcd.pages.kit.federation import FEW, DrawnParty, DrawnSilo, federation_svg
from tdcd.pages.kit.html import Html, escape
from tdcd.pages.live.history import ThinnedHistory

FEW_RUNS = 3
"""So many are all open at the start."""
MOST_LINES = len(COLOURS) * len(DASHES)
"""The most lines in the figure of all runs."""
MANY_POINTS, SELDOM_S = 200, 5.0
"""Curves with more points are drawn once in some seconds: of a long curve, a second's points cannot be seen."""
DAMAGED_FILES = "Files of this run are damaged; the training is not affected by that."
SMALL = 324, 216
"""The size of a chart: two have room next to each other where two runs do."""
KINDS = {
    "simulation": "simulation",
    "hub": "hub",
    "trial": "trial of all parties",
    "party": "party that waits for jobs",
    "nothing": "no run yet",
}
CALM = ("standing by", "running", "finished", "empty", "reading")
LINKS = {"client_to_hub": "clients to hubs", "hub_to_client": "hubs to clients", "hub_to_hub": "hub to hub"}
HEAD = ["state", "round", "training loss", "held-out loss", "time left", "sent"]
SIGNS = {"waited for": "…", "left out": "×", "revoked": "!", "away": "–", "unknown": "?", "ended": "✓"}
WORDS = {
    "simulated": "in this simulation",
    "connected": "connected",
    "waited for": "waited for",
    "left out": "left out",
    "revoked": "certificate revoked",
    "away": "not connected",
    "ended": "done",
    "unknown": "not known here",
}
ALARMS = ("waited for", "left out", "revoked", "away")
MOST_NAMED = 12
LONGEST_CLIENT = 7
"""Letters of a client's name below its circle."""

_DIGEST = re.compile(r"[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9]{1,9}")

RunFacts = Mapping[str, Any]
"""A run as :meth:`tdcd.pages.live.run.WatchedRun.facts` says it."""


class Asked(NamedTuple):
    """What a page wants to know."""

    opened: frozenset[int] = frozenset()
    """The runs that are opened on the page, by number."""
    shut: frozenset[int] = frozenset()
    chosen: str = ""
    """The figure to compare."""
    have: frozenset[str] = frozenset()
    """The digests of the parts that the page has."""


NOTHING_ASKED = Asked()


def asked_in(query: str) -> Asked:
    """What the query of an address asks for.

    >>> asked_in("open=0,2&figure=loss.test").chosen
    'loss.test'
    """
    given = dict(parse_qsl(query, max_num_fields=4))
    if unknown := given.keys() - {"open", "shut", "figure", "have"}:
        raise ValueError(f"{'; '.join(unknown)!r:.40} is not a field of this address")
    have, opened, shut = (frozenset(filter(None, given.get(key, "").split(","))) for key in ("have", "open", "shut"))
    if not all(map(_DIGEST.fullmatch, have)) or not all(map(_NUMBER.fullmatch, opened | shut)):
        raise ValueError("have is a list of digests, open and shut are lists of runs' numbers, with commas")
    return Asked(frozenset(map(int, opened)), frozenset(map(int, shut)), given.get("figure", ""), have)


@dataclass
class Drawn:
    """Charts as they were drawn last, by whose they are; long ones stay as they are for some seconds."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[str, object], tuple[object, float, Html]] = field(default_factory=dict)

    def again(self, key: tuple[str, object], content: object, points: int, draw: Callable[[], Html]) -> Html:
        """What ``draw`` gives, or gave last if there is no other ``content``, or if it is too soon for ``points``."""
        known, now = self._known.get(key), self.clock()
        if known and (known[0] == content or (points > MANY_POINTS and now - known[1] < SELDOM_S)):
            return known[2]
        self._known[key] = content, now, draw()
        return self._known[key][2]

    def forget(self, runs: Container[int]) -> None:
        """Forget the charts of all but these ``runs``."""
        self._known = {key: known for key, known in self._known.items() if key[0] != "run" or key[1] in runs}


def part(name: str, markup: Html, have: frozenset[str]) -> dict[str, Any]:
    """A part of the page by its digest, and as elements if the page does not have it."""
    digest = hashlib.sha256(markup.encode()).hexdigest()[:16]
    return {"name": name, "digest": digest} | ({} if digest in have else {"tree": html.tree(markup)})


def run_parts(run: RunFacts, drawn: Drawn) -> Iterator[tuple[str, Html]]:
    """One run by parts: its state and figures, curves, federation, time and bytes. A party has jobs and links."""
    yield "head", html.join(_head(run))
    if run["kind"] == "party":
        yield "jobs", _section("Jobs", _jobs(run)) if "jobs" in run else Html("")
        yield "links", _section("This party", html.definitions(run["links"])) if "links" in run else Html("")
        return
    yield "figures", _figures(run, drawn)
    yield "federation", _section("Federation", _federation(run)) if run.get("silos") else Html("")
    yield "time", _section("Work and waiting", html.bars(map(_time, run["time"]))) if run.get("time") else Html("")
    yield "bytes", _section("Bytes sent", html.bars(_bytes(run["latest"]))) if run.get("latest") else Html("")


def _section(title: str, *parts: Html) -> Html:
    return Html(f"<section><h3>{escape(title)}</h3>{html.join(parts)}</section>")


def _head(run: RunFacts) -> Iterator[Html]:
    state = str(run["state"])
    yield Html(f'<h2>{escape(run["name"])} <span class="badge {escape(state)}">{escape(state)}</span></h2>')
    samples = counted(run["samples"], "sample") if run.get("samples") else ""
    facts = [run["group"], run.get("title", ""), KINDS[run["kind"]], samples]
    yield Html(f'<p class="facts">{escape(" · ".join(filter(None, facts)))}</p>')
    if run["words"]:
        yield html.notice(run["words"], "note" if state in CALM else "alarm")
    yield from (html.notice(problem, "alarm") for problem in run["problems"])
    if run.get("rounds"):
        done = min(1.0, run["round"] / run["rounds"])
        yield Html(f'<progress max="1" value="{done:.4f}">{done:.0%}</progress>')
    if run.get("latest") or run.get("rounds"):
        yield html.key_figures(_cards(run))


def _jobs(run: RunFacts) -> Html:
    """The queue, and the jobs that are over: what each is for, who has approved it, and what it waits for."""
    jobs = run["jobs"]
    if not jobs:
        return html.paragraph("There is no job yet: tdcd propose makes one.")
    hubs = [*dict.fromkeys(party for job in jobs for party, _ in job["answers"])]
    return html.table(
        ["job", "what", "purpose", "proposed", *hubs, "state"],
        (
            [
                job["job"],
                job["kind"],
                job["purpose"],
                f"{job['proposed']} by {job['proposer']}",
                *(dict(job["answers"]).get(hub) or "–" for hub in hubs),
                job["state"],
            ]
            for job in jobs
        ),
    )


def _cards(run: RunFacts) -> Iterator[html.KeyFigure]:
    latest = run.get("latest")
    yield html.KeyFigure("round", f"{run['round']:,}" + (f" of {run['rounds']:,}" if run["rounds"] else ""))
    if run["left_s"] is not None:
        yield html.KeyFigure("time left", duration(run["left_s"]))
    if not latest:
        return
    yield html.KeyFigure("training time", "–" if latest["seconds"] is None else duration(latest["seconds"]))
    yield html.KeyFigure("training loss", figure(latest["train_loss"]))
    if latest.get("gap") is not None:
        yield html.KeyFigure("above the best possible", f"at most {rounded_up(latest['gap'])}")
    elif latest.get("gradient_norm") is not None:
        yield html.KeyFigure("gradient norm", figure(latest["gradient_norm"]))
    if latest["test_loss"] is not None:
        yield html.KeyFigure("held-out loss", figure(latest["test_loss"]))
    split = "test" if latest["metrics"].get("test") else "train"
    for name, value in latest["metrics"].get(split, {}).items():
        yield html.KeyFigure(column_title(f"{name}.{split}"), figure(value))


def column_title(name: str) -> str:
    """What a column of the history is called.

    >>> column_title("auc.test"), column_title("loss.train")
    ('held-out AUC', 'training loss')
    """
    metric, _, split = name.rpartition(".")
    return f"{'held-out' if split == 'test' else 'training'} {metric_title(metric)}"


def _figures(run: RunFacts, drawn: Drawn) -> Html:
    curve: ThinnedHistory | None = run.get("curve")
    if curve is None or not curve.points:
        return Html("")

    def draw() -> Html:
        metrics: dict[str, list[str]] = {}
        for name in curve.columns:
            metrics.setdefault(name.rpartition(".")[0], []).append(name)
        return html.figures(
            (
                line_figure([_curve(curve, name) for name in names], "round", metric_title(metric), size=SMALL),
                _capital(metric_title(metric)),
            )
            for metric, names in metrics.items()
        )

    return drawn.again(("run", run["id"]), (id(curve), curve.num_lines), len(curve.points), draw)


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _curve(curve: ThinnedHistory, name: str, label: str = "") -> Curve:
    """One column of a run, with its last figure; by default its label says of which samples it is."""
    if name not in curve.columns:
        return Curve(label, [], [])
    place = curve.columns.index(name)
    rounds = [point.round for point in curve.points]
    last, low, high = (
        np.array([getattr(point, kind)[place] for point in curve.points], np.float64)
        for kind in ("last", "low", "high")
    )
    split = "held-out" if name.endswith(".test") else "training"
    spread = np.stack([last - low, high - last]) if curve.stride > 1 else None
    return Curve(label or split, rounds, last, spread, note=figure(last[-1]))


def _federation(run: RunFacts) -> Html:
    silos, hidden = run["silos"], run["num_silos"] - len(run["silos"])
    parties = [
        *((f"hub of {silo['name']}", silo["hub"]) for silo in silos),
        *((f"{client['name']} of {silo['name']}", client) for silo in silos for client in silo["clients"]),
    ]
    words = f"The federation: {counted(run['num_silos'], 'silo')}"
    per_line = FEW if len(silos) <= 2 * FEW else FEW + 1
    drawn = [*map(_silo, silos)]
    drawing = federation_svg(drawn, words, num_hidden=max(0, hidden), per_line=per_line, width=280 * per_line)
    return html.join([html.wide(drawing), *_states(parties)])


def _states(parties: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Html]:
    """How many parties are in each state, and the names of those that need attention."""
    states = [party["state"] for _, party in parties]
    pills = [
        f'<span class="pill {_kind(state)}">{SIGNS.get(state, "●")} {states.count(state):,} {WORDS[state]}</span>'
        for state in WORDS
        if state in states and state != "simulated"
    ]
    if pills:
        yield Html(f'<p class="pills">{" ".join(pills)}</p>')
    named = [
        f'<li class="{_kind(party["state"])}">{escape(f"{name}: {_stands(party)}")}</li>'
        for name, party in parties
        if party["state"] in ALARMS
    ]
    if named:
        yield Html(f'<ul class="missing">{"".join(named[:MOST_NAMED])}</ul>')


def _silo(silo: Mapping[str, Any]) -> DrawnSilo:
    features = silo["features"]
    columns = f"{' × '.join(map(str, features))} pixels" if len(features) > 1 else ""
    columns = columns or "".join(counted(count, "column") for count in features)
    words = ", ".join(filter(None, [columns, counted(silo["num_clients"], "client")]))
    hub = DrawnParty("hub", f"hub of {silo['name']}: {_stands(silo['hub'])}", _kind(silo["hub"]["state"]))
    clients = [
        DrawnParty(
            name if len(name) <= LONGEST_CLIENT else name[: LONGEST_CLIENT - 1] + "…",
            f"{name}: {_stands(client)}" + ("" if client["rows"] is None else f", {counted(client['rows'], 'row')}"),
            _kind(client["state"]),
            SIGNS.get(client["state"], ""),
            client["rows"],
        )
        for client in silo["clients"]
        for name in [str(client["name"])]
    ]
    hidden = silo["num_clients"] - len(clients)
    return DrawnSilo(silo["name"], words, f"{silo['name']}: {words}", float(math.prod(features)), hub, clients, hidden)


def _stands(party: Mapping[str, Any]) -> str:
    seconds = party["seconds"]
    return WORDS[party["state"]] + (f", {duration(seconds)}" if seconds else "")


def _kind(state: str) -> str:
    return state.replace(" ", "-")


def _time(hub: Mapping[str, Any]) -> html.Bar:
    """How long a hub's silo worked and waited."""
    total = hub["worked"] + hub["waited_in_all"] or 1.0
    percent = round(100 * hub["worked"] / total)
    longest = [f"{party} {duration(seconds)}" for party, seconds in hub["waited"][:3] if seconds > 0]
    waited = f", for {', '.join(longest)}{', …' if len(hub['waited']) > 3 else ''}" if longest else ""
    words = f"worked {percent} % ({duration(hub['worked'])}), waited {100 - percent} %{waited}"
    return html.Bar(hub["party"], [("work", hub["worked"] / total), ("wait", hub["waited_in_all"] / total)], words)


def _bytes(latest: Mapping[str, Any]) -> Iterator[html.Bar]:
    """Bytes since the start by kind of link; those of evaluations, where they were counted, in a line of their own."""
    sent, rounds = latest["bytes"], latest["round"]
    yield from html.shares(
        (
            title,
            sent[link],
            bytes_in_words(sent[link]) + (f", {bytes_in_words(sent[link] // rounds)} per round" if rounds else ""),
        )
        for link, title in LINKS.items()
    )
    if latest.get("evaluation_bytes"):
        evaluated = sum(latest["evaluation_bytes"].values())
        yield html.Bar("evaluations", [], f"{bytes_in_words(evaluated)} in addition")


# Several runs.


def is_open(run: RunFacts, runs: Sequence[RunFacts], asked: Asked) -> bool:
    """Whether the page shows all of a run: what the user chose, else all of a few, or of many the first that runs."""
    if run["id"] in asked.opened | asked.shut:
        return run["id"] in asked.opened
    first = next((run for run in runs if run["state"] in ("running", "waiting")), runs[0])
    return len(runs) <= FEW_RUNS or run["id"] == first["id"]


def together(runs: Sequence[RunFacts], hidden: int, shown: Sequence[int], chosen: str, drawn: Drawn) -> Html:
    """A table of several runs, and one figure of all of them.

    Args:
        hidden: further runs, which are counted.
        shown: the runs of which all is shown.
        chosen: a column; the held-out loss where there is no such one, which is what people ask for first.
    """
    columns = [*dict.fromkeys(name for run in runs if run.get("curve") for name in run["curve"].columns)]
    usual = "loss.test" if "loss.test" in columns else "loss.train"
    name = chosen if chosen in columns else usual
    options = "".join(
        f'<option value="{escape(column)}"{" selected=" + chr(34) * 2 if column == name else ""}>'
        f"{escape(column_title(column))}</option>"
        for column in columns
    )
    rows = "\n".join(_safe_row(run, place, is_shown=run["id"] in shown) for place, run in enumerate(runs))
    head = "".join(f'<th scope="col">{title}</th>' for title in ("run", *HEAD))
    more = f"{hidden:,} more {'run is' if hidden == 1 else 'runs are'} not shown: give fewer folders."
    return Html(
        f'<h2>Side by side</h2><div class="pair"><div><label class="choice">Figure '
        f'<select aria-label="Figure to compare">{options}</select></label>{_all_runs(runs, name, drawn)}</div>'
        f'<div><div class="scroll"><table class="numbers">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n'
        f"</tbody>\n</table></div>{html.paragraph('A click on a name opens or closes the run below.')}"
        f"{html.paragraph(more) if hidden else ''}</div></div>"
    )


def _safe_row(run: RunFacts, place: int, *, is_shown: bool) -> str:
    try:
        return _row(run, place, is_shown=is_shown)
    except Exception:
        # Its own part says what is wrong.
        return _row(_damaged(run), place, is_shown=is_shown)


def _row(run: RunFacts, place: int, *, is_shown: bool) -> str:
    latest = run.get("latest") or {}
    cells = [
        run["state"],
        f"{run.get('round', 0):,}" + (f"/{run['rounds']:,}" if run.get("rounds") else ""),
        figure(latest.get("train_loss")),
        figure(latest.get("test_loss")),
        "–" if run.get("left_s") is None else duration(run["left_s"]),
        bytes_in_words(sum(latest["bytes"].values())) if latest else "–",
    ]
    path = "/".join(filter(None, [run["group"], run["name"]]))
    button = (
        f'<button type="button" data-toggle="{run["id"]}" aria-expanded="{"true" if is_shown else "false"}" '
        f'title="{escape(path)}">{escape(run["name"])}</button>'
    )
    swatch = f'<i class="swatch" style="background: {COLOURS[place % len(COLOURS)]}"></i>'
    return f'<tr><th scope="row">{swatch}{button}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'


def _all_runs(runs: Sequence[RunFacts], name: str, drawn: Drawn) -> Html:
    curves = [(str(run["name"]), run.get("curve") or ThinnedHistory()) for run in runs[:MOST_LINES]]

    def draw() -> Html:
        lines = [_curve(curve, name, label) for label, curve in curves]
        return html.figures(
            [
                (
                    line_figure(lines, "round", metric_title(name.rpartition(".")[0]), keys=False, size=SMALL),
                    _capital(column_title(name)),
                )
            ]
        )

    content = [(label, curve.num_lines, len(curve.points)) for label, curve in curves]
    return drawn.again(("together", name), content, sum(len(curve.points) for _, curve in curves), draw)


def title(runs: Sequence[RunFacts]) -> str:
    """The title of the browser's tab."""
    if len(runs) == 1:
        (run,) = runs
        return f"{run.get('round', 0)}/{run.get('rounds', 0)} · {run['name']} · tdcd watch"
    return f"{counted(len(runs), 'run')} · tdcd watch"


def as_json(runs: Sequence[RunFacts], hidden: int, drawn: Drawn, asked: Asked, **more: Any) -> str:
    """All that the page shows, without the parts that it has."""
    shown = [run["id"] for run in runs if is_open(run, runs, asked)]
    drawn.forget({run["id"] for run in runs})
    answer = {
        **more,
        "title": visible(title(runs)),
        "together": None,
        "runs": [
            {"id": run["id"], "name": visible(run["name"]), "state": run["state"], "round": run.get("round")}
            | {"parts": [part(name, markup, asked.have) for name, markup in _safe_parts(run, drawn)]}
            for run in runs
            if run["id"] in shown
        ],
    }
    if len(runs) > 1:
        answer["together"] = part("together", together(runs, hidden, shown, asked.chosen, drawn), asked.have)
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def _safe_parts(run: RunFacts, drawn: Drawn) -> list[tuple[str, Html]]:
    """One run by parts; only its state where a file says what no file of a run should."""
    try:
        return [*run_parts(run, drawn)]
    except Exception as error:
        return [("head", html.join([*_head(_damaged(run)), html.notice(f"{error!r:.200}", "alarm")]))]


def _damaged(run: RunFacts) -> RunFacts:
    known = {key: run[key] for key in ("id", "name", "group", "kind")}
    return {**known, "state": "damaged", "words": DAMAGED_FILES, "problems": run["problems"]}
