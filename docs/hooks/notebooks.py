"""Notebooks of docs/notebooks: run them, and make pages of their cells and stored outputs.

``python docs/hooks/notebooks.py`` runs every notebook and stores what its cells show.
"""

import ast
import base64
import html
import io
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"


def pages() -> dict[str, str]:
    """Every notebook as Markdown, by its path."""
    return {f"notebooks/{path.stem}.md": page(path) for path in sorted(FOLDER.glob("*.ipynb"))}


def page(path: Path) -> str:
    """A notebook as Markdown: its texts, its code and what was stored of each cell's output."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = source.replace(".ipynb)", ".md)")  # the page of another notebook
        parts += [source] if cell["cell_type"] == "markdown" else [f"```python\n{source}\n```"]
        parts += [_markup(output) for output in cell.get("outputs", ())]
    download = f"[Download this notebook]({path.name}) and open it in Jupyter."
    return "\n\n".join([*parts, download]) + "\n"


def _markup(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f'<pre class="output">{html.escape("".join(output["text"]).rstrip())}</pre>'
    data = output["data"]
    if "image/png" in data:
        return f'<p class="output"><img alt="figure" src="data:image/png;base64,{data["image/png"].strip()}"></p>'
    if "text/html" in data:
        # Markdown ends a block of HTML at an empty line.
        lines = "".join(data["text/html"]).splitlines()
        return f'<div class="output">{" ".join(line.strip() for line in lines)}</div>'
    return f'<pre class="output">{html.escape("".join(data["text/plain"]))}</pre>'


def execute(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a new run, in a folder of its own."""
    from matplotlib import pyplot  # noqa: PLC0415 - only who runs notebooks needs it

    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    pyplot.close("all")
    with _own_folder():
        for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
            source = "".join(cell["source"])
            cell["outputs"] = _outputs(compile_cell(source, f"{path.name}, cell {number + 1}"), names, number + 1)
            cell["execution_count"] = number + 1
    return notebook


def compile_cell(source: str, name: str) -> tuple[Any, Any]:
    """The statements of a cell, and the expression at its end if there is one."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None if last is None else compile(ast.Expression(last.value), name, "eval")
    return compile(tree, name, "exec"), value


def _outputs(code: tuple[Any, Any], names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What a cell prints, warns of, draws and ends with."""
    from matplotlib import pyplot  # noqa: PLC0415

    printed, found = io.StringIO(), list[dict[str, Any]]()
    with redirect_stdout(printed), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        exec(code[0], names)
        value = None if code[1] is None else eval(code[1], names)
    warning = "".join(f"{one.category.__name__}: {one.message}\n" for one in warned)
    for stream, text in (("stdout", printed.getvalue()), ("stderr", warning)):
        if text:
            found.append({"output_type": "stream", "name": stream, "text": text.splitlines(keepends=True)})
    for place in pyplot.get_fignums():
        drawn = io.BytesIO()
        pyplot.figure(place).savefig(drawn, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        found.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return found


@contextmanager
def _own_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        run = execute(notebook)
        notebook.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", "utf-8")
