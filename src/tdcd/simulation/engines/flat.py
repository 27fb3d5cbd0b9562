"""The engine for linear blocks with one output on an accelerator that holds the data.

**The compiled round** is bound by memory, so every row is read twice per step and never copied: once for its scores
under the hub's block and its client's, in the order of the minibatch, and once for the gradients. For those each
client's rows are cut into segments.

**Minibatches** are drawn on the device, or ids are sent to it: those of :mod:`tdcd.core.schedule`, bit for bit. The
host needs longer to draw a large minibatch than an accelerator needs to step on it.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.core import algorithm
from tdcd.core.algorithm import Descent
from tdcd.core.choices import Gradient
from tdcd.core.knowledge import Known
from tdcd.core.objective import Objective
from tdcd.core.schedule import LARGE, draws_for, is_permuted, is_small
from tdcd.core.variant import Variant
from tdcd.simulation.devices import WHOLE, Devices
from tdcd.simulation.engines.base import HEAVY, Call, Problem, State
from tdcd.simulation.engines.grouped import GroupedEngine
from tdcd.simulation.staging import StagingBuffers

SEGMENT = 16
"""Rows in a segment. The last one of a client may be partly empty."""


class FlatSilo(NamedTuple):
    """What the compiled program needs of one silo."""

    features: Array
    """``[M, D]``."""
    shares: Array
    """``[K]``: n_k / M."""
    held: Array
    """``[K]``: n_k."""


class FlatData(NamedTuple):
    """The samples on the device, for all calls."""

    silos: list[FlatSilo]
    owners: Array
    """``[N, M]``: which client of each silo holds each sample."""
    labels: Array
    """``[M]``."""


class FlatCall(NamedTuple):
    """The minibatches of a call of R rounds."""

    ids: Array
    """``[R, E, B]``."""
    step_size: Array


class Segments(NamedTuple):
    """One silo's rows of a minibatch, client by client in H segments; enough for any minibatch."""

    counts: Array
    """``[K]``: how many rows each client has."""
    positions: Array
    """``[H, SEGMENT]``: where in the minibatch each row stands; 0 at empty places."""
    real: Array
    """``[H, SEGMENT]``: which places are not empty."""
    clients: Array
    """``[H]``: who holds the segment; K if it is left over."""


class FlatRounds(NamedTuple):
    """A call with its minibatches cut into segments."""

    own: FlatCall
    owners: Array
    """``[N, R, E, B]``: which client of each silo holds each sample of the minibatches."""
    segments: Segments
    """The segments of each silo, round and minibatch."""


@dataclass(frozen=True)
class FlatProgram:
    """What is fixed when rounds are compiled; see :class:`tdcd.simulation.engines.base.Program`."""

    objective: Objective
    variant: Variant
    gradient: Gradient
    steps: int
    num_samples: int
    devices: Devices
    runs: int = 1

    def axes(self) -> tuple[object, object]:
        """There is one device."""
        return WHOLE, WHOLE

    def lay_out(self, shared: FlatData, own: FlatCall) -> FlatRounds:
        """Cut all rounds at once: this takes a fraction of the time that it takes round by round."""
        owners = shared.owners[:, own.ids]
        most = max(len(silo.held) for silo in shared.silos)
        segments = jax.vmap(jax.vmap(jax.vmap(partial(cut, num_clients=most))))(owners)
        return FlatRounds(own, owners, segments)

    def one_round(self, index: Array, state: State, *, shared: FlatData, own: FlatRounds) -> State:
        """See :meth:`tdcd.simulation.engines.base.Program.one_round`."""
        starts = [block["weight"][:, 0] for block in state.blocks]
        ids, owners, segments = own.own.ids[index], own.owners[:, index], [part[:, index] for part in own.segments]
        losses = partial(self.variant.knowledge.losses, 0, objective=self.objective)
        descent = Descent(losses, self.objective.l2, self.variant.update, own.own.step_size)

        def step(number: Array, clients: list[Array]) -> list[Array]:
            which = number if len(ids) == self.steps else 0
            batch = ids[which]
            # XLA reads the rows where they are: as operands of these sums, they are not copied.
            rows = [silo.features[batch].astype(hub.dtype) for silo, hub in zip(shared.silos, starts, strict=True)]
            phis = [jnp.sum(x * hub, axis=1)[:, None] for x, hub in zip(rows, starts, strict=True)]
            stepped = []
            for number_of, (silo, block) in enumerate(zip(shared.silos, clients, strict=True)):
                phi = jnp.sum(rows[number_of] * block[owners[number_of, which]], axis=1)[:, None]
                known = Known(shared.labels[batch], algorithm.sum_others(phis, number_of))
                now = Segments(*(part[number_of, which] for part in segments))
                weighted_sum = partial(self._weighted_sum, batch=batch, silo=silo, segments=now)
                moved, _ = algorithm.linear_step((block, ()), phi, known, weighted_sum, descent=descent)
                stepped.append(moved)
            return stepped

        clients = [
            jnp.broadcast_to(h, (len(silo.held), *h.shape)) for h, silo in zip(starts, shared.silos, strict=True)
        ]
        clients = jax.lax.fori_loop(0, self.steps, step, clients)
        averages = [algorithm.average(block, silo.shares) for silo, block in zip(shared.silos, clients, strict=True)]
        return state._replace(blocks=[{"weight": weight[:, None]} for weight in averages])

    def _weighted_sum(self, dloss: Array, *, batch: Array, silo: FlatSilo, segments: Segments) -> Array:
        """``[K, D]``: the gradient of the data term, for every client: a segment's sum first, then a client's."""
        weight = algorithm.row_weight(
            segments.counts[: len(silo.held)],
            gradient=self.gradient,
            num_samples=self.num_samples,
            batch_size=len(batch),
            held=silo.held,
        )
        weighted = jnp.where(segments.real, dloss[:, 0][segments.positions], 0)
        rows = silo.features[batch[segments.positions]].astype(dloss.dtype)
        by_segment = jnp.sum(weighted[..., None] * rows, axis=1)
        own = segments.clients == jnp.arange(len(silo.held))[:, None]
        summed: Array = weight[:, None] * (own.astype(dloss.dtype) @ by_segment)
        return summed


def cut(owner: Array, num_clients: int) -> Segments:
    """The segments of a minibatch whose samples have these owners ``[B]``."""
    counts = jnp.sum(owner == jnp.arange(num_clients)[:, None], axis=1)
    segments = -(-counts // SEGMENT)
    last = jnp.cumsum(segments)
    number = jnp.arange((len(owner) + num_clients * (SEGMENT - 1)) // SEGMENT)
    client = jnp.sum(last <= number[:, None], axis=1)
    # Numbers of client K are out of range, and read as the last client's.
    place = (number - (last - segments)[client])[:, None] * SEGMENT + jnp.arange(SEGMENT)
    real = (place < counts[client][:, None]) & (client < num_clients)[:, None]
    in_order = jnp.argsort(owner, stable=True)[(jnp.cumsum(counts) - counts)[client][:, None] + place]
    return Segments(counts, jnp.where(real, in_order, 0), real, client)


PLACES_AT_ONCE = 1 << 26
"""About the most numbers that are in memory at a time to find out where each sample was drawn first."""
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def draw_ids(seed: int, first_round: int, *, rounds: int, count: int, size: int, num_samples: int) -> Array | None:
    """``[rounds, count, size]``: what :func:`tdcd.core.schedule.batch_ids` gives for rounds from ``first_round`` on.

    It takes minibatches of at most a quarter of the samples.

    Returns:
        None if a round's draws fell short, which hardly ever happens: the host draws such rounds from more.
    """
    with jax.enable_x64(True):
        ids, enough = _draw(
            np.uint64(seed), np.uint64(first_round), rounds=rounds, count=count, size=size, num_samples=num_samples
        )
        return ids if bool(enough) else None


@partial(jax.jit, static_argnames=("rounds", "count", "size", "num_samples"))
def _draw(
    seed: Array, first_round: Array, *, rounds: int, count: int, size: int, num_samples: int
) -> tuple[Array, Array]:
    """The ids, and whether there were enough draws for all of them."""

    def one_round(index: Array) -> tuple[Array, Array]:
        raw = philox(seed, index, count * draws_for(size))
        draws = (raw % np.uint64(num_samples)).astype(np.int32).reshape(count, -1)
        return jax.vmap(partial(first_distinct, size=size, num_samples=num_samples))(draws)

    at_once = max(1, PLACES_AT_ONCE // (count * num_samples))
    ids, distinct = jax.lax.map(one_round, first_round + jnp.arange(rounds, dtype=np.uint64), batch_size=at_once)
    return ids, (distinct >= size).all()


def philox(seed: Array, stream: Array, size: int) -> Array:
    """The first ``size`` raw draws of NumPy's ``Philox(key=[seed, stream])``: Philox 4x64 with ten rounds.

    Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (2011).
    """
    # NumPy counts up before it uses the counter.
    counter = jnp.arange(1, -(-size // 4) + 1, dtype=np.uint64)
    words, keys = [counter, *[jnp.zeros_like(counter)] * 3], [seed, stream]
    for _ in range(10):
        (high0, low0), (high1, low1) = _product(MULTIPLIERS[0], words[0]), _product(MULTIPLIERS[1], words[2])
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [key + np.uint64(step) for key, step in zip(keys, KEY_STEPS, strict=True)]
    return jnp.stack(words, axis=1).reshape(-1)[:size]


def _product(factor: int, number: Array) -> tuple[Array, Array]:
    """The upper and the lower 64 bits of a product of two numbers of 64 bits."""
    high, low = np.uint64(factor >> 32), np.uint64(factor) & LOW
    upper, lower = number >> HALF, number & LOW
    inner, outer = high * lower, low * upper
    carried = ((low * lower) >> HALF) + (inner & LOW) + (outer & LOW)
    return high * upper + (inner >> HALF) + (outer >> HALF) + (carried >> HALF), np.uint64(factor) * number


def first_distinct(draws: Array, *, size: int, num_samples: int) -> tuple[Array, Array]:
    """The first ``size`` distinct values of ``draws`` ``[W]``, and how many distinct ones there are."""
    order = jnp.arange(len(draws), dtype=np.int32)
    first = jnp.full(num_samples, len(draws), np.int32).at[draws].min(order)
    # A draw is new if it is where its value was drawn first.
    is_new = first[draws] == order
    rank = jnp.cumsum(is_new, dtype=np.int32)
    place = jnp.where(is_new, rank - 1, size)
    return jnp.zeros(size, np.int32).at[place].set(draws, mode="drop"), rank[-1]


PLACES_PER_CALL = 1 << 22
"""About how many places for rows the segments of a call have: more take the host longer to draw before the first call.
"""


class FlatEngine:
    """All clients' rows in the order of the minibatch: no padding, and nothing to lay out on the host."""

    name = "flat"

    def __init__(self, problem: Problem) -> None:
        """Put what stays on the device."""
        assert problem.on_device is not None
        settings, federation, hold = problem.settings, problem.federation, problem.devices.hold
        samples = federation.num_samples
        silos = []
        for silo, table in zip(federation.silos, problem.on_device, strict=True):
            silos.append(FlatSilo(table.reshape(samples, -1), hold(problem.shares(silo)), hold(problem.held(silo))))
        owners = hold(np.stack([silo.owner() for silo in federation.silos]))
        self._problem, self._shared = problem, FlatData(silos, owners, hold(problem.labels))
        self.program = FlatProgram(
            objective=problem.runs[0].objective,
            variant=problem.variant,
            gradient=settings.gradient,
            steps=settings.local_steps,
            num_samples=samples,
            devices=problem.devices,
        )
        self._buffers = StagingBuffers()
        # Small minibatches take the host less time than a program takes to start.
        self._draws_there = (
            settings.minibatches != "full"
            and problem.batch_size >= LARGE
            and is_small(problem.batch_size, samples)
            and not is_permuted(settings.draws, samples)
            and problem.batches * samples <= PLACES_AT_ONCE
        )
        places = problem.batch_size + SEGMENT * max(silo.num_clients for silo in federation.silos)
        self.rounds_per_call = max(1, PLACES_PER_CALL // (problem.batches * places))

    @classmethod
    def supports(cls, problem: Problem) -> str | None:
        """What the grouped engine does, for one output, one run and one device that holds the data."""
        if (reason := GroupedEngine.supports(problem)) is not None:
            return reason
        if problem.phi_width > 1:
            return f"it runs blocks of one output, and there are {problem.phi_width}"
        if len(problem.runs) > 1:
            return "it does not batch runs"
        if problem.on_device is None or problem.devices.count > 1:
            return "it needs all features on one device (data.keep = 'device')"
        return None

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """On an accelerator, where a minibatch has many numbers."""
        numbers = problem.batch_size * sum(math.prod(table.shape[1:]) for table in problem.tables)
        return jax.default_backend() != "cpu" and numbers > HEAVY

    def prepare(self, wanted: range) -> Call:
        """See :meth:`tdcd.simulation.engines.base.Engine.prepare`."""
        sent, rounds = self._buffers.begin(), len(wanted)
        # Both happen while the device works on the call before.
        ids = self._drawn_there(wanted.start) if self._draws_there else None
        if ids is None:
            ids = self._sent(self._problem.draw(wanted)[0])
        return Call(rounds, (self._shared, FlatCall(ids, self._problem.numbers()[0]), rounds), sent)

    def _drawn_there(self, first_round: int) -> Array | None:
        """The minibatches of as many rounds as a call has room for, drawn on the device."""
        problem = self._problem
        return draw_ids(
            problem.settings.seed,
            first_round,
            rounds=self.rounds_per_call,
            count=problem.batches,
            size=problem.batch_size,
            num_samples=problem.federation.num_samples,
        )

    def _sent(self, ids: NDArray[np.int32]) -> Array:
        """Minibatches from the host, with room for as many rounds."""
        room = self._buffers.room("ids", (self.rounds_per_call, *ids.shape[1:]), ids.dtype)
        room[: len(ids)] = ids
        return self._problem.devices.hold(room)
