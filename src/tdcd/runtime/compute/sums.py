"""What hubs add up in fixed point, with masks on it that cancel in the sum."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.fixed_point import FixedPoint, beyond
from tdcd.runtime.compute.masks import Masks, Steps, What
from tdcd.runtime.protocol.sample_index import IncompatibleParties

_NAMES: dict[What, str] = {
    "phi": "phi",
    "train": "a score in an evaluation",
    "test": "a score in an evaluation",
    "prediction": "a score of the new rows",
}


class Sums:
    """One hub's part in sums, and the sums."""

    def __init__(self, fixed: FixedPoint, dtype: str, hub: str, masks: Masks | None = None) -> None:
        """Take the hub's masks; None where nothing is hidden, or where the hub's own part is not sent."""
        self._fixed, self._dtype, self._hub, self._masks = fixed, dtype, hub, masks

    def _mask(self, what: What, round_index: int, shape: tuple[int, ...]) -> Any:
        return np.uint32(0) if self._masks is None else self._masks.of(what, round_index, shape)

    def part(self, what: What, round_index: int, numbers: NDArray[Any]) -> Steps:
        """This hub's part, as it is sent; numbers beyond the range stop the run."""
        largest = float(np.max(np.abs(numbers), initial=0))
        if not largest <= self._fixed.largest:
            raise IncompatibleParties(beyond(f"{self._hub}: {_NAMES[what]}", largest, self._fixed.largest))
        steps: Steps = self._fixed.steps(numbers) + self._mask(what, round_index, numbers.shape)
        return steps

    def own(self, what: What, round_index: int, part: Steps) -> NDArray[Any]:
        """This hub's own numbers, from its part."""
        return self._numbers(part - self._mask(what, round_index, part.shape))

    def others(self, what: What, round_index: int, parts: Sequence[Steps]) -> NDArray[Any]:
        """The sum of the other hubs' numbers, from their parts: what is left of their masks is this hub's."""
        return self._numbers(add_steps(parts) + self._mask(what, round_index, parts[0].shape))

    def all(self, parts: Sequence[Steps]) -> NDArray[Any]:
        """The sum of all hubs' numbers, from all parts."""
        return self._numbers(add_steps(parts))

    def _numbers(self, steps: Steps) -> NDArray[Any]:
        return np.asarray(self._fixed.numbers(steps, self._dtype))


def add_steps(parts: Sequence[Steps]) -> Steps:
    """The sum modulo 2^32."""
    total: Steps = sum(parts[1:], start=parts[0])
    return total
