"""What phi and blocks look like on the wire: protocols, and Algorithm 1's own way, which sends them as they are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tdcd.core import algorithm
from tdcd.core.lazy import Array, compiled, jax
from tdcd.core.objective import Tree
from tdcd.core.settings import Settings
from tdcd.core.timing import HubTiming
from tdcd.core.traits import is_plain
from tdcd.core.trees import leaves_of

Wire = Mapping[str, Any]
"""Named arrays, as they are sent."""
Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The dtype and shape of every array that is sent, by name."""
WIRE_DTYPES = ("float64", "float32", "int64", "int32", "uint32", "int8", "uint8")
"""The dtypes that real parties can send; a simulation takes any."""
BETWEEN_HUBS, TO_CLIENTS, TO_HUB, BLOCKS = range(4)
"""What is sent, as :attr:`Sending.stream`; the block of client k is ``BLOCKS + k``."""
SCORES = {"train": 0x7472, "test": 0x7465}
"""The scores of an evaluation, as a private :attr:`Sending.stream`."""
_PRIVATE = 0x70726976
DRAWN_AT_ONCE = 2**20
"""The most random numbers that are drawn for all silos at a time."""


class Sending(NamedTuple):
    """What is sent and its sender: all that, for example, dither may depend on; the same for sender and receivers."""

    seed: Any
    """``[2]``: the run's seed, its high and its low 32 bits."""
    round: Any
    """The round whose minibatches phi is of."""
    silo: int
    shape: tuple[int, ...] = ()
    """``(E, B, C)``: of all phi of the round."""
    stream: Any = BETWEEN_HUBS
    places: Any = None
    """For rows that one client holds: which of the round's E * B samples they are, ``[...]``; None for all samples."""
    drawn: Mapping[int, Any] = MappingProxyType({})
    """By stream, what was drawn before for all samples; see :func:`for_all_silos`."""
    secret: Any = None
    """``[4]``: 128 bits that only the sender knows, for a private stream; None in a simulation, where they follow from
    the seed."""
    known_key: Any = None
    """:attr:`key`, where it was worked out before."""

    @property
    def key(self) -> Array:
        """A random key for what is sent, from which everybody draws the same numbers."""
        if self.known_key is not None:
            known: Array = self.known_key
            return known
        high, low = self.seed
        key = jax.random.fold_in(jax.random.key(low), high)
        for part in (self.round, self.silo, self.stream):
            key = jax.random.fold_in(key, part)
        return key

    def private_key(self, content: Array) -> Array:
        """A random key for what is sent, from which only the sender can draw: another one for every other content, of
        whole numbers.
        """
        secret = simulated_secret(self.seed, self.silo) if self.secret is None else self.secret
        key = jax.random.key(secret[0])
        for part in (*secret[1:], self.round, self.stream):
            key = jax.random.fold_in(key, part)
        for word in _digest(key, content.astype(np.int32).ravel()):
            key = jax.random.fold_in(key, word)
        return key

    def dither(self) -> Array:
        """A number from -1/2 to 1/2 for every number of phi that is sent; drawn for all samples, whoever holds them."""
        drawn: Array | None = self.drawn.get(self.stream) if self.drawn else None
        if drawn is None:
            drawn = dither(*self[:3], self.stream, shape=self.shape)
        return drawn if self.places is None else drawn.reshape(-1, self.shape[-1])[self.places]


def _digest(key: Array, content: Array) -> Array:
    """64 bits of whole numbers ``[n]``: the sum, without carry, of a random number for each place and number there.

    Whoever lacks the key cannot make two contents of the same digest but by a chance of 2^-64.
    """

    def drawn(place: Array, number: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(key, place), number))

    each = jax.vmap(drawn)(jax.numpy.arange(len(content), dtype=np.uint32), content)
    total: Array = jax.lax.reduce(each, np.uint32(0), jax.lax.bitwise_xor, (0,))
    return total


@compiled("shape")
def dither(seed: Any, round_index: Any, silo: Any, stream: Any, *, shape: tuple[int, ...]) -> Array:
    """The dither of all samples of a round."""
    return half_open(Sending(seed, round_index, silo, stream=stream).key, shape)


def for_all_silos(
    draw: Callable[[Array, Array], Array], num_silos: int, streams: Sequence[int]
) -> list[dict[int, Array]]:
    """Per silo, what ``draw`` gives for the silo and each stream: :attr:`Sending.drawn`.

    All of it is one draw, of many numbers one per silo in a loop: every other one would make a program that takes
    longer to compile. The numbers are the same.
    """
    if not streams:
        return [{} for _ in range(num_silos)]
    silos, chosen = np.arange(num_silos, dtype=np.uint32), np.array(streams, np.uint32)

    def of_silo(silo: Any) -> Array:
        return jax.vmap(lambda stream: draw(silo, stream))(chosen)

    # What a draw needs on the way is several times as large as what it gives.
    fits = num_silos * jax.eval_shape(of_silo, silos[0]).size <= DRAWN_AT_ONCE
    every = jax.vmap(of_silo)(silos) if fits else jax.lax.map(of_silo, silos)
    return [{stream: every[silo, place] for place, stream in enumerate(streams)} for silo in range(num_silos)]


def half_open(key: Array, shape: tuple[int, ...]) -> Array:
    """Numbers from -1/2 up to, but without, 1/2; the same ones in every precision."""
    return jax.random.uniform(key, shape, np.float32, -0.5, 0.5)


def simulated_secret(seed: Any, silo: int) -> tuple[Any, ...]:
    """The secret of a silo's hub in a simulation, of a seed as :class:`Sending` has it."""
    return np.uint32(_PRIVATE), seed[0], seed[1], np.uint32(silo)


def seed_words(seed: int) -> NDArray[np.uint32]:
    """A seed of 64 bits as :class:`Sending` has it."""
    return np.array(divmod(seed, 2**32), np.uint32)


class Codec(Protocol):
    """What phi looks like on the wire: a silo's between hubs, or that of a client's rows between it and its hub.

    Arrays are JAX's in a compiled program, and may be NumPy's between a client and its hub.
    """

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """``[E, B, C]`` phi to what is sent; of a client's rows ``[..., C]`` at ``sending.places``, zero on padding."""
        ...

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """What was sent to the phi that its receivers use."""
        ...

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """The dtype and shape of every array that is sent for phi of this shape: the ledger counts their bytes, and a
        party refuses anything else. Real parties send :data:`WIRE_DTYPES`.
        """
        ...


@dataclass(frozen=True)
class Identity:
    """Phi is sent as it is. Paper, Algorithm 1, line 12."""

    is_plain: ClassVar[bool] = True

    def encode(self, phi: Array, sending: Sending) -> Wire:
        """The same array."""
        return {"phi": phi}

    def decode(self, sent: Wire, sending: Sending) -> Array:
        """The same array."""
        phi: Array = sent["phi"]
        return phi

    def layout(self, shape: tuple[int, ...], dtype: str) -> Layout:
        """One array."""
        return {"phi": (dtype, shape)}


def scores_codec(exchange: Codec) -> Codec | None:
    """The codec of the scores that hubs send each other in an evaluation; None: as they are.

    An exchange that hides phi hides scores as well, and says so by ``of_scores``.
    """
    return getattr(exchange, "of_scores", None)


def encode_scores(exchange: Codec, scores: Array, sending: Sending, split: str) -> Array:
    """The silo's scores ``[n, C]`` of an evaluation, as an exchange with a private stream sends them."""
    sent: Array = exchange.encode(scores, sending._replace(shape=scores.shape, stream=SCORES[split]))["phi"]
    return sent


def is_private(exchange: Codec) -> bool:
    """Whether what is sent depends on a stream that only the sender knows."""
    return getattr(exchange, "is_private", False)


def messages_until(round_index: int, settings: Settings, timing: HubTiming, every: int, last: int) -> int:
    """The most messages with a sample's phi that a hub has sent when it writes the history's line of a round.

    By then it may have begun a round that is as much later as rounds overlap, and it sends phi as far ahead as that and
    its period. Scores of an evaluation count as a message.

    >>> from tdcd.core.family.overlap import Overlap
    >>> settings = Settings(step_size=0.1, minibatches="full")
    >>> [messages_until(line, settings, Overlap(), 5, 8) for line in (0, 5, 8)]
    [2, 8, 11]
    """
    rounds = min(last, round_index + 2 * timing.rounds + timing.longest_period)
    scored = min(last, round_index + timing.rounds + timing.longest_period - 1)
    evaluations = scored // every + 1 + (scored == last and last % every > 0)
    return rounds * settings.num_exchanged + evaluations


def epsilon_until(
    exchange: Codec, round_index: int, settings: Settings, timing: HubTiming, every: int, last: int
) -> float | None:
    """What an exchange with noise has spent of a sample's phi by then; None if it adds none, or does not count."""
    spent: Callable[[int], float | None] | None = getattr(exchange, "epsilon", None)
    return None if spent is None else spent(messages_until(round_index, settings, timing, every, last))


def epsilon_of_blocks(exchange: "BlockCodec", round_index: int, timing: HubTiming, last: int) -> float | None:
    """What noise on blocks has spent of a client's changes when its hub writes the line of a round; None without."""
    spent: Callable[[int], float | None] | None = getattr(exchange, "epsilon", None)
    return None if spent is None else spent(blocks_until(round_index, timing, last))


def blocks_until(round_index: int, timing: HubTiming, last: int) -> int:
    """The most blocks that a client has sent when its hub writes the history's line of a round."""
    return min(last, round_index + 2 * timing.rounds + timing.longest_period)


def is_identity(exchange: Codec) -> bool:
    """Whether numbers are sent as they are."""
    return is_plain(exchange)


@runtime_checkable
class SummedCodec(Codec, Protocol):
    """An exchange whose receivers use only the sum of what several silos sent."""

    def decode_sum(self, sent: Sequence[Wire], sendings: Sequence[Sending]) -> Array:
        """The sum of these silos' phi."""
        ...


def sum_others(exchange: Codec, sent: Sequence[Wire], silo: int, sendings: Sequence[Sending]) -> Array:
    """The other silos' phi, summed as the exchange has it: line 13."""
    if isinstance(exchange, SummedCodec):
        others = [index for index in range(len(sent)) if index != silo]
        return exchange.decode_sum([sent[index] for index in others], [sendings[index] for index in others])
    return algorithm.sum_others([exchange.decode(*message) for message in zip(sent, sendings, strict=True)], silo)


class BlockCodec(Protocol):
    """What a client's block looks like on the wire to its hub; written in JAX."""

    def encode(self, block: Tree, before: Tree, sending: Sending) -> Tree:
        """A client's block after its local steps, which began with ``before``, to a tree of what is sent."""
        ...

    def decode(self, sent: Tree, before: Tree, sending: Sending) -> Tree:
        """The block that the hub averages."""
        ...


@runtime_checkable
class NumpyBlocks(BlockCodec, Protocol):
    """A codec of blocks that takes NumPy's arrays as well as JAX's."""

    takes_numpy: ClassVar[bool]


@runtime_checkable
class Bounded(Protocol):
    """A form that has no room for numbers beyond a range."""

    def check(self, whose: str, magnitude: float) -> None:
        """Raise :class:`~tdcd.core.codecs.fixed_point.BeyondRangeError` for a number beyond it."""
        ...

    def fits(self, magnitude: Any) -> Any:
        """Whether a number is within it."""
        ...


@dataclass(frozen=True)
class WholeBlock:
    """The block is sent as it is. Paper, Algorithm 1, line 5."""

    takes_numpy: ClassVar[bool] = True
    is_plain: ClassVar[bool] = True

    def encode(self, block: Tree, before: Tree, sending: Sending) -> Tree:
        """The same block."""
        return block

    def decode(self, sent: Tree, before: Tree, sending: Sending) -> Tree:
        """The same block."""
        return sent


def sends_whole(exchange: BlockCodec) -> bool:
    """Whether blocks are sent as they are."""
    return is_plain(exchange)


def sent_up(block: Tree, exchange: BlockCodec) -> Tree:
    """The shapes and dtypes of what a client sends up for its block."""
    if isinstance(exchange, NumpyBlocks) and all(isinstance(leaf, np.ndarray) for leaf in leaves_of(block)):
        return exchange.encode(block, block, Sending(seed_words(0), 0, 0))
    with jax.enable_x64(any(leaf.dtype == np.float64 for leaf in leaves_of(block))):
        return jax.eval_shape(lambda tree: exchange.encode(tree, tree, Sending(seed_words(0), 0, 0)), block)


def tree_bytes(tree: Tree) -> int:
    """The bytes of all arrays of a tree."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves_of(tree))


def bytes_up(block: Tree, exchange: BlockCodec) -> int:
    """The bytes that a client sends up for its block."""
    return tree_bytes(sent_up(block, exchange))
