"""The code that the documents show runs, and the files they link to exist."""

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{index}")
    for path in DOCUMENTS
    for index, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {})


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    figures = [float(number) for number in re.findall(r"rows (\d\.\d+)", capsys.readouterr().out)]
    assert figures[1] > figures[0] > 0.5


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


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
