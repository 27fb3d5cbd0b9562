"""What a party's process need not load."""

import subprocess
import sys

FORBIDDEN = ("jax", "optax", "matplotlib", "sklearn", "tdcd.simulation", "tdcd.report")

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
    assert "tdcd.runtime.protocol.client" in loaded
    assert [name for name in loaded if name.startswith(FORBIDDEN)] == []
