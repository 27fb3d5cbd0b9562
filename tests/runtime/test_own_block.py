"""A block of the user's own that a configuration names: simulation and real parties run it, and give the same."""

from pathlib import Path

import pytest

from support.in_process import InProcess, largest_difference
from support.simulated import RIDGE, simulated, with_keys
from tdcd.blocks import Linear
from tdcd.config import ConfigError
from tdcd.config.resolve import blocks_of, plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.job import Job

EXAMPLES = str(Path(__file__).parents[2] / "examples")
OWN = {"block": ["linear", "own_block:Quadratic"], "folder": EXAMPLES}


PERCEPTRON = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1, bias=False))
"""


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_same_history_and_blocks_as_the_simulation(library, tmp_path):
    model, names = OWN, {"w", "v", "u"}
    if library == "torch":
        pytest.importorskip("torch", reason="PyTorch blocks need the extra tdcd[torch]")
        (tmp_path / "own_perceptron.py").write_text(PERCEPTRON)
        model = {"block": ["linear", "torch"], "module": "own_perceptron:make", "folder": str(tmp_path)}
        names = {"0.weight", "0.bias", "2.weight"}
    config = with_keys(RIDGE, model=model)
    planned, result = simulated(config)
    assert names == set(result.blocks["lab"])
    office = InProcess(config, shards(planned), seed=3).run()
    assert not office.refused
    for history in office.history.values():
        for ours, theirs in zip(history, result.history, strict=True):
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-10)
            assert ours.bytes == theirs.bytes
    for hub, block in office.blocks().items():
        assert largest_difference(block, result.blocks[hub.removeprefix("hub.")]) < 1e-10
    assert result.history[-1].train_loss < result.history[0].train_loss


def test_a_party_needs_only_the_block_of_its_own_silo():
    job = Job(with_keys(RIDGE, model={"block": ["linear", "nowhere:Block"]}))
    assert job.block(0) == Linear()
    assert (job.needs_jax(0), job.needs_jax(1)) == (False, True)
    with pytest.raises(ConfigError, match=r"model.block = 'nowhere:Block': there is no nowhere.py in"):
        job.block(1)


MODULE = """
from dataclasses import dataclass
import jax.numpy as jnp

@dataclass(frozen=True)
class Narrow:
    width: int

    def init(self, key, feature_shape, num_outputs):
        return {"w": jnp.zeros((feature_shape[0], self.width))}

    def phi(self, block, features):
        return features @ block["w"]

class Unhashable:
    __hash__ = None
    init = phi = print

def pair():
    return Narrow(2)

fits, two = Narrow(1), Narrow(2)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two", "silo 'clinic': Narrow maps 2 samples of shape (5,) to phi of shape (2, 2), but the task needs (2, 1)"),
        ("pair", "silo 'clinic': Narrow maps 2 samples"),
        (
            "Narrow",
            "Narrow.__init__() missing 1 required positional argument: 'width'; make it a frozen dataclass with",
        ),
        ("Unhashable", "unhashable type: 'Unhashable'; make it a frozen dataclass"),
        ("dataclass", "its type is function, which lacks the functions init and phi"),
        ("Missing", "module 'narrow' has no attribute 'Missing'"),
    ],
)
def test_what_is_no_block_or_does_not_fit_is_refused_by_its_name(tmp_path, name, words):
    (tmp_path / "narrow.py").write_text(MODULE)
    with pytest.raises(ConfigError) as caught:
        plan(with_keys(RIDGE, model={"block": f"narrow:{name}", "folder": str(tmp_path)}))
    assert f"model.block = 'narrow:{name}': {words}" in str(caught.value)


def test_silos_that_name_the_same_share_it(tmp_path):
    (tmp_path / "narrow.py").write_text(MODULE)
    first, second = blocks_of(with_keys(RIDGE, model={"block": "narrow:pair", "folder": str(tmp_path)}))
    assert first is second
    with pytest.raises(ConfigError, match=r"model.block = 'narrow': must be .*'torch' or 'package.module:name'"):
        with_keys(RIDGE, model={"block": "narrow"})
    with pytest.raises(ConfigError, match=r"model.block.1 = 'my block': must be .*'torch' or 'package.module:name'"):
        with_keys(RIDGE, model={"block": ["linear", "my block"]})
