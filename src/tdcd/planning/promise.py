"""What Theorem 1 promises of the loss: the rounds after which it must be at the target, whatever the data."""

from math import inf, sqrt
from typing import NamedTuple

from tdcd.theory import Constants, max_step_size


class Promise(NamedTuple):
    """The settings at which the bound first reaches a level."""

    step_size: float
    iterations: float
    """T; infinite where no step size suffices in finite arithmetic."""


def soonest(
    constants: Constants,
    sigma_max: float,
    *,
    level: float,
    gap: float,
    local_steps: int,
    num_silos: int,
    num_clients: float,
) -> Promise:
    r"""The admissible step size with which the bound of Theorem 1 falls to ``level`` after the fewest iterations.

    With :math:`a = L N \sigma_{max}^2 / K` and :math:`b = L_{max}^2 \sigma_{max}^2 Q^2 N^2`, the bound is ``level`` at

    .. math:: T = \frac{2\,gap}{\eta\,(level - a \eta - b \eta^2)}, \qquad
              \text{least at} \quad \eta = \frac{level}{a + \sqrt{a^2 + 3\,b\,level}}

    or at the largest admissible step size, if that is smaller.

    Args:
        level: of the average squared gradient norm. The loss of an objective with l2 regularisation :math:`\lambda`
            is at most :math:`|\nabla\mathcal{L}|^2 / 2\lambda` above the least, if it is convex.
        gap: see :func:`tdcd.theory.initial_gap`.
    """
    variance = constants.L * num_silos * sigma_max**2 / num_clients
    staleness = (constants.L_max * sigma_max * local_steps * num_silos) ** 2
    noise = variance + sqrt(variance**2 + 3 * staleness * level)
    step_size = min(max_step_size(constants, local_steps, num_silos), level / noise if noise else inf)
    progress = step_size * (level - variance * step_size - staleness * step_size**2)
    return Promise(step_size, 2 * gap / progress if progress > 0 else inf)
