"""The sample index: which samples a silo has and which client holds each, from what the clients say."""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.config import Config
from tdcd.core.choices import Loss
from tdcd.core.losses import Task, fitting
from tdcd.runtime.protocol.cards import Card
from tdcd.runtime.protocol.messages import Enrol, Target
from tdcd.runtime.protocol.taking import take
from tdcd.runtime.protocol.wire import RejectedMessage
from tdcd.tables.labels import Labels, choose_held_out, encode, in_words, standardized
from tdcd.tables.rows import id_order

MOST_CLASSES = 100_000
"""More classes than that are a mistake, or an attempt to exhaust a hub's memory."""


class IncompatibleParties(Exception):  # noqa: N818
    """Parties that cannot train together; the text names both and what differs."""


WAY_ON = (
    "The other parties wait: restore the run folder from a newer backup and give the same command again; or begin anew "
    "everywhere, with a new folder for every hub"
)
"""What can still be done for a hub that cannot go on from its run folder."""


class Lost(IncompatibleParties):
    """A hub has lost what it needs to go on. It leaves without a word, so that the others hold the round and wait."""


@dataclass(frozen=True, eq=False)
class Enrolment:
    """What one client says of itself, checked."""

    ids: list[str]
    labels: NDArray[np.float64] | list[str]
    held_out: NDArray[np.bool_] | None
    target: Target | None
    is_table: bool
    rows: str
    """A digest of all its rows, features too: a client that comes back must have the same."""
    card: Card | None = None
    """Its key for masks."""

    @classmethod
    def read(cls, message: Enrol) -> "Enrolment":
        """Check that labels and masks are as many as the ids."""
        ids, labels, names = message.ids, message.labels, message.label_names
        if len(set(ids)) != len(ids):
            raise RejectedMessage("'ids' has an id twice")
        if (labels is None) == (names is None):
            raise RejectedMessage("it must have either 'labels' or 'label_names'")
        if names is not None and len(names) != len(ids):
            raise RejectedMessage("'label_names' must be one text per id")
        numbers = names if labels is None else take(labels, "labels", np.float64, [len(ids)])
        assert numbers is not None
        mask = message.held_out
        held_out = None if mask is None else take(mask, "held_out", np.uint8, [len(ids)]).astype(np.bool_)
        return cls(ids, numbers, held_out, message.target, message.is_table, message.rows, message.card)


class Digests(NamedTuple):
    """Keyed digests by which silos compare what they must not show each other."""

    secret: str
    """Of nothing: the same where the secret is."""
    ids: str
    labels: str


@dataclass(frozen=True, eq=False)
class SampleIndex:
    """The silo's samples in the order that all silos share, and which client holds each."""

    ids: list[str]
    owner: NDArray[np.int32]
    """``[total]``: which client."""
    rows: list[NDArray[np.int64]]
    """Of each client: which sample each of its rows is."""
    held_out: NDArray[np.bool_]
    """``[total]``."""
    labels: NDArray[np.float64]
    """``[total]``, as training uses them."""
    task: Task
    classes: tuple[str, ...]
    """The names of the classes, where they have names."""
    label_mean: float
    label_scale: float
    labels_in_words: str
    """What the labels of tables were taken for."""
    test_originals: list[str | float]
    """``[m]``: the held-out samples' labels, as the tables have them."""

    @property
    def test_ids(self) -> list[str]:
        """``[m]``, of the held-out samples."""
        return [self.ids[place] for place in np.flatnonzero(self.held_out)]

    @property
    def num_samples(self) -> int:
        """M, the training samples."""
        return int(len(self.ids) - self.held_out.sum())

    @property
    def train_owner(self) -> NDArray[np.int32]:
        """``[M]``: which client holds each training sample."""
        return self.owner[~self.held_out]

    @property
    def train_labels(self) -> NDArray[np.float64]:
        """``[M]``."""
        return self.labels[~self.held_out]

    @property
    def test_labels(self) -> NDArray[np.float64]:
        """``[m]``, of the held-out samples."""
        return self.labels[self.held_out]

    def places(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each of a client's rows: which training sample it is, and which held-out one; -1 where it is not one."""
        samples, held_out = self.rows[client], self.held_out
        train, test = np.cumsum(~held_out) - 1, np.cumsum(held_out) - 1
        chosen = held_out[samples]
        return np.where(chosen, -1, train[samples]), np.where(chosen, test[samples], -1)

    def digests(self, secret: bytes) -> Digests:
        """What other silos compare with their own."""
        ids = hmac.new(secret, json.dumps(self.ids).encode(), hashlib.sha256).hexdigest()
        known = hmac.new(secret, b"secret", hashlib.sha256).hexdigest()
        content = json.dumps([self.task, self.classes]).encode() + self.labels.tobytes() + self.held_out.tobytes()
        return Digests(known, ids, hmac.new(secret, content, hashlib.sha256).hexdigest())

    def loss(self, config: Config) -> Loss:
        """The loss that the file asks for, or the one that fits the labels."""
        if self.task == "multiclass" and not 0 <= self.labels.min() <= self.labels.max() < MOST_CLASSES:
            raise IncompatibleParties(
                f"a label is class {self.labels.max():g}: there can be {MOST_CLASSES} classes at most"
            )
        chosen, fits = config.model.loss, fitting(self.task)
        if chosen is not None and chosen not in fits:
            raise IncompatibleParties(
                f"model.loss = {chosen!r} does not fit the labels ({self.task}): use {' or '.join(fits)}"
            )
        return chosen or fits[0]


def build_index(enrolments: Mapping[str, Enrolment], config: Config) -> SampleIndex:
    """Order the samples of a silo's clients, refuse an id that two of them hold, and settle what the labels mean."""
    names, found = list(enrolments), list(enrolments.values())
    for name, enrolment in enrolments.items():
        if enrolment.is_table != found[0].is_table or enrolment.target != found[0].target:
            raise IncompatibleParties(
                f"{names[0]} and {name} have different kinds of data: give all clients the same kind of file"
            )
    every = [one for enrolment in found for one in enrolment.ids]
    holder = np.repeat(np.arange(len(found), dtype=np.int32), [len(enrolment.ids) for enrolment in found])
    order = np.asarray(id_order(every), np.int64)
    ids = [every[index] for index in order]
    for before, after, left, right in zip(ids, ids[1:], order, order[1:], strict=False):
        if before == after:
            raise IncompatibleParties(f"id '{before}' is held by {names[holder[left]]} and by {names[holder[right]]}")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    bounds = np.cumsum([len(enrolment.ids) for enrolment in found])[:-1]
    labels = _labels(found, order, config)
    told = [enrolment.held_out for enrolment in found]
    if all(mask is not None for mask in told):
        held_out = np.concatenate([mask for mask in told if mask is not None])[order]
    else:
        held_out = _held_out(labels, config)
    if found[0].target is not None:
        numbers, mean, scale, words = labels.numbers, 0.0, found[0].target.label_scale, ""
    else:
        numbers, mean, scale = standardized(labels, ~held_out, config.data.standardize)
        words = in_words(labels, config.model.loss)
    meaning = (labels.task, labels.classes, mean, scale, words, labels.of(held_out))
    return SampleIndex(ids, holder[order], np.split(rank, bounds), held_out, numbers, *meaning)


def _held_out(labels: Labels, config: Config) -> NDArray[np.bool_]:
    chosen = config.evaluate
    try:
        return choose_held_out(labels, chosen.holdout, config.data.seed, stratify=chosen.stratify)
    except ValueError as error:
        raise IncompatibleParties(str(error)) from None


def _labels(found: Sequence[Enrolment], order: NDArray[np.int64], config: Config) -> Labels:
    """The labels in sample order."""
    if any(isinstance(enrolment.labels, list) for enrolment in found):
        values: Any = np.array([str(one) for enrolment in found for one in enrolment.labels])[order]
    else:
        values = np.concatenate([np.asarray(enrolment.labels) for enrolment in found])[order]
    target = found[0].target
    if target is not None:
        return Labels(target.task, values)
    try:
        return encode(values, config.model.loss)
    except ValueError as error:
        raise IncompatibleParties(f"the labels: {error}") from None
