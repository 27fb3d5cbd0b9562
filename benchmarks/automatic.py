"""``step_size = "auto"`` against a grid of 25 fixed steps and Q: the time to the accuracy of scikit-learn.

Five tables, two silos of three clients each, linear blocks. A run has arrived when its held-out figure (AUC, R2 or
accuracy) is within 0.002 of that of scikit-learn's best linear model on the joined table, and stays there for as many
rounds again, at least 20. Its time is its rounds on three networks of ``tdcd plan``, evaluations left out; of "auto"
also what clients send once before round 0. The grid's own time is free. A fixed run is given up when it is slower than
the best one, or than three times "auto", on all three networks.
"""

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV, RidgeCV

from benchmarks.defaults import Job, tables
from tdcd import Federation, Linear, Objective, Settings, train
from tdcd.compare.compute import Compute
from tdcd.compare.prediction import predict
from tdcd.config.resolve import Plan
from tdcd.config.schema import Config
from tdcd.core.family.automatic import automatic_l2
from tdcd.core.losses import loss_of
from tdcd.core.network import PRESETS
from tdcd.data import Table, standardize
from tdcd.simulation.simulate import Simulation
from tdcd.training.train import ledger_of, measure, simulate

NAMES = ("breast", "credit", "superconductivity", "diabetes", "digits")
STEP_SIZES, LOCAL_STEPS, BATCH_SIZE = (0.01, 0.03, 0.1, 0.3, 1.0), (1, 3, 10, 30, 100), 128
CHOICES = sorted(product(STEP_SIZES, LOCAL_STEPS), key=lambda choice: -choice[0] * choice[1])
"""Those that go furthest in a round come first: what they reach others have to beat."""
NEAR = 0.002
MOST_ROUNDS, SLOWER = 10_000, 3
SECONDS_PER_PRODUCT = 1e-9
"""A client computes a product and a sum in a nanosecond: a figure that does not depend on how busy this machine is."""
FIGURES = {"squared": "r2", "logistic": "auc", "softmax": "accuracy"}


class Problem(NamedTuple):
    """A federation, what it minimises, and the figure to reach."""

    name: str
    federation: Federation
    objective: Objective
    target: float


class Arrival:
    """The round since which a run is at the target."""

    def __init__(self, target: float) -> None:
        """Before the first evaluation."""
        self._target = target
        self.round: int | None = None

    def add(self, round_index: int, figure: float | None) -> None:
        """Take an evaluation in; below the target the run has yet to arrive, unless it stayed there for long."""
        has_stayed = self.round is not None and round_index > max(2 * self.round, self.round + 20)
        if figure is None or figure < self._target:
            self.round = self.round if has_stayed else None
        elif self.round is None:
            self.round = round_index


def divided(job: Job) -> tuple[Table, Table, str]:
    """The table with a fifth held out, in columns of mean 0 and variance 1, and its loss; categories are 0 and 1."""
    classes = np.unique(job.labels)
    is_regression = job.labels.dtype.kind == "f" or len(classes) > 20
    loss = "squared" if is_regression else "logistic" if len(classes) == 2 else "softmax"
    task = "regression" if is_regression else "binary" if len(classes) == 2 else "classes"
    rows = pd.get_dummies(job.rows.fillna(job.rows.mean(numeric_only=True))).to_numpy(np.float64)
    labels = job.labels if is_regression else np.searchsorted(classes, job.labels)
    order = np.random.default_rng(0).permutation(len(labels))
    cut = len(order) * 4 // 5
    parts = [Table(job.name, rows[ids], labels[ids], task) for ids in (order[:cut], order[cut:])]
    table, test = standardize(*parts, "float32")
    assert test is not None
    return table, test, loss


def federation_of(table: Table, test: Table, loss: str) -> tuple[Federation, Objective]:
    """Two silos of three clients, and what they minimise."""
    federation = Federation.cut(table, test, silos=2, clients=3, bias=True)
    return federation, Objective(loss, automatic_l2(loss_of(loss), federation.num_samples))


def problem_of(job: Job) -> Problem:
    """The table with a fifth held out, and the target by scikit-learn on the joined rows."""
    table, test, loss = divided(job)
    is_regression = loss == "squared"
    penalties = np.logspace(-3, 3, 7)
    if is_regression:
        best = RidgeCV(penalties).fit(table.features, table.labels)
        figure = best.score(test.features, test.labels)
    else:
        best = LogisticRegressionCV(
            Cs=penalties, max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False, scoring="neg_log_loss"
        ).fit(table.features, table.labels)
        figure = best.score(test.features, test.labels)
        if loss == "logistic":
            from sklearn.metrics import roc_auc_score  # noqa: PLC0415

            figure = roc_auc_score(test.labels, best.decision_function(test.features))
        else:
            figure = float(np.mean(best.predict(test.features) == test.labels))
    return Problem(job.name, *federation_of(table, test, loss), figure - NEAR)


def automatic_run(problem: Problem) -> tuple[Simulation, float]:
    """A run of "auto", and its rounds to the target."""
    result = train(
        problem.federation, Linear(), problem.objective, Settings(), rounds=2000, evaluate_every=1, quiet=True
    )
    arrival, name = Arrival(problem.target), FIGURES[problem.objective.loss]
    for record in result.history:
        if not record.taken_back:
            arrival.add(record.round, record.metrics["test"][name])
    return result.simulation, math.inf if arrival.round is None else arrival.round


def fixed_run(
    problem: Problem, step_size: float, local_steps: int, within: dict[str, float]
) -> tuple[Simulation, float]:
    """A run of plain steps, and its rounds to the target; infinite if it is not there within so many seconds."""
    settings = Settings(
        step_size=step_size, local_steps=local_steps, batch_size=min(BATCH_SIZE, problem.federation.num_samples)
    )
    simulation = simulate(Plan(Config(), problem.federation, (Linear(),) * 2, problem.objective, settings))
    state, rounds, name = simulation.init(), 0, FIGURES[problem.objective.loss]
    arrival = Arrival(problem.target)
    each = {network: taken / 100 for network, taken in seconds(simulation, 100).items()}
    most = min(MOST_ROUNDS, max(within[network] / each[network] for network in PRESETS))
    while arrival.round is not None or rounds < most:
        more = max(1, rounds // 20)
        state = simulation.advance(state, rounds, more)
        rounds += more
        found = measure(simulation, state.blocks, rounds)[0]
        if not math.isfinite(found.train_loss):
            break
        arrival.add(rounds, found.metrics["test"][name])
        if arrival.round is not None and rounds >= max(2 * arrival.round, arrival.round + 20):
            return simulation, arrival.round
    return simulation, math.inf


def seconds(simulation: Simulation, rounds: float) -> dict[str, float]:
    """The predicted time of so many rounds on every network, and of what is sent once."""
    if math.isinf(rounds):
        return dict.fromkeys(PRESETS, math.inf)
    plan = Plan(
        Config(),
        simulation.federation,
        simulation.blocks,
        simulation.objective,
        simulation.settings,
        simulation.variant,
    )
    ledger = ledger_of(simulation, simulation.init().blocks, plan)
    samples, settings = simulation.federation.num_samples, simulation.settings
    shares = max(float(silo.shares.max()) for silo in simulation.federation.silos)
    widest = max(silo.features.shape[1] for silo in simulation.federation.silos)
    products = shares * settings.effective_batch_size(samples) * widest * simulation.num_outputs
    compute = Compute(settings.num_exchanged * products * SECONDS_PER_PRODUCT, 2 * products * SECONDS_PER_PRODUCT)
    return {name: predict(plan, ledger, network, compute, {}).after(int(rounds)) for name, network in PRESETS.items()}


def main() -> dict[str, Any]:
    """Run and print."""
    figures: dict[str, Any] = {}
    print(f"{'table':18} {'rounds':>7} " + " ".join(f"{name:>34}" for name in PRESETS))
    for job in tables():
        if job.name not in NAMES:
            continue
        problem = problem_of(job)
        simulation, rounds = automatic_run(problem)
        own = seconds(simulation, rounds)
        times, within = {}, {network: SLOWER * taken for network, taken in own.items()}
        for choice in CHOICES:
            times[choice] = seconds(*fixed_run(problem, *choice, within))
            within = {network: min(taken, within[network]) for network, taken in times[choice].items()}
        words, figures[job.name] = [], {}
        for network in PRESETS:
            best = min(times, key=lambda choice: times[choice][network])
            least = times[best][network]
            figures[job.name][network] = own[network] / least
            step, local_steps = best
            fixed = f"{least:.3g} s ({step:g}, Q = {local_steps})"
            words.append(f"{own[network]:7.3g} s {fixed:>18} {own[network] / least:5.2f}")
        print(f"{job.name:18} {rounds:7g} " + " ".join(f"{word:>34}" for word in words), flush=True)
    return figures
