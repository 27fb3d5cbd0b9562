"""Ridge problems in plain NumPy: dense constants, the noise in closed form, and Algorithm 1 in loops."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tdcd import Federation, Silo
from tdcd.core.family.overlap import Overlap
from tdcd.core.schedule import batch_ids
from tdcd.federation.partition import contiguous_rows
from tdcd.theory import Constants
from tdcd.theory.step_size import IN_STEP

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ridge:
    """A ridge problem and how its rows are split, for plain loops over NumPy arrays."""

    features: Sequence[Array]
    labels: Array
    rows: Sequence[Sequence[NDArray[np.int64]]]
    l2: float
    start: Sequence[Array]

    @classmethod
    def replicated(cls, seed: int, num_silos: int, num_clients: int, num_rows: int = 5) -> "Ridge":
        """Every client holds a copy of the same rows, so that Assumption 3 holds: all gradients are unbiased."""
        rng = np.random.default_rng(seed)
        common = rng.normal(size=(num_rows, 1))
        columns = [rng.normal(size=(num_rows, rng.integers(1, 4))) + common for _ in range(num_silos)]
        rows = []
        for _ in range(num_silos):
            first = rng.integers(0, num_clients, num_rows)
            rows.append([np.arange(num_rows) + num_rows * ((k + first) % num_clients) for k in range(num_clients)])
        return cls(
            [np.tile(part, (num_clients, 1)) for part in columns],
            np.tile(rng.normal(size=num_rows), num_clients),
            rows,
            float(rng.choice([0.0, 0.1])),
            [rng.normal(size=part.shape[1]) for part in columns],
        )

    @property
    def matrix(self) -> Array:
        return np.concatenate(self.features, axis=1)

    @property
    def hessian(self) -> Array:
        return self.matrix.T @ self.matrix / len(self.labels) + self.l2 * np.eye(self.matrix.shape[1])

    @property
    def constants(self) -> Constants:
        edges = np.cumsum([0, *(part.shape[1] for part in self.features)])
        rows = [np.linalg.norm(self.hessian[a:b], 2) for a, b in pairwise(edges)]
        return Constants(float(np.linalg.norm(self.hessian, 2)), tuple(rows), "exact", "dense")

    @property
    def gap(self) -> float:
        slope = self.gradient(self.start)
        return float(slope @ np.linalg.pinv(self.hessian) @ slope / 2)

    def gradient(self, model: Sequence[Array]) -> Array:
        theta = np.concatenate(model)
        return self.matrix.T @ (self.matrix @ theta - self.labels) / len(self.labels) + self.l2 * theta

    def federation(self) -> Federation:
        silos = [Silo(f"silo{j}", part, tuple(self.rows[j])) for j, part in enumerate(self.features)]
        return Federation(tuple(silos), self.labels)

    def blocks(self, model: Sequence[Array]) -> list[dict[str, Array]]:
        return [{"weight": part[:, None]} for part in model]


def expected_square(slopes: Array, rows: NDArray[np.int64], batch_size: int) -> float:
    """E|g_k - mean slope|^2 over minibatches drawn without replacement, where g_k = M / (n_k B) sum of own slopes."""
    total, own, chance = len(slopes), slopes[rows], batch_size / len(slopes)
    spread = (total * np.sum(own**2) - np.sum(own.sum(axis=0) ** 2)) / (total - 1)
    variance = (total / (len(rows) * batch_size)) ** 2 * chance * (1 - chance) * spread
    return float(variance + np.sum((own.mean(axis=0) - slopes.mean(axis=0)) ** 2))


@dataclass(frozen=True)
class PlainRun:
    """What the proof of Theorem 1 follows, iteration by iteration."""

    models: list[list[Array]]
    """The clients' mean blocks before every iteration; of a slow silo, those that it works on, and then those that it
    has not delivered yet."""
    weights: list[list[int]]
    """m of every silo where it steps, else 0."""
    sigma_squared: float
    """The largest at any model that a client worked at."""

    def mean_squared_gradient(self, problem: Ridge) -> float:
        """Every silo's part of the gradient, averaged over the iterations at which it steps."""
        edges = np.cumsum([part.shape[1] for part in problem.features])[:-1]
        squares = [
            sum(m * np.sum(part**2) for m, part in zip(weights, np.split(problem.gradient(model), edges), strict=True))
            for model, weights in zip(self.models, self.weights, strict=True)
        ]
        return float(np.mean(squares))


def run_plainly(
    problem: Ridge,
    *,
    rounds: int,
    local_steps: int,
    step_size: float,
    batch_size: int,
    seed: int,
    timing: Overlap = IN_STEP,
    bits: int = 32,
) -> PlainRun:
    """Algorithm 1 in loops, with overlap and periods, and with dithered phi from the hub to its clients."""
    rng = np.random.default_rng(seed)
    total, hubs, models, weights, largest = len(problem.labels), list(problem.start), [], [], 0.0
    periods = [timing.period(j) for j in range(len(hubs))]
    delivered = [hubs]
    for index in range(rounds):
        ids = batch_ids(seed, [index], num_samples=total, batch_size=batch_size, local_steps=local_steps)[0]
        sent = delivered[max(0, index - timing.rounds)]
        phis = [part @ hub for part, hub in zip(problem.features, sent, strict=True)]
        others = [sum(phis) - own for own in phis]
        stepping = [m if index % m == 0 else 0 for m in periods]
        clients = [[hub for _ in rows] for hub, rows in zip(hubs, problem.rows, strict=True)]
        for batch in ids:
            models.append([np.mean(silo, axis=0) for silo in clients])
            weights.append(stepping)
            for j, part in enumerate(problem.features):
                width = 2 * np.abs(others[j]).max() / (2**bits - 2) if bits < 32 else 0.0
                error = width * rng.uniform(-1 / 2, 1 / 2, total)
                for k, rows in enumerate(problem.rows[j] if stepping[j] else ()):
                    block = clients[j][k]
                    slopes = part * (part @ block + others[j] - problem.labels)[:, None]
                    rounding = (
                        total / (len(rows) * batch_size) * np.mean(part[rows] ** 2) * part.shape[1] * width**2 / 12
                    )
                    largest = max(largest, expected_square(slopes, rows, batch_size) + rounding)
                    slopes = slopes + part * error[:, None]
                    data = total / (len(rows) * batch_size) * slopes[np.intersect1d(batch, rows)].sum(axis=0)
                    clients[j][k] = block - stepping[j] * step_size * (data + problem.l2 * block)
        hubs = [np.mean(silo, axis=0) for silo in clients]
        ends = [(index + 1) % m == 0 for m in periods]
        delivered.append([hubs[j] if end else delivered[-1][j] for j, end in enumerate(ends)])
    return PlainRun(models, weights, largest)


def federation_of(parts: Sequence[Array], labels: Array, sizes: Sequence[int] | None = None) -> Federation:
    """Silos of one client each, or of clients that hold so many rows."""
    rows = contiguous_rows(len(labels), sizes or [len(labels)])
    return Federation(tuple(Silo(f"s{j}", part, rows) for j, part in enumerate(parts)), labels)


def slopes_of(problem: Ridge, model: Sequence[Array]) -> list[Array]:
    """``[M, D_j]`` a silo: every row's gradient of the data term."""
    error = problem.matrix @ np.concatenate(model) - problem.labels
    return [part * error[:, None] for part in problem.features]
