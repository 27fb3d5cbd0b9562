"""What a hub asks its clients, what they answer, and which clients it continues without.

Each client has one question at a time. Who takes part is the one thing in a run that a clock decides, after
``federation.client_grace_s``, so a hub writes every such decision down before it acts on it. A hub that comes back
reads them and plays its last rounds again with the same clients.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from tdcd.config.checks import FEWEST_LEFT
from tdcd.core.round import FlowName
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.machine.instructions import Absence, Instruction
from tdcd.runtime.messages.messages import Diverged, Group, Part
from tdcd.runtime.messages.structure import Message, NamedArrays
from tdcd.runtime.messages.validation import take_all
from tdcd.runtime.messages.wire import RejectedMessage

OF_EVERYBODY: tuple[FlowName, ...] = ("evaluated", "witness", "residual")
"""The global model is evaluated with everybody, also where a round is of some."""


class Absences:
    """Which of a silo's clients are left out, from which question of which round on, and since when they are back."""

    def __init__(
        self, clients: Sequence[str], questions: Sequence[str], known: Iterable[Absence] = (), free_from: int = 0
    ) -> None:
        """Take the silo's clients, what they are asked in a round, in order, and what was written down of them; from
        round ``free_from`` on a client may come back.
        """
        self._clients, self._questions, self._free_from = clients, questions, free_from
        self._known: dict[str, list[Absence]] = {client: [] for client in clients}
        self._is_any = False
        for absence in known:
            self._note(absence)
        self._unanswered: dict[str, Part] = {}
        self._silent: set[str] = set()

    def out(self, round_index: int, question: str | None = None) -> list[int]:
        """The clients, by index, that are not asked this question of a round, or its last one."""
        if not self._is_any:
            return []
        asked = question or self._questions[-1]
        return [index for index, client in enumerate(self._clients) if self._is_out(client, round_index, asked)]

    def _is_out(self, client: str, round_index: int, question: str) -> bool:
        asked = round_index, self._questions.index(question)
        for absence in reversed(self._known[client]):
            first = 0 if absence.question is None else self._questions.index(absence.question)
            if (absence.round, first) <= asked:
                return absence.question is not None
        return False

    def leave_out(self, question: Part) -> Absence:
        """Continue without a client's answer, and without the client until it shows life."""
        client = question.receiver
        self._unanswered[client] = question
        self._silent.add(client)
        return self._note(Absence(client, question.round, question.flow))

    def take_back(self, round_index: int) -> list[Absence]:
        """A round begins: those who have shown life take part again."""
        if round_index < self._free_from:
            return []
        out = [self._clients[index] for index in self.out(round_index, self._questions[0])]
        return [self._note(Absence(client, round_index, None)) for client in out if client not in self._silent]

    def _note(self, absence: Absence) -> Absence:
        self._is_any = True
        self._known[absence.client].append(absence)
        return absence

    def show_life(self, client: str) -> None:
        """A client is there again."""
        self._silent.discard(client)

    def question_to(self, client: str) -> Part | None:
        """What a client was asked when it was last left out."""
        return self._unanswered.get(client)

    def open_questions(self) -> list[Message]:
        """What was asked of clients that have shown no life since."""
        return [self._unanswered[client] for client in self._clients if client in self._silent]

    def claims(self, since: int, round_index: int) -> tuple[dict[str, list[int]], list[str]]:
        """What other hubs are sent with the scores of a round: by client, the rounds from ``since`` on in which it was
        left out; and the clients whose scores are not there.
        """
        spans: dict[str, list[int]] = {}
        for past in range(since, round_index):
            for index in self.out(past):
                spans.setdefault(self._clients[index], []).append(past)
        absent = {client: spans[client] for client in self._clients if client in spans}
        return absent, [self._clients[index] for index in self.out(round_index, self._questions[0])]


class Questions:
    """The dialogue with one silo's clients."""

    def __init__(
        self, job: Job, silo: int, compute: HubCompute, run: str, absences: Iterable[Absence], free_from: int
    ) -> None:
        """Take all ``absences`` so far; from round ``free_from`` on a client may be left out, or come back."""
        self._free_from = free_from
        self._hub, self.clients, self._compute, self._run = job.hubs[silo], job.clients(silo), compute, run
        self._place = {client: index for index, client in enumerate(self.clients)}
        self._answered_by = job.topology.round.answers()
        self._all_answer, seed = job.variant.all_answer, job.settings.seed
        draw = job.variant.participation.answering
        self._draw = lru_cache(maxsize=2)(lambda round_index: draw(seed, round_index, silo, len(self.clients)))
        is_summed = job.round.summed_blocks is not None
        self._summed = {down for down, up in self._answered_by.items() if is_summed and up in ("block", "gradient")}
        """The flows down whose answers are added up."""
        self._fewest = FEWEST_LEFT if job.config.exchange.protect_blocks else 1
        self._questions: Sequence[Part] = ()
        self._has_grace = job.has_grace
        self.absences = Absences(self.clients, [*self._answered_by], absences, free_from)
        self.asked: dict[str, Part] = {}
        """By client: what it has not answered."""
        self._are_over, self._renewal = False, 0
        self._answers: dict[str, Message] = {}

    def ask(self, flow: FlowName, round_index: int, arrays: Sequence[NamedArrays]) -> list[Instruction]:
        """Send every client that takes part its part of a flow down; ``arrays`` are in client order."""
        self._questions = [
            Part(self._hub, client, round_index, self._run, flow=flow, arrays=own)
            for client, own in zip(self.clients, arrays, strict=True)
        ]
        return self._ask(self._questions)

    def _ask(self, questions: Sequence[Part]) -> list[Instruction]:
        self._answers.clear()
        round_index, flow = questions[0].round, questions[0].flow
        out = self.without(round_index, flow)
        asked = [question for index, question in enumerate(questions) if index not in out] if out else questions
        if flow in self._summed:
            clients = tuple(index for index in range(len(questions)) if index not in out)
            rows = sum(self._compute.rows_of(index, held_out=False) for index in clients)
            asked = [question.replace(group=Group(clients, rows, self._renewal)) for question in asked]
        self.asked = {question.receiver: question for question in asked}
        return [*asked]

    def without(self, round_index: int, flow: FlowName) -> list[int]:
        """The clients, by index, that are not sent a flow of a round: those that are left out, or not drawn for it."""
        out = self.absences.out(round_index, flow)
        if self._all_answer or flow in OF_EVERYBODY:
            return out
        drawn = self._draw(round_index)
        return [index for index in range(len(self.clients)) if index in out or not drawn[index]]

    def renew_masks(self) -> None:
        """Clients have other masks from now on: those who have sent a block of this round are asked once more.

        They are when they are ready, see :meth:`back`.
        """
        self._renewal += 1
        if self._questions and self._questions[0].flow in self._summed and not self._are_over:
            self._ask(self._questions)

    def answers(self) -> list[Message | None]:
        """What every client answered, in client order; None for those that the hub continues without."""
        return [self._answers.get(client) for client in self.clients]

    def end(self) -> None:
        """The run is over: no answer is needed any more."""
        self.asked, self._are_over = {}, True

    def receive(self, message: Message) -> None:
        """A client's answer to what it was asked; one that comes too late shows that it is there again."""
        if self._are_over:
            return
        client, asked = message.sender, self.asked.get(message.sender)
        if asked is not None and self._is_answer(message, asked):
            self._check(message, asked)
            del self.asked[client]
            self._answers[client] = message
            return
        missed = self.absences.question_to(client)
        if missed is None or not self._is_answer(message, missed):
            raise RejectedMessage(f"'{message.kind}' of round {message.round} was not requested")
        self.absences.show_life(client)

    def _is_answer(self, message: Message, question: Part) -> bool:
        is_expected = type(message) is Diverged or message.kind == self._answered_by[question.flow]
        return message.round == question.round and is_expected

    def _check(self, message: Message, asked: Part) -> None:
        """Refuse an answer that does not fit the client's rows, or a block with the masks of another group."""
        if isinstance(message, Part):
            take_all(message.arrays, self._compute.of_client(message.flow, message.round, self._place[message.sender]))
            if message.group != asked.group:
                raise RejectedMessage("it is for the sum of other clients' blocks than are asked for now")
            if message.facts is not None:
                raise RejectedMessage(f"'facts' are not those of '{message.flow}'")
        elif isinstance(message, Diverged) and message.reason:
            # Its block cannot be masked.
            raise IncompatibleParties(message.reason)

    def needs_all(self, round_index: int) -> bool:
        """Whether the hub has to wait for every client in a round, however long that takes."""
        return not self._has_grace or round_index < self._free_from

    def open(self, round_index: int) -> list[Message]:
        """The open questions to clients that the hub may leave out, though another client has answered.

        And those to clients that it has left out already.
        """
        has_rows = any(self._compute.rows_of(self._place[client], held_out=False) for client in self._answers)
        # A sum over fewer would show a client's block.
        is_free = not self.needs_all(round_index) and len(self.asked) + len(self._answers) > self._fewest
        return [*(self.asked.values() if has_rows and is_free else ()), *self.absences.open_questions()]

    def overdue(self, question: Message, round_index: int) -> list[Instruction]:
        """A question was open for the whole grace period: continue without its answer, or ask once more."""
        if question not in self.open(round_index):
            return []
        asked = self.asked.get(question.receiver)
        if asked is None or asked is not question:
            return [question]
        del self.asked[question.receiver]
        left_out = self.absences.leave_out(asked)
        if asked.flow in self._summed:
            # Those who have answered did so with masks that cancel only with the one that is gone.
            return [left_out, *self._ask(self._questions)]
        return [left_out]

    def back(self, client: str, blocks: Sequence[NamedArrays]) -> list[Message]:
        """What a client that was away must be asked again; the round began with these blocks, in client order."""
        self.absences.show_life(client)
        message = self.asked.get(client)
        if message is None:
            return []
        # Before its steps it needs the round's block again.
        arrays = blocks[self._place[client]]
        block = Part(self._hub, client, message.round, self._run, flow="block", arrays=arrays)
        return [block, message] if message.flow in ("received", "sealed") else [message]
