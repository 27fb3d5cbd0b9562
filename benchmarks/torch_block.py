"""A PyTorch module as a block against batched PyTorch: a ResNet with GroupNorm on 32 x 32 x 3 images.

Both sides take the same local steps for all clients of all silos at once: the gradient of the softmax loss of each
client's own rows, with what the other silos add frozen, and a step of SGD. PyTorch does it by ``torch.func``:
``functional_call`` under ``grad`` under ``vmap`` over the clients, as it is and compiled; the
fastest counts. On a CPU everything is smaller.

Needs JAX and PyTorch only, on a GPU both for the GPU.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import alternate

SHAPE, CLASSES, STEP_SIZE, SILOS = (32, 32, 3), 10, 0.01, 2


def resnet(width: int, depth: int) -> Any:
    """Three stages of ``depth`` residual blocks, each stage with twice the channels and half the pixels."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    class Residual(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.first_norm = nn.GroupNorm(8, outputs)
            self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.second_norm = nn.GroupNorm(8, outputs)
            is_same = stride == 1 and inputs == outputs
            self.short = nn.Identity() if is_same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

        def forward(self, images: Any) -> Any:
            inner = self.second_norm(self.second(torch.relu(self.first_norm(self.first(images)))))
            return torch.relu(inner + self.short(images))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(8, width)
            sizes = [width] + [width * 2**stage for stage in range(3) for _ in range(depth)]
            strides = [2 if stage and not index else 1 for stage in range(3) for index in range(depth)]
            pairs = zip(sizes, sizes[1:], strides, strict=False)
            self.stages = nn.Sequential(*(Residual(inputs, outputs, stride) for inputs, outputs, stride in pairs))
            self.slice = nn.Linear(4 * width, CLASSES, bias=False)

        def forward(self, images: Any) -> Any:
            images = self.stages(torch.relu(self.norm(self.stem(images.permute(0, 3, 1, 2)))))
            return self.slice(images.mean((2, 3)))

    return ResNet()


def ours(
    make: Callable[[], Any], rows: Any, labels: Any, received: Any
) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Local steps of all clients as one compiled call; and their last blocks."""
    from tdcd.blocks.torch import TorchBlock  # noqa: PLC0415

    block = TorchBlock(make)
    start = block.init(jax.random.key(0), SHAPE, CLASSES)
    clients = len(rows)

    def loss(weights: Any, features: Any, labels: Any, received: Any) -> Any:
        scores = block.phi(weights, features) + received
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()

    def client(weights: Any, features: Any, labels: Any, received: Any) -> Any:
        def step(weights: Any, own: Any) -> tuple[Any, None]:
            slopes = jax.grad(loss)(weights, *own)
            return jax.tree.map(lambda weight, slope: weight - STEP_SIZE * slope, weights, slopes), None

        return jax.lax.scan(step, weights, (features, labels, received))[0]

    advance = jax.jit(jax.vmap(client))
    state = {"blocks": jax.tree.map(lambda leaf: jnp.stack([leaf] * clients), start)}
    data = [jax.device_put(part) for part in (rows, labels, received)]

    def run() -> None:
        state["blocks"] = jax.block_until_ready(advance(state["blocks"], *data))

    return run, lambda: state["blocks"]


def batched(
    module: Any, start: Any, rows: Any, labels: Any, received: Any, *, way: str, gpu: bool
) -> tuple[Callable[[], None], Callable[[], Any]]:
    """The same local steps by ``torch.func``; and the last blocks."""
    import torch  # noqa: PLC0415

    device = "cuda" if gpu else "cpu"
    module = module.to(device).eval()
    blocks = {name: torch.from_numpy(np.array(value)).to(device) for name, value in start.items()}
    data = [
        torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (rows, labels.astype(np.int64), received)
    ]

    def loss(weights: Any, features: Any, labels: Any, received: Any) -> Any:
        scores = torch.func.functional_call(module, weights, (features,)) + received
        return torch.nn.functional.cross_entropy(scores, labels)

    gradient = torch.func.vmap(torch.func.grad(loss))
    if way == "compiled":
        gradient = torch.compile(gradient, dynamic=False)

    def steps() -> None:
        for index in range(rows.shape[1]):
            slopes = gradient(blocks, *(part[:, index] for part in data))
            with torch.no_grad():
                for name, slope in slopes.items():
                    blocks[name].sub_(STEP_SIZE * slope)

    def run() -> None:
        steps()
        if gpu:
            torch.cuda.synchronize()

    return run, lambda: {name: value.cpu().numpy() for name, value in blocks.items()}


def other_convolutions() -> dict[str, Callable[[Any, Any], Any]]:
    """Ways to convolve that the block does not take by itself, to see whether it chose well."""
    from tdcd.blocks import convolution  # noqa: PLC0415

    def grouped(images: Any, weight: Any) -> Any:
        order = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(images, weight, (1, 1), "VALID", dimension_numbers=order)

    return {
        "patches": convolution._convolve_patches,
        "strips": convolution._convolve_strips,
        "grouped convolutions": grouped,
    }


def by_other_convolutions(make: Callable[[], Any], data: Any) -> dict[str, float]:
    """Seconds per local iteration with each of them."""
    from tdcd.blocks import operators  # noqa: PLC0415

    chosen, seconds = operators.convolve, {}
    for name, convolve in other_convolutions().items():
        operators.convolve = convolve
        try:
            run, _ = ours(make, *data)
            seconds[name] = alternate([run], repetitions=3)[0] / data[0].shape[1]
        finally:
            operators.convolve = chosen
    print("  our block with " + ", ".join(f"{name} {1e3 * taken:.3g} ms" for name, taken in seconds.items()))
    return seconds


def same_steps(module: Any, make: Callable[[], Any], data: Any, *, gpu: bool) -> float:
    """How far both sides are apart after the same steps, over how far they moved; refused if it is much."""
    run, last = ours(make, *data)
    before = {name: np.array(value) for name, value in last().items()}
    run()
    run_torch, last_torch = batched(module, before, *data, way="as it is", gpu=gpu)
    run_torch()
    got, expected = last(), last_torch()
    apart = max(float(np.abs(np.asarray(got[name]) - expected[name]).max()) for name in expected)
    moved = max(float(np.abs(before[name] - expected[name]).max()) for name in expected)
    if not apart < 0.05 * moved:
        raise SystemExit(f"the two sides differ by {apart:.2g} after moving by {moved:.2g}")
    return apart / moved


def measure(clients: int, rows: int, steps: int, width: int, depth: int, *, gpu: bool) -> dict[str, Any]:
    """Seconds per local iteration of all clients."""
    import torch  # noqa: PLC0415

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    rng, axes = np.random.default_rng(0), (SILOS * clients, steps, rows)
    data = (
        rng.random((*axes, *SHAPE), np.float32),
        rng.integers(0, CLASSES, axes).astype(np.int32),
        rng.normal(size=(*axes, CLASSES)).astype(np.float32),
    )
    make = partial(resnet, width, depth)
    module = make()
    apart = same_steps(module, make, data, gpu=gpu)
    run, last = ours(make, *data)
    ways: dict[str, Callable[[], None]] = {}
    for way in ("as it is", "compiled"):
        try:
            candidate, _ = batched(module, last(), *data, way=way, gpu=gpu)
            candidate()
            ways[way] = candidate
        except Exception as error:
            print(f"  batched PyTorch, {way}: {type(error).__name__}: {str(error).strip().splitlines()[0][:120]}")
    seconds = alternate([run, *ways.values()], repetitions=5)
    mine, *theirs = (taken / steps for taken in seconds)
    by_way = dict(zip(ways, theirs, strict=True))
    best = min(by_way, key=lambda way: by_way[way])
    count = sum(parameter.numel() for parameter in module.parameters())
    print(
        f"torch block, ResNet with GroupNorm, {count:,} parameters, {SILOS} x {clients} clients, {rows} rows each, "
        f"a local iteration: {1e3 * mine:.3g} ms; batched PyTorch "
        + ", ".join(f"{way} {1e3 * taken:.3g} ms" for way, taken in by_way.items())
        + f": {by_way[best] / mine:.2f} times faster than the best, {best}; steps agree to {apart:.1e} of the way"
    )
    others = by_other_convolutions(make, data)
    return {
        "seconds": mine,
        "batched": by_way,
        "best": best,
        "ratio": by_way[best] / mine,
        "apart": apart,
        "other_convolutions": others,
    }


def main() -> dict[str, Any]:
    """Ours against batched PyTorch."""
    if find_spec("torch") is None:
        raise SystemExit("the block needs PyTorch: make bench installs it")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    if jax.default_backend() != "gpu":
        return {"small": measure(3, 8, 2, 8, 1, gpu=False)}
    return {
        "small": measure(5, 32, 4, 16, 1, gpu=True),
        "full": measure(50, 32, 4, 16, 3, gpu=True),
    }
