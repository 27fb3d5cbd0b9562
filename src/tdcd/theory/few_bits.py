r"""What few bits add to the noise of the clients' gradients.

Subtractive dither makes errors of phi that are uniform in :math:`[-d/2, d/2]`, independent of everything else, with
mean zero and variance :math:`d^2 / 12`. A squared loss has slopes that are linear in phi: gradients stay unbiased, and
the variances add up.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear
from tdcd.core.objective import Objective, Tree
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.federation.silos import Federation, Silo
from tdcd.theory.full_objective import ROWS_AT_ONCE

Array = NDArray[np.float64]


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
    found = []
    for j, silo in enumerate(federation.silos):
        others = [(d, e) for index, (d, e) in enumerate(zip(up, across, strict=True)) if index != j]
        off = sum((d + e for d, e in others), start=np.zeros(total.shape[1]))
        down = (_largest(total - phis[j]) + off / 2) / to_hub
        variance = sum((d**2 + e**2 for d, e in others), start=down**2).sum() / 12
        held = silo.rows_held.astype(np.float64)
        mean = np.bincount(silo.owner(), weights=seen[j][1], minlength=len(held)) / held
        batch_size = settings.effective_batch_size(federation.num_samples)
        scale = federation.num_samples / (held * batch_size) if settings.gradient == "unbiased" else 1.0
        found.append(float((scale * mean).max() * objective.curvature**2 * variance))
    return found


def _levels(bits: int | None) -> float:
    """A column's largest magnitude over its width; infinite where numbers are sent as they are."""
    return 2 ** (bits - 1) - 1 if bits else np.inf


def _largest(phi: Array) -> Array:
    """``[C]``: the largest magnitude of every column."""
    largest: Array = np.abs(phi).max(axis=0)
    return largest


def _phi_and_squares(silo: Silo, block: Tree) -> tuple[Array, Array]:
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
    found = []
    if _few(variant) and not counts_bits(variant, blocks):
        found.append(
            "phi in few bits: what it adds to the noise is known for linear blocks only, and is not counted into sigma."
        )
    if _few(variant) and not objective.kind.is_quadratic:
        found.append(
            f"phi in few bits: slopes of the {objective.kind.name} loss are curved, so errors with mean zero leave a "
            "bias of the order of their variance, where the theorem assumes none."
        )
    if variant.few_bits[2]:
        found.append(
            f"blocks in {variant.few_bits[2]} bits: the theorem has blocks as they are; what rounding adds is "
            "not counted."
        )
    return found
