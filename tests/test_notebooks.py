"""The notebooks of the documentation run, and show what is stored in them; the site makes pages of them."""

import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?")


@pytest.fixture(scope="module")
def notebooks():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "hooks" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(notebook):
    """What the cells show: kind of output and words, numbers and the spaces that align them left out; and the numbers
    that are between 0.5 and 1, which are accuracies and the like.
    """
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    texts = ["".join(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs]
    kinds = [sorted(output.get("data", {output["output_type"]: None})) for output in outputs]
    words = ["".join(NUMBER.sub("#", text).split()) for text in texts]
    return kinds, words, [float(one) for text in texts for one in NUMBER.findall(text) if 0.5 < float(one) < 1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path, notebooks):
    stored = json.loads(path.read_text("utf-8"))
    (kinds, words, shares), (stored_kinds, stored_words, stored_shares) = shown(notebooks.execute(path)), shown(stored)
    again = "run python docs/hooks/notebooks.py and look at what changed"
    assert (kinds, words) == (stored_kinds, stored_words), again
    assert shares == pytest.approx(stored_shares, abs=0.02), again
    counts = [cell["execution_count"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert counts == [*range(1, len(counts) + 1)]


class Checked(HTMLParser):
    """Markup whose elements are all closed."""

    def __init__(self, markup):
        super().__init__()
        self._open = []
        self.feed(markup)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        if tag != "img":
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_has_every_cell_and_output(path, notebooks):
    page, cells = notebooks.page(path), json.loads(path.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert re.findall(r"```python\n(.*?)\n```", page, re.DOTALL) == code
    outputs = re.findall(r'^<(?:pre|p|div) class="output">.*?(?=^```|^#|^\w|^`|\Z)', page, re.DOTALL | re.MULTILINE)
    assert page.count('class="output"') == sum(len(cell.get("outputs", ())) for cell in cells)
    for output in outputs:
        Checked(output.strip())
    assert f"({path.name})" in page.splitlines()[-1]
    for target in re.findall(r"\]\(([^)]*)\.ipynb\)", "".join("".join(cell["source"]) for cell in cells)):
        assert (path.parent / f"{target}.ipynb").exists()
    nav = (ROOT / "mkdocs.yml").read_text()
    assert f"notebooks/{path.stem}.md" in nav


def test_what_a_cell_shows_is_escaped(tmp_path, notebooks):
    cells = [
        {"cell_type": "code", "source": ["print('<b>1 &')\n", "import warnings\n", "warnings.warn('<i>')\n", "'<u>'"]}
    ]
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    run = notebooks.execute(path)
    path.write_text(json.dumps(run))
    assert '<pre class="output">&lt;b&gt;1 &amp;</pre>' in notebooks.page(path)
    assert '<pre class="output">UserWarning: &lt;i&gt;</pre>' in notebooks.page(path)
    assert '<pre class="output">&#x27;&lt;u&gt;&#x27;</pre>' in notebooks.page(path)
