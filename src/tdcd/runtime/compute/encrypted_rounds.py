"""A hub's part in rounds whose slopes are encrypted: see :mod:`tdcd.core.family.encrypted`."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.codecs.codec import Layout
from tdcd.core.codecs.encrypted import EncryptedSums, slope_beyond
from tdcd.runtime.compute import encryption
from tdcd.runtime.compute.encryption import SlopeKey
from tdcd.runtime.job import Job, UnfitLabels
from tdcd.runtime.messages.structure import Arrays


class EncryptedRounds:
    """What one hub encrypts, adds up, masks and decrypts."""

    def __init__(
        self, form: EncryptedSums, job: Job, silo: int, secret: bytes, run: str, batch_size: int, outputs: int
    ) -> None:
        """Take the hub's secret and the run, which nothing random is the same in as in another one."""
        encryption.require()
        self.form, self._name, self._silo = form, job.hubs[silo], silo
        self._secret, self._run, self._batch_size, self._outputs = secret, run, batch_size, outputs
        self._label_silo = job.round.scored_at(silo)
        self._parameters: Sequence[int] = ()

    def meet(self, parameters: Sequence[int]) -> None:
        """Take the number of parameters of every silo's block."""
        self._parameters = parameters

    def layout(self, flow: str, silo: int) -> Layout:
        """What a silo's parties send of a flow."""
        return self.form.layout_of(flow, silo, self._batch_size, self._outputs, self._parameters)

    @cached_property
    def _key(self) -> SlopeKey:
        return SlopeKey(self._secret, self._run)

    def public(self) -> Arrays:
        """What the hub with the labels sends once; nothing of another hub."""
        return self._key.public if self._silo == self._label_silo else {}

    def slopes(self, round_index: int, slopes: NDArray[Any], exact: NDArray[Any]) -> Arrays:
        """The slopes ``[1, B, C]`` of a round, encrypted; ``exact`` is what they are in fixed point of."""
        if not np.isfinite(slopes).all():
            raise UnfitLabels(slope_beyond(self._name, float(np.max(np.abs(exact)))))
        whole = self.form.whole(slopes.astype(np.float64)).astype(np.int64)
        return self._key.slopes(round_index, whole.reshape(-1, self._outputs))

    def masked(self, round_index: int, shares: Sequence[Arrays]) -> Arrays:
        """The sum of what clients answered, and the mask of this sum."""
        total = encryption.added(shares)
        return encryption.masked(total, self._mask(round_index, total))

    def _mask(self, round_index: int, total: Arrays) -> NDArray[np.int64]:
        # Of the polynomial that masks leave as it is: with another sum, it is another mask.
        content = total["whole"].tobytes()
        return encryption.masks(self._secret, self._run, round_index, total["sums"].shape, content)

    def decrypted(self, parts: Sequence[tuple[int, Arrays]]) -> Arrays:
        """The other silos' masked sums, in silo order, from what their hubs sent."""
        each = [
            self._key.decrypted(self.form, self._batch_size, self._parameters[silo] // self._outputs, arrays).ravel()
            for silo, arrays in parts
        ]
        return {"sums": np.concatenate(each)}

    def gradient(self, round_index: int, masked: Arrays, numbers: NDArray[np.int64], dtype: str) -> NDArray[Any]:
        """``[D, C]``: the gradient of the silo's block, from the masked sums that it sent and what was decrypted."""
        mask = self._mask(round_index, masked)
        size = self._parameters[self._silo]
        before = sum(own for silo, own in enumerate(self._parameters[: self._silo]) if silo != self._label_silo)
        own = numbers[before : before + size].reshape(-1, self._outputs)
        its = mask.reshape(self._outputs, -1)[:, : len(own)].T
        sums = encryption.unmasked(own, its)
        return np.asarray(self.form.gradient(sums.astype(np.float64), self._batch_size, dtype))
