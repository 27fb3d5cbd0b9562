"""What all engines share: the problem, a call's arguments, and the compiled loop over rounds."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.blocks.linear import is_linear
from tdcd.core.objective import Objective, Tree
from tdcd.core.round import Round
from tdcd.core.schedule import batch_ids
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.federation.silos import Federation, Silo
from tdcd.federation.weights import scaled
from tdcd.simulation.devices import WHOLE, Devices

BYTES_PER_CALL = 24 << 20
"""About the most bytes that one call sends to the device; a call of few rounds takes the same room."""
ROUNDS_PER_CALL = 64
HEAVY = 1 << 18
"""A local step is heavy if the rows of a minibatch have more numbers than this."""


class Run(NamedTuple):
    """One run of a batch: runs differ in seed, step size and l2, and in which client holds which rows."""

    federation: Federation
    objective: Objective
    settings: Settings


class State(NamedTuple):
    """The state of a federation between two rounds: all of it is at its hubs.

    Of several runs every array has a first axis for them.
    """

    blocks: list[Tree]
    """Each hub's block."""
    updates: list[Any]
    """The state of each hub's update."""
    past: list[Any]
    """Each hub's blocks of earlier rounds, the latest first, if the timing needs them; ``()`` otherwise."""
    pending: list[Any]
    """Per silo that does not step in every round: its next block and update state; ``()`` of the others."""
    largest: Any = ()
    """``[2, N]``, in fixed point only: the largest magnitudes that each silo's phi, and its clients' blocks, had."""
    carried: Any = ()
    """Per silo, the memories of its clients, ``[K, ...]``, if their update carries one: its hub keeps them."""


class Problem(NamedTuple):
    """What an engine works on: S runs of the same data, and how to carry them out."""

    runs: tuple[Run, ...]
    blocks: tuple[Block, ...]
    variant: Variant
    round: Round
    batch_size: int
    phi_width: int
    tables: list[Any]
    """Each silo's features on the host: an array, or :class:`tdcd.federation.hosts.HostRows` in one of several."""
    labels: Any
    """``[M]``: an array, or :class:`tdcd.federation.hosts.HostLabels` in one of several processes."""
    on_device: list[Any] | None
    """The same features there, if they stay there: an array, or on several hosts a
    :class:`tdcd.simulation.host_tables.DeviceTable`."""
    devices: Devices
    most_rounds: int = ROUNDS_PER_CALL
    """No call needs more rounds than these."""
    weights: NDArray[Any] | None = None
    """``[M]``: what each sample weighs, 1 on average; all alike if None."""

    @property
    def federation(self) -> Federation:
        """The first run's: all have the same samples and columns."""
        return self.runs[0].federation

    @property
    def settings(self) -> Settings:
        """The first run's: all have the same, except for seed and step size."""
        return self.runs[0].settings

    @property
    def batches(self) -> int:
        """E, the minibatches of a round."""
        return self.settings.num_exchanged

    @property
    def is_linear(self) -> bool:
        """Whether all blocks are linear."""
        return all(is_linear(block) for block in self.blocks)

    @property
    def is_plain(self) -> bool:
        """Whether it is Algorithm 1 on linear blocks, with samples that all count alike."""
        is_additive = self.runs[0].objective.combine.is_additive
        is_plain = self.is_linear and self.variant.is_plain and self.weights is None and is_additive
        return is_plain and self.federation.is_complete

    def rounds_per_call(self, bytes_per_round: int) -> int:
        """How many rounds go into one call if each sends this many bytes per run."""
        return int(np.clip(BYTES_PER_CALL // (len(self.runs) * bytes_per_round), 1, self.most_rounds))

    def over_runs(self, per_run: Sequence[Any] | NDArray[Any]) -> Any:
        """One array per run as an argument of a compiled program: the only one, or all on a first axis."""
        return per_run[0] if len(per_run) == 1 else np.stack([*per_run])

    def draw(self, rounds: Sequence[int]) -> NDArray[np.int32]:
        """``[S, R, E, B]``: the minibatches of every run, drawn on the host."""
        settings = self.settings
        drawn = {
            seed: batch_ids(
                seed,
                rounds,
                num_samples=self.federation.num_samples,
                batch_size=self.batch_size,
                local_steps=settings.local_steps,
                minibatches=settings.minibatches,
                draws=settings.draws,
            )
            for seed in {run.settings.seed for run in self.runs}
        }
        if len(self.runs) == 1:
            return drawn[settings.seed][None]
        return np.stack([drawn[run.settings.seed] for run in self.runs])

    def held(self, silo: Silo) -> NDArray[Any]:
        """``[K]``: n_k, the rows that each client of a silo holds."""
        return silo.rows_held.astype(self.settings.dtype)

    def shares(self, silo: Silo) -> NDArray[Any]:
        """``[K]``: n_k / M, the clients' weights in the hub's average."""
        return silo.shares.astype(self.settings.dtype)

    def numbers(self) -> tuple[Any, Any]:
        """The step size and the l2 of every run as arguments of a compiled program; of one run, l2 is compiled in."""
        dtype = self.settings.dtype
        step_size = self.over_runs([np.asarray(run.settings.step_size, dtype) for run in self.runs])
        if len(self.runs) == 1:
            return step_size, None
        return step_size, self.over_runs([np.asarray(run.objective.l2, dtype) for run in self.runs])


def weights_of(federation: Federation, dtype: str) -> NDArray[Any] | None:
    """What each training sample weighs, 1 on average; None if all weigh the same."""
    weights = federation.weights
    return None if weights is None else scaled(weights, weights).astype(dtype)


class Call(NamedTuple):
    """Some rounds, ready for the device."""

    rounds: int
    arguments: Any
    """``shared``, ``own`` and ``num_rounds`` of :func:`run_rounds`."""
    sent: Callable[[State], None] = lambda state: None
    """To be called with the state after it; see :meth:`tdcd.simulation.staging.StagingBuffers.begin`."""


class Engine(Protocol):
    """Runs rounds."""

    name: str
    rounds_per_call: int
    """The most rounds that one compiled call does."""
    program: "Program"

    def __init__(self, problem: Problem) -> None:
        """Lay out what stays."""
        ...

    @classmethod
    def supports(cls, problem: Problem) -> str | None:
        """Why this engine cannot run a problem; None if it can."""
        ...

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Whether it is the fastest there is for a problem that it supports."""
        ...

    def prepare(self, wanted: range) -> Call:
        """The call for the first of the ``wanted`` rounds; any thread may do this, one call after the other."""
        ...


class Program(Protocol):
    """What is fixed when rounds are compiled."""

    def __hash__(self) -> int:
        """Equal programs are compiled once."""
        ...

    @property
    def runs(self) -> int:
        """S."""
        ...

    @property
    def devices(self) -> Devices:
        """The devices that it runs on."""
        ...

    def axes(self) -> tuple[Any, Any]:
        """How ``shared`` and ``own`` are spread over several devices."""
        ...

    def lay_out(self, shared: Any, own: Any) -> Any:
        """What :meth:`one_round` takes for ``own``, worked out for all rounds at once."""
        ...

    def one_round(self, index: Array, state: State, *, shared: Any, own: Any) -> State:
        """One communication round of Algorithm 1, round ``index`` of the call."""
        ...


def run_rounds(state: State, shared: Any, own: Any, num_rounds: Array, *, rounds: int, program: Program) -> State:
    """The state after rounds 0 .. ``num_rounds`` - 1 of a call with room for ``rounds``; see :func:`compiled`.

    Args:
        shared: arrays that all runs share.
        own: arrays that differ between runs.
    """
    one_round = partial(program.one_round, shared=shared, own=program.lay_out(shared, own))
    if rounds == 1:
        # The host waits for a loop of any number of rounds before it can start the next call.
        return one_round(jnp.zeros((), jnp.int32), state)
    advanced: State = jax.lax.fori_loop(0, num_rounds, one_round, state)
    return advanced


@lru_cache(maxsize=128)
def compiled(program: Program, rounds: int) -> Callable[..., State]:
    """:func:`run_rounds` of a program, compiled: on its devices; of several runs, with a first axis for them."""
    run = partial(run_rounds, rounds=rounds, program=program)
    if program.runs > 1:
        return jax.jit(jax.vmap(run, in_axes=(0, None, 0, None)))
    return jax.jit(program.devices.spread(run, (WHOLE, *program.axes(), WHOLE)))


class TracedObjective(Objective):
    """An objective whose l2 is an argument of the compiled program, and so cannot be checked."""

    def __init__(self, objective: Objective, l2: Any) -> None:
        """Take an objective and a traced l2."""
        super().__init__(objective.loss, l2, objective.label_epsilon, objective.combine)

    def __post_init__(self) -> None:
        """Check nothing."""

    @classmethod
    def of(cls, objective: Objective, l2: Any) -> Objective:
        """The objective with a traced l2, or as it is if there is none."""
        return objective if l2 is None else cls(objective, l2)


def padded(part: NDArray[Any], capacity: int) -> NDArray[Any]:
    """``[S, R, ...]`` with room for ``capacity`` rounds, so that a shorter call runs the same program."""
    if part.shape[1] == capacity:
        return part
    room = np.zeros((len(part), capacity, *part.shape[2:]), part.dtype)
    room[:, : part.shape[1]] = part
    return room
