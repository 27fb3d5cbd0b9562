"""The numbers of Algorithm 1 that a user chooses."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

from tdcd.core.choices import Gradient
from tdcd.core.schedule import Drawing, Draws, Minibatches, num_exchanged
from tdcd.core.words import counted

Dtype = Literal["float32", "float64"]
AUTO: Any = "auto"
"""The value of a setting that is left to :mod:`tdcd.core.family.automatic` until the run is planned."""
STEP_SIZE: Any = AUTO
"""The default."""
LOCAL_STEPS, BATCH_SIZE = 10, 128
"""The defaults where the step size is a number."""
ADAM_STEP = 3e-3
"""Of Adam at the hubs: what a round moves every parameter by, at most."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train: Q, B, eta, and which variant.

    Attributes:
        local_steps: Q, gradient steps a client takes between two communications; by default 10, or what suits
            ``step_size = "auto"``.
        batch_size: B, samples in a global minibatch; each client works on those that it holds; by default 128, or what
            suits ``step_size = "auto"``.
        step_size: eta; or ``"auto"``, which chooses the steps by the blocks and the silos' curvature, steers them while
            training runs, and ends the run when it has converged.
        minibatches: ``"fresh"``, Q different ones per round; ``"reused"``, one for all Q steps (FedBCD, and the
            journal version of the paper); ``"full"``, every sample at every step.
        draws: ``"stream"``, the first distinct samples of a stream; ``"permutation"``, the first ones of a keyed
            permutation, in memory of the minibatch alone; ``"auto"``, the permutation from 2^24 samples on.
        gradient: ``"unbiased"``, M / (n_k B) times the sum over the client's rows; ``"mean"``, their mean, as in
            the authors' code.
        seed: of the minibatches and of the blocks' start.
        dtype: of all arithmetic.
    """

    local_steps: int = AUTO
    batch_size: int = AUTO
    step_size: float = STEP_SIZE
    minibatches: Minibatches = "fresh"
    draws: Drawing = "auto"
    gradient: Gradient = "unbiased"
    seed: int = 0
    dtype: Dtype = "float32"
    limits_batch: bool = False
    """Whether ``batch_size`` is the most that a minibatch has, and not what it has; see :meth:`at`."""

    def __post_init__(self) -> None:
        """Refuse values that no run could use."""
        for name, kind in (("minibatches", Minibatches), ("draws", Drawing), ("gradient", Gradient), ("dtype", Dtype)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, not '{getattr(self, name)}'")
        if not self.is_automatic:
            for name, default in (("local_steps", LOCAL_STEPS), ("batch_size", BATCH_SIZE)):
                if getattr(self, name) == AUTO:
                    object.__setattr__(self, name, default)
        for name in ("local_steps", "batch_size"):
            if getattr(self, name) != AUTO and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.is_automatic and not 0 < self.step_size < float("inf"):
            raise ValueError(f"step_size must be a positive number or 'auto', not {self.step_size}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, not {self.seed}")

    @property
    def is_automatic(self) -> bool:
        """Whether the steps are yet to be chosen."""
        return isinstance(self.step_size, str) and self.step_size == AUTO

    def at(self, num_samples: int) -> Self:
        """The settings for so many samples: a minibatch that would have them all has them all, without a draw."""
        if not self.limits_batch:
            return self
        if self.batch_size < num_samples:
            return replace(self, limits_batch=False)
        return replace(self, limits_batch=False, batch_size=num_samples, minibatches="full")

    def effective_batch_size(self, num_samples: int) -> int:
        """B, which is all M samples where every minibatch is full; refuses a B that is larger than M."""
        if self.minibatches == "full" or self.batch_size == AUTO:
            return num_samples
        if self.batch_size > num_samples:
            raise ValueError(
                f"batch_size = {self.batch_size}: there are only {counted(num_samples, 'training sample')}"
            )
        return self.batch_size

    @property
    def num_exchanged(self) -> int:
        """E, the minibatches that a round exchanges phi for."""
        return num_exchanged(self.minibatches, self.local_steps)


def draws_of(settings: Settings, num_samples: int) -> Draws:
    """The minibatches that these settings draw from ``num_samples`` samples."""
    return Draws(
        settings.seed,
        num_samples=num_samples,
        batch_size=settings.batch_size,
        local_steps=settings.local_steps,
        minibatches=settings.minibatches,
        draws=settings.draws,
    )
