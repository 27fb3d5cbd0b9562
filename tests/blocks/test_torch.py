"""PyTorch modules as blocks: phi, gradients and training, against PyTorch itself and the same perceptron in JAX."""

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


def test_second_derivatives_are_those_of_the_same_perceptron(block):
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        shapes = jax.tree.map(jnp.shape, block.init(jax.random.key(0), (NUM_FEATURES,), NUM_OUTPUTS))
        weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        along = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        features = rng.normal(size=(7, NUM_FEATURES))

        def curvature(phi):
            slope = jax.grad(lambda weights: jnp.sum(phi(weights, features) ** 3))
            return jax.jvp(slope, (weights,), (along,))[1]

        expected = curvature(lambda weights, features: Mlp((NUM_HIDDEN,)).phi(as_mlp(weights), features))
        assert_close(curvature(block.phi), expected, 1e-10)


def zoo(torch):
    """Modules by name, each with the shape of a sample."""
    nn, functional = torch.nn, torch.nn.functional

    class Residual(nn.Module):
        def __init__(self, inputs, outputs, stride=1):
            super().__init__()
            self.first, self.norm = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(2, outputs)
            self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
            self.short = nn.Conv2d(inputs, outputs, 1, stride)

        def forward(self, images):
            return torch.relu(self.second(torch.relu(self.norm(self.first(images)))) + self.short(images))

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages, self.pool = nn.Sequential(Residual(3, 4), Residual(4, 8, 2)), nn.AdaptiveAvgPool2d(1)
            self.slice = nn.Linear(8, 3, bias=False)

        def forward(self, images):
            return self.slice(self.pool(self.stages(images.permute(0, 3, 1, 2))).flatten(1))

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(3, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
            self.slice = nn.Linear(8, 2, bias=False)

        def forward(self, tokens):
            return self.slice(self.layer(self.embed(tokens)).mean(1))

    class Categories(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.slice = nn.Embedding(7, 4, padding_idx=1), nn.Linear(7, 2, bias=False)

        def forward(self, columns):
            codes = (columns[:, 0].abs() * 3).long().clamp(0, 6)
            return self.slice(torch.cat([self.table(codes), columns[:, 1:]], 1))

    class Stops(nn.Module):
        """Gradients stop at ``detach`` and under ``no_grad``; assignments are in place."""

        def __init__(self):
            super().__init__()
            self.inner, self.slice = nn.Linear(4, 4), nn.Linear(4, 2, bias=False)
            self.frozen = nn.Parameter(torch.arange(4.0), requires_grad=False)
            self.register_buffer("offset", torch.ones(4))

        def forward(self, columns):
            with torch.no_grad():
                apart = self.inner(columns) * 2
            columns = columns.clone()
            columns[:, 0] = 3
            mixed = functional.mish(self.inner(columns)).detach() * self.frozen + self.offset + apart
            return self.slice(mixed + torch.tanh(self.inner(columns)))

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(4, 4), nn.Linear(4, 4)
            self.up.weight = self.down.weight

        def forward(self, columns):
            return self.up(torch.relu(self.down(columns)))[:, :2]

    class Arithmetic(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 6)

        def forward(self, columns):
            wide = self.inner(columns)
            first, second, third = wide.chunk(3, 1)
            products = torch.einsum("ni,nj->nij", first, second) @ third.unsqueeze(-1)
            largest, _ = wide.max(1, keepdim=True)
            parts = [products.squeeze(-1), largest, wide.var(1, keepdim=True), wide.std(1, keepdim=True)]
            parts += [wide.norm(dim=1, keepdim=True), wide.logsumexp(1, keepdim=True), wide[:, torch.tensor([2, 0])]]
            padded = functional.pad(torch.cat(parts, 1), (1, 2), value=0.5)
            chosen = torch.gather(padded, 1, torch.zeros(columns.shape[0], 2, dtype=torch.long) + 1)
            turned = padded.roll(1, 1).flip(1)[:, ::2] / (1 + padded.abs()[:, ::2]).pow(1.5)
            counted = (columns * torch.arange(4)) @ torch.tril(torch.ones(4, 4, dtype=columns.dtype))
            counted = counted.masked_fill(counted > 1, 0.25).clamp(-1, 1).cumsum(1) + columns.shape[1] / 3
            best = torch.maximum(wide[:, :2], wide[:, 2:4]).unbind(1)[0][:, None].expand(-1, 2)
            return torch.cat([chosen, turned, counted, best, functional.normalize(wide, dim=1)], 1)

    kept = nn.BatchNorm2d(2).eval()
    kept.running_mean += 0.3
    kept.running_var *= 2
    return {
        "perceptron": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 2, bias=False)), (4,)),
        "cnn": (
            nn.Sequential(nn.Conv2d(1, 4, (5, 3)), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(40, 2)),
            (1, 9, 12),
        ),
        "resnet": (ResNet(), (8, 8, 3)),
        "encoder": (Encoder(), (5, 3)),
        "categories": (Categories(), (4,)),
        "stops": (Stops(), (4,)),
        "tied": (Tied(), (4,)),
        "arithmetic": (Arithmetic(), (4,)),
        "recurrent": (Recurrent(torch), (5, 3)),
        "kept statistics": (nn.Sequential(kept, nn.Conv2d(2, 2, 3), nn.InstanceNorm2d(2), nn.Flatten()), (2, 5, 5)),
        "strides, dilations and groups": (
            nn.Sequential(
                nn.Conv2d(2, 4, 3, 2, 1),
                nn.Conv2d(4, 6, (3, 1), 1, (2, 0), (2, 1), groups=2),
                nn.Conv2d(6, 6, 3, padding="same", groups=6),
                nn.MaxPool2d(3, 2, 1),
                nn.Flatten(),
            ),
            (2, 9, 10),
        ),
        "series": (
            nn.Sequential(
                nn.Conv1d(2, 4, 3, padding=1),
                nn.GroupNorm(2, 4),
                nn.MaxPool1d(3, 2, 1),
                nn.AvgPool1d(2, 1, 1, count_include_pad=False),
                nn.AdaptiveAvgPool1d(3),
                nn.Flatten(),
            ),
            (2, 13),
        ),
        "means": (
            nn.Sequential(
                nn.Conv2d(1, 2, 1), nn.AvgPool2d(2), nn.ReflectionPad2d(1), nn.AdaptiveMaxPool2d(2), nn.Flatten()
            ),
            (1, 7, 8),
        ),
        "activations": (
            nn.Sequential(
                *(nn.Linear(4, 4), nn.Hardtanh(), nn.LeakyReLU(), nn.ELU(), nn.SiLU(), nn.GELU("tanh"), nn.PReLU()),
                *(nn.Linear(4, 4), nn.Hardswish(), nn.Softplus(), nn.Linear(4, 4), nn.ReLU6(), nn.LogSigmoid()),
                *(nn.Linear(4, 4), nn.SELU(), nn.CELU(2.0), nn.LayerNorm(4), nn.RMSNorm(4)),
                *(nn.Linear(4, 6), nn.GLU(), nn.LogSoftmax(-1)),
            ),
            (4,),
        ),
    }


class Recurrent:
    """Made when it is asked for, since its base class is PyTorch's."""

    def __new__(cls, torch):
        class Last(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.gru, self.slice = torch.nn.GRU(3, 4, batch_first=True), torch.nn.Linear(4, 2, bias=False)

            def forward(self, steps):
                return self.slice(self.gru(steps)[0][:, -1])

        return Last()


NAMED = ("perceptron", "cnn", "resnet", "encoder", "categories")
OTHERS = ("stops", "tied", "arithmetic", "recurrent", "kept statistics", "strides, dilations and groups", "series")
ALL = (*NAMED, *OTHERS, "means", "activations")


def expected_of(torch, module, weights, features, slopes):
    """PyTorch's own phi and gradients of one client."""
    module = module.to(getattr(torch, str(features.dtype)))
    parameters = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    inputs = torch.tensor(features, requires_grad=True)
    phi = torch.func.functional_call(module, parameters, (inputs,))
    sources = [*parameters.values(), inputs]
    found = torch.autograd.grad(phi, sources, torch.tensor(slopes), materialize_grads=True)
    return [part.detach().numpy() for part in (phi, *found)]


def error(got, expected):
    """The largest difference, over the largest number, of each array."""
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-2)) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float64") for name in ALL), *((name, "float32") for name in NAMED)]
)
def test_phi_and_gradients_of_every_mapped_client_are_pytorchs(torch, name, dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module, shape = zoo(torch)[name]
    module.train(False)
    block = TorchBlock(module.float)
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    rng, clients, rows = np.random.default_rng(0), 3, 4
    weights = {
        key: (value.detach().numpy() + 0.1 * rng.normal(size=(clients, *value.shape))).astype(dtype)
        for key, value in trained.items()
    }
    features = rng.normal(size=(clients, rows, *shape)).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        width = jax.eval_shape(block.phi, {key: value[0] for key, value in weights.items()}, features[0]).shape
        slopes = rng.normal(size=(clients, *width)).astype(dtype)

        def client(weights, features, slopes):
            phi, back = jax.vjp(block.phi, weights, features)
            return phi, *back(slopes)

        phi, by_weight, by_feature = jax.device_get(jax.jit(jax.vmap(client))(weights, features, slopes))
        alone = jax.jit(block.phi)({key: value[0] for key, value in weights.items()}, features[0][:1])
    for k in range(clients):
        own = {key: value[k] for key, value in weights.items()}
        got = [phi[k], *(by_weight[key][k] for key in own), by_feature[k]]
        expected = expected_of(torch, module, own, features[k], slopes[k])
        assert [part.dtype for part in got] == [part.dtype for part in expected]
        if dtype == "float64":
            assert error(got, expected) < 1e-12
            continue
        # Against the exact values, with PyTorch's own rounding as the measure.
        exact = expected_of(
            torch,
            module,
            {key: value.astype(float) for key, value in own.items()},
            *(features[k].astype(float), slopes[k].astype(float)),
        )
        assert error(got, exact) < max(1e-6, 4 * error(expected, exact))
    np.testing.assert_allclose(alone, phi[0, :1], rtol=1e-4, atol=1e-5)


def test_the_gradient_at_corners_and_among_equals_is_pytorchs(torch):
    nn = torch.nn
    corners = np.array([[0.0, 1.0, -1.0, 3.0], [-3.0, 6.0, 0.5, 0.5], [2.0, 2.0, 2.0, 2.0]])
    for layer in (nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.LeakyReLU(), nn.ELU(), nn.Hardswish()):
        assert_same_slope(torch, nn.Sequential(layer, nn.Linear(4, 1)), corners)
    pooled = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.MaxPool1d(3, 1, 1), nn.Flatten(), nn.Linear(4, 1))
    assert_same_slope(torch, pooled, corners)

    class Largest(nn.Linear):
        def forward(self, columns):
            ends = columns.clamp(0, 1) + columns.amax(1, keepdim=True) + columns.max(1, keepdim=True)[0] + columns.abs()
            return super().forward(ends + torch.maximum(columns, columns.flip(1)))

    assert_same_slope(torch, Largest(4, 1), corners)


def assert_same_slope(torch, module, features):
    module.eval()
    block, weights = (
        TorchBlock(lambda: module),
        {key: value.detach().numpy() for key, value in module.named_parameters()},
    )
    slopes = np.ones((len(features), 1))
    weights = {key: value.astype(float) for key, value in weights.items()}
    expected = expected_of(torch, module, weights, features, slopes)[-1]
    with jax.enable_x64(True):
        got = jax.grad(lambda features: block.phi(weights, features).sum())(jnp.asarray(features))
    module.float()
    np.testing.assert_allclose(got, expected, rtol=1e-12, err_msg=str(module))


def test_a_trained_block_goes_back_into_a_module(torch, block):
    weights = block.init(jax.random.key(1), (NUM_FEATURES,), NUM_OUTPUTS)
    weights = {name: 2 * value for name, value in weights.items()}
    features = np.random.default_rng(0).normal(size=(5, NUM_FEATURES)).astype(np.float32)
    module = block.module(weights)
    with torch.no_grad():
        np.testing.assert_allclose(
            module(torch.from_numpy(features)), block.phi(weights, features), rtol=1e-5, atol=1e-6
        )
    assert [*module.state_dict()] == ["0.weight", "0.bias", "2.weight"]
    assert not module.training


def test_the_start_depends_on_the_key_alone(torch, block):
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    one, same, other = (block.init(jax.random.key(seed), (NUM_FEATURES,), NUM_OUTPUTS) for seed in (1, 1, 2))
    assert all(jnp.array_equal(one[name], same[name]) for name in one)
    assert not any(jnp.array_equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_once_exported_pytorch_is_not_called_again(torch):
    calls = []

    class Counted(torch.nn.Linear):
        def forward(self, columns):
            calls.append(1)
            return super().forward(columns)

    block = TorchBlock(lambda: Counted(4, 1, bias=False))
    weights = block.init(jax.random.key(0), (4,), 1)
    calls.clear()
    for rows in (1, 2, 7):
        features = np.ones((rows, 4), np.float32)
        np.testing.assert_allclose(block.phi(weights, features), features @ weights["weight"].T, rtol=1e-6)
    assert not calls


def test_threads_may_export_at_the_same_time(torch):
    def started(width):
        block = TorchBlock(lambda: torch.nn.Linear(width, 1, bias=False))
        weights = block.init(jax.random.key(0), (width,), 1)
        return float(block.phi(weights, jnp.ones((1, width)))[0, 0]), float(weights["weight"].sum())

    with ThreadPoolExecutor(4) as threads:
        for got, expected in threads.map(started, range(1, 9)):
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_an_index_that_a_table_lacks_is_no_number(torch):
    class Table(torch.nn.Embedding):
        def forward(self, columns):
            return super().forward(columns[:, 0].long())

    block = TorchBlock(lambda: Table(3, 2))
    weights = block.init(jax.random.key(0), (1,), 2)
    phi = np.asarray(block.phi(weights, jnp.array([[2.0], [3.0], [-1.0]])))
    np.testing.assert_array_equal(np.isnan(phi).any(1), [False, True, True])


def refusal(torch, forward, **attributes):
    """Why a module with this forward pass, and a linear layer, is refused."""

    def build():
        module = type("Own", (torch.nn.Module,), {"forward": forward})()
        module.inner = torch.nn.Linear(4, 1, bias=False)
        for name, value in attributes.items():
            module.register_buffer(name, value())
        return module

    with pytest.raises(ValueError, match="module") as caught:
        TorchBlock(build).init(jax.random.key(0), (4,), 1)
    return str(caught.value)


def test_what_cannot_be_exported_is_refused_with_its_line(torch):
    def forward(self, columns):
        return self.inner(torch.fft.fft(columns).real)

    line = forward.__code__.co_firstlineno + 1
    words = refusal(torch, forward)
    assert words.startswith("the module's operator aten._fft_r2c.default (")
    assert f"test_torch.py, line {line}) has no counterpart in JAX here: write it with other operators" in words

    def forward(self, columns):
        return self.inner(columns) if columns.sum() > 0 else self.inner(2 * columns)

    line = forward.__code__.co_firstlineno + 1
    words = refusal(torch, forward)
    assert words.startswith("the module decides by the values of its features what to do (")
    assert words.endswith(f"test_torch.py, line {line}): a block does the same for every row; choose by torch.where")

    def forward(self, columns):
        return self.inner(columns) if len(columns) < 5 else self.inner(2 * columns)

    assert refusal(torch, forward) == (
        "the module works only for some numbers of rows: a block takes any number and treats every row alike. Write "
        "x.shape[0] for len(x), which PyTorch takes as fixed"
    )

    def forward(self, columns):
        self.calls += 1
        return self.inner(columns) * self.calls

    words = refusal(torch, forward, calls=lambda: torch.zeros(()))
    assert words == "the module changes 'calls' when it is called: a block is a function of parameters and features"

    def forward(self, columns):
        return self.inner(torch.nn.functional.dropout(columns, 0.5))

    words = refusal(torch, forward)
    assert words.startswith("the module's operator aten.")
    assert "dropout" in words
    assert "has no counterpart in JAX here" in words


def test_constants_that_parties_would_not_share_are_refused(torch):
    def forward(self, columns):
        return self.inner(columns * self.directions)

    assert refusal(torch, forward, directions=lambda: torch.randn(4)) == (
        "the module's 'directions' is not trained, and has other values whenever the module is made: parties would not "
        "have the same model. Draw it from a generator with a fixed seed, or load it"
    )


def test_statistics_of_a_clients_rows_are_refused(torch):
    block = TorchBlock(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)))
    with pytest.raises(ValueError, match="BatchNorm1d") as caught:
        block.init(jax.random.key(0), (4,), 1)
    assert str(caught.value) == (
        "the module's layer '0' is BatchNorm1d, whose statistics would be those of one client's rows: use layers that "
        "treat every row alike, for example GroupNorm, or keep the statistics that it has by BatchNorm1d.eval() where "
        "the module is made"
    )


def test_a_module_that_trains_nothing_is_refused(torch):
    block = TorchBlock(lambda: torch.nn.Linear(4, 1).requires_grad_(False))
    with pytest.raises(ValueError, match="the module has no parameters to train: all of them are frozen, or there are"):
        block.init(jax.random.key(0), (4,), 1)


def test_a_module_with_other_outputs_is_refused(torch, block):
    with pytest.raises(ValueError, match="maps a sample") as caught:
        block.init(jax.random.key(0), (NUM_FEATURES,), 2)
    assert str(caught.value) == (
        "the module maps a sample of shape (6,) to (3,), but the task needs (2,): give its last layer 2 outputs"
    )
    with pytest.raises(ValueError, match="the module returns a tuple, not an array of scores"):
        TorchBlock(lambda: torch.nn.GRU(3, 2, batch_first=True)).init(jax.random.key(0), (5, 3), 2)


def test_without_pytorch_the_error_says_what_to_install():
    blocked = "import sys; sys.modules['torch'] = None\nfrom tdcd.blocks.torch import TorchBlock\nTorchBlock(list)"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: TorchBlock needs PyTorch: pip install 'tdcd[torch]'"


def test_a_module_of_another_width_is_refused_with_both_widths_and_the_silo(torch):
    narrow = TorchBlock(lambda: torch.nn.Linear(5, 1, bias=False))
    words = "^silo 'bank': the module takes 5 features, but the silo has 3: give its first layer 3 inputs$"
    with pytest.raises(ValueError, match=words):
        start_block(narrow, Settings(step_size=0.05), 0, (3,), 1, "bank")
    images = TorchBlock(lambda: torch.nn.Conv2d(1, 1, 3, bias=False))
    with pytest.raises(ValueError, match=r"^silo 'bank': the module does not take a sample of shape \(3,\): "):
        start_block(images, Settings(step_size=0.05), 0, (3,), 1, "bank")
