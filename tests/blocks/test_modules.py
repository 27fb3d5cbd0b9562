"""Flax and Equinox modules as blocks, against the same perceptron written in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tdcd import train
from tdcd.blocks import Mlp
from tdcd.blocks.modules import EquinoxBlock, LinenBlock, NnxBlock, as_block
from tdcd.blocks.start import start_block
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import blocks_of
from tdcd.core.objective import Objective
from tdcd.core.settings import Settings
from tdcd.federation.partition import shuffled_rows
from tdcd.federation.silos import Federation, Silo

NUM_FEATURES, NUM_HIDDEN, NUM_OUTPUTS = 4, 5, 3


def linen():
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, rows):
            hidden = nn.relu(nn.Dense(NUM_HIDDEN, name="hidden")(rows))
            return nn.Dense(NUM_OUTPUTS, use_bias=False, name="slice")(hidden)

    return Net(), LinenBlock


def nnx():
    from flax import nnx as nn

    class Net(nn.Module):
        def __init__(self, rngs):
            self.hidden = nn.Linear(NUM_FEATURES, NUM_HIDDEN, rngs=rngs)
            self.dropout = nn.Dropout(0.5, rngs=rngs)
            self.slice = nn.Linear(NUM_HIDDEN, NUM_OUTPUTS, use_bias=False, rngs=rngs)

        def __call__(self, rows):
            return self.slice(self.dropout(nn.relu(self.hidden(rows))))

    return Net(nn.Rngs(0)), NnxBlock


def equinox():
    import equinox as eqx

    first, second = jax.random.split(jax.random.key(0))
    layers = [eqx.nn.Linear(NUM_FEATURES, NUM_HIDDEN, key=first), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Dropout(0.5)]
    return eqx.nn.Sequential(
        [*layers, eqx.nn.Linear(NUM_HIDDEN, NUM_OUTPUTS, use_bias=False, key=second)]
    ), EquinoxBlock


def as_mlp(weights):
    """A module's parameters in the shape of :class:`Mlp`'s; Equinox keeps matrices transposed."""
    if "layers.0.weight" in weights:
        hidden, bias, last = (weights[f"layers.{name}"] for name in ("0.weight", "0.bias", "3.weight"))
        return {"hidden": [{"weight": hidden.T, "bias": bias}], "slice": last.T}
    if "hidden.kernel" in weights:
        weights = {"hidden": {"kernel": weights["hidden.kernel"], "bias": weights["hidden.bias"]}, **weights}
        weights["slice"] = {"kernel": weights["slice.kernel"]}
    layer = {"weight": weights["hidden"]["kernel"], "bias": weights["hidden"]["bias"]}
    return {"hidden": [layer], "slice": weights["slice"]["kernel"]}


@pytest.fixture
def federation():
    rng, num_samples = np.random.default_rng(0), 30
    silos = [
        Silo(f"silo{j}", rng.normal(size=(num_samples, NUM_FEATURES)), shuffled_rows(num_samples, sizes, rng))
        for j, sizes in enumerate(([12, 18], [15, 10, 5]))
    ]
    return Federation(tuple(silos), np.arange(num_samples) % NUM_OUTPUTS)


@pytest.mark.parametrize("library", [linen, nnx, equinox])
def test_training_is_that_of_the_same_perceptron_in_jax(federation, library):
    module, kind = library()
    assert type(as_block(module)) is kind
    settings = Settings(local_steps=3, batch_size=8, step_size=0.3, dtype="float64")
    result = train(federation, module, Objective("softmax", l2=0.01), settings, rounds=2, quiet=True, verbose=0)
    start = [
        start_block(as_block(module), settings, j, (NUM_FEATURES,), NUM_OUTPUTS) for j in range(federation.num_silos)
    ]

    class Started(Mlp):
        """The perceptron with the module's initial weights."""

        def init(self, key, feature_shape, num_outputs):
            return as_mlp(as_block(module).init(key, feature_shape, num_outputs))

    expected = train(
        federation, Started((NUM_HIDDEN,)), Objective("softmax", l2=0.01), settings, rounds=2, quiet=True, verbose=0
    )
    with jax.enable_x64(True):
        for j, name in enumerate(result.blocks):
            got = as_mlp(result.blocks[name])
            assert float(jnp.abs(got["slice"] - as_mlp(start[j])["slice"]).max()) > 1e-2
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected.blocks[name]), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


MODULE = """
import jax
import equinox as eqx

def make():
    return eqx.nn.MLP(15, 1, 4, 1, key=jax.random.key(0))

ready = make()
"""


def test_a_configuration_names_a_module_or_what_makes_one(tmp_path):
    (tmp_path / "own_equinox.py").write_text(MODULE)
    for name in ("make", "ready"):
        model = {"block": f"own_equinox:{name}", "folder": str(tmp_path)}
        (block, same) = blocks_of(check_config({"data": {"source": "breast_cancer"}, "model": model}))
        assert block is same
        assert block.init(None, (15,), 1)["layers.0.weight"].shape == (4, 15)


def test_state_that_hubs_would_not_average_is_refused():
    from flax import linen as nn
    from flax import nnx as flax_nnx

    words = "besides its parameters, which hubs would not average: use layers that treat every row alike, for example"

    class Normed(nn.Module):
        @nn.compact
        def __call__(self, rows):
            return nn.Dense(1)(nn.BatchNorm(use_running_average=True)(rows))

    with pytest.raises(ValueError, match=f"^silo 'bank': the module keeps 'batch_stats' {words}"):
        start_block(as_block(Normed()), Settings(step_size=0.1), 0, (4,), 1, "bank")
    with pytest.raises(ValueError, match=f"^silo 'bank': the module keeps batch statistics {words}"):
        start_block(as_block(flax_nnx.BatchNorm(4, rngs=flax_nnx.Rngs(0))), Settings(step_size=0.1), 0, (4,), 4, "bank")


def test_a_module_of_another_width_is_refused_in_its_own_words():
    import equinox as eqx

    block = as_block(eqx.nn.MLP(5, 1, 4, 1, key=jax.random.key(0)))
    words = r"^silo 'bank': EquinoxBlock does not take samples of shape \(4,\): the module says: dot_general requires"
    with pytest.raises(ValueError, match=words):
        start_block(block, Settings(step_size=0.1), 0, (4,), 1, "bank")


def test_what_is_no_block_is_refused_by_its_type(federation, tmp_path):
    with pytest.raises(ValueError, match=r"^blocks: dict is no block, since it lacks the functions init and phi$"):
        train(federation, {}, "softmax", rounds=1)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(ValueError, match=r"a PyTorch module is given as tdcd\.blocks\.torch\.TorchBlock\(make\)"):
        train(federation, torch.nn.Linear(4, 3), "softmax", rounds=1)
    (tmp_path / "own_torch.py").write_text("from torch import nn\n\nlayer = nn.Linear(4, 1)\n")
    model = {"block": "own_torch:layer", "folder": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"model.block = 'own_torch:layer': a PyTorch module is given as"):
        blocks_of(check_config({"data": {"source": "breast_cancer"}, "model": model}))
