r"""Gaussian noise on clipped phi, from a stream that only its sender knows, and what it is worth as (epsilon, delta).

A row's phi is scaled down to norm c if it is longer, and noise of deviation :math:`\sigma c` is added to each of its
numbers: what is sent is :math:`\phi \min(1, c / |\phi|) + \sigma c\, z`. Receivers use it as it is. The scores of an
evaluation are phi as well, and are sent in the same way: with noise of their own in every evaluation.

The dither of few bits is drawn from the run's seed, which everybody knows, so that receivers can take it away. This
noise is drawn from a secret of the silo's hub, kept in its run folder, and from the very content that it hides: a hub
that comes back sends the same bytes for the same phi, and another phi of the same round gets other noise, so that their
difference shows nothing. No other party can draw it. A simulation makes the secret of every silo out of the seed.

**What is counted.** Another row in a sample's place moves its phi by 2c at most, so that one message is a Gaussian
mechanism of noise multiplier :math:`\sigma / 2`, and n messages are one of :math:`\sigma / (2 \sqrt n)`: Dong, Roth and
Su, "Gaussian differential privacy", 2022, corollary 2; its epsilon is that of Balle and Wang, "Improving the Gaussian
mechanism", 2018, theorem 8. Every message of a sample counts in full: minibatches follow from the seed, which every
party knows, so that being drawn hides nothing. The number is for a row's phi by *given* blocks and preparation;
blocks are trained on the row as well, means and scales follow from it, and what they say of it is not counted.

**Floating point.** A sum of a float and continuous noise shows in its last digits which float it was (Mironov 2012). So
phi and noise are whole multiples of a step, the largest power of two up to :math:`\sigma c / 64` and :math:`c / 256`,
and their sum is exact. The noise is the sum of four normal numbers of single precision, each rounded to such a
multiple: its tails do not end where those of one do, at 5.4 deviations, and none of its values is missing.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

from tdcd.core.choices import NOISE_DELTA
from tdcd.core.codecs.codec import Codec, Layout, Sending, Wire
from tdcd.core.lazy import Array, jax, jnp

MISSING = "dp-accounting, which counts epsilon, is not installed here: pip install 'tdcd[dp]'"
_IN_DEVIATION, _IN_CLIP = 64, 256
"""Steps in a deviation of the noise, and in c, at least."""
_DRAWS = 4
"""Normal numbers that are added up."""
_MOVED = 2 * (1 + 1e-6)
"""How far another row moves phi, in norms c: norms of single precision are off by less."""
_MOST_DELTA = 1e-3
_MOST_SIGMA = {"float32": 2**12, "float64": 2**19}
"""For which sums of steps are exact in that precision, and so say nothing of phi in their last bits."""
_FIGURES = 6
"""Of a noise that follows from an epsilon, rounded up: other libraries may give another last digit."""


@dataclass(frozen=True)
class GaussianNoise:
    """Clipped phi with Gaussian noise; the part ``exchange`` of a variant.

    >>> GaussianNoise(clip=0.0, sigma=1.0)
    Traceback (most recent call last):
    ValueError: clip must be above 0 and sigma at least 0, not 0.0 and 1.0
    """

    clip: float
    """c, the largest norm of a row's phi."""
    sigma: float
    """The deviation of the noise over c."""
    delta: float = NOISE_DELTA
    """The probability for which :meth:`epsilon` makes no promise."""
    is_private = True

    def __post_init__(self) -> None:
        """Refuse what neither clips nor hides."""
        if not (0 < self.clip < float("inf") and 0 <= self.sigma < float("inf")):
            raise ValueError(f"clip must be above 0 and sigma at least 0, not {self.clip} and {self.sigma}")
        if not 0 < self.delta <= _MOST_DELTA:
            raise ValueError(f"delta must be above 0 and at most {_MOST_DELTA:g}, not {self.delta}")

    def check(self, dtype: str) -> None:
        """Refuse more noise than whole steps have room for.

        >>> GaussianNoise(clip=1.0, sigma=5000.0).check("float32")
        Traceback (most recent call last):
        ValueError: sigma is 5000, and exact sums in float32 have room for 4096: take a larger epsilon or fewer rounds
        """
        most = _MOST_SIGMA[dtype]
        if self.sigma > most:
            room = f"exact sums in {dtype} have room for {most}"
            raise ValueError(f"sigma is {self.sigma:g}, and {room}: take a larger epsilon or fewer rounds")

    @classmethod
    def of_epsilon(cls, epsilon: float, delta: float, clip: float, messages: int) -> Self:
        """The least noise with which so many messages of a sample spend this epsilon at most.

        >>> noise = GaussianNoise.of_epsilon(3.0, 1e-5, 1.0, 25)
        >>> 2.999 < noise.epsilon(25) <= 3
        True
        """
        multiplier = _accounting().get_sigma_gaussian(epsilon, delta)
        sigma = multiplier * _MOVED * math.sqrt(messages)
        unit = 10.0 ** (math.floor(math.log10(sigma)) + 1 - _FIGURES)
        return cls(clip, (math.floor(sigma / unit) + 1) * unit, delta)

    def epsilon(self, messages: int) -> float | None:
        """What so many messages of a sample have spent; None if there is no noise."""
        if not self.sigma:
            return None
        multiplier = self.sigma / _MOVED / math.sqrt(max(1, messages))
        # The root is found to 1e-12.
        return float(_accounting().get_epsilon_gaussian(multiplier, self.delta)) + 1e-9

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on each number."""
        return self.sigma * self.clip

    @property
    def of_scores(self) -> Self:
        """The scores of an evaluation get noise, too."""
        return self

    def clipped(self, phi: Array) -> Array:
        """Rows as they are sent, but for the noise."""
        return _clipped(phi, self.clip)

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """Clipped rows, and noise of the sender's own."""
        self.check(str(phi.dtype))
        deviation, width = self.deviation, phi.shape[-1]
        # What is no number would show through all noise.
        phi = jnp.where(jnp.isfinite(phi).all(axis=-1, keepdims=True), phi, 0)
        if not deviation:
            return {"phi": self.clipped(phi)}
        step = 2.0 ** math.floor(math.log2(min(deviation / _IN_DEVIATION, self.clip / _IN_CLIP)))
        # Rounding lengthens a row by half a step per number at most; a single number is never longer than whole steps.
        room = math.ceil(math.sqrt(width) / 2) if width > 1 else 0
        steps = jnp.round(_clipped(phi, (math.floor(self.clip / step) - room) * step) / step)
        drawn = jax.random.normal(sending.private_key(steps), (_DRAWS, *phi.shape), jnp.float32)
        noise = jnp.round(drawn * (deviation / math.sqrt(_DRAWS) / step)).astype(jnp.int32).sum(axis=0)
        return {"phi": (steps + noise.astype(phi.dtype)) * step}

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """The array that was sent."""
        phi: Array = sent["phi"]
        return phi

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """One array."""
        return {"phi": (dtype, shape)}


def noise_of(exchange: Codec) -> GaussianNoise | None:
    """The noise of an exchange, if it is this one; others may mean something else by sigma."""
    return exchange if isinstance(exchange, GaussianNoise) else None


def _clipped(phi: Array, most: float) -> Array:
    """Rows that are no longer than this."""
    norms = jnp.sqrt(jnp.sum(phi**2, axis=-1, keepdims=True))
    # A row of zeros has no length to divide by.
    shorter: Array = phi * jnp.minimum(1, most / jnp.maximum(norms, most))
    return shorter


def require() -> None:
    """Refuse noise that cannot be counted."""
    _accounting()


def _accounting() -> Any:
    try:
        import dp_accounting  # noqa: PLC0415 - it takes a second, and few runs have noise
    except ImportError:
        raise ValueError(MISSING) from None
    return dp_accounting
