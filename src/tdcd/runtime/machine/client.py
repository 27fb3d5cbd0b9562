"""The client: it answers its hub. Messages in, messages out; nothing here does I/O or looks at a clock.

It keeps no state that its data and its hub cannot give it again: whenever it is asked for something that it lacks the
means for, it introduces itself anew, and the hub sends what is missing.
"""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.start import start_block
from tdcd.config import ModelSection
from tdcd.config.resolve import objective_of
from tdcd.core.objective import Tree
from tdcd.core.trees import like, named_leaves
from tdcd.runtime.certificates.agreement import Keys
from tdcd.runtime.compute.client_compute import ClientCompute
from tdcd.runtime.compute.client_data import ClientData
from tdcd.runtime.compute.links import Layout
from tdcd.runtime.compute.local_steps import ClientRows, Presence
from tdcd.runtime.job import Job, block_beyond, scores_beyond
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.machine.masks import ClientMasks
from tdcd.runtime.messages.messages import (
    Begin,
    Bye,
    ClientBlock,
    ColumnSummary,
    Diverged,
    Enrol,
    Evaluate,
    LabelTarget,
    Phi,
    Prepare,
    Ready,
    Remaining,
    Scores,
    Steps,
    Stop,
    Welcome,
    Who,
)
from tdcd.runtime.messages.structure import Array, Message, named
from tdcd.runtime.messages.validation import (
    LEAVES_OUT,
    are_finite,
    take,
    take_all,
    take_json,
    take_loss,
    take_mask,
    take_weights,
)
from tdcd.runtime.messages.wire import PROTOCOL, RejectedMessage
from tdcd.tables.encodings import MOST_LEVELS
from tdcd.tables.preparation import Preparation

OF_ANY_RUN = frozenset({Who, Welcome, Stop})
"""What a hub may say before the run is known, and of whatever round."""


class Client:
    """One client of a silo, as a state machine."""

    def __init__(
        self, job: Job, silo: int, name: str, data: ClientData, session: str = "", keys: Keys | None = None
    ) -> None:
        """Take the party's full ``name``, as on its certificate, its rows, and an identifier of this process."""
        self.job, self.silo, self.name, self.data = job, silo, name, data
        self._session, self._masks = session, ClientMasks(job, silo, name, keys, data.digest)
        self.hub = job.hubs[silo]
        self.round = -1
        """The round that it works on; -1 before the first."""
        self.outcome: RunOutcome | None = None
        """How the hub ended the run."""
        self._run, self._call = "", 0
        self._welcome: Welcome | None = None
        self._compute: ClientCompute | None = None
        self._layout: Layout = {}
        self._template: Tree = None
        self._test: NDArray[Any] | None = None
        self._block: Tree = None
        self._memory: Tree = None
        """What its last round left, as the hub sent it, if its update carries that."""
        self._first_memory: Tree = None
        self._memory_layout: Layout = {}
        self._rows: ClientRows | None = None
        self._prefetched_in: int | None = None
        """The round in which the rows of the next one were laid out."""
        self._answers: dict[str, Message] = {}
        self._sends = lru_cache(maxsize=2)(partial(job.sends, silo))
        self._handlers: dict[type[Message], Callable[[Any], list[Message]]] = {
            Who: self._on_who,
            Welcome: self._on_welcome,
            Prepare: self._on_prepare,
            Begin: self._on_begin,
            Steps: self._on_steps,
            Evaluate: self._on_evaluate,
            Stop: self._on_stop,
        }

    def introduce(self) -> list[Message]:
        """Who this is and which samples it has: said at the start, and whenever something is missing."""
        self._answers.clear()
        data, is_named = self.data, isinstance(self.data.labels, list)
        target = None if data.target is None else msgspec.convert(data.target, LabelTarget)
        numbers = None if is_named or data.labels is None else Array.of(np.asarray(data.labels, np.float64))
        enrol = Enrol(
            self.name,
            self.hub,
            protocol=PROTOCOL,
            session=self._session,
            call=self._call,
            config=self.job.shared,
            ids=data.ids,
            labels=numbers,
            label_names=[*data.labels] if isinstance(data.labels, list) else None,
            weights=Array.maybe(data.weights),
            held_out=None if data.held_out is None else Array.of(data.held_out.astype(np.uint8)),
            target=target,
            is_table=data.table is not None,
            rows=data.digest,
            card=self._masks.card(),
        )
        return [enrol]

    # A run that diverges is reported as such, not by warnings: what is not finite is looked for.
    @np.errstate(all="ignore")
    def receive(self, message: Message) -> list[Message]:
        """Act on a message of the hub; what to send back."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise RejectedMessage(f"a client knows no '{message.kind}'")
        if type(message) not in OF_ANY_RUN:
            if not self._run:
                return self.introduce()
            if message.run != self._run:
                raise RejectedMessage(f"it belongs to run {message.run!r}, not to {self._run!r}")
            if not self.round <= message.round <= self.job.config.train.rounds and not isinstance(message, Prepare):
                raise RejectedMessage(f"it is of round {message.round}, and this is round {self.round}")
            # A question that is asked again gets the same answer, byte for byte.
            known = self._answers.get(message.kind)
            is_other = self._masks.is_other_group(message.round, getattr(message, "group", None))
            if known is not None and known.round == message.round and not is_other:
                return [known]
        return handler(message)

    def prefetch_next_round(self) -> None:
        """Lay out the next round's rows, while there is time."""
        if self._compute is None or self._prefetched_in == self.round:
            return
        self._prefetched_in = self.round
        following = 0 if self.round < 0 else self.round + self.job.timing.period(self.silo)
        if following < self.job.config.train.rounds:
            for round_index in (following, *self._sends(following)):
                self._compute.rows(round_index)

    def _answer(self, question: Message, kind: type[Message], **content: Any) -> list[Message]:
        answer = kind(self.name, self.hub, question.round, self._run, **content)
        self._answers[question.kind] = answer
        return [answer]

    def _on_who(self, message: Who) -> list[Message]:
        """The hub asks for an introduction."""
        self._call = message.call
        return self.introduce()

    def _on_welcome(self, message: Welcome) -> list[Message]:
        """The hub says which samples the rows are, and what the labels mean."""
        if message.session != self._session:
            raise RejectedMessage(f"it welcomes another process of {self.name}")
        if beyond := scores_beyond(self.job, self.silo, message.num_samples, message.num_outputs):
            raise RejectedMessage(f"'num_samples': {beyond}")
        check_welcome(message, len(self.data.ids), self.job.config.model, has_labels=self._has_labels)
        if wrong := self._masks.agree(message.cards, message.run):
            self.outcome = RunOutcome("refused", wrong)
            return []
        self._answers.clear()
        self._compute, self._run, self._welcome = None, message.run, message
        self._rows, self.round, self._prefetched_in = None, -1, None
        if self.data.table is None:
            return self._ready(message, self.data.features)
        train, _ = places_in(message, len(self.data.ids))
        summary = self.data.summary(train >= 0, self.job.config.model.bins)
        return self._answer(message, ColumnSummary, summary=json.dumps(summary))

    def _on_prepare(self, message: Prepare) -> list[Message]:
        """The hub sends the silo's means, scales and levels, made of all clients' sums and counts."""
        if self._welcome is None or self.data.table is None:
            return self.introduce()
        try:
            preparation = Preparation.from_json(take_json(message.preparation, "preparation"))
            self._check_width(preparation)
            features = self.data.prepared(preparation, message.bias, self.job.settings.dtype)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RejectedMessage(f"'preparation' does not fit the rows: {error}") from None
        return self._ready(message, features)

    def _check_width(self, preparation: Preparation) -> None:
        """Refuse a preparation of other columns, or with more features of one than it can have."""
        assert self.data.table is not None
        if preparation.parts.keys() != self.data.table.features.keys():
            raise ValueError("it is of other columns")
        for name, part in preparation.parts.items():
            most = max(MOST_LEVELS, self.job.config.model.bins or 0) + 2
            if len(part.names(name)) > most:
                raise ValueError(f"column '{name}' would be more than {most} features")

    def _ready(self, message: Message, features: NDArray[Any]) -> list[Message]:
        welcome = self._welcome
        assert welcome is not None
        if beyond := block_beyond(self.job, self.silo, features.shape[1:], welcome.num_outputs):
            raise RejectedMessage(f"'num_outputs': {beyond}")
        rows, config = len(self.data.ids), self.job.config
        train, test = places_in(welcome, rows)
        labels, objective = labels_in(welcome, rows, has_labels=self._has_labels), objective_of(config, welcome.loss)
        model, settings = self.job.block(self.silo), self.job.settings
        chosen = train >= 0
        self._compute = ClientCompute(
            model,
            objective,
            settings,
            features[chosen],
            labels[chosen],
            train[chosen],
            welcome.num_samples,
            self.job.variant,
            self.silo,
            self.job.clients(self.silo).index(self.name),
            welcome.num_outputs,
            None if welcome.weights is None else take(welcome.weights, "weights", np.float64, [len(train)])[chosen],
        )
        self._test = features[test >= 0] if (test >= 0).any() else None
        shape, name = features.shape[1:], self.job.config.silos[self.silo].name
        template = start_block(model, settings, self.silo, shape, welcome.num_outputs, name, objective.combine)
        self._layout = {name: (settings.dtype, leaf.shape) for name, leaf in named_leaves(template).items()}
        self._template = template
        carried = self.job.variant.carried
        self._first_memory = None if carried is None else carried.memory(template)
        leaves = named_leaves(self._first_memory)
        self._memory_layout = {name: (settings.dtype, leaf.shape) for name, leaf in leaves.items()}
        return self._answer(message, Ready, feature_shape=shape)

    def _read_block(self, message: Begin | Evaluate) -> Tree:
        return like(self._template, [*take_all(message.block, self._layout).values()])

    def _on_begin(self, message: Begin) -> list[Message]:
        """Line 9: phi of the client's rows of this round's minibatches, with the fresh hub block."""
        if self._compute is None:
            return self.introduce()
        self._block, self.round = self._read_block(message), message.round
        memory = take_all(message.memory, self._memory_layout)
        self._memory = like(self._first_memory, [*memory.values()]) if memory else None
        self._rows = rows = self._compute.rows(message.round)
        self._answers.pop(Steps.tag(), None)
        if len(self.job.config.silos) == 1:
            return self._step(message, np.zeros((len(rows.places), self._phi_width), self.job.settings.dtype))
        phi = []
        for round_index in self._sends(message.round):
            sent = self._compute.phi_sent(self._block, round_index)
            if not are_finite(sent.values()):
                return self._answer(message, Diverged)
            phi.append(named(sent))
        return self._answer(message, Phi, phi=tuple(phi))

    def _on_steps(self, message: Steps) -> list[Message]:
        """Lines 14 to 19: the others' phi of its rows, then Q local steps."""
        if self._rows is None or self.round != message.round:
            return self.introduce()
        assert self._compute is not None
        count = len(self._rows.places)
        sent = take_all(message.phi_others, self._compute.layout_received(count))
        # With labels, it has the weights of its rows since before the first round.
        gets_weights = self.job.sends_weights and not self._has_labels
        weights = take_weights(message.weights, self.job.settings.dtype, [count], gets_weights)
        phi_others = self._compute.received(message.round, sent)
        presence = None if message.remaining is None else self._presence(message.remaining, self._rows, count)
        return self._step(message, phi_others, presence, weights)

    def _presence(self, remaining: Remaining, rows: ClientRows, num_rows: int) -> Presence:
        """What is left of the minibatches, if somebody is absent."""
        if self.job.config.federation.client_grace_s is None:
            raise RejectedMessage(LEAVES_OUT)
        assert self._compute is not None
        present = ~take_mask(remaining.absent, "absent", num_rows)
        left, most = self._compute.only(rows, present), self._compute.batch_size
        sizes = take(remaining.present, "present", np.int32, left.counts.shape)
        if (sizes < left.counts).any() or (sizes > most).any():
            raise RejectedMessage(f"'present' must be at least the client's own samples that are, and {most} at most")
        if not max(1, self._compute.num_rows) <= remaining.rows <= self._compute.num_samples:
            raise RejectedMessage("'rows' must be at least the client's own rows, and the number of samples at most")
        return Presence(present, left, sizes, remaining.rows)

    def _step(
        self,
        message: Message,
        phi_others: NDArray[Any],
        presence: Presence | None = None,
        weights: NDArray[Any] | None = None,
    ) -> list[Message]:
        assert self._compute is not None
        assert self._rows is not None
        stepped = self._compute.steps(
            self._block, self._rows, phi_others, message.round, presence, weights, self._memory
        )
        if self._memory is None:
            kind, content = self._masks.answer(self._compute, stepped, self._block, message)
            return self._answer(message, kind, **content)
        block, memory = stepped
        kind, content = self._masks.answer(self._compute, block, self._block, message)
        left = named_leaves(memory)
        if kind is ClientBlock and not are_finite(left.values()):
            return self._answer(message, Diverged)
        return self._answer(message, kind, **content, **({"memory": named(left)} if kind is ClientBlock else {}))

    def _on_evaluate(self, message: Evaluate) -> list[Message]:
        """Phi of all rows, for the global model's loss and metrics."""
        if self._compute is None:
            return self.introduce()
        block = self._read_block(message)
        train = self._compute.scores(block)
        test = None if self._test is None else self._compute.scores(block, self._test)
        if not are_finite([train] if test is None else [train, test]):
            return self._answer(message, Diverged)
        return self._answer(message, Scores, train=Array.of(train), test=Array.maybe(test))

    def _on_stop(self, message: Stop) -> list[Message]:
        if message.session and message.session != self._session:
            raise RejectedMessage(f"it turns another process of {self.name} away")
        if self._run and message.run != self._run:
            # Of a hub that came back damaged: the right one may follow.
            raise RejectedMessage(f"it ends run {message.run!r}, and this is {self._run!r}")
        self.outcome = RunOutcome(message.status, message.reason)
        return [Bye(self.name, self.hub, message.round, self._run)]

    @property
    def _has_labels(self) -> bool:
        return self.job.has_labels(self.silo)

    @property
    def _phi_width(self) -> int:
        assert self._welcome is not None
        return self.job.combine.width(self._welcome.num_outputs)


def check_welcome(message: Welcome, rows: int, model: ModelSection, *, has_labels: bool) -> None:
    """Refuse places and labels that nothing could be computed with, for a client with so many rows."""
    train, _ = places_in(message, rows)
    labels = labels_in(message, rows, has_labels=has_labels)
    if message.weights is not None and not has_labels:
        raise RejectedMessage("it has weights of a silo without labels")
    samples, outputs = message.num_samples, message.num_outputs
    if not 0 < outputs <= samples:
        raise RejectedMessage("'num_samples' and 'num_outputs' must be numbers of samples and of outputs")
    chosen = train[train >= 0]
    if len(np.unique(chosen)) != len(chosen) or (chosen >= samples).any():
        raise RejectedMessage("two rows are the same sample, or one is a sample that is not there")
    if take_loss(message.loss, model).target == "classes" and not np.isin(labels, np.arange(outputs)).all():
        raise RejectedMessage(f"'labels' must be classes from 0 to {outputs - 1}")


def labels_in(message: Welcome, rows: int, *, has_labels: bool) -> NDArray[Any]:
    """Of every row, as the hub says; zeros, which nothing looks at, where the silo has none."""
    if (message.labels is None) == has_labels:
        raise RejectedMessage("it has no array 'labels'" if has_labels else "it has labels of a silo without any")
    return np.zeros(rows) if message.labels is None else take(message.labels, "labels", np.float64, [rows])


def places_in(message: Welcome, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every row: which training sample it is, and which held-out one; -1 where it is not one."""
    train, test = take(message.train, "train", np.int64, [rows]), take(message.test, "test", np.int64, [rows])
    if not ((train >= 0) ^ (test >= 0)).all():
        raise RejectedMessage("a row must be a training sample or a held-out one")
    return train, test
