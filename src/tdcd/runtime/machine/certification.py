"""The certificate of one line of the history, as a dialogue of a hub with its clients and the other hubs.

It stands between two phases of a round: the hub continues when it is over. It leaves nothing behind but its result: a
hub that comes back begins it anew, and everything in it comes out the same.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tdcd.core.certificate import NOTHING, Certificate, SiloSide
from tdcd.core.round import WITNESSES, FlowName
from tdcd.runtime.compute.line_proof import LineProof
from tdcd.runtime.job import Job
from tdcd.runtime.machine.exchange import HubExchange, Key
from tdcd.runtime.machine.instructions import Instruction
from tdcd.runtime.machine.questions import Questions
from tdcd.runtime.messages.messages import GapFacts, Part, ProofFacts
from tdcd.runtime.messages.structure import Arrays, arrays_of, named


class Certification:
    """One line's certificate."""

    def __init__(
        self,
        job: Job,
        silo: int,
        round_index: int,
        proof: LineProof,
        exchange: HubExchange,
        questions: Questions,
        own_part: Callable[..., Part],
    ) -> None:
        """Take the line's round, and what the hub can compute of it; ``own_part`` makes this hub's part of a flow."""
        self._round, self._proof, self._exchange, self._questions = round_index, proof, exchange, questions
        self._own_part, self._has_labels = own_part, job.has_labels(silo)
        self._is_sent_on = job.topology.label_hub == job.hubs[silo]
        """Whether this hub alone has labels, and sends the others the result."""
        self.awaited: list[Key] = []
        """What it waits for of other hubs."""
        self.certificate = NOTHING
        self.is_over = False
        self._steps = self._dialogue()

    def advance(self) -> list[Instruction]:
        """Everything that follows from what has arrived."""
        out: list[Instruction] = []
        while not (self.is_over or self._questions.asked or self._exchange.lacking(self.awaited)):
            step = next(self._steps, None)
            self.is_over = step is None
            out += step or []
        return out

    def _dialogue(self) -> Iterator[list[Instruction]]:
        """All steps. After each, what was asked is answered, and what others send of the same flow is there."""
        proof = self._proof
        if proof.is_mixed:
            yield from self._mix()
        if proof.is_linear:
            yield self._ask("witness", [proof.question()] * len(self._questions.clients))
            answers = self._answers()
            scores = {"witness_scores": proof.scores(answers)}
            yield self._publish("witness_scores", scores, ProofFacts(is_whole=None not in answers))
        if self._has_labels:
            is_whole, residual = self._prove()
            if self._is_sent_on:
                yield self._publish("residual", {"residual": residual}, ProofFacts(is_whole=is_whole))
        else:
            yield self._wait("residual")
            is_whole, residual = self._are_whole("residual"), self._arrays("residual")[0]
        if is_whole:
            yield self._ask("residual", proof.rows(residual))
            answers = self._answers()
            side = None if None in answers else proof.side([reported for reported in answers if reported is not None])
            is_whole = side is not None and side.is_sound
            facts = ProofFacts(**side._asdict()) if side is not None and is_whole else ProofFacts(is_whole=False)
            yield self._publish("norm", {}, facts)
        if self._has_labels:
            if is_whole and self._are_whole("norm"):
                sides = [
                    SiloSide(reported.square, reported.penalty, reported.gradient_square)
                    for reported in self._facts("norm")
                ]
                self.certificate = proof.certificate(sides)
            if self._is_sent_on:
                known = {} if math.isnan(self.certificate.loss) else self.certificate._asdict()
                yield self._publish("gap", {}, GapFacts(**known))
        else:
            yield self._wait("gap")
            gap = self._exchange.parts("gap", self._round)[0].facts
            assert isinstance(gap, GapFacts)
            if gap.loss is not None and gap.bound is not None and gap.gradient_norm is not None:
                self.certificate = Certificate(gap.loss, gap.bound, gap.gradient_norm)

    def _mix(self) -> Iterator[list[Instruction]]:
        """Let all hubs mix the models of the same rounds alike."""
        products, models = self._proof.products()
        yield self._publish("gram", {"gram": products}, ProofFacts(models=models))
        if self._has_labels:
            sent, counts = self._arrays("gram"), [facts.models for facts in self._facts("gram")]
            weights = self._proof.weights(sent, counts)
            if self._is_sent_on:
                sent, counts = [np.pad(weights, (0, WITNESSES - len(weights)))], [len(weights)]
                yield self._publish("mixture", {"mixture": sent[0]}, ProofFacts(models=len(weights)))
        else:
            yield self._wait("mixture")
            sent, counts = self._arrays("mixture"), [facts.models for facts in self._facts("mixture")]
            weights = sent[0][: counts[0]]
        self._proof.mix(weights, sent, counts)

    def _prove(self) -> tuple[bool, NDArray[np.float64]]:
        """Whether there is anything to prove, and the residuals of all samples; zeros if there is nothing."""
        parts = self._arrays("witness_scores") if self._proof.is_linear else self._scores()
        residual = self._proof.prove(parts)
        is_whole = bool(np.isfinite(residual).all()) and self._are_whole("witness_scores")
        return is_whole, residual if is_whole else np.zeros_like(residual)

    def _scores(self) -> list[NDArray[np.float64]]:
        """Every hub's scores of the training samples, as the evaluation had them."""
        return [part.arrays["train"].values for part in self._exchange.parts("scores", self._round)]

    # What goes out, and what came in.

    def _ask(self, flow: FlowName, arrays: Sequence[Arrays]) -> list[Instruction]:
        self.awaited = []
        return self._questions.ask(flow, self._round, [named(own) for own in arrays])

    def _answers(self) -> list[Arrays | None]:
        """Of every client; None of those without an answer, or whose numbers were too large."""
        return [arrays_of(answer.arrays) if isinstance(answer, Part) else None for answer in self._questions.answers()]

    def _publish(self, flow: FlowName, arrays: Arrays, facts: ProofFacts | GapFacts) -> list[Instruction]:
        self.awaited = [(flow, self._round)]
        return [*self._exchange.publish(self._own_part(flow, self._round, arrays, facts))]

    def _wait(self, flow: FlowName) -> list[Instruction]:
        self.awaited = [(flow, self._round)]
        return []

    def _arrays(self, flow: FlowName) -> list[NDArray[np.float64]]:
        """The array of every hub's part, in silo order."""
        return [part.arrays[flow].values for part in self._exchange.parts(flow, self._round)]

    def _facts(self, flow: FlowName) -> list[ProofFacts]:
        facts = (part.facts for part in self._exchange.parts(flow, self._round))
        return [proof_facts for proof_facts in facts if isinstance(proof_facts, ProofFacts)]

    def _are_whole(self, flow: FlowName) -> bool:
        return all(facts.is_whole for facts in self._facts(flow))
