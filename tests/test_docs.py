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


def printed_by(example, pattern, capsys):
    runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
    return [[float(part) for part in found.groups()] for found in re.finditer(pattern, capsys.readouterr().out)]


def test_the_example_of_a_block_gains_by_it(capsys):
    (linear,), (own,) = printed_by("own_block.py", r"rows (\d\.\d+)", capsys)
    assert own > linear > 0.5


def test_the_example_of_a_variant_sends_a_quarter_and_loses_nothing(capsys):
    (loss, sent), (own_loss, own_sent) = printed_by("own_variant.py", r"loss (\S+), (\S+) MB", capsys)
    assert own_loss == pytest.approx(loss, rel=1e-2)
    assert own_sent == pytest.approx(sent / 4, rel=0.1)
    assert len((ROOT / "examples" / "own_variant.py").read_text().splitlines()) < 40


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
