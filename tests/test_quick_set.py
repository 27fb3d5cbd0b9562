"""What is in the quick set stays quick."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SET = """
import os
import subprocess

import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.quick


@pytest.fixture
def compiled():
    return jnp.arange(5) * 2


def test_that_is_quick():
    assert sum(range(5)) == 10


def test_with_a_fixture_that_compiles(compiled):
    pass


def test_that_compiles():
    assert jnp.sum(jnp.ones(7)) == 7


def test_that_starts_a_process():
    subprocess.run(["true"])


def test_that_forks():
    os.fork()


@pytest.mark.slow
def test_that_is_slow():
    assert jnp.prod(jnp.ones(3)) == 1
    subprocess.run(["true"], check=True)
"""


def test_a_quick_test_that_compiles_or_starts_a_process_fails(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    quick\n    slow\n")
    (tmp_path / "test_set.py").write_text(SET)
    options = ["-p", "support.quick", "-p", "no:cacheprovider", "-rA", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
    assert {(name, outcome) for outcome, name in outcomes} == {
        ("test_that_is_quick", "PASSED"),
        ("test_with_a_fixture_that_compiles", "ERROR"),
        ("test_that_compiles", "FAILED"),
        ("test_that_starts_a_process", "FAILED"),
        ("test_that_forks", "FAILED"),
        ("test_that_is_slow", "PASSED"),
    }, done.stdout
