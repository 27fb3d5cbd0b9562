"""The page of all commands, made from the command line itself."""

import re
from enum import EnumType
from typing import Any

import typer.main

from tdcd.cli.app import app

HEAD = """# All commands

This page is made from the code: it is what `tdcd COMMAND --help` says. `tdcd --version` prints the version, and
`tdcd --install-completion` lets the shell complete commands and options.
"""


KINDS = {"str": "TEXT", "list": "TEXT", "Path": "PATH", "int": "N", "float": "NUMBER"}


def commands() -> dict[str, Any]:
    """Every command by its whole name, such as ``tdcd certs check``."""
    return dict(_named("tdcd", typer.main.get_command(app)))


def page() -> str:
    """The page as Markdown."""
    found = commands()
    lines = [HEAD]
    for name, command in found.items():
        arguments = [part for part in command.params if part.param_type_name == "argument"]
        options = [part for part in command.params if part.param_type_name == "option" and not part.hidden]
        usage = " ".join([name, *(_place(part) for part in arguments), *(["[OPTIONS]"] if options else [])])
        lines += ["", f"## {name}", "", f"```text\n{usage}\n```", "", _text(command.help)]
        if example := re.fullmatch(r"Example: `(.*)`", command.epilog or ""):
            lines += ["", f"```sh\n{example[1]}\n```"]
        rows = [*(_row(_place(part), part) for part in arguments), *(_row(_flags(part), part) for part in options)]
        if rows:
            lines += ["", "| argument or option | default | meaning |", "| --- | --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def _named(name: str, command: Any) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner:
        return [(name, command)]
    return [found for part, below in inner.items() if not below.hidden for found in _named(f"{name} {part}", below)]


def _place(argument: Any) -> str:
    name = argument.metavar or argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _flags(option: Any) -> str:
    """An option as one types it, and what kind of value it takes."""
    flags = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return flags
    annotation = option.type_descriptor.annotation
    if isinstance(annotation, EnumType):
        return f"{flags} {'|'.join(str(choice.value) for choice in annotation)}"
    kind = option.metavar or getattr(annotation, "__name__", "str")
    return f"{flags} {KINDS.get(kind, kind)}"


def _row(name: str, part: Any) -> str:
    text = _text(part.help)
    default_text = re.search(r" ?\[default: ([^\]]*)\]", text)
    given = part.opts[0] if part.default is True else part.default
    unset = given is None or given is False or given in ((), []) or callable(given)
    default = default_text[1] if default_text else "" if unset else f"`{given}`"
    cells = [f"`{name}`", default, text.replace(default_text[0], "") if default_text else text]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _text(text: str | None) -> str:
    """The help of a command: paragraphs are told apart by blank lines, and angle brackets are no HTML."""
    return re.sub(r"<(?=\w)", "&lt;", text or "").replace("\b", "")
