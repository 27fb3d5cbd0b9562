"""The CNN workloads: MNIST shapes, two 64-channel 5 x 3 convolutions and a 256-wide embedding a silo.

On a CPU the small one (N = 2, K = 10, B = 640) with few local steps; on a GPU the small one with Q = 25 and the large
one (N = 4, K = 100, B = 12800), every silo with 28 x 14 images.
"""

import os
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from benchmarks.baseline import PerClientLoop
from benchmarks.batched import CNNS, BatchedLoop, fastest
from benchmarks.figures import report
from benchmarks.limits import limit
from benchmarks.timing import alternate
from tdcd import Federation, Objective, Settings, Silo, Simulation
from tdcd.blocks import Cnn
from tdcd.core.choices import Precision
from tdcd.core.execution import Execution
from tdcd.federation.partition import aligned_empty, equal_sizes, shuffled_rows

SHAPE, CLASSES, STEP_SIZE = (28, 14), 10, 1e-3
FLOPS = 2 * (24 * 12 * 15 * 64 + 8 * 4 * 15 * 64 * 64 + 512 * 256 + 256 * CLASSES)
"""Of one image's phi."""
PRECISIONS: tuple[Precision, ...] = ("tf32", "bfloat16", "float32")
"""The default first."""


def federation(num_silos: int, num_clients: int, num_samples: int) -> Federation:
    rng = np.random.default_rng(0)
    silos = []
    for index in range(num_silos):
        images = aligned_empty((num_samples, *SHAPE), np.float32)
        rng.random(out=images, dtype=np.float32)
        rows = shuffled_rows(num_samples, equal_sizes(num_samples, num_clients), rng)
        silos.append(Silo(f"silo{index}", images, rows))
    labels = rng.integers(0, CLASSES, num_samples).astype(np.int32)
    labels[:CLASSES] = np.arange(CLASSES)
    return Federation(tuple(silos), labels)


def torch_network(shape: tuple[int, ...]) -> Any:
    """The same network, as one writes it in PyTorch."""
    from torch import nn  # noqa: PLC0415

    layers = [nn.Unflatten(1, (1, SHAPE[0])), nn.Conv2d(1, 64, (5, 3)), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(64, 64, (5, 3)), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, CLASSES, bias=False))


def measure(
    num_silos: int,
    num_clients: int,
    batch_size: int,
    local_steps: int,
    *,
    rounds: int,
    gpu: bool,
    precision: Precision = "tf32",
) -> dict[str, float]:
    """Ours over ``rounds``, as in training, where the first call's rows are laid out before the device has work."""
    import torch  # noqa: PLC0415

    # What PyTorch keeps of the measurement before.
    torch.cuda.empty_cache()
    # PyTorch multiplies in the same precision, with the fastest convolutions it finds.
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    # A cache of shortened weights would outlive the CUDA graph that made it.
    short = torch.autocast("cuda", torch.bfloat16, enabled=gpu and precision == "bfloat16", cache_enabled=False)
    data = federation(num_silos, num_clients, 60_000)
    settings = Settings(local_steps=local_steps, batch_size=batch_size, step_size=STEP_SIZE)
    engine = Simulation(data, [Cnn()] * num_silos, Objective("softmax"), settings, Execution(precision=precision))
    state = engine.init()
    same = {
        "loss": partial(torch.nn.functional.cross_entropy, reduction="none"),
        "batch_size": batch_size,
        "local_steps": local_steps,
        "step_size": STEP_SIZE,
        "device": "cuda" if gpu else "cpu",
    }
    loop = PerClientLoop(data, torch_network, **same)

    def advance() -> None:
        jax.block_until_ready(engine.advance(state, 0, rounds))

    def loop_round() -> None:
        loop.round(0)
        if gpu:
            torch.cuda.synchronize()

    parameters = list(torch_network(SHAPE).parameters())
    with short:
        ways = {
            name: partial(BatchedLoop, data, parameters, forward, **same)
            for name, forward in ways_to_batch(gpu).items()
        }
        way, batched = fastest(ways, gpu=gpu)
        ours, together, theirs = alternate([advance, batched.round, loop_round], repetitions=3)
    ours /= rounds
    # A step's backward pass costs two forward ones, and the exchange another.
    least = limit(4 * FLOPS * num_silos * batch_size, 0)
    label = f"cnn, N={num_silos}, K={num_clients}, B={batch_size}, Q={local_steps}, {precision}, an iteration"
    return report(label, ours / local_steps, least, theirs / local_steps, batched=(way, together / local_steps))


def ways_to_batch(gpu: bool) -> dict[str, Any]:
    """How to write all clients as one batch; on a GPU also compiled, where that is worth its time."""
    import torch  # noqa: PLC0415

    if not gpu:
        return CNNS
    # A pool of compiling processes would take processor time from what is measured next.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # For more than eight shapes it would stop to compile, and that in the middle of a graph's capture.
    torch.compiler.reset()
    return {**CNNS, "compiled": torch.compile(CNNS["unfolded"], dynamic=False)}


def main() -> dict[str, Any]:
    """Ours against the per-client loop of PyTorch modules."""
    if find_spec("torch") is None:
        raise SystemExit("the baseline needs PyTorch: make bench installs it")
    if jax.default_backend() != "gpu":
        return {"small": measure(2, 10, 640, 4, rounds=1, gpu=False)}
    figures = {}
    for precision in PRECISIONS:
        figures[f"small_{precision}"] = measure(2, 10, 640, 25, rounds=80, gpu=True, precision=precision)
        figures[f"large_{precision}"] = measure(4, 100, 12_800, 5, rounds=16, gpu=True, precision=precision)
    return figures
