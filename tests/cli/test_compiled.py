import os
import re
import subprocess
import sys

import pytest

CODE = "from tdcd.cli.app import keep_compiled; print(keep_compiled())"


def tdcd(cache, *command, **more):
    env = {**os.environ, "TDCD_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    for name in ("JAX_COMPILATION_CACHE_DIR", "TF_CPP_MIN_LOG_LEVEL"):
        env.pop(name, None)
    return subprocess.run([sys.executable, *command], env=env | more, capture_output=True, text=True, check=False)


RUN = """
import sys
from tdcd.cli import main
try:
    main()
finally:
    print(*sys.modules)
"""
NOT_NEEDED = {
    "matplotlib",
    "sklearn",
    "scipy.stats",
    "pandas",
    "tdcd.audit",
    "tdcd.compare",
    "tdcd.planning",
    "tdcd.theory",
}


def test_a_second_run_reads_the_programs_that_the_first_compiled(tmp_path):
    """And it imports only what a run needs: either would take as long as the run itself."""

    def run(name):
        options = ["--out", str(tmp_path / name), "--set", "train.rounds=1", "--set", "model.block=linear"]
        options += ["--set", "data.source=diabetes", "--set", "train.batch_size=32"]
        done = tdcd(tmp_path / "cache", "-c", RUN, "run", *options)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        loaded = {*done.stdout.splitlines()[-1].split()}
        assert "tdcd.training.train" in loaded
        assert not loaded & NOT_NEEDED
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "compiled").rglob("*-cache")}

    first = run("first")
    assert any(re.search("run_rounds", name) for name in first)
    assert run("second") == first


@pytest.mark.parametrize("cache", ["", "/proc/nowhere", "~nobody-of-that-name/cache"])
def test_without_a_folder_nothing_is_kept(cache):
    assert tdcd(cache, "-c", CODE).stdout == "None\n"


@pytest.mark.parametrize("theirs", [{}, {"JAX_COMPILATION_CACHE_DIR": "theirs"}])
def test_a_cache_that_jax_is_set_up_to_use_stays(tmp_path, theirs):
    """A command that compiles nothing makes the folder all the same, unless JAX has another."""
    done = tdcd(tmp_path / "ours", "-m", "tdcd", "--version", **theirs)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ours").exists() == (not theirs)


SLOW = """
import sys
from tdcd.cli import main
try:
    sys.argv = ["tdcd", "--version"]
    main()
except SystemExit:
    pass
import jax
import jax.numpy as jnp

def f():
    x = jnp.ones((120, 120))
    return jax.lax.reduce_window(x + 1, 0.0, jax.lax.add, (11, 11), (1, 1), "SAME")

jax.jit(f).lower().compile()
"""


@pytest.mark.parametrize(("level", "is_quiet"), [({}, True), ({"TF_CPP_MIN_LOG_LEVEL": "1"}, False)])
def test_alarms_about_slow_compilations_reach_only_those_who_ask_for_them(tmp_path, level, is_quiet):
    """XLA folds a constant of 121 additions for each of 14,400 numbers, and raises an alarm after a second."""
    done = tdcd(tmp_path, "-c", SLOW, **level)
    assert done.returncode == 0, done.stderr
    assert ("slow_operation_alarm" not in done.stderr) == is_quiet, done.stderr
