"""Silos that are missing from a prediction, and what takes the place of their phi."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class StandIns(NamedTuple):
    """What takes the place of a silo's phi where it is missing; of a run without ``subsets.json``, nothing does."""

    values: Mapping[str, Sequence[float]] = {}
    """``[C]`` by silo: with silo dropout the model's intercept or zeros, otherwise the mean over the training rows."""
    silo_dropout: float = 0.0
    """With which ``train.silo_dropout`` the run was trained."""

    def of(self, silo: str, dtype: Any) -> NDArray[Any]:
        """``[C]``, or a single zero."""
        return np.asarray(self.values.get(silo, [0.0]), dtype)

    def warning(self, silo: str) -> str:
        """What there is to say of predictions without a silo; nothing if the model was trained for them."""
        if self.silo_dropout:
            return ""
        how = "its phi is replaced by its mean over the training rows" if silo in self.values else "it adds nothing"
        return f"without silo '{silo}', {how}: the model was trained without train.silo_dropout, and may be far off"


def check_without(silos: Sequence[str], without: Collection[str], given: Collection[str]) -> None:
    """Refuse to go without a silo that there is not, that has a table, or without all of them."""
    for silo in without:
        if silo not in silos:
            raise ValueError(f"without '{silo}': there is no such silo; there are {', '.join(silos)}")
        if silo in given:
            raise ValueError(f"without '{silo}': there is a table of it; leave one of the two out")
    if set(without) >= set(silos):
        raise ValueError(f"without {', '.join(without)}: that is every silo, and nothing is left to predict from")
