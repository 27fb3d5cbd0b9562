r"""The theorem for reused minibatches: one minibatch serves all Q local steps of a round.

From the second local step on a block depends on the minibatch, so gradients are biased, and Theorem 1 does not apply.
But the model at the start of a round does not depend on the round's minibatch. There the clients' mean gradient is
unbiased, and the steps of a round are Q times that gradient plus a drift, which the curvature of the minibatch bounds.
docs/theory.md has the proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.federation.silos import Federation
from tdcd.theory.full_objective import Matrix, flat_rows
from tdcd.theory.noise import phi_noise
from tdcd.theory.progress import EstimateObserver, Meter, silent
from tdcd.theory.smoothness import NARROW, Constants
from tdcd.theory.step_size import at_least_one
from tdcd.theory.theorem import Bound

LEAST_DESCENT = 0.5
"""The part of what a round without drift would promise that a step size must leave."""


@dataclass(frozen=True)
class ReusedConstants:
    """What the theorem for reused minibatches needs to know of the curvature."""

    L: float
    """The constant of the whole objective, as in Theorem 1."""
    client: float
    r""":math:`\Lambda`: how fast a client's gradient of any one minibatch can change when its own block moves."""
    expected: float
    r""":math:`\mathcal{E}`, the expected smoothness of a minibatch: L if it has every sample, the largest row's
    curvature if it has one."""

    def drift(self, step_size: float, local_steps: int) -> float:
        r"""How far Q steps on one minibatch depart from Q times its first gradient, at most and relative to that.

        .. math:: \rho = \frac{(1 + \eta \Lambda)^Q - 1}{\eta \Lambda Q} - 1, \qquad \text{about } \eta \Lambda (Q-1)/2

        >>> ReusedConstants(L=1.0, client=2.0, expected=1.0).drift(step_size=0.5, local_steps=2)
        0.5
        """
        bent = step_size * self.client
        if local_steps == 1 or not bent:
            return 0.0
        grown = local_steps * math.log1p(bent)
        return math.inf if grown > 300 else math.expm1(grown) / (bent * local_steps) - 1

    def descent(self, step_size: float, local_steps: int) -> float:
        r"""The part c of a round's descent that the drift leaves: :math:`1 - \rho^2 - \eta L Q \rho (1 + \rho)`."""
        drift = self.drift(step_size, local_steps)
        return 1 - drift**2 - step_size * self.L * local_steps * drift * (1 + drift)

    def max_step_size(self, local_steps: int) -> float:
        r"""The largest step size with :math:`\eta Q \mathcal{E} \le 1` and c of at least 1/2.

        >>> round(ReusedConstants(L=4.0, client=4.0, expected=4.0).max_step_size(10), 5)
        0.0173
        >>> ReusedConstants(L=4.0, client=9.0, expected=8.0).max_step_size(1)
        0.125
        """
        at_least_one(local_steps=local_steps)
        steepest = local_steps * max(self.L, self.expected)
        high = 1 / steepest if steepest else math.inf
        if not self.client or local_steps == 1 or self.descent(high, local_steps) >= LEAST_DESCENT:
            return high
        low = 0.0
        while high - low > 1e-13 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.descent(middle, local_steps) >= LEAST_DESCENT else (low, middle)
        return low

    def bound(self, noise: "ReusedNoise", *, step_size: float, local_steps: int, iterations: int, gap: float) -> Bound:
        r"""The bound on the mean squared gradient norm at the starts of rounds; refuses a step size that is too large.

        .. math:: E\Big[\frac1R \sum_{r<R} \|\nabla\mathcal{L}(\theta^r)\|^2\Big] \le \frac1c \Big[
                  \frac{2 (\mathcal{L}(\theta^0) - \mathcal{L}_{inf})}{\eta T} + \eta L Q (1 + \rho)\, s^2
                  + \big(\rho^2 + \eta L Q \rho (1 + \rho)\big)\, v^2 \Big]

        Args:
            iterations: T, rounds R times Q.
            gap: see :func:`~tdcd.theory.initial_gap`.
        """
        at_least_one(iterations=iterations)
        largest = self.max_step_size(local_steps)
        # Without the slack, the largest step size itself might be refused after a round trip through text.
        if not 0 < step_size <= largest * (1 + 1e-12):
            raise ValueError(
                f"step_size = {step_size:g} is outside the range of the theorem for reused minibatches with "
                f"local_steps = {local_steps}: {CONDITION} with L = {self.L:.6g}, E = {self.expected:.6g} and Lambda = "
                f"{self.client:.6g} admits step sizes above 0 and up to {largest:.6g}"
            )
        left, variance, drifting = self.terms(step_size, local_steps)
        return Bound(
            initial=2 * gap / (left * step_size * iterations),
            variance=variance * noise.averaged / left,
            staleness=drifting * noise.spread / left,
            iterations=iterations,
        )

    def terms(self, step_size: float, local_steps: int) -> tuple[float, float, float]:
        """The part c of the descent, and what the two kinds of noise are multiplied by before the division by c."""
        drift = self.drift(step_size, local_steps)
        variance = step_size * self.L * local_steps * (1 + drift)
        return self.descent(step_size, local_steps), variance, drift**2 + variance * drift


CONDITION = "eta Q E <= 1 and rho^2 + eta L Q rho (1 + rho) <= 1/2"
"""What the theorem demands of a step size."""
TERMS = {
    "initial": "initial: 2 (L(start) - L_inf) / (c eta T)",
    "variance": "variance: eta L Q (1 + rho) s^2 / c",
    "staleness": "drift: (rho^2 + eta L Q rho (1 + rho)) v^2 / c",
}
"""The bound's terms by the names of :class:`~tdcd.theory.Bound`."""


class ReusedNoise(NamedTuple):
    """How noisy gradients are at the start of a round, all silos together; exact, the most over the given models."""

    averaged: float
    r""":math:`s^2`: the mean squared distance of the minibatch gradient, the clients' weighted mean, from the whole
    gradient."""
    spread: float
    r""":math:`v^2`: the clients' own mean squared distances from it, weighted by their rows. Rows that differ between
    clients are part of it."""

    @classmethod
    def most(cls, noises: Sequence[Self]) -> "ReusedNoise":
        """The larger of each."""
        return ReusedNoise(*map(max, zip(*noises, strict=True)))


def reused_constants(
    federation: Federation,
    objective: Objective,
    settings: Settings,
    known: Constants,
    *,
    ridges: Sequence[float] = (),
    seconds: float | None = None,
    observe: EstimateObserver = silent,
) -> ReusedConstants:
    r"""The curvature of minibatches of linear blocks, from above.

    Args:
        known: L of the whole objective, see :func:`~tdcd.theory.constants`.
        ridges: how much the regulariser curves each silo's block; l2 by default.
        seconds: a time limit; what is not ready by then is replaced by a bound that takes no time, and is larger.
        observe: called after every client.
    """
    batch_size, curvature = settings.effective_batch_size(federation.num_samples), objective.curvature
    ridges = ridges or [objective.l2] * federation.num_silos
    meter = Meter(sum(silo.num_clients for silo in federation.silos), seconds, observe)
    largest, squares = 0.0, np.zeros(federation.num_samples)
    for silo, ridge in zip(federation.silos, ridges, strict=True):
        for rows in silo.rows:
            own = flat_rows(silo, rows)
            squares[rows] += np.sum(own**2, axis=1)
            weight = federation.num_samples / (len(rows) * batch_size)
            curved = curvature * weight * largest_of_any(own, batch_size, quickly=meter.expired) + ridge
            largest = max(largest, curved)
            meter.report("Lambda", largest, finished=True)
    expected = expected_smoothness(
        known.L, curvature * float(squares.max()) + max(ridges), federation.num_samples, batch_size
    )
    return ReusedConstants(known.L, largest, expected)


def largest_of_any(rows: Matrix, batch_size: int, *, quickly: bool = False) -> float:
    r"""At least the norm of :math:`\sum_p x_p x_p^T` over any ``batch_size`` of the rows ``[n, D]``.

    With m rows at most, and for any threshold t,

    .. math:: \max_{|S| \le m} \Big\|\sum_{p \in S} x_p x_p^T\Big\| \le
              m\,t + \Big\|\sum_{|x_p|^2 > t} \Big(1 - \frac{t}{|x_p|^2}\Big) x_p x_p^T\Big\|

    since along any direction of length 1 a row that counts has a square of at most :math:`t` plus what it exceeds t by.
    A threshold of 0 gives the norm over all rows, and the m-th largest square at most the sum of the m largest. The
    least over some thresholds is returned.

    Args:
        quickly: take that sum, which no eigenvalues are needed for.

    >>> largest_of_any(np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), 1)
    9.0
    >>> largest_of_any(np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), 3)
    10.0
    """
    squares = np.sum(rows**2, axis=1)
    count = min(batch_size, len(rows))
    ordered = np.sort(squares)[::-1]
    largest = float(ordered[:count].sum())
    if quickly or rows.shape[1] > NARROW:
        return largest
    for threshold in (0.0, float(ordered[count - 1]) / 2, float(ordered[count - 1])):
        beyond = squares > threshold
        part = rows[beyond] * np.sqrt(1 - threshold / squares[beyond])[:, None]
        norm = float(np.linalg.eigvalsh(part.T @ part)[-1]) if beyond.any() else 0.0
        largest = min(largest, count * threshold + norm)
    return largest


def expected_smoothness(whole: float, largest_row: float, num_samples: int, batch_size: int) -> float:
    r"""The expected smoothness of B samples of M, drawn without replacement.

    .. math:: \mathcal{E} = \frac{M (B-1)}{B (M-1)} L + \frac{M - B}{B (M-1)} L_{row}

    with the curvature :math:`L_{row}` of the largest row. For convex losses,
    :math:`E\|g(\theta) - g(\theta^*)\|^2 \le 2 \mathcal{E}\, (\mathcal{L}(\theta) - \mathcal{L}(\theta^*))`: Gower et
    al., "SGD: general analysis and improved rates", 2019.

    >>> expected_smoothness(2.0, 10.0, 5, 1), expected_smoothness(2.0, 10.0, 5, 5)
    (10.0, 2.0)
    """
    if num_samples == 1:
        return max(whole, largest_row)
    samples, batch = num_samples, batch_size
    return (samples * (batch - 1) * whole + (samples - batch) * largest_row) / (batch * (samples - 1))


def reused_noise(
    federation: Federation,
    objective: Objective,
    settings: Settings,
    models: Sequence[Sequence[Tree]],
    *,
    variant: Variant | None = None,
) -> ReusedNoise:
    r"""The noise of linear blocks' gradients at hub blocks, in closed form: minibatches are drawn without replacement.

    With the gradient :math:`u_p` of each of the M rows in silo j's block, and n rows at client k,

    .. math:: s_j^2 = \frac{M - B}{B (M-1)} \big(\overline{\|u\|^2} - \|\bar u\|^2\big), \qquad
              v_j^2 = \sum_k \frac{n}{M} \Big[ \frac{M - B}{B (M-1)} \Big(\frac{M}{n} \overline{\|u\|^2}^{\,k}
              - \|\bar u^k\|^2\Big) + \|\bar u^k - \bar u\|^2 \Big]

    Args:
        variant: the run's, for the bits of phi.
    """
    if not models:
        raise ValueError("models is empty: give hub blocks, such as [simulation.init().blocks]")
    samples, noises = federation.num_samples, []
    batch_size = settings.effective_batch_size(samples)
    drawn = (samples - batch_size) / (batch_size * (samples - 1)) if samples > 1 else 0.0
    for model in models:
        slopes, averaged, spread = _slopes(federation, objective, model), 0.0, 0.0
        for silo in federation.silos:
            shares, sums, squares = silo.shares, [], []
            for rows in silo.rows:
                own = flat_rows(silo, rows)
                sums.append(own.T @ slopes[rows] / len(rows))
                squares.append(float(np.sum(own**2, axis=1) @ np.sum(slopes[rows] ** 2, axis=1)) / len(rows))
            mean = np.tensordot(shares, np.stack(sums), axes=1)
            averaged += drawn * (float(shares @ np.array(squares)) - float(np.sum(mean**2)))
            for share, own_mean, square in zip(shares.tolist(), sums, squares, strict=True):
                apart = float(np.sum((own_mean - mean) ** 2))
                spread += share * (drawn * (square / share - float(np.sum(own_mean**2))) + apart)
        rounding = 0.0
        if variant is not None and any(variant.few_bits[:2]):
            rounding = sum(phi_noise(federation, objective, settings, model, variant))
        noises.append(ReusedNoise(averaged + rounding, spread + rounding))
    return ReusedNoise.most(noises)


def _slopes(federation: Federation, objective: Objective, model: Sequence[Tree]) -> Matrix:
    """``[M, C]``: the derivative of every row's loss by its scores."""
    weights = [np.asarray(block["weight"], np.float64) for block in model]
    scores = np.zeros((federation.num_samples, weights[0].shape[1]))
    for silo, weight in zip(federation.silos, weights, strict=True):
        for rows in silo.rows:
            scores[rows] += flat_rows(silo, rows) @ weight
    with jax.enable_x64(True):
        labels = jnp.asarray(federation.labels, objective.label_dtype("float64"))
        slopes = jax.grad(lambda at: jnp.sum(objective.losses(at, labels)))(jnp.asarray(scores))
    return np.asarray(slopes)
