"""Partial participation in a simulation: in every round a random part of each silo's clients answers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STREAM = 0x70617274
"""Separates this draw from all others of the same seed."""


@dataclass(frozen=True)
class RandomClients:
    """A fraction of each silo's clients, at least one, drawn again for every round from (seed, round, silo).

    A sample takes part in a round if the clients that hold it answer in every silo, since its score needs the phi of
    all of them. Rows then weigh M' / (n_k B') with the M' rows that the silo's clients who answer hold and the B'
    samples that are left of the minibatch, and the hub averages over those clients: what a real hub does for clients
    that are away.

    >>> RandomClients(0.5).answering(0, 3, 0, 8).sum()
    np.int64(4)
    """

    fraction: float

    def __post_init__(self) -> None:
        """Refuse what is not a fraction."""
        if not 0 < self.fraction <= 1:
            raise ValueError(f"the fraction of clients that answer must be above 0 and at most 1, not {self.fraction}")

    def answering(self, seed: int, round_index: int, silo: int, num_clients: int) -> NDArray[np.bool_]:
        """See :class:`tdcd.core.presence.Participation`."""
        generator = np.random.Philox(key=np.array([seed, STREAM], np.uint64), counter=[0, 0, silo, round_index])
        # NumPy promises only for raw draws that they stay the same from version to version.
        order = np.argsort(generator.random_raw(num_clients), kind="stable")
        answers = np.zeros(num_clients, bool)
        answers[order[: max(1, round(self.fraction * num_clients))]] = True
        return answers
