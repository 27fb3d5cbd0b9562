"""The client: it answers its hub. Messages in, messages out; nothing here does I/O or looks at a clock.

It keeps no state that its data and its hub cannot give it again: whenever it is asked for something that it lacks the
means for, it introduces itself again, and the hub sends what is missing.
"""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks.absent import Absent, Marks
from tdcd.blocks.start import start_block
from tdcd.config import ModelSection
from tdcd.config.resolve import objective_of
from tdcd.core.codecs.codec import TO_CLIENTS, Layout
from tdcd.core.codecs.encrypted import LARGEST_FEATURE, feature_beyond
from tdcd.core.family.scaled import products
from tdcd.core.objective import Tree
from tdcd.core.presence import Remaining
from tdcd.core.round import FlowName, is_of_rows
from tdcd.core.shared_rows import Index, SharedRows
from tdcd.core.trees import leaves_of, like, named_leaves
from tdcd.runtime.certificates.agreement import Keys
from tdcd.runtime.compute.client_compute import ClientCompute
from tdcd.runtime.compute.client_data import ClientData
from tdcd.runtime.compute.encryption import SlopeSums
from tdcd.runtime.compute.line_proof import BLOCK
from tdcd.runtime.compute.links import MEMORY
from tdcd.runtime.compute.local_steps import ClientRows, RowsLeft
from tdcd.runtime.job import NONE_ABSENT, Job, block_beyond, scores_beyond
from tdcd.runtime.machine.instructions import RunOutcome
from tdcd.runtime.machine.masks import ClientMasks
from tdcd.runtime.messages.messages import (
    Bye,
    ColumnSummary,
    Diverged,
    Enrol,
    LabelTarget,
    Part,
    Prepare,
    Ready,
    Stop,
    Welcome,
    Who,
)
from tdcd.runtime.messages.structure import Array, Arrays, Message, NamedArrays, named
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
OF_LINES = ("witness", "residual")
"""The questions of certificates, which may be of a line that is some rounds old."""
LEFT = ("absent", "present", "rows")
"""The arrays that say what is left of a round's minibatches, if clients take no part."""


class Client:
    """One client of a silo, as a state machine."""

    def __init__(
        self,
        job: Job,
        silo: int,
        name: str,
        data: ClientData,
        session: str = "",
        keys: Keys | None = None,
        secret: bytes = b"",
    ) -> None:
        """Take the party's full ``name``, as on its certificate, its rows, and an identifier of this process.

        Args:
            keys: for masks; of this process.
            secret: what its encrypted sums are hidden with, or its noise follows from; the same after a restart.
        """
        self.job, self.silo, self.name, self.data = job, silo, name, data
        self._session, self._masks = session, ClientMasks(job, silo, name, keys, data.digest, secret)
        self.hub = job.hubs[silo]
        self._is_summed = job.round.summed_blocks is not None
        """Whether its hub sees nothing of blocks, gradients and products but sums."""
        self._gets_slopes = is_of_rows(job.round.flow("received", "hub_to_client", silo))
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
        self._encrypted: SlopeSums | None = None
        """What it multiplies encrypted slopes with, if they are encrypted."""
        self._secret = secret or Keys.of_secret(name, bytes.fromhex(job.digest)).secret
        self._prefetched_in: int | None = None
        """The round in which the rows of the next one were laid out."""
        self._answers: dict[str, Message] = {}
        self._sends = lru_cache(maxsize=2)(partial(job.sends, silo))
        self._handlers: dict[str, Callable[[Any], list[Message]]] = {
            Who.tag(): self._on_who,
            Welcome.tag(): self._on_welcome,
            Prepare.tag(): self._on_prepare,
            "evaluated": self._on_evaluated,
            "witness": self._on_witness,
            "residual": self._on_residual,
            "block": self._on_block,
            "received": self._on_received,
            "sealed": self._on_sealed,
            Stop.tag(): self._on_stop,
        }
        """By flow of a part, or kind of another message."""

    def introduce(self) -> list[Message]:
        """The client's name and samples: sent at the start, and whenever something is missing."""
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
            shared=Array.maybe(None if data.table is None else data.table.shared),
            rows=data.digest,
            card=self._masks.card(),
        )
        return [enrol]

    # A run that diverges is reported as such, not by warnings: what is not finite is looked for.
    @np.errstate(all="ignore")
    def receive(self, message: Message) -> list[Message]:
        """Act on a message of the hub; what to send back."""
        handler = self._handlers.get(message.kind)
        if handler is None:
            raise RejectedMessage(f"a client knows no '{message.kind}'")
        if type(message) not in OF_ANY_RUN:
            if not self._run:
                return self.introduce()
            if message.run != self._run:
                raise RejectedMessage(f"it belongs to run {message.run!r}, not to {self._run!r}")
            oldest = 0 if message.kind in OF_LINES else self.round
            if isinstance(message, Part) and not oldest <= message.round <= self.job.config.train.rounds:
                raise RejectedMessage(f"it is of round {message.round}, and this is round {self.round}")
            # A question that is asked again gets the same answer, byte for byte.
            known = self._answers.get(message.kind)
            group = message.group if isinstance(message, Part) else None
            is_other = group is not None and self._masks.is_other_group(message.round, group)
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

    def _send(self, question: Part, flow: FlowName, arrays: Arrays) -> list[Message]:
        """Answer with a flow; if a number in it is not finite, with that."""
        if not are_finite(arrays.values()):
            return self._answer(question, Diverged)
        return self._answer(question, Part, flow=flow, arrays=named(arrays))

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
        self._compute, self._run, self._welcome, self._encrypted = None, message.run, message, None
        self._rows, self.round, self._prefetched_in = None, -1, None
        if self.data.table is None:
            return self._ready(message, self.data.features)
        train, _ = places_in(message, len(self.data.ids))
        summary = self.data.summary(train >= 0, self.job.config.model.num_bins)
        return self._answer(message, ColumnSummary, summary=json.dumps(summary))

    def _on_prepare(self, message: Prepare) -> list[Message]:
        """The hub sends the silo's means, scales and levels, made of all clients' sums and counts."""
        if self._welcome is None or self.data.table is None:
            return self.introduce()
        try:
            preparation = Preparation.from_json(take_json(message.preparation, "preparation"))
            self._check_width(preparation)
            lacking = self._absent_in(message, preparation.absent)
            marks, absent = self._marks_of(preparation.absent, message.bias), lacking
            if marks is not None and lacking is not None:
                absent = marks.stood_in_for(lacking)
            features, index = self.data.prepared(preparation, message.bias, self.job.settings.dtype, absent)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RejectedMessage(f"'preparation' does not fit the rows: {error}") from None
        return self._ready(message, features, preparation.absent, marks, lacking, index)

    def _marks_of(self, absent: Absent, bias: bool) -> Marks | None:
        """How marks follow from who lacks a row, where the silo has stand-ins."""
        if not absent.silos:
            return None
        labelled = [silo for silo in range(len(self.job.hubs)) if self.job.has_labels(silo)]
        return Marks.of(self.job.config.silo_names, self.silo, absent, labelled, int(bias))

    def _absent_in(self, message: Prepare, absent: Absent) -> NDArray[np.bool_] | None:
        """For which silos each row needs a stand-in; with silo dropout, which silos lack it.

        Stand-ins that the file does not ask for are refused.
        """
        names, own = self.job.config.silo_names, self.job.config.silos[self.silo].name
        if absent and not self.job.may_lack_samples:
            raise ValueError("data.samples = 'common' has no stand-ins")
        if absent and absent != Absent.of(
            names,
            np.array([[name in absent.silos and name != own] for name in names]),
            self.job.config.data.standin,
            self.job.block(self.silo),
            lacks_rows=absent.lacks_rows,
        ):
            raise ValueError("its stand-ins are others than data.standin asks for")
        if (message.absent is None) == bool(absent.silos):
            raise ValueError("'absent' must be there if there are stand-ins, and only then")
        if message.absent is None:
            return None
        rows = len(self.data.ids)
        marks = take(message.absent, "absent", np.uint8, [rows, len(absent.silos)])
        if (marks > 1).any():
            raise ValueError("'absent' must be 0 or 1")
        return marks.astype(bool)

    def _check_width(self, preparation: Preparation) -> None:
        """Refuse a preparation of other columns, or with more features of one than it can have."""
        assert self.data.table is not None
        if preparation.parts.keys() != self.data.table.features.keys():
            raise ValueError("it is of other columns")
        for name, part in preparation.parts.items():
            most = max(MOST_LEVELS, self.job.config.model.num_bins or 0) + 2
            if len(part.names(name)) > most:
                raise ValueError(f"column '{name}' would be more than {most} features")

    def _ready(
        self,
        message: Message,
        features: NDArray[Any],
        absent: Absent = NONE_ABSENT,
        marks: Marks | None = None,
        lacking: NDArray[np.bool_] | None = None,
        index: Index | None = None,
    ) -> list[Message]:
        welcome = self._welcome
        assert welcome is not None
        if beyond := block_beyond(self.job, self.silo, features.shape[1:], welcome.num_outputs, absent):
            raise RejectedMessage(f"'num_outputs': {beyond}")
        rows, config = len(self.data.ids), self.job.config
        train, test = places_in(welcome, rows)
        labels = labels_in(welcome, rows, has_labels=self._has_labels)
        objective = objective_of(config, welcome.loss, welcome.num_samples)
        model, settings = self.job.block(self.silo, absent), self.job.settings.at(welcome.num_samples)
        chosen = train >= 0
        own, held_out = (None if index is None else SharedRows.of(index[places >= 0]) for places in (train, test))
        self._compute = ClientCompute(
            model,
            objective,
            settings,
            features[chosen if own is None else own.chosen],
            labels[chosen],
            train[chosen],
            welcome.num_samples,
            self.job.variant,
            self.silo,
            self.job.clients(self.silo).index(self.name),
            welcome.num_outputs,
            None if welcome.weights is None else take(welcome.weights, "weights", np.float64, [len(train)])[chosen],
            welcome.num_rows,
            marks,
            None if lacking is None else lacking[chosen],
            None if own is None else own.index,
            sends_rows=is_of_rows(self.job.round.flow("phi", "client_to_hub", self.silo)),
            gets_slopes=self._gets_slopes,
        )
        self._test = features[test >= 0 if held_out is None else held_out.chosen] if (test >= 0).any() else None
        shape, name = features.shape[1:], self.job.config.silos[self.silo].name
        template = start_block(model, settings, self.silo, shape, welcome.num_outputs, name, objective.combine)
        self._layout = {name: (settings.dtype, leaf.shape) for name, leaf in named_leaves(template).items()}
        self._template = template
        self._first_memory = self.job.variant.first_memory(template)
        leaves = named_leaves(self._first_memory)
        self._memory_layout = {f"{MEMORY}{name}": (settings.dtype, leaf.shape) for name, leaf in leaves.items()}
        return self._answer(message, Ready, feature_shape=shape, products=self._products())

    def _products(self) -> Array | None:
        """The products of the training rows' features, where the hub's steps need them."""
        if self.job.round.flow("products", "client_to_hub") is None:
            return None
        assert self._compute is not None
        own = products(self._compute.spread_features(), self._compute.design).astype(self.job.settings.dtype)
        return Array.of(self._masks.products(self._compute, own) if self._is_summed else own)

    def _on_block(self, message: Part) -> list[Message]:
        """Line 9: phi of the client's rows of this round's minibatches, with the fresh hub block."""
        if self._compute is None:
            return self.introduce()
        is_alone = len(self.job.config.silos) == 1
        taken = take_all(message.arrays, {**self._layout, **self._memory_layout}, LEFT if is_alone else ())
        leaves = [*taken.values()]
        self._block, self.round = like(self._template, leaves[: len(self._layout)]), message.round
        self._memory = like(self._first_memory, leaves[len(self._layout) :]) if self._memory_layout else None
        self._rows = rows = self._compute.rows(message.round)
        self._answers.pop("received", None)
        if is_alone:
            nothing = np.zeros((len(rows.places), self._phi_width), self.job.settings.dtype)
            return self._step(message, nothing)
        phi = {}
        for round_index in self._sends(message.round):
            for name, array in self._compute.phi_sent(self._block, round_index).items():
                phi[f"{round_index}.{name}"] = array
        return self._send(message, "phi", phi)

    def _on_received(self, message: Part) -> list[Message]:
        """Lines 14 to 19: the others' phi of its rows, then Q local steps."""
        if self._rows is None or self.round != message.round:
            return self.introduce()
        assert self._compute is not None
        links, compute = self._compute.links, self._compute
        count = compute.num_sent if compute.gets_sums else len(self._rows.places)
        sent = take_all(message.arrays, links.rows_layout(count, self._compute.width_received), ("weights", *LEFT))
        # With labels, it has the weights of its rows since before the first round.
        gets_weights = self.job.sends_weights and not self._has_labels and not self._gets_slopes
        weights = take_weights(message.arrays, self.job.settings.dtype, [count], gets_weights)
        received = links.decode_rows(message.round, TO_CLIENTS, self._rows.samples, sent)
        return self._step(message, received, weights)

    def _on_sealed(self, message: Part) -> list[Message]:
        """In place of local steps: the sum of its features times encrypted slopes."""
        form = self.job.round.encrypted
        if form is None or self._has_labels:
            raise RejectedMessage("encrypted slopes were not requested")
        if self._rows is None or self.round != message.round:
            return self.introduce()
        assert self._compute is not None
        key = form.key_layout
        sealed = take_all(message.arrays, form.slopes_layout(self._phi_width), [*key])
        if any(name in message.arrays for name in key):
            taken = take_all({name: array for name, array in message.arrays.items() if name in key}, key)
            self._encrypted = SlopeSums(form, self._secret, taken)
        if self._encrypted is None:
            return self.introduce()
        largest = self._compute.largest_feature
        if not largest <= LARGEST_FEATURE:
            return self._answer(message, Diverged, reason=feature_beyond(self.name, largest))
        arrays = self._compute.encrypted_sums(self._encrypted, self._run, message.round, self._rows, sealed)
        return self._answer(message, Part, flow="share", arrays=named(arrays))

    def _presence(self, arrays: NamedArrays, rows: ClientRows) -> RowsLeft:
        """What is left of the minibatches where some clients take no part."""
        if not self.job.may_be_absent:
            raise RejectedMessage(LEAVES_OUT)
        assert self._compute is not None
        sizes, most = len(rows.counts), self._compute.batch_size
        left = take_all(
            {name: arrays[name] for name in LEFT if name in arrays},
            {"absent": ("uint8", (len(rows.places),)), "present": ("int32", (sizes,)), "rows": ("int64", (1,))},
        )
        present = ~take_mask(arrays["absent"], "absent", len(rows.places))
        remaining = self._compute.only(rows, present)
        if (left["present"] < remaining.counts).any() or (left["present"] > most).any():
            raise RejectedMessage(f"'present' must be at least the client's own samples that are, and {most} at most")
        held = int(left["rows"][0])
        if not max(1, self._compute.num_rows) <= held <= self._compute.num_samples:
            raise RejectedMessage("'rows' must be at least the client's own rows, and the number of samples at most")
        return RowsLeft(present, remaining, Remaining(held, left["present"]))

    def _step(self, message: Part, received: NDArray[Any], weights: NDArray[Any] | None = None) -> list[Message]:
        compute, rows, remaining = self._compute, self._rows, None
        assert compute is not None
        assert rows is not None
        if not message.arrays.keys().isdisjoint(LEFT):
            remaining = self._presence(message.arrays, rows)
        stepped = compute.steps(self._block, rows, received, message.round, remaining, weights, self._memory)
        block, memory = (stepped, None) if self._memory is None else stepped
        leaves = named_leaves(memory)
        if not are_finite([*leaves_of(block), *leaves.values()]):
            return self._answer(message, Diverged)
        if self._is_summed:
            arrays, reason = self._masks.protected(compute, block, self._block, message)
            if reason:
                return self._answer(message, Diverged, reason=reason)
        else:
            arrays = compute.links.encode_block(message.round, compute.client, block, self._block)
        arrays = {**arrays, **{f"{MEMORY}{name}": leaf for name, leaf in leaves.items()}}
        return self._answer(message, Part, flow="block", arrays=named(arrays), group=message.group)

    def _on_evaluated(self, message: Part) -> list[Message]:
        """Phi of all rows, for the global model's loss and metrics."""
        if self._compute is None:
            return self.introduce()
        block = like(self._template, [*take_all(message.arrays, self._layout).values()])
        scores = {"train": self._compute.phi(block)}
        if self._test is not None:
            scores["test"] = self._compute.phi(block, self._test)
        return self._send(message, "scores", scores)

    def _on_witness(self, message: Part) -> list[Message]:
        """The scores of all training rows in float64, for a certificate."""
        if self._compute is None:
            return self.introduce()
        if not self.job.is_certified_linear:
            raise RejectedMessage("a client knows no 'witness' of blocks that are not linear")
        # Of the model, and of the witness if hubs can mix one.
        asked = self.job.round.flow("witness", "hub_to_client")
        if asked is None:
            raise RejectedMessage("this job has no certificates, and so no 'witness'")
        shape = next(iter(self._layout.values()))[1]
        blocks = take_all(message.arrays, {"witness": ("float64", (asked.width, *shape))})["witness"]
        return self._send(message, "witness_scores", {"witness_scores": self._compute.witness_scores(blocks)})

    def _on_residual(self, message: Part) -> list[Message]:
        """The gradient of all training rows' losses, for a certificate."""
        if self._compute is None:
            return self.introduce()
        shape, dtype = (self._compute.num_sent, self._phi_width), "float64"
        layout: Layout = {"residual": (dtype, shape)}
        if not self.job.is_certified_linear:
            dtype = self.job.settings.dtype
            layout = {"residual": (dtype, shape), **{f"{BLOCK}{name}": leaf for name, leaf in self._layout.items()}}
        residual, *leaves = take_all(message.arrays, layout).values()
        gradient = self._compute.gradient(residual, like(self._template, leaves) if leaves else None)
        if not self._is_summed:
            sent = {name: leaf.astype(dtype) for name, leaf in named_leaves(gradient).items()}
            return self._send(message, "gradient", sent)
        masked = self._masks.gradient(self._compute, gradient, message)
        if masked is None:
            return self._answer(message, Diverged)
        return self._answer(message, Part, flow="gradient", arrays=named(masked), group=message.group)

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
    if message.num_rows and not len(chosen) <= message.num_rows <= samples:
        raise RejectedMessage("'num_rows' must be at least the client's own rows, and 'num_samples' at most")
    if take_loss(message.loss, model).target == "classes" and not np.isin(labels, np.arange(outputs)).all():
        raise RejectedMessage(f"'labels' must be classes from 0 to {outputs - 1}")


def labels_in(message: Welcome, rows: int, *, has_labels: bool) -> NDArray[Any]:
    """The label of every row, as the hub sent it; zeros, which are not used, where the silo has none."""
    if (message.labels is None) == has_labels:
        raise RejectedMessage("it has no array 'labels'" if has_labels else "it has labels of a silo without any")
    return np.zeros(rows) if message.labels is None else take(message.labels, "labels", np.float64, [rows])


def places_in(message: Welcome, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every row's place: which training sample it is, and which held-out one; -1 where it is not one."""
    train, test = take(message.train, "train", np.int64, [rows]), take(message.test, "test", np.int64, [rows])
    if not ((train >= 0) ^ (test >= 0)).all():
        raise RejectedMessage("a row must be a training sample or a held-out one")
    return train, test
