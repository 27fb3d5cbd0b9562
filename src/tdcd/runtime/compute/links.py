"""What goes over a silo's links: phi between hubs, phi of a client's rows, and blocks on their way up."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tdcd.core import algorithm, presence
from tdcd.core.codecs.codec import (
    BETWEEN_HUBS,
    BLOCKS,
    TO_HUB,
    BlockCodec,
    Codec,
    Layout,
    Sending,
    Wire,
    encode_scores,
    is_identity,
    scores_codec,
    seed_words,
    sends_whole,
    sent_up,
)
from tdcd.core.codecs.fixed_point import PRODUCT_UNITS, FixedBlocks, product_steps, summed_products
from tdcd.core.lazy import Array, compiled, jax, jnp
from tdcd.core.objective import Tree
from tdcd.core.settings import Settings
from tdcd.core.trees import like, map_tree, named_leaves
from tdcd.core.variant import Variant
from tdcd.runtime.compute.secure_sums import Masks, Sums, What, add_steps
from tdcd.runtime.messages.structure import Arrays

MEMORY = "memory."
"""What a part calls the arrays of a client's memory, before their names."""


def precision(dtype: str) -> Any:
    """The context in which JAX's arrays have the settings' precision."""
    wanted, config = dtype == "float64", cast("Any", jax.config)
    # Calls inside the context take three times as long, even where it changes nothing.
    return nullcontext() if config.jax_enable_x64 == wanted else jax.enable_x64(wanted)


class Links:
    """The links of one silo: both ends of each encode and decode alike."""

    def __init__(
        self,
        variant: Variant,
        settings: Settings,
        silo: int,
        shape: tuple[int, int, int],
        hub: str = "",
        masks: Masks | None = None,
        noise_key: bytes = b"",
    ) -> None:
        """Take the silo's index and ``(E, B, C)``, the shape of a round's phi.

        Args:
            hub: the hub, and the masks that it adds to what it sends to others.
            noise_key: the secret of its noise, if it adds any.
        """
        self._variant, self._settings, self._silo, self._shape = variant, settings, silo, shape
        fixed = variant.summed_phi
        self._sums = None if fixed is None else Sums(fixed, settings.dtype, hub, masks)
        scores = scores_codec(variant.exchange)
        self.scores_dtype = settings.dtype if scores is None else scores.layout((1, 1), settings.dtype)["phi"][0]
        """The type of the scores that hubs send each other."""
        self._seed = seed_words(settings.seed)
        self._noise_key = np.frombuffer(noise_key, "<u4") if noise_key else None
        self._are_scores_plain = scores is None
        self.between_hubs: Layout = variant.exchange.layout(shape, settings.dtype)
        """What a round's phi is between hubs."""
        self._is_plain = is_identity(variant.exchange)
        self._stays = self._is_plain or not variant.knowledge.sends_phi(silo)
        self._are_rows_plain = is_identity(variant.client_exchange)
        self._are_blocks_whole = sends_whole(variant.block_exchange)
        self._sent_up: Any = None
        self._drawn = lru_cache(maxsize=4)(self._draw)
        # Of this silo, and of those that its clients have stand-ins for.
        self._kept = lru_cache(maxsize=64)(self._keep)

    def follow(self, past: Callable[[What, int], str]) -> None:
        """Let masks follow from what hubs were sent before, too."""
        if self._sums is not None:
            self._sums.follow(past)

    def _sending(self, round_index: int, silo: int, stream: int = 0, places: Any = None) -> Sending:
        return Sending(self._seed, np.int32(round_index), silo, self._shape, stream, places)

    def _draw(self, round_index: int, stream: int) -> NDArray[Any]:
        """The dither of all samples of a round, for all clients."""
        return np.asarray(self._sending(round_index, self._silo, stream).dither())

    def _keep(self, round_index: int, silo: int) -> NDArray[np.bool_] | None:
        kept = self._variant.dropout.kept_rows(self._sending(round_index, silo))
        return None if kept is None else np.asarray(kept).ravel()

    def kept(self, round_index: int, places: Any, silo: int | None = None) -> NDArray[np.bool_] | None:
        """``[n]``: which of these samples of a round a silo, by default this one, is not dropped from; None if it never
        is.
        """
        kept = self._kept(round_index, self._silo if silo is None else silo)
        return None if kept is None else kept[places]

    def to_hubs(self, round_index: int, phi: NDArray[Any]) -> Arrays:
        """The silo's phi ``[E, B, C]`` as the other hubs are sent it; as it is where it stays with its hub."""
        if self._stays:
            return {"phi": phi}
        if self._sums is not None:
            return {"phi": self._sums.part("phi", round_index, phi)}
        sending = self._sending(round_index, self._silo)
        with precision(self._settings.dtype):
            sent = _encode(
                phi,
                *sending[:2],
                self._noise_key,
                silo=self._silo,
                shape=self._shape,
                exchange=self._variant.exchange,
            )
        return {name: np.asarray(sent[name]) for name in self.between_hubs}

    def own(self, round_index: int, part: Arrays) -> NDArray[Any]:
        """The silo's own phi ``[E, B, C]``, from what :meth:`to_hubs` gave."""
        if self._stays:
            return part["phi"]
        if self._sums is not None:
            return self._sums.own("phi", round_index, part["phi"])
        sending, sent = self._sending(round_index, self._silo), {name: part[name] for name in self.between_hubs}
        with precision(self._settings.dtype):
            phi = _decode(sent, *sending[:2], silo=self._silo, shape=self._shape, variant=self._variant)
            return np.asarray(phi)

    def others(self, round_index: int, parts: Sequence[Arrays]) -> NDArray[Any]:
        """The sum of the other silos' phi ``[E, B, C]``, from what every hub sent."""
        # The hub with the labels has its own phi as it is, and only the others' are looked at.
        sent: list[Any] = [{name: part[name] for name in self.between_hubs if name in part} for part in parts]
        if self._is_plain:
            return np.asarray(algorithm.sum_others([arrays["phi"] for arrays in sent], self._silo))
        if self._sums is not None:
            del sent[self._silo]
            return self._sums.others("phi", round_index, [arrays["phi"] for arrays in sent])
        sending = self._sending(round_index, self._silo)
        with precision(self._settings.dtype):
            return np.asarray(_others(sent, *sending[:2], silo=self._silo, shape=self._shape, variant=self._variant))

    def scores_part(self, what: What, round_index: int, scores: NDArray[Any]) -> NDArray[Any]:
        """The silo's scores ``[n, C]`` of an evaluation as the other hubs are sent them."""
        if self._sums is not None:
            return self._sums.part(what, round_index, scores)
        if self._are_scores_plain:
            return scores
        sending = self._sending(round_index, self._silo)._replace(secret=self._noise_key)
        with precision(self._settings.dtype):
            return np.asarray(encode_scores(self._variant.exchange, jnp.asarray(scores), sending, what))

    def add_scores(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The sum of all silos' scores, from what every hub sent; in silo order, whatever the order of arrival."""
        return np.asarray(sum(parts[1:], start=parts[0])) if self._sums is None else self._sums.all(parts)

    def products_part(self, what: What, round_index: int, products: NDArray[Any]) -> NDArray[Any]:
        """Products of the silo's gradients, ``[n]``, as the other hubs are sent them."""
        if self._sums is None:
            return products
        return self._sums.hidden(what, round_index, product_steps(products.astype(np.float64)).ravel())

    def products_sum(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The sum of all silos' products, ``[n]``, from what every hub sent."""
        if self._sums is None:
            return np.asarray(sum(parts[1:], start=parts[0]))
        return summed_products(add_steps(parts).reshape(len(PRODUCT_UNITS), -1))

    def exact_part(self, round_index: int, scores: NDArray[np.float64], after: str) -> NDArray[Any]:
        """The silo's scores ``[M, k C]`` of a certificate, in float64, as the other hubs are sent them.

        Args:
            after: a digest of what the blocks that were scored follow from, besides the rounds before.
        """
        return scores if self._sums is None else self._sums.part("witness", round_index, scores, after)

    def exact_sum(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """The sum of all silos' scores of a certificate, from what every hub sent."""
        return np.asarray(sum(parts[1:], start=parts[0])) if self._sums is None else self._sums.exact(parts)

    def scores_by_silo(
        self, what: What, round_index: int, parts: Sequence[NDArray[Any]]
    ) -> dict[tuple[int, ...], NDArray[Any]]:
        """What this hub knows of the silos' scores: each one's or, of masked parts, its own and the others' sum."""
        if self._sums is None:
            return {(silo,): part for silo, part in enumerate(parts)}
        others = tuple(silo for silo in range(len(parts)) if silo != self._silo)
        summed = self._sums.others(what, round_index, [parts[silo] for silo in others])
        return {(self._silo,): self._sums.own(what, round_index, parts[self._silo]), others: summed}

    def rows_layout(self, rows: int, width: int | None = None) -> Layout:
        """What phi of so many of a client's rows is between it and its hub, or what else has a ``width``."""
        return self._variant.client_exchange.layout((rows, width or self._shape[2]), self._settings.dtype)

    def encode_rows(self, round_index: int, stream: int, places: Any, rows: NDArray[Any]) -> Arrays:
        """Phi ``[n, C]`` of a client's rows, which are these of the round's samples, as it is sent."""
        if self._are_rows_plain:
            return {"phi": rows}
        sent = self._variant.client_exchange.encode(cast("Any", rows), self._of_rows(round_index, stream, places))
        return {name: np.asarray(array) for name, array in sent.items()}

    def decode_rows(self, round_index: int, stream: int, places: Any, arrays: Arrays, before: str = "") -> NDArray[Any]:
        """What :meth:`encode_rows` was given, as its receiver has it; ``before`` is before the names of its arrays."""
        if self._are_rows_plain:
            return arrays[f"{before}phi"]
        sent = {name: arrays[f"{before}{name}"] for name in self.rows_layout(len(places))}
        decoded = np.asarray(self._variant.client_exchange.decode(sent, self._of_rows(round_index, stream, places)))
        if stream != TO_HUB or self._variant.dropout.leaves_intercept(self._silo):
            return decoded
        # Few bits make small numbers of the zeros where the silo is dropped.
        kept = self.kept(round_index, places)
        return decoded if kept is None else np.where(kept[:, None], decoded, 0)

    def _of_rows(self, round_index: int, stream: int, places: Any) -> Sending:
        drawn = self._drawn(round_index, stream)
        return self._sending(round_index, self._silo, stream, places)._replace(drawn={stream: drawn})

    def block_layout(self, block: Tree) -> Layout:
        """What a client's block is on its way up; asked for before blocks are decoded."""
        sent = sent_up(block, self._variant.block_exchange)
        self._sent_up = sent
        return {name: (str(leaf.dtype), leaf.shape) for name, leaf in named_leaves(sent).items()}

    def _up(self, round_index: int, clients: Any) -> tuple[Any, ...]:
        return self._seed, np.int32(round_index), np.int32(self._silo), clients

    def encode_block(self, round_index: int, client: int, block: Tree, before: Tree) -> Arrays:
        """A client's block as it is sent up."""
        if self._are_blocks_whole:
            return named_leaves(block)
        with precision(self._settings.dtype):
            sent = _encode_block(
                block, before, *self._up(round_index, np.int32(client)), exchange=self._variant.block_exchange
            )
            return {name: np.asarray(leaf) for name, leaf in named_leaves(sent).items()}

    def contribution(
        self,
        round_index: int,
        client: int,
        block: Tree,
        before: Tree,
        share: NDArray[Any],
        num_clients: int,
        secret: NDArray[np.uint32] | None,
    ) -> Arrays:
        """What a client adds to the sum of its silo's blocks; ``secret`` is that of its noise, if it adds any."""
        exchange = cast("FixedBlocks", self._variant.block_exchange)
        if exchange.takes_numpy:
            return named_leaves(exchange.contribution(block, before, share, self._sending(0, 0), num_clients))
        with precision(self._settings.dtype):
            stream = np.int32(BLOCKS + client)
            parts = _contribution(
                block,
                before,
                share,
                self._seed,
                np.int32(round_index),
                stream,
                secret,
                silo=self._silo,
                num_clients=num_clients,
                exchange=exchange,
            )
            return {name: np.asarray(leaf) for name, leaf in named_leaves(parts).items()}

    def decode_blocks(
        self, round_index: int, before: Tree, sent: Sequence[Arrays], clients: Sequence[int], layout: Layout
    ) -> Tree:
        """Blocks of these clients, on a first axis, from what they sent; the hub's was ``before``."""
        stacked = {name: np.array([block[name] for block in sent]) for name in layout}
        exchange = self._variant.block_exchange
        if self._are_blocks_whole:
            return like(before, [*stacked.values()])
        with precision(self._settings.dtype):
            tree = like(self._sent_up, [*stacked.values()])
            blocks = _decode_blocks(
                tree, before, *self._up(round_index, np.asarray(clients, np.int32)), exchange=exchange
            )
            return map_tree(np.asarray, blocks)


@compiled("silo", "shape", "exchange")
def _encode(
    phi: Array, seed: Array, round_index: Array, secret: Any, *, silo: int, shape: tuple[int, ...], exchange: Codec
) -> Wire:
    return exchange.encode(phi, Sending(seed, round_index, silo, shape, secret=secret))


@compiled("silo", "num_clients", "exchange")
def _contribution(
    block: Tree,
    before: Tree,
    share: Array,
    seed: Array,
    round_index: Array,
    stream: Array,
    secret: Any,
    *,
    silo: int,
    num_clients: int,
    exchange: FixedBlocks,
) -> Tree:
    sending = Sending(seed, round_index, silo, stream=stream, secret=secret)
    return exchange.contribution(block, before, share, sending, num_clients)


@compiled("silo", "shape", "variant")
def _decode(
    sent: Wire, seed: Array, round_index: Array, *, silo: int, shape: tuple[int, ...], variant: Variant
) -> Array:
    return presence.decode(variant.dropout, variant.exchange, sent, Sending(seed, round_index, silo, shape))


@compiled("silo", "shape", "variant")
def _others(
    sent: list[Wire], seed: Array, round_index: Array, *, silo: int, shape: tuple[int, ...], variant: Variant
) -> Array:
    drawn = variant.drawn(seed, round_index, len(sent), shape, [BETWEEN_HUBS])
    sendings = [Sending(seed, round_index, index, shape, drawn=drawn[index]) for index in range(len(sent))]
    return presence.sum_counted(variant.dropout, variant.exchange, sent, silo, sendings)


@compiled("exchange")
def _encode_block(
    block: Tree, before: Tree, seed: Array, round_index: Array, silo: Any, client: Any, *, exchange: BlockCodec
) -> Tree:
    return exchange.encode(block, before, Sending(seed, round_index, silo, stream=BLOCKS + client))


@compiled("exchange")
def _decode_blocks(
    sent: Tree, before: Tree, seed: Array, round_index: Array, silo: Any, clients: Array, *, exchange: BlockCodec
) -> Tree:
    def block_of(sent: Tree, client: Array) -> Tree:
        return exchange.decode(sent, before, Sending(seed, round_index, silo, stream=BLOCKS + client))

    return jax.vmap(block_of)(sent, clients)
