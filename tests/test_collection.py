"""Any folders of tests can be collected together."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent


def test_two_folders_with_fixtures_of_their_own_collect():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/data", "tests/report"]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_two_modules_of_tests_have_the_same_name():
    """Without packages, a module is known by its name alone; conftest.py is not collected."""
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
