"""What a client computes: the functions of :mod:`tdcd.core.algorithm` on its own rows, in NumPy or compiled."""

from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import activations
from tdcd.blocks.absent import Marks, ones_left
from tdcd.blocks.activations import phi_in_portions
from tdcd.blocks.base import Block
from tdcd.blocks.linear import Linear, is_linear
from tdcd.core import algorithm, certificate
from tdcd.core.algorithm import Design
from tdcd.core.codecs.codec import TO_HUB, seed_words
from tdcd.core.knowledge import Known, SlopesAlone
from tdcd.core.lazy import Array, compiled
from tdcd.core.objective import Objective, Tree
from tdcd.core.presence import Remaining, row_weights
from tdcd.core.settings import Settings, draws_of
from tdcd.core.shared_rows import Index, is_sent_whole
from tdcd.core.variant import Variant
from tdcd.federation.placement import Padding
from tdcd.runtime.compute.encryption import SlopeSums
from tdcd.runtime.compute.links import Links, precision
from tdcd.runtime.compute.local_steps import ClientRows, LocalSteps, RowsLeft, flat, pad, places_in
from tdcd.runtime.messages.structure import Arrays

AT_ONCE, BYTES_AT_ONCE = 32, 1 << 20
"""The most rounds whose rows are laid out at once, and the most bytes of them: a round takes less time so."""


class ClientCompute:
    """One client's rows, and Algorithm 1's client lines over them.

    The rows stay in host memory; those of a round's minibatches go to the device.
    """

    def __init__(
        self,
        block: Block,
        objective: Objective,
        settings: Settings,
        features: NDArray[Any],
        labels: NDArray[Any],
        samples: NDArray[np.int64],
        num_samples: int,
        variant: Variant | None = None,
        silo: int = 0,
        client: int = 0,
        num_outputs: int = 1,
        weights: NDArray[Any] | None = None,
        silo_rows: int = 0,
        marks: Marks | None = None,
        lacking: NDArray[np.bool_] | None = None,
        index: Index | None = None,
        sends_rows: bool = False,
        gets_slopes: bool = False,
    ) -> None:
        """Take the training rows.

        Args:
            features: ``[n_k, ...]``, or ``[R, ...]`` with an ``index``.
            index: ``[n_k]``, which row of ``features`` each sample has, where rows belong to many samples.
            sends_rows: whether phi of all rows is sent, if they are fewer than the samples of a round.
            gets_slopes: whether it receives slopes that are weighed, and summed by rows where it sends all of them.
            weights: ``[n_k]``, what each row weighs; all the same by default.
            samples: ``[n_k]``, which of the M samples each row is.
            num_samples: M.
            silo_rows: M_j, the training samples that the silo has; M by default.
            marks: how the marks of a round follow from who lacks a row or is dropped, if there are stand-ins.
            lacking: ``[n_k, S]``, which of the silos that there are stand-ins for lack each row.
        """
        self._marks, self._lacking = marks, lacking
        self._ones = ones_left(block, silo_rows or num_samples, num_samples)
        self.silo_rows = silo_rows or num_samples
        """M_j, the training samples that the silo has."""
        self.settings, self.num_samples, self.num_rows = settings, num_samples, len(samples)
        self.batch_size = settings.effective_batch_size(num_samples)
        self._block = block
        self._variant, self._silo, self.client = variant or Variant(), silo, client
        width = objective.phi_width(num_outputs)
        is_scored_here = gets_slopes or self._variant.knowledge.scored_at(silo) == silo
        self.width_received = width if is_scored_here else objective.statistic_width(num_outputs)
        shape = (settings.num_exchanged, self.batch_size, width)
        self.links = Links(self._variant, settings, silo, shape)
        self._draws = draws_of(settings, num_samples)
        self._samples = samples
        self._row_of = np.full(num_samples, -1, np.int32)
        self._row_of[samples] = np.arange(len(samples), dtype=np.int32)
        self._padding = Padding(len(samples), num_samples, self.batch_size)
        self._features = np.asarray(features, settings.dtype)
        self._index, self.num_sent = index, len(features)
        drawn = settings.num_exchanged * self.batch_size
        self._sends_whole = sends_rows and is_sent_whole(self.num_sent, self.num_rows, num_samples, drawn)
        self._labels = np.asarray(labels, objective.label_dtype(settings.dtype))
        self._weights = None if weights is None else np.asarray(weights, settings.dtype)
        row_bytes = self._features[:1].nbytes * self._padding.usual
        per_round = max(1, settings.num_exchanged * row_bytes)
        self._at_once = max(1, min(AT_ONCE, BYTES_AT_ONCE // per_round))
        timing = self._variant.timing
        # Phi is of later rounds than the steps.
        spread = timing.depth + timing.period(silo)
        self._laid_out = lru_cache(maxsize=2 + spread // self._at_once)(self._lay_out)
        self._step_size = np.asarray(np.asarray(settings.step_size, settings.dtype) * timing.period(silo))
        self._held = np.asarray(len(samples), settings.dtype)
        self._seeded = (seed_words(settings.seed), client)
        self.gets_sums = gets_slopes and self._sends_whole
        """Whether it receives slopes of all its distinct rows, summed over the samples of a round."""
        self._needs_start = not gets_slopes and self._variant.knowledge.needs_phi_start(silo)
        self._local = LocalSteps(
            block,
            objective,
            replace(self._variant, knowledge=SlopesAlone()) if gets_slopes else self._variant,
            silo,
            settings.local_steps,
            settings.dtype,
        )

    def rows(self, round_index: int) -> ClientRows:
        """Which of the client's rows are in the round's minibatches, and where."""
        return self._laid_out(round_index // self._at_once)[round_index % self._at_once]

    def _lay_out(self, which: int) -> list[ClientRows]:
        """The rows of as many rounds as are laid out at once."""
        first = which * self._at_once
        ids = np.stack([self._draws(index) for index in range(first, first + self._at_once)])
        rows = self._row_of.take(ids)
        held = rows >= 0
        samples = np.flatnonzero(held)
        counts = held.sum(axis=2, dtype=np.int32)
        width = self._padding.enough_for(int(counts.max()))
        padded = np.zeros((*counts.shape, width), np.int32)
        places = places_in(counts.ravel(), width)
        padded.ravel()[places] = rows.take(samples)
        ends = counts.sum(axis=1).cumsum().tolist()
        of_rounds = [slice(*bounds) for bounds in pairwise([0, *ends])]
        # NumPy gathers faster than a compiled program does.
        own = padded if self._index is None else self._index.take(padded)
        features, labels = self._features.take(own, axis=0), self._labels.take(padded)
        nothing = [None] * len(counts)
        weights = nothing if self._weights is None else self._weights.take(padded)
        rules = self._rule(Remaining(self.silo_rows, self.batch_size), counts, width)
        places, samples = places % padded[0].size, samples % held[0].size
        parts = zip(of_rounds, features, labels, counts, weights, rules, strict=True)
        return [
            self._drop(
                self._mark(ClientRows(places[own], x, y, count, samples[own], weight, rule=rule), first + index, which),
                first + index,
            )
            for index, ((own, x, y, count, weight, rule), which) in enumerate(zip(parts, padded, strict=True))
        ]

    def _mark(self, rows: ClientRows, round_index: int, which: NDArray[np.int32]) -> ClientRows:
        """The rows with the marks of the round; ``which`` ``[E, P]`` of the client's they are."""
        if self._marks is None:
            return rows
        assert self._lacking is not None
        each = [self.links.kept(round_index, rows.samples, silo) for silo in self._marks.silos]
        kept = [silo for silo in each if silo is not None]
        if not kept:
            return rows
        gone = self._lacking[which].reshape(which.size, -1)
        gone[rows.places] |= ~np.stack(kept, axis=-1)
        marked = self._marks.of_round(rows.features, gone.reshape(*which.shape, -1))
        return rows._replace(features=marked)

    def _drop(self, rows: ClientRows, round_index: int) -> ClientRows:
        """The rows, and which of them the silo is dropped from; with the intercept, it keeps the ones of those."""
        kept = self.links.kept(round_index, rows.samples)
        if kept is None:
            return rows
        if self._ones is None or not self._variant.dropout.leaves_intercept(self._silo):
            weights = pad(rows, kept.astype(self.settings.dtype)[:, None])[..., 0]
            return rows._replace(kept=kept, weights=weights if rows.weights is None else weights * rows.weights)
        dropped, features = rows.places[~kept], flat(rows.features)
        ones = features[dropped, self._ones]
        features[dropped] = 0
        features[dropped, self._ones] = ones
        return rows

    def _rule(self, left: Remaining, counts: NDArray[np.int32], width: int) -> NDArray[Any]:
        """What the losses of its rows are multiplied by; of a width that rows are padded to."""
        held: Any = self._held
        return np.asarray(row_weights(left, counts, width, gradient=self.settings.gradient, held=held))  # type: ignore[arg-type]

    def only(self, rows: ClientRows, kept: NDArray[np.bool_]) -> ClientRows:
        """The same without some of the rows: ``kept`` is ``[n]``."""
        (size, width), held = rows.labels.shape, rows.places[kept]
        counts = np.bincount(held // width, minlength=size).astype(np.int32)
        places = places_in(counts, width)
        source = np.zeros((size, width), np.int64)
        source.ravel()[places] = held
        features, labels = flat(rows.features)[source], rows.labels.ravel()[source]
        left = None if rows.kept is None else rows.kept[kept]
        weights = None if rows.weights is None else rows.weights.ravel()[source]
        return ClientRows(places, features, labels, counts, rows.samples[kept], weights, left)

    def _whole(self, rows: ClientRows) -> ClientRows:
        """All distinct rows in place of those of the minibatches, one or several times each."""
        assert rows.rule is not None
        places, sizes = np.arange(self.num_sent), (len(rows.counts), self.num_sent)
        rule = np.broadcast_to(rows.rule[:, :1], sizes)
        nothing = np.zeros(sizes, self._labels.dtype)
        counts = np.full(len(sizes[:1]), self.num_sent, np.int32)
        return ClientRows(places, self._features[None], nothing, counts, rows.samples, rule=rule)

    def phi(self, block: Tree, features: NDArray[Any] | None = None) -> NDArray[Any]:
        """``[rows, C]``: what the client's columns add to the scores of all its distinct training rows, or of other
        rows, however these are laid out.
        """
        rows = self._features if features is None else np.asarray(features, self.settings.dtype)
        rows = rows.reshape(-1, *self._features.shape[1:])
        if isinstance(self._block, Linear):
            # One product: NumPy is done before a compiled program has begun.
            return np.asarray(self._block.phi(block, rows))  # type: ignore[arg-type]
        with precision(self.settings.dtype):
            phi: NDArray[Any] = np.asarray(_phi(block, rows[None], model=self._block))[0]
            return phi

    def phi_sent(self, block: Tree, round_index: int) -> Arrays:
        """Phi of its rows of a round's minibatches, as the hub is sent it; or of all its distinct rows."""
        if self._sends_whole:
            return {"phi": self.phi(block)}
        rows = self.rows(round_index)
        phi = self.phi(block, rows.features).take(rows.places, axis=0)
        sent = phi if rows.kept is None else np.where(rows.kept[:, None], phi, 0)
        return self.links.encode_rows(round_index, TO_HUB, rows.samples, sent)

    def witness_scores(self, blocks: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[R, k C]``: the scores of all distinct training rows by each of these linear blocks ``[k, D, C]``, in
        float64.
        """
        return certificate.scores_of(self._features, blocks, self.design)

    def gradient(self, residual: NDArray[Any], block: Tree = None) -> Tree:
        """The gradient of all training rows' losses, from their residuals ``[R, C]``; by a linear block if none is
        given.
        """
        if block is None:
            return {"weight": certificate.pull_back(self._features, residual, self.design)}
        with precision(self.settings.dtype):
            return activations.pull_back(self._block, block, self._features, residual)

    @property
    def design(self) -> Design:
        """From features to what the weights of the linear block are multiplied by."""
        assert is_linear(self._block)
        return self._block.design

    def spread_features(self) -> NDArray[Any]:
        """The features of all training rows as they are in training: with marks of silos that are dropped."""
        features = self._features if self._index is None else self._features[self._index]
        if self._marks is None or self._lacking is None:
            return features
        kept = self._variant.dropout.drawn_once(self._marks.silos, self._samples, self.num_samples)
        return np.asarray(self._marks.of_round(features, self._lacking | ~kept))

    @cached_property
    def largest_feature(self) -> float:
        """The largest magnitude of a feature; not finite if one is not."""
        return float(np.max(np.abs(self._features), initial=0))

    def encrypted_sums(self, sums: SlopeSums, run: str, round_index: int, rows: ClientRows, sealed: Arrays) -> Arrays:
        """The sums of its features times encrypted slopes, over its rows of the minibatch."""
        features = flat(rows.features).take(rows.places, axis=0).reshape(len(rows.places), -1)
        whole = sums.form.whole(features.astype(np.float64)).astype(np.int64)
        return sums.of(run, round_index, self.batch_size, whole, rows.samples, sealed)

    def steps(
        self,
        block: Tree,
        rows: ClientRows,
        received: NDArray[Any],
        round_index: int = 0,
        remaining: RowsLeft | None = None,
        weights: NDArray[Any] | None = None,
        memory: Tree = None,
    ) -> Any:
        """The client's block after Q local steps, on those of its rows that take part; with a ``memory`` of its update,
        the block and what the memory has become.

        Args:
            received: ``[n, C]`` or ``[n, W]``, what its hub passed on of the exchange.
            weights: ``[n]``, what its hub says that each row weighs, if the client does not know it itself.
        """
        if remaining is not None:
            # What is summed by rows has nothing of absent samples.
            rows, received = remaining.rows, received if self.gets_sums else received[remaining.mask]
            weights = None if weights is None else weights[remaining.mask]
            sizes = np.maximum(remaining.left.sizes, 1).astype(self.settings.dtype)
            left = remaining.left._replace(sizes=sizes)
            rows = rows._replace(rule=self._rule(left, rows.counts, rows.labels.shape[1]))
        if weights is not None:
            padded = pad(rows, weights[:, None])[..., 0]
            rows = rows._replace(weights=padded if rows.weights is None else padded * rows.weights)
        if self.gets_sums:
            rows = self._whole(rows)
        start = None
        if self._needs_start:
            start = pad(rows, self.phi(block, rows.features).take(rows.places, axis=0))
        known = Known(rows.labels, pad(rows, received), start)
        iteration = round_index * self.settings.local_steps
        return self._local.take(block, rows, known, self._step_size, iteration, memory, client=self._seeded)


@compiled("model")
def _phi(block: Tree, features: Array, *, model: Block) -> Array:
    return algorithm.phi(block, features, apply=phi_in_portions(model))
