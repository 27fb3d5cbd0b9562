r"""The smoothness constants of Theorem 1: L of the whole gradient, and L_j of each silo's part of it.

:math:`L_j` bounds how fast silo j's partial derivative changes when *any* coordinate moves, not only its own. It is
the largest spectral norm of the Hessian's rows of block j, which are ``[D_j, D]``. Norms are found by Lanczos
iteration: on the matrix :math:`X^T X / M` for linear blocks of few columns, else on Hessian-vector products.

What Lanczos has when its time is up is a lower bound, from which steps would follow that are too large. It is never
used: linear blocks fall back on the trace, which is an upper bound, and others have no constants then.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, prod, sqrt
from typing import Literal, NamedTuple

import numpy as np

from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.core.losses import no_curvature
from tdcd.core.objective import Objective, Tree
from tdcd.federation.silos import Federation, Silo
from tdcd.theory.full_objective import ROWS_AT_ONCE, FullObjective, Vector, check_blocks, flat_rows
from tdcd.theory.progress import EstimateObserver, Meter, silent

Certainty = Literal["exact", "upper bound", "estimate"]
Operator = Callable[[Vector], Vector]

NARROW = 1024
"""Columns of linear blocks up to which the matrix of their products is formed."""
BASIS = 64
"""Lanczos starts over from its best vector when it holds this many."""
TOLERANCE = 1e-8
"""Lanczos ends when its residual, relative to the eigenvalue, is below."""


class UnfinishedError(ValueError):
    """Time was up before anything was known that a step size could rest on."""


@dataclass(frozen=True)
class Constants:
    """L, every L_j, and how far they can be trusted."""

    L: float
    per_silo: tuple[float, ...]
    """L_j, silo by silo."""
    kind: Certainty
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
    observe: EstimateObserver = silent,
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
        seconds: a time limit. For linear blocks, norms that are not ready by then are replaced by traces, which are
            never smaller. For others an L_j is replaced by L, and without L :class:`UnfinishedError` is raised.
        observe: called after every step of Lanczos.
    """
    if problem := no_curvature(objective.kind):
        raise ValueError(problem)
    check_blocks(federation, blocks)
    if all(isinstance(block, Linear) for block in blocks):
        search = _Search(Meter(1 + len(blocks), seconds, observe), np.random.default_rng(seed))
        gram = _narrow_gram(federation, search.meter) or _wide_gram(federation, blocks)
        if objective.kind.is_quadratic:
            return _ridge(gram, objective.l2, search)
        return _classifier(gram, objective, search)
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


class _Gram(NamedTuple):
    """G = X^T X / M: how a linear model curves with the squared loss."""

    multiply: Operator
    parts: Sequence[slice]
    """Where each silo's coordinates are."""
    traces: tuple[float, ...]
    """The trace of each silo's own part. The norm of a positive matrix is at most its trace."""

    @property
    def size(self) -> int:
        """The coordinates of all silos."""
        return int(self.parts[-1].stop)


def _rows(silo: Silo) -> Iterator[Vector]:
    """Features in chunks ``[rows, D_j]``, in float64; images are flattened."""
    for begin in range(0, len(silo.features), ROWS_AT_ONCE):
        yield flat_rows(silo, slice(begin, begin + ROWS_AT_ONCE))


def _narrow_gram(federation: Federation, meter: Meter) -> _Gram | None:
    """G as a matrix; None if there are too many columns, or no time."""
    edges = np.cumsum([0, *(prod(silo.feature_shape) for silo in federation.silos)]).tolist()
    if edges[-1] > NARROW:
        return None
    matrix = np.zeros((edges[-1], edges[-1]))
    for chunks in zip(*map(_rows, federation.silos), strict=True):
        if meter.expired:
            return None
        rows = np.concatenate(chunks, axis=1)
        matrix += rows.T @ rows / federation.num_samples
    parts = [slice(begin, end) for begin, end in pairwise(edges)]
    return _Gram(lambda vector: matrix @ vector, parts, tuple(float(np.trace(matrix[part, part])) for part in parts))


def _wide_gram(federation: Federation, blocks: Sequence[Block]) -> _Gram:
    """G as products with vectors: no D x D matrix is formed."""
    # With several outputs it is the same matrix for each of them, which changes no norm.
    whole = FullObjective(federation, blocks, Objective("squared"))
    traces = tuple(
        sum(float(np.vdot(chunk, chunk)) for chunk in _rows(silo)) / federation.num_samples for silo in federation.silos
    )
    return _Gram(lambda vector: whole.hessian_vector(np.zeros(whole.size), vector), whole.parts, traces)


LATE = "time was up, and the trace of X^T X / M, which is never smaller, stands for its norm"


def _ridge(gram: _Gram, l2: float, search: "_Search") -> Constants:
    def multiply(direction: Vector) -> Vector:
        return gram.multiply(direction) + l2 * direction

    def squared_rows(part: slice) -> Operator:
        return lambda own: multiply(multiply(_embed(own, part, gram.size)))[part]

    norm, known = search.largest("L", multiply, gram.size)
    whole = norm if known else sum(gram.traces) + l2
    squares = search.each_silo(gram.parts, squared_rows, sqrt)
    # Rows of a matrix never have a larger norm than the matrix; rounding may make it look so.
    per_silo = tuple(
        min(whole, sqrt(whole * (trace + l2) if square is None else square))
        for square, trace in zip(squares, gram.traces, strict=True)
    )
    if not known:
        return Constants(whole, per_silo, "upper bound", LATE)
    if None in squares:
        note = "L is exact; time was up before every L_j, and a bound from the trace stands for those"
        return Constants(whole, per_silo, "upper bound", note)
    return Constants(whole, per_silo, "exact", "norms of the Hessian, which is the same everywhere")


def _classifier(gram: _Gram, objective: Objective, search: "_Search") -> Constants:
    def own_block(part: slice) -> Operator:
        return lambda own: gram.multiply(_embed(own, part, gram.size))[part]

    def own_bound(own: float) -> float:
        return min(whole, sqrt(whole * (curvature * own + objective.l2)))

    curvature = objective.curvature
    norm, known = search.largest("L", gram.multiply, gram.size, lambda norm: curvature * norm + objective.l2)
    whole = curvature * (norm if known else sum(gram.traces)) + objective.l2
    own_norms = search.each_silo(gram.parts, own_block, own_bound)
    per_silo = tuple(
        own_bound(trace if own is None else own) for own, trace in zip(own_norms, gram.traces, strict=True)
    )
    note = f"the {objective.kind.name} loss curves by {curvature:g} at most"
    return Constants(whole, per_silo, "upper bound", note if known else f"{note}; {LATE}")


def _estimate(full_objective: FullObjective, thetas: Sequence[Vector], num_rows: int, search: "_Search") -> Constants:
    at_models: list[_Norms] = []
    for theta in thetas:
        if not at_models or not search.meter.expired:
            at_models.append(search.hessian(full_objective, theta))
    if not at_models[0].known:
        raise UnfinishedError("time was up before L was known: what is known by then is less than L; give more seconds")
    finished = len(at_models) == len(thetas) and all(norms.all_known for norms in at_models)
    note = (
        f"the largest norms of the Hessian over {num_rows} rows at {len(at_models)} of {len(thetas)} models"
        f"{'' if finished else ', stopped by the time limit'}; elsewhere it may be larger"
    )
    per_silo = tuple(map(max, zip(*(norms.per_silo for norms in at_models), strict=True)))
    return Constants(max(norms.L for norms in at_models), per_silo, "estimate", note)


class _Norms(NamedTuple):
    """What is found of one Hessian."""

    L: float
    per_silo: tuple[float, ...]
    known: bool
    """Whether there was time for L."""
    all_known: bool
    """Whether that holds for every L_j, too."""


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
        norms: list[float | None] = []
        for silo, part in enumerate(parts):
            value, known = self.largest(f"L_{silo + 1}", operator(part), part.stop - part.start, shown)
            norms.append(value if known else None)
        return norms

    def largest(
        self, name: str, operator: Operator, size: int, shown: Callable[[float], float] = float
    ) -> tuple[float, bool]:
        """:func:`largest_eigenvalue` for as long as there is time."""
        if self.meter.expired:
            return 0.0, False

        def observe(value: float, converged: bool) -> bool:
            self.meter.report(name, shown(value), finished=converged)
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
        off_diagonal: list[float] = []
        for _ in range(min(size, BASIS)):
            image = operator(basis[-1])
            diagonal.append(float(image @ basis[-1]))
            if not isfinite(diagonal[-1]):
                raise ValueError("the curvature is not finite at this model: its numbers are too large")
            known = np.stack(basis)
            # Taken off twice: once leaves rounding errors, which bring found eigenvalues back as copies.
            for _ in range(2):
                image = image - known.T @ (known @ image)
            off_diagonal.append(float(np.linalg.norm(image)))
            values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal[:-1], -1))
            best = int(np.argmax(np.abs(values)))
            value = float(abs(values[best]))
            converged = bool(off_diagonal[-1] * abs(vectors[-1, best]) <= TOLERANCE * value)
            if not observe(value, converged) or converged:
                return value, converged
            basis.append(image / off_diagonal[-1])
        start = known.T @ vectors[:, best]
