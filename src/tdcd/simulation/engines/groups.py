"""Client groups: clients of a silo whose rows are computed side by side.

A linear block of many clients is one matrix. Its product with a group's rows gives every row's score under every
client of the group; that of the row's own client is kept. That does more arithmetic than one product per client,
but it needs less padding, and in a single group none: the number of clients in a group is chosen to weigh the two.
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.federation.placement import Padding, Placer

ROW_COST, ROW_COST_ON_CPU = 256, 32
"""What moving a row costs, in products of it with one client's block."""


class ClientGroups:
    """A silo's clients in groups of G slots; the last slots of a group may be empty.

    Attributes:
        shape: ``(L, G)``, groups and slots.
        group: ``[K]``, the group of each client.
        slot: ``[K]``, the client's slot there.
    """

    def __init__(
        self,
        owner: NDArray[np.int32],
        batch_size: int,
        devices: int = 1,
        shape: tuple[int, int] | None = None,
        stay: bool = False,
    ) -> None:
        """Choose the number of groups, a multiple of ``devices``.

        Args:
            owner: ``[M]``, which client holds each sample.
            batch_size: B.
            shape: these groups instead of the best ones.
            stay: every client stays on its device, where its rows are, as :class:`tdcd.federation.hosts.Hosts` says.
        """
        held = np.bincount(owner)
        sizes = sorted({1 << power for power in range(len(held).bit_length())} | {len(held)})
        shapes = [shape] if shape is not None else [_even(len(held), size, devices) for size in sizes]
        apart = devices if stay else 1
        self.shape = min(shapes, key=lambda s: _cost(held, batch_size, s, apart))
        self.group, self.slot = _deal(held, self.shape, apart)
        # A slot number that no client has marks padding.
        kind = np.uint8 if self.shape[1] < 1 << 8 else np.uint16 if self.shape[1] < 1 << 16 else np.int32
        self._slot_of = self.slot.astype(kind)[owner]
        self.placer = Placer(self.group.astype(np.int32)[owner], batch_size, self.shape[0])

    def slots(self, rows: NDArray[np.integer[Any]], real: NDArray[np.bool_] | None) -> NDArray[Any]:
        """The slot of each of ``rows`` in its group of the client that holds it; G where it is padding."""
        slots = self._slot_of.take(rows)
        if real is not None:
            slots[~real] = self.shape[1]
        return slots

    def arrange(self, per_client: NDArray[Any], empty: float) -> NDArray[Any]:
        """``[L, G]`` numbers from ``[K]``, with ``empty`` in the slots where there is no client."""
        arranged = np.full(self.shape, empty, per_client.dtype)
        arranged[self.group, self.slot] = per_client
        return arranged


def _even(num_clients: int, size: int, devices: int) -> tuple[int, int]:
    """Groups of about ``size`` clients, equally many on each device."""
    groups = -(-num_clients // size)
    groups = -(-groups // devices) * devices
    return groups, -(-num_clients // groups)


def _deal(held: NDArray[Any], shape: tuple[int, int], apart: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Clients by the rows they hold, the largest first, back and forth over the groups, which evens out their rows.

    Args:
        apart: this many equal runs of clients, one after the other, each over as many groups of its own.
    """
    groups, size = shape[0] // apart, shape[1]
    if apart > 1:
        each = -(-len(held) // apart)
        dealt = [_deal(held[start : start + each], (groups, size), 1) for start in range(0, len(held), each)]
        group = np.concatenate([own + number * groups for number, (own, _) in enumerate(dealt)])
        return group, np.concatenate([own for _, own in dealt])
    order = np.argsort(-held, kind="stable")
    seats = np.arange(groups * size).reshape(size, groups)
    seats[1::2] = seats[1::2, ::-1]
    seats = seats.ravel()[: len(held)]
    group, slot = np.empty_like(order), np.empty_like(order)
    group[order], slot[order] = seats % groups, seats // groups
    return group, slot


def _cost(held: NDArray[Any], batch_size: int, shape: tuple[int, int], apart: int) -> int:
    group, _ = _deal(held, shape, apart)
    fullest = int(np.bincount(group, held).max())
    row_cost = ROW_COST_ON_CPU if jax.default_backend() == "cpu" else ROW_COST
    return shape[0] * Padding(fullest, int(held.sum()), batch_size).usual * (row_cost + shape[1])
