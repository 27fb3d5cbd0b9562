r"""How noisy the clients' gradients are: :math:`\sigma_j` of Assumption 3, by sampling minibatches at given models.

What few bits add follows from the dither: errors of phi are uniform in :math:`[-d/2, d/2]`, independent of everything
else, with mean zero and variance :math:`d^2 / 12`. A squared loss has slopes that are linear in phi: gradients stay
unbiased, and the variances add up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.blocks.activations import phi_in_portions
from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.core import algorithm
from tdcd.core.algorithm import Descent, Minibatch
from tdcd.core.choices import Gradient
from tdcd.core.knowledge import Known, LabelsEverywhere
from tdcd.core.objective import Objective, Tree
from tdcd.core.schedule import batch_ids
from tdcd.core.settings import Settings
from tdcd.core.update import Sgd
from tdcd.core.variant import Variant
from tdcd.federation.placement import Placement, holders, place
from tdcd.federation.silos import Federation, Silo
from tdcd.theory.full_objective import ROWS_AT_ONCE, FullObjective, Vector
from tdcd.theory.progress import EstimateObserver, Meter, silent

ALGORITHM_1 = Variant()
Gradients = list[NDArray[np.float64]]
"""``[K, D_j]`` per silo: the gradient of each of its clients."""


FEWEST_DRAWS = 10
"""Minibatches per model below which sigma is no estimate."""


@dataclass(frozen=True)
class Noise:
    r"""What the clients' gradients are off by, silo by silo: the most over its clients and the given models."""

    per_silo: tuple[float, ...]
    r""":math:`\sigma_j`: the root of :math:`E\|g_{k,j} - \nabla_{(j)}\mathcal{L}\|^2`, the bias included."""
    bias: tuple[float, ...]
    r""":math:`\|\nabla_{(j)}\mathcal{L}_k - \nabla_{(j)}\mathcal{L}\|`, where the average over the client's own rows
    differs from that over all: not sampled. Assumption 3 wants zero, which K = 1 gives, or rows spread evenly enough.
    """
    draws: tuple[int, ...]
    """Minibatches drawn at each model; none are needed when every sample is in the minibatch."""
    interval: tuple[float, float] | None = None
    r"""95 % t interval of :math:`\sigma_{max}`, for the client and the model at which it was found; None after a single
    draw. That it is the largest of several estimates, the interval does not count."""

    @property
    def maximum(self) -> float:
        r""":math:`\sigma_{max}`."""
        return max(self.per_silo)

    @property
    def too_few(self) -> str:
        """Why it is no estimate: a model with too few draws; empty if it is one."""
        fewest = min(self.draws)
        if not any(self.draws) or fewest >= FEWEST_DRAWS:
            return ""
        rests = f"{fewest} minibatch{'es' if fewest != 1 else ''}"
        return f"time was up when sigma rested on {rests}, and it takes at least {FEWEST_DRAWS}: give more seconds"


def sigmas(
    federation: Federation,
    blocks: Sequence[Block],
    objective: Objective,
    settings: Settings,
    models: Sequence[Sequence[Tree]],
    *,
    variant: Variant = ALGORITHM_1,
    samples: int = 64,
    seconds: float | None = None,
    observe: EstimateObserver = silent,
) -> Noise:
    """Estimate the noise of the clients' gradients with these settings' minibatches and gradient rule.

    What phi in few bits adds is worked out, not sampled; see :func:`~tdcd.theory.noise.phi_noise`.

    The theorem wants a bound for all models; a squared loss has none, since its noise grows with the model. What its
    proof uses are the models that a run visits: give some of those, such as its first and its last.

    Args:
        models: hub blocks.
        variant: the run's, for the bits of phi.
        samples: minibatches to draw at each model.
        seconds: a time limit from the first minibatch on, whose program is compiled; at least the exact gradient and
            one minibatch at each model are worked out, see :attr:`Noise.too_few`.
        observe: called after every minibatch.
    """
    if not models:
        raise ValueError("models is empty: give the hub blocks at which to sample, such as [simulation.init()]")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    clients = _Clients(FullObjective(federation, blocks, replace(objective, l2=0.0)), federation, settings)
    meter = Meter(len(models) * samples, seconds, observe)
    at_models: list[_Found] = []
    for model in models:
        at_models.append(_at_model(clients, model, samples, meter, is_first=not at_models))
        if counts_bits(variant, blocks):
            rounding = phi_noise(federation, objective, settings, model, variant)
            at_models[-1] = at_models[-1].with_more(rounding)
    return Noise(
        tuple(np.sqrt(np.max([each.squares for each in at_models], axis=0)).tolist()),
        tuple(np.sqrt(np.max([each.biases for each in at_models], axis=0)).tolist()),
        tuple(each.draws for each in at_models),
        max(at_models, key=lambda each: max(each.squares)).interval(),
    )


class _Found(NamedTuple):
    squares: list[float]
    """A silo's largest mean squared distance of a client's gradient from the silo's."""
    biases: list[float]
    """The squared distance of the expected one."""
    draws: int
    errors: list[float]
    """The standard errors of the squares."""

    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the root of the largest square; None for a single draw."""
        from scipy.special import stdtrit  # noqa: PLC0415  (slow to import)

        square, error = max(zip(self.squares, self.errors, strict=True))
        if self.draws == 1:
            return None
        half = float(stdtrit(self.draws - 1, 0.975)) * error if self.draws else 0.0
        return max(square - half, 0.0) ** 0.5, (square + half) ** 0.5

    def with_more(self, squares: Sequence[float]) -> "_Found":
        """The noise with independent noise added."""
        return self._replace(squares=[a + b for a, b in zip(self.squares, squares, strict=True)])


def _at_model(clients: "_Clients", model: Sequence[Tree], samples: int, meter: Meter, *, is_first: bool) -> _Found:
    # The regulariser's gradient is in the client's and in the silo's alike: it is left out of both.
    shards = clients.shard_gradients(model)
    whole = [shares @ shard for shares, shard in zip(clients.shares, shards, strict=True)]
    biases = [float(silo.max()) for silo in _squared_distances(shards, whole)]
    if clients.batch_size == clients.num_samples:
        return _Found(biases, biases, 0, [0.0] * len(biases))
    drawn: list[Gradients] = []
    squares: list[float] = []
    for gradients in clients.minibatch_gradients(model, samples):
        drawn.append(_squared_distances(gradients, whole))
        means = [np.mean(silo, axis=0) for silo in zip(*drawn, strict=True)]
        squares = [float(silo.max()) for silo in means]
        meter.report("sigma", max(squares) ** 0.5, finished=True)
        if is_first and len(drawn) == 1:
            meter.restart()
        if meter.expired:
            break
    return _Found(squares, biases, len(drawn), [_standard_error(silo) for silo in zip(*drawn, strict=True)])


def _standard_error(drawn: Sequence[NDArray[np.float64]]) -> float:
    """The standard error of the mean over draws ``[K]`` each, for the client whose mean is largest."""
    largest = np.stack(drawn)[:, int(np.mean(drawn, axis=0).argmax())]
    return float(largest.std(ddof=1)) / len(drawn) ** 0.5 if len(drawn) > 1 else 0.0


def _squared_distances(gradients: Gradients, whole: Gradients) -> Gradients:
    """``[K]`` per silo: how far each client's gradient is from the silo's."""
    return [np.sum((own - all_rows) ** 2, axis=1) for own, all_rows in zip(gradients, whole, strict=True)]


class _Clients:
    """The clients of all silos, and their gradients of the data term at the same model."""

    def __init__(self, full_objective: FullObjective, federation: Federation, settings: Settings) -> None:
        self._landscape, self._settings = full_objective, settings
        self.num_samples = federation.num_samples
        self.batch_size = settings.effective_batch_size(self.num_samples)
        self._owners = [silo.owner() for silo in federation.silos]
        self._held = [silo.rows_held.astype(np.float64) for silo in federation.silos]
        self.shares = [silo.shares for silo in federation.silos]

    def shard_gradients(self, model: Sequence[Tree]) -> Gradients:
        """The average over each client's own rows, which is its expected gradient."""
        # Shuffled, so that no chunk is one client's alone, and all can be padded to few rows.
        order = np.random.default_rng(0).permutation(self.num_samples).astype(np.int32)
        rows = min(ROWS_AT_ONCE, self.num_samples)
        even = self.num_samples // rows * rows
        chunks = [order[:even].reshape(-1, 1, rows)]
        if even < self.num_samples:
            chunks.append(order[even:][None, None])
        total = [np.zeros((len(held), 1)) for held in self._held]
        for ids in chunks:
            # Parts of the minibatch of every sample: a row weighs M / (n_k M).
            for gradients in self._gradients(model, ids, "unbiased", self.num_samples):
                total = [a + b for a, b in zip(total, gradients, strict=True)]
        return total

    def minibatch_gradients(self, model: Sequence[Tree], samples: int) -> Iterator[Gradients]:
        """The clients' gradients on ``samples`` minibatches."""
        ids = batch_ids(
            self._settings.seed,
            range(samples),
            num_samples=self.num_samples,
            batch_size=self.batch_size,
            local_steps=1,
            draws=self._settings.draws,
        )
        return self._gradients(model, ids, self._settings.gradient, self.batch_size)

    def _gradients(
        self, model: Sequence[Tree], ids: NDArray[np.int32], rule: Gradient, batch_size: int
    ) -> Iterator[Gradients]:
        full_objective = self._landscape
        hub_blocks = full_objective.unflatten(full_objective.flatten(model))
        counts = [holders(ids, owner, len(held)) for owner, held in zip(self._owners, self._held, strict=True)]
        placements = [
            place(ids, owner, count, int(count.max())) for owner, count in zip(self._owners, counts, strict=True)
        ]
        for index, minibatch in enumerate(ids):
            with jax.enable_x64(True):
                gradients = _client_gradients(
                    hub_blocks,
                    full_objective.features,
                    full_objective.labels,
                    self._held,
                    minibatch,
                    [Placement(*(part[index] for part in placement)) for placement in placements],
                    blocks=full_objective.blocks,
                    objective=full_objective.objective,
                    rule=rule,
                    batch_size=batch_size,
                )
            yield [np.asarray(silo) for silo in gradients]


@partial(jax.jit, static_argnames=("blocks", "objective", "rule", "batch_size"))
def _client_gradients(
    hub_blocks: list[Tree],
    features: list[Array],
    labels: Array,
    held: list[Array],
    ids: Array,
    placements: list[Placement],
    *,
    blocks: tuple[Block, ...],
    objective: Objective,
    rule: Gradient,
    batch_size: int,
) -> list[Array]:
    """``[K, D_j]`` per silo: what its clients would step along on the minibatch ``ids`` ``[1, B]``."""
    phis = [
        algorithm.phi(block, part[ids].astype(jnp.float64), apply=phi_in_portions(model))
        for model, block, part in zip(blocks, hub_blocks, features, strict=True)
    ]
    gradients = []
    for silo, (model, hub_block, placement) in enumerate(zip(blocks, hub_blocks, placements, strict=True)):
        rows = ids[0][placement.positions]
        num_rows = rows.shape[2]
        weigh = partial(
            algorithm.row_weights, num_rows=num_rows, gradient=rule, num_samples=len(labels), batch_size=batch_size
        )
        losses = partial(LabelsEverywhere().losses, silo, objective=objective)
        descent = Descent(losses, objective.l2, Sgd(), jnp.ones(()))
        step = partial(
            algorithm.client_steps, hub_block, iteration=jnp.zeros(()), apply=model.phi, descent=descent, steps=1
        )
        others = jax.vmap(partial(algorithm.project, algorithm.sum_others(phis, silo)))(placement.positions)
        minibatches = Minibatch(
            features[silo][rows].astype(jnp.float64),
            Known(labels[rows], others),
            jax.vmap(weigh)(placement.counts, held=held[silo]),
        )
        stepped = jax.vmap(step)(minibatches)
        # A step of size one goes exactly the gradient's way.
        moved = jax.tree.map(lambda before, after: (before - after).reshape(len(after), -1), hub_block, stepped)
        gradients.append(jnp.concatenate(jax.tree.leaves(moved), axis=1))
    return gradients


def phi_noise(
    federation: Federation, objective: Objective, settings: Settings, model: Sequence[Tree], variant: Variant
) -> list[float]:
    r"""What phi in few bits adds to :math:`\sigma_j^2`, silo by silo, at the hub blocks of a linear model.

    .. math:: \max_k \frac{M}{n_k B}\; \overline{\|x_{(j)}\|^2}^{\,k}\; h^2 \sum_c v_{jc}, \qquad
              v_{jc} = \frac{1}{12} \Big(\sum_{l \ne j} (d_{lc}^2 + e_{lc}^2) + f_{jc}^2\Big)

    with the widths d of what silo l's clients send up, e of what its hub sends to the others and f of what hub j sends
    down, for output c. The mean is over the rows of client k; h bounds the curvature of the loss, which is 1 for the
    squared loss, where this is exact but for the widths: those of a round follow from its own rows, and these from
    all rows, which is never less. With ``gradient = "mean"``, 1 replaces :math:`M / n_k B`, which is never less either.
    """
    between, to_hub = (_levels(bits) for bits in variant.few_bits[:2])
    seen = [_phi_and_squares(silo, block) for silo, block in zip(federation.silos, model, strict=True)]
    phis = [phi for phi, _ in seen]
    up = [_largest(phi) / to_hub for phi in phis]
    across = [(_largest(phi) + d / 2) / between for phi, d in zip(phis, up, strict=True)]
    total = sum(phis[1:], start=phis[0])
    variances = []
    for j, silo in enumerate(federation.silos):
        others = [(d, e) for index, (d, e) in enumerate(zip(up, across, strict=True)) if index != j]
        off = sum((d + e for d, e in others), start=np.zeros(total.shape[1]))
        down = (_largest(total - phis[j]) + off / 2) / to_hub
        variance = sum((d**2 + e**2 for d, e in others), start=down**2).sum() / 12
        held = silo.rows_held.astype(np.float64)
        mean = np.bincount(silo.owner(), weights=seen[j][1], minlength=len(held)) / held
        batch_size = settings.effective_batch_size(federation.num_samples)
        scale = federation.num_samples / (held * batch_size) if settings.gradient == "unbiased" else 1.0
        variances.append(float((scale * mean).max() * objective.curvature**2 * variance))
    return variances


def _levels(bits: int | None) -> float:
    """A column's largest magnitude over its width; infinite where numbers are sent as they are."""
    return 2 ** (bits - 1) - 1 if bits else np.inf


def _largest(phi: Vector) -> Vector:
    """``[C]``: the largest magnitude of every column."""
    largest: Vector = np.abs(phi).max(axis=0)
    return largest


def _phi_and_squares(silo: Silo, block: Tree) -> tuple[Vector, Vector]:
    """A linear silo's phi ``[M, C]``, and the squared norms of its rows ``[M]``."""
    weight, phis, squares = np.asarray(block["weight"], np.float64), [], []
    for begin in range(0, len(silo.features), ROWS_AT_ONCE):
        rows = np.asarray(silo.features[begin : begin + ROWS_AT_ONCE], np.float64)
        flat = rows.reshape(len(rows), -1)
        phis.append(flat @ weight)
        squares.append(np.sum(flat**2, axis=1))
    return np.concatenate(phis), np.concatenate(squares)


def counts_bits(variant: Variant, blocks: Sequence[Block]) -> bool:
    """Whether phi is in few bits and :func:`phi_noise` knows what that adds."""
    return _few(variant) and all(isinstance(block, Linear) for block in blocks)


def _few(variant: Variant) -> bool:
    return any(variant.few_bits[:2])


def bits_caveats(variant: Variant, blocks: Sequence[Block], objective: Objective) -> list[str]:
    """Where few bits depart from what Theorem 1 assumes, in sentences."""
    sentences = []
    if _few(variant) and not counts_bits(variant, blocks):
        sentences.append(
            "phi in few bits: what it adds to the noise is known for linear blocks only, and is not counted into sigma."
        )
    if _few(variant) and not objective.kind.is_quadratic:
        sentences.append(
            f"phi in few bits: slopes of the {objective.kind.name} loss are curved, so errors with mean zero leave a "
            "bias of the order of their variance, where the theorem assumes none."
        )
    if variant.few_bits[2]:
        sentences.append(
            f"blocks in {variant.few_bits[2]} bits: the theorem has blocks as they are; what rounding adds is "
            "not counted."
        )
    return sentences
