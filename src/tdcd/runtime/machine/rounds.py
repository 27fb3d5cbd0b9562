"""A hub's communication rounds, as a state machine: messages in, instructions out.

==========  ==========================================================================================
evaluating  the clients' scores of all samples, sent to the other hubs
exchanging  phi from the clients, sent to the other hubs; then theirs of this round's minibatches, or the slopes
certifying  a line's certificate, between two other phases: see :mod:`tdcd.runtime.machine.certification`
stepping    the clients' blocks after their local steps; their average begins the next round
decrypting  where slopes are encrypted: the other hubs' masked sums, or what was decrypted of this one's
closing     all other hubs' scores, at the end or after a client's block stopped being finite
sharing     the other silos' blocks, if all agreed to share the model
==========  ==========================================================================================

A phase ends when everybody's part is there, in whatever order the parts came; sums run in silo and client order. Phi is
sent as many rounds before its own as rounds overlap, see :mod:`tdcd.core.family.overlap`. What a hub has sent its peers
it can send again, byte for byte, for this round and those just before it. With ``federation.client_grace_s`` it
may continue without a client, see :mod:`tdcd.runtime.machine.questions`.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from tdcd.core.family.scaled import Window
from tdcd.core.objective import Tree
from tdcd.core.round import FlowName
from tdcd.core.shared_rows import SharedCounts
from tdcd.core.trees import map_tree, named_leaves
from tdcd.records.history import Record
from tdcd.runtime.compute.hub_compute import CARRIED, HubCompute
from tdcd.runtime.compute.line_proof import LineProof
from tdcd.runtime.compute.links import MEMORY
from tdcd.runtime.job import Job
from tdcd.runtime.machine.certification import Certification
from tdcd.runtime.machine.evaluations import Evaluations, Records
from tdcd.runtime.machine.exchange import HubExchange, Key, begun, kept_rounds, lost
from tdcd.runtime.machine.instructions import Absence, Append, End, HubState, Instruction, Save
from tdcd.runtime.machine.parts import check_part, preparation_in, preparation_text
from tdcd.runtime.machine.questions import Questions
from tdcd.runtime.messages.messages import (
    Diverged,
    EndStatus,
    Gone,
    ModelFacts,
    Opening,
    Part,
    PartFacts,
    ScoresFacts,
    Want,
)
from tdcd.runtime.messages.structure import Arrays, Message, NamedArrays, arrays_of, named
from tdcd.runtime.messages.validation import are_finite
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.tables.preparation import Preparation


class NotFinite(Exception):  # noqa: N818
    """Something of this silo is too large for a number; the text says what."""


class HubBlock:
    """The block that a silo's rounds begin with; that of a slow silo moves when its period is over."""

    def __init__(self, compute: HubCompute, restored: HubState | None) -> None:
        """Before round 0, or as it was saved."""
        self._compute, self._variant, self._is_steered = compute, compute.variant, compute.variant.is_steered
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
        if diverged and not self._is_steered:
            self.fail(f"the block of {diverged[0]}", round_index)
            return
        blocks = [arrays_of(answer.arrays) if isinstance(answer, Part) else None for answer in answers]
        if diverged:
            # Steered steps are not taken where this leads, and taken back with the next line.
            average = map_tree(lambda leaf: np.full_like(leaf, np.nan), self.block)
        else:
            average = self._compute.average(round_index, self.block, blocks)
        moved = self._compute.next_block(self.block, average, self._memory)
        if not are_finite(named_leaves(moved[0]).values()):
            self.fail("the block of the hub", round_index)
            return
        # The memory of a client without an answer stays.
        each = zip(self.carried, blocks, strict=True) if self.carried else ()
        self._moved = (*moved, [before if sent is None else self._compute.memory_of(sent) for before, sent in each])

    def products(self, round_index: int) -> Arrays:
        """What is sent of the newest gradient with phi."""
        return self._compute.products_part(round_index, self._memory)

    def meet(self, total: Any) -> None:
        """Take the sum of what all hubs sent of their newest gradients."""
        self._memory = self._variant.met(self._memory, total, self._compute.round.num_silos)

    def descend(self, round_index: int, gradient: NDArray[Any]) -> None:
        """Take a step along a gradient that the hub itself has: it begins as its clients' steps would."""
        average = self._compute.descended(self.block, gradient)
        moved = self._compute.next_block(self.block, average, self._memory)
        if not are_finite(named_leaves(moved[0]).values()):
            self.fail("the block of the hub", round_index)
            return
        self._moved = (*moved, [])

    @property
    def penalty(self) -> float:
        """The regulariser of the block; infinite where a steered step was not finite, so that it is taken back."""
        is_lost = self._is_steered and self._variant.is_lost(self._memory)
        return math.inf if is_lost else self._compute.penalty(self.block)

    def fail(self, what: str, round_index: int) -> None:
        """Something is not finite, in the local steps of a round or before those of the next."""
        self.failed, self.failed_in = what, round_index

    def move(self) -> None:
        """What the steps gave is the block from now on."""
        if self._moved is not None:
            (self.block, self._memory, self.carried), self._moved = self._moved, None

    def steer(self, factor: float, block: Tree | None, wait: int) -> None:
        """Let the steps that follow be of another length; with another block they begin after ``wait`` steps."""
        self._memory = self._variant.with_factor(self._memory, factor, wait=None if block is None else wait)
        self.block = self.block if block is None else block

    def sent(self) -> list[NamedArrays]:
        """What each client is sent of it, in client order: the block, and its own memory if there are memories."""
        block = named(named_leaves(self.block))
        memories = [{f"{MEMORY}{name}": leaf for name, leaf in named_leaves(memory).items()} for memory in self.carried]
        return [{**block, **named(memory)} for memory in memories] or [block] * self._compute.num_clients

    def window(self) -> Window | None:
        """What the hub's update remembers of the last rounds."""
        return self._compute.variant.window(self._memory)

    def memories(self) -> Arrays:
        """What the hub's update remembers, and every client's memory, by name."""
        carried = {
            f"{CARRIED}{client}.{name}": leaf
            for client, memory in enumerate(self.carried)
            for name, leaf in named_leaves(memory).items()
        }
        return {**named_leaves(self._memory), **carried}


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
        self.timing, self._last, self._has_labels = job.timing, job.config.train.rounds, job.has_labels(silo)
        self.round, self.phase = 0 if restored is None else restored.round, ""
        self._steps: dict[str, Callable[[], list[Instruction]]] = {
            "evaluating": self._scored,
            "exchanging": self._exchanged,
            "certifying": self._certified,
            "stepping": self._stepped,
            "decrypting": self._decrypted,
            "closing": self._closed,
            "sharing": self._shared,
        }
        self._own = HubBlock(compute, restored)
        self._certification: Certification | None = None
        self._interrupted = ""
        """The phase that continues after a certificate."""
        self._records: Records | None = None
        self._rows: tuple[str, ...] = ()
        self._key: NamedArrays = {}
        """Of the hub with the labels, where slopes are encrypted: what clients are sent once."""
        self._has_key: set[str] = set()
        self._hubs: Mapping[str, str] = {}
        self.exchange = HubExchange(self.name, job.topology, run, self.timing)
        between_hubs = [flow for flow in job.topology.round.training if flow.link == "hub_to_hub"]
        self._flows: list[FlowName] = [flow.name for flow in between_hubs if flow.within is None]
        """What hubs exchange in a round: phi, slopes if one silo has the labels, and sums if those are encrypted."""
        self._before_steps: list[FlowName] = [flow for flow in self._flows if flow in ("phi", "slope")]
        # A hub that comes back asks at once for what it may have missed.
        self._behind, self._wanted_in = -1, ("", -1)
        if restored is not None:
            self._behind = restored.round + 1 + self.exchange.most_ahead
            self.exchange.restore(restored.outbox, restored.digests, restored.chain or {}, restored.round)
        compute.links.follow(self.exchange.past)
        self.evaluations = Evaluations(silo, job, compute, restored)
        # What it may have sent its peers before it came back, it must send them again with the same clients.
        self.questions = Questions(job, silo, compute, run, absences, self.round + kept_rounds(self.timing))

    def begin(self, openings: Sequence[Opening], rows: tuple[str, ...], hubs: Mapping[str, str]) -> list[Instruction]:
        """Start the round that the hub stands at.

        Args:
            openings: of all hubs, in silo order.
            rows: a digest of each client's rows.
            hubs: by which nonce and key each hub is in this run.
        """
        self._rows, self._hubs = rows, hubs
        self.compute.meet([opening.parameters for opening in openings])
        self._key = next((opening.key for opening in openings if opening.key), {})
        names = ("parameters", "block_up", "memory")
        sizes = ([getattr(opening, name) for opening in openings] for name in names)
        held = [(sum(opening.clients), sum(opening.clients) + opening.held_out) for opening in openings]
        parameters, blocks_up, memories = sizes
        rows_held = held if self.job.may_lack_samples else []
        shared = [None if opening.shared is None else SharedCounts(*astuple(opening.shared)) for opening in openings]
        self._records = Records(self.job, self.compute, parameters, blocks_up, memories, rows_held, shared)
        return self._enter()

    def peer_part(self, part: Part) -> None:
        """A peer's part of this round's exchange, or of a later one's if the peer is ahead; scores may be late."""
        oldest = self.round if part.flow in self._flows else self.evaluations.oldest(self.round)
        if not oldest <= part.round <= self.round + self.exchange.most_ahead:
            raise RejectedMessage(f"it is of round {part.round}, and this is round {self.round}")
        if part.sender not in self.exchange.senders.get(part.flow, ()):
            raise RejectedMessage(f"a hub was not to send '{part.flow}'")
        check_part(part, self.job, self.compute)
        self.exchange.receive(part)

    def peer_forgot(self, message: Gone) -> None:
        """A peer no longer has what this hub asked for: if that is still wanted, there is no way on."""
        if (message.what, message.round) not in [(part.what, part.round) for part in self.wants(message.sender)]:
            raise RejectedMessage(f"'{message.what}' of round {message.round} is not waited for")
        raise lost(self.name, self.round, message)

    def advance(self) -> list[Instruction]:
        """Everything that follows from what has arrived."""
        out: list[Instruction] = []
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
        return self.questions.asked.keys() or self.exchange.lacking(self._awaited())

    def remind(self) -> list[Message]:
        """Ask the clients that are ready, and the peers, for what this phase waits for."""
        peers = self.exchange.lacking(self._awaited())
        return [*self.questions.asked.values(), *(want for peer in peers for want in self.wants(peer))]

    def wants(self, peer: str) -> list[Want]:
        """What this phase lacks of a peer."""
        return [] if self.questions.asked else self.exchange.wants(peer, self._awaited())

    def back(self, client: str) -> list[Message]:
        """What a client that was away must be asked again."""
        self._has_key.discard(client)
        return [self._with_key(message) for message in self.questions.back(client, self._own.sent())]

    def _with_key(self, message: Message) -> Message:
        """A question about encrypted slopes, with the key if the client does not have it."""
        if not isinstance(message, Part) or message.flow != "sealed" or message.receiver in self._has_key:
            return message
        self._has_key.add(message.receiver)
        return message.replace(arrays={**message.arrays, **self._key})

    def _awaited(self) -> list[Key]:
        """The parts of every peer that have to be there before the hub leaves this phase of this round."""
        if self.phase == "exchanging":
            return [*((flow, self.round) for flow in self._before_steps), *self.evaluations.figures_in(self.round)]
        if self.phase == "decrypting":
            return [("masked", self.round), ("sums", self.round)]
        if self.phase == "certifying" and self._certification is not None:
            return self._certification.awaited
        if self.phase == "closing":
            waiting = [key for record in self.evaluations.waiting for key in self.evaluations.of(record)]
            begins = begun(self._own.failed_in, self.round, self.timing, self._last)
            return [
                *dict.fromkeys([*waiting, *(begins if self._own.failed else self.evaluations.figures_in(self.round))])
            ]
        return [("model", self.round)] if self.phase == "sharing" else []

    # The phases.

    def _enter(self) -> list[Instruction]:
        if self.evaluations.scored_in(self.round):
            self.phase = "evaluating"
            block = named(named_leaves(self._own.block))
            return self.questions.ask("evaluated", self.round, [block] * len(self.clients))
        return self._exchange()

    def _scored(self) -> list[Instruction]:
        """All clients' scores are there."""
        out: list[Instruction] = []
        absent, unscored = self.questions.absences.claims(self.evaluations.recorded, self.round)
        for round_index in self.evaluations.scored_in(self.round):
            answers = self._arrays("scores")
            penalty = self._own.penalty
            if not math.isfinite(penalty) and self.job.stopping.steering is None:
                raise NotFinite(f"the sum of squares of the block of {self.name}")
            arrays = self.compute.scores_part(round_index, self._own.block, answers)
            facts = ScoresFacts(penalty=penalty, absent=absent, unscored=unscored)
            out += self.exchange.publish(self._part("scores", round_index, arrays, facts))
            self.evaluations.note_sent(round_index, self._own.block, self._own.window)
        out += self._record()
        return [*out, *self._exchange()] if self.phase == "evaluating" else out

    def _arrays(self, what: str) -> list[Arrays | None]:
        """What every client answered, in client order; None for those that the hub continues without."""
        answers = self.questions.answers()
        for answer in answers:
            if isinstance(answer, Diverged):
                raise NotFinite(f"the {what} of {answer.sender}")
        return [arrays_of(answer.arrays) if isinstance(answer, Part) else None for answer in answers]

    def _exchange(self) -> list[Instruction]:
        if self.round == self._last or not self.timing.steps_in(self.silo, self.round):
            self.phase = "closing" if self.round == self._last else "exchanging"
            return []
        # A silo alone has nothing to exchange: its clients step at once.
        self.phase = "exchanging" if self.peers else "stepping"
        blocks = self._own.sent()
        if not self.peers and self.compute.round.mixes:
            self._own.meet(self._own.products(self.round)["step_products"])
        if not self.peers and not self.job.variant.all_answer:
            # Nothing is exchanged: clients learn with the block who takes part.
            left = self.compute.left(self.round, None, self.questions.without(self.round, "block"))
            blocks = [{**block, **named(own)} for block, own in zip(blocks, left, strict=True)]
        return self.questions.ask("block", self.round, blocks)

    def _late_wants(self) -> list[Instruction]:
        """What a hub that came back asks its peers for, once in a phase."""
        if self.round > self._behind or self._wanted_in == (self.phase, self.round):
            return []
        self._wanted_in = self.phase, self.round
        return [want for peer in self.peers for want in self.wants(peer)]

    def _part(
        self,
        flow: FlowName,
        round_index: int,
        arrays: Arrays,
        facts: PartFacts | None = None,
    ) -> Part:
        """This hub's part of a flow, for every hub that is sent it."""
        digests = dict(self.exchange.digests.get(self.round - 1, {}))
        return Part(self.name, "", round_index, self.run, flow=flow, arrays=named(arrays), digests=digests, facts=facts)

    def _certificate_part(
        self, flow: FlowName, round_index: int, arrays: Arrays, facts: PartFacts | None = None
    ) -> Part:
        """Without digests: where rounds overlap, a hub that came back certifies a line in another round than before."""
        return self._part(flow, round_index, arrays, facts).replace(digests={})

    def _record(self) -> list[Instruction]:
        """The lines of the history whose scores are all there, in order; one of them may end the run."""
        out: list[Instruction] = []
        if not self.evaluations.waiting and self.evaluations.candidates.ended_at is None:
            return out
        is_over = self.phase in ("", "sharing")
        for line in () if is_over else self.evaluations.complete(self.exchange, self._records, self._part):
            out.append(line)
            if isinstance(line, Append) and line.record.diverged:
                failure = self.job.stopping.failure(self.evaluations.candidates.control)
                reason = f"the loss stopped being a finite number in round {line.record.round}{failure}"
                return [*out, *self._over("diverged", reason)]
        if not is_over and self.evaluations.held is not None:
            return out + self._certify(self.evaluations.held.record.round)
        ended = self.evaluations.candidates.ended_at
        return out if ended is None or is_over else out + self._conclude(ended, self.evaluations.of(ended))

    def _certify(self, round_index: int) -> list[Instruction]:
        """Begin the certificate of a line; the phase continues after it."""
        proof = LineProof(self.compute, round_index, *self.evaluations.uncertified.take(round_index))
        self._certification = Certification(
            self.job, self.silo, round_index, proof, self.exchange, self.questions, self._certificate_part
        )
        self._interrupted, self.phase = self.phase, "certifying"
        return self._certification.advance()

    def _certified(self) -> list[Instruction]:
        assert self._certification is not None
        before = self._certification.awaited
        out = self._certification.advance()
        if not self._certification.is_over:
            if self._certification.awaited != before:
                self._wanted_in = ("", -1)
            return [*out, *self._late_wants()]
        out.append(self.evaluations.release(self._certification.certificate))
        self.phase, self._certification = self._interrupted, None
        # There may be more lines, or this one ended the run.
        out += self._record()
        return [*out, *self._exchange()] if self.phase == "evaluating" else out

    def _exchanged(self) -> list[Instruction]:
        """All clients' phi is there."""
        out: list[Instruction] = []
        for round_index in self.compute.sends(self.round):
            if ("phi", round_index) not in self.exchange.outbox:
                phi = self.compute.phi_part(round_index, self._arrays("phi"))
                sent = {**phi, **self._own.products(round_index)}
                out += self.exchange.publish(self._part("phi", round_index, sent))
        out += self._record()
        if self.phase != "exchanging":
            return out
        if self.exchange.lacking(self._awaited()):
            return [*out, *self._late_wants()]
        phis = [arrays_of(part.arrays) for part in self.exchange.parts("phi", self.round)]
        if self.name == self.job.topology.label_hub:
            slopes = self.compute.slope_part(self.round, phis)
            if not slopes:
                raise NotFinite(f"the sum of all silos' phi at {self.name}")
            if self.compute.round.mixes:
                slopes = {**slopes, "step_sums": self.compute.products_sum(phis)}
            out += self.exchange.publish(self._part("slope", self.round, slopes))
        # Compare what hubs say that they received.
        self.exchange.settle(self.round, self._awaited())
        if not self.timing.steps_in(self.silo, self.round) or self.round + self.timing.period(self.silo) > self._last:
            return out + self._next_round()
        if not self._has_labels:
            phis = [arrays_of(part.arrays) for part in self.exchange.parts("slope", self.round)]
        if self.compute.encrypted is not None and not self._has_labels:
            self.phase = "stepping"
            asked = self.questions.ask("sealed", self.round, [named(phis[0])] * len(self.clients))
            return [*out, *(self._with_key(item) if isinstance(item, Part) else item for item in asked)]
        if self.compute.round.mixes:
            self._own.meet(self.compute.products_sum(phis) if self._has_labels else phis[0]["step_sums"])
        received = self.compute.project(self.round, phis, self.questions.without(self.round, "block"))
        if not received:
            self._own.fail(f"the sum of the other silos' phi at {self.name}", self.round)
            return out + self._next_round()
        self.phase = "stepping"
        return out + self.questions.ask("received", self.round, [named(item) for item in received])

    def _stepped(self) -> list[Instruction]:
        encrypted, out = self.compute.encrypted, list[Instruction]()
        if encrypted is not None and not self._has_labels:
            shares = [share for share in self._arrays("share") if share is not None]
            out += self.exchange.publish(self._part("masked", self.round, encrypted.masked(self.round, shares)))
        else:
            self._own.step(self.round, self.questions.answers())
        if encrypted is None:
            return self._next_round()
        self.phase = "decrypting"
        return out

    def _decrypted(self) -> list[Instruction]:
        """At the hub with the labels, all other hubs' sums are there; at another one, what was decrypted."""
        encrypted = self.compute.encrypted
        assert encrypted is not None
        if self.exchange.lacking(self._awaited()):
            return self._late_wants()
        masked = [
            (self.job.hubs.index(part.sender), arrays_of(part.arrays))
            for part in self.exchange.parts("masked", self.round)
        ]
        if self._has_labels:
            sums = self._part("sums", self.round, encrypted.decrypted(masked))
            return [*self.exchange.publish(sums), *self._next_round()]
        own = next(arrays for silo, arrays in masked if silo == self.silo)
        numbers = self.exchange.parts("sums", self.round)[0].arrays["sums"].values
        gradient = encrypted.gradient(self.round, own, numbers, self.job.settings.dtype)
        self._own.descend(self.round, gradient)
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
        if (steered := self.evaluations.candidates.steered(self.round)) is not None:
            assert self.job.stopping.steering is not None
            self._own.steer(*steered, self.job.stopping.steering.wait // self.timing.period(self.silo))
        self.exchange.forget(self.round, self.evaluations.oldest(self.round))
        begun = [*self.questions.absences.take_back(self.round), *self._enter()]
        if not is_period_over and self.round != self._last:
            # Between two of its steps, a slow silo goes back to the first of them.
            return begun
        return [*begun, Save(self._state())]

    def _state(self) -> HubState:
        """All that the hub needs to continue from the start of this round."""
        own, evaluations = self._own, self.evaluations
        return HubState(
            self.run,
            self.round,
            named_leaves(own.block),
            tuple(self.exchange.outbox.values()),
            dict(self.exchange.digests),
            evaluations.recorded,
            rows=self._rows,
            memory=own.memories(),
            unrecorded=tuple(evaluations.waiting),
            best=evaluations.candidates.best,
            courses=evaluations.candidates.courses,
            control=evaluations.candidates.control,
            candidates=evaluations.candidates.arrays,
            uncertified=evaluations.uncertified.arrays if evaluations.waiting else {},
            certified=evaluations.certified,
            proven=evaluations.proven,
            hubs=self._hubs,
            chain=dict(self.exchange.chain),
        )

    def _closed(self) -> list[Instruction]:
        out = self._record()
        if self.phase != "closing":
            return out
        if self.exchange.lacking(self._awaited()):
            return [*out, *self._late_wants()]
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
        text = None if self.preparation is None else preparation_text(self.preparation)
        model = self._part("model", round_index, named_leaves(self.final()[1]), ModelFacts(preparation=text))
        return [*self.exchange.publish(model.replace(digests=self.exchange.digests[round_index]))]

    def _shared(self) -> list[Instruction]:
        if self.exchange.lacking(self._awaited()):
            return self._late_wants()
        self.exchange.settle(self.round + 1, self._awaited())
        return self._over(*self.evaluations.candidates.ending(self.round))

    def final(self) -> tuple[int, Tree]:
        """The round whose model stays, if the run ends now, and the silo's block of it."""
        return self.evaluations.candidates.model(self.round, self._own.block)

    def models(self) -> dict[str, Arrays]:
        """Every silo's block by hub: this one's, and the others' if they were shared."""
        blocks = {part.sender: arrays_of(part.arrays) for part in self._shared_models()}
        return {self.name: named_leaves(self.final()[1]), **blocks}

    def preparations(self) -> dict[str, Preparation]:
        """How the other silos' columns become features, if that was shared."""
        prepared = {part.sender: preparation_in(part) for part in self._shared_models()}
        return {hub: preparation for hub, preparation in prepared.items() if preparation is not None}

    def _shared_models(self) -> list[Part]:
        return [part for part in self.exchange.parts("model", self.round) if part.sender != self.name]

    def _over(self, status: EndStatus, reason: str = "", failed_in: int | None = None) -> list[Instruction]:
        self.phase = ""
        return [End(status, reason, failed_in is not None, failed_in)]

    def has_reached(self, round_index: int) -> bool:
        """Whether everything before the local steps of a round is done here."""
        if self.evaluations.is_waiting(round_index):
            return False
        done = self.phase in ("stepping", "decrypting", "closing")
        if not self._has_labels and self.phase == "exchanging":
            # Slopes that are not finite are no use here: what others may need of this round is its phi.
            done = ("phi", self.round) in self.exchange.outbox
        return self.round > round_index or (self.round == round_index and done)

    def divergence(self, round_index: int) -> Record:
        """The line of the history that says that the run diverged in this round."""
        assert self._records is not None
        return self._records.diverged(round_index, self.evaluations.certified)
