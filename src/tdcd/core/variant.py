"""The family around Algorithm 1: a member is a :class:`Variant`, made of parts whose defaults are the algorithm itself.

================= ===================================================================== =====================
part              the question that it answers                                          default
================= ===================================================================== =====================
``update``        how does a gradient move a client's block within a round?             :class:`Sgd`
``hub_update``    how does the clients' average become the hub's next block?            :class:`Average`
``exchange``      what does a silo's phi look like on the wire between hubs?            :class:`Identity`
``client_exchange``  what does phi look like on the wire between a client and its hub?     :class:`Identity`
``block_exchange``   what does a client's block look like on the wire to its hub?          :class:`WholeBlock`
``timing``        which round's block does phi come from, and when does a silo step?    :class:`Overlap`
``knowledge``     what does a client know of a row, and which loss follows from it?     :class:`LabelsEverywhere`
``participation`` which clients answer in a round?                                      :class:`FullParticipation`
``dropout``       which silos does a sample's score go without in training?             none
================= ===================================================================== =====================

Parts are values: frozen dataclasses, equal if they do the same, so that compiled programs can be shared. Their
functions are pure; those that run inside a compiled round are written in JAX.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.codecs.codec import (
    BETWEEN_HUBS,
    BLOCKS,
    TO_CLIENTS,
    TO_HUB,
    BlockCodec,
    Codec,
    Identity,
    NumpyBlocks,
    Sending,
    WholeBlock,
    dither,
    for_all_silos,
    is_identity,
    is_private,
)
from tdcd.core.codecs.fixed_point import FixedBlocks, FixedPoint
from tdcd.core.combine import SUM, Combine
from tdcd.core.family.dropout import STREAM, SiloDropout, uniforms
from tdcd.core.family.overlap import Overlap
from tdcd.core.family.scaled import CurvedUpdate, Window
from tdcd.core.family.steered import LONGEST, Steered
from tdcd.core.knowledge import Knowledge, LabelsEverywhere, WrittenOut
from tdcd.core.lazy import Array, jax, jnp
from tdcd.core.objective import Objective, Tree
from tdcd.core.presence import FullParticipation, Participation
from tdcd.core.settings import Settings
from tdcd.core.timing import Timing
from tdcd.core.traits import Clash, Excludes, is_plain, stated
from tdcd.core.update import Average, CarriedUpdate, HubUpdate, Sgd, Update, UpdateState, excluded_by_memory

if TYPE_CHECKING:
    from tdcd.core.codecs.block_noise import NoisyBlocks
    from tdcd.core.codecs.encrypted import EncryptedSums


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A member of the TDCD family; ``Variant()`` is Algorithm 1.

    >>> Variant().changed
    ()
    """

    update: Update = Sgd()  # noqa: RUF009  (frozen)
    hub_update: HubUpdate = Average()  # noqa: RUF009
    exchange: Codec = Identity()  # noqa: RUF009
    client_exchange: Codec = Identity()  # noqa: RUF009
    block_exchange: BlockCodec = WholeBlock()  # noqa: RUF009
    timing: Timing = Overlap()  # noqa: RUF009
    knowledge: Knowledge = LabelsEverywhere()  # noqa: RUF009
    participation: Participation = FullParticipation()  # noqa: RUF009
    dropout: SiloDropout = SiloDropout()  # noqa: RUF009

    @property
    def changed(self) -> tuple[str, ...]:
        """The parts that are not those of Algorithm 1."""
        return tuple(part.name for part in fields(self) if getattr(self, part.name) != part.default)

    @property
    def is_plain(self) -> bool:
        """Whether it is Algorithm 1."""
        return not self.changed

    @property
    def steered(self) -> Steered | None:
        """The hubs' update, if its steps are steered while training runs."""
        return self.hub_update if isinstance(self.hub_update, Steered) else None

    @property
    def is_steered(self) -> bool:
        """Whether the hubs' steps are steered."""
        return self.steered is not None

    @property
    def longest_factor(self) -> float:
        """The largest factor of steered steps."""
        return LONGEST if self.steered is None else self.steered.longest

    @property
    def curved(self) -> CurvedUpdate | None:
        """The hubs' update, if it has to know the curvature of its silo before round 0."""
        update = self.hub_update
        if isinstance(update, Steered) and not update.is_curved:
            return None
        return update if isinstance(update, CurvedUpdate) else None

    @property
    def remembers_rounds(self) -> bool:
        """Whether hubs remember their last rounds, all the same ones, and may send each other products of gradients."""
        update = self.hub_update.update if isinstance(self.hub_update, Steered) else self.hub_update
        are_slow = any(period > 1 for period in getattr(self.timing, "periods", ()))
        return hasattr(update, "window") and not are_slow

    def window(self, state: UpdateState) -> Window | None:
        """What a hub remembers of its last rounds; None if it remembers none."""
        if not self.remembers_rounds:
            return None
        window: Window | None = self.hub_update.window(state, self.timing.depth)  # type: ignore[attr-defined]
        return window

    def mixes(self, settings: Settings) -> bool:
        """Whether hubs continue from mixtures of their last rounds' models, see :mod:`tdcd.core.family.mixing`.

        Their gradients are those of one loss, without noise, only with one step on every sample, and in step.
        """
        is_exact = settings.minibatches == "full" and settings.local_steps == 1 and self.all_answer
        # A codec of one's own may round, too.
        of_phi = is_plain(self.exchange) or self.summed_phi is not None
        of_blocks = is_plain(self.block_exchange) or self.summed_blocks is not None
        are_numbers = of_phi and of_blocks and is_plain(self.client_exchange)
        are_numbers &= not self.has_noise and self.encrypted is None
        in_step = self.remembers_rounds and self.timing.depth == 0 and not self.dropout.rate
        return self.curved is not None and is_exact and are_numbers and in_step

    def products(self, state: UpdateState, largest: float = np.inf) -> Array:
        """What a hub sends the others before a step, where they mix; see :class:`CurvedUpdate`."""
        assert self.curved is not None
        return self.curved.products(state, largest)

    def met(self, state: UpdateState, total: Array, num_silos: int) -> UpdateState:
        """A hub's state with the sum of what all hubs sent."""
        assert self.curved is not None
        return self.curved.met(state, total, num_silos)

    def all_met(self, states: Sequence[UpdateState], largest: float = np.inf) -> list[UpdateState]:
        """The states of all hubs, when each has what all of them sent."""
        sent = [self.products(state, largest) for state in states]
        total: Any = sum(sent[1:], start=sent[0])
        return [self.met(state, total, len(sent)) for state in states]

    @property
    def carried(self) -> CarriedUpdate | None:
        """The clients' update, if it has a memory that lasts from round to round."""
        return self.update if isinstance(self.update, CarriedUpdate) else None

    def first_state(self, block: Tree, products: Callable[[], NDArray[Any]], objective: Objective) -> UpdateState:
        """What a hub's update remembers before round 0.

        Args:
            products: asked for the silo's products of features, where steps are scaled by its curvature.
        """
        state = self.hub_update.start(block)
        if self.curved is None:
            return state
        return self.curved.curved(state, products(), objective)

    def first_memory(self, block: Tree) -> UpdateState:
        """A client's memory before round 0; ``()`` if its update carries none."""
        return () if self.carried is None else self.carried.memory(block)

    def is_lost(self, state: UpdateState) -> bool:
        """Whether a hub's steered step was not finite, so that its block stands still."""
        return self.steered is not None and self.steered.is_lost(state)

    def with_factor(self, state: UpdateState, factor: float, *, wait: int | None = None) -> UpdateState:
        """A hub's state with another factor of its steered steps, see :meth:`Steered.with_factor`."""
        assert self.steered is not None
        return self.steered.with_factor(state, factor, wait=wait)

    def clashes(self, num_silos: int, combine: Combine = SUM) -> tuple[Clash, ...]:
        """The parts that do not go together, or not with what makes scores of sums, as they say themselves."""
        clashes = [
            Clash(part, other, getattr(self, other), reason)
            for part in (combine, *(getattr(self, field.name) for field in fields(self)))
            if isinstance(part, Excludes)
            for other, reason in part.excludes(self, num_silos)
        ]
        if self.carried is not None:
            excluded = excluded_by_memory(self, num_silos)
            clashes += [Clash(self.update, other, getattr(self, other), reason) for other, reason in excluded]
        return tuple(clashes)

    @property
    def drawn_problem(self) -> str:
        """Why real parties cannot draw who answers; empty if they can, or if all do."""
        is_row_by_row = is_identity(self.exchange) or self.is_private
        if self.all_answer or is_row_by_row:
            return ""
        return (
            f"{self.participation} does not go with {self.exchange}: what it sends of a row may follow from rows of "
            "clients that are not drawn, which only a simulation has; leave one of them out"
        )

    @property
    def is_private(self) -> bool:
        """Whether what hubs send depends on noise of their own."""
        return is_private(self.exchange)

    @property
    def noisy_blocks(self) -> "NoisyBlocks | None":
        """The form of clients' blocks, if they add noise of their own."""
        if self.summed_blocks is None:
            return None
        from tdcd.core.codecs.block_noise import noisy_blocks  # noqa: PLC0415 - few runs have noise

        return noisy_blocks(self.block_exchange)

    @property
    def has_noise(self) -> bool:
        """Whether hubs or clients send noise of their own."""
        return self.is_private or self.noisy_blocks is not None

    @property
    def client_needs_secret(self) -> bool:
        """Whether clients need a secret of their own that stays when they are started again."""
        return self.encrypted is not None or self.noisy_blocks is not None

    @property
    def needs_secret(self) -> bool:
        """Whether hubs need a secret of their own for what they send."""
        return self.is_private or self.encrypted is not None

    @property
    def encrypted(self) -> "EncryptedSums | None":
        """The form of encrypted slopes, if the silos without labels get no others."""
        return self.knowledge.encrypted

    @property
    def summed_phi(self) -> FixedPoint | None:
        """The codec of phi, if hubs can use nothing but sums of it."""
        return self.exchange if isinstance(self.exchange, FixedPoint) else None

    @property
    def summed_blocks(self) -> FixedBlocks | None:
        """The codec of clients' blocks, if a hub can use nothing but their sum."""
        return self.block_exchange if isinstance(self.block_exchange, FixedBlocks) else None

    @property
    def is_batchable(self) -> bool:
        """Whether several runs can be trained at once: none has noise, memories of clients or decisions of its own."""
        return not self.has_noise and self.carried is None and self.steered is None

    @property
    def all_answer(self) -> bool:
        """Whether all clients answer in every round."""
        return is_plain(self.participation)

    def answering(self, clients: Sequence[int]) -> list[int] | None:
        """The number of clients that answer in a round, per silo; None if all do."""
        if self.all_answer:
            return None
        return [int(self.participation.answering(0, 0, silo, count).sum()) for silo, count in enumerate(clients)]

    @property
    def is_numpy(self) -> bool:
        """Whether all that its clients compute, but for gradients, is written for NumPy as well."""
        takes_numpy = isinstance(self.block_exchange, NumpyBlocks) and self.block_exchange.takes_numpy
        sends_arrays = is_identity(self.client_exchange) and takes_numpy
        return self.takes_plain_steps and self.has_slopes and sends_arrays and not self.dropout.rate

    @property
    def takes_plain_steps(self) -> bool:
        """Whether a local step is exactly :class:`Sgd`'s."""
        return is_plain(self.update)

    @property
    def has_slopes(self) -> bool:
        """Whether a local step follows from the slopes of the loss alone, without differentiation."""
        return isinstance(self.update, Sgd) and isinstance(self.knowledge, WrittenOut)

    @property
    def few_bits(self) -> tuple[int | None, int | None, int | None]:
        """The bits of phi between hubs, of phi inside a silo, and of blocks; None where numbers are as they are."""
        bits = [getattr(part, "few_bits", None) for part in (self.exchange, self.client_exchange, self.block_exchange)]
        return bits[0], bits[1], bits[2]

    def drawn(
        self,
        seed: Any,
        round_index: Any,
        num_silos: int,
        shape: tuple[int, ...],
        streams: Sequence[int] = (BETWEEN_HUBS, TO_HUB, TO_CLIENTS),
    ) -> list[dict[int, Array]]:
        """Per silo, the :attr:`~tdcd.core.codecs.codec.Sending.drawn` of a round with phi of this shape: the dither of
        what is in few bits, of these streams, and what the silo is dropped by.
        """
        between, inside, _ = self.few_bits
        few = [stream for stream in streams if (between if stream == BETWEEN_HUBS else inside)]
        dithers = for_all_silos(partial(dither, seed, round_index, shape=shape), num_silos, few)
        dropping = [STREAM] if self.dropout.drops_silos else []
        dropped = for_all_silos(partial(uniforms, seed, round_index, shape=shape[:2]), num_silos, dropping)
        return [of_silo | bits for of_silo, bits in zip(dithers, dropped, strict=True)]

    def block_keys(self, seed: Any, round_index: Any, clients: Sequence[Array]) -> list[Any]:
        """Per silo ``[K]``, the :attr:`~tdcd.core.codecs.codec.Sending.known_key` of each client's block, of the silo's
        clients' numbers; None if blocks are not in few bits.
        """
        counts = [len(numbers) for numbers in clients]
        if not self.few_bits[2]:
            return [None] * len(counts)

        def key(silo: Array, client: Array) -> Array:
            return Sending(seed, round_index, silo, stream=BLOCKS + client).key  # type: ignore[arg-type]

        keys = jax.vmap(key)(jnp.asarray(np.repeat(np.arange(len(counts)), counts)), jnp.concatenate(clients))
        return [keys[end - count : end] for count, end in zip(counts, np.cumsum(counts), strict=True)]

    @property
    def beyond_theorem(self) -> tuple[str, ...]:
        """The parts that Theorem 1 does not cover; among them classes that only inherit from covered ones."""
        return tuple(name for name in self.changed if name not in stated(getattr(self, name), "covered_as", ()))
