"""The devices of a simulation: a line of them, over which each silo's clients are spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from tdcd.core.objective import Tree
from tdcd.core.words import counted
from tdcd.federation.hosts import HostRows, Hosts, row_bytes

AXIS = "clients"
"""The mesh's only axis, along which clients are spread."""

SAMPLES_AT_ONCE = 1 << 20
"""Figures of samples are exchanged for so many at a time."""


@dataclass(frozen=True)
class Devices:
    """The devices of a simulation: JAX's default device, or a line of devices in this process and others.

    Every process of the line makes the same calls with the same arguments.
    """

    mesh: Mesh | None = None

    @classmethod
    def first(cls, count: int | None = None) -> "Devices":
        """The first ``count`` devices of each process that takes part; all of them by default.

        >>> Devices.first(1).count
        1
        """
        here = jax.local_device_count()
        if count is not None and not 1 <= count <= here:
            has = f"this process has {here} ({jax.default_backend()})"
            raise ValueError(f"{count} devices were asked for, but {has}: choose 1 to {here}")
        if (count or here) == 1 and jax.process_count() == 1:
            return cls()
        every = [[d for d in jax.devices() if d.process_index == p][:count] for p in range(jax.process_count())]
        return cls(Mesh(np.array([device for line in every for device in line]), (AXIS,)))

    @property
    def hosts(self) -> Hosts | None:
        """The processes of the line, if there are several: each has the rows of its own clients only."""
        if self.mesh is None or jax.process_count() == 1:
            return None
        return Hosts(
            tuple(device.process_index for device in self.mesh.devices.flat), jax.process_index(), _exchange, _deliver
        )

    @property
    def tables(self) -> PartitionSpec:
        """How features that stay on the devices are spread: on several hosts, each device has its clients' rows."""
        return WHOLE if self.hosts is None else spec(0)

    @property
    def count(self) -> int:
        """How many devices there are in all."""
        return 1 if self.mesh is None else self.mesh.size

    def even(self, clients: int) -> int:
        """The smallest number of at least ``clients`` that the devices share evenly."""
        return -(-clients // self.count) * self.count

    def hold(self, array: NDArray[Any], axis: int | None = None) -> Array:
        """:meth:`put` an array that stays; on a CPU JAX uses aligned memory where it lies."""
        held: Array = jax.device_put(array) if self.mesh is None else self.put(array, axis)
        return held

    def put(self, array: NDArray[Any], axis: int | None = None) -> Any:
        """The array on every device, or spread over them along ``axis``, as an argument of a compiled function."""
        return self.make(array.shape, lambda index: array[index], axis)

    def make(self, shape: tuple[int, ...], part: Callable[[Any], NDArray[Any]], axis: int | None = None) -> Any:
        """The array of ``part(index)`` for every ``index`` that this process needs; see :meth:`put`."""
        if self.mesh is None:
            # The call itself brings it to the device, in a fraction of the time that doing so in advance takes.
            return part(())
        return jax.make_array_from_callback(shape, NamedSharding(self.mesh, spec(axis)), part)

    def everywhere(self, tree: Tree) -> Tree:
        """Arrays of this process on every device; all processes must have the same."""
        return tree if self.mesh is None else jax.tree.map(lambda leaf: self.put(np.asarray(leaf)), tree)

    def here(self, tree: Tree) -> Tree:
        """Arrays that are the same on every device, on this process's first one only."""
        return tree if self.mesh is None else jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)

    def spread(self, function: Callable[..., Any], axes: Any) -> Callable[..., Any]:
        """Run ``function`` on every device, on its part of each argument; what it returns is the same on all.

        Args:
            axes: for each argument, the :func:`spec` of its arrays, as a tree that may stop short of the leaves.
        """
        if self.mesh is None:
            return function
        return jax.shard_map(function, mesh=self.mesh, in_specs=axes, out_specs=WHOLE, check_vma=False)

    def sum(self, partial: Any) -> Any:
        """Inside :meth:`spread`: the sum over the devices of each array of a tree."""
        return partial if self.mesh is None else jax.lax.psum(partial, AXIS)  # type: ignore[no-untyped-call]

    def gather(self, part: Array, axis: int) -> Array:
        """Inside :meth:`spread`: the devices' parts one after the other along ``axis``."""
        return part if self.mesh is None else jax.lax.all_gather(part, AXIS, axis=axis, tiled=True)


def spec(axis: int | None) -> PartitionSpec:
    """Spread along ``axis``, or the same on every device."""
    axes = () if axis is None else (*[None] * axis, AXIS)
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


WHOLE = spec(None)


def agreed(number: int) -> int:
    """Process 0's number, for a choice that must be the same in all processes."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _exchange(message: bytes) -> list[bytes]:
    """Every process's message; see :class:`tdcd.federation.hosts.Hosts`."""
    sizes = [int(size) for size in multihost_utils.process_allgather(np.int32(len(message)))]
    # Room in few sizes, since a program is compiled for each.
    step = 1 << max(8, max(sizes).bit_length() - 4)
    room = np.zeros(-(-max(sizes) // step) * step, np.uint8)
    room[: len(message)] = np.frombuffer(message, np.uint8)
    gathered = np.asarray(multihost_utils.process_allgather(room))
    return [padded[:size].tobytes() for padded, size in zip(gathered, sizes, strict=True)]


def _deliver(messages: Sequence[bytes]) -> list[bytes]:
    """Every process's message to this one; see :class:`tdcd.federation.hosts.Hosts`."""
    own = np.array([len(message) for message in messages], np.int32)
    sizes = multihost_utils.process_allgather(own)
    count, here, most = len(messages), jax.process_index(), int(sizes.max())
    if not most:
        return [b""] * count
    step = 1 << max(8, most.bit_length() - 4)
    room = np.zeros((1, count, -(-most // step) * step), np.uint8)
    for place, message in zip(room[0], messages, strict=True):
        place[: len(message)] = np.frombuffer(message, np.uint8)
    first = [next(d for d in jax.devices() if d.process_index == process) for process in range(count)]
    mesh = Mesh(np.array(first), (AXIS,))
    shape = (count, *room.shape[1:])
    sent = jax.make_array_from_callback(shape, NamedSharding(mesh, spec(0)), lambda index: room)
    received = np.asarray(_dealt(mesh)(sent).addressable_data(0))[0]
    return [padded[:size].tobytes() for padded, size in zip(received, sizes[:, here], strict=True)]


@cache
def _dealt(mesh: Mesh) -> Callable[[Array], Array]:
    """``[P, P, n]``, spread over the processes, with the first two axes exchanged."""
    deal = partial(jax.lax.all_to_all, axis_name=AXIS, split_axis=1, concat_axis=1, tiled=True)
    return jax.jit(jax.shard_map(deal, mesh=mesh, in_specs=spec(0), out_specs=spec(0), check_vma=False))


def of_first(tree: Tree, hosts: Hosts) -> Tree:
    """Process 0's arrays; all processes have arrays of the same shapes."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    message = hosts.exchange(b"".join(array.tobytes() for array in arrays) if hosts.here == 0 else b"")[0]
    parts, start = [], 0
    for array in arrays:
        parts.append(np.frombuffer(message, array.dtype, array.size, start).reshape(array.shape).copy())
        start += array.nbytes
    return jax.tree.unflatten(structure, parts)


def whole(table: HostRows, figures: NDArray[Any], hosts: Hosts) -> NDArray[Any]:
    """``[M, ...]``: figures of all samples, from those ``[h, ...]`` of the rows that each process has."""
    joined = np.zeros((len(table), *figures.shape[1:]), figures.dtype)
    for start in range(0, len(table), SAMPLES_AT_ONCE):
        first, last = table.held.before(start), table.held.before(start + SAMPLES_AT_ONCE)
        numbers = table.held.numbers(first, last)
        for message in hosts.exchange(numbers.tobytes() + figures[first:last].tobytes()):
            count = len(message) // (numbers.itemsize + row_bytes(figures))
            own = np.frombuffer(message, numbers.dtype, count)
            joined[own] = np.frombuffer(message, figures.dtype, offset=own.nbytes).reshape(count, *figures.shape[1:])
    return joined


def join(coordinator: str, process: int, processes: int) -> None:
    """Make this process one of ``processes`` that run the same simulation together.

    Args:
        coordinator: ``HOST:PORT`` where process 0 listens and the others find it.
    """
    if not 0 <= process < processes:
        raise ValueError(
            f"process = {process}: with {counted(processes, 'process', 'processes')}, choose 0 to {processes - 1}"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    jax.distributed.initialize(coordinator, processes, process)
