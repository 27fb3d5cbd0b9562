"""Ensembles on piecewise columns: 3 silos of 1,300 features, K = 4, B = 256, Q = 10, 16 members of 128-128.

Each member has a loss of its own, and units are left out, on both sides. PyTorch has all clients in one batch, as it is
and by ``torch.compile``; the fastest counts.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from benchmarks.batched import BatchedLoop
from benchmarks.figures import report
from benchmarks.limits import limit
from benchmarks.timing import alternate
from tdcd import Ensemble, Federation, Objective, Settings, Silo, Simulation
from tdcd.federation.partition import equal_sizes, shuffled_rows

NUM_SAMPLES, FEATURES, SILOS, CLIENTS, BATCH_SIZE, LOCAL_STEPS = 8_000, 1_300, 3, 4, 256, 10
STEP_SIZE = 0.05
BLOCK = Ensemble()


def federation() -> Federation:
    """As wide as the Superconductivity table with 48 bins per column."""
    rng, silos = np.random.default_rng(0), []
    for index in range(SILOS):
        features = rng.random((NUM_SAMPLES, FEATURES), np.float32) - 0.5
        silos.append(Silo(f"silo{index}", features, shuffled_rows(NUM_SAMPLES, equal_sizes(NUM_SAMPLES, CLIENTS), rng)))
    return Federation(tuple(silos), rng.standard_normal(NUM_SAMPLES, np.float32))


def simulation(data: Federation) -> Simulation:
    """The same rounds here."""
    settings = Settings(local_steps=LOCAL_STEPS, batch_size=BATCH_SIZE, step_size=STEP_SIZE)
    return Simulation(data, [BLOCK] * SILOS, Objective("squared"), settings)


def forward(parameters: list[Any], rows: Any) -> Any:
    """Stacked parameters of G clients and rows ``[G, P, D]`` to scores ``[G, P, 1]``."""
    return last_layer(parameters, rows, 0.0).flatten(2).bmm(parameters[-1]) / BLOCK.members


def members(parameters: list[Any], rows: Any) -> Any:
    """The same in a local step: each member's own scores ``[G, P, k]``, without the units that are left out."""
    slices = parameters[-1].unflatten(1, (BLOCK.members, -1))[..., 0]
    return (last_layer(parameters, rows, BLOCK.dropout) * slices[:, None]).sum(dim=-1)


def last_layer(parameters: list[Any], rows: Any, dropout: float) -> Any:
    """``[G, P, k, width]``."""
    import torch  # noqa: PLC0415

    weight, output, bias, second, inputs, second_output, second_bias, _ = parameters
    count = rows.shape[1]

    def kept(hidden: Any, like: Any) -> Any:
        return hidden * (torch.rand_like(like) >= dropout)[:, None] / (1 - dropout) if dropout else hidden

    hidden = kept(torch.relu(rows.bmm(weight)[:, :, None] * output[:, None] + bias[:, None]), bias) * inputs[:, None]
    products = hidden.flatten(1, 2).bmm(second).unflatten(1, (count, -1))
    return kept(torch.relu(products * second_output[:, None] + second_bias[:, None]), second_bias)


def batched_round(data: Federation, *, compiles: bool = False) -> Callable[[], None]:
    """A round of all clients in one batch, in PyTorch."""
    import torch  # noqa: PLC0415

    gpu = torch.cuda.is_available()
    torch.backends.cuda.matmul.allow_tf32 = True
    start = BLOCK.init(jax.random.key(0), (FEATURES,), 1)
    first, second = start["hidden"]
    arrays = [first["weight"], first["output"], first["bias"]]
    arrays += [second["weight"], second["input"], second["output"], second["bias"], start["slice"]]
    loop = BatchedLoop(
        data,
        [torch.from_numpy(np.array(array, np.float32)) for array in arrays],
        forward,
        lambda scores, labels: ((scores - labels[:, None]) ** 2 / 2).mean(dim=1),
        batch_size=BATCH_SIZE,
        local_steps=LOCAL_STEPS,
        step_size=STEP_SIZE,
        device="cuda" if gpu else "cpu",
        step_forward=members,
        compiles=compiles,
    )
    if gpu:
        loop.capture()
    return loop.round


def main() -> dict[str, float]:
    """One local iteration with its share of the exchange."""
    data = federation()
    engine = simulation(data)
    rounds = 2 if jax.default_backend() == "cpu" else 200

    def advance() -> None:
        jax.block_until_ready(engine.advance(engine.init(), 0, rounds))

    ways = {"as it is": False, "compiled": True} if find_spec("torch") else {}
    taken, *theirs = alternate(
        [advance, *(batched_round(data, compiles=compiles) for compiles in ways.values())], repetitions=3
    )
    for name, seconds in zip(ways, theirs, strict=True):
        print(f"  batched PyTorch, {name}: {1e3 * seconds / LOCAL_STEPS:.3g} ms")
    first, second = BLOCK.hidden
    products = FEATURES * first + BLOCK.members * (first * second + second)
    # A row is multiplied for the exchange, for the step's scores, and twice for its gradient, but for that of features.
    passes = 2 * SILOS * BATCH_SIZE * (4 * products - FEATURES * first)
    least = limit(passes, 3 * 4 * SILOS * BATCH_SIZE * FEATURES)
    kind = jax.devices()[0].device_kind
    workload = f"ensembles of {BLOCK.members}, D={FEATURES} per silo, K={CLIENTS}, B={BATCH_SIZE}, {kind}"
    batched = ("bmm", min(theirs) / LOCAL_STEPS) if theirs else None
    return report(workload, taken / rounds / LOCAL_STEPS, least, None, batched=batched)
