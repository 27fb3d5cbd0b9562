r"""Silo dropout: in training, a sample's score now and then lacks a silo, so that the model can do without it.

In round r each silo l draws a bit :math:`m_l` for every sample of the round's minibatches, 0 with probability p. The
sample's loss is :math:`f(c + \sum_l m_l \phi_l, y)`: a silo that is dropped adds nothing to the score and takes no
gradient from the sample. The bits are a function of (seed, round, silo, place in the minibatches), so every party
derives the same ones and no message changes. Nothing is rescaled: see docs/algorithm.md.

The intercept c is the model's, not a silo's. A linear model keeps it as the weight of a column of ones in the first
silo. When that silo is dropped, its other columns count as zero, and the column of ones stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.algorithm import Apply
from tdcd.core.codecs.codec import Sending, seed_words
from tdcd.core.lazy import Array, compiled, jax, jnp
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of

STREAM = 0x64726F70
"""Separates this draw from all others of the same seed."""


@dataclass(frozen=True)
class SiloDropout:
    """Every silo is dropped from every sample of a minibatch with probability ``rate``; see
    :class:`tdcd.core.presence.SiloPresence`.

    >>> SiloDropout(1.0)
    Traceback (most recent call last):
    ValueError: the rate of silo dropout must be at least 0 and below 1, not 1.0
    """

    rate: float = 0.0
    intercept: int | None = None
    """The silo whose last column is the one of ones: the first, of ``Federation.cut(..., bias=True)``."""

    def __post_init__(self) -> None:
        """Refuse what is not a probability, or leaves nothing."""
        if not 0 <= self.rate < 1:
            raise ValueError(f"the rate of silo dropout must be at least 0 and below 1, not {self.rate}")

    @property
    def drops_silos(self) -> bool:
        """Whether it drops any."""
        return self.rate > 0

    def kept(self, sending: Sending) -> Array:
        """Whether the silo takes part: ``[E, B]`` of all samples of the round, or ``[...]`` of those at its places."""
        drawn = sending.drawn.get(STREAM) if sending.drawn else None
        if drawn is None:
            drawn = uniforms(*sending[:3], STREAM, shape=sending.shape[:2])
        kept: Array = (drawn if sending.places is None else drawn.reshape(-1)[sending.places]) >= self.rate
        return kept

    def kept_rows(self, sending: Sending) -> Array | None:
        """:meth:`kept`; None if the silo always takes part."""
        return self.kept(sending) if self.rate else None

    def drawn_once(
        self, silos: Sequence[int], samples: NDArray[np.integer[Any]], num_samples: int
    ) -> NDArray[np.bool_]:
        """``[n, S]``: whether these silos take part in these samples, in one draw of all that is the same in every run.

        The curvature of features that depend on it is measured in that draw.
        """
        if not self.rate:
            return np.ones((len(samples), len(silos)), bool)
        shape = (1, num_samples, 1)
        sendings = [Sending(seed_words(0), np.int32(0), silo, shape, places=samples) for silo in silos]
        return np.stack([np.asarray(self.kept(sending)) for sending in sendings], axis=-1)

    def leaves_intercept(self, silo: int) -> bool:
        """Whether something of a silo's phi stays where it is dropped."""
        return self.rate > 0 and silo == self.intercept

    def alone(self, silo: int, block: Tree, apply: Apply, num_features: int, ones: int | None = -1) -> Any:
        """What is left of a silo's phi where it is dropped: 0, or the intercept ``[C]``."""
        if silo != self.intercept or not self.rate or ones is None:
            return 0
        return apply(block, jnp.zeros((1, num_features), leaves_of(block)[0].dtype).at[:, ones].set(1))[0]


@compiled("shape")
def uniforms(seed: Any, round_index: Any, silo: Any, stream: Any, *, shape: tuple[int, int]) -> Array:
    """What a silo takes part by, of all samples of a round: numbers from 0 up to, but without, 1."""
    key = Sending(seed, round_index, silo, stream=stream).key
    return jax.random.uniform(key, shape, np.float32)
