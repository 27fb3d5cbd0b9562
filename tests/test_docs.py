"""The code that the documents show runs, and the files they link to exist."""

import ast
import re
import runpy
import tomllib
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
OF_PROJECT = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
DOCUMENTS = [*OF_PROJECT, *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = {
    path: re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    for path in DOCUMENTS
    if path.parent != ROOT / "docs" / "examples"  # each of which has a test of its own
}


@pytest.fixture
def two_tables(tmp_path, monkeypatch):
    """A working folder with the tables that the documents speak of: those of a bank and of a bureau, and new rows."""
    draw = np.random.default_rng(0)
    for prefix, first in (("", 0), ("new_", 200)):
        ids = np.arange(first, first + 200)
        bank = pd.DataFrame({"id": ids, "age": draw.uniform(20, 70, 200), "income": draw.lognormal(8, 1, 200)})
        bank["since"] = [f"2024-{1 + row % 12:02}-{1 + row % 28:02}" for row in range(200)]
        bank["city"] = draw.choice(["rome", "oslo"], 200)
        bank.loc[::9, "income"] = np.nan
        bureau = pd.DataFrame({"id": ids, "late": draw.poisson(1, 200), "cards": draw.integers(0, 5, 200)})
        if not prefix:
            bank["default"] = np.where(bureau["late"] + (bank["city"] == "oslo") > 1, "yes", "no")
        bank.to_csv(tmp_path / f"{prefix}bank.csv", index=False)
        bureau.sample(frac=1, random_state=1).to_csv(tmp_path / f"{prefix}bureau.csv", index=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", [path for path, found in SNIPPETS.items() if found], ids=lambda path: path.name)
def test_snippets_run_one_after_the_other(path, two_tables):
    if path.name == "serving.md":
        pytest.importorskip("onnx", reason="ONNX files need the extra tdcd[onnx]")
    known = {}
    for code in SNIPPETS[path]:
        exec(compile(code, "snippet", "exec"), known)
    if path.name == "README.md":
        assert sum(bool(line) for line in SNIPPETS[path][0].splitlines()) <= 10
        # A date that pandas reads as texts is a feature, as in tdcd run.
        assert "since" in known["federation"].silos[0].columns
    if path.name == "python.md":
        first, *others = (known[name].scores(known["new"]) for name in ("model", "same", "also_the_same"))
        for other in others:
            np.testing.assert_array_equal(first, other)
        assert known["search"].best_score_ > 0.8


def printed_by(example, pattern, capsys):
    runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
    return [[float(part) for part in found.groups()] for found in re.finditer(pattern, capsys.readouterr().out)]


def test_the_example_of_a_block_gains_by_it(capsys):
    (linear,), (own,) = printed_by("own_block.py", r"rows (\d\.\d+)", capsys)
    assert own > linear > 0.5


def test_the_example_of_a_variant_sends_a_quarter_and_loses_nothing(capsys):
    (loss, sent), (own_loss, own_sent) = printed_by("own_variant.py", r"loss (\S+), (\S+) bytes per round", capsys)
    assert own_loss == pytest.approx(loss, rel=1e-2)
    assert own_sent == pytest.approx(sent / 4, rel=0.1)
    assert len((ROOT / "examples" / "own_variant.py").read_text().splitlines()) <= 40


def test_the_example_of_a_loss_finds_the_quantile(capsys):
    (median, half), (high, most) = printed_by("own_loss.py", r"quantile (\S+): (\S+) of", capsys)
    assert (half, most) == (pytest.approx(median, abs=0.03), pytest.approx(high, abs=0.03))
    assert len((ROOT / "examples" / "own_loss.py").read_text().splitlines()) < 50


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", path.read_text()):
        if not target.startswith("http"):
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name} links to {target}"
            assert not anchor or anchor in _anchors(page), f"{path.name} links to {target}#{anchor}"


def _anchors(page):
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_figures_of_scale_are_those_of_the_benchmarks():
    scale, benchmarks = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("scale", "benchmarks"))
    (measured,) = re.findall(r"^## Measured\n(.*?)^\| clients per silo", scale, re.DOTALL | re.MULTILINE)
    figures = re.findall(r"(?:[\d.]+ to )?[\d.]+ (?:us|ms)", measured)
    assert len(figures) > 5
    assert [figure for figure in figures if figure not in benchmarks] == []


def _keys(name, field):
    """The keys of a section, or of the entries of a list of sections."""
    section = next(
        (kind for kind in (field.annotation, *get_args(field.annotation)) if hasattr(kind, "model_fields")), None
    )
    return [name] if section is None else [key for key in section.model_fields if key != "client"]


def test_the_configuration_page_names_every_key():
    from tdcd.config import Config

    page = (ROOT / "docs" / "configuration.md").read_text()
    for name, field in Config.model_fields.items():
        for key in _keys(name, field):
            assert re.search(rf"^(# )?{key} = ", page, re.MULTILINE), f"{name}.{key}"


def _defined():
    """Every dotted name in the package, from the last two parts of it up to the whole: ``average``'s are
    ``algorithm.average``, ``core.algorithm.average`` and ``tdcd.core.algorithm.average``; and the classes' own names.
    """
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        module = path.relative_to(ROOT / "src").with_suffix("").parts
        module = module[:-1] if module[-1] == "__init__" else module
        names |= {".".join(module[start:]) for start in range(len(module) - 1)}
        for node in ast.parse(path.read_text()).body:
            for own in _names_in(node):
                whole = [*module, *own]
                names |= {".".join(whole[start:]) for start in range(len(whole) - 1)}
                names |= {own[0]} if isinstance(node, ast.ClassDef) else set()
    return names


def _names_in(node):
    if isinstance(node, ast.ClassDef):
        return [(node.name,), *((node.name, *inner) for part in node.body for inner in _names_in(part))]
    if isinstance(node, ast.FunctionDef):
        return [(node.name,)]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [(target.id,) for target in targets if isinstance(target, ast.Name)]


def _configuration_keys():
    from tdcd.config import Config

    return {f"{name}.{key}" for name, field in Config.model_fields.items() for key in _keys(name, field)}


def test_the_architecture_page_names_what_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    quoted = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL)))
    paths = {text for text in quoted if re.fullmatch(r"[\w./-]*(/[\w./-]*|\.(py|md|toml))", text)}
    of_a_run = {text for text in quoted if re.fullmatch(r"\w+\.(jsonl|html)", text)}
    names = {text for text in quoted - paths - of_a_run if re.fullmatch(r"\w+(\.\w+)+|[A-Z][a-z]\w*", text)}
    assert len(paths) > 20
    assert len(names) > 50
    assert {text for text in paths if not any((at / text).exists() for at in (ROOT, ROOT / "src/tdcd"))} == set()
    assert names - _defined() - _configuration_keys() == set()


def test_the_pictures_name_what_is_there():
    names = set()
    for path in sorted((ROOT / "docs" / "pictures").glob("*.svg")):
        names |= set(re.findall(r'<text class="code"[^>]*>([^<]+)<', path.read_text()))
    assert len(names) > 25
    assert names - _defined() == set()


def test_the_pictures_are_as_drawn(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "pictures")
    runpy.run_path(str(ROOT / "docs" / "pictures" / "draw_idea.py"))["draw"](tmp_path)
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures" / "draw.py"))
    drawn["draw"](tmp_path)
    for name in ("layers.svg", "round.svg", "idea.svg", "icon.svg"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / "pictures" / name).read_text()
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    checked = [names.split(":")[0].strip().removeprefix("tdcd.") for layer in layers for names in layer.split("|")]
    assert [name for _, folders in drawn["LAYERS"] for name, _ in folders] == checked
