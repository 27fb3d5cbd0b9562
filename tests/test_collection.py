"""Any folders of tests can be collected together, and any one alone."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
SUPPORT = TESTS / "support"


def test_folders_with_fixtures_of_their_own_collect_together():
    folders = sorted(str(path.parent) for path in TESTS.glob("*/**/conftest.py"))
    assert len(folders) > 1
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *folders]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_two_modules_of_tests_have_the_same_name():
    """Without packages, a module is known by its name alone; conftest.py is not collected."""
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def imported(path):
    """The first words of what a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def test_what_folders_share_is_in_support():
    """A module of another folder is found only if that folder happens to be collected, too."""
    folder_of = {path.stem: path.parent for path in TESTS.rglob("*.py") if path.parent != SUPPORT}
    folder_of |= {folder.name: folder for folder in TESTS.iterdir() if folder != SUPPORT}
    strangers = {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("*.py")
        for name in imported(path)
        if folder_of.get(name, path.parent) != path.parent
    }
    assert strangers == set()
