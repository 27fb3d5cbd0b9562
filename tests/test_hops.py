"""How far it is from ``tdcd run`` to the gradient: the frames that a reader follows, and the modules loaded."""

import json
import subprocess
import sys

FRAMES, ON_THE_WAY, MODULES = 10, 95, 123
"""At most: frames, the modules loaded when the gradient is first asked for, and those of the whole run with its report.
Fewer is better; more needs a reason."""

DEMO = """
import json, sys
import jax
from tdcd.cli.app import main

def of_tdcd(name):
    return name == "tdcd" or name.startswith("tdcd.")

frames, loaded, grad = [], [], jax.grad

def watched(*arguments, **options):
    # The first time is when the first program is traced.
    frame = None if frames else sys._getframe(1)
    if not frames:
        loaded.extend(sorted(name for name in sys.modules if of_tdcd(name)))
    while frame is not None:
        if of_tdcd(frame.f_globals.get("__name__", "")):
            frames.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")
        frame = frame.f_back
    return grad(*arguments, **options)

jax.grad = watched
try:
    main()
finally:
    print("FOUND", json.dumps([frames[::-1], loaded, sorted(name for name in sys.modules if of_tdcd(name))]))
"""


def test_from_the_command_to_the_gradient(tmp_path):
    keys = ["train.rounds=1", "train.step_size=0.05", "train.engine=clients"]
    words = ["run", *(f"--set={key}" for key in keys), "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", DEMO, *words], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    frames, on_the_way, modules = json.loads(found.removeprefix("FOUND "))
    assert frames[:4] == [
        "tdcd.cli.app.main",
        "tdcd.cli.run.run",
        "tdcd.training.train.train_plan",
        "tdcd.training.train.train",
    ]
    assert frames[-1] == "tdcd.core.algorithm.local_step"
    assert len(frames) <= FRAMES, "\n".join(frames)
    assert len(on_the_way) <= ON_THE_WAY, "\n".join(on_the_way)
    assert len(modules) <= MODULES, "\n".join(modules)
    # One run needs nothing of those that only several need.
    assert not [name for name in modules if name.startswith(("tdcd.training.sweep.runner", "tdcd.compare"))]
