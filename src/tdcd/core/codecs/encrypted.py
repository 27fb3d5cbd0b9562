r"""Slopes and sums of features times slopes, as whole numbers that can be encrypted, and the sizes of what is sent.

A feature x is :math:`\mathrm{round}(2^{11} x)`, and a slope :math:`\delta` likewise: each is off by :math:`2^{-12}` at
most. Sums of their products are exact: for the largest minibatch, and numbers as large as
the ranges allow, they fit into the :math:`2^{48}` whole numbers that a ciphertext counts with. A larger number is never
wrapped: it stops the run.

Ciphertexts are of BFV, over polynomials of degree below n = 8192. The slopes of a minibatch are the coefficients of one
polynomial, one per output. A client multiplies it by polynomials of its features: the first column of its rows from the
last sample to the first, then the second one, as many as there is room for. The coefficient at the end of each column
is that column's sum of :math:`x \delta`, so one answer has :math:`\lfloor n / B \rfloor` of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tdcd.core.codecs.codec import Layout
from tdcd.core.codecs.fixed_point import BeyondRangeError
from tdcd.core.lazy import Array, library_of

DEGREE = 8192
"""n: the coefficients of a polynomial, and the most samples of a minibatch."""
MODULUS_BITS = (60, 50, 50)
"""The bits of the primes that ciphertexts count modulo; answers are sent modulo the first one alone. With one more of
50 bits for keys these are 210: at this degree 218 are secure as AES-128 is."""
KEY_BITS = 50
PLAIN_BITS = 48
"""Of the prime that plain numbers count modulo."""
FRACTION_BITS = 11
LARGEST_FEATURE, LARGEST_SLOPE = 128.0, 16.0
SEED_BYTES = 64
"""Half of a fresh ciphertext follows from so many bytes."""


def feature_beyond(whose: str, magnitude: float) -> str:
    """The sentence for a feature beyond the range."""
    return (
        f"{whose}: a feature reached {magnitude:.4g}, and {LARGEST_FEATURE:g} is the most that "
        "federation.protect_labels = 'encrypt' can multiply: leave data.standardize = true, or set model.encoding = "
        "'piecewise', which has no features above 1"
    )


def slope_beyond(whose: str, magnitude: float) -> str:
    """The sentence for a slope beyond the range."""
    return (
        f"{whose}: a slope of the loss reached {magnitude:.4g}, and {LARGEST_SLOPE:g} is the most that "
        "federation.protect_labels = 'encrypt' can send: lower train.step_size if the scores grow without end, or use "
        "a loss with smaller slopes, such as model.loss = 'huber'"
    )


@dataclass(frozen=True)
class EncryptedSums:
    """The form of encrypted slopes, and of encrypted sums of features times slopes."""

    def whole(self, numbers: Any) -> Any:
        """The whole numbers of features or slopes, as numbers of the same type."""
        return library_of(numbers).round(numbers * 2.0**FRACTION_BITS)

    def rounded(self, numbers: Array) -> Array:
        """Numbers as fixed point has them."""
        rounded: Array = self.whole(numbers) * 2.0**-FRACTION_BITS
        return rounded

    def slopes(self, slopes: Array) -> Array:
        """Slopes as fixed point has them; not a number where one is beyond the range."""
        library = library_of(slopes)
        fits = library.abs(slopes) <= LARGEST_SLOPE
        rounded: Array = library.where(fits, self.rounded(slopes), library.asarray(float("nan"), dtype=slopes.dtype))
        return rounded

    def gradient(self, sums: Any, batch_size: int, dtype: Any) -> Any:
        """The gradient of the mean loss, from whole sums over a minibatch."""
        return (sums * (2.0 ** (-2 * FRACTION_BITS) / batch_size)).astype(dtype)

    def check_features(self, whose: str, largest: float) -> None:
        """Refuse features beyond the range."""
        if not largest <= LARGEST_FEATURE:
            raise BeyondRangeError(feature_beyond(whose, largest))

    def fits(self, magnitude: Any) -> Any:
        """Of slopes: see :meth:`tdcd.core.codecs.codec.Bounded.fits`."""
        return magnitude <= LARGEST_SLOPE

    def check(self, whose: str, magnitude: float) -> None:
        """Of slopes: see :meth:`tdcd.core.codecs.codec.Bounded.check`."""
        if not magnitude <= LARGEST_SLOPE:
            raise BeyondRangeError(slope_beyond(whose, magnitude))

    def columns(self, batch_size: int) -> int:
        """How many columns one answer has."""
        return DEGREE // batch_size

    def answers(self, batch_size: int, num_features: int) -> int:
        """How many answers all columns take, for each output."""
        return -(-num_features // self.columns(batch_size))

    def layout_of(self, flow: str, silo: int, batch_size: int, outputs: int, parameters: Sequence[int]) -> Layout:
        """What a silo's parties send of a flow; ``parameters`` are of each silo's block."""
        if flow == "key":
            return self.key_layout
        if flow in ("slope", "sealed"):
            return self.slopes_layout(outputs)
        if flow in ("share", "masked"):
            return self.sums_layout(batch_size, parameters[silo] // outputs, outputs)
        return {"sums": ("int64", (sum(parameters) - parameters[silo],))}

    def slopes_layout(self, outputs: int) -> Layout:
        """What the hub with the labels sends: a ciphertext per output."""
        return {
            "slopes": ("int64", (outputs, len(MODULUS_BITS), DEGREE)),
            "slopes_seed": ("uint8", (outputs, SEED_BYTES)),
        }

    @property
    def key_layout(self) -> Layout:
        """What the hub with the labels sends once: a ciphertext of zero, which hides what clients answer."""
        return {"zero": ("int64", (len(MODULUS_BITS), DEGREE)), "zero_seed": ("uint8", (SEED_BYTES,))}

    def sums_layout(self, batch_size: int, num_features: int, outputs: int) -> Layout:
        """What clients answer, and their hub sends on: one polynomial per answer, and of the other one the coefficients
        that are columns' sums.
        """
        answers = self.answers(batch_size, num_features)
        return {
            "whole": ("int64", (outputs, answers, DEGREE)),
            "sums": ("int64", (outputs, answers, self.columns(batch_size))),
        }
