"""The sample index: which samples a silo has and which client holds each, from what the clients say.

If one silo alone has labels, the index of any other has none, and all it knows of them is what that silo's hub sent.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Block
from tdcd.blocks.absent import Absent, Marks
from tdcd.config import Config
from tdcd.config.losses import chosen_loss, label_unit, named_loss
from tdcd.core.losses import Loss, Task, fitting, outputs_of
from tdcd.core.shared_rows import Index, distinct
from tdcd.data.table import holdout_mask
from tdcd.federation import hub_of
from tdcd.federation.missing_rows import Presence, trained_for
from tdcd.runtime.certificates.agreement import Card
from tdcd.runtime.job import IncompatibleParties, UnfitLabels
from tdcd.runtime.messages.messages import Enrol, LabelledSamples, LabelTarget, Outputs
from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.validation import take, take_mask
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.tables.label_privacy import check_all_classes, with_noise
from tdcd.tables.labels import Labels, canonical_label, choose_held_out, encode, in_words, standardized
from tdcd.tables.sample_ids import SampleIds
from tdcd.tables.sample_list import SampleList
from tdcd.tables.weighting import gathered_weights, sample_weights

MOST_CLASSES = 100_000
"""More classes than that are a mistake, or an attempt to exhaust a hub's memory."""
MOST_CHARACTERS = 200
"""The most characters of a label that is a text."""


@dataclass(frozen=True, eq=False)
class Enrolment:
    """What one client says of itself, checked."""

    ids: SampleIds
    labels: NDArray[np.float64] | list[str] | None
    """None in a silo without labels."""
    held_out: NDArray[np.bool_] | None
    target: LabelTarget | None
    is_table: bool
    rows: str
    """A digest of all its rows, features too: a client that comes back must have the same."""
    card: Card | None = None
    """Its key for masks."""
    weights: NDArray[np.float64] | None = None
    """How much each row counts, where the data says so."""
    shared: NDArray[np.int64] | None = None
    """A number of each sample's row, where one belongs to many samples."""

    @classmethod
    def read(cls, message: Enrol, *, has_labels: bool = True, is_keyed: bool = False) -> "Enrolment":
        """Check that labels, if the silo has them, and masks are as many as the ids."""
        ids, labels, names = message.ids, message.labels, message.label_names
        if len(set(ids)) != len(ids):
            raise RejectedMessage("'ids' has an id twice")
        if not has_labels and (labels is not None or names is not None or message.target is not None):
            raise RejectedMessage("it has labels, and federation.labels names another silo")
        if has_labels and (labels is None) == (names is None):
            raise RejectedMessage("it must have either 'labels' or 'label_names'")
        if names is not None and len(names) != len(ids):
            raise RejectedMessage("'label_names' must be one text per id")
        # An array of texts takes the room of its longest one for each.
        longest = max(map(len, names or ()), default=0)
        if longest > MOST_CHARACTERS:
            raise IncompatibleParties(
                f"a label of {message.sender} is a text of {longest} characters: {MOST_CHARACTERS} are allowed"
            )
        numbers = names if labels is None else take(labels, "labels", np.float64, [len(ids)])
        held_out = None if message.held_out is None else take_mask(message.held_out, "held_out", len(ids))
        weights = None if message.weights is None else take(message.weights, "weights", np.float64, [len(ids)])
        if weights is not None and (not has_labels or (weights < 0).any()):
            raise RejectedMessage("'weights' go with labels, and are at least 0")
        shared = None if message.shared is None else take(message.shared, "shared", np.int64, [len(ids)])
        if shared is not None and not (is_keyed and message.is_table):
            raise RejectedMessage("'shared' goes with tables whose rows have a key")
        if shared is not None and len(shared) and not 0 <= shared.min() <= shared.max() < len(ids):
            raise RejectedMessage("'shared' must be numbers of rows, fewer than there are ids")
        about = message.target, message.is_table, message.rows, message.card
        return cls(SampleIds.of(ids), numbers, held_out, *about, weights, shared)

    def is_same(self, other: "Enrolment") -> bool:
        """Whether another enrolment has the same rows."""
        return self.rows == other.rows and self.ids == other.ids and _are_same(self.labels, other.labels)


def _are_same(labels: Any, others: Any) -> bool:
    if isinstance(labels, np.ndarray) and isinstance(others, np.ndarray):
        return np.array_equal(labels, others)
    return type(labels) is type(others) and bool(labels == others)


class Labelled(NamedTuple):
    """Samples by number, with their labels and what they weigh."""

    numbers: NDArray[np.int64]
    """``[n]``."""
    labels: NDArray[Any]
    """``[n]``: numbers, or texts."""
    weights: NDArray[np.float64] | None = None

    @classmethod
    def read(cls, message: LabelledSamples, total: int) -> Self:
        """Check what another hub says of its samples."""
        numbers = take(message.numbers, "numbers", np.int64, [None])
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < total:
            raise RejectedMessage("'numbers' must be numbers of samples")
        if len(np.unique(numbers)) < len(numbers):
            raise RejectedMessage("'numbers' has a sample twice")
        if (message.labels is None) == (message.names is None):
            raise RejectedMessage("it must have either 'labels' or 'names'")
        if message.labels is not None:
            labels = take(message.labels, "labels", np.float64, [len(numbers)])
        else:
            names = message.names or []
            if len(names) != len(numbers) or max(map(len, names), default=0) > MOST_CHARACTERS:
                raise RejectedMessage(f"'names' must be one text of at most {MOST_CHARACTERS} characters per sample")
            labels = np.array(names, str)
        weights = None if message.weights is None else take(message.weights, "weights", np.float64, [len(numbers)])
        if weights is not None and (weights < 0).any():
            raise RejectedMessage("'weights' must be at least 0")
        return cls(numbers, labels, weights)

    def message(self) -> LabelledSamples:
        """What another hub is sent."""
        is_named = self.labels.dtype.kind == "U"
        return LabelledSamples(
            numbers=Array.of(self.numbers),
            labels=None if is_named else Array.of(self.labels.astype(np.float64)),
            names=self.labels.tolist() if is_named else None,
            weights=Array.maybe(self.weights),
        )


class Digests(NamedTuple):
    """Keyed digests by which silos compare what they must not show each other."""

    secret: str
    """A digest of nothing: it is equal where the secret is."""
    ids: str
    held_out: str
    """Which samples are held out."""
    labels: str | None
    """None in a silo without labels."""


@dataclass(frozen=True, eq=False)
class SampleIndex:
    """The silo's samples in the order that all silos share, and which client holds each."""

    ids: Sequence[str]
    """``[total]``; empty texts for those that the silo lacks."""
    owner: NDArray[np.int32]
    """``[total]``: which client; -1 if the silo lacks the sample."""
    rows: list[NDArray[np.int64]]
    """Per client: which sample each of its rows is."""
    held_out: NDArray[np.bool_]
    """``[total]``."""
    meaning: "Meaning | None"
    """The labels; None in a silo without."""
    received_outputs: Outputs | None = None
    """What the hub with the labels says that they ask of every block, in a silo without."""
    listed: SampleList | None = None
    """What the silo knows of the list of all samples, where silos lack some of them."""
    own: Labelled | None = None
    """The labels of its samples as its clients have them, where the other silos know of others."""
    shared: Sequence[NDArray[np.int64] | None] = ()
    """Per client: a number of each of its samples' rows, where one belongs to many samples; () if none does."""
    present: Presence | None = None
    """``[N, total]``: which silos have which samples, at a hub with labels where silos lack some."""

    @property
    def num_rows(self) -> int:
        """M_j, the training samples that the silo has."""
        return int((self.train_owner >= 0).sum())

    def absent(self, config: Config, silo: int, block: Block) -> tuple[Absent, NDArray[np.bool_]]:
        """What stands in for silos that lack samples of this one; and ``[total, S]``, for which of those which of its
        samples need that. With silo dropout: which of those lack which of its samples.
        """
        if self.listed is None:
            return Absent(), np.zeros((len(self.ids), 0), bool)
        names, labelled = config.silo_names, _labelled(config)
        marks = np.zeros((len(names), len(self.ids)), bool)
        marks[:, self.listed.numbers] = self.listed.stood_in_for(names, silo, labelled)
        lacks_rows = bool((self.owner < 0).any())
        needed, drops_silos = marks[:, ~self.held_out], config.train.silo_dropout > 0
        if drops_silos and not self.listed.is_complete:
            needed = trained_for(marks, silo, labelled, drops_silos=True)
            marks[:, self.listed.numbers] = self.listed.lacking(names, silo)
        absent = Absent.of(names, needed, config.data.standin, block, lacks_rows=lacks_rows)
        return absent if absent else Absent(), marks[[names.index(name) for name in absent.silos]].T

    def shared_rows(self, config: Config, silo: int, block: Block) -> list[tuple[Index, Index]]:
        """Per client: which distinct row each of its training samples has, and each of its held-out ones; () if every
        sample has a row of its own.
        """
        if not self.shared:
            return []
        absent, marks = self.absent(config, silo, block)
        if absent.silos and config.train.silo_dropout:
            # Distinct rows are those of evaluations, in which no silo is dropped.
            marks = Marks.of(config.silo_names, silo, absent, _labelled(config), 0).stood_in_for(marks)
        indices = []
        for rows, shared in zip(self.rows, self.shared, strict=True):
            index = np.arange(len(rows)) if shared is None else distinct(shared, marks[rows])
            held_out = self.held_out[rows]
            indices.append((index[~held_out], index[held_out]))
        return indices

    @property
    def test_ids(self) -> list[str]:
        """``[m]``: the ids of the held-out samples."""
        return [self.ids[place] for place in np.flatnonzero(self.held_out).tolist()]

    @cached_property
    def num_samples(self) -> int:
        """M, the training samples."""
        return int(len(self.ids) - self.held_out.sum())

    @property
    def train_owner(self) -> NDArray[np.int32]:
        """``[M]``: which client holds each training sample."""
        return self.owner[~self.held_out]

    @property
    def known(self) -> "Meaning":
        """The labels, where there are any."""
        assert self.meaning is not None
        return self.meaning

    @property
    def train_labels(self) -> NDArray[np.float64]:
        """``[M]``: the labels of the training samples."""
        return self.known.labels[~self.held_out]

    @property
    def test_labels(self) -> NDArray[np.float64]:
        """``[m]``: the labels of the held-out samples."""
        return self.known.labels[self.held_out]

    def weights_at(self, places: NDArray[Any]) -> NDArray[np.float64] | None:
        """What the samples at these places weigh; None if all weigh the same, or the silo has no labels."""
        return None if self.meaning is None or self.meaning.weights is None else self.meaning.weights[places]

    def places(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each row of a client: which training sample it is, and which held-out one; -1 where it is not one."""
        held_out, numbers = self.held_out[self.rows[client]], self._numbers[self.rows[client]]
        return np.where(held_out, -1, numbers), np.where(held_out, numbers, -1)

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        """``[total]``: which of the training samples each sample is, or which of the held-out ones."""
        return np.where(self.held_out, np.cumsum(self.held_out), np.cumsum(~self.held_out)) - 1

    def digests(self, secret: bytes) -> Digests:
        """What other silos compare with their own."""
        # Where silos have different samples, :attr:`listed` says what they compare.
        same = hmac.new(secret, digestmod=hashlib.sha256)
        if isinstance(self.ids, SampleIds):
            self.ids.write_json(same.update)
        else:
            same.update(json.dumps(len(self.ids)).encode())
        contents = [b"secret", b"held out" + self.held_out.tobytes()]
        known, held_out = (hmac.new(secret, content, hashlib.sha256).hexdigest() for content in contents)
        return Digests(known, same.hexdigest(), held_out, None if self.meaning is None else self.meaning.digest(secret))

    def outputs(self, config: Config) -> Outputs:
        """The loss that the file asks for or that fits the labels, and how many outputs every block has."""
        if self.meaning is not None:
            return self.meaning.outputs(config)
        assert self.received_outputs is not None
        return self.received_outputs

    def loss(self, config: Config) -> Loss:
        """The same loss."""
        return named_loss(config.model, self.outputs(config).loss)


@dataclass(frozen=True, eq=False)
class Meaning:
    """A silo's labels, and what they mean."""

    labels: NDArray[np.float64]
    """``[total]``, as training uses them."""
    task: Task
    classes: tuple[str, ...]
    """The names of the classes, where they have names."""
    label_mean: float
    label_scale: float
    in_words: str
    """How the labels of tables were interpreted."""
    test_originals: list[str | float]
    """``[m]``: the held-out samples' labels, as the tables have them."""
    weights: NDArray[np.float64] | None = None
    """``[total]``: what each sample weighs, 1 on average of those that train; None if all weigh the same."""

    def digest(self, secret: bytes) -> str:
        """What other silos with labels compare with theirs."""
        content = json.dumps([self.task, self.classes]).encode() + self.labels.tobytes()
        content += b"" if self.weights is None else self.weights.tobytes()
        return hmac.new(secret, content, hashlib.sha256).hexdigest()

    def outputs(self, config: Config) -> Outputs:
        """What they ask of every block."""
        if self.task == "multiclass" and not 0 <= self.labels.min() <= self.labels.max() < MOST_CLASSES:
            raise UnfitLabels(f"a label is class {self.labels.max():g}: there can be {MOST_CLASSES} classes at most")
        name, fits = config.model.loss or fitting(self.task)[0], fitting(self.task)
        loss = named_loss(config.model, name)
        if self.task not in loss.tasks:
            raise UnfitLabels(f"model.loss = {name!r} does not fit the labels ({self.task}): use {' or '.join(fits)}")
        return Outputs(name, outputs_of(loss, [self.labels]))


def _labelled(config: Config) -> list[int]:
    """The silos that have labels."""
    holder = config.federation.labels
    return [index for index, name in enumerate(config.silo_names) if holder in (None, name)]


def build_index(enrolments: Mapping[str, Enrolment], config: Config, listed: SampleList | None = None) -> SampleIndex:
    """Order the samples of a silo's clients, refuse an id that two of them hold, and settle what the labels mean.

    Args:
        listed: the silo's part of the list of all samples, where silos lack some; what the labels mean is known when
            all hubs with labels have sent theirs, see :func:`with_labels`.
    """
    names, enrolled = list(enrolments), list(enrolments.values())
    for name, enrolment in enrolments.items():
        if enrolment.is_table != enrolled[0].is_table or enrolment.target != enrolled[0].target:
            raise IncompatibleParties(
                f"{names[0]} and {name} have different kinds of data: give all clients the same kind of file"
            )
    every = SampleIds.joined([enrolment.ids for enrolment in enrolled])
    holder = np.repeat(np.arange(len(enrolled), dtype=np.int32), [len(enrolment.ids) for enrolment in enrolled])
    order = every.order()
    ids = every.take(order)
    if (place := ids.repeated()) is not None:
        left, right = (names[holder[row]] for row in order[place - 1 : place + 1])
        raise IncompatibleParties(f"id '{ids[place]}' is held by {left} and by {right}")
    bounds = np.cumsum([len(enrolment.ids) for enrolment in enrolled])[:-1]
    if listed is not None:
        return _listed(enrolments, every, np.split(np.arange(len(every)), bounds), listed, config)
    labels = None if enrolled[0].labels is None else _labels(enrolled, order, config)
    masks = [enrolment.held_out for enrolment in enrolled if enrolment.held_out is not None]
    held_out = np.concatenate(masks)[order] if len(masks) == len(enrolled) else _held_out(len(ids), labels, config)
    meaning = None if labels is None else _meaning(labels, held_out, enrolled[0].target, config)
    if meaning is not None:
        meaning = _weighed(
            meaning, {name: enrolment.weights for name, enrolment in enrolments.items()}, order, ~held_out, config
        )
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rows = np.split(rank, bounds)
    return SampleIndex(ids, holder[order], rows, held_out, meaning, shared=_shared(enrolled))


def _shared(enrolments: Sequence[Enrolment]) -> list[NDArray[np.int64] | None]:
    shared = [enrolment.shared for enrolment in enrolments]
    return [] if all(numbers is None for numbers in shared) else shared


def _listed(
    enrolments: Mapping[str, Enrolment],
    ids: Sequence[str],
    rows: Sequence[NDArray[np.int64]],
    listed: SampleList,
    config: Config,
) -> SampleIndex:
    """The index of a silo that may lack samples; ``rows`` are the places in ``ids`` of each client's."""
    if any(enrolment.target is not None or enrolment.held_out is not None for enrolment in enrolments.values()):
        raise IncompatibleParties("data.samples = 'all': clients have tables with ids, not arrays that are ready")
    number_of = dict(zip(listed.ids, listed.numbers.tolist(), strict=True))
    unknown = [sample for sample in ids if sample not in number_of]
    if unknown or len(ids) < len(number_of):
        problem = f"'{unknown[0]}' and {len(unknown) - 1} more ids of clients are not in it" if unknown else ""
        problem = problem or f"no client holds {len(number_of) - len(ids)} of its {len(number_of)} ids"
        advice = "align again (tdcd align), and give clients what it wrote for them with --ids"
        raise IncompatibleParties(f"the list of samples does not fit the clients' rows: {problem}: {advice}")
    numbers = np.array([number_of[sample] for sample in ids], np.int64)
    owner, names = np.full(listed.total, -1, np.int32), [""] * listed.total
    for client, places in enumerate(rows):
        owner[numbers[places]] = client
    for sample, number in number_of.items():
        names[number] = sample
    own = None
    if next(iter(enrolments.values())).labels is not None:
        order = np.argsort(numbers)
        weights = gathered_weights(config, {name: enrolment.weights for name, enrolment in enrolments.items()}, order)
        own = Labelled(listed.numbers, _values([enrolment.labels for enrolment in enrolments.values()])[order], weights)
    # Known only with all labels, where they are stratified; without labels here it follows from the number of samples.
    held_out = _held_out(listed.total, None, config) if own is None else np.zeros(listed.total, bool)
    shared = _shared([*enrolments.values()])
    index = SampleIndex(
        names, owner, [numbers[places] for places in rows], held_out, None, listed=listed, own=own, shared=shared
    )
    return with_labels(index, {}, config) if config.federation.labels is not None and own is not None else index


def with_labels(index: SampleIndex, others: Mapping[str, Labelled], config: Config) -> SampleIndex:
    """The index with what the labels mean, from those of this silo and those of the others by their hubs' names."""
    assert index.own is not None
    total = len(index.ids)
    named = any(labelled.labels.dtype.kind == "U" for labelled in (index.own, *others.values()))
    labels, known = np.zeros(total, object if named else np.float64), np.zeros(total, bool)
    weights = np.zeros(total)
    for hub, (numbers, values, weighs) in {"this hub": index.own, **others}.items():
        given = np.array([canonical_label(value) for value in values.tolist()], object) if named else values
        differ = np.flatnonzero(known[numbers] & (labels[numbers] != given))
        if len(differ):
            raise IncompatibleParties(f"{hub} has other labels than the hubs before it for {len(differ)} samples")
        labels[numbers], known[numbers] = given, True
        if (weighs is None) != (index.own.weights is None):
            raise IncompatibleParties(f"{hub} has weights of its samples and this hub has none, or the other way round")
        weights[numbers] = 0 if weighs is None else weighs
    if not known.all():
        raise IncompatibleParties(f"no hub has a label of {int((~known).sum())} of the {total} samples: align again")
    encoded = _encoded(labels.astype(str) if named else labels, config)
    held_out = _held_out(total, encoded, config)
    meaning = _meaning(encoded, held_out, None, config)
    try:
        given_weights = None if index.own.weights is None else weights
        classes = meaning.task, meaning.classes
        weighed = sample_weights(config, given_weights, meaning.labels, classes, ~held_out)
    except ValueError as error:
        raise UnfitLabels(str(error)) from None
    present = _present(index, others, config)
    return replace(index, held_out=held_out, meaning=replace(meaning, weights=weighed), present=present)


def _present(index: SampleIndex, others: Mapping[str, Labelled], config: Config) -> Presence:
    """Which silos have which samples, by the labels that hubs sent or, at the only hub with labels, by its list."""
    assert index.listed is not None
    names, numbers = config.silo_names, index.listed.numbers
    present = np.zeros((len(names), len(index.ids)), bool)
    for silo, name in enumerate(names):
        if hub_of(name) in others:
            present[silo, others[hub_of(name)].numbers] = True
        else:
            # Of this silo itself the list says nothing: it has them all.
            present[silo, numbers] = True if others else index.listed.held_by.get(name, True)
    return present


def _weighed(
    meaning: Meaning, weights: Mapping[str, Any], order: NDArray[Any], training: NDArray[np.bool_], config: Config
) -> Meaning:
    """The labels with what each sample weighs, from what clients say and from its class."""
    try:
        given = gathered_weights(config, weights, order)
        total = sample_weights(config, given, meaning.labels, (meaning.task, meaning.classes), training)
    except ValueError as error:
        raise UnfitLabels(str(error)) from None
    return replace(meaning, weights=total)


def _meaning(labels: Labels, held_out: NDArray[np.bool_], target: LabelTarget | None, config: Config) -> Meaning:
    if target is not None:
        numbers, mean, scale, words = labels.numbers, target.label_mean, target.label_scale, ""
    else:
        numbers, mean, scale = standardized(labels, ~held_out, label_unit(config))
        words = in_words(labels, config.model.loss)
    if labels.task != "regression":
        words = with_noise(config, words, int(numbers.max()) + 1)
    return Meaning(numbers, labels.task, labels.classes, mean, scale, words, labels.of(held_out))


def _held_out(total: int, labels: Labels | None, config: Config) -> NDArray[np.bool_]:
    """Drawn; by class only where every silo has the labels, so that all choose the same samples."""
    chosen, seed = config.evaluate, config.data.seed
    try:
        if labels is None:
            return holdout_mask(total, chosen.holdout, seed, None)
        return choose_held_out(labels, chosen.holdout, seed, stratify=chosen.stratify)
    except ValueError as error:
        raise IncompatibleParties(str(error)) from None


def _labels(enrolments: Sequence[Enrolment], order: NDArray[np.int64], config: Config) -> Labels:
    """The labels in sample order."""
    values = _values([enrolment.labels for enrolment in enrolments])[order]
    target = enrolments[0].target
    if target is not None:
        if target.classes and not 0 <= values.min() <= values.max() < len(target.classes):
            raise UnfitLabels(f"a label is class {values.max():g}, but {len(target.classes)} classes have names")
        return Labels(target.task, values, target.classes)
    return _encoded(values, config)


def _values(given: Sequence[Any]) -> NDArray[Any]:
    """The labels of several clients: numbers, or texts if one's are."""
    if any(isinstance(labels, list) for labels in given):
        return np.array([str(label) for labels in given for label in labels])
    return np.concatenate([np.asarray(labels) for labels in given])


def _encoded(values: NDArray[Any], config: Config) -> Labels:
    """What labels of tables are; refuses those that do not fit the file."""
    try:
        encoded = encode(values, chosen_loss(config.model))
        check_all_classes(config, encoded)
        return encoded
    except ValueError as error:
        raise UnfitLabels(f"the labels: {error}") from None
