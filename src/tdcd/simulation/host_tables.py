"""The features of several hosts on their devices: each device has the rows of its own clients."""

from typing import Any, NamedTuple

import numpy as np
from jax import Array
from numpy.typing import NDArray

from tdcd.blocks.base import Block
from tdcd.core.objective import Tree
from tdcd.federation.hosts import HostRows, Hosts, held_of, row_bytes
from tdcd.federation.placement import Held, Placement
from tdcd.federation.silos import Silo
from tdcd.simulation import evaluation
from tdcd.simulation.devices import Devices, whole
from tdcd.simulation.staging import StagingBuffers

FEWEST_ROWS, ROWS_AT_ONCE, BYTES_AT_ONCE = 1 << 12, 1 << 16, 1 << 22
"""Phi is computed for so many rows, or bytes, at a time: little compared with those that stay."""


class DeviceTable(NamedTuple):
    """A silo's features on the devices of several hosts."""

    features: Array
    """``[devices * most, ...]``: on each device the rows of its clients, in order; zeros where it has fewer."""
    held: tuple[Held, ...]
    """The samples of each device of this process."""

    @classmethod
    def put(cls, silo: Silo, table: HostRows, devices: Devices, hosts: Hosts) -> "DeviceTable":
        """Take to each device of this process what is its own."""
        device_of = hosts.device_of(silo.num_clients)
        most = int(np.bincount(device_of, silo.rows_held).max())
        held = {d: held_of(silo.rows, device_of == d) for d, process in enumerate(hosts.line) if process == hosts.here}

        def part(index: Any) -> NDArray[Any]:
            own = held[(index[0].start or 0) // most]
            room = np.zeros((most, *table.shape[1:]), table.dtype)
            room[: len(own)] = table[own.numbers()]
            return room

        return cls(devices.make((devices.count * most, *table.shape[1:]), part, axis=0), tuple(held.values()))

    def places(self, numbers: NDArray[Any]) -> NDArray[np.int32]:
        """Where each sample is on its device; anything for one on a device of another process."""
        places: NDArray[np.int32] = np.max([own.places(numbers) for own in self.held], axis=0, initial=0).astype(
            np.int32
        )
        return places


def phi_of_all(block: Tree, table: HostRows, model: Block, hosts: Hosts) -> NDArray[Any]:
    """A silo's phi ``[M, C]`` of all samples: each host computes that of its own rows and sends it to the others."""
    return whole(table, phi_of_rows(block, table, model, table.where(table.held.numbers())), hosts)


def phi_of_rows(block: Tree, table: HostRows, model: Block, places: NDArray[Any]) -> NDArray[Any]:
    """``[n, C]``: phi of the rows at these places, some at a time."""
    # Few sizes, since a program is compiled for each.
    wanted = max(FEWEST_ROWS, 1 << (max(1, len(places)) - 1).bit_length())
    size = min(wanted, ROWS_AT_ONCE, max(1, BYTES_AT_ONCE // row_bytes(table)), len(table))
    chunks = []
    for start in range(0, max(1, len(places)), size):
        own = places[start : start + size]
        # One size for all chunks, so that one program does; a host without rows learns the shape from any.
        rows = table.rows[np.resize(own if len(own) else [0], size)]
        phi = evaluation.scores([block], [rows], 0, rows=size, blocks=(model,), is_batch=False)
        chunks.append(np.asarray(phi)[: len(own)])
    return np.concatenate(chunks)


class HostLayout:
    """Every client's rows of some minibatches, on the device of the client."""

    def __init__(self, devices: Devices, buffers: StagingBuffers, rounds: int) -> None:
        """Lay out calls with room for so many rounds."""
        self._devices, self._buffers, self._rounds = devices, buffers, rounds

    def rows(
        self, silo: int, placement: Placement, ids: NDArray[np.int32], table: HostRows, held: DeviceTable | None
    ) -> Any:
        """``[R, K, E, P]``: places in the client's device's table; or ``[R, K, E, P, ...]``, features, if none is held.

        Args:
            placement: of the minibatches ``ids`` ``[R, E, B]``.
            held: what the devices hold of the silo.
        """
        positions, rounds = placement.positions, self._rounds
        shape = (rounds, *positions.shape[1:])

        def numbers(index: Any) -> NDArray[np.int32]:
            return np.asarray(np.take_along_axis(ids[:, None], positions[:, index[1]], axis=3))

        def gathered(index: Any) -> NDArray[Any]:
            rows: NDArray[Any] = self._buffers.take((silo, str(index[1])), table, numbers(index)[None], rounds)[0]
            return rows

        def placed(index: Any) -> NDArray[Any]:
            assert held is not None
            own = numbers(index)
            spare = np.zeros((rounds - len(own), *own.shape[1:]), np.int32)
            return np.concatenate([held.places(own), spare])

        if held is None:
            return self._devices.make((*shape, *table.shape[1:]), gathered, axis=1)
        return self._devices.make(shape, placed, axis=1)
