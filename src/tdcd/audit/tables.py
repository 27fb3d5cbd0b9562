"""An audit's tables, for the page and for the terminal, and its numbers for other programs."""

from typing import Any

from tdcd.audit.audit import Audit
from tdcd.audit.lines import BY_KEY, Finding
from tdcd.audit.modes import Mode, group_of, is_configured
from tdcd.audit.readings import NOT_TRIED, reading
from tdcd.report.text_table import TextTable


def share(value: float | None) -> str:
    """A part of 1, to two figures; a dash where there is none.

    >>> share(0.999), share(None)
    ('1.00', '–')
    """
    return "–" if value is None else f"{value:.2f}"


def overview(audit: Audit) -> TextTable:
    """One row per party and target, one column per mode: recovered / guess."""
    head = ["party: what it is after", *(mode_title(audit, mode) for mode in audit.modes)]
    rows = []
    for key in audit.lines:
        line = BY_KEY[key]
        cells = [_cell(audit.worst(key, mode)) for mode in audit.modes]
        rows.append([f"{line.party}: {line.target}", *cells])
    return TextTable(head, rows)


def _cell(finding: Finding | None) -> str:
    if finding is None or finding.recovered is None:
        return "–"
    return (
        "has it" if finding.holds and finding.bound is None else f"{share(finding.recovered)} ({share(finding.guess)})"
    )


def mode_title(audit: Audit, mode: Mode) -> str:
    """Who has labels, and the mode; marked if the configuration asks for it."""
    title = f"{group_of(mode, audit.planned)}, {mode.name}"
    return f"{title} *" if is_configured(mode, audit.planned) else title


def of_line(audit: Audit, key: str) -> TextTable:
    """One row per mode: the silo that fared worst, what was recovered, and what to make of it."""
    head = ["mode", "what the attacker sees", "recovered", "best column", "guess", "reading"]
    rows = []
    for mode in audit.modes:
        found = audit.worst(key, mode)
        if found is not None:
            sees = f"{found.party}: {found.sees}" + (f"; {found.known} are known" if found.known else "")
            silo = f" of {found.silo}" if found.silo and found.recovered is not None else ""
            rows.append(
                [
                    mode_title(audit, mode),
                    sees,
                    f"{share(found.recovered)}{silo}",
                    best(found),
                    share(None if found.recovered is None else found.guess),
                    reading(found),
                ]
            )
    return TextTable(head, rows)


def best(finding: Finding) -> str:
    """The column that was recovered best."""
    name = finding.best_column
    return "–" if name is None else f"{share(finding.columns[name])} {name}"


def numbers(audit: Audit) -> dict[str, Any]:
    """Everything that the page shows, and all silos, for other programs."""
    planned = audit.planned
    return {
        "data": planned.federation.name,
        "rounds": audit.rounds,
        "rows": audit.num_rows,
        "modes": [_mode(audit, mode) for mode in audit.modes],
        "findings": [_finding(audit, found) for found in audit.findings],
        "over_rounds": [vars(sweep) for sweep in audit.over_rounds],
        "over_known_rows": [vars(sweep) for sweep in audit.over_known_rows],
        "not_tried": list(NOT_TRIED),
    }


def _mode(audit: Audit, mode: Mode) -> dict[str, Any]:
    return {
        "labels": group_of(mode, audit.planned),
        "configured": is_configured(mode, audit.planned),
        **{key: value for key, value in vars(mode).items() if key != "label_silo"},
    }


def _finding(audit: Audit, found: Finding) -> dict[str, Any]:
    line = BY_KEY[found.line]
    return {
        "line": found.line,
        "attack": line.attack,
        "target": line.target,
        "mode": audit.modes.index(found.mode),
        **{key: value for key, value in vars(found).items() if key not in ("line", "mode")},
        "gain": found.gain,
        "reading": reading(found),
    }
