"""Lanes: clients of a silo whose rows are computed side by side.

A linear block of many clients is one matrix. Its product with a lane's rows gives every row's score under every
client of the lane, of which the row's own client's is kept. That does more arithmetic than a product a client,
but it needs less padding, and in a single lane none: the number of clients in a lane is chosen to weigh the two.
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.placement import Padding, Placer

ROW_COST, ROW_COST_ON_CPU = 256, 32
"""What moving a row costs, in products of it with one client's block."""


class Lanes:
    """A silo's clients dealt out to lanes of G; the last places of a lane may be empty.

    Attributes:
        shape: ``(L, G)``.
        lane: ``[K]``, the lane of each client.
        member: ``[K]``, the client's place there.
    """

    def __init__(self, owner: NDArray[np.int32], batch_size: int, devices: int = 1) -> None:
        """Choose the number of lanes, a multiple of ``devices``.

        Args:
            owner: ``[M]``, which client holds each sample.
            batch_size: B.
        """
        held = np.bincount(owner)
        sizes = sorted({1 << power for power in range(len(held).bit_length())} | {len(held)})
        self.shape = min((_even(len(held), size, devices) for size in sizes), key=lambda s: _cost(held, batch_size, s))
        self.lane, self.member = _deal(held, self.shape)
        # A member number that nobody has marks padding.
        kind = np.uint8 if self.shape[1] < 1 << 8 else np.uint16 if self.shape[1] < 1 << 16 else np.int32
        self._member_of = self.member.astype(kind)[owner]
        self.placer = Placer(self.lane.astype(np.int32)[owner], batch_size, self.shape[0])

    def members(self, rows: NDArray[np.integer[Any]], real: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Of each of ``rows``, which client of its lane holds it; G where it is not ``real``, but padding."""
        members = self._member_of.take(rows)
        if real is not None:
            members[~real] = self.shape[1]
        return members

    def arrange(self, per_client: NDArray[Any], empty: float) -> NDArray[Any]:
        """``[L, G]`` numbers from ``[K]``, with ``empty`` at the places where there is no client."""
        arranged = np.full(self.shape, empty, per_client.dtype)
        arranged[self.lane, self.member] = per_client
        return arranged


def _even(num_clients: int, size: int, devices: int) -> tuple[int, int]:
    """Lanes of about ``size`` clients, as many on each device."""
    lanes = -(-num_clients // size)
    lanes = -(-lanes // devices) * devices
    return lanes, -(-num_clients // lanes)


def _deal(held: NDArray[Any], shape: tuple[int, int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Clients by the rows they hold, the largest first, to and fro over the lanes, which evens out their rows."""
    lanes, size = shape
    order = np.argsort(-held, kind="stable")
    seats = np.arange(lanes * size).reshape(size, lanes)
    seats[1::2] = seats[1::2, ::-1]
    seats = seats.ravel()[: len(held)]
    lane, member = np.empty_like(order), np.empty_like(order)
    lane[order], member[order] = seats % lanes, seats // lanes
    return lane, member


def _cost(held: NDArray[Any], batch_size: int, shape: tuple[int, int]) -> int:
    lane, _ = _deal(held, shape)
    fullest = int(np.bincount(lane, held).max())
    row_cost = ROW_COST_ON_CPU if jax.default_backend() == "cpu" else ROW_COST
    return shape[0] * Padding(fullest, int(held.sum()), batch_size).usual * (row_cost + shape[1])
