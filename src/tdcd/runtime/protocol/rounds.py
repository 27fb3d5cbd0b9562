"""A hub's communication rounds, as a state machine: messages in, instructions out.

==========  ==========================================================================================
evaluating  the scores of all samples are there: a line of the history
exchanging  phi of this round's minibatches, from the clients and then from the other hubs
stepping    the clients' blocks after their local steps; their average begins the next round
sharing     the other silos' blocks, if all agreed to share the model
==========  ==========================================================================================

A phase ends when everybody's part is there, in whatever order the parts came; sums run in silo and client order. What
a hub has told its peers it can tell again, byte for byte, for this round and those just before it. With
``federation.client_grace_s`` it may go on without a client, see :mod:`tdcd.runtime.protocol.absence`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tdcd.core.objective import Tree
from tdcd.records.history import Record
from tdcd.records.run_folder import named_leaves
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.protocol.absence import Absences, union
from tdcd.runtime.protocol.exchange import KEPT_ROUNDS, Exchange
from tdcd.runtime.protocol.instructions import Absence, Append, End, Instruction, Save, State
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.making import Header, model_part, phi_part, remaining, scores_part
from tdcd.runtime.protocol.messages import (
    AnyPart,
    Begin,
    Block,
    Diverged,
    Evaluate,
    Gone,
    Model,
    Phi,
    PhiPart,
    Scores,
    ScoresPart,
    Status,
    Steps,
    Want,
)
from tdcd.runtime.protocol.parts import check_answer, check_part
from tdcd.runtime.protocol.records import Records
from tdcd.runtime.protocol.sample_index import WAY_ON, Lost
from tdcd.runtime.protocol.sharing import blocks_in, preparations_in
from tdcd.runtime.protocol.structure import Array, Arrays, Message, arrays_of, named
from tdcd.runtime.protocol.wire import RejectedMessage
from tdcd.tables.preparation import Preparation

_SHARED_IN: dict[str, type[AnyPart]] = {"evaluating": ScoresPart, "exchanging": PhiPart, "sharing": Model}
"""What hubs exchange in each phase."""
_ANSWER_TO: dict[str, type[Message]] = {"evaluate": Scores, "begin": Phi, "steps": Block}


class Rounds:
    """All rounds of one hub."""

    def __init__(
        self,
        job: Job,
        silo: int,
        compute: HubCompute,
        run: str,
        restored: State | None = None,
        preparation: Preparation | None = None,
        absences: Sequence[Absence] = (),
    ) -> None:
        """Stand at the start of round 0, or of the round that was saved; ``preparation`` goes with a shared model."""
        self.preparation = preparation
        self.job, self.silo, self.compute, self.run = job, silo, compute, run
        self.name, self.clients, self.peers = job.hubs[silo], job.clients(silo), job.peers(silo)
        self.round, self.phase = 0, ""
        self.block: Tree = compute.start
        self._memory: Tree = compute.memory
        self.parameters: list[int] = []
        """Of each silo's block; known when the hubs have met."""
        self._asked: dict[str, Message] = {}
        self._answers: dict[str, Message] = {}
        self.exchange = Exchange(self.name, job.hubs, run)
        self.absences = Absences(self.clients, absences)
        self._recorded = 0
        # A hub that comes back asks at once for what it may have missed.
        self._behind = -1
        if restored is not None:
            self.round, self.block = restored.round, compute.tree(restored.block)
            self._memory = compute.remembered(restored.memory)
            self._behind, self._recorded = restored.round + 2, restored.recorded
            self.exchange.restore(restored.outbox, dict(restored.digests or {}))
        # What it may have told its peers before it came back, it must tell them again with the same clients.
        self._free_from = self.round + KEPT_ROUNDS

    # Events.

    def begin(self, parameters: list[int]) -> list[Instruction]:
        """Start the round that the hub stands at; ``parameters`` are those of each silo's block."""
        self.parameters = parameters
        return self._enter()

    def client_answer(self, message: Message) -> None:
        """A client's answer to what it was asked; one that comes too late shows that it is there again."""
        client, asked = message.sender, self._asked.get(message.sender)
        if asked is not None and self._is_answer(message, asked):
            check_answer(message, self.clients.index(client), self.compute)
            del self._asked[client]
            self._answers[client] = message
            return
        missed = self.absences.question_to(client)
        if missed is None or not self._is_answer(message, missed):
            raise RejectedMessage(f"nobody asked for '{message.kind}' of round {message.round}")
        self.absences.show_life(client)

    def _is_answer(self, message: Message, asked: Message) -> bool:
        expected = Block if isinstance(asked, Begin) and not self.peers else _ANSWER_TO[asked.kind]
        return message.round == asked.round and isinstance(message, expected | Diverged)

    def peer_part(self, message: Message) -> None:
        """A peer's part of this round's exchange, or of the next one's if the peer is ahead."""
        if not self.round <= message.round <= self.round + 1:
            raise RejectedMessage(f"it is of round {message.round}, and this is round {self.round}")
        self.exchange.receive(check_part(message, self.job, self.compute))

    def peer_forgot(self, message: Gone) -> None:
        """A peer no longer has what this hub asked for: if that is still wanted, there is no way on."""
        asked, what = (message.what, message.round), message.what
        if message.sender not in self._silent_peers() or asked != (_SHARED_IN[self.phase].tag(), self.round):
            raise RejectedMessage(f"nobody waits for '{what}' of round {message.round}")
        raise Lost(
            f"{self.name} was restored to round {self.round}, and {message.sender} is at round "
            f"{message.now} and no longer has '{what}' of that round. {WAY_ON}"
        )

    def advance(self) -> list[Instruction]:
        """Everything that follows from what has arrived."""
        out: list[Instruction] = []
        while self.phase and not self._asked:
            diverged = next((m.sender for m in self._answers.values() if isinstance(m, Diverged)), None)
            if diverged is not None:
                return [*out, *self._diverged(diverged)]
            step = {
                "evaluating": self._evaluated,
                "exchanging": self._exchanged,
                "stepping": self._stepped,
                "sharing": self._shared,
            }[self.phase]()
            if step is None:
                break
            out += step
        return out

    def open_questions(self) -> list[Message]:
        """What clients that the hub may go on without have not answered, though another client has answered.

        And, of those that it went on without already, what they have not answered.
        """
        has_rows = any(self.compute.rows_of(self.clients.index(client), held_out=False) for client in self._answers)
        is_free = self.job.config.federation.client_grace_s is not None and self.round >= self._free_from
        return [*(self._asked.values() if has_rows and is_free else ()), *self.absences.open_questions()]

    def overdue(self, question: Message) -> list[Instruction]:
        """A question was open for the whole grace period: go on without the answer; or ask again, if it was missed."""
        if question not in self.open_questions():
            return []
        if self._asked.get(question.receiver) is not question:
            return [question]
        del self._asked[question.receiver]
        return [self.absences.leave_out(question)]

    @property
    def has_time(self) -> bool:
        """Whether all of the hub's clients are at work on their steps."""
        return self.phase == "stepping"

    def prefetch_next_round(self) -> None:
        """Work out where the next round's samples are, while there is time."""
        self.compute.layout(self.round + 1)

    # For those who are late, or back.

    def missing(self) -> list[str]:
        """The parties that this phase waits for."""
        return list(self._asked) or self._silent_peers()

    def remind(self) -> list[Message]:
        """Ask the clients that are ready, and the peers, for what this phase waits for."""
        return [*self._asked.values(), *(want for peer in self._silent_peers() for want in self.wants(peer))]

    def client_back(self, client: str) -> list[Message]:
        """What a client that was away must be asked again."""
        self.absences.show_life(client)
        message = self._asked.get(client)
        if message is None:
            return []
        # Before its steps it needs the round's block again.
        begin = Begin(self.name, client, self.round, self.run, block=named(named_leaves(self.block)))
        return [begin, message] if isinstance(message, Steps) else [message]

    def wants(self, peer: str) -> list[Message]:
        """What this phase lacks of a peer."""
        if self._asked or peer not in self._silent_peers():
            return []
        what: Any = _SHARED_IN[self.phase].tag()
        return [Want(self.name, peer, self.round, self.run, what=what)]

    def _silent_peers(self) -> list[str]:
        return self.exchange.silent(_SHARED_IN[self.phase], self.round) if self.phase in _SHARED_IN else []

    # The phases.

    def _enter(self) -> list[Instruction]:
        every, rounds = self.job.config.evaluate.every, self.job.config.train.rounds
        if self.round % every == 0 or self.round == rounds:
            return self._ask_with_block("evaluating", Evaluate)
        return self._exchange()

    def _exchange(self) -> list[Instruction]:
        # A silo alone has nothing to exchange: its clients step at once.
        return self._ask_with_block("exchanging" if self.peers else "stepping", Begin)

    def _ask_with_block(self, phase: str, kind: type[Begin | Evaluate]) -> list[Instruction]:
        """Ask every client that takes part, and send it the hub's block."""
        block = named(named_leaves(self.block))
        return self._ask(phase, [kind(self.name, client, self.round, self.run, block=block) for client in self.clients])

    def _ask(self, phase: str, questions: Sequence[Message]) -> list[Instruction]:
        """Ask every client that takes part, the next phase's first part; ``questions`` are in client order."""
        self.phase = phase
        self._answers.clear()
        out = self.absences.out(self.round, questions[0].kind)
        self._asked = {one.receiver: one for index, one in enumerate(questions) if index not in out}
        return [*self._asked.values()]

    def _answered(self) -> list[Message | None]:
        """What every client answered, in client order; None for those that the hub goes on without."""
        return [self._answers.get(client) for client in self.clients]

    def _tell(self, kind: type[AnyPart], part: Callable[[], AnyPart]) -> list[Message]:
        """Tell all peers, once per round; afterwards only those who ask again."""
        if self.exchange.sent(kind.tag(), self.round) is not None:
            return []
        told = self.exchange.tell(part())
        return told + [w for peer in self.peers for w in self.wants(peer)] if self.round <= self._behind else told

    def _header(self) -> Header:
        return Header(self.name, self.round, self.run, dict(self.exchange.digests))

    def _scores_part(self) -> ScoresPart:
        claims = self.absences.claims(self._recorded, self.round)
        return scores_part(self._header(), self.compute, self.block, self._answered(), claims)

    def _phi_part(self) -> PhiPart:
        return phi_part(self._header(), self.compute, self._answered())

    def _model_part(self) -> Model:
        return model_part(self._header(), self.block, self.preparation)

    def _evaluated(self) -> list[Instruction] | None:
        out: list[Instruction] = [*self._tell(ScoresPart, self._scores_part)]
        parts = self.exchange.parts(ScoresPart, self.round)
        if parts is None:
            return out or None
        records, is_last = Records(self.job, self.compute, self.parameters), self.round == self.job.config.train.rounds
        record = records.evaluated(self.round, parts)
        if record is not None:
            out.append(Append(record, records.test_scores(parts) if is_last else None))
            self._recorded = self.round
            if record.diverged:
                return [*out, *self._over("diverged", f"the loss stopped being a finite number in round {self.round}")]
        if not is_last:
            return out + self._exchange()
        if not self.job.config.federation.share_model:
            return [*out, *self._over("finished")]
        self.phase = "sharing"
        return [*out, *self._tell(Model, self._model_part)]

    def _exchanged(self) -> list[Instruction] | None:
        out: list[Instruction] = [*self._tell(PhiPart, self._phi_part)]
        parts = self.exchange.parts(PhiPart, self.round)
        if parts is None:
            return out or None
        others = self.compute.project(self.round, [arrays_of(part.arrays) for part in parts])
        absent, without = union(part.absent for part in parts), self.absences.out(self.round, "begin")
        known = self.compute.presence(self.round, absent, without)
        questions = [
            Steps(self.name, client, self.round, self.run, phi_others=Array.of(rows), remaining=remaining(left))
            for client, rows, left in zip(self.clients, others, known, strict=True)
        ]
        return out + self._ask("stepping", questions)

    def _stepped(self) -> list[Instruction]:
        blocks = [arrays_of(answer.block) if isinstance(answer, Block) else None for answer in self._answered()]
        average = self.compute.average(blocks)
        self.block, self._memory = self.compute.next_block(self.block, average, self._memory)
        self.round += 1
        self.exchange.forget(self.round)
        back: list[Absence] = self.absences.take_back(self.round) if self.round >= self._free_from else []
        exchange, block, memory = self.exchange, named_leaves(self.block), named_leaves(self._memory)
        state = State(
            self.run, self.round, block, exchange.outbox, dict(exchange.digests), self._recorded, memory=memory
        )
        return [*back, *self._enter(), Save(state)]

    def _shared(self) -> list[Instruction] | None:
        return None if self._silent_peers() else self._over("finished")

    def models(self) -> dict[str, Arrays]:
        """Every silo's block by hub: this one's, and the others' if they were shared."""
        return {self.name: named_leaves(self.block), **blocks_in(self._models_received())}

    def preparations(self) -> dict[str, Preparation]:
        """How the other silos' columns become features, if that was shared."""
        return preparations_in(self._models_received())

    def _models_received(self) -> list[Model]:
        return self.exchange.received(Model, self.round)

    def _diverged(self, client: str) -> list[Instruction]:
        reason = f"the block of {client} stopped being finite in round {self.round}: the step size is too large"
        return [Append(self.divergence(self.round)), *self._over("diverged", reason, in_block=True)]

    def _over(self, status: Status, reason: str = "", in_block: bool = False) -> list[Instruction]:
        self.phase = ""
        return [End(status, reason, in_block)]

    def has_reached(self, round_index: int) -> bool:
        """Whether everything before the local steps of a round is done here."""
        return self.round > round_index or (self.round == round_index and self.phase == "stepping")

    def divergence(self, round_index: int) -> Record:
        """The line of the history that says that the run diverged in this round."""
        return Records(self.job, self.compute, self.parameters).diverged(round_index)
