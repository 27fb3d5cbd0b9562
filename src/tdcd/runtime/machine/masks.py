"""Keys for masks: how hubs agree on secrets with each other, and clients of a silo with theirs.

The clients of a silo agree on secrets through their hub, which passes their cards on. The hub cannot read what it
passes on as secrets, nor pose as a client: a card is signed with the key of the client's certificate.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.config.checks import FEWEST, FEWEST_LEFT
from tdcd.core.certificate import fixed_gradient
from tdcd.core.codecs.fixed_point import beyond
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of, named_leaves
from tdcd.core.words import counted
from tdcd.runtime.certificates.agreement import Card, ForgedCardError, KeyPair, Keys, RevokedCardError
from tdcd.runtime.compute.client_compute import ClientCompute
from tdcd.runtime.compute.sample_index import Enrolment
from tdcd.runtime.compute.secure_sums import Masks, What
from tdcd.runtime.job import IncompatibleParties, Job
from tdcd.runtime.messages.messages import Group, Hello, Part
from tdcd.runtime.messages.structure import Arrays
from tdcd.runtime.messages.wire import RejectedMessage


class MaskAgreement:
    """A hub's side of the agreement on masks."""

    def __init__(self, job: Job, silo: int, keys: Keys, nonce: str) -> None:
        """Take the hub's keys, and its nonce of the run."""
        sends_phi = job.variant.knowledge.sends_phi
        self._own, self._keys, self._nonce = job.hubs[silo], keys, nonce
        # The hub with the labels only adds up what it gets.
        self._group = [hub for index, hub in enumerate(job.hubs) if sends_phi(index)]
        self._are_used = job.config.exchange.protect == "mask"
        self._pair: KeyPair | None = None

    def card(self, rows: Sequence[str]) -> Card | None:
        """The hub's public key, which goes with its clients' ``rows``.

        The run is named after all hubs' keys, so that with other rows, anywhere, it is another run with other masks.
        """
        if not self._are_used:
            return None
        self._pair = self._keys.pair(self._nonce, kept_with=" ".join(rows))
        return self._pair.card()

    def masks(self, hellos: Mapping[str, Hello], run: str) -> Masks | None:
        """The hub's masks, when all hubs have introduced themselves."""
        if self._pair is None or self._own not in self._group:
            return None
        try:
            secrets = {
                hub: self._pair.agree(hub, hellos[hub].nonce, hellos[hub].card)
                for hub in self._group
                if hub != self._own
            }
        except ForgedCardError as error:
            raise IncompatibleParties(str(error)) from None
        return Masks(self._own, secrets, self._group, run)


def refuse_few_blocks(job: Job, hub: str, rows: Sequence[int]) -> None:
    """Refuse masked blocks of a silo in which too few clients have training rows: a sum would be of their blocks."""
    having = sum(count > 0 for count in rows)
    if job.config.exchange.protect_blocks and having < FEWEST:
        raise IncompatibleParties(
            f"exchange.protect_blocks = true: training rows are at only {counted(having, 'client')} of {hub}, and "
            f"{FEWEST} are needed; the sum would show a client's block"
        )


def refuse_few_rows(job: Job, hub: str, rows: Sequence[int]) -> None:
    """Refuse drawn participation in a silo where a round may draw only clients without training rows."""
    silo = job.hubs.index(hub)
    drawn = int(job.variant.participation.answering(job.settings.seed, 0, silo, len(rows)).sum())
    without = sum(count == 0 for count in rows)
    if not job.variant.all_answer and without >= drawn:
        raise IncompatibleParties(
            f"train.participation: a round draws {counted(drawn, 'client')} of {hub}, and {without} of them have no "
            "training rows; draw more, or leave those out"
        )


def is_other_key(before: Enrolment, now: Enrolment) -> bool:
    """Whether a client that introduces itself again has another key than before."""
    return _public(before) != _public(now)


def _public(client: Enrolment) -> bytes | None:
    return None if client.card is None else client.card.public


REMEMBERED = 1000
"""For so many rounds a client remembers which blocks it sent; a hub that comes back is a few rounds behind at most."""
BLOCKS = "blocks"
"""What the keys are for."""


class ClientMasks:
    """One client's masks, in every group that it is asked to be in."""

    def __init__(
        self, job: Job, silo: int, name: str, keys: Keys | None, rows: str = "", noise_secret: bytes = b""
    ) -> None:
        """Take the client's keys, by default made of what all parties know, which hides nothing; and a digest of its
        rows: with other rows it has another key.

        Args:
            noise_secret: of its noise, if it adds any; without one the simulation's, which hides nothing either.
        """
        self._noise_secret = noise_secret
        self._name, self._clients = name, job.clients(silo)
        self._are_used, self._may_leave_out = job.config.exchange.protect_blocks, job.has_grace
        self._pair = (keys or Keys.of_secret(name, bytes.fromhex(job.digest))).pair(BLOCKS, kept_with=rows)
        self._exchange, self._dtype = job.round.summed_blocks, job.settings.dtype
        self._cards: Mapping[str, Card] = {}
        self._secrets: dict[str, bytes] = {}
        self._run = self._keys = ""
        self._masks = lru_cache(maxsize=4)(self._make)
        self._last: tuple[int, Group | None] = (-1, None)
        self._sent: dict[tuple[str, str, int], dict[tuple[tuple[int, ...], int], bytes]] = {}
        """By run, whether of blocks or of gradients, and round: the clients and rows that these were sent for, and a
        digest of each."""
        self._newest: dict[str, int] = {}
        """By run: the last round that a block was sent of."""

    def card(self) -> Card | None:
        """The client's public key, if its blocks are masked."""
        return self._pair.card() if self._are_used else None

    def agree(self, cards: Mapping[str, Card], run: str) -> str:
        """Take what the hub passed on; what is wrong with it, if anything is."""
        # Masks are of all clients' keys: with another one's, they are others.
        public = [cards[client].public.hex() for client in self._clients if client in cards]
        self._last, self._run, self._keys = (-1, None), run, " ".join(public)
        self._masks.cache_clear()
        self._cards, self._secrets = cards, {}
        for client in self._clients if self._are_used else ():
            try:
                self._agree_with(client)
            except RevokedCardError:
                # It need not be in any group; and the list of revoked certificates may be on its way.
                continue
            except ForgedCardError as error:
                return str(error)
        return ""

    def _agree_with(self, client: str) -> None:
        if client not in (*self._secrets, self._name):
            self._secrets[client] = self._pair.agree(client, BLOCKS, self._cards.get(client))

    def is_other_group(self, round_index: int, group: Group) -> bool:
        """Whether a question asks for the block of a round once more, for the sum of another group."""
        return self._last[0] == round_index and self._last[1] != group

    def protected(self, compute: ClientCompute, block: Tree, before: Tree, question: Part) -> tuple[Arrays, str]:
        """A block after its local steps as it is added up with those of the question's group; or why it cannot be."""
        assert self._exchange is not None
        group = question.group
        if group is None:
            raise RejectedMessage("it does not say whose blocks are added up")
        self._check(compute, question.round, group)
        largest = max(float(np.max(np.abs(leaf), initial=0)) for leaf in leaves_of(block))
        if largest > self._exchange.largest:
            return {}, beyond(f"{self._name}: its block", largest, self._exchange.largest)
        share = np.asarray(compute.num_rows / group.rows, self._dtype)
        parts = compute.links.contribution(
            question.round, compute.client, block, before, share, len(group.clients), self._noise_key()
        )
        self._last = question.round, group
        return self._masked(parts, question.round, group), ""

    def _noise_key(self) -> NDArray[np.uint32] | None:
        """The secret of its noise in this run: the same after a restart, another one in every run."""
        if not self._noise_secret:
            return None
        drawn = hashlib.blake2b(self._run.encode(), digest_size=16, key=self._noise_secret, person=b"tdcd block noise")
        return np.frombuffer(drawn.digest(), "<u4")

    def gradient(self, compute: ClientCompute, gradient: Tree, question: Part) -> Arrays | None:
        """A gradient as it is added up with those of the question's group; None if it is beyond the range."""
        assert self._exchange is not None
        group = question.group
        if group is None:
            raise RejectedMessage("it does not say whose gradients are added up")
        self._check(compute, question.round, group, "gradient")
        steps = fixed_gradient(gradient, self._exchange, len(group.clients))
        self._last = question.round, group
        return None if steps is None else self._masked(named_leaves(steps), question.round, group, "gradient")

    def products(self, compute: ClientCompute, products: NDArray[Any]) -> NDArray[Any]:
        """The products of the client's features as they are added up with those of all clients of the silo."""
        assert self._exchange is not None
        everyone = Group(clients=tuple(range(len(self._clients))), rows=compute.silo_rows)
        if self._are_used and (len(self._clients) < FEWEST_LEFT or compute.num_rows == compute.silo_rows):
            raise RejectedMessage("no other client has rows: the sum would be of this client's products")
        largest = float(np.max(np.abs(products), initial=0))
        if largest > self._exchange.largest:
            raise RejectedMessage(beyond(f"{self._name}: a product of its features", largest, self._exchange.largest))
        share = np.asarray(compute.num_rows / compute.silo_rows, self._dtype)
        # Before round 0: blocks of no round have these masks.
        return self._masked({"products": self._exchange.part(products, share)}, -1, everyone)["products"]

    def _masked(self, parts: Arrays, round_index: int, group: Group, what: What = "block") -> Arrays:
        if not self._are_used:
            return parts
        content = hashlib.sha256(b"".join(part.tobytes() for part in parts.values())).digest()
        of_round = self._sent.setdefault((self._run, what, round_index), {})
        self._newest[self._run] = max(round_index, self._newest.get(self._run, 0))
        for old in ("block", "gradient"):
            self._sent.pop((self._run, old, round_index - REMEMBERED - 1), None)
        if of_round.setdefault((group.clients, group.rows), content) != content:
            # The difference of two blocks with the same masks has none.
            raise RejectedMessage(f"it asks for another {what} of a round that was answered")
        sizes = [part.size for part in parts.values()]
        mask = self._masks(group).of(what, round_index, (sum(sizes),))
        each = zip(parts.items(), np.split(mask, np.cumsum(sizes)[:-1]), strict=True)
        return {name: part + its.reshape(part.shape) for (name, part), its in each}

    def _check(self, compute: ClientCompute, round_index: int, group: Group, what: What = "block") -> None:
        """Refuse groups that would show this client's block, alone or by a difference of two sums."""
        own, members = self._clients.index(self._name), group.clients
        if own not in members or [*members] != sorted({*members}) or members[-1] >= len(self._clients):
            raise RejectedMessage("'group' must be clients of the silo, this one among them")
        if not max(1, compute.num_rows) <= group.rows <= compute.num_samples:
            raise RejectedMessage("'group' must hold at least the client's own rows, and the number of samples at most")
        if self._are_used and len(members) < FEWEST_LEFT:
            raise RejectedMessage(
                f"the sum would be of {len(members)} client's block: at least {FEWEST_LEFT} are needed"
            )
        if self._are_used and 0 < compute.num_rows == group.rows:
            raise RejectedMessage("no other client in 'group' has rows: the sum would be this client's block")
        if self._are_used and not self._may_leave_out and len(members) < len(self._clients):
            raise RejectedMessage("'group' leaves clients out, which no federation.client_grace_s allows")
        if round_index < self._newest.get(self._run, 0) - REMEMBERED:
            raise RejectedMessage(f"it is of round {round_index}, which was over long ago")
        known = self._sent.get((self._run, what, round_index), {})
        if not all({*members} <= {*clients} for clients, _ in known):
            raise RejectedMessage("'group' has clients that were not in the round's sum before")
        for client in [self._clients[member] for member in members] if self._are_used else ():
            try:
                self._agree_with(client)
            except ForgedCardError as error:
                raise RejectedMessage(str(error)) from None

    def _make(self, group: Group) -> Masks:
        names = [self._clients[index] for index in group.clients]
        return Masks(self._name, self._secrets, names, f"{self._run} {self._keys} {group.rows} {group.renewal}")
