r"""The smoothness constants of Theorem 1: L of the whole gradient, and L_j of each silo's part of it.

:math:`L_j` bounds how fast silo j's partial derivative changes when *any* coordinate moves, not only its own. It is
the largest spectral norm of the Hessian's rows of block j, which are ``[D_j, D]``. Norms are found by Lanczos
iteration on Hessian-vector products: no D x D matrix is ever formed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal, NamedTuple

import numpy as np

from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.core.losses import no_curvature
from tdcd.core.objective import Objective, Tree
from tdcd.federation.silos import Federation
from tdcd.theory.full_objective import FullObjective, Vector
from tdcd.theory.progress import Meter, Observer, silent

Kind = Literal["exact", "upper bound", "estimate"]
Operator = Callable[[Vector], Vector]

BASIS = 64
"""Lanczos starts over from its best vector when it holds this many."""
TOLERANCE = 1e-8
"""Lanczos ends when its residual, relative to the eigenvalue, is below."""


@dataclass(frozen=True)
class Constants:
    """L, every L_j, and how far they can be trusted."""

    L: float
    per_silo: tuple[float, ...]
    """L_j, silo by silo."""
    kind: Kind
    """``"exact"``; ``"upper bound"``, which is as good for the theorem; or ``"estimate"``, which proves nothing."""
    note: str
    """Where the figures come from, in a sentence."""

    @property
    def L_max(self) -> float:  # noqa: N802
        """The largest L_j."""
        return max(self.per_silo)


def constants(
    federation: Federation,
    blocks: Sequence[Block],
    objective: Objective,
    *,
    models: Sequence[Sequence[Tree]] = (),
    rows: int = 4096,
    seed: int = 0,
    seconds: float | None = None,
    observe: Observer = silent,
) -> Constants:
    r"""The smoothness constants of a federation's objective.

    Linear blocks, with :math:`G = X^T X / M` and c = 1, 1/4, 1/2 for squared, logistic and softmax:

    - squared: :math:`L = \|G\| + \lambda` and :math:`L_j = \|G_{j,:} + \lambda I_{j,:}\|`, exactly;
    - logistic and softmax: :math:`L = c \|G\| + \lambda`, which no smaller number replaces for logistic (every row
      curves by 1/4 at theta = 0), for softmax of two classes, and for softmax with a bias column. No formula gives
      :math:`L_j`; since the Hessian H is positive, :math:`(H^2)_{jj} \le \|H\| H_{jj}`, and so
      :math:`L_j \le \sqrt{L\,(c \|G_{jj}\| + \lambda)}`, which is what is returned. The norm of
      :math:`c\,G_{j,:}` is no bound: rows that cancel in it need not curve alike.

    The Huber loss goes as the logistic one, with c = 1. A loss whose curvature has no bound, as Poisson, is refused.

    Other blocks: the largest norms of the Hessian at ``models``, averaged over a sample of ``rows`` rows. A true
    constant must hold everywhere, so these are estimates, from below.

    Args:
        models: hub blocks at which to estimate, such as a run's first and last; not needed for linear blocks.
        seconds: a time limit. L_j that are not ready by then are replaced by L, which is never smaller.
        observe: called after every Hessian-vector product.
    """
    if problem := no_curvature(objective.kind):
        raise ValueError(problem)
    if all(isinstance(block, Linear) for block in blocks):
        search = _Search(Meter(1 + len(blocks), seconds, observe), np.random.default_rng(seed))
        if objective.kind.is_quadratic:
            return _ridge(FullObjective(federation, blocks, objective), search)
        return _classifier(FullObjective(federation, blocks, Objective("squared")), objective, search)
    if not models:
        names = ", ".join(sorted({type(block).__name__ for block in blocks if not isinstance(block, Linear)}))
        raise ValueError(
            f"no smoothness constants are known for {names} blocks: pass models=[...], the hub blocks at which to "
            "estimate them"
        )
    if rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.permutation(federation.num_samples)[:rows])
    full_objective = FullObjective(federation, blocks, objective, drawn)
    search = _Search(Meter((1 + len(blocks)) * len(models), seconds, observe), rng)
    return _estimate(full_objective, [full_objective.flatten(model) for model in models], len(drawn), search)


def _ridge(full_objective: FullObjective, search: "_Search") -> Constants:
    found = search.hessian(full_objective, np.zeros(full_objective.size))
    if not found.known:
        return Constants(found.L, found.per_silo, "estimate", "stopped by the time limit: L is at least this")
    if not found.all_known:
        note = "L is exact; the time limit left it in the place of some L_j"
        return Constants(found.L, found.per_silo, "upper bound", note)
    return Constants(found.L, found.per_silo, "exact", "norms of the Hessian, which is the same everywhere")


def _classifier(gram: FullObjective, objective: Objective, search: "_Search") -> Constants:
    def multiply(direction: Vector) -> Vector:
        return gram.hessian_vector(np.zeros(gram.size), direction)

    def own_block(part: slice) -> Operator:
        return lambda own: multiply(_embed(own, part, gram.size))[part]

    def own_bound(own: float) -> float:
        return sqrt(whole * (curvature * own + objective.l2))

    curvature = objective.curvature
    norm, known = search.largest("L", multiply, gram.size, lambda norm: curvature * norm + objective.l2)
    whole = curvature * norm + objective.l2
    own_norms = search.each_silo(gram.parts, own_block, own_bound)
    per_silo = tuple(whole if own is None else own_bound(own) for own in own_norms)
    if not known:
        return Constants(whole, per_silo, "estimate", "stopped by the time limit: L is at least this")
    return Constants(whole, per_silo, "upper bound", f"the {objective.kind.name} loss curves by {curvature:g} at most")


def _estimate(full_objective: FullObjective, thetas: Sequence[Vector], num_rows: int, search: "_Search") -> Constants:
    found: list[_Norms] = []
    for theta in thetas:
        if not found or not search.meter.expired:
            found.append(search.hessian(full_objective, theta))
    finished = len(found) == len(thetas) and all(norms.all_known for norms in found)
    note = (
        f"the largest norms of the Hessian over {num_rows} rows at {len(found)} of {len(thetas)} models"
        f"{'' if finished else ', stopped by the time limit'}; elsewhere it may be larger"
    )
    per_silo = tuple(map(max, zip(*(norms.per_silo for norms in found), strict=True)))
    return Constants(max(norms.L for norms in found), per_silo, "estimate", note)


class _Norms(NamedTuple):
    """What is found of one Hessian."""

    L: float
    per_silo: tuple[float, ...]
    known: bool
    """Whether there was time for L."""
    all_known: bool
    """And for every L_j."""


@dataclass(frozen=True)
class _Search:
    """Finds norms one after another, within one time limit."""

    meter: Meter
    rng: np.random.Generator

    def hessian(self, full_objective: FullObjective, theta: Vector) -> _Norms:
        """The norms of the Hessian at ``theta`` and of its rows of each block."""

        def multiply(direction: Vector) -> Vector:
            return full_objective.hessian_vector(theta, direction)

        def squared_rows(part: slice) -> Operator:
            return lambda own: multiply(multiply(_embed(own, part, full_objective.size)))[part]

        whole, known = self.largest("L", multiply, full_objective.size)
        squares = self.each_silo(full_objective.parts, squared_rows, sqrt)
        # Rows of a matrix never have a larger norm than the matrix; rounding may make it look so.
        per_silo = tuple(whole if square is None else min(sqrt(square), whole) for square in squares)
        return _Norms(whole, per_silo, known, known and None not in squares)

    def each_silo(
        self, parts: Sequence[slice], operator: Callable[[slice], Operator], shown: Callable[[float], float]
    ) -> list[float | None]:
        """The largest eigenvalue of an operator on each silo's coordinates; None where time was up before."""
        found: list[float | None] = []
        for silo, part in enumerate(parts):
            value, known = 0.0, False
            if not self.meter.expired:
                value, known = self.largest(f"L_{silo + 1}", operator(part), part.stop - part.start, shown)
            found.append(value if known else None)
        return found

    def largest(
        self, name: str, operator: Operator, size: int, shown: Callable[[float], float] = float
    ) -> tuple[float, bool]:
        """:func:`largest_eigenvalue` for as long as there is time, or of one product."""

        def observe(value: float, converged: bool) -> bool:
            self.meter.tell(name, shown(value), finished=converged)
            return not self.meter.expired

        return largest_eigenvalue(operator, size, self.rng, observe)


def _embed(own: Vector, part: slice, size: int) -> Vector:
    whole = np.zeros(size)
    whole[part] = own
    return whole


def largest_eigenvalue(
    operator: Operator, size: int, rng: np.random.Generator, observe: Callable[[float, bool], bool]
) -> tuple[float, bool]:
    """The largest magnitude of an eigenvalue of a symmetric operator on ``[size]`` vectors, by restarted Lanczos.

    Args:
        observe: takes the magnitude so far, which grows, and whether it has converged, after every product; false
            ends the iteration.

    Returns:
        The magnitude, and whether it has converged.
    """
    start = rng.normal(size=size)
    while True:
        basis = [start / np.linalg.norm(start)]
        diagonal: list[float] = []
        beside: list[float] = []
        for _ in range(min(size, BASIS)):
            image = operator(basis[-1])
            diagonal.append(float(image @ basis[-1]))
            if not isfinite(diagonal[-1]):
                raise ValueError("the curvature is not finite at this model: its numbers are too large")
            known = np.stack(basis)
            # Taken off twice: once leaves rounding errors, which bring found eigenvalues back as copies.
            for _ in range(2):
                image = image - known.T @ (known @ image)
            beside.append(float(np.linalg.norm(image)))
            values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside[:-1], -1))
            best = int(np.argmax(np.abs(values)))
            value = float(abs(values[best]))
            converged = bool(beside[-1] * abs(vectors[-1, best]) <= TOLERANCE * value)
            if not observe(value, converged) or converged:
                return value, converged
            basis.append(image / beside[-1])
        start = known.T @ vectors[:, best]
