"""The ridge workload: M = 20000, D = 82, N = 4, K = 5, B = 100, Q = 10."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import jax
import numpy as np

from benchmarks.baseline import PerClientLoop, linear_loop
from benchmarks.batched import batched_linear
from benchmarks.figures import report
from benchmarks.fused import FusedLoop
from benchmarks.limits import limit
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
    """One local iteration with its share of the exchange: ours, the per-client loop of PyTorch modules, a loop in C."""
    data, rounds = federation(), 640
    engine = simulation(data)
    actions = {"ours": partial(advance, engine, rounds)}
    if FusedLoop.is_possible():
        loop_in_c = FusedLoop(data, engine.settings, rounds)
        ends = engine.advance(engine.init(), 0, rounds).blocks
        for block, same in zip(ends, loop_in_c.run(), strict=True):
            np.testing.assert_allclose(np.asarray(block["weight"])[:, 0], same, rtol=1e-3, atol=1e-5)
        actions["fused"] = loop_in_c.run
    if find_spec("torch"):
        actions["torch"] = partial(per_client_loop(data).round, 0)
        actions["batched"] = batched_round(data)
    times = dict(zip(actions, alternate([*actions.values()], repetitions=21), strict=True))
    # Rows are read for the exchange, for the step's scores and for its gradient.
    least = limit(3 * 2 * BATCH_SIZE * 82, 3 * 4 * BATCH_SIZE * 82, data=4 * 82 * data.num_samples)
    iterations = rounds * LOCAL_STEPS
    ours = times["ours"] / iterations
    loop = times["torch"] / LOCAL_STEPS if "torch" in times else None
    batched = ("bmm", times["batched"] / LOCAL_STEPS) if "batched" in times else None
    figures = report(f"ridge, Q={LOCAL_STEPS}, an iteration", ours, least, loop, unit="us", batched=batched)
    if "fused" in times:
        fused = times["fused"] / iterations
        figures |= {"fused_us": 1e6 * fused, "times_fused": ours / fused}
        print(f"  a fused loop in C, on one core: {1e6 * fused:.3g} us; ours takes {ours / fused:.1f} times as long")
    return figures


def per_client_loop(data: Federation) -> PerClientLoop:
    """On the CPU also where there is a GPU, which would only slow such small steps down."""
    return linear_loop(data, batch_size=BATCH_SIZE, local_steps=LOCAL_STEPS, step_size=STEP_SIZE)


def batched_round(data: Federation) -> Callable[[], None]:
    """A round of all clients in one batch, on one core, which is faster for products this small."""
    import torch  # noqa: PLC0415

    loop = batched_linear(data, batch_size=BATCH_SIZE, local_steps=LOCAL_STEPS, step_size=STEP_SIZE)

    def round_() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        loop.round()
        torch.set_num_threads(threads)

    return round_
