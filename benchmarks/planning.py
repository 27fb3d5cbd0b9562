"""``tdcd plan`` on the ridge workload (M = 20000, D = 82, N = 4, K = 5, B = 100), against brute force.

Brute force simulates each Q with the configuration's step size, evaluated after every round, until the loss is at the
target; its time is its rounds times what the network model says a round takes. Its minibatches are drawn from another
seed than the plan's.
"""

import math
from dataclasses import replace

from tdcd.config import check_config
from tdcd.config.resolve import Plan, plan
from tdcd.core.network import PRESETS
from tdcd.planning import CANDIDATES, Recommendation, recommend_local_steps
from tdcd.planning.forecast import with_local_steps
from tdcd.training.train import simulate

CONFIG = {
    "data": {"source": "superconductors", "rows": 20000},
    "federation": {"silos": 4, "clients": 5},
    "model": {"block": "linear", "l2": 0.01},
    "train": {"batch_size": 100, "step_size": 1e-3},
    "evaluate": {"holdout": 0.0},
}
MOST_STEPS = 20_000


def brute_force(planned: Plan, local_steps: int, target: float) -> float:
    """Rounds to the target; infinite if the run diverges or takes too long."""
    another = planned._replace(settings=replace(planned.settings, seed=1))
    engine = simulate(with_local_steps(another, local_steps))
    state, loss, rounds = engine.init(), 0.0, 0
    while math.isfinite(loss) and rounds * local_steps < MOST_STEPS:
        state = engine.advance(state, rounds, 1)
        rounds += 1
        loss = engine.loss(state.blocks, engine.scores(state.blocks), planned.federation.labels)
        if loss <= target:
            return rounds
    return math.inf


def judge(name: str, found: Recommendation, rounds: dict[int, float]) -> dict[str, float]:
    assert found.recommended is not None, found.reason
    times = {forecast.local_steps: rounds[forecast.local_steps] * forecast.cost.seconds for forecast in found.forecasts}
    by_bound = {
        forecast.local_steps: (forecast.bound_rounds or math.inf) * forecast.cost.seconds
        for forecast in found.forecasts
    }
    best, chosen = min(times, key=lambda q: times[q]), found.recommended.local_steps
    by_theorem = min(by_bound, key=lambda q: by_bound[q])
    figures = {
        "recommended": chosen,
        "best": best,
        "ratio": times[chosen] / times[best],
        "by_theorem": by_theorem,
        "by_theorem_ratio": times[by_theorem] / times[best],
    }
    print(
        f"{name}: plan recommends Q = {chosen} ({times[chosen]:.3g} s), brute force Q = {best} ({times[best]:.3g} s), "
        f"ratio {figures['ratio']:.2f}; Theorem 1 alone would say Q = {by_theorem}, ratio "
        f"{figures['by_theorem_ratio']:.2f}"
    )
    return figures


def main() -> dict[str, dict[str, float]]:
    """What the plan recommends on each network, and what brute force finds best."""
    planned = plan(check_config(CONFIG))
    tables = {name: recommend_local_steps(planned, network) for name, network in PRESETS.items()}
    target = tables["lan"].target
    rounds = {q: brute_force(planned, q, target) for q in CANDIDATES}
    return {name: judge(name, table, rounds) for name, table in tables.items()}
