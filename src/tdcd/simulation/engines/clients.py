"""The general engine: any blocks and any variant, on any device, every client's rows in an array of their own.

:class:`ClientsProgram` is the compiled round, :class:`ClientsEngine` lays rows out for it on the host.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.blocks.absent import Marks, ones_left
from tdcd.blocks.activations import activation_size_per_row, phi_in_portions
from tdcd.blocks.base import Block, SkipsPadding, phi_of_first, phi_of_members, step_phi
from tdcd.core import algorithm, presence
from tdcd.core.algorithm import Descent, Minibatch, Moving
from tdcd.core.choices import Gradient
from tdcd.core.codecs.codec import (
    BLOCKS,
    TO_CLIENTS,
    TO_HUB,
    BlockCodec,
    Codec,
    Identity,
    Sending,
    WholeBlock,
    Wire,
    is_identity,
    seed_words,
    sends_whole,
)
from tdcd.core.knowledge import Known
from tdcd.core.objective import Objective, Tree
from tdcd.core.presence import Remaining, SiloPresence
from tdcd.core.round import Round
from tdcd.core.schedule import step_keys
from tdcd.core.variant import Variant
from tdcd.federation.hosts import HostRows, row_bytes
from tdcd.federation.placement import Padding, Placement, Placer, padded_slots, place_alike, shared
from tdcd.federation.silos import Silo
from tdcd.simulation.devices import WHOLE, Devices, spec
from tdcd.simulation.engines.base import HEAVY, Call, Problem, State, TracedObjective, padded
from tdcd.simulation.ranges import add_parts, in_range, magnitudes_of, track_largest
from tdcd.simulation.staging import StagingBuffers


class ClientsData(NamedTuple):
    """The samples, which all runs share: arrays, or how they are spread over devices, as in :class:`ClientsCall`."""

    features: Any
    """Per silo ``[M, ...]``, or the rows that a call is about. On several hosts, of each device's clients, or None
    if the rows of a call come with their placements."""
    labels: Any
    weights: Any = None
    """``[M]``: what each sample weighs, if not all weigh the same."""
    present: Any = None
    """``[M, N]``: which silos have each sample, if some lack some and silos are dropped."""


class ClientsCall(NamedTuple):
    """The minibatches and settings of one run for a call of R rounds."""

    ids: Any
    """``[R, E, B]``."""
    placements: Any
    """One per silo."""
    held: Any
    """Per silo ``[K]``: n_k."""
    numbers: Any
    """Per silo ``[K]``: 0, 1, 2 ... for its clients."""
    shares: Any
    """Per silo ``[K]``: n_k / M; ``[R, K]`` if clients may be absent."""
    present: Any
    """``[R, E, B]``: which samples every silo has a client for in that round; None if all clients answer."""
    remaining: Any
    """Per silo ``[R]``: how many samples the clients that answer hold; None if all answer."""
    rounds: Any
    """``[R]``: the rounds' numbers."""
    seed: Any
    """See :class:`tdcd.core.codecs.codec.Sending`."""
    step_size: Any
    l2: Any
    """None if it is compiled in."""
    sendings: Any = None
    """Per silo, the :class:`~tdcd.core.codecs.codec.Sending` of its phi, once the round is known."""
    block_keys: Any = None
    """Per silo ``[K]``: the random keys of what clients send of their blocks, if that is in few bits."""


class Exchanged:
    """What hubs send each other in a round."""

    def __init__(self, phis: list[Array], flows: Round, dropout: SiloPresence, sendings: Sequence[Sending]) -> None:
        """Take every hub's phi."""
        self.phis, self._round, self._dropout, self._sendings = phis, flows, dropout, sendings
        self._codec: Codec = flows.codec("phi", "hub_to_hub", default=Identity())
        self._sent: list[Wire] = [
            self._codec.encode(phi, sending) for phi, sending in zip(phis, self._sendings, strict=True)
        ]

    def own(self, silo: int) -> Array:
        """The hub's own phi, as it sent it; as it is, if it is not sent."""
        if not self._round.receivers("phi", silo):
            return self.phis[silo]
        return presence.decode(self._dropout, self._codec, self._sent[silo], self._sendings[silo])

    def others(self, silo: int) -> Array:
        """The sum of the other silos' phi, as they sent it: lines 12 and 13."""
        return presence.sum_counted(self._dropout, self._codec, self._sent, silo, self._sendings)


@dataclass(frozen=True)
class ClientsProgram:
    """What is fixed when rounds are compiled; see :class:`tdcd.simulation.engines.base.Program`."""

    blocks: tuple[Block, ...]
    objective: Objective
    variant: Variant
    round: Round
    gradient: Gradient
    steps: int
    prefixes: tuple[tuple[int, ...], ...]
    """Per silo, some numbers of rows below P, ascending. A local step of clients in turn works on the first of them
    that holds all its rows rather than on all P; the result is the same."""
    in_turn: bool
    """Clients one after the other, each in the processor's cache, rather than all at once."""
    together: bool
    """Silos that are alike step as one: on an accelerator, the fewer and larger its operations are, the faster."""
    unroll: int
    """Local steps that are compiled one after another into the loop's body, which is faster if they are tiny."""
    num_rows: tuple[int, ...]
    """Per silo, M_j: M, or fewer where it lacks samples."""
    lacks: tuple[bool, ...]
    """Per silo, whether it lacks some."""
    ones: tuple[int | None, ...]
    """Per silo, where the column of ones is that stays when it is dropped; see :func:`tdcd.blocks.absent.ones_left`."""
    marks: tuple[Marks | None, ...]
    """Per silo, how its marks are made in a round; None if its features have them for every round."""
    runs: int
    devices: Devices

    def axes(self) -> tuple[ClientsData, ClientsCall]:
        """Each device has some clients, and some rows for phi; on several hosts, those of its clients."""
        rows = spec(2) if self.devices.hosts is None else spec(1)
        placement = Placement(positions=spec(1), counts=spec(1), rows=rows, slots=WHOLE)
        per_client = spec(0) if self.variant.all_answer else spec(1)
        own = ClientsCall(WHOLE, [placement] * len(self.blocks), spec(0), spec(0), per_client, *[WHOLE] * 6)
        return ClientsData(self.devices.tables, WHOLE, WHOLE, WHOLE), own

    def lay_out(self, shared: ClientsData, own: ClientsCall) -> ClientsCall:
        """Nothing to do in advance."""
        return own

    def one_round(self, index: Array, state: State, *, shared: ClientsData, own: ClientsCall) -> State:
        """See :meth:`tdcd.simulation.engines.base.Program.one_round`."""
        own = self._now(own, index)
        silos = range(len(self.blocks))
        phis = [self._hub_phi(silo, state, shared, own) for silo in silos]
        exchanged = Exchanged(phis, self.round, self.variant.dropout, own.sendings)
        stepped: dict[int, Tree] = {}
        alone = [(silo,) for silo in silos]
        # Lines 13 to 19: per silo, the clients' blocks [K, ...] after their local steps.
        for together in alike(self.blocks, self.variant, shared, own) if self.together else alone:
            steps = self._steps(together[0], own)
            ready = [
                (
                    state.blocks[silo],
                    self._minibatches(silo, state, shared, own, exchanged),
                    state.carried[silo] if state.carried else None,
                )
                for silo in together
            ]
            moved = [steps(*ready[0])] if len(together) == 1 else in_one_batch(steps, ready)
            stepped.update(zip(together, moved, strict=True))
        carried = state.carried
        if carried:
            stepped, carried = self._parted(stepped, state, own)
        averages, magnitudes = zip(*(self._averaged(silo, stepped[silo], state, own) for silo in silos), strict=True)
        summed: list[Tree] = [
            in_range(total, largest, self.round.summed_blocks)
            for total, largest in zip(self.devices.sum([*averages]), magnitudes, strict=True)
        ]
        updates = self.variant.all_met(state.updates, self.round.largest_product) if self.round.mixes else state.updates
        hub_steps = [
            self.variant.hub_update.step(block, average, remembered)
            for block, average, remembered in zip(state.blocks, summed, updates, strict=True)
        ]
        past = [_remember(*blocks) for blocks in zip(state.blocks, state.past, strict=True)]
        ended = [
            self._ended(silo, own.rounds, state, now) if self.variant.timing.period(silo) > 1 else (*now, ())
            for silo, now in enumerate(hub_steps)
        ]
        blocks, updates, pending = (list(part) for part in zip(*ended, strict=True))
        bounded = exchanged.phis if self.round.encrypted is None else self._slopes(shared, own, exchanged)
        largest = track_largest(state.largest, bounded, magnitudes)
        return State(blocks, updates, past, pending, largest, carried)

    def _slopes(self, shared: ClientsData, own: ClientsCall, exchanged: Exchanged) -> list[Array]:
        """The slopes of the loss, at the silo that sends them."""
        hub = self.round.scored_at(0)
        slopes = self.objective.score_slopes(exchanged.own(hub) + exchanged.others(hub), shared.labels[own.ids])
        return [slopes if silo == hub else jnp.zeros(0, slopes.dtype) for silo in range(len(self.blocks))]

    def _parted(self, stepped: dict[int, Any], state: State, own: ClientsCall) -> tuple[dict[int, Tree], list[Tree]]:
        """The clients' blocks, and their memories; those of clients that do not answer stay."""
        blocks, memories = {silo: moved[0] for silo, moved in stepped.items()}, []
        for silo, before in enumerate(state.carried):
            answered = jnp.ones_like(own.shares[silo], bool) if own.present is None else own.shares[silo] > 0

            def kept(new: Array, old: Array, answered: Array = answered) -> Array:
                return jnp.where(answered.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            memories.append(jax.tree.map(kept, stepped[silo][1], before))
        return blocks, memories

    def _ended(self, silo: int, round_index: Array, state: State, moved: tuple[Tree, Any]) -> tuple[Tree, Any, Any]:
        """A slow silo's block, the state of its update and what is pending, at the end of a round.

        Its local steps began in the first round of its period, and end with the last one.
        """
        period, before = self.variant.timing.period(silo), (state.blocks[silo], state.updates[silo])
        begins, ends = round_index % period == 0, (round_index + 1) % period == 0
        pending = jax.tree.map(lambda new, old: jnp.where(begins, new, old), moved, state.pending[silo])
        now = jax.tree.map(lambda new, old: jnp.where(ends, new, old), pending, before)
        return *now, pending

    def _now(self, own: ClientsCall, index: Array) -> ClientsCall:
        """Round ``index`` of a call."""

        def at(part: Any) -> Any:
            return jax.tree.map(lambda array: array[index], part)

        parts = {name: at(getattr(own, name)) for name in ("ids", "placements", "present", "remaining", "rounds")}
        now = own._replace(**parts, shares=own.shares if own.present is None else at(own.shares))
        phi = self.round.flow("phi", "hub_to_hub")
        shape = (*now.ids.shape, 1 if phi is None else phi.width)
        drawn = self.variant.drawn(now.seed, now.rounds, len(self.blocks), shape)
        sendings = [Sending(now.seed, now.rounds, silo, shape, drawn=each) for silo, each in enumerate(drawn)]
        keys = self.variant.block_keys(now.seed, now.rounds, now.numbers)
        return now._replace(sendings=sendings, block_keys=keys)

    def _phi(self, silo: int, block: Tree, shared: ClientsData, own: ClientsCall) -> Array:
        """The silo's phi in minibatch order, ``[E, B, C]``: lines 9 and 11."""
        placement, features = own.placements[silo], self._rows(silo, shared, own)
        slots = placement.slots
        if self.marks[silo] is not None:
            features = self._marked(silo, features, placement.rows, _places_of(placement.rows, own.ids), shared, own)
        if self.devices.hosts is not None:
            features = features.swapaxes(0, 1).reshape(len(own.ids), -1, *features.shape[3:])
        sent = algorithm.phi(block, features, apply=phi_in_portions(self.blocks[silo]))
        every = self.devices.gather(sent, axis=1)
        if self.lacks[silo]:
            # Of samples that the silo lacks, phi is zero.
            every = jnp.pad(every, [(0, 0), (0, 1), (0, 0)])
            slots = jnp.minimum(slots, every.shape[1] - 1)
        return algorithm.stack(every, slots)

    def _rows(self, silo: int, shared: ClientsData, own: ClientsCall) -> Array:
        """The features that this device computes phi of: ``[E, B, ...]``, or on several hosts ``[K, E, P, ...]``."""
        rows: Array = own.placements[silo].rows
        return (rows if shared.features is None else shared.features[silo][rows]).astype(own.held[0].dtype)

    def _marked(
        self, silo: int, features: Array, rows: Array, places: Array, shared: ClientsData, own: ClientsCall
    ) -> Array:
        """The features of these samples, which are at these of the round's places, with the marks of the round.

        A silo that lacks a sample and one that is dropped from it are the same.
        """
        marks = self.marks[silo]
        if marks is None:
            return features
        here = []
        for other in marks.silos:
            sending = own.sendings[other]._replace(places=places)
            here.append(shared.present[rows, other] & self.variant.dropout.kept_rows(sending))
        marked: Array = marks.of_round(features, ~jnp.stack(here, axis=-1))
        return marked

    def _hub_phi(self, silo: int, state: State, shared: ClientsData, own: ClientsCall) -> Array:
        """The phi that the silo's hub sends: line 11."""
        variant, block = self.variant, state.blocks[silo]
        if variant.timing.depth:
            age = variant.timing.age(silo, own.rounds)
            block = jax.tree.map(lambda now, old: jnp.concatenate([now[None], old])[age], block, state.past[silo])
        phi, alone = self._phi(silo, block, shared, own), self._alone(silo, block, shared, own)
        kept = variant.dropout.kept_rows(own.sendings[silo])
        if self.marks[silo] is not None:
            kept = kept & shared.present[own.ids, silo]
        return self._from_clients(silo, presence.counted(phi, kept, alone), own)

    def _alone(self, silo: int, block: Tree, shared: ClientsData, own: ClientsCall) -> Any:
        table = own.placements[silo].rows if shared.features is None else shared.features[silo]
        return self.variant.dropout.alone(silo, block, self.blocks[silo].phi, table.shape[-1], self.ones[silo])

    def _from_clients(self, silo: int, phi: Array, own: ClientsCall) -> Array:
        """The silo's phi as its hub gets it from the clients."""
        codec = self.round.codec("phi", "client_to_hub", silo, Identity())
        if is_identity(codec):
            return phi
        positions, counts = own.placements[silo].positions, own.placements[silo].counts
        real = jnp.arange(positions.shape[-1]) < counts[..., None]
        rows = jnp.where(real[..., None], jax.vmap(partial(algorithm.project, phi))(positions), 0)
        sent = self._per_client(silo, codec, rows, TO_HUB, own)
        # Every sample is a row of one client; padding goes past the end, where nothing is kept.
        num_batches, batch_size, _ = phi.shape
        where = jnp.where(real, self._places(positions, batch_size), num_batches * batch_size)
        put = jnp.zeros_like(phi).reshape(-1, phi.shape[-1]).at[where].set(sent, mode="drop").reshape(phi.shape)
        return presence.counted_again(self.variant.dropout, self.devices.sum(put), own.sendings[silo])

    def _per_client(self, silo: int, codec: Codec, rows: Array, stream: int, own: ClientsCall) -> Array:
        """Every client's rows ``[K, E, P, C]`` after they were sent between it and its hub."""
        placed = self._places(own.placements[silo].positions, own.ids.shape[1])

        def transmit(rows: Array, places: Array) -> Array:
            return sent(codec, rows, own.sendings[silo]._replace(stream=stream, places=places))

        return jax.vmap(transmit)(rows, placed)

    def _places(self, positions: Array, batch_size: int) -> Array:
        """``[K, E, P]``: which of the round's E * B samples each row is."""
        return positions + batch_size * jnp.arange(positions.shape[1])[:, None]

    def _steps(self, silo: int, own: ClientsCall) -> Callable[[Tree, Any, Any], Tree]:
        """The local steps of all clients of a silo: from its hub's block, their minibatches and what they carried."""
        objective = TracedObjective.of(self.objective, own.l2)
        descent = Descent(
            lambda phi, known: self.variant.knowledge.losses(silo, phi, known, objective),
            objective.l2,
            self.variant.update,
            own.step_size * self.variant.timing.period(silo),
        )
        steps = partial(
            algorithm.local_steps,
            iteration=own.rounds * self.steps,
            step=self._step(silo, descent),
            descent=descent,
            steps=self.steps,
            loop=partial(jax.lax.scan, unroll=self.unroll),
        )
        if self.in_turn:
            return lambda block, minibatches, carried: jax.lax.map(
                lambda client: steps(block, *client), (minibatches, carried)
            )
        return jax.vmap(steps, in_axes=(None, 0, 0))

    def _counts_rows(self, silo: int) -> bool:
        """Whether a local step takes less time if it knows how many rows a client has."""
        model = self.blocks[silo]
        return bool(self.prefixes[silo]) or (isinstance(model, SkipsPadding) and phi_of_members(model) is None)

    def _minibatches(
        self, silo: int, state: State, shared: ClientsData, own: ClientsCall, exchanged: Exchanged
    ) -> Minibatch | tuple[Minibatch, Array]:
        """A silo's clients' rows; if that counts, also how many each has in each minibatch ``[K, E]``."""
        placement, block = own.placements[silo], state.blocks[silo]
        # The sample ids of every client's rows, [K, E, P].
        rows = jax.vmap(lambda positions: jnp.take_along_axis(own.ids, positions, axis=1))(placement.positions)
        objective = TracedObjective.of(self.objective, own.l2)
        by_host, dtype = self.devices.hosts is not None, own.held[0].dtype
        places = self._places(placement.positions, own.ids.shape[1])
        features = self._rows(silo, shared, own) if by_host else shared.features[silo][rows].astype(dtype)
        minibatches = Minibatch(
            self._marked(silo, features, rows, places, shared, own),
            self._known(silo, block, shared, own, rows, exchanged, objective),
            self._weights(silo, own, rows.shape[2]) * (1 if shared.weights is None else shared.weights[rows]),
            self._keys(silo, own),
        )
        sending = own.sendings[silo]._replace(places=places)
        alone = self._alone(silo, block, shared, own)
        counted = presence.counted_rows(self.variant.dropout, minibatches, sending, alone, self.ones[silo])
        return (counted, placement.counts) if self._counts_rows(silo) else counted

    def _keys(self, silo: int, own: ClientsCall) -> Array | None:
        """``[K, E, 2]``: random keys of the clients' steps, for a block whose members are trained apart."""
        if phi_of_members(self.blocks[silo]) is None:
            return None
        return jax.vmap(lambda client: step_keys(own.seed, own.rounds, silo, client, own.ids.shape[0]))(
            own.numbers[silo]
        )

    def _averaged(self, silo: int, stepped: Tree, state: State, own: ClientsCall) -> tuple[Tree, Any]:
        """The average of the clients' blocks: line 5.

        In fixed point it is in steps, and comes with the largest magnitude of each client's block.
        """
        exchange, shares = self.round.summed_blocks, own.shares[silo]
        if exchange is not None:
            sendings = Sending(own.seed, own.rounds, silo, stream=BLOCKS + own.numbers[silo])
            total = add_parts(exchange, stepped, state.blocks[silo], shares, sendings)
            return total, self.devices.gather(magnitudes_of(stepped), axis=0)
        return algorithm.average(self._received(silo, stepped, state.blocks[silo], own), shares), ()

    def _received(self, silo: int, blocks: Tree, before: Tree, own: ClientsCall) -> Tree:
        """The clients' blocks as their hub gets them."""
        # A hub that steps itself has its clients' blocks as they are.
        exchange: BlockCodec = self.round.codec("block", "client_to_hub", silo, WholeBlock())
        if sends_whole(exchange):
            return blocks

        def transmit(block: Tree, client: Array, key: Array | None) -> Tree:
            sending = Sending(own.seed, own.rounds, silo, stream=BLOCKS + client, known_key=key)
            return exchange.decode(exchange.encode(block, before, sending), before, sending)

        return jax.vmap(transmit)(blocks, own.numbers[silo], own.block_keys[silo])

    def _known(
        self,
        silo: int,
        block: Tree,
        shared: ClientsData,
        own: ClientsCall,
        rows: Array,
        exchanged: Exchanged,
        objective: Objective,
    ) -> Known:
        """What every client knows of its rows: lines 13 and 14."""

        def projected(array: Array) -> Array:
            return jax.vmap(partial(algorithm.project, array))(own.placements[silo].positions)

        knowledge, labels = self.variant.knowledge, shared.labels
        hub = self.round.scored_at(silo)
        seen = exchanged.own(hub), exchanged.others(hub)
        received = projected(knowledge.received(silo, *seen, labels[own.ids], objective))
        codec = self.round.codec("received", "hub_to_client", silo, Identity())
        if not is_identity(codec):
            real = jnp.arange(rows.shape[2]) < own.placements[silo].counts[..., None]
            received = jnp.where(real[..., None], received, 0)
            received = self._per_client(silo, codec, received, TO_CLIENTS, own)
        start = projected(self._phi(silo, block, shared, own)) if knowledge.needs_phi_start(silo) else None
        return Known(labels[rows], received, start)

    def _weights(self, silo: int, own: ClientsCall, num_rows: int) -> Array:
        """``[K, E, P]``: what each client's rows weigh."""
        placement = own.placements[silo]
        left = Remaining(self.num_rows[silo], own.ids.shape[1])
        mask = None
        if own.present is not None:
            left = Remaining(own.remaining[silo], jnp.maximum(jnp.sum(own.present, axis=1), 1))
            mask = jax.vmap(partial(algorithm.project, own.present[..., None]))(placement.positions)[..., 0]

        def weights(counts: Array, held: Array, mask: Array | None) -> Array:
            return presence.row_weights(left._replace(mask=mask), counts, num_rows, gradient=self.gradient, held=held)

        return jax.vmap(weights)(placement.counts, own.held[silo], mask)

    def _step(self, silo: int, descent: Descent) -> Callable[[Moving, Any], Moving]:
        """A local step on as few rows as hold all of the client's."""
        model, prefixes = self.blocks[silo], self.prefixes[silo]
        apply = self.variant.knowledge.applied(silo, step_phi(model))
        step = partial(algorithm.local_step, apply=apply, descent=descent)
        if not self._counts_rows(silo):
            return step
        if not prefixes:
            return lambda moving, minibatch: step(moving, minibatch[0], apply=phi_of_first(model, minibatch[1]))

        def shortened(moving: Moving, minibatch: tuple[Minibatch, Array]) -> Moving:
            whole, count = minibatch
            sizes = [*prefixes, len(whole.weights)]
            branches = [lambda m, mb, n=n: step(m, mb.first(n)) for n in sizes]
            chosen = jnp.searchsorted(jnp.array(prefixes), count)
            moved: Moving = jax.lax.switch(chosen, branches, moving, whole)
            return moved

        return shortened


def _places_of(rows: Array, ids: Array) -> Array:
    """At which of the round's E * B places these samples ``[E, n]`` of the minibatches ``[E, B]`` are."""
    order = jnp.argsort(ids, axis=1)
    ranks = jax.vmap(jnp.searchsorted)(jnp.take_along_axis(ids, order, axis=1), rows)
    places = jnp.take_along_axis(order, jnp.minimum(ranks, ids.shape[1] - 1), axis=1)
    return places + ids.shape[1] * jnp.arange(len(ids))[:, None]


def _remember(block: Tree, past: Any) -> Any:
    """The hub's earlier blocks after one more round."""
    if not jax.tree.leaves(past):
        return past
    return jax.tree.map(lambda now, old: jnp.concatenate([now[None], old[:-1]]), block, past)


def sent(exchange: Codec, phi: Array, sending: Sending) -> Array:
    """Phi after it was sent."""
    return exchange.decode(exchange.encode(phi, sending), sending)


def alike(models: Sequence[Block], variant: Variant, shared: ClientsData, own: ClientsCall) -> list[tuple[int, ...]]:
    """The silos in batches: those of one have equal models, periods and numbers of clients, rows and features."""
    batches: dict[Any, tuple[int, ...]] = {}
    tables = shared.features or [placement.rows for placement in own.placements]
    for silo, (model, features, placement) in enumerate(zip(models, tables, own.placements, strict=True)):
        # A client's loss may depend on the silo.
        apart = None if variant.knowledge.are_silos_alike else silo
        period = variant.timing.period(silo)
        shape = (features.shape[1:], features.dtype, placement.positions.shape)
        key = (model, shape, period, apart)
        batches[key] = (*batches.get(key, ()), silo)
    return list(batches.values())


def in_one_batch(steps: Callable[..., Tree], ready: Sequence[tuple[Any, ...]]) -> list[Tree]:
    """What ``steps`` makes of each silo's arguments, computed for all of them at once."""
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *ready)
    stepped = jax.vmap(steps)(*stacked)
    return [jax.tree.map(lambda leaf, silo=silo: leaf[silo], stepped) for silo in range(len(ready))]


TINY = 1 << 14
"""A local step is tiny if all clients' rows of a minibatch have fewer numbers than this; heavy if they have more than
``HEAVY``, and each client's alone are not tiny. A CPU's caches must also hold the activations."""


class ClientsEngine:
    """Every client's rows in an array of their own, padded to those of the fullest client."""

    name = "clients"

    def __init__(self, problem: Problem) -> None:
        """Choose how to run this federation here; see :meth:`choose_for`."""
        self._problem, devices = problem, problem.devices
        self._placers = [
            shared(
                [
                    Placer(silo.holders, problem.batch_size, devices.even(silo.num_clients))
                    for silo in run.federation.silos
                ]
            )
            for run in problem.runs
        ]
        self._held = self._for_all(problem.held, 1)
        self._numbers = self._for_all(lambda silo: np.arange(silo.num_clients, dtype=np.int32), 0)
        self._shares = self._for_all(problem.shares, 0)
        stays = problem.on_device is not None and not isinstance(problem.labels, HostRows)
        self._labels = devices.hold(problem.labels) if stays else None
        self._row_weights = None if problem.weights is None else devices.hold(problem.weights)
        samples, silos = problem.federation.num_samples, problem.federation.silos
        self._rooms = [
            Padding(silo.num_rows, samples, problem.batch_size) if silo.num_rows < samples else None for silo in silos
        ]
        """Of silos that lack samples: how many rows of a minibatch phi is computed of."""
        self._present: Any = None
        if problem.variant.dropout.drops_silos and not problem.federation.is_complete:
            from tdcd.federation.missing_rows import presence_of  # noqa: PLC0415 - few runs have such samples

            self._present = np.ascontiguousarray(presence_of(problem.federation).T)
            if self._labels is not None:
                self._present = devices.hold(self._present)
        self._buffers = StagingBuffers()
        self.choose_for(jax.default_backend() == "cpu")

    def _for_all(self, figures: Callable[[Silo], NDArray[Any]], empty: float) -> list[Any]:
        """A figure of every client, silo by silo, where it stays; see :meth:`_per_client`."""
        problem = self._problem
        return [
            problem.devices.hold(
                problem.over_runs([self._per_client(figures, run, silo, empty) for run in range(len(problem.runs))]), 0
            )
            for silo in range(problem.federation.num_silos)
        ]

    def _per_client(self, figures: Callable[[Silo], NDArray[Any]], run: int, silo: int, empty: float) -> NDArray[Any]:
        """``[K]``: a figure of each client, and ``empty`` where devices have room for one more."""
        values = figures(self._problem.runs[run].federation.silos[silo])
        room = self._placers[run][silo].num_clients - len(values)
        return np.pad(values, (0, room), constant_values=empty)

    @classmethod
    def supports(cls, problem: Problem) -> str | None:
        """It runs everything."""
        return None

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """It is the last choice."""
        return True

    def choose_for(self, cpu: bool) -> None:
        """Choose how to run this federation on a CPU or on an accelerator.

        Where steps are heavy, it is worth compiling them for several numbers of rows, to pad less. On a CPU the clients
        then take turns, since all of them at once would overflow its cache, and each step chooses its number. On an
        accelerator, which a choice would hold up, a round does, and it is a call of its own. Tiny steps cost less than
        the loop around them, so several are compiled into one pass of it.
        """
        problem, placers, settings = self._problem, self._placers[0], self._problem.settings
        is_batch = len(problem.runs) > 1
        shapes = [table.shape[1:] for table in problem.tables]
        per_row = [
            activation_size_per_row(block, shape) if cpu else math.prod(shape)
            for block, shape in zip(problem.blocks, shapes, strict=True)
        ]
        each = [p.usual * row for p, row in zip(placers, per_row, strict=True)]
        numbers = max(p.num_clients * size for p, size in zip(placers, each, strict=True))
        # Mapped over runs, every run would work on all numbers of rows rather than on one.
        heavy = numbers > HEAVY and max(each) > TINY and not is_batch
        in_turn = heavy and cpu and max(p.num_clients for p in placers) > 1
        cells = 4 * sum(placer.num_clients * placer.usual for placer in placers)
        shipped = sum(row_bytes(table) for table in problem.tables) * problem.batch_size if self._labels is None else 0
        # A call sends half as many bytes of indices: a call of few rounds fills its whole room with them.
        self.rounds_per_call = problem.rounds_per_call(problem.batches * (2 * cells + shipped))
        if heavy and not cpu:
            self.rounds_per_call = 1
            for placer in placers:
                placer.padding.tighten(placer.num_clients * problem.batches)
        self.program = ClientsProgram(
            blocks=problem.blocks,
            objective=problem.runs[0].objective,
            variant=problem.variant,
            round=problem.round,
            gradient=settings.gradient,
            steps=settings.local_steps,
            prefixes=tuple(p.padding.prefixes() if in_turn else () for p in placers),
            in_turn=in_turn,
            together=not cpu,
            unroll=min(5, settings.local_steps) if numbers < TINY and not is_batch else 1,
            num_rows=tuple(silo.num_rows for silo in problem.federation.silos),
            lacks=tuple(silo.num_rows < problem.federation.num_samples for silo in problem.federation.silos),
            ones=tuple(
                ones_left(block, silo.num_rows, problem.federation.num_samples)
                for block, silo in zip(problem.blocks, problem.federation.silos, strict=True)
            ),
            marks=tuple(
                silo.marks if silo.marks and silo.marks.silos and self._present is not None else None
                for silo in problem.federation.silos
            ),
            runs=len(problem.runs),
            devices=problem.devices,
        )

    def prepare(self, wanted: range) -> Call:
        """See :meth:`tdcd.simulation.engines.base.Engine.prepare`."""
        problem, devices, rounds = self._problem, self._problem.devices, self.rounds_per_call
        first_round, ids = wanted.start, problem.draw(wanted)
        sent = self._buffers.begin()
        placed = place_alike(self._placers, ids)
        num_rounds = len(placed[0][0].rows)
        ids = ids[:, :num_rounds]
        own = self._absent(first_round, ids)
        tables, labels, weights, present = problem.on_device, self._labels, self._row_weights, self._present
        by_host = devices.hosts is not None
        if by_host:
            rows = self._rows_by_client(placed[0], ids[0])
            tables = None if tables is None else [table.features for table in tables]
        elif tables is None:
            tables = [
                devices.put(self._buffers.take(silo, table, ids, rounds).reshape(-1, *table.shape[1:]))
                for silo, table in enumerate(problem.tables)
            ]
        if labels is None:
            labels = devices.put(self._buffers.take("labels", problem.labels, ids, rounds).ravel())
            if problem.weights is not None:
                weights = devices.put(self._buffers.take("weights", problem.weights, ids, rounds).ravel())
            if present is not None:
                taken = self._buffers.take("present", present, ids, rounds)
                present = devices.put(taken.reshape(-1, taken.shape[-1]))
            ids = _renumbered(ids, rounds)
            if not by_host:
                placed = [
                    [_with_rows(placement, numbers) for placement in run]
                    for run, numbers in zip(placed, ids, strict=True)
                ]
        step_size, l2 = problem.numbers()
        own = own._replace(
            ids=devices.put(problem.over_runs(padded(ids, rounds))),
            placements=self._put_by_host(placed[0], rows)
            if by_host
            else [self._put(self._trimmed(*silo)) for silo in enumerate(zip(*placed, strict=True))],
            held=self._held,
            numbers=self._numbers,
            rounds=problem.over_runs([np.arange(first_round, first_round + rounds, dtype=np.int32)] * len(ids)),
            seed=problem.over_runs([seed_words(run.settings.seed) for run in problem.runs]),
            step_size=step_size,
            l2=l2,
        )
        return Call(num_rounds, (ClientsData(tables, labels, weights, present), own, num_rounds), sent)

    def _absent(self, first_round: int, ids: NDArray[np.int32]) -> ClientsCall:
        """Who answers in these rounds, in terms of shares and samples; only those parts are filled in."""
        problem, rounds = self._problem, range(first_round, first_round + ids.shape[1])
        own = ClientsCall(*[None] * len(ClientsCall._fields))._replace(shares=self._shares)
        if problem.variant.all_answer:
            return own
        present = np.ones(ids.shape, bool)
        shares: list[list[Any]] = [[] for _ in problem.blocks]
        remaining: list[list[Any]] = [[] for _ in problem.blocks]
        for number, run in enumerate(problem.runs):
            for index, silo in enumerate(run.federation.silos):
                who = [
                    problem.variant.participation.answering(run.settings.seed, r, index, silo.num_clients)
                    for r in rounds
                ]
                answering = np.pad(
                    np.stack(who), [(0, 0), (0, self._placers[number][index].num_clients - silo.num_clients)]
                )
                owner = self._placers[number][index].owner[ids[number]]
                # A sample that the silo lacks, -1, does not depend on its clients.
                there = np.pad(answering, [(0, 0), (0, 1)], constant_values=True)
                present[number] &= np.take_along_axis(there[:, None], owner, axis=2)
                held = answering * self._per_client(problem.held, number, index, 0)
                left = held.sum(axis=1, dtype=held.dtype)
                shares[index].append(held / left[:, None])
                remaining[index].append(left)
        return own._replace(
            present=problem.devices.put(problem.over_runs(padded(present, self.rounds_per_call))),
            shares=[self._by_round(silo, 1) for silo in shares],
            remaining=[self._by_round(silo) for silo in remaining],
        )

    def _by_round(self, per_run: Sequence[Any], axis: int | None = None) -> Any:
        """``[R, ...]`` of each run, with room for all rounds of a call."""
        room = padded(per_run[0][None] if len(per_run) == 1 else np.stack(per_run), self.rounds_per_call)
        return self._problem.devices.put(self._problem.over_runs(room), axis)

    def _rows_by_client(self, placements: Sequence[Placement], ids: NDArray[np.int32]) -> list[Any]:
        """On several hosts, every client's rows where the client is."""
        from tdcd.simulation.host_tables import HostLayout  # noqa: PLC0415 - few runs have several hosts

        problem = self._problem
        layout = HostLayout(problem.devices, self._buffers, self.rounds_per_call)
        held = problem.on_device or [None] * len(placements)
        return [
            layout.rows(silo, placement, ids, problem.tables[silo], held[silo])
            for silo, placement in enumerate(placements)
        ]

    def _put_by_host(self, placements: Sequence[Placement], rows: Sequence[Any]) -> list[Placement]:
        """The only run's placements on the devices of several hosts, silo by silo."""
        return [
            Placement(
                self._by_round([placement.positions], 1),
                self._by_round([placement.counts], 1),
                own,
                self._by_round([padded_slots(placement)]),
            )
            for placement, own in zip(placements, rows, strict=True)
        ]

    def _trimmed(self, silo: int, placements: Sequence[Placement]) -> list[Placement]:
        """One silo's placements of all runs, with rows only for samples that it has, and a few more."""
        room = self._rooms[silo]
        if room is None:
            return [*placements]
        most = max(int(placement.counts.sum(axis=1).max()) for placement in placements)
        width = room.enough_for(most)
        return [placement._replace(rows=placement.rows[..., :width]) for placement in placements]

    def _put(self, placements: Sequence[Placement]) -> Placement:
        """One silo's placements of all runs, on the devices."""
        devices = self._problem.devices
        spare = devices.even(placements[0].rows.shape[2]) - placements[0].rows.shape[2]
        even = [p._replace(rows=np.pad(p.rows, [(0, 0), (0, 0), (0, spare)])) for p in placements]
        axes = Placement(positions=1, counts=1, rows=2, slots=None)
        parts = [self._by_round(part, axis) for part, axis in zip(zip(*even, strict=True), axes, strict=True)]
        return Placement(*parts)


def _renumbered(ids: NDArray[np.int32], rounds: int) -> NDArray[np.int32]:
    """The minibatches with samples numbered in the order in which their rows are sent: run by run, and in each
    those of ``ids`` with room for ``rounds``.
    """
    room = (len(ids), rounds, *ids.shape[2:])
    return np.arange(math.prod(room), dtype=np.int32).reshape(room)[:, : ids.shape[1]]


def _with_rows(placement: Placement, ids: NDArray[np.int32]) -> Placement:
    """The placement of minibatches in which samples have other numbers."""
    # Samples that the silo lacks go past the end.
    rows = np.zeros((*ids.shape[:2], ids.shape[2] + 1), ids.dtype)
    np.put_along_axis(rows, placement.slots, ids, axis=2)
    return placement._replace(rows=rows[..., :-1])
