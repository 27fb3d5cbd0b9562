r"""Samples that only some silos know: what stands in for a silo that lacks a row.

:math:`S_i` are the silos that have sample i. Its score is

.. math:: \sum_{j \in S_i} \phi_j(x_{ij}) + \sum_{j \notin S_i} d_j(x_i)

where :math:`d_j`, the stand-in for silo j, is a function of the columns of a silo that has the row and labels: a part
of that silo's block, so that it is trained, regularised, protected, stored and restored as the block is. It starts at
zero. Which silos lack a row is given to the block as further features of the row, its marks:

========== ============================================== =========================================================
block      features                                       phi
========== ============================================== =========================================================
linear     x, then for each stand-in 1 where the silo is  w'x + sum over stand-ins of mark times (c + v'x)
           absent, else 0; then ones
any other  x with its ones, then the same marks; then 1   m(x) + sum over stand-ins of mark times d(x), times
                                                          the last mark
========== ============================================== =========================================================

A row that the silo itself lacks is a row of zeros, and so is its phi: a linear block's is by itself, any other's by the
last mark, which only silos have that lack samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd import blocks
from tdcd.blocks.base import Block, Members, phi_of_members, without_head
from tdcd.blocks.linear import Linear, LinearWithStandIns
from tdcd.core.algorithm import Apply
from tdcd.core.choices import StandInKind
from tdcd.core.lazy import Array, jax, library_of
from tdcd.core.objective import Tree


@dataclass(frozen=True)
class Absent:
    """Which silos may be absent from the rows of a silo, and how its block makes up for them."""

    silos: tuple[str, ...] = ()
    """Those that it has stand-ins for."""
    kind: StandInKind = "function"
    lacks_rows: bool = False
    """Whether the silo itself lacks some samples."""
    is_linear: bool = True
    """Whether its block is linear."""

    @classmethod
    def of(
        cls, names: Sequence[str], absent: NDArray[np.bool_], kind: StandInKind, block: Block, *, lacks_rows: bool
    ) -> "Absent":
        """What a silo with this block needs, where ``absent`` ``[N, M]`` says which silos it has to stand in for."""
        silos = [] if kind == "none" else [name for name, own in zip(names, absent, strict=True) if own.any()]
        return cls(tuple(silos), kind, lacks_rows, type(without_head(block)) is Linear)

    def __bool__(self) -> bool:
        """Whether its features have marks."""
        return bool(self.silos) or (self.lacks_rows and not self.is_linear)

    def block(self, block: Block, num_ones: int) -> Block:
        """The silo's block with its stand-ins.

        Args:
            num_ones: 1 if the last column of its features, apart from marks, is one of ones.
        """
        if self.is_linear:
            has_functions = self.silos and self.kind == "function"
            return LinearWithStandIns(len(self.silos), num_ones) if has_functions else block
        return WithStandIns(block, self) if self else block

    @property
    def columns(self) -> tuple[str, ...]:
        """What the marks are called."""
        of_marks = [f"without {silo}" for silo in self.silos]
        return (*of_marks, *(["has the row"] if self.lacks_rows and not self.is_linear else []))

    def weights(self, columns: Sequence[str], count: int) -> tuple[str, ...]:
        """What each of so many weights of a linear block is of, if its features have these names.

        >>> Absent(("shop",)).weights(["age", "without shop", "bias"], 4)
        ('age', 'without shop', 'age without shop', 'bias')
        """
        if not self.silos or count == len(columns):
            return tuple(columns)
        own = (count - len(columns)) // len(self.silos)
        of_marks = [name for mark in self.columns for name in (mark, *(f"{name} {mark}" for name in columns[:own]))]
        return (*columns[:own], *of_marks, *columns[own + len(self.silos) :])

    def marked(self, features: NDArray[Any], absent: NDArray[np.bool_] | None, num_ones: int) -> NDArray[Any]:
        """Features with marks: ``[n, D + ones]`` to ``[n, D + marks + ones]``.

        Args:
            absent: ``[n, S]``: which of :attr:`silos` lack each row; none by default.
            num_ones: 1 if the last column is one of ones, which stays the last.
        """
        if not self:
            return features
        width = features.shape[1] - num_ones
        own, ones = features[:, :width], features[:, width:]
        marks = np.zeros((len(features), len(self.silos)), features.dtype)
        if absent is not None:
            marks[:] = absent
        if self.is_linear:
            return np.concatenate([own, marks, ones], axis=1)
        # Before the ones there is no room: a network's own mark is the last of all, and the ones are a feature.
        has_row = np.ones((len(features), int(self.lacks_rows)), features.dtype)
        return np.concatenate([own, ones, marks, has_row], axis=1)

    def remarked(self, features: Any, marks: Any, num_ones: int) -> Any:
        """Features ``[..., D + marks + ones]`` with other marks ``[..., S]``; see :meth:`marked`."""
        library, count = library_of(features), len(self.silos)
        end = features.shape[-1] - (num_ones if self.is_linear else self.lacks_rows)
        parts = [features[..., : end - count], marks.astype(features.dtype), features[..., end:]]
        return library.concatenate(parts, axis=-1)

    def to_json(self) -> dict[str, Any]:
        """The stand-ins as JSON."""
        return {
            "silos": [*self.silos],
            "kind": self.kind,
            "lacks_rows": self.lacks_rows,
            "is_linear": self.is_linear,
        }

    @classmethod
    def from_json(cls, value: Any) -> "Absent":
        """What :meth:`to_json` gave."""
        absent = cls(**{**value, "silos": tuple(value["silos"])})
        if absent.kind not in ("function", "constant", "none") or not all(isinstance(s, str) for s in absent.silos):
            raise ValueError("the stand-ins are not known")
        return absent


@dataclass(frozen=True)
class Marks:
    """How the marks of a silo follow from the silos that a row is without; with silo dropout, anew in every round."""

    absent: Absent
    silos: tuple[int, ...]
    """Which silos those that it has stand-ins for are."""
    earlier: tuple[int, ...]
    """Where among them those are whose stand-ins a row has if they are there."""
    num_ones: int
    """1 if the silo's last column, apart from marks, is one of ones."""

    @classmethod
    def of(cls, names: Sequence[str], silo: int, absent: Absent, labelled: Sequence[int], num_ones: int) -> "Marks":
        """Those of a silo, if these silos have labels."""
        silos = tuple(names.index(name) for name in absent.silos)
        earlier = tuple(place for place, other in enumerate(silos) if other in labelled and other < silo)
        return cls(absent, silos, earlier, num_ones)

    def stood_in_for(self, gone: Any) -> Any:
        """``[..., S]``: the stand-ins that rows need that these silos are missing from."""
        return gone & gone[..., [*self.earlier]].all(axis=-1, keepdims=True)

    def of_round(self, features: Any, gone: Any) -> Any:
        """The features of rows that the silos ``gone`` ``[..., S]`` are missing from."""
        return self.absent.remarked(features, self.stood_in_for(gone), self.num_ones)


@dataclass(frozen=True)
class WithStandIns:
    """Any block but a linear one, and its stand-ins for other silos; see the module."""

    main: Block
    absent: Absent

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """The block's own parameters, and those of each stand-in."""
        shape = (feature_shape[0] - self.num_marks,)
        stand_ins: list[Tree] = []
        for place in range(len(self.absent.silos)):
            if self.absent.kind == "constant":
                stand_ins.append(np.zeros(num_outputs, np.float32))
            else:
                own = jax.random.fold_in(key, 1 + place)
                stand_ins.append(silent(smaller(self.main).init(own, shape, num_outputs)))
        return {"main": self.main.init(key, shape, num_outputs), "stand_ins": stand_ins}

    @property
    def num_marks(self) -> int:
        """How many of the features are marks."""
        return len(self.absent.silos) + self.absent.lacks_rows

    def phi(self, block: Tree, features: Array) -> Array:
        """The block's own phi and its stand-ins', where they are marked."""
        return self._total(block, features, self.main.phi, smaller(self.main).phi)

    @property
    def phi_of_members(self) -> Members | None:
        """The same of each member of the block, with that of the stand-in, which has as many."""
        main, stand_in = phi_of_members(self.main), phi_of_members(smaller(self.main))
        if main is None or stand_in is None:
            return None
        return lambda block, features, key: self._total(
            block, features, lambda own, rows: main(own, rows, key), lambda own, rows: stand_in(own, rows, key)
        )

    def _total(self, block: Tree, features: Array, main: Apply, stand_in: Apply) -> Array:
        width = features.shape[1] - self.num_marks
        rows = features[:, :width]
        total = main(block["main"], rows)
        for place, own in enumerate(block["stand_ins"]):
            added = own if self.absent.kind == "constant" else stand_in(own, rows)
            total = total + features[:, width + place, None] * added
        return features[:, -1:] * total if self.absent.lacks_rows else total


def smaller(block: Block) -> Block:
    """A stand-in's block: of the same kind with half as many units per layer; linear if the kind is unknown.

    >>> smaller(blocks.Mlp((32, 8))), smaller(Linear())
    (Mlp(hidden=(16, 4)), Linear())
    """
    if type(block) in (blocks.Mlp, blocks.Ensemble):
        own: Any = block
        halved: Block = replace(own, hidden=tuple(max(1, width // 2) for width in own.hidden))
        return halved
    return Linear()


def silent(block: Tree) -> Tree:
    """A new stand-in with an output layer of zeros, so that training begins as without it; linear ones begin so anyway.

    A random start would be a random function of the columns, which few rows, or early stopping, leave in the model.
    """
    return {**block, "slice": 0 * block["slice"]} if "slice" in block else block


def without_stand_ins(block: Block) -> Block:
    """The block itself, with whichever stand-ins."""
    if isinstance(block, LinearWithStandIns):
        return Linear()
    return block.main if isinstance(block, WithStandIns) else block


def ones_left(block: Block, num_rows: int, num_samples: int) -> int | None:
    """Where the column of ones is that stays when the silo is dropped, counted from the end of its features.

    None in a silo that lacks samples: those have no ones either, and a silo that is dropped is one that lacks the row.
    """
    own = without_head(block)
    if num_rows < num_samples:
        return None
    return -1 - own.num_marks if isinstance(own, WithStandIns) else -1
