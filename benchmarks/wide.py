"""Wide linear: D = 4096, N = 4, K = 100, B = 10,000, Q = 5. Bound by memory."""

from collections.abc import Callable
from importlib.util import find_spec

import jax
import numpy as np

from benchmarks.baseline import linear_loop
from benchmarks.batched import batched_linear
from benchmarks.figures import report
from benchmarks.limits import limit
from benchmarks.timing import alternate
from tdcd import Federation, Linear, Objective, Settings, Silo, Simulation
from tdcd.federation.partition import aligned_empty, equal_sizes, shuffled_rows

NUM_SAMPLES, COLUMNS, SILOS, CLIENTS, BATCH_SIZE, LOCAL_STEPS = 50_000, 4096, 4, 100, 10_000, 5
STEP_SIZE = 1e-5


def federation() -> Federation:
    rng, silos = np.random.default_rng(0), []
    for index in range(SILOS):
        features = aligned_empty((NUM_SAMPLES, COLUMNS // SILOS), np.float32)
        rng.standard_normal(out=features, dtype=np.float32)
        silos.append(Silo(f"silo{index}", features, shuffled_rows(NUM_SAMPLES, equal_sizes(NUM_SAMPLES, CLIENTS), rng)))
    return Federation(tuple(silos), rng.standard_normal(NUM_SAMPLES, np.float32))


def simulation(data: Federation) -> Simulation:
    settings = Settings(local_steps=LOCAL_STEPS, batch_size=BATCH_SIZE, step_size=STEP_SIZE)
    return Simulation(data, [Linear()] * SILOS, Objective("squared"), settings)


def loop_round(data: Federation) -> Callable[[], None]:
    """A round of the per-client loop."""
    import torch  # noqa: PLC0415

    loop = linear_loop(
        data,
        batch_size=BATCH_SIZE,
        local_steps=LOCAL_STEPS,
        step_size=STEP_SIZE,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )

    def round_() -> None:
        loop.round(0)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return round_


def batched_round(data: Federation) -> Callable[[], None]:
    """A round of all clients in one batch."""
    import torch  # noqa: PLC0415

    gpu = torch.cuda.is_available()
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda" if gpu else "cpu"
    loop = batched_linear(data, batch_size=BATCH_SIZE, local_steps=LOCAL_STEPS, step_size=STEP_SIZE, device=device)
    if gpu:
        loop.capture()
    return loop.round


def main() -> dict[str, float]:
    """One local iteration with its share of the exchange."""
    data = federation()
    engine = simulation(data)
    rounds = 2 if jax.default_backend() == "cpu" else 1000

    def advance() -> None:
        jax.block_until_ready(engine.advance(engine.init(), 0, rounds))

    actions = [advance] + ([loop_round(data), batched_round(data)] if find_spec("torch") else [])
    taken, *theirs = alternate(actions, repetitions=3)
    # Rows are read for the exchange, for the step's scores and for its gradient.
    numbers = BATCH_SIZE * COLUMNS
    least = limit(3 * 2 * numbers, 3 * 4 * numbers)
    kind = jax.devices()[0].device_kind
    workload = f"wide linear, D={COLUMNS}, K={CLIENTS}, B={BATCH_SIZE}, {kind}"
    loop, batched = (theirs[0] / LOCAL_STEPS, ("bmm", theirs[1] / LOCAL_STEPS)) if theirs else (None, None)
    return report(workload, taken / rounds / LOCAL_STEPS, least, loop, batched=batched)
