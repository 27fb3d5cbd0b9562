"""A PyTorch module as a block, against the same perceptron written in JAX."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tdcd.blocks import Mlp
from tdcd.blocks.start import start_block
from tdcd.blocks.torch import TorchBlock
from tdcd.core.objective import Objective
from tdcd.core.settings import Settings
from tdcd.federation.partition import shuffled_rows
from tdcd.federation.silos import Federation, Silo
from tdcd.simulation.simulate import Simulation

NUM_FEATURES, NUM_HIDDEN, NUM_OUTPUTS = 6, 5, 3


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def block(torch):
    nn = torch.nn
    return TorchBlock(
        lambda: nn.Sequential(
            nn.Linear(NUM_FEATURES, NUM_HIDDEN), nn.ReLU(), nn.Linear(NUM_HIDDEN, NUM_OUTPUTS, bias=False)
        )
    )


def as_mlp(weights):
    """The module's parameters in the shape of :class:`Mlp`'s; PyTorch keeps matrices transposed."""
    layer = {"weight": jnp.asarray(weights["0.weight"]).T, "bias": jnp.asarray(weights["0.bias"])}
    return {"hidden": [layer], "slice": jnp.asarray(weights["2.weight"]).T}


def assert_close(one, other, tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_training_is_that_of_the_same_perceptron_in_jax(block, dtype, tolerance):
    rng = np.random.default_rng(0)
    num_samples = 30
    silos = [
        Silo(f"silo{j}", rng.normal(size=(num_samples, NUM_FEATURES)), shuffled_rows(num_samples, sizes, rng))
        for j, sizes in enumerate(([12, 18], [15, 10, 5]))
    ]
    federation = Federation(tuple(silos), np.arange(num_samples) % NUM_OUTPUTS)
    settings = Settings(local_steps=3, batch_size=8, step_size=0.3, dtype=dtype)
    in_torch, in_jax = (
        Simulation(federation, (model, model), Objective("softmax", l2=0.01), settings)
        for model in (block, Mlp((NUM_HIDDEN,)))
    )
    start = in_torch.init()
    got = in_torch.advance(start, 0, 2).blocks
    with jax.enable_x64(dtype == "float64"):
        assert all(
            float(jnp.max(jnp.abs(a["2.weight"] - b["2.weight"]))) > 1e-2
            for a, b in zip(start.blocks, got, strict=True)
        )
        expected = in_jax.advance(in_jax.state_of([as_mlp(weights) for weights in start.blocks]), 0, 2).blocks
        assert_close([as_mlp(weights) for weights in got], expected, tolerance)


def test_gradients_reach_weights_and_features_of_every_mapped_client(block):
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        shapes = jax.tree.map(jnp.shape, block.init(jax.random.key(0), (NUM_FEATURES,), NUM_OUTPUTS))
        weights = {name: rng.normal(size=(4, *shape)) for name, shape in shapes.items()}
        features, slopes = rng.normal(size=(4, 7, NUM_FEATURES)), rng.normal(size=(4, 7, NUM_OUTPUTS))

        def gradients(phi):
            def loss(weights, features, slopes):
                return jnp.sum(slopes * phi(weights, features))

            return jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1))))(weights, features, slopes)

        expected = gradients(lambda weights, features: Mlp((NUM_HIDDEN,)).phi(as_mlp(weights), features))
        assert_close(gradients(block.phi), expected, 1e-12)


def test_the_start_depends_on_the_key_alone(torch, block):
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    one, same, other = (block.init(jax.random.key(seed), (NUM_FEATURES,), NUM_OUTPUTS) for seed in (1, 1, 2))
    assert all(jnp.array_equal(one[name], same[name]) for name in one)
    assert not any(jnp.array_equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_dropout_does_nothing(torch):
    block = TorchBlock(lambda: torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 1, bias=False)))
    weights, features = block.init(jax.random.key(0), (4,), 1), np.ones((5, 4), np.float32)
    np.testing.assert_allclose(block.phi(weights, features), features @ weights["1.weight"].T, rtol=1e-6)


def test_calls_at_the_same_time_do_not_mix_their_weights(torch):
    block = TorchBlock(lambda: torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.Linear(300, 1, bias=False)))
    phi = jax.jit(block.phi)
    features = np.ones((400, 200), np.float32)
    starts = [block.init(jax.random.key(seed), (200,), 1) for seed in range(8)] * 20
    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(lambda weights: np.asarray(phi(weights, features)), starts))
    for got, weights in zip(scores, starts, strict=True):
        expected = (features @ weights["0.weight"].T + weights["0.bias"]) @ weights["1.weight"].T
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp, torch
from tdcd.blocks.torch import TorchBlock
block = TorchBlock(lambda: torch.nn.Linear(2000, 100, bias=False))
starts = [block.init(jax.random.key(seed), (2000,), 100) for seed in range(8)]
phi = jax.jit(block.phi)
features = jnp.ones((300, 2000))
for weights in starts:  # every call waits for the one before it, on a thread of JAX's own
    features = features + 1e-9 * phi(weights, features).sum()
features.block_until_ready()
print("done")
"""


@pytest.mark.usefixtures("torch")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can confine a process to one core")
def test_one_core_is_enough():
    done = subprocess.run([sys.executable, "-c", ONE_CORE], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr


def test_buffers_are_refused(torch):
    block = TorchBlock(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)))
    with pytest.raises(ValueError, match="buffer") as caught:
        block.init(jax.random.key(0), (4,), 1)
    assert str(caught.value) == (
        "the module has a buffer '0.running_mean', which hubs would not average: use layers without buffers, "
        "for example GroupNorm instead of BatchNorm"
    )


def test_frozen_parameters_are_refused(torch):
    block = TorchBlock(lambda: torch.nn.Linear(4, 1).requires_grad_(False))
    with pytest.raises(ValueError, match="parameter 'weight' is frozen, but a block trains all its parameters"):
        block.init(jax.random.key(0), (4,), 1)


def test_a_module_with_other_outputs_is_refused(block):
    with pytest.raises(ValueError, match="maps a sample") as caught:
        block.init(jax.random.key(0), (NUM_FEATURES,), 2)
    assert str(caught.value) == (
        "the module maps a sample of shape (6,) to (3,), but the task needs (2,): give its last layer 2 outputs"
    )


def test_without_pytorch_the_error_says_what_to_install():
    blocked = "import sys; sys.modules['torch'] = None\nfrom tdcd.blocks.torch import TorchBlock\nTorchBlock(list)"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: TorchBlock needs PyTorch: pip install 'tdcd[torch]'"


def test_a_module_of_another_width_is_told_by_both_widths_and_the_silo(torch):
    narrow = TorchBlock(lambda: torch.nn.Linear(5, 1, bias=False))
    words = "^silo 'bank': the module takes 5 features, but the silo has 3: give its first layer 3 inputs$"
    with pytest.raises(ValueError, match=words):
        start_block(narrow, Settings(step_size=0.05), 0, (3,), 1, "bank")
    images = TorchBlock(lambda: torch.nn.Conv2d(1, 1, 3, bias=False))
    with pytest.raises(ValueError, match=r"^silo 'bank': the module does not take a sample of shape \(3,\): "):
        start_block(images, Settings(step_size=0.05), 0, (3,), 1, "bank")
