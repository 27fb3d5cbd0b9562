"""Every command line in the documents is one that ``tdcd`` takes, and those of the quick start run as they stand."""

import re
import runpy
import shlex
import shutil
import tomllib
from contextlib import chdir
from pathlib import Path
from typing import get_args

import pytest

from support.command import tdcd
from tdcd.config import Config
from tdcd.standing.home import StandingSection
from tdcd.training.sweep.grid import expand

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
HOOKS = ROOT / "docs" / "hooks"
COMMANDS = runpy.run_path(str(HOOKS / "commands.py"))["commands"]()
PANELS = {"Train and predict", "Look at runs", "Several organisations", "Plan and study"}
ANY = {"--help", "--version", "--install-completion", "--show-completion"}


def _shown(text):
    """The command lines of a document, in blocks and in sentences, and whether they are whole: sentences may name an
    option without its value.
    """
    for block in re.findall(r"^```(?:sh|console|text|)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            bare = re.sub(r"\s#.*", "", line.strip().removeprefix("$ "))
            yield from ((part.strip(), True) for part in re.split(r"&&|\||;|&$", bare))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from ((" ".join(quote.split()), False) for quote in re.findall(r"`([^`]+)`", prose))


def _mistakes(line, whole):
    """What ``tdcd`` would not take of a command line."""
    words = [word for word in shlex.split(line)[1:] if word != "..."]
    name = "tdcd"
    while words and any(known.startswith(f"{name} {words[0]}") for known in COMMANDS) and name not in COMMANDS:
        name = f"{name} {words.pop(0)}"
    if name not in COMMANDS:
        return [] if not words or ANY & {*words} else [f"there is no command {name} {words[0]}"]
    options = {flag: part for part in COMMANDS[name].params for flag in (*part.opts, *part.secondary_opts)}
    places = [part for part in COMMANDS[name].params if part.param_type_name == "argument"]
    found, given = [], 0
    while words:
        word = words.pop(0)
        flag, _, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("-"):
            given += 1
        elif flag in options:
            if whole and not (options[flag].is_flag or value or words):
                found.append(f"{flag} takes a value")
            if flag == "--set" and words:
                found += _unknown(tomllib.loads(_quoted(words[0])))
            words = words if options[flag].is_flag or value else words[1:]
        elif flag not in ANY:
            found.append(f"{name} has no {flag}")
    if given > len(places) and not any(part.nargs == -1 for part in places):
        found.append(f"{name} takes {len(places)} arguments, not {given}")
    return found


def _quoted(assignment):
    """An assignment of ``--set`` as TOML."""
    key, _, value = assignment.partition("=")
    try:
        tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        value = f"'{value}'"
    return f"{key} = {value}"


def _unknown(keys, section=Config, path=""):
    """The keys that no section of a configuration has."""
    found = []
    for key, value in keys.items():
        if key not in section.model_fields:
            found.append(f"{path}{key}")
            continue
        annotation = section.model_fields[key].annotation
        inner = [kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "model_fields")]
        for entry in value if isinstance(value, list) else [value]:
            if inner and isinstance(entry, dict):
                found += _unknown(entry, inner[0], f"{path}{key}.")
    return found


def test_help_is_in_groups_and_every_command_has_an_example_that_it_takes(tmp_path):
    wrong = {}
    for name, command in COMMANDS.items():
        example = re.fullmatch(r"Example: `(.*)`", command.epilog or "")
        assert example, name
        assert example[1].startswith(f"{name} "), name
        wrong[name] = _mistakes(example[1], whole=True)
    assert not any(wrong.values()), wrong
    shown = tdcd("--help", cwd=tmp_path).stdout
    assert all(f"─ {panel} ─" in shown for panel in PANELS)
    assert "─ Commands ─" not in shown
    assert "Example: tdcd plan my.toml --network mobile" in tdcd("plan", "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_command_lines_are_ones_that_tdcd_takes(path):
    lines = {line for line in _shown(path.read_text(encoding="utf-8")) if re.match(r"tdcd [a-z-]", line[0])}
    wrong = {line[0]: mistakes for line in lines if (mistakes := _mistakes(*line))}
    assert wrong == {}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_configurations_are_ones_that_tdcd_takes(path):
    text = path.read_text(encoding="utf-8")
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if path.name == "standing.md":
            # Parts of a party's own file.
            assert _unknown(tomllib.loads(block), StandingSection) == []
            continue
        check = expand if path.name == "sweeps.md" else Config.model_validate
        check(tomllib.loads(block))


@pytest.mark.parametrize(
    ("name", "commands"),
    [("quickstart.md", ["run", "split", "run"]), ("labels_at_one_silo.md", ["split", "run"])],
)
def test_console_blocks_run(name, commands, tmp_path):
    """With fewer rounds. ``tdcd up`` is left to the tutorial's test."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    done = []
    for block in (block for block in blocks if "$ tdcd up" not in block):
        said = ""
        for command, *words in (shlex.split(line) for line in re.findall(r"^\$ (.*)", block, re.MULTILINE)):
            if command == "python":
                with chdir(tmp_path):
                    exec(words[1], {})
            else:
                result = tdcd(*words, *(["--set", "train.rounds=2"] if words[0] == "run" else []), cwd=tmp_path)
                assert result.exit_code == 0, result.output
                said += result.stdout
                done.append(words[0])
        for line in re.findall(r"^(?!\$ |\.\.\.).+", block, re.MULTILINE):
            assert line in said
    assert done == commands


def test_the_reference_explains_every_key_and_names_every_command():
    keys = runpy.run_path(str(HOOKS / "keys.py"))
    for line in keys["page"]().splitlines():
        assert not line.startswith("| `") or (line.count(" | ") == 3 and not line.endswith("|  |")), line
    page = runpy.run_path(str(HOOKS / "commands.py"))["page"]()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in page] == []
    assert len(COMMANDS) > 20


def test_two_machines_get_as_far_as_their_start(tmp_path):
    """What docs/federation.md has both machines do, here in one folder, before hubs and clients are started."""
    page = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    (steps,) = re.findall(r"^## Two machines, step by step\n(.*?)^### 4", page, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", steps, re.DOTALL | re.MULTILINE)
    (settings,) = (block for kind, block in blocks if kind == "toml")
    (tables,) = (block for kind, block in blocks if kind == "python")
    (tmp_path / "federation.toml").write_text(settings, encoding="utf-8")
    with chdir(tmp_path):
        exec(tables, {})
    assert tdcd("certs", "request", "federation.toml", "hub.lab", cwd=tmp_path).exit_code == 0
    done = []
    for line in re.findall(r"^tdcd .*", "".join(block for kind, block in blocks if kind == "sh"), re.MULTILINE):
        words = shlex.split(line, comments=True)[1:]
        if "--host" in words:  # the certificate of a party that made no request here
            assert tdcd("certs", "issue", "federation.toml", cwd=tmp_path).exit_code == 0
        result = tdcd(*words, cwd=tmp_path)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        for request in (tmp_path / "certs").glob("*.csr"):
            shutil.copy(request, tmp_path)
        done.append(words[1] if words[0] == "certs" else words[0])
    assert done == ["check", "request", "sign", "check", "check"]
