"""Predictions of samples by id, from phi that is known ahead: what every silo adds is looked up and summed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.words import counted
from tdcd.prediction.model import Model
from tdcd.prediction.predictions import predicted
from tdcd.prediction.scores import SiloScores
from tdcd.runtime.certificates.check import when

SHOWN = 5
"""How many ids a refusal names."""


class Refusal(Exception):  # noqa: N818
    """Why ids have no predictions; ``is_unknown`` if they are the reason, and not a silo that does not speak."""

    def __init__(self, why: str, *, is_unknown: bool) -> None:
        super().__init__(why)
        self.is_unknown = is_unknown


class NoPredictionsError(Exception):
    """Why there is nothing to answer from."""


@dataclass
class KnownPhi:
    """Phi of a silo's samples."""

    scores: SiloScores
    expires: int | None = None
    """From when on it must not be used, in seconds since the epoch; None for a silo's own rows."""
    refusal: str = ""
    """Why it must not be used whatever the time, such as a revoked certificate: it may be revoked while in use."""
    renewal: str = "it has to publish it again"
    """What to do once it has expired."""


class PartsScorer:
    """Scores ids. The numbers are those of ``tdcd predict`` for the same rows, bit for bit."""

    def __init__(
        self,
        model: Model,
        known: Mapping[str, KnownPhi],
        *,
        without: Collection[str] = (),
        allow_missing: bool = False,
        summands: Sequence[str] | None = None,
        source: str = "",
    ) -> None:
        """Put the silos' ids together.

        Args:
            known: by silo; of all but those that the service does ``without``.
            allow_missing: score ids that a silo lacks, and all once its phi must not be used, without its part.
            summands: what is known in place of the model's silos, where the sum of several is all that is known.
            source: where phi comes from, for people.
        """
        self.source, self._summands = source, summands
        self.model, self.known, self.allow_missing, self._without = model, known, allow_missing, without
        self._numbers: dict[str, int] = {}
        for part in known.values():
            for sample in part.scores.ids:
                self._numbers.setdefault(sample, len(self._numbers))
        self._rows: dict[str, NDArray[np.int64]] = {}
        """By silo: the row of each id; -1 where it lacks the id."""
        for silo, part in known.items():
            rows = self._rows[silo] = np.full(len(self._numbers) + 1, -1, np.int64)
            rows[[self._numbers[sample] for sample in part.scores.ids]] = np.arange(len(part.scores.ids))

    def __len__(self) -> int:
        """How many ids are known."""
        return len(self._numbers)

    def unused(self, now: float) -> dict[str, str]:
        """By silo whose phi must not be used: why."""
        reasons = {silo: part.refusal for silo, part in self.known.items() if part.refusal}
        for silo, part in self.known.items():
            if silo not in reasons and part.expires is not None and now >= part.expires:
                reasons[silo] = f"the phi of silo '{silo}' expired at {when(part.expires)}: {part.renewal}"
        return reasons

    def answer(self, ids: Sequence[str], now: float) -> dict[str, Any]:
        """Predictions of these ids, in their order: see :class:`tdcd.serving.service.PredictionAnswer`."""
        unused = self.unused(now)
        if unused and not self.allow_missing:
            raise Refusal(next(iter(unused.values())), is_unknown=False)
        # The last place of every silo's rows says that it lacks the id.
        nowhere = len(self._numbers)
        numbers = np.array([self._numbers.get(sample, nowhere) for sample in ids], np.int64)
        self._refuse(ids, numbers == nowhere, "no silo has")
        head, width = self.model.head, self.model.phi_width
        total = np.zeros((len(ids), width), self.model.dtype)
        added: dict[str, Any] = {}
        missing: dict[str, list[str]] = {}
        for silo in self._summands or self.model.silos:
            if silo in self._without or silo in unused:
                rows = np.full(len(ids), -1, np.int64)
            else:
                rows = self._rows[silo][numbers]
            phi, lacking = self._phi(silo, rows), rows < 0
            if silo not in self._without and not self.allow_missing:
                self._refuse(ids, lacking, f"silo '{silo}' lacks")
            total += phi
            added[silo] = _plain(phi)
            if lacking.any():
                missing[silo] = [ids[place] for place in np.flatnonzero(lacking).tolist()]
        scores = np.asarray(head.scores(total))
        figures = predicted(scores, self.model.label_encoding, self.model.loss, self.model.temperature)
        return {"predictions": figures, "scores": _plain(scores), "added": added, "missing": missing}

    def _phi(self, silo: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """``[n, W]``: a silo's phi, and what takes its place where it lacks a sample."""
        stand_in = np.broadcast_to(self.model.stand_ins.of(silo, self.model.dtype), (len(rows), self.model.phi_width))
        if silo not in self.known or (rows < 0).all():
            return stand_in
        phi: NDArray[Any] = self.known[silo].scores.phi[rows]
        return np.where((rows < 0)[:, None], stand_in, phi)

    def _refuse(self, ids: Sequence[str], marks: NDArray[np.bool_], why: str) -> None:
        if not marks.any():
            return
        places = np.flatnonzero(marks).tolist()
        shown = ", ".join(repr(ids[place]) for place in places[:SHOWN]) + (", ..." if len(places) > SHOWN else "")
        counts = f"{counted(len(places), 'id')} of {len(ids)}"
        raise Refusal(f"{why} {counts}: {shown}", is_unknown=True)


def _plain(figures: NDArray[Any]) -> list[Any]:
    """Rows as lists, or as numbers where each is one."""
    return (figures[:, 0] if figures.shape[1] == 1 else figures).tolist()  # type: ignore[no-any-return]
