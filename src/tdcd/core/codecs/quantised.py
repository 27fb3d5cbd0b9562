r"""Phi and blocks in few bits, with subtractive dither.

A column with largest magnitude a is sent in whole steps of width :math:`d = 2a / (2^b - 2)`:
:math:`q = \mathrm{round}(x / d + u)`, decoded as :math:`d\,(q - u)`. The dither u is uniform in [-1/2, 1/2) and the
same at both ends, so the error is uniform in [-d/2, d/2], has mean zero and does not depend on x: gradients of ridge
regression stay unbiased.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from tdcd.core.codecs.codec import Layout, Sending, Wire, half_open
from tdcd.core.lazy import Array, jax, jnp, library_of
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of, like, map_tree


def _steps(numbers: Any, width: Any, dither: Any, bits: int) -> Any:
    """Whole steps of ``width``; zero where that is zero."""
    library = library_of(numbers)
    steps = library.round(numbers / library.where(width > 0, width, 1) + dither)
    # In single precision 127 and a dither close to 1/2 add up to 127.5.
    return library.clip(steps, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype(library.int8)


@dataclass(frozen=True)
class Quantised:
    """Phi in 8 or 4 bits per number, and one width per column."""

    bits: int = 8
    covered_as: ClassVar[tuple[str, ...]] = ("exchange", "client_exchange")

    def __post_init__(self) -> None:
        """Refuse numbers of bits that there is no form for."""
        if self.bits not in (8, 4):
            raise ValueError(f"phi is quantised to 8 or 4 bits, not {self.bits}")

    @property
    def few_bits(self) -> int:
        """The bits of each number."""
        return self.bits

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """Whole steps, and the width of each column's."""
        library = library_of(phi)
        rows = tuple(range(phi.ndim - 1))
        width = library.max(library.abs(phi), axis=rows, initial=0) / (2 ** (self.bits - 1) - 1)
        steps = _steps(phi, width, library.asarray(sending.dither(), dtype=phi.dtype), self.bits)
        return {"phi": steps if self.bits == 8 else _packed(steps), "width": width}

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """What was sent, to within half a width."""
        width, steps = sent["width"], sent["phi"]
        dither = library_of(width).asarray(sending.dither(), dtype=width.dtype)
        whole = steps if self.bits == 8 else _unpacked(steps, dither.shape)
        decoded: Array = width * (whole.astype(width.dtype) - dither)
        return decoded

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """See :meth:`tdcd.core.codecs.codec.Codec.layout`."""
        *rows, columns = shape
        size = columns
        for length in rows:
            size *= length
        phi = ("int8", shape) if self.bits == 8 else ("uint8", ((size + 1) // 2,))
        return {"phi": phi, "width": (dtype, (columns,))}


def _packed(steps: Any) -> Any:
    """Numbers from -8 to 7, two to a byte; the last one is alone if their number is odd."""
    library = library_of(steps)
    flat = (steps.reshape(-1) + 8).astype(library.uint8)
    even = library.concatenate([flat, flat[: flat.size % 2]])
    return even[0::2] | (even[1::2] << 4)


def _unpacked(packed: Any, shape: tuple[int, ...]) -> Any:
    library = library_of(packed)
    halves = library.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    size = 1
    for length in shape:
        size *= length
    return halves[:size].astype(library.int8).reshape(shape) - 8


@dataclass(frozen=True)
class QuantisedChange:
    """What a client's steps changed of its block, in 8 bits per number and one width per column of each array."""

    bits: int = 8
    covered_as: ClassVar[tuple[str, ...]] = ("block_exchange",)

    def __post_init__(self) -> None:
        """Refuse numbers of bits that there is no form for."""
        if self.bits != 8:
            raise ValueError(f"what a block changed by is quantised to 8 bits, not {self.bits}")

    @property
    def few_bits(self) -> int:
        """The bits of each number."""
        return self.bits

    def encode(self, block: Tree, before: Tree, sending: Sending) -> Tree:
        """Whole steps and widths, array by array."""
        sent = []
        for change, dither in self._with_dither(map_tree(jnp.subtract, block, before), sending):
            columns = tuple(range(change.ndim - 1)) if change.ndim > 1 else None
            width = jnp.max(jnp.abs(change), axis=columns) / (2 ** (self.bits - 1) - 1)
            sent.append({"steps": _steps(change, width, dither, self.bits), "width": width})
        return like(block, sent)

    def decode(self, sent: Tree, before: Tree, sending: Sending) -> Tree:
        """The block before, and the change to within half a width."""
        structure: Any = jax.tree.structure(before)
        parts = structure.flatten_up_to(sent)
        changes = [
            part["width"] * (part["steps"].astype(leaf.dtype) - dither)
            for part, (leaf, dither) in zip(parts, self._with_dither(before, sending), strict=True)
        ]
        return map_tree(jnp.add, before, like(before, changes))

    def _with_dither(self, tree: Tree, sending: Sending) -> list[tuple[Array, Array]]:
        return [
            (leaf, half_open(jax.random.fold_in(sending.key, index), leaf.shape).astype(leaf.dtype))
            for index, leaf in enumerate(leaves_of(tree))
        ]
