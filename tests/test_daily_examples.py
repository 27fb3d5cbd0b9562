"""Examples of hypothesis are the same in CI, and change daily elsewhere."""

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from support.examples import seed_of

TESTS = Path(__file__).parent
DRAWING = """
from pathlib import Path
from hypothesis import given, strategies as st

@given(st.integers())
def test_drawing(number):
    with Path("drawn").open("a") as file:
        file.write(f"{number}\\n")
    assert number != 12345
"""


@pytest.fixture
def drawn(tmp_path):
    """Run a test of its own in a process; the examples it draws, and what pytest prints."""
    (tmp_path / "test_drawing.py").write_text(DRAWING)

    def draw(*options: str, **variables: str) -> tuple[list[str], str]:
        environment = {name: value for name, value in os.environ.items() if name != "CI" and "PYTEST" not in name}
        environment |= {"PYTHONPATH": str(TESTS)} | variables
        command = [sys.executable, "-m", "pytest", "-p", "support.examples", "-p", "no:cacheprovider", *options]
        (tmp_path / "drawn").write_text("")
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return (tmp_path / "drawn").read_text().split(), done.stdout

    return draw


def test_in_ci_they_are_always_the_same(drawn):
    examples, text = drawn(CI="true")
    assert "examples: those of CI" in text
    assert drawn("--hypothesis-seed=5", CI="true")[0] == examples
    assert len(examples) >= 100


def test_elsewhere_the_day_chooses_them(drawn, tmp_path):
    days = [date.today()]
    examples, text = drawn()
    days.append(date.today())
    seed = next(seed_of(day) for day in days if f"--hypothesis-seed={seed_of(day)}" in text)
    assert drawn(f"--hypothesis-seed={seed}", "--hypothesis-profile=daily")[0] == examples
    few, _ = drawn(f"--hypothesis-seed={seed + 1}", "--hypothesis-profile=quick")
    assert 1 < len(few) < 30
    assert not set(few) <= set(examples)
    assert not (tmp_path / ".hypothesis" / "examples").exists()


def test_the_seed_is_the_date():
    assert seed_of(date(2026, 11, 17)) == 20261117
