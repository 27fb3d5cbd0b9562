"""What a hub asks its clients, what they answer, and which clients it continues without.

Each client has one question at a time. Who takes part is the one thing in a run that a clock decides, after
``federation.client_grace_s``, so a hub writes every such decision down before it acts on it. A hub that comes back
reads them and plays its last rounds again with the same clients.
"""

from collections.abc import Iterable, Sequence

from tdcd.config.protection import FEWEST_LEFT
from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.machine.instructions import Absence, Instruction
from tdcd.runtime.machine.parts import Claims
from tdcd.runtime.messages.messages import (
    Begin,
    ClientBlock,
    Diverged,
    Evaluate,
    Group,
    Phi,
    Scores,
    Steps,
)
from tdcd.runtime.messages.structure import Message, named
from tdcd.runtime.messages.validation import take, take_all
from tdcd.runtime.messages.wire import RejectedMessage

QUESTIONS = ("evaluate", "begin", "steps")
"""What a hub asks its clients in a round, in this order."""


class Absences:
    """Which of a silo's clients are left out, from which question of which round on, and since when they are back."""

    def __init__(self, clients: Sequence[str], known: Iterable[Absence] = ()) -> None:
        """Take the silo's clients, and what was written down of them."""
        self._clients = clients
        self._known: dict[str, list[Absence]] = {client: [] for client in clients}
        self._is_any = False
        for absence in known:
            self._note(absence)
        self._unanswered: dict[str, Message] = {}
        self._silent: set[str] = set()

    def out(self, round_index: int, question: str = QUESTIONS[-1]) -> list[int]:
        """The clients, by index, that are not asked this question of a round."""
        if not self._is_any:
            return []
        return [index for index, client in enumerate(self._clients) if self._is_out(client, round_index, question)]

    def _is_out(self, client: str, round_index: int, question: str) -> bool:
        asked = round_index, QUESTIONS.index(question)
        for absence in reversed(self._known[client]):
            if (absence.round, QUESTIONS.index(absence.question or QUESTIONS[0])) <= asked:
                return absence.question is not None
        return False

    def leave_out(self, question: Message) -> Absence:
        """Continue without a client's answer, and without the client until it shows life."""
        client = question.receiver
        self._unanswered[client] = question
        self._silent.add(client)
        return self._note(Absence(client, question.round, question.kind))

    def take_back(self, round_index: int) -> list[Absence]:
        """A round begins: those who have shown life take part again."""
        out = [self._clients[index] for index in self.out(round_index, QUESTIONS[0])]
        return [self._note(Absence(client, round_index, None)) for client in out if client not in self._silent]

    def _note(self, absence: Absence) -> Absence:
        self._is_any = True
        self._known[absence.client].append(absence)
        return absence

    def show_life(self, client: str) -> None:
        """A client is there again."""
        self._silent.discard(client)

    def question_to(self, client: str) -> Message | None:
        """What a client was asked when it was last left out."""
        return self._unanswered.get(client)

    def open_questions(self) -> list[Message]:
        """What was asked of clients that have shown no life since."""
        return [self._unanswered[client] for client in self._clients if client in self._silent]

    def claims(self, since: int, round_index: int) -> Claims:
        """What other hubs are sent with the scores of a round: the absences from round ``since`` on."""
        spans: dict[str, list[int]] = {}
        for past in range(since, round_index):
            for index in self.out(past):
                spans.setdefault(self._clients[index], []).append(past)
        absent = {client: spans[client] for client in self._clients if client in spans}
        unscored = [self._clients[index] for index in self.out(round_index, QUESTIONS[0])]
        return Claims(absent, unscored)


class Questions:
    """The dialogue with one silo's clients."""

    def __init__(
        self, job: Job, silo: int, compute: HubCompute, run: str, absences: Iterable[Absence], free_from: int
    ) -> None:
        """Take all ``absences`` so far; from round ``free_from`` on a client may be left out, or come back."""
        self._free_from = free_from
        self._hub, self.clients, self._compute, self._run = job.hubs[silo], job.clients(silo), compute, run
        self._place = {client: index for index, client in enumerate(self.clients)}
        # A silo alone exchanges nothing: its clients step at once.
        self._answers_to: dict[type[Message], tuple[type[Message], ...]] = {
            Evaluate: (Scores, Diverged),
            Begin: (Phi if job.peers(silo) else ClientBlock, Diverged),
            Steps: (ClientBlock, Diverged),
        }
        self._adds_up = job.variant.summed_blocks is not None
        self._fewest = FEWEST_LEFT if job.config.exchange.protect_blocks else 1
        self._questions: Sequence[Message] = ()
        self._has_grace = job.config.federation.client_grace_s is not None
        self.absences = Absences(self.clients, absences)
        self.asked: dict[str, Message] = {}
        """By client: what it has not answered."""
        self._are_over, self._renewal = False, 0
        self._answers: dict[str, Message] = {}

    def ask(self, round_index: int, questions: Sequence[Message]) -> list[Instruction]:
        """Ask every client that takes part; ``questions`` are in client order."""
        self._answers.clear()
        self._questions, out = questions, self.absences.out(round_index, questions[0].kind)
        asked = [one for index, one in enumerate(questions) if index not in out] if out else questions
        if self._adds_up and self._wants_block(questions[0]):
            clients = tuple(index for index in range(len(questions)) if index not in out)
            rows = sum(self._compute.rows_of(index, held_out=False) for index in clients)
            asked = [one.replace(group=Group(clients, rows, self._renewal)) for one in asked]
        self.asked = {one.receiver: one for one in asked}
        return [*asked]

    def renew_masks(self) -> None:
        """Clients have other masks from now on: those who have sent a block of this round are asked once more.

        They are when they are ready, see :meth:`back`.
        """
        self._renewal += 1
        if self._questions and self._adds_up and self._wants_block(self._questions[0]) and not self._are_over:
            self.ask(self._questions[0].round, self._questions)

    def _wants_block(self, question: Message) -> bool:
        return ClientBlock in self._answers_to[type(question)]

    def ask_with_block(
        self, kind: type[Begin | Evaluate], round_index: int, block: Tree, carried: Sequence[Tree] = ()
    ) -> list[Instruction]:
        """The same, and send the hub's block; and to every client its memory, if there are memories."""
        arrays = named(named_leaves(block))
        own = [{"memory": named(named_leaves(memory))} for memory in carried] or [{}] * len(self.clients)
        return self.ask(
            round_index,
            [
                kind(self._hub, client, round_index, self._run, block=arrays, **memory)  # type: ignore[arg-type]
                for client, memory in zip(self.clients, own, strict=True)
            ],
        )

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
        if asked is not None and message.round == asked.round and type(message) in self._answers_to[type(asked)]:
            check_answer(message, self._place[client], self._compute)
            if type(message) is not Phi:
                _check_group(message, asked)
            del self.asked[client]
            self._answers[client] = message
            return
        missed = self.absences.question_to(client)
        if missed is None or message.round != missed.round or type(message) not in self._answers_to[type(missed)]:
            raise RejectedMessage(f"nobody asked for '{message.kind}' of round {message.round}")
        self.absences.show_life(client)

    def take_back(self, round_index: int) -> list[Absence]:
        """A round begins: those who have shown life take part again."""
        return self.absences.take_back(round_index) if round_index >= self._free_from else []

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
        if self.asked.get(question.receiver) is not question:
            return [question]
        del self.asked[question.receiver]
        left_out = self.absences.leave_out(question)
        if self._adds_up and self._wants_block(question):
            # Those who have answered did so with masks that cancel only with the one that is gone.
            return [left_out, *self.ask(question.round, self._questions)]
        return [left_out]

    def back(self, client: str, block: Tree, carried: Sequence[Tree] = ()) -> list[Message]:
        """What a client that was away must be asked again; the round began with ``block`` and these memories."""
        self.absences.show_life(client)
        message = self.asked.get(client)
        if message is None:
            return []
        # Before its steps it needs the round's block again.
        memory = named(named_leaves(carried[self._place[client]])) if carried else {}
        begin = Begin(self._hub, client, message.round, self._run, block=named(named_leaves(block)), memory=memory)
        return [begin, message] if isinstance(message, Steps) else [message]


def _check_group(message: Message, asked: Message) -> None:
    """Refuse a block with the masks of another group; one that cannot be masked ends the run."""
    if isinstance(message, Diverged) and message.reason:
        raise IncompatibleParties(message.reason)
    if isinstance(message, ClientBlock) and message.group != getattr(asked, "group", None):
        raise RejectedMessage("it is for the sum of other clients' blocks than are asked for now")


def check_answer(message: Message, client: int, compute: HubCompute) -> None:
    """Refuse an answer whose arrays do not fit the client's rows."""
    dtype, outputs = compute.settings.dtype, compute.phi_width
    if isinstance(message, Phi):
        rounds = compute.sends(message.round)
        if len(message.phi) != len(rounds):
            raise RejectedMessage(f"'phi' is of {len(message.phi)} rounds, not of {len(rounds)}")
        for sent, round_index in zip(message.phi, rounds, strict=True):
            take_all(sent, compute.links.rows_layout(compute.count(round_index, client)))
    elif isinstance(message, ClientBlock):
        take_all(message.block, compute.block_layout)
        take_all(message.memory, compute.memory_layout)
    elif isinstance(message, Scores):
        take(message.train, "train", dtype, [compute.rows_of(client, held_out=False), outputs])
        held_out = compute.rows_of(client, held_out=True)
        if message.test is not None:
            take(message.test, "test", dtype, [held_out, outputs])
        elif held_out:
            raise RejectedMessage("it has no array 'test'")
