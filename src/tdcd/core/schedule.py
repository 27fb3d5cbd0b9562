"""Which samples a round trains on: a pure function of the seed and the round.

Every party derives the same minibatches, so agreeing on them costs no message. Only the raw output of a
counter-based generator is used: NumPy promises that this stream never changes, which it does not promise for its
``choice`` or ``shuffle``.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import Array, jnp
from tdcd.core.words import counted

if TYPE_CHECKING:
    from tdcd.core.permutation import Permutation

Minibatches = Literal["fresh", "reused", "full"]
Drawing = Literal["auto", "stream", "permutation"]
"""How the samples of minibatches are drawn."""

MOST_SAMPLES = (1 << 31) - 1
"""Their numbers have 32 bits."""
PERMUTED_FROM = 1 << 24
"""From so many samples on ``"auto"`` is ``"permutation"``, which needs no memory for every sample."""

IDS_AT_ONCE = 1 << 18
"""Most ids that are drawn ahead; larger draws are shared by threads."""
THREADS = 8
LARGE = 1024
"""From this size on a minibatch's distinct draws are found without sorting them."""
PLACES_KEPT = 1 << 18
"""For that, a thread keeps memory for this many values: where each was drawn first."""


def num_exchanged(minibatches: Minibatches, local_steps: int) -> int:
    """How many minibatches a round exchanges phi for: Q fresh ones, or the one that every local step uses."""
    return local_steps if minibatches == "fresh" else 1


def is_small(batch_size: int, num_samples: int) -> bool:
    """Whether minibatches are a quarter of the samples at most: they are then the first distinct ones of some draws."""
    return 4 * batch_size <= num_samples


def is_permuted(draws: Drawing, num_samples: int) -> bool:
    """Whether a minibatch is the beginning of a permutation of all samples, and not the first distinct draws."""
    return draws == "permutation" or (draws == "auto" and num_samples >= PERMUTED_FROM)


def draws_for(batch_size: int) -> int:
    """How many draws a small minibatch is looked for in: few of them are equal, so these are almost always enough."""
    return batch_size + batch_size // 4 + 32


def batch_ids(
    seed: int,
    rounds: Sequence[int],
    *,
    num_samples: int,
    batch_size: int,
    local_steps: int,
    minibatches: Minibatches = "fresh",
    draws: Drawing = "auto",
) -> NDArray[np.int32]:
    r"""The sample ids :math:`\zeta` of the minibatches of each of ``rounds``.

    Each minibatch is ``batch_size`` ids, uniform without replacement from ``range(num_samples)``; minibatches are
    independent of each other. Paper, Algorithm 1, line 6.

    Returns:
        ``[len(rounds), E, B]`` where E is :func:`num_exchanged`; for ``"full"``, B is ``num_samples``.

    >>> ids = batch_ids(0, [7], num_samples=10, batch_size=4, local_steps=2)
    >>> ids.shape, bool((ids == batch_ids(0, [6, 7], num_samples=10, batch_size=4, local_steps=2)[1:]).all())
    ((1, 2, 4), True)
    """
    if minibatches == "full":
        everyone = np.arange(num_samples, dtype=np.int32)
        return np.broadcast_to(everyone, (len(rounds), 1, num_samples))
    if num_samples > MOST_SAMPLES:
        raise ValueError(f"there are {num_samples:,} samples: {MOST_SAMPLES:,} are the most that can be drawn from")
    if not 1 <= batch_size <= num_samples:
        raise ValueError(f"batch_size must be between 1 and the {counted(num_samples, 'sample')}, not {batch_size}")
    count = num_exchanged(minibatches, local_steps)
    permuted = is_permuted(draws, num_samples)
    if not permuted and not is_small(batch_size, num_samples):
        keys = _raw(seed, rounds, count * num_samples).reshape(-1, count, num_samples)
        return np.argsort(keys, axis=2, kind="stable")[:, :, :batch_size].astype(np.int32)
    draw = partial(_permuted if permuted else _draw, seed, shape=(count, batch_size), num_samples=num_samples)
    if len(rounds) * count * batch_size <= IDS_AT_ONCE:
        return draw(rounds)
    return np.concatenate(list(_threads().map(lambda round_index: draw([round_index]), rounds)))


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that stay and keep their memory: new ones would spend most of their time allocating it."""
    return ThreadPoolExecutor(THREADS)


def step_keys(seed: Any, round_index: Any, silo: int, client: Any, count: int) -> Array:
    """``[E, 2]``: a random key for each minibatch of a client in a round, all different.

    Args:
        seed: ``[2]``, its high and its low 32 bits.
        client: which of the silo, from 0.
        count: E.
    """
    high, low = (jnp.asarray(word, jnp.uint32) for word in seed)
    # Odd, so that different clients have different words.
    place = (jnp.uint32(silo << 16) + jnp.asarray(client, jnp.uint32)) * jnp.uint32(0x9E3779B1)
    iterations = jnp.asarray(round_index, jnp.uint32) * jnp.uint32(count) + jnp.arange(count, dtype=jnp.uint32)
    return jnp.stack([jnp.broadcast_to(low ^ place, (count,)), high + iterations], axis=1)


class Draws:
    """The minibatches of any round, ``[E, B]``, drawn for many rounds at a time, which takes less time per round."""

    def __init__(
        self,
        seed: int,
        *,
        num_samples: int,
        batch_size: int,
        local_steps: int,
        minibatches: Minibatches = "fresh",
        draws: Drawing = "auto",
    ) -> None:
        """Take what :func:`batch_ids` takes."""
        self._draw = partial(
            batch_ids,
            seed,
            num_samples=num_samples,
            batch_size=batch_size,
            local_steps=local_steps,
            minibatches=minibatches,
            draws=draws,
        )
        self._at_once = max(1, min(32, IDS_AT_ONCE // (batch_size * num_exchanged(minibatches, local_steps))))
        self._first = 0
        self._drawn: NDArray[np.int32] = np.empty((0, 0, 0), np.int32)

    def __call__(self, round_index: int) -> NDArray[np.int32]:
        """The minibatches of one round."""
        if not self._first <= round_index < self._first + len(self._drawn):
            self._first = round_index
            self._drawn = self._draw(range(round_index, round_index + self._at_once))
        drawn: NDArray[np.int32] = self._drawn[round_index - self._first]
        return drawn


def permutations(seed: int, rounds: Sequence[int], count: int, num_samples: int) -> "Permutation":
    """The permutations whose beginnings are the ``count`` minibatches of each of these rounds, one after the other."""
    from tdcd.core.permutation import KEYS, Permutation  # noqa: PLC0415 - few runs have so many samples

    return Permutation(num_samples, _raw(seed, rounds, count * KEYS).reshape(-1, KEYS))


def _permuted(seed: int, rounds: Sequence[int], *, shape: tuple[int, int], num_samples: int) -> NDArray[np.int32]:
    """``[len(rounds), *shape]``: the first samples of a permutation per minibatch."""
    count, size = shape
    places = np.broadcast_to(np.arange(size), (len(rounds) * count, size))
    samples = permutations(seed, rounds, count, num_samples).samples(places)
    return samples.reshape(-1, count, size).astype(np.int32)


def _draw(seed: int, rounds: Sequence[int], *, shape: tuple[int, int], num_samples: int) -> NDArray[np.int32]:
    """``[len(rounds), *shape]``: the minibatches of rounds that use a quarter of the samples at most."""
    count, size = shape
    width = draws_for(size)
    raw = _raw(seed, rounds, count * width).reshape(-1, width)
    ids = _first_distinct(raw, size, num_samples).reshape(-1, count, size)
    for index in map(int, np.flatnonzero((ids < 0).any(axis=(1, 2)))):
        ids[index] = _redraw(seed, rounds[index], shape, num_samples, 2 * width)
    return ids


def _raw(seed: int, rounds: Sequence[int], size: int) -> NDArray[np.uint64]:
    """``[len(rounds), size]``: the first draws of each round's own stream, which has (seed, round) for its key."""
    generator = np.random.Philox(key=np.array([seed, 0], np.uint64))
    # A new key in the initial state costs a tenth of a new generator.
    start: Any = generator.state
    draws = []
    for round_index in rounds:
        start["state"]["key"][1] = round_index
        generator.state = start
        draws.append(generator.random_raw(size))
    # No copy of a single round: threads that draw one each would wait for each other's memory.
    return (draws[0] if len(draws) == 1 else np.concatenate(draws)).reshape(-1, size)


def _first_distinct(raw: NDArray[np.uint64], size: int, num_samples: int) -> NDArray[np.int32]:
    """The first ``size`` distinct sample ids of each row of ``raw``, which this overwrites; -1 where there are too few.

    The first B distinct values of an independent uniform sequence are a uniform draw without replacement.
    """
    raw %= np.uint64(num_samples)
    if size >= LARGE:
        return _first_distinct_of_many(raw.view(np.int64), size, num_samples)
    # Room for a value and its place: numbers of 32 bits are sorted in half the time.
    bits = raw.shape[1].bit_length()
    draws: NDArray[Any] = raw.astype(np.uint32 if num_samples << bits <= 1 << 32 else np.uint64)
    ids = draws[:, :size].astype(np.int32)
    rows: Any = slice(None)
    if size * size < 2 * num_samples:
        # Then many rows begin with that many distinct values, and need not go through the rest.
        begun = np.sort(ids, axis=1)
        rows = np.flatnonzero((begun[:, 1:] == begun[:, :-1]).any(axis=1))
        draws = draws[rows]
    # Ordered by value, then by place: this takes a fraction of the time of an `argsort`.
    ordered = (draws << bits) + np.arange(draws.shape[1], dtype=draws.dtype)
    ordered.sort(axis=1)
    row, after = np.nonzero((ordered[:, 1:] ^ ordered[:, :-1]) < 1 << bits)
    is_new = np.ones(draws.shape, bool)
    is_new[row, ordered[row, after + 1] % (1 << bits)] = False
    rank = np.cumsum(is_new, axis=1, dtype=np.int32)
    enough = rank[:, -1] >= size
    kept = is_new & (rank <= size) & enough[:, None]
    distinct = np.full((len(draws), size), -1, np.int32)
    distinct[enough] = draws[kept].reshape(-1, size)
    ids[rows] = distinct
    return ids


class _KeptDraws(threading.local):
    """What a thread keeps from one draw to the next: threads wait for each other when they allocate memory."""

    def __init__(self) -> None:
        self.first = np.empty(PLACES_KEPT, np.int32)


_KEPT = _KeptDraws()


def _first_distinct_of_many(draws: NDArray[np.int64], size: int, num_samples: int) -> NDArray[np.int32]:
    """:func:`_first_distinct` of long rows: a draw is new if it is where its value was drawn first.

    This takes several rows at a time, if there is room for all their values: threads wait for each other at every step.
    """
    at_once = max(1, PLACES_KEPT // num_samples)
    first = _KEPT.first if num_samples <= PLACES_KEPT else np.empty(num_samples, np.int32)
    begins = num_samples * np.arange(at_once)
    ids = np.full((len(draws), size), -1, np.int32)
    for start in range(0, len(draws), at_once):
        rows = draws[start : start + at_once]
        rows += begins[: len(rows), None]
        values = rows.ravel()
        order = np.arange(len(values), dtype=np.int32)
        # Of several places for one value the last one written stays: from the back, that is the first.
        np.put(first, values[::-1], order[::-1], mode="clip")
        is_new = (first.take(values, mode="clip") == order).reshape(rows.shape)
        for minibatch, row, new, begin in zip(ids[start:], rows, is_new, begins, strict=False):
            distinct = row[new][:size]
            if len(distinct) == size:
                np.subtract(distinct, begin, out=minibatch, casting="unsafe")
    return ids


def _redraw(seed: int, round_index: int, shape: tuple[int, ...], num_samples: int, width: int) -> NDArray[np.int32]:
    """A round whose draws fell short, drawn again from a longer stretch of the same stream."""
    count, size = shape
    raw = _raw(seed, [round_index], count * width).reshape(count, width)
    ids = _first_distinct(raw, size, num_samples)
    return ids if (ids >= 0).all() else _redraw(seed, round_index, shape, num_samples, 2 * width)
