"""An audit's tables, for the page and for the terminal, and its numbers for other programs."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from tdcd.audit.audit import Audit
from tdcd.audit.lines import BY_KEY, NOT_TRIED, AuditFinding, reading, remedy
from tdcd.audit.modes import Mode, group_of, is_configured
from tdcd.core.words import TextTable


def share(value: float | None) -> str:
    """A part of 1, to two figures; a dash where there is none.

    >>> share(0.999), share(None)
    ('1.00', '–')
    """
    return "–" if value is None else f"{value:.2f}"


def overview(audit: Audit) -> list[tuple[str, TextTable]]:
    """Who has labels, and a table for each: one row per attack, one column per mode."""
    tables = []
    for group, some in groupby(audit.modes, lambda mode: group_of(mode, audit.planned)):
        modes = list(some)
        lines = [key for key in audit.lines if any(audit.worst(key, mode) for mode in modes)]
        rows = [[key, *(_cell(audit.worst(key, mode)) for mode in modes)] for key in lines]
        rows += [[name, *(share(value(mode)) for mode in modes)] for name, value, _ in of_modes(audit)]
        head = ["", *(mode.name + " *" * is_configured(mode, audit.planned) for mode in modes)]
        tables.append((group, TextTable(head, rows)))
    return tables


def of_modes(audit: Audit) -> list[tuple[str, Callable[[Mode], float | None], str]]:
    """What describes every mode as a whole: its name, a function, and what it is in a few words."""
    return [
        ("score", audit.score, "what the mode keeps"),
        ("utility", audit.utility, "held-out AUC or R² after these rounds"),
        ("distance", audit.distance, "to a score of 1 at the best utility"),
    ]


def _cell(finding: AuditFinding | None) -> str:
    if finding is None or finding.recovered is None:
        return "–"
    return (
        "has them" if finding.holds and finding.bound is None else f"{share(finding.recovered)}/{share(finding.guess)}"
    )


def of_line(audit: Audit, key: str) -> TextTable:
    """One row per mode, or for modes that are alike: the silo that fared worst, and what to make of it."""
    head = ["modes", "what the attacker sees", "recovered", "best column", "guess", "reading"]
    modes: dict[tuple[str, ...], list[Mode]] = {}
    for mode in audit.modes:
        finding = audit.worst(key, mode)
        if finding is not None:
            modes.setdefault(_cells(finding), []).append(mode)
    return TextTable(head, [[_listed(audit, some), *cells] for cells, some in modes.items()])


def _cells(finding: AuditFinding) -> tuple[str, ...]:
    """A row but for its mode."""
    known = (
        f" It knows {finding.known} {'labels' if finding.line == 'probe' else 'rows'} from elsewhere."
        if finding.known
        else ""
    )
    silo = f" of {finding.silo}" if finding.silo and finding.recovered is not None else ""
    return (
        f"{finding.party}: {finding.sees}.{known}",
        f"{share(finding.recovered)}{silo}",
        best(finding),
        share(None if finding.recovered is None else finding.guess),
        reading(finding),
    )


def _listed(audit: Audit, modes: list[Mode]) -> str:
    """Modes in words, by who has labels."""
    parts = []
    for group, some in groupby(modes, lambda mode: group_of(mode, audit.planned)):
        names = [mode.name + " *" * is_configured(mode, audit.planned) for mode in some]
        parts.append(f"{group}: {'; '.join(names)}")
    return ". ".join(parts)


def best(finding: AuditFinding) -> str:
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
        "findings": [_finding(audit, finding) for finding in audit.findings],
        "over_rounds": [vars(sweep) for sweep in audit.over_rounds],
        "over_known_rows": [vars(sweep) for sweep in audit.over_known_rows],
        "not_tried": list(NOT_TRIED),
    }


def _mode(audit: Audit, mode: Mode) -> dict[str, Any]:
    return {
        "labels": group_of(mode, audit.planned),
        "configured": is_configured(mode, audit.planned),
        **{name: value(mode) for name, value, _ in of_modes(audit)},
        **{key: value for key, value in vars(mode).items() if key not in ("knowledge", "noise")},
        "noise": None if mode.noise is None else vars(mode.noise),
    }


def _finding(audit: Audit, finding: AuditFinding) -> dict[str, Any]:
    line = BY_KEY[finding.line]
    return {
        "line": finding.line,
        "attack": line.attack,
        "target": line.target,
        "mode": audit.modes.index(finding.mode),
        **{key: value for key, value in vars(finding).items() if key not in ("line", "mode")},
        "gain": finding.gain,
        "reading": reading(finding),
        "remedy": remedy(finding),
    }
