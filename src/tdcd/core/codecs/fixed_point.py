r"""Phi and blocks in fixed point: whole numbers modulo 2^32, which add up without rounding, in any order.

A number x is sent as :math:`\mathrm{round}(2^f x)` modulo :math:`2^{32}`. Masks that cancel in the sum can be added to
such numbers and leave no trace in it, so that a masked run and this one are the same to the last bit. Every number is
off by :math:`2^{-f-1}` at most. All magnitudes must be at most a stated range; f is as large as the sum of all terms
allows then. A larger number, or one that is not finite, is never wrapped: it becomes a mark, and sums with it are not a
number. Real parties stop before they send one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.core.choices import MASK_RANGE
from tdcd.core.codecs.codec import Layout, Sending, Wire
from tdcd.core.lazy import Array, jax, library_of
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of, map_tree

PRODUCT_UNITS = np.array([2.0**-13, 2.0**-36, 2.0**-59])
"""Of products of gradients where hubs know nothing but their sum; see :func:`product_steps`."""
_MARK = np.uint32(2**31)
"""What a number beyond the range becomes: no sum of numbers within it is this large."""


class BeyondRangeError(ValueError):
    """A number that fixed point has no room for; the text says whose, and which setting to raise."""


def beyond(whose: str, magnitude: float, largest: float) -> str:
    """The sentence for a number beyond the range."""
    return (
        f"{whose} reached {magnitude:.4g}, and exchange.mask_range = {largest:g} is the most that masked numbers may "
        "have: raise mask_range, or lower train.step_size if the numbers grow without end"
    )


@dataclass(frozen=True)
class FixedPoint:
    """Numbers that are added up, as whole numbers modulo 2^32.

    >>> FixedPoint(64.0, terms=3).bits, FixedPoint(1024.0, terms=3).bits
    (23, 19)
    """

    largest: float = MASK_RANGE
    """The range: no number may have a larger magnitude."""
    terms: int = 3
    """How many of them are added up at most."""
    covered_as: ClassVar[tuple[str, ...]] = ("exchange",)

    def __post_init__(self) -> None:
        """Refuse ranges that leave no digits."""
        if not 0 < self.largest < math.inf or self.terms < 1 or self.bits < 1:
            raise ValueError(
                f"a range of {self.largest:g} for {self.terms} terms leaves no digits after the point in 32 bits: "
                "lower exchange.mask_range"
            )

    @cached_property
    def bits(self) -> int:
        """f, the binary digits after the point."""
        # With a margin, since single precision may round the range up.
        return math.floor(math.log2((2**31 - 1) / (self.terms * self.largest * (1 + 2.0**-20))))

    def fits(self, magnitude: Any) -> Any:
        """See :meth:`tdcd.core.codecs.codec.Bounded.fits`."""
        return magnitude <= self.largest

    def check(self, whose: str, magnitude: float) -> None:
        """See :meth:`tdcd.core.codecs.codec.Bounded.check`."""
        if magnitude > self.largest:
            raise BeyondRangeError(beyond(f"{whose}: phi", magnitude, self.largest))

    def steps(self, numbers: Any) -> Any:
        """Whole steps modulo 2^32, of a JAX or a NumPy array; numbers beyond the range are marked."""
        library = library_of(numbers)
        fits = library.abs(numbers) <= self.largest
        whole = library.round(library.where(fits, numbers, 0) * 2.0**self.bits).astype(library.int32)
        return library.where(fits, whole.astype(library.uint32), _MARK)

    def numbers(self, steps: Any, dtype: Any) -> Any:
        """What a sum of steps, none of which is a mark, stands for."""
        return steps.astype(library_of(steps).int32).astype(dtype) * 2.0**-self.bits

    def sum(self, numbers: Sequence[Any]) -> Any:
        """The sum of arrays as fixed point has it; not a number where one of them was beyond the range."""
        return self._added([self.steps(term) for term in numbers])

    def _added(self, parts: Sequence[Any]) -> Any:
        library, dtype = library_of(parts[0]), jax.dtypes.canonicalize_dtype(float)
        is_marked = library.stack([part == _MARK for part in parts]).any(axis=0)
        total = self.numbers(sum(parts[1:], start=parts[0]), dtype)
        return library.where(is_marked, library.asarray(math.nan, dtype=dtype), total)

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """Whole steps."""
        return {"phi": self.steps(phi)}

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """What was sent, to within half a step."""
        return self.decode_sum([sent], [sending])

    def decode_sum(self, sent: Sequence[Wire], sendings: Sequence[Sending]) -> Array:
        """The sum of what was sent; not a number where one of them was beyond the range."""
        total: Array = self._added([wire["phi"] for wire in sent])
        return total

    @property
    def of_scores(self) -> Self:
        """The scores of an evaluation are in fixed point, too."""
        return self

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """Four bytes per number."""
        return {"phi": ("uint32", shape)}


@dataclass(frozen=True)
class FixedBlocks:
    """What a client's block adds to the average: the block times the client's part of the rows, in fixed point.

    Its hub needs only the sum. With shares that add up to 1, that is within the range if every block is.
    """

    largest: float = MASK_RANGE
    """The range of the numbers of a block."""
    takes_numpy: ClassVar[bool] = True
    covered_as: ClassVar[tuple[str, ...]] = ("block_exchange",)

    @cached_property
    def fixed(self) -> FixedPoint:
        """The form of the numbers."""
        return FixedPoint(self.largest, terms=1)

    def fits(self, magnitude: Any) -> Any:
        """See :meth:`tdcd.core.codecs.codec.Bounded.fits`."""
        return magnitude <= self.largest

    def check(self, whose: str, magnitude: float) -> None:
        """See :meth:`tdcd.core.codecs.codec.Bounded.check`."""
        if magnitude > self.largest:
            raise BeyondRangeError(beyond(f"{whose}: a client's block", magnitude, self.largest))

    def part(self, block: Tree, share: Any) -> Tree:
        """Whole steps of what a block within the range adds to the average; of a JAX or a NumPy tree."""
        return map_tree(lambda leaf: self.fixed.steps(leaf * share), block)

    def contribution(self, block: Tree, before: Tree, share: Any, sending: Sending, num_clients: int) -> Tree:
        """What a client of a silo with so many clients adds to the sum: its block began with ``before``."""
        return self.part(block, share)

    def average(self, total: Tree, dtype: Any) -> Tree:
        """The average, from the sum of all parts."""
        return map_tree(lambda leaf: self.fixed.numbers(leaf, dtype), total)

    def encode(self, block: Tree, before: Tree, sending: Sending) -> Tree:
        """The part of a client that holds all rows."""
        return self.part(block, 1)

    def decode(self, sent: Tree, before: Tree, sending: Sending) -> Tree:
        """What was sent, to within half a step."""
        return self.average(sent, leaves_of(before)[0].dtype)


def largest_product(num_silos: int) -> float:
    """The largest product of each of so many silos that :func:`product_steps` have room for."""
    return float(2.0**30 * PRODUCT_UNITS[0] / num_silos)


def product_steps(gram: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Products as whole numbers modulo 2^32, ``[3, ...]``, which masks can hide and which add up exactly.

    Squares of gradients differ by many orders, so that each is three such numbers: so many units, then so many of the
    next finer ones for what is left. Each product is off by 2^-60 at most.
    """
    steps, left = [], gram
    for unit in PRODUCT_UNITS:
        whole = np.round(left / unit)
        # What is left is a multiple of a smaller power of 2, and so exact.
        steps.append(whole)
        left = left - whole * unit
    return np.stack(steps).astype(np.int32).astype(np.uint32)


def summed_products(total: NDArray[np.uint32]) -> NDArray[np.float64]:
    """The sum of products, from the sum of their :func:`product_steps`.

    >>> products = np.array([2.5, -1e-9, 300.0])
    >>> bool((summed_products(product_steps(products) + product_steps(-products)) == 0).all())
    True
    """
    return np.asarray(np.tensordot(PRODUCT_UNITS, total.astype(np.int32).astype(np.float64), 1))
