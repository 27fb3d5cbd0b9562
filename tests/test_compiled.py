import os
import re
import subprocess
import sys

import pytest

CODE = "from tdcd.compiled import keep_compiled; print(keep_compiled())"


def tdcd(cache, *command):
    env = {**os.environ, "TDCD_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)


def test_a_second_run_reads_the_programs_that_the_first_compiled(tmp_path):
    def run(name):
        options = ["--out", str(tmp_path / name), "--set", "train.rounds=1"]
        done = tdcd(tmp_path / "cache", "-m", "tdcd", "run", *options)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "compiled").rglob("*-cache")}

    first = run("first")
    assert any(re.search("run_rounds", name) for name in first)
    assert run("second") == first


@pytest.mark.parametrize("cache", ["", "/proc/nowhere"])
def test_without_a_folder_nothing_is_kept(cache):
    assert tdcd(cache, "-c", CODE).stdout == "None\n"


def test_a_cache_that_jax_was_told_to_use_stays(tmp_path):
    code = f"import jax; jax.config.update('jax_compilation_cache_dir', '{tmp_path}'); {CODE}"
    assert tdcd(tmp_path / "ours", "-c", code).stdout == "None\n"
    assert not (tmp_path / "ours").exists()
