"""The ridge workload: M = 20000, D = 82, N = 4, K = 5, B = 100, Q = 10."""

from functools import partial

import jax
import numpy as np

from benchmarks.baseline import PerClientLoop
from benchmarks.timing import alternate
from tdcd import Federation, Linear, Objective, Settings, Simulation, Table

LOCAL_STEPS, BATCH_SIZE, STEP_SIZE = 10, 100, 1e-3


def federation(num_clients: int = 5, rows_per_client: int = 4000) -> Federation:
    rng = np.random.default_rng(0)
    rows = num_clients * rows_per_client
    features = rng.standard_normal((rows, 82), np.float32)
    labels = (features @ rng.standard_normal(82, np.float32) + rng.standard_normal(rows, np.float32)).astype(np.float32)
    return Federation.cut(Table("random", features, labels, "regression"), silos=4, clients=num_clients)


def simulation(data: Federation, batch_size: int = BATCH_SIZE) -> Simulation:
    settings = Settings(local_steps=LOCAL_STEPS, batch_size=batch_size, step_size=STEP_SIZE)
    return Simulation(data, [Linear()] * 4, Objective("squared"), settings)


def advance(engine: Simulation, rounds: int) -> None:
    jax.block_until_ready(engine.advance(engine.init(), 0, rounds))


def main() -> dict[str, float]:
    """One local iteration with its share of the exchange: ours, and the per-client loop of PyTorch modules."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        raise SystemExit("the baseline needs PyTorch: make bench installs it") from None
    data = federation()
    engine = simulation(data)
    loop = PerClientLoop(
        data,
        lambda shape: torch.nn.Linear(shape[0], 1, bias=False),
        lambda scores, labels: (scores[:, 0] - labels) ** 2 / 2,
        batch_size=BATCH_SIZE,
        local_steps=LOCAL_STEPS,
        step_size=STEP_SIZE,
    )
    ours, theirs = alternate([partial(advance, engine, 640), partial(loop.round, 0)], repetitions=7)
    figures = {"tdcd_us": ours / 640 / LOCAL_STEPS * 1e6, "torch_us": theirs / LOCAL_STEPS * 1e6}
    figures["ratio"] = figures["torch_us"] / figures["tdcd_us"]
    print(
        f"ridge, Q={LOCAL_STEPS}: {figures['tdcd_us']:.1f} us an iteration; per-client PyTorch modules "
        f"{figures['torch_us']:.0f} us; {figures['ratio']:.0f} times faster"
    )
    return figures
