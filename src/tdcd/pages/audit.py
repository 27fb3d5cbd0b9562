"""The page of an audit, and its numbers as JSON."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tdcd.audit.audit import Audit
from tdcd.audit.lines import BY_KEY, NOT_TRIED, PARTLY, RECOVERED, AuditFinding, reading, remedy
from tdcd.audit.modes import Mode, group_of, is_configured, no_slopes
from tdcd.audit.tables import numbers, of_line, of_modes, share
from tdcd.core.words import counted
from tdcd.pages.kit import html
from tdcd.pages.kit.chart import Curve, line_figure
from tdcd.pages.kit.html import Html, escape

STRONGEST = 78
"""Per cent of the alarm colour in a cell where everything was recovered."""
READING = [
    (
        "Recovered",
        "Of columns: the part of their variance that the attacker's estimate explains, as a mean over the columns; 1 "
        "is exact, 0 is no better than the column's mean. Of labels: AUC for two classes, accuracy for several, "
        "squared correlation for amounts. Of membership and of groups of rows: AUC. Of several silos, the one that "
        "fared worst.",
    ),
    (
        "Guess",
        "The same without the transcript. With known rows: a regression on the attacker's own columns, and the labels "
        "if it has them. Without: the column's mean, a coin, or the most frequent class.",
    ),
    (
        "Colour",
        "The part of the gap between the guess and everything that the transcript closes. No colour does not mean that "
        "it is safe: it means that this attack gained nothing.",
    ),
    ("Known rows", "Rows of the attacked silo that the attacker has from elsewhere, such as customers that both have."),
    (
        "Score",
        "What a mode keeps, from 0 to 1: the mean over the rows above of 1 less the part of the gap that its attack "
        "closes. A row whose party has it by the rules keeps nothing, one without such a party all, and one that was "
        "not tried is not counted. It compares modes of one audit, and is no promise.",
    ),
    (
        "Distance",
        "How far a mode is from the ideal, a score of 1 at the utility of the best mode: the square root of the mean "
        "of both squared gaps (Zou et al. 2024, VFLAIR). Utility is that of the rounds that were attacked.",
    ),
    ("*", "What the configuration asks for."),
]


def write_page(audit: Audit, out: Path) -> Path:
    """Write ``audit.html`` and ``audit.json`` into ``out``.

    Returns:
        The page's path.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "audit.json").write_text(json.dumps(numbers(audit), indent=1) + "\n", encoding="utf-8")
    path = out / "audit.html"
    path.write_text(page(audit), encoding="utf-8", newline="\n")
    return path


def page(audit: Audit) -> Html:
    """The whole page."""
    planned = audit.planned
    federation, title = planned.federation, planned.config.title
    blocks = sorted({type(block).__name__.lower() for block in planned.blocks})
    return html.page(
        f"{title} · tdcd audit",
        html.header(
            "tdcd audit",
            title,
            [
                counted(federation.num_silos, "silo"),
                f"{', '.join(blocks)} blocks",
                f"{planned.objective.kind.name} loss",
                f"{audit.rounds} of {counted(planned.config.train.rounds, 'round')}",
                f"{audit.num_rows:,} of {federation.num_samples:,} samples attacked",
            ],
        ),
        html.notice(_verdict(audit), "alarm" if _worst(audit) >= RECOVERED else "note"),
        html.section(
            "What attacks recovered",
            html.paragraph(
                "Each cell is one attack in one protection mode: what it recovered, and below it what the attacker "
                "would have guessed without the transcript. The redder, the more the transcript gave away."
            ),
            heat_map(audit),
        ),
        html.section("How it grows", html.figures(_figures(audit))) if audit.over_rounds else Html(""),
        *_details(audit),
        html.section("What was not tried", _listed((*NOT_TRIED, *_left_out(audit)))),
        html.section("How to read this", html.definitions(READING)),
    )


def _left_out(audit: Audit) -> list[str]:
    """The modes that the loss does not have, in a sentence."""
    problem = no_slopes(audit.planned)
    return [f"Labels at one silo: {problem}."] if problem else []


def _worst(audit: Audit) -> float:
    """The largest gain in the mode that the configuration asks for; in any, if it asks for another."""
    asked = [finding for finding in audit.findings if is_configured(finding.mode, audit.planned)] or audit.findings
    return max((finding.gain for finding in asked if not finding.holds), default=0.0)


def _verdict(audit: Audit) -> str:
    """What the configuration as it is gives away, in a few sentences."""
    asked = [mode for mode in audit.modes if is_configured(mode, audit.planned)]
    if not asked:
        return "The configuration asks for a mode that is not among these; read the one that is closest to it."
    findings = [audit.worst(key, asked[0]) for key in audit.lines]
    lost = [finding for finding in findings if finding is not None and finding.gain >= RECOVERED and not finding.holds]
    partly = [
        finding
        for finding in findings
        if finding is not None and PARTLY <= finding.gain < RECOVERED and not finding.holds
    ]
    start = f"As configured ({group_of(asked[0], audit.planned)}, {asked[0].name}): "
    if not lost and not partly:
        return start + "no attack here gained anything. That is no proof: see what was not tried."
    parts = [f"{counted(len(lost), 'attack')} got nearly everything, on {_targets(lost)}"] if lost else []
    parts += [f"{counted(len(partly), 'attack')} got a part, on {_targets(partly)}"] if partly else []
    return start + "; ".join(parts) + "."


def _targets(findings: list[AuditFinding]) -> str:
    return ", ".join(f"{BY_KEY[finding.line].target} ({BY_KEY[finding.line].party})" for finding in findings)


def heat_map(audit: Audit) -> Html:
    """Party and target by mode."""
    groups = [(name, list(modes)) for name, modes in groupby(audit.modes, lambda mode: group_of(mode, audit.planned))]
    top = "".join(f'<th scope="colgroup" colspan="{len(modes)}">{escape(name)}</th>' for name, modes in groups)
    names = "".join(
        f'<th scope="col">{escape(mode.name + " *" * is_configured(mode, audit.planned))}</th>' for mode in audit.modes
    )
    body = []
    for key in audit.lines:
        line = BY_KEY[key]
        cells = "".join(_cell(audit, key, mode) for mode in audit.modes)
        body.append(f'<tr><th scope="row">{escape(line.party)}<small>{escape(line.target)}</small></th>{cells}</tr>')
    for name, value, words in of_modes(audit):
        cells = "".join(f"<td>{share(value(mode))}</td>" for mode in audit.modes)
        body.append(f'<tr><th scope="row">{name}<small>{words}</small></th>{cells}</tr>')
    lines = "\n".join(body)
    return Html(
        f'<div class="scroll"><table class="heat">\n<thead><tr><td></td>{top}</tr>\n<tr><td></td>{names}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _cell(audit: Audit, key: str, mode: Mode) -> str:
    finding = audit.worst(key, mode)
    if finding is None:
        return '<td class="none" title="There is no such party in this mode."></td>'
    now = f" What to do now: {remedy(finding)}" if remedy(finding) else ""
    title = escape(f"{finding.party}{' on ' + finding.silo if finding.silo else ''}: {reading(finding)}{now}")
    if finding.recovered is None:
        return f'<td class="none" title="{title}">not tried</td>'
    if finding.holds and finding.bound is None:
        return f'<td class="none" title="{title}">has them</td>'
    per_cent = round(STRONGEST * min(1.0, finding.gain))
    colour = f"background: color-mix(in srgb, var(--heat) {per_cent}%, var(--surface))"
    return f'<td style="{colour}" title="{title}">{share(finding.recovered)}<small>{share(finding.guess)}</small></td>'


def _figures(audit: Audit) -> Iterator[tuple[Html, str]]:
    silo = audit.planned.federation.silos[0].name
    for sweeps, axis, caption in (
        (audit.over_rounds, "rounds seen", f"Columns of {silo}, as the run gets longer"),
        (audit.over_known_rows, "rows that the attacker knows", f"Columns of {silo}, seen by another hub"),
    ):
        curves = [Curve(sweep.label, sweep.x, sweep.y) for sweep in sweeps]
        yield line_figure(curves, axis, "variance explained", log_y=False), caption


def _details(audit: Audit) -> Iterator[Html]:
    for key in audit.lines:
        line = BY_KEY[key]
        yield html.section(
            f"{line.party[0].upper()}{line.party[1:]}: {line.target}",
            html.paragraph(f"{line.attack} ({line.reference}.)"),
            html.table(*of_line(audit, key), prose=True),
            *_what_now(audit, key),
        )


def _what_now(audit: Audit, key: str) -> Iterator[Html]:
    """What to do where a cell of the line is red."""
    findings = [audit.worst(key, mode) for mode in audit.modes]
    words = {remedy(finding) for finding in findings if finding is not None} - {""}
    yield from (html.paragraph(f"What to do now: {sentence}") for sentence in sorted(words))


def _listed(items: tuple[str, ...]) -> Html:
    lines = "\n".join(f"<li>{escape(item)}</li>" for item in items)
    return Html(f"<ul>\n{lines}\n</ul>")
