"""A SYNTHETIC stand-in for the UCI Superconductivity table: same shape and column names, invented contents.

No row is a real compound and no figure was measured. It exists because the real table (source
``"superconductivity"``) needs the network once, and because its columns are built the way the real ones are: from
proportions and elemental properties, hence strongly correlated.
"""

import numpy as np
from numpy.typing import NDArray

from tdcd.data.table import Table

PROPERTIES = (
    "atomic_mass",
    "fie",
    "atomic_radius",
    "Density",
    "ElectronAffinity",
    "FusionHeat",
    "ThermalConductivity",
    "Valence",
)
"""Eight properties of an element, under the real table's names; ``fie`` is the first ionization energy."""
STATISTICS = (
    "mean",
    "wtd_mean",
    "gmean",
    "wtd_gmean",
    "entropy",
    "wtd_entropy",
    "range",
    "wtd_range",
    "std",
    "wtd_std",
)
"""Ten statistics of each property over the elements of a compound; ``wtd`` is weighted by proportion."""
COLUMNS = ("number_of_elements", *(f"{statistic}_{name}" for name in PROPERTIES for statistic in STATISTICS))
"""The 81 features, in the real table's order."""
NUM_ROWS = 21263
"""As many as the real table has."""

NUM_ELEMENTS = 60
TYPICAL = np.array([80.0, 720.0, 150.0, 5000.0, 60.0, 10.0, 40.0, 3.0])
"""The median of each property over the invented elements, in the real table's units."""
SPREAD = np.array([0.7, 0.25, 0.3, 0.9, 0.9, 0.8, 1.2, 0.4])
"""The standard deviation of each property's logarithm."""
SIZES = np.array([0.015, 0.15, 0.18, 0.22, 0.27, 0.12, 0.035, 0.007, 0.003])
"""How often a compound has 1, 2, ... 9 elements."""
EFFECTS = {
    "range_ThermalConductivity": 0.5,
    "wtd_gmean_ThermalConductivity": -0.5,
    "wtd_entropy_atomic_mass": 0.6,
    "range_atomic_radius": 0.4,
    "std_fie": 0.4,
    "wtd_mean_Valence": -0.5,
    "wtd_std_ElectronAffinity": 0.3,
    "gmean_Density": -0.3,
}
"""How strongly each of some standardised features moves the target."""
HOTTEST = 140.0
"""No critical temperature, in K, reaches this."""


def superconductors(seed: int) -> Table:
    r"""The synthetic table: 21,263 invented compounds, 81 features, and a critical temperature in K.

    The target is a smooth, bounded, right-skewed function of the features and noise,

    .. math:: T = T_{\max} \, \sigma(-1.8 + 1.7 z + 0.4 (z^2 - 1) s + 0.9 \epsilon),

    where z is a standardised combination of some features (``EFFECTS``), s is the hyperbolic tangent of the
    standardised number of elements, and epsilon is standard normal. A linear model explains about two thirds of it.

    >>> table = superconductors(seed=0)
    >>> table.name, table.features.shape
    ('superconductors (synthetic)', (21263, 81))
    """
    rng = np.random.default_rng(seed)
    elements, proportions = _compounds(rng)
    properties = _elements(rng)
    columns = [np.count_nonzero(proportions, axis=1)[:, None]]
    columns += [statistics(properties[elements, index], proportions) for index in range(len(PROPERTIES))]
    features = np.concatenate(columns, axis=1)
    labels = _critical_temperatures(features, rng)
    return Table("superconductors (synthetic)", features, labels, "regression", COLUMNS)


def statistics(values: NDArray[np.float64], proportions: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""``[n, 10]``: the ten ``STATISTICS`` of one property over the elements of each compound.

    With the values :math:`t_i > 0` of the elements, their proportions :math:`p_i`, and
    :math:`w_i = t_i / \sum_j t_j`, :math:`a_i = p_i w_i / \sum_j p_j w_j`:

    ========= ============================================== ====================================================
    statistic plain                                          weighted
    ========= ============================================== ====================================================
    mean      :math:`\mu = \sum t_i / m`                     :math:`\nu = \sum p_i t_i`
    gmean     :math:`(\prod t_i)^{1/m}`                      :math:`\prod t_i^{p_i}`
    entropy   :math:`-\sum w_i \ln w_i`                      :math:`-\sum a_i \ln a_i`
    range     :math:`\max t_i - \min t_i`                    :math:`\max p_i t_i - \min p_i t_i`
    std       :math:`(\sum (t_i - \mu)^2 / m)^{1/2}`         :math:`(\sum p_i (t_i - \nu)^2)^{1/2}`
    ========= ============================================== ====================================================

    Hamidieh, "A data-driven statistical model for predicting the critical temperature of a superconductor", 2018,
    table 2.

    Args:
        values: ``[n, m]``.
        proportions: ``[n, m]``, each row adds up to 1; elements of proportion 0 are not in the compound.
    """
    present = proportions > 0
    equal = present / present.sum(axis=1, keepdims=True)
    shares = _normalised(values * present)
    pairs = (
        (equal, shares, np.where(present, values, np.nan)),
        (proportions, _normalised(proportions * shares), np.where(present, proportions * values, np.nan)),
    )
    plain_and_weighted = []
    for weights, parts, spanned in pairs:
        mean = (weights * values).sum(axis=1)
        plain_and_weighted.append(
            (
                mean,
                np.exp((weights * np.log(values)).sum(axis=1)),
                -(parts * np.log(np.where(present, parts, 1))).sum(axis=1),
                np.nanmax(spanned, axis=1) - np.nanmin(spanned, axis=1),
                np.sqrt((weights * (values - mean[:, None]) ** 2).sum(axis=1)),
            )
        )
    return np.stack([column for pair in zip(*plain_and_weighted, strict=True) for column in pair], axis=1)


def _normalised(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = parts / parts.sum(axis=1, keepdims=True)
    return shares


def _elements(rng: np.random.Generator) -> NDArray[np.float64]:
    """``[elements, 8]``: invented properties, correlated through three hidden factors."""
    loadings = rng.normal(size=(3, len(PROPERTIES)))
    hidden = rng.normal(size=(NUM_ELEMENTS, 3)) @ (loadings / np.linalg.norm(loadings, axis=0))
    own = rng.normal(size=hidden.shape)
    properties: NDArray[np.float64] = TYPICAL * np.exp(SPREAD * (0.8 * hidden + 0.6 * own))
    return properties


def _compounds(rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """``[n, 9]`` different elements of each compound, some far more popular than others, and their proportions."""
    most = len(SIZES)
    popularity = rng.gumbel(size=NUM_ELEMENTS)
    # The elements of the largest keys, log weight + Gumbel noise, are a weighted draw without replacement.
    elements = np.argsort(-popularity - rng.gumbel(size=(NUM_ROWS, NUM_ELEMENTS)), axis=1)[:, :most]
    sizes = rng.choice(most, size=NUM_ROWS, p=SIZES) + 1
    amounts = rng.lognormal(size=(NUM_ROWS, most)) * (np.arange(most) < sizes[:, None])
    return elements, _normalised(amounts)


def _critical_temperatures(features: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    standard = (features - features.mean(axis=0)) / features.std(axis=0)
    z = standard[:, [COLUMNS.index(name) for name in EFFECTS]] @ np.array(list(EFFECTS.values()))
    z /= z.std()
    bend = np.tanh(standard[:, 0]) * (z**2 - 1)
    logit = -1.8 + 1.7 * z + 0.4 * bend + 0.9 * rng.normal(size=len(z))
    temperatures: NDArray[np.float64] = HOTTEST / (1 + np.exp(-logit))
    return temperatures
