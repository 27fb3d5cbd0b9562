"""A hub's communication rounds, as a state machine: messages in, instructions out.

==========  ==========================================================================================
evaluating  the clients' scores of all samples, sent to the other hubs
exchanging  phi from the clients, sent to the other hubs; then theirs of this round's minibatches, or the slopes
stepping    the clients' blocks after their local steps; their average begins the next round
closing     all other hubs' scores, at the end or after a client's block stopped being finite
sharing     the other silos' blocks, if all agreed to share the model
==========  ==========================================================================================

A phase ends when everybody's part is there, in whatever order the parts came; sums run in silo and client order. Phi is
sent as many rounds before its own as rounds overlap, see :class:`tdcd.core.timing.Overlap`. What a hub has sent its
peers it can send again, byte for byte, for this round and those just before it. With ``federation.client_grace_s`` it
may continue without a client, see :mod:`tdcd.runtime.machine.questions`.
"""

from collections.abc import Callable, Collection, Sequence

from tdcd.core.objective import Tree
from tdcd.core.timing import HubTiming
from tdcd.core.trees import named_leaves
from tdcd.records.history import Record
from tdcd.runtime.compute.hub_compute import CARRIED, HubCompute
from tdcd.runtime.job import Job
from tdcd.runtime.machine.evaluations import Evaluations, Records
from tdcd.runtime.machine.exchange import HubExchange, Key, begun, exchange_of, figures_of, kept_rounds, lost
from tdcd.runtime.machine.instructions import Absence, Append, End, HubState, Instruction, Save
from tdcd.runtime.machine.parts import (
    Header,
    NotFinite,
    blocks_in,
    check_part,
    model_part,
    phi_part,
    preparations_in,
    scores_part,
    slope_part,
    steps,
)
from tdcd.runtime.machine.questions import Questions
from tdcd.runtime.messages.messages import (
    Begin,
    ClientBlock,
    Diverged,
    EndStatus,
    Evaluate,
    FiguresPart,
    Gone,
    ModelPart,
    Opening,
    PhiPart,
    ScoresPart,
    SlopePart,
    Want,
)
from tdcd.runtime.messages.structure import Arrays, Message, arrays_of
from tdcd.runtime.messages.validation import are_finite
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.tables.preparation import Preparation


class HubBlock:
    """The block that a silo's rounds begin with; that of a slow silo moves when its period is over."""

    def __init__(self, compute: HubCompute, restored: HubState | None) -> None:
        """Before round 0, or as it was saved."""
        self._compute = compute
        self.block: Tree = compute.start if restored is None else compute.tree(restored.block)
        self._memory: Tree = compute.memory if restored is None else compute.remembered(restored.memory)
        self.carried = compute.carried if restored is None else compute.carried_in(restored.memory)
        """Every client's memory, if their update carries one: clients keep nothing."""
        self._moved: tuple[Tree, Tree, list[Tree]] | None = None
        self.failed = ""
        """What stopped being finite, such as the block of a client."""
        self.failed_in = 0
        """The last round whose local steps everybody began."""

    def step(self, round_index: int, answers: Sequence[Message | None]) -> None:
        """Take the clients' blocks after their local steps; None of those that the hub continues without."""
        diverged = [answer.sender for answer in answers if isinstance(answer, Diverged)]
        if diverged:
            self.fail(f"the block of {diverged[0]}", round_index)
            return
        blocks = [arrays_of(answer.block) if isinstance(answer, ClientBlock) else None for answer in answers]
        average = self._compute.average(round_index, self.block, blocks)
        moved = self._compute.next_block(self.block, average, self._memory)
        if not are_finite(named_leaves(moved[0]).values()):
            self.fail("the block of the hub", round_index)
            return
        self._moved = (*moved, self._carried_by(answers) if self.carried else [])

    def _carried_by(self, answers: Sequence[Message | None]) -> list[Tree]:
        """The clients' memories after a round; that of a client without an answer stays."""
        return [
            self._compute.memory_of(arrays_of(answer.memory)) if isinstance(answer, ClientBlock) else before
            for before, answer in zip(self.carried, answers, strict=False)
        ]

    def fail(self, what: str, round_index: int) -> None:
        """Something is not finite, in the local steps of a round or before those of the next."""
        self.failed, self.failed_in = what, round_index

    def move(self) -> None:
        """What the steps gave is the block from now on."""
        if self._moved is not None:
            (self.block, self._memory, self.carried), self._moved = self._moved, None

    @property
    def arrays(self) -> Arrays:
        """The block's arrays by name."""
        return named_leaves(self.block)

    def _named_memories(self) -> Arrays:
        return {
            f"{CARRIED}{client}.{name}": leaf
            for client, memory in enumerate(self.carried)
            for name, leaf in named_leaves(memory).items()
        }

    def state(self, run: str, round_index: int, exchange: HubExchange, evaluations: Evaluations) -> HubState:
        """All that the hub needs to continue from the start of a round."""
        return HubState(
            run,
            round_index,
            self.arrays,
            exchange.outbox,
            dict(exchange.digests),
            evaluations.recorded,
            memory={**named_leaves(self._memory), **(self._named_memories() if self.carried else {})},
            unrecorded=tuple(evaluations.waiting),
            best=evaluations.candidates.best,
            courses=evaluations.candidates.courses,
            candidates=evaluations.candidates.arrays,
        )


def awaited(
    phase: str, round_index: int, own: HubBlock, evaluations: Evaluations, timing: HubTiming, last: int
) -> list[Key]:
    """The parts that have to be there before a hub leaves this phase of this round; ``last`` is the last round."""
    if phase == "exchanging":
        return [*exchange_of(round_index), *evaluations.figures_in(round_index)]
    if phase == "closing":
        waiting = [key for one in evaluations.waiting for key in figures_of(one)]
        begins = begun(own.failed_in, round_index, timing, last)
        return [*dict.fromkeys([*waiting, *(begins if own.failed else evaluations.figures_in(round_index))])]
    return [(ModelPart, round_index)] if phase == "sharing" else []


class Rounds:
    """All rounds of one hub."""

    def __init__(
        self,
        job: Job,
        silo: int,
        compute: HubCompute,
        run: str,
        restored: HubState | None = None,
        preparation: Preparation | None = None,
        absences: Sequence[Absence] = (),
    ) -> None:
        """Stand at the start of round 0, or of the round that was saved; ``preparation`` goes with a shared model."""
        self.job, self.silo, self.compute, self.run, self.preparation = job, silo, compute, run, preparation
        self.name, self.clients, self.peers = job.hubs[silo], job.clients(silo), job.peers(silo)
        self.timing, self._last = job.timing, job.config.train.rounds
        self.round, self.phase = 0 if restored is None else restored.round, ""
        self._steps: dict[str, Callable[[], list[Instruction]]] = {
            "evaluating": self._scored,
            "exchanging": self._exchanged,
            "stepping": self._stepped,
            "closing": self._closed,
            "sharing": self._shared,
        }
        self._own = HubBlock(compute, restored)
        self._records: Records | None = None
        self.exchange = HubExchange(self.name, job.topology, run, self.timing)
        # A hub that comes back asks at once for what it may have missed.
        self._behind, self._wanted_in = -1, ("", -1)
        if restored is not None:
            self._behind = restored.round + 1 + self.exchange.most_ahead
            self.exchange.restore(restored.outbox, restored.digests, restored.round)
        self.evaluations = Evaluations(silo, job, compute, restored)
        # What it may have sent its peers before it came back, it must send them again with the same clients.
        self.questions = Questions(job, silo, compute, run, absences, self.round + kept_rounds(self.timing))

    @property
    def block(self) -> Tree:
        """The block that the round began with."""
        return self._own.block

    @property
    def carried(self) -> list[Tree]:
        """The memories that the round's clients began with."""
        return self._own.carried

    def begin(self, openings: Sequence[Opening]) -> list[Instruction]:
        """Start the round that the hub stands at; ``openings`` are those of all hubs, in silo order."""
        names = ("parameters", "block_up", "memory")
        sizes = ([getattr(opening, name) for opening in openings] for name in names)
        self._records = Records(self.job, self.compute, *sizes)
        return self._enter()

    def peer_part(self, message: Message) -> None:
        """A peer's part of this round's exchange, or of a later one's if the peer is ahead; scores may be late."""
        is_late = isinstance(message, ScoresPart | FiguresPart | ModelPart)
        oldest = self.evaluations.oldest(self.round) if is_late else self.round
        if not oldest <= message.round <= self.round + self.exchange.most_ahead:
            raise RejectedMessage(f"it is of round {message.round}, and this is round {self.round}")
        self.exchange.receive(check_part(message, self.job, self.compute))

    def peer_forgot(self, message: Gone) -> None:
        """A peer no longer has what this hub asked for: if that is still wanted, there is no way on."""
        if (message.what, message.round) not in [(one.what, one.round) for one in self.wants(message.sender)]:
            raise RejectedMessage(f"nobody waits for '{message.what}' of round {message.round}")
        raise lost(self.name, self.round, message)

    def advance(self) -> list[Instruction]:
        """Everything that follows from what has arrived."""
        out: list[Instruction] = self._record() if self.evaluations.has_news else []
        stage = None
        # A step that leads nowhere waits for other hubs.
        while self.phase and not self.questions.asked and stage != (self.phase, self.round):
            stage = self.phase, self.round
            try:
                out += self._steps[self.phase]()
            except NotFinite as failure:
                # As if in the steps before: others may wait for what there is no more.
                self._own.fail(str(failure), self.round - 1)
                self.phase = "closing"
        return out

    def prefetch_next_round(self) -> None:
        """Work out where the samples of later rounds are, while there is time."""
        self.compute.holdings(self.round + 1 + self.timing.rounds)

    # For those who are late, or back.

    def missing(self) -> Collection[str]:
        """The parties that this phase waits for."""
        return self.questions.asked.keys() or self._silent_peers()

    def remind(self) -> list[Message]:
        """Ask the clients that are ready, and the peers, for what this phase waits for."""
        return [*self.questions.asked.values(), *(want for peer in self._silent_peers() for want in self.wants(peer))]

    def wants(self, peer: str) -> list[Want]:
        """What this phase lacks of a peer."""
        return [] if self.questions.asked else self.exchange.wants(peer, self._awaited())

    def _awaited(self) -> list[Key]:
        """What this phase needs of every peer."""
        return awaited(self.phase, self.round, self._own, self.evaluations, self.timing, self._last)

    def _silent_peers(self) -> list[str]:
        return self.exchange.lacking(self._awaited())

    # The phases.

    def _enter(self) -> list[Instruction]:
        if self.evaluations.scored_in(self.round):
            self.phase = "evaluating"
            return self.questions.ask_with_block(Evaluate, self.round, self.block)
        return self._exchange()

    def _scored(self) -> list[Instruction]:
        """All clients' scores are there."""
        out: list[Instruction] = []
        claims = self.questions.absences.claims(self.evaluations.recorded, self.round)
        for round_index in self.evaluations.scored_in(self.round):
            header, answers = self._header(round_index), self.questions.answers()
            out += self.exchange.publish(scores_part(header, self.compute, self.block, answers, claims))
            self.evaluations.note_sent(round_index, self.block)
        out += self._record()
        return [*out, *self._exchange()] if self.phase == "evaluating" else out

    def _exchange(self) -> list[Instruction]:
        if self.round == self._last or not self.timing.steps_in(self.silo, self.round):
            self.phase = "closing" if self.round == self._last else "exchanging"
            return []
        # A silo alone has nothing to exchange: its clients step at once.
        self.phase = "exchanging" if self.peers else "stepping"
        return self.questions.ask_with_block(Begin, self.round, self.block, self._own.carried)

    def _late_wants(self) -> list[Instruction]:
        """What a hub that came back asks its peers for, once in a phase."""
        if self.round > self._behind or self._wanted_in == (self.phase, self.round):
            return []
        self._wanted_in = self.phase, self.round
        return [want for peer in self.peers for want in self.wants(peer)]

    def _header(self, round_index: int) -> Header:
        return Header(self.name, round_index, self.run, dict(self.exchange.digests.get(self.round - 1, {})))

    def _record(self) -> list[Instruction]:
        """The lines of the history whose scores are all there, in order; one of them may end the run."""
        out: list[Instruction] = []
        is_over = self.phase in ("", "sharing")
        for line in () if is_over else self.evaluations.complete(self.exchange, self._records, self._header):
            out.append(line)
            if isinstance(line, Append) and line.record.diverged:
                reason = f"the loss stopped being a finite number in round {line.record.round}"
                return [*out, *self._over("diverged", reason)]
        ended = self.evaluations.candidates.ended_at
        return out if ended is None or is_over else out + self._conclude(ended, figures_of(ended))

    def _exchanged(self) -> list[Instruction]:
        """All clients' phi is there."""
        out: list[Instruction] = []
        for place, round_index in enumerate(self.compute.sends(self.round)):
            if self.exchange.sent(PhiPart.tag(), round_index) is None:
                out += self.exchange.publish(
                    phi_part(self._header(round_index), self.compute, self.questions.answers(), place)
                )
        if self._silent_peers():
            return [*out, *self._late_wants()]
        out += self._record()
        if self.phase != "exchanging":
            return out
        parts, header = self.exchange.parts(PhiPart, self.round), self._header(self.round)
        if self.name == self.job.topology.label_hub:
            out += self.exchange.publish(slope_part(header, self.compute, parts))
        # Compare what hubs say that they received.
        self.exchange.settle(self.round, exchange_of(self.round) + self.evaluations.figures_in(self.round))
        if not self.timing.steps_in(self.silo, self.round) or self.round + self.timing.period(self.silo) > self._last:
            return out + self._next_round()
        slopes = self.exchange.received(SlopePart, self.round)
        without = self.questions.absences.out(self.round, "begin")
        questions = steps(header, self.clients, self.compute, slopes[0] if slopes else parts, without)
        if not questions:
            self._own.fail(f"the sum of the other silos' phi at {self.name}", self.round)
            return out + self._next_round()
        self.phase = "stepping"
        return out + self.questions.ask(self.round, questions)

    def _stepped(self) -> list[Instruction]:
        self._own.step(self.round, self.questions.answers())
        return self._next_round()

    def _next_round(self) -> list[Instruction]:
        """The next round begins; with it a slow silo's block moves, if its period is over."""
        is_period_over = self.timing.steps_in(self.silo, self.round + 1)
        if is_period_over and self._own.failed:
            # Meanwhile the others have recorded what came in a slow silo's period.
            self._own.failed_in, self.phase = self.round, "closing"
            return []
        if is_period_over:
            self._own.move()
        self.round += 1
        self.exchange.forget(self.round, self.evaluations.oldest(self.round))
        begun = [*self.questions.take_back(self.round), *self._enter()]
        if not is_period_over and self.round != self._last:
            # Between two of its steps, a slow silo goes back to the first of them.
            return begun
        return [*begun, Save(self._own.state(self.run, self.round, self.exchange, self.evaluations))]

    def _closed(self) -> list[Instruction]:
        if self._silent_peers():
            return self._late_wants()
        out = self._record()
        if self.phase != "closing":
            return out
        if self._own.failed:
            what, failed_in = f"{self._own.failed} stopped being finite in round {self.round}", self._own.failed_in
            advice = "the step size is too large, lower train.step_size"
            return [*out, Append(self.divergence(failed_in)), *self._over("diverged", f"{what}: {advice}", failed_in)]
        return [*out, *self._conclude(self.round, self.evaluations.figures_in(self.round))]

    def _conclude(self, round_index: int, keys: list[Key]) -> list[Instruction]:
        """All hubs end the run in this round; its last line is of ``keys``. The model is shared if all agreed."""
        self.round = round_index
        self.questions.end()
        if not self.job.config.federation.share_model:
            return self._over(*self.evaluations.candidates.ending(round_index))
        self.exchange.settle(round_index, keys)
        self.phase = "sharing"
        header = self._header(round_index)._replace(received=self.exchange.digests[round_index])
        return [*self.exchange.publish(model_part(header, self.final()[1], self.preparation))]

    def _shared(self) -> list[Instruction]:
        if self._silent_peers():
            return self._late_wants()
        self.exchange.settle(self.round + 1, [(ModelPart, self.round)])
        return self._over(*self.evaluations.candidates.ending(self.round))

    def final(self) -> tuple[int, Tree]:
        """The round whose model stays, if the run ends now, and the silo's block of it."""
        return self.evaluations.candidates.model(self.round, self.block)

    def models(self) -> dict[str, Arrays]:
        """Every silo's block by hub: this one's, and the others' if they were shared."""
        return {self.name: named_leaves(self.final()[1]), **blocks_in(self.exchange.received(ModelPart, self.round))}

    def preparations(self) -> dict[str, Preparation]:
        """How the other silos' columns become features, if that was shared."""
        return preparations_in(self.exchange.received(ModelPart, self.round))

    def _over(self, status: EndStatus, reason: str = "", failed_in: int | None = None) -> list[Instruction]:
        self.phase = ""
        return [End(status, reason, failed_in is not None, failed_in)]

    def has_reached(self, round_index: int) -> bool:
        """Whether everything before the local steps of a round is done here."""
        if any(one <= round_index for one in self.evaluations.waiting):
            return False
        done = self.phase in ("stepping", "closing")
        if not self.job.has_labels(self.silo) and self.phase == "exchanging":
            # Slopes that are not finite are no use here: what others may need of this round is its phi.
            done = self.exchange.sent(PhiPart.tag(), self.round) is not None
        return self.round > round_index or (self.round == round_index and done)

    def divergence(self, round_index: int) -> Record:
        """The line of the history that says that the run diverged in this round."""
        assert self._records is not None
        return self._records.diverged(round_index)
