"""The page of all configuration keys, made from the schema: default, allowed values and meaning of each."""

import ast
import inspect
import json
import types
from typing import Any

from pydantic import BaseModel

from tdcd.config.schema import ClientSection, Config, LinkSection

HEAD = """# All keys

These tables are made from the code. Every key has a default, and the defaults are the demo. Unknown keys are errors.
`--set section.key=value` overrides a key on the command line. [Configuration](../configuration.md) has the same keys as
a file to copy from, and explains what goes together.
"""
ROWS = ["", "| key | default | allowed | meaning |", "| --- | --- | --- | --- |"]


def page() -> str:
    """The page as Markdown."""
    schema = Config.model_json_schema()
    lines = [HEAD, "## At the top of the file", *ROWS]
    sections = {}
    for name, field in Config.model_fields.items():
        kind = _section(field.annotation)
        if kind is None:
            lines.append(_row(Config, name, schema["properties"][name]))
        else:
            sections[f"[[{name}]]" if name == "silos" else f"[{name}]"] = kind
    sections |= {"[[silos.client]]": ClientSection, "A link: network.client_hub, network.hub_hub": LinkSection}
    for title, kind in sections.items():
        lines += ["", f"## {title}" if " " in title else f"## `{title}`", "", _sentence(kind.__doc__ or ""), *ROWS]
        described = kind.model_json_schema()
        lines += [_row(kind, name, described["properties"][name]) for name in kind.model_fields]
    return "\n".join(lines) + "\n"


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """What the docstrings under a section's keys say."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for key, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(key.target, ast.Name)
            found[key.target.id] = _sentence(str(text.value.value))
    return found


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of the configuration is, or is a list of."""
    if isinstance(annotation, types.GenericAlias):
        annotation = annotation.__args__[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _row(kind: type[BaseModel], name: str, described: dict[str, Any]) -> str:
    field = kind.model_fields[name]
    if field.is_required():
        default = "must be given"
    else:
        value = field.get_default(call_default_factory=True)
        default = "" if value is None else f"`{_toml(value)}`"
    cells = [f"`{name}`", default, allowed(described), meanings(kind).get(name, "")]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _toml(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, float) else f"{value:g}" if value % 1 else f"{value:.1f}"


def allowed(described: dict[str, Any]) -> str:
    """The values of a key in words, from its JSON schema."""
    parts = [part for part in described.get("anyOf", [described]) if part.get("type") != "null"]
    return ", or ".join(dict.fromkeys(_kind(part) for part in parts))


def _kind(described: dict[str, Any]) -> str:
    if "enum" in described or "const" in described:
        return ", ".join(f"`{_toml(value)}`" for value in described.get("enum", [described.get("const")]))
    match described.get("type"):
        case "array":
            words = f"a list of: {allowed(described['items'])}"
        case "object":
            words = f"a table: {allowed(described['additionalProperties'])} by name"
        case "boolean":
            words = "`true`, `false`"
        case "integer":
            words = f"a whole number{_limits(described)}"
        case "number":
            words = f"a number{_limits(described)}"
        case "string":
            words = "a text"
        case _:
            words = "a table, see below"
    return words


def _limits(described: dict[str, Any]) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{word} {_short(described[key])}" for key, word in words.items() if key in described]
    return f", {' and '.join(limits)}" if limits else ""


def _short(number: float) -> str:
    return "2^63" if number == 2**63 else f"{number:,}" if number % 1 else f"{int(number):,}"
