"""A hub's communication rounds, as a state machine: messages in, instructions out.

==========  ==========================================================================================
evaluating  the scores of all samples are there: a line of the history
exchanging  phi of this round's minibatches, from the clients and then from the other hubs
stepping    the clients' blocks after their local steps; their average begins the next round
sharing     the other silos' blocks, if all agreed to share the model
==========  ==========================================================================================

A phase ends when everybody's part is there, in whatever order the parts came; sums run in silo and client order. What
a hub has told its peers it can tell again, byte for byte, for this round and those just before it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.history import Record
from tdcd.objective import Tree
from tdcd.runfolder import named_leaves
from tdcd.runtime.exchange import Exchange
from tdcd.runtime.instructions import Append, Arrays, End, Instruction, Save, State, Status
from tdcd.runtime.job import Job
from tdcd.runtime.messages import Message, Refused, array, pack, unpack
from tdcd.runtime.records import Records
from tdcd.runtime.roll import Mismatch
from tdcd.runtime.silo import HubCompute
from tdcd.tables.preparation import Preparation

_SHARED_IN = {"evaluating": "scores", "exchanging": "phi", "sharing": "model"}
"""What hubs exchange in each phase."""
_ANSWER_TO = {"evaluate": "scores", "begin": "phi", "steps": "block"}


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
    ) -> None:
        """Stand at the start of round 0, or of the round that was saved; ``preparation`` goes with a shared model."""
        self.preparation = preparation
        self.job, self.silo, self.compute, self.run = job, silo, compute, run
        self.name, self.clients, self.peers = job.hubs[silo], job.clients(silo), job.peers(silo)
        self.round, self.phase = 0, ""
        self.block: Tree = compute.start
        self.parameters: list[int] = []
        """Of each silo's block; known when the hubs have met."""
        self._asked: dict[str, Message] = {}
        self._answers: dict[str, Message] = {}
        self.exchange = Exchange(self.name, job.hubs, run)
        # A hub that comes back asks at once for what it may have missed.
        self._behind = -1
        if restored is not None:
            self.round, self.block, self._behind = (
                restored.round,
                compute.tree(dict(restored.block)),
                restored.round + 2,
            )
            self.exchange.restore(restored.said, dict(restored.heard or {}))

    # Events.

    def begin(self, parameters: list[int]) -> list[Instruction]:
        """Start the round that the hub stands at; ``parameters`` are those of each silo's block."""
        self.parameters = parameters
        return self._enter()

    def client_answer(self, message: Message) -> None:
        """A client's answer to what it was asked."""
        asked = self._asked.get(message.sender)
        expected = "" if asked is None else self._expected(asked)
        if asked is None or asked.round != message.round or message.kind not in (expected, "diverged"):
            raise Refused(f"nobody asked for '{message.kind}' of round {message.round}")
        self._check_answer(message)
        del self._asked[message.sender]
        self._answers[message.sender] = message

    def peer_part(self, message: Message) -> None:
        """A peer's part of this round's exchange, or of the next one's if the peer is ahead."""
        compute, dtype = self.compute, self.job.settings.dtype
        if not self.round <= message.round <= self.round + 1:
            raise Refused(f"it is of round {message.round}, and this is round {self.round}")
        if message.kind == "phi":
            array(message, "phi", dtype, [compute.num_exchanged * compute.batch_size, compute.num_outputs])
        elif message.kind == "scores":
            array(message, "train", dtype, [compute.roll.num_samples, compute.num_outputs])
            array(message, "test", dtype, [int(compute.roll.held_out.sum()), compute.num_outputs])
            array(message, "penalty", np.float64, [1])
        elif message.kind != "model" or not self.job.config.federation.share_model:
            raise Refused(f"a hub was not to send '{message.kind}'")
        else:
            for name in message.arrays.keys() - {"preparation"}:
                array(message, name, dtype, message.arrays[name].shape)
            preparation_in(message)
        self.exchange.hear(message)

    def peer_forgot(self, message: Message) -> None:
        """A peer no longer has what this hub asked for: if that is still wanted, there is no way on."""
        kind = str(message.note.get("kind"))
        if message.sender not in self._silent_peers() or (kind, message.round) != (_SHARED_IN[self.phase], self.round):
            raise Refused(f"nobody waits for '{kind}' of round {message.round}")
        raise Mismatch(
            f"{self.name} was restored to round {self.round}, and {message.sender} is at round "
            f"{message.note.get('round')} and no longer has '{kind}' of that round: restore a newer checkpoint of "
            f"{self.name}, or begin anew everywhere"
        )

    def advance(self) -> list[Instruction]:
        """Everything that follows from what has arrived."""
        out: list[Instruction] = []
        while self.phase and not self._asked:
            diverged = next((m.sender for m in self._answers.values() if m.kind == "diverged"), None)
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

    def rest(self) -> None:
        """Nothing to do for the moment: work out where the next round's samples are."""
        if self.phase == "stepping":
            self.compute.layout(self.round + 1)

    # For those who are late, or back.

    def missing(self) -> list[str]:
        """The parties that this phase waits for."""
        return list(self._asked) or self._silent_peers()

    def remind(self) -> list[Message]:
        """Ask the clients that are ready, and the peers, for what this phase waits for."""
        return [*self._asked.values(), *(want for peer in self._silent_peers() for want in self.wants(peer))]

    def asked(self, client: str) -> list[Message]:
        """What a client that was away must be asked again."""
        message = self._asked.get(client)
        if message is None:
            return []
        # Before its steps it needs the round's block again.
        return [self._request("begin", client), message] if message.kind == "steps" else [message]

    def wants(self, peer: str) -> list[Message]:
        """What this phase lacks of a peer."""
        if self._asked or peer not in self._silent_peers():
            return []
        return [Message("want", self.name, peer, self.round, self.run, {"kind": _SHARED_IN[self.phase]})]

    def told_again(self, message: Message) -> Message | None:
        """What a peer wants to hear again, if it was said; that it is gone, if it was said too long ago."""
        kind, wanted = str(message.note.get("kind")), message.round
        if kind not in _SHARED_IN.values() or wanted > self.round:
            return None
        known = self.exchange.said(kind, wanted)
        if known is None and wanted < self.round:
            note = {"kind": kind, "round": self.round}
            return Message("gone", self.name, message.sender, wanted, self.run, note)
        return known

    def _silent_peers(self) -> list[str]:
        return self.exchange.silent(_SHARED_IN[self.phase], self.round) if self.phase in _SHARED_IN else []

    # The phases.

    def _enter(self) -> list[Instruction]:
        every, rounds = self.job.config.evaluate.every, self.job.config.train.rounds
        if self.round % every == 0 or self.round == rounds:
            return self._ask("evaluating", "evaluate")
        return self._exchange()

    def _exchange(self) -> list[Instruction]:
        # A silo alone has nothing to exchange: its clients step at once.
        return self._ask("exchanging" if self.peers else "stepping", "begin")

    def _ask(self, phase: str, kind: str, contents: Sequence[Arrays] | None = None) -> list[Instruction]:
        """Ask every client, the next phase's first part."""
        self.phase = phase
        self._answers.clear()
        block = named_leaves(self.block)
        for index, client in enumerate(self.clients):
            arrays = block if contents is None else contents[index]
            self._asked[client] = Message(kind, self.name, client, self.round, self.run, arrays=arrays)
        return [*self._asked.values()]

    def _request(self, kind: str, client: str) -> Message:
        return Message(kind, self.name, client, self.round, self.run, arrays=named_leaves(self.block))

    def _expected(self, asked: Message) -> str:
        return "block" if asked.kind == "begin" and not self.peers else _ANSWER_TO[asked.kind]

    def _check_answer(self, message: Message) -> None:
        compute, index, dtype = self.compute, self.clients.index(message.sender), self.job.settings.dtype
        if message.kind == "phi":
            count = len(compute.layout(message.round).places[index])
            array(message, "phi", dtype, [count, compute.num_outputs])
        elif message.kind == "block":
            for name, shape in compute.shapes().items():
                array(message, name, dtype, shape)
        elif message.kind == "scores":
            for name, held_out in (("train", False), ("test", True)):
                rows = compute.rows_of(index, held_out)
                if rows or name in message.arrays:
                    array(message, name, dtype, [rows, compute.num_outputs])

    def _parts(self, name: str) -> list[NDArray[Any]]:
        """One array of every client's answer, in client order; clients that have none left out nothing."""
        empty = np.empty((0, self.compute.num_outputs), self.job.settings.dtype)
        return [self._answers[client].arrays.get(name, empty) for client in self.clients]

    def _tell(self, kind: str, arrays: Arrays) -> list[Message]:
        """Tell all peers, once a round; afterwards only those who ask again."""
        if self.exchange.said(kind, self.round) is not None:
            return []
        told = self.exchange.tell(kind, self.round, arrays)
        return told + [w for peer in self.peers for w in self.wants(peer)] if self.round <= self._behind else told

    def _evaluated(self) -> list[Instruction] | None:
        out: list[Instruction] = [*self._tell_scores()]
        parts = self.exchange.parts("scores", self.round, ("train", "test", "penalty"))
        if parts is None:
            return out or None
        record = Records(self.job, self.compute, self.parameters).evaluated(self.round, *parts)
        out.append(Append(record))
        if record.diverged:
            return [*out, *self._over("diverged", f"the loss stopped being a finite number in round {self.round}")]
        if self.round < self.job.config.train.rounds:
            return out + self._exchange()
        if not self.job.config.federation.share_model:
            return [*out, *self._over("finished")]
        self.phase = "sharing"
        own = {} if self.preparation is None else {"preparation": pack(self.preparation.to_json())}
        return [*out, *self._tell("model", {**named_leaves(self.block), **own})]

    def _exchanged(self) -> list[Instruction] | None:
        out: list[Instruction] = [*self._tell_phi()]
        parts = self.exchange.parts("phi", self.round, ["phi"])
        if parts is None:
            return out or None
        contents = [{"phi_others": rows} for rows in self.compute.project(self.round, parts[0])]
        return out + self._ask("stepping", "steps", contents)

    def _tell_scores(self) -> list[Message]:
        if self.exchange.said("scores", self.round) is not None:
            return []
        compute = self.compute
        train, test = (compute.gather(self._parts(n), held_out=h) for n, h in (("train", False), ("test", True)))
        return self._tell("scores", {"train": train, "test": test, "penalty": np.array([compute.penalty(self.block)])})

    def _tell_phi(self) -> list[Message]:
        if self.exchange.said("phi", self.round) is not None:
            return []
        return self._tell("phi", {"phi": self.compute.stack(self.round, self._parts("phi"))})

    def _stepped(self) -> list[Instruction]:
        blocks = [self.compute.tree(dict(self._answers[client].arrays)) for client in self.clients]
        self.block = self.compute.average(blocks)
        self.round += 1
        self.exchange.forget(self.round)
        state = State(self.run, self.round, named_leaves(self.block), self.exchange.words, dict(self.exchange.digests))
        return [*self._enter(), Save(state)]

    def _shared(self) -> list[Instruction] | None:
        return None if self._silent_peers() else self._over("finished")

    def models(self) -> dict[str, Arrays]:
        """Every silo's block by hub: this one's, and the others' if they were shared."""
        others = {
            message.sender: {name: leaf for name, leaf in message.arrays.items() if name != "preparation"}
            for message in self._models_heard()
        }
        return {self.name: named_leaves(self.block), **others}

    def preparations(self) -> dict[str, Preparation]:
        """How the other silos' columns become features, if that was shared."""
        found = {message.sender: preparation_in(message) for message in self._models_heard()}
        return {hub: preparation for hub, preparation in found.items() if preparation is not None}

    def _models_heard(self) -> list[Message]:
        heard = [self.exchange.part_of(peer, "model", self.round) for peer in self.peers]
        return [message for message in heard if message is not None]

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


def preparation_in(message: Message) -> Preparation | None:
    """How the sender's columns become features, if a shared model says so."""
    if "preparation" not in message.arrays:
        return None
    try:
        return Preparation.from_json(unpack(message, "preparation"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refused(f"'preparation' is damaged: {error}") from None
