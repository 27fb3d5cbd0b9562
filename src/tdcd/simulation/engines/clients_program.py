"""The compiled round of the general engine: any blocks, any variant, every client's rows in an array of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tdcd.blocks.activations import phi_in_portions
from tdcd.blocks.base import Block, SkipsPadding, phi_of_first
from tdcd.core import algorithm, presence
from tdcd.core.algorithm import Descent, Minibatch, Moving
from tdcd.core.choices import Gradient
from tdcd.core.codecs.codec import BLOCKS, TO_CLIENTS, TO_HUB, Codec, Sending, Wire, is_identity, sends_whole
from tdcd.core.knowledge import Known
from tdcd.core.objective import Objective, Tree
from tdcd.core.presence import Remaining
from tdcd.core.variant import Variant
from tdcd.federation.placement import Placement
from tdcd.simulation.devices import WHOLE, Devices, spec
from tdcd.simulation.engines.base import State, TracedObjective
from tdcd.simulation.ranges import add_parts, in_range, magnitudes_of, track_largest


class ClientsData(NamedTuple):
    """The samples, which all runs share: arrays, or how they are spread over devices, as in :class:`ClientsCall`."""

    features: Any
    """Per silo ``[M, ...]``, or the rows that a call is about. On several hosts, of each device's clients, or None
    if the rows of a call come with their placements."""
    labels: Any
    weights: Any = None
    """``[M]``: what each sample weighs, if not all weigh the same."""


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


class Exchanged:
    """What hubs send each other in a round."""

    def __init__(self, phis: list[Array], variant: Variant, seed: Any, round_index: Array) -> None:
        """Take every hub's phi."""
        self.phis, self._variant = phis, variant
        self._sendings = [Sending(seed, round_index, silo, phi.shape) for silo, phi in enumerate(phis)]
        self._sent: list[Wire] = [
            variant.exchange.encode(phi, sending) for phi, sending in zip(phis, self._sendings, strict=True)
        ]

    def own(self, silo: int) -> Array:
        """The hub's own phi, as it sent it; as it is, if it is not sent."""
        variant = self._variant
        if not variant.knowledge.route.receivers(silo, len(self.phis)):
            return self.phis[silo]
        return presence.decode(variant.dropout, variant.exchange, self._sent[silo], self._sendings[silo])

    def others(self, silo: int) -> Array:
        """The sum of the other silos' phi, as they sent it: lines 12 and 13."""
        variant = self._variant
        return presence.sum_counted(variant.dropout, variant.exchange, self._sent, silo, self._sendings)


@dataclass(frozen=True)
class ClientsProgram:
    """What is fixed when rounds are compiled; see :class:`tdcd.simulation.engines.base.Program`."""

    blocks: tuple[Block, ...]
    objective: Objective
    variant: Variant
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
    num_samples: int
    runs: int
    devices: Devices

    def axes(self) -> tuple[ClientsData, ClientsCall]:
        """Each device has some clients, and some rows for phi; on several hosts, those of its clients."""
        rows = spec(2) if self.devices.hosts is None else spec(1)
        placement = Placement(positions=spec(1), counts=spec(1), rows=rows, slots=WHOLE)
        per_client = spec(0) if self.variant.all_answer else spec(1)
        own = ClientsCall(WHOLE, [placement] * len(self.blocks), spec(0), spec(0), per_client, *[WHOLE] * 6)
        return ClientsData(self.devices.tables, WHOLE, WHOLE), own

    def lay_out(self, shared: ClientsData, own: ClientsCall) -> ClientsCall:
        """Nothing to do in advance."""
        return own

    def one_round(self, index: Array, state: State, *, shared: ClientsData, own: ClientsCall) -> State:
        """See :meth:`tdcd.simulation.engines.base.Program.one_round`."""
        own = self._now(own, index)
        silos = range(len(self.blocks))
        phis = [self._hub_phi(silo, state, shared, own) for silo in silos]
        exchanged = Exchanged(phis, self.variant, own.seed, own.rounds)
        stepped = self._stepped(state, shared, own, exchanged)
        carried = state.carried
        if self.variant.carried is not None:
            stepped, carried = self._parted(stepped, state, own)
        averages, magnitudes = zip(*(self._averaged(silo, stepped[silo], state, own) for silo in silos), strict=True)
        summed: list[Tree] = in_range(self.devices.sum([*averages]), magnitudes, self.variant)
        moved = [
            self.variant.hub_update.step(block, average, remembered)
            for block, average, remembered in zip(state.blocks, summed, state.updates, strict=True)
        ]
        past = [_remember(*blocks) for blocks in zip(state.blocks, state.past, strict=True)]
        ended = [
            self._ended(silo, own.rounds, state, now) if self.variant.timing.period(silo) > 1 else (*now, ())
            for silo, now in enumerate(moved)
        ]
        blocks, updates, pending = (list(part) for part in zip(*ended, strict=True))
        largest = track_largest(state.largest, exchanged.phis, magnitudes)
        return State(blocks, updates, past, pending, largest, carried)

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
        return own._replace(**parts, shares=own.shares if own.present is None else at(own.shares))

    def _phi(self, silo: int, block: Tree, shared: ClientsData, own: ClientsCall) -> Array:
        """The silo's phi in minibatch order, ``[E, B, C]``: lines 9 and 11."""
        slots, features = own.placements[silo].slots, self._rows(silo, shared, own)
        if self.devices.hosts is not None:
            features = features.swapaxes(0, 1).reshape(len(own.ids), -1, *features.shape[3:])
        sent = algorithm.phi(block, features, apply=phi_in_portions(self.blocks[silo]))
        return algorithm.stack(self.devices.gather(sent, axis=1), slots)

    def _rows(self, silo: int, shared: ClientsData, own: ClientsCall) -> Array:
        """The features that this device computes phi of: ``[E, B, ...]``, or on several hosts ``[K, E, P, ...]``."""
        rows: Array = own.placements[silo].rows
        return (rows if shared.features is None else shared.features[silo][rows]).astype(own.held[0].dtype)

    def _hub_phi(self, silo: int, state: State, shared: ClientsData, own: ClientsCall) -> Array:
        """The phi that the silo's hub sends: line 11."""
        variant, block = self.variant, state.blocks[silo]
        if variant.timing.depth:
            age = variant.timing.age(silo, own.rounds)
            block = jax.tree.map(lambda now, old: jnp.concatenate([now[None], old])[age], block, state.past[silo])
        phi, alone = self._phi(silo, block, shared, own), self._alone(silo, block, shared, own)
        kept = variant.dropout.kept_rows(Sending(own.seed, own.rounds, silo, phi.shape))
        return self._from_clients(silo, presence.counted(phi, kept, alone), own)

    def _alone(self, silo: int, block: Tree, shared: ClientsData, own: ClientsCall) -> Any:
        table = own.placements[silo].rows if shared.features is None else shared.features[silo]
        return self.variant.dropout.alone(silo, block, self.blocks[silo].phi, table.shape[-1])

    def _from_clients(self, silo: int, phi: Array, own: ClientsCall) -> Array:
        """The silo's phi as its hub gets it from the clients."""
        if is_identity(self.variant.client_exchange):
            return phi
        positions, counts = own.placements[silo].positions, own.placements[silo].counts
        real = jnp.arange(positions.shape[-1]) < counts[..., None]
        rows = jnp.where(real[..., None], jax.vmap(partial(algorithm.project, phi))(positions), 0)
        sent = self._per_client(silo, rows, TO_HUB, phi.shape, own)
        # Every sample is a row of one client; padding goes past the end, where nothing is kept.
        num_batches, batch_size, _ = phi.shape
        where = jnp.where(real, self._places(positions, batch_size), num_batches * batch_size)
        put = jnp.zeros_like(phi).reshape(-1, phi.shape[-1]).at[where].set(sent, mode="drop").reshape(phi.shape)
        sending = Sending(own.seed, own.rounds, silo, phi.shape)
        return presence.counted_again(self.variant.dropout, self.devices.sum(put), sending)

    def _per_client(self, silo: int, rows: Array, stream: int, shape: tuple[int, ...], own: ClientsCall) -> Array:
        """Every client's rows ``[K, E, P, C]`` after they were sent between it and its hub."""
        placed = self._places(own.placements[silo].positions, shape[1])

        def transmit(rows: Array, places: Array) -> Array:
            return sent(self.variant.client_exchange, rows, Sending(own.seed, own.rounds, silo, shape, stream, places))

        return jax.vmap(transmit)(rows, placed)

    def _places(self, positions: Array, batch_size: int) -> Array:
        """``[K, E, P]``: which of the round's E * B samples each row is."""
        return positions + batch_size * jnp.arange(positions.shape[1])[:, None]

    def _stepped(self, state: State, shared: ClientsData, own: ClientsCall, exchanged: Exchanged) -> dict[int, Tree]:
        """Per silo, the clients' blocks ``[K, ...]`` after their local steps: lines 13 to 19."""
        stepped: dict[int, Tree] = {}
        alone = [(silo,) for silo in range(len(self.blocks))]
        for silos in alike(self.blocks, self.variant, shared, own) if self.together else alone:
            steps = self._steps(silos[0], own)
            ready = [
                (
                    state.blocks[silo],
                    self._minibatches(silo, state, shared, own, exchanged),
                    state.carried[silo] if self.variant.carried is not None else None,
                )
                for silo in silos
            ]
            moved = [steps(*ready[0])] if len(silos) == 1 else in_one_batch(steps, ready)
            stepped.update(zip(silos, moved, strict=True))
        return stepped

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
            loop=partial(algorithm.scan, unroll=self.unroll),
        )
        if self.in_turn:
            return lambda block, minibatches, carried: jax.lax.map(
                lambda client: steps(block, *client), (minibatches, carried)
            )
        return jax.vmap(steps, in_axes=(None, 0, 0))

    def _counts_rows(self, silo: int) -> bool:
        """Whether a local step takes less time if it knows how many rows a client has."""
        return bool(self.prefixes[silo]) or isinstance(self.blocks[silo], SkipsPadding)

    def _minibatches(
        self, silo: int, state: State, shared: ClientsData, own: ClientsCall, exchanged: Exchanged
    ) -> Minibatch | tuple[Minibatch, Array]:
        """A silo's clients' rows; if that counts, also how many each has in each minibatch ``[K, E]``."""
        placement, block = own.placements[silo], state.blocks[silo]
        # The sample ids of every client's rows, [K, E, P].
        rows = jax.vmap(lambda positions: jnp.take_along_axis(own.ids, positions, axis=1))(placement.positions)
        objective = TracedObjective.of(self.objective, own.l2)
        by_host, dtype = self.devices.hosts is not None, own.held[0].dtype
        minibatches = Minibatch(
            self._rows(silo, shared, own) if by_host else shared.features[silo][rows].astype(dtype),
            self._known(silo, block, shared, own, rows, exchanged, objective),
            self._weights(silo, own, rows.shape[2]) * (1 if shared.weights is None else shared.weights[rows]),
        )
        places = self._places(placement.positions, own.ids.shape[1])
        sending = Sending(own.seed, own.rounds, silo, own.ids.shape, places=places)
        alone = self._alone(silo, block, shared, own)
        counted = presence.counted_rows(self.variant.dropout, minibatches, sending, alone)
        return (counted, placement.counts) if self._counts_rows(silo) else counted

    def _averaged(self, silo: int, stepped: Tree, state: State, own: ClientsCall) -> tuple[Tree, Any]:
        """The average of the clients' blocks: line 5.

        In fixed point it is in steps, and comes with the largest magnitude of each client's block.
        """
        exchange, shares = self.variant.summed_blocks, own.shares[silo]
        if exchange is not None:
            return add_parts(exchange, stepped, shares), self.devices.gather(magnitudes_of(stepped), axis=0)
        return algorithm.average(self._received(silo, stepped, state.blocks[silo], own), shares), ()

    def _received(self, silo: int, blocks: Tree, before: Tree, own: ClientsCall) -> Tree:
        """The clients' blocks as their hub gets them."""
        exchange = self.variant.block_exchange
        if sends_whole(exchange):
            return blocks

        def transmit(block: Tree, client: Array) -> Tree:
            sending = Sending(own.seed, own.rounds, silo, stream=BLOCKS + client)
            return exchange.decode(exchange.encode(block, before, sending), before, sending)

        return jax.vmap(transmit)(blocks, own.numbers[silo])

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
        hub = knowledge.scored_at(silo)
        seen = exchanged.own(hub), exchanged.others(hub)
        received = projected(knowledge.received(silo, *seen, labels[own.ids], objective))
        if not is_identity(self.variant.client_exchange):
            real = jnp.arange(rows.shape[2]) < own.placements[silo].counts[..., None]
            received = jnp.where(real[..., None], received, 0)
            received = self._per_client(silo, received, TO_CLIENTS, exchanged.phis[silo].shape, own)
        start = projected(self._phi(silo, block, shared, own)) if knowledge.needs_phi_start(silo) else None
        return Known(labels[rows], received, start)

    def _weights(self, silo: int, own: ClientsCall, num_rows: int) -> Array:
        """``[K, E, P]``: what each client's rows weigh."""
        placement = own.placements[silo]
        left = Remaining(self.num_samples, own.ids.shape[1])
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
        step = partial(algorithm.local_step, apply=model.phi, descent=descent)
        if not self._counts_rows(silo):
            return step
        if not prefixes:
            return lambda moving, minibatch: step(moving, minibatch[0], apply=phi_of_first(model, minibatch[1]))

        def shortened(moving: Moving, minibatch: tuple[Minibatch, Array]) -> Moving:
            whole, count = minibatch
            sizes = [*prefixes, len(whole.weights)]
            branches = [lambda m, mb, n=n: step(m, jax.tree.map(lambda part: part[:n], mb)) for n in sizes]
            chosen = jnp.searchsorted(jnp.array(prefixes), count)
            moved: Moving = jax.lax.switch(chosen, branches, moving, whole)
            return moved

        return shortened


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
