"""The numbers of Algorithm 1 that a user chooses."""

from dataclasses import dataclass
from typing import Literal, get_args

from tdcd.core.choices import Gradient
from tdcd.core.schedule import Draws, Minibatches, num_exchanged
from tdcd.core.words import counted

Dtype = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train: Q, B, eta, and which variant.

    Attributes:
        local_steps: Q, gradient steps a client takes between two communications.
        batch_size: B, samples in a global minibatch; each client works on those that it holds.
        step_size: eta.
        minibatches: ``"fresh"``, Q different ones per round; ``"reused"``, one for all Q steps (FedBCD, and the
            journal version of the paper); ``"full"``, every sample at every step.
        gradient: ``"unbiased"``, M / (n_k B) times the sum over the client's rows; ``"mean"``, their mean, as in
            the authors' code.
        seed: of the minibatches and of the blocks' start.
        dtype: of all arithmetic.
    """

    local_steps: int = 10
    batch_size: int = 128
    step_size: float = 0.05
    minibatches: Minibatches = "fresh"
    gradient: Gradient = "unbiased"
    seed: int = 0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        """Refuse values that no run could use."""
        for name, kind in (("minibatches", Minibatches), ("gradient", Gradient), ("dtype", Dtype)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, not '{getattr(self, name)}'")
        if self.local_steps < 1:
            raise ValueError(f"local_steps must be at least 1, not {self.local_steps}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if not 0 < self.step_size < float("inf"):
            raise ValueError(f"step_size must be a positive number, not {self.step_size}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, not {self.seed}")

    def effective_batch_size(self, num_samples: int) -> int:
        """B, which is all M samples where every minibatch is full; refuses a B that is larger than M."""
        if self.minibatches == "full":
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
    )
