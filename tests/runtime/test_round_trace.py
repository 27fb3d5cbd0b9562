"""How much code one round of real parties runs through: what its reader has to follow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIMITS = {"plain": (22, 122, 169), "evaluated": (26, 175, 269)}
"""The modules and functions of the runtime in one round of all parties together, and the functions of all folders.
Fewer is better; more needs a reason."""


@pytest.fixture(scope="module")
def traced():
    """The rounds of a process that is as real parties are: JAX is not loaded."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "support.traced_round"]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert not result["has_jax"]
    return {kind: {tuple(place) for place in places} for kind, places in result["kinds"].items()}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_round_runs_through_few_modules_and_functions(traced, kind):
    functions = traced[kind]
    runtime = {(file, name) for file, name in functions if file.startswith("runtime/")}
    modules = {file for file, _ in runtime}
    counts = len(modules), len(runtime), len(functions)
    assert all(count <= most for count, most in zip(counts, LIMITS[kind], strict=True)), (counts, sorted(functions))
    # What a round is made of is among them: nothing was cut off by how it is traced.
    assert {"runtime/machine/rounds.py", "runtime/machine/client.py", "runtime/compute/hub_compute.py"} <= modules
