"""The part of a report about settings: by section, those that differ from the default first."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tdcd.config.schema import Config, SiloSection
from tdcd.report import html
from tdcd.report.folder import Run
from tdcd.report.html import Html
from tdcd.report.units import counted


def settings(run: Run) -> Html:
    """All settings of a run."""
    chosen: dict[str, list[tuple[str, str]]] = {}
    default: dict[str, list[tuple[str, str]]] = {}
    for section, key, value, usual in _every(run):
        target = default if value == usual else chosen
        target.setdefault(section, []).append((key, _text(value)))
    parts = [_groups(chosen)] if chosen else [html.paragraph("Every setting has its default.")]
    if default:
        count = sum(map(len, default.values()))
        verb = "has its default" if count == 1 else "have their defaults"
        parts.append(html.folded(f"{counted(count, 'more setting')} {verb}", _groups(default)))
    engine = run.federation.engine
    words = [html.paragraph(f"The rounds were simulated by the engine “{engine}”.")] if engine else []
    return html.section("Settings", *words, *parts)


def _groups(groups: Mapping[str, list[tuple[str, str]]]) -> Html:
    return html.grouped_table(["setting", "value"], groups.items())


def _every(run: Run) -> Iterator[tuple[str, str, Any, Any]]:
    """Section, dotted key, value and default of every setting in the folder."""
    usual = _defaults(run)
    for key, value in run.config.items():
        if isinstance(value, Mapping):
            for name, own in value.items():
                yield key, f"{key}.{name}", own, usual.get(key, {}).get(name)
        elif key == "silos" and isinstance(value, list) and all(isinstance(silo, Mapping) for silo in value):
            for silo in value:
                yield from _of_silo(silo)
        else:
            yield "run", key, value, usual.get(key)


def _of_silo(silo: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    title, fields = f"silo {silo.get('name', '')}", SiloSection.model_fields
    for key, value in silo.items():
        if key != "name":
            yield title, f"silos.{key}", value, fields[key].get_default() if key in fields else None


def _defaults(run: Run) -> dict[str, Any]:
    """Every key's default; for those that the data decides, what it decides here."""
    usual = Config().model_dump(mode="json")
    first = run.config.get("model", {}).get("block", usual["model"]["block"])
    usual["federation"]["bias"] = (first if isinstance(first, str) else first[0]) == "linear"
    usual["federation"]["strips"] = len(run.federation.silos[0].feature_shape) > 1
    return usual


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
