"""A client's block on its way up, where hubs learn only sums: times its part of the rows, with masks that cancel.

The clients of a silo agree on secrets through their hub, which passes their cards on. The hub cannot read what it
passes on as secrets, nor pose as a client: a card is signed with the key of the client's certificate.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from tdcd.config.protection import FEWEST_LEFT
from tdcd.core.fixed_point import FixedBlocks, beyond
from tdcd.core.objective import Tree
from tdcd.core.trees import leaves_of, named_leaves
from tdcd.runtime.certificates.agreement import ForgedCardError, Keys, RevokedCardError
from tdcd.runtime.compute.client_compute import ClientCompute
from tdcd.runtime.compute.masks import Masks
from tdcd.runtime.protocol.cards import Card
from tdcd.runtime.protocol.groups import Group
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.messages import Begin, Block, Diverged, Steps
from tdcd.runtime.protocol.structure import Arrays, Message, named
from tdcd.runtime.protocol.taking import are_finite
from tdcd.runtime.protocol.wire import RejectedMessage

REMEMBERED = 1000
"""For so many rounds a client remembers which blocks it sent; a hub that comes back is a few rounds behind at most."""
BLOCKS = "blocks"
"""What the keys are for."""


class ClientMasks:
    """One client's masks, in every group that it is asked to be in."""

    def __init__(self, job: Job, silo: int, name: str, keys: Keys | None, rows: str = "") -> None:
        """Take the client's keys, by default made of what all parties know, which hides nothing; and a digest of its
        rows: with other rows it has another key.
        """
        self._name, self._clients = name, job.clients(silo)
        self._are_used = job.config.exchange.protect_blocks
        self._pair = (keys or Keys.of_secret(name, bytes.fromhex(job.digest))).pair(BLOCKS, kept_with=rows)
        self._exchange, self._dtype = job.variant.block_exchange, job.settings.dtype
        self._cards: Mapping[str, Card] = {}
        self._secrets: dict[str, bytes] = {}
        self._run = self._keys = ""
        self._masks = lru_cache(maxsize=4)(self._make)
        self._last: tuple[int, Group | None] = (-1, None)
        self._sent: dict[tuple[str, int], dict[tuple[tuple[int, ...], int], bytes]] = {}
        """By run and round: the clients and rows that blocks were sent for, and a digest of each block."""
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

    def is_other_group(self, round_index: int, group: Group | None) -> bool:
        """Whether a question asks for the block of a round once more, for the sum of another group."""
        return self._last[0] == round_index and self._last[1] != group

    def answer(
        self, compute: ClientCompute, block: Tree, before: Tree, question: Message
    ) -> tuple[type[Message], dict[str, Any]]:
        """What to answer with a block after its local steps, which began with ``before``."""
        leaves = leaves_of(block)
        if not are_finite(leaves):
            return Diverged, {}
        if not isinstance(self._exchange, FixedBlocks):
            return Block, {"block": named(compute.block_sent(block, before, question.round))}
        group = question.group if isinstance(question, Begin | Steps) else None
        if group is None:
            raise RejectedMessage("it does not say whose blocks are added up")
        self._check(compute, question.round, group)
        largest = max(float(np.max(np.abs(leaf), initial=0)) for leaf in leaves)
        if largest > self._exchange.largest:
            return Diverged, {"reason": beyond(f"{self._name}: its block", largest, self._exchange.largest)}
        share = np.asarray(compute.num_rows / group.rows, self._dtype)
        parts = named_leaves(self._exchange.part(block, share))
        self._last = question.round, group
        return Block, {"block": named(self._masked(parts, question.round, group)), "group": group}

    def _masked(self, parts: Arrays, round_index: int, group: Group) -> Arrays:
        if not self._are_used:
            return parts
        content = hashlib.sha256(b"".join(part.tobytes() for part in parts.values())).digest()
        of_round = self._sent.setdefault((self._run, round_index), {})
        self._newest[self._run] = max(round_index, self._newest.get(self._run, 0))
        self._sent.pop((self._run, round_index - REMEMBERED - 1), None)
        if of_round.setdefault((group.clients, group.rows), content) != content:
            # The difference of two blocks with the same masks has none.
            raise RejectedMessage("it asks for another block of a round that was answered")
        sizes = [part.size for part in parts.values()]
        mask = self._masks(group).of("block", round_index, (sum(sizes),))
        each = zip(parts.items(), np.split(mask, np.cumsum(sizes)[:-1]), strict=True)
        return {name: part + its.reshape(part.shape) for (name, part), its in each}

    def _check(self, compute: ClientCompute, round_index: int, group: Group) -> None:
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
            raise RejectedMessage("nobody else in 'group' has rows: the sum would be this client's block")
        if round_index < self._newest.get(self._run, 0) - REMEMBERED:
            raise RejectedMessage(f"it is of round {round_index}, which was over long ago")
        known = self._sent.get((self._run, round_index), {})
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
