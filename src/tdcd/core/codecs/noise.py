r"""Gaussian noise on clipped phi, from a stream that only its sender knows.

A row's phi is scaled down to norm c if it is longer, and noise of deviation :math:`\sigma c` is added to each of its
numbers: what is sent is :math:`\phi \min(1, c / |\phi|) + \sigma c\, z`. Receivers use it as it is. The scores of an
evaluation are phi as well, and are sent in the same way: with noise of their own in every evaluation.

The dither of few bits is drawn from the run's seed, which everybody knows, so that receivers can take it away. This
noise is drawn from a secret of the silo's hub, kept in its run folder: a hub that comes back draws the same noise for
the same round, and no other party can draw it. A simulation makes the secret of every silo out of the seed.

What this is worth as (epsilon, delta) is not counted here.
"""

from dataclasses import dataclass
from typing import Self

from tdcd.core.codecs.codec import Layout, Sending, Wire
from tdcd.core.lazy import Array, jax, jnp


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
    is_private = True

    def __post_init__(self) -> None:
        """Refuse what neither clips nor hides."""
        if not (0 < self.clip < float("inf") and 0 <= self.sigma < float("inf")):
            raise ValueError(f"clip must be above 0 and sigma at least 0, not {self.clip} and {self.sigma}")

    @property
    def of_scores(self) -> Self:
        """The scores of an evaluation get noise, too."""
        return self

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """Clipped rows, and noise of the sender's own."""
        norms = jnp.sqrt(jnp.sum(phi**2, axis=-1, keepdims=True))
        # A row of zeros has no length to divide by.
        clipped = phi * jnp.minimum(1, self.clip / jnp.maximum(norms, self.clip))
        drawn = jax.random.normal(sending.private_key, phi.shape, jnp.float32).astype(phi.dtype)
        return {"phi": clipped + self.sigma * self.clip * drawn}

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """The array that was sent."""
        phi: Array = sent["phi"]
        return phi

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """One array."""
        return {"phi": (dtype, shape)}
