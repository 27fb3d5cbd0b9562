"""The threat model of SECURITY.md: every promise names a test, and the test is there."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
HEAD = "## Threat model"


def promises():
    """The rows of the tables, as lists of cells."""
    _, _, model = (ROOT / "SECURITY.md").read_text().partition(HEAD)
    rows = [line.strip("|").split(" | ") for line in model.splitlines() if line.startswith("|")]
    return [row for row in rows if "---" not in row[0] and row[-1].strip() != "shown by"]


def test_every_promise_names_a_test_that_is_there_or_is_an_assumption():
    rows = promises()
    assert len(rows) > 15
    for row in rows:
        shown = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row[-1])
        assert shown or "an assumption" in row[-1], row[0]
        for path, name in shown:
            text = (ROOT / path).read_text()
            assert f"def {name}(" in text if name else "def test_" in text, (row[0], path, name)


def test_all_four_kinds_of_attackers_have_promises():
    model = (ROOT / "SECURITY.md").read_text()
    for kind in ("An outsider", "Honest but curious", "A deviating hub", "A deviating client"):
        assert f"**{kind}**" in model
