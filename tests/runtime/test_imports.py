"""What a party's process need not load."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FORBIDDEN = ("jax", "optax", "matplotlib", "sklearn", "tdcd.simulation", "tdcd.pages")

CLIENT = """
import sys
from typer.testing import CliRunner
from tdcd.cli.app import app
import tdcd.runtime.process.party
done = CliRunner().invoke(app, ["client", "no-such-file.toml", "--silo", "a", "--client", "b"])
assert done.exit_code == 2, done.output
print(*sys.modules)
"""


def test_a_client_loads_neither_figures_nor_data_sets_nor_the_simulation():
    done = subprocess.run([sys.executable, "-c", CLIENT], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "tdcd.runtime.machine.client" in loaded
    assert [name for name in loaded if name.startswith(FORBIDDEN)] == []


WITHOUT_JAX = """
import sys
class NoJax:
    def find_spec(self, name, path, target=None):
        if name == "jax":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoJax())
from support.in_process import InProcess
from tdcd.config import check_config
from tdcd.runtime.compute.client_data import ClientData
import numpy as np
loss, train = sys.argv[1], {"class_weights": "balanced"} if sys.argv[1] == "logistic" else {}
config = check_config({
    "model": {"block": "linear", "loss": loss, "l2": 0.1},
    "federation": {"labels": "a"},
    "exchange": {"protect_blocks": True},
    "train": {"rounds": 3, "local_steps": 2, "batch_size": 8, "step_size": 0.1, **train},
    "evaluate": {"holdout": 0.25},
    "silos": [{"name": "a", "hub": "127.0.0.1:1", "clients": 3}, {"name": "b", "hub": "127.0.0.1:2", "clients": 3}],
}, "test")
rng, data = np.random.default_rng(0), {}
for silo in "ab":
    for client, ids in (("c1", range(8)), ("c2", range(8, 16)), ("c3", range(16, 24))):
        labels = np.array([float(i % 2) for i in ids]) if silo == "a" else None
        rows = rng.normal(size=(8, 3)).astype("float32")
        data[f"client.{silo}.{client}"] = ClientData([str(i) for i in ids], labels, rows)
federation = InProcess(config, data).run()
print([record.round for record in federation.history["hub.a"]], federation.ends["hub.a"].status)
"""


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_a_federation_of_linear_blocks_trains_where_there_is_no_jax(loss):
    """Labels at one silo, which tells the others slopes and weights, or slopes and expected counts."""
    command = [sys.executable, "-c", WITHOUT_JAX, loss]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=TESTS, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 3] finished"
