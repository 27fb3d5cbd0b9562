"""Several devices, and several processes, give what one device gives."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import tdcd
from tdcd.simulation.devices import Devices, join

FOUR = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
FOUR_DEVICES = {**os.environ, "XLA_FLAGS": FOUR, "JAX_PLATFORMS": "cpu"}

COMPARE = """
import sys
sys.path.insert(0, {tests!r})
from support.problems import Problem, Shape, arrays, distance
from tdcd import Linear, Mlp, Objective, Simulation
from tdcd.simulation.devices import Devices
from tdcd.core.execution import Execution

LINEAR = Shape((3, 30), (3, 2), num_samples=200, batch_size=41)
MIXED = Shape((6, 1), (3, 2), num_samples=40, batch_size=7, blocks=(Linear(), Mlp((4,))))
for shape in (LINEAR, MIXED):
    for keep in ("device", "host"):
        problem = Problem.draw(shape, Objective("softmax", 0.1), 3, "shuffled")
        execution = Execution(keep, devices=None)
        simulation = Simulation(problem.federation, problem.blocks, problem.objective, problem.settings, execution)
        assert simulation.devices.count == 4
        start = simulation.state_of(problem.start)
        blocks = simulation.advance(simulation.advance(start, 0, 3), 3, 1).blocks
        assert distance(arrays(blocks), problem.solve(4)) < 1e-10
        assert abs(simulation.scores(blocks) - problem.simulation().scores(blocks)).max() < 1e-12
"""


def test_four_devices_agree_with_the_oracle():
    here = Path(__file__).parents[1]
    code = COMPARE.format(tests=str(here))
    done = subprocess.run([sys.executable, "-c", code], env=FOUR_DEVICES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CONFIG = """
dtype = "float64"
[data]
source = "diabetes"
[federation]
silos = 2
clients = [5, 3]
[model]
block = ["linear", "mlp"]
[train]
rounds = 6
local_steps = 3
[evaluate]
every = 3
alone = true
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tdcd", "run", *arguments]
    return subprocess.Popen(command, env=FOUR_DEVICES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def history(folder: Path) -> list[tuple[int, float, float]]:
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [(record["round"], record["train_loss"], record["test_loss"]) for record in records]


def test_two_processes_with_two_devices_each_write_the_run_of_one(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    together = [
        started(
            *(str(config), "--out", str(tmp_path / f"process{process}"), "--devices", "2"),
            *("--coordinator", f"127.0.0.1:{port}", "--process", str(process), "--processes", "2"),
        )
        for process in range(2)
    ]
    assert tdcd("run", config, "--out", tmp_path / "alone", cwd=tmp_path).exit_code == 0
    for running in together:
        output, _ = running.communicate(timeout=300)
        assert running.returncode == 0, output
    assert not (tmp_path / "process1").exists()
    assert (tmp_path / "process0" / "report.html").exists()
    ours, theirs = history(tmp_path / "process0"), history(tmp_path / "alone")
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-10)
    assert theirs[-1][1] < theirs[0][1]
    silos = [json.loads((tmp_path / name / "alone.json").read_text()) for name in ("process0", "alone")]
    for name in ("silo1", "silo2"):
        assert silos[0][name] == pytest.approx(silos[1][name], rel=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "9"), "9 devices were asked for, but this process has 1 (cpu): choose 1 to 1"),
        (("--process", "0"), "--process and --processes go with --coordinator HOST:PORT"),
        (("--coordinator", "127.0.0.1:1"), "--coordinator needs --process and --processes"),
        (
            ("--coordinator", "127.0.0.1:1", "--process", "2", "--processes", "2"),
            "process = 2: with 2 processes, choose 0 to 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, arguments, message):
    refused = tdcd("run", *arguments, cwd=tmp_path)
    assert refused.exit_code == 2
    assert message in re.sub(r"\s+", " ", refused.stderr)


def test_one_device_needs_no_mesh():
    assert Devices.first(1) == Devices()
    assert [Devices().even(clients) for clients in (1, 7)] == [1, 7]
    with pytest.raises(ValueError, match="process = -1: with 3 processes, choose 0 to 2"):
        join("127.0.0.1:1", -1, 3)
