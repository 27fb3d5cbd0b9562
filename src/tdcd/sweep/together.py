"""What runs that are batched have in common, and the numbers that differ between them."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tdcd.objective import Objective
from tdcd.run import Plan
from tdcd.schedule import batch_ids, num_exchanged

BYTES_A_CALL = 16 << 20
"""About as many bytes of rows and positions are shipped to the device for one call."""
ROUNDS_A_CALL = 64


class Together:
    """S runs of the same data, clients and settings but for seed, step size and l2.

    Attributes:
        labels: ``[M]``, in the type that the compiled program takes.
        step_sizes: ``[S]``.
        l2: ``[S]``.
        objective: with an l2 of 0 in place of each run's.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Take one plan a run."""
        self.plans, self.federation, self.settings = plans, plans[0].federation, plans[0].settings
        loss, self.dtype = plans[0].objective.loss, np.dtype(self.settings.dtype)
        self.labels = self.federation.labels.astype(np.int32 if loss == "softmax" else self.dtype)
        self.step_sizes = jnp.asarray([plan.settings.step_size for plan in plans], self.dtype)
        self.l2 = jnp.asarray([plan.objective.l2 for plan in plans], self.dtype)
        self.objective = Objective(loss)
        self.batch_size = batch_size(plans[0])
        self.exchanged = exchanged(plans[0])

    def held(self, silo: int) -> NDArray[Any]:
        """``[S, K]``: n_k, the rows that each client holds."""
        sizes = [[len(rows) for rows in plan.federation.silos[silo].rows] for plan in self.plans]
        return np.array(sizes, self.dtype)

    def rounds_a_call(self, every: int, bytes_a_row: int) -> int:
        """How many rounds go into one call.

        Args:
            every: rounds between two evaluations.
            bytes_a_row: what is shipped for one sample of one run.
        """
        bytes_a_round = len(self.plans) * self.exchanged * self.batch_size * bytes_a_row
        return int(np.clip(BYTES_A_CALL // bytes_a_round, 1, min(every, ROUNDS_A_CALL)))

    def ids(self, rounds: Sequence[int]) -> NDArray[np.int32]:
        """``[S, R, E, B]``: the minibatches of every run."""
        settings = self.settings
        drawn = {
            seed: batch_ids(
                seed,
                rounds,
                num_samples=self.federation.num_samples,
                batch_size=self.batch_size,
                local_steps=settings.local_steps,
                minibatches=settings.minibatches,
            )
            for seed in {plan.settings.seed for plan in self.plans}
        }
        return np.stack([drawn[plan.settings.seed] for plan in self.plans])


class TracedObjective(Objective):
    """An objective whose l2 is an argument of the compiled program, and so cannot be checked."""

    def __init__(self, loss: Any, l2: Any) -> None:
        """Take a loss and a traced l2."""
        super().__init__(loss, l2)

    def __post_init__(self) -> None:
        """Check nothing."""


def with_room(part: NDArray[Any], rounds: int) -> Any:
    """``[S, R, ...]`` with room for ``rounds``, so that a shorter call runs the same program."""
    spare = rounds - part.shape[1]
    return np.pad(part, [(0, 0), (0, spare)] + [(0, 0)] * (part.ndim - 2)) if spare else part


def batch_size(plan: Plan) -> int:
    """B, which is all samples where every minibatch is full."""
    return plan.federation.num_samples if plan.settings.minibatches == "full" else plan.settings.batch_size


def exchanged(plan: Plan) -> int:
    """E, the minibatches of a round."""
    return num_exchanged(plan.settings.minibatches, plan.settings.local_steps)


def num_outputs(plan: Plan) -> int:
    """C."""
    return plan.federation.num_classes if plan.objective.loss == "softmax" else 1
