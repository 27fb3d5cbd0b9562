"""Every package that the source imports is declared in pyproject.toml: with pip's help alone, nothing is missing."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "dp_accounting": "dp-accounting",
    "zenoh": "eclipse-zenoh",
    "mlflow": "mlflow-skinny",
}
"""What a module is called on the package index, where it has another name."""


def imported(path):
    """The top-level packages that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            yield from (one.value.partition(".")[0] for one in node.args[:1] if isinstance(one, ast.Constant))


def names(requirements):
    return {re.match(r"[\w.-]+", one)[0].lower() for one in requirements}


def test_what_the_source_imports_is_declared_and_what_is_declared_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_users = names(one for extra, given in extras.items() if extra not in ("dev", "docs") for one in given)
    needed = names(project["dependencies"])
    found = {package for path in (ROOT / "src").rglob("*.py") for package in imported(path)}
    found -= {*sys.stdlib_module_names, "tdcd", "__main__"}
    packages = {DISTRIBUTIONS.get(one, one).lower() for one in found}
    assert packages - needed - of_users == set()
    assert (needed | of_users) - packages == set()
