"""Clients that a hub goes on without, after ``federation.client_grace_s``: who is left out, and what samples remain.

Who takes part is the one thing in a run that a clock decides, so a hub writes every such decision down before it acts
on it. A hub that comes back reads them and plays its last rounds again with the same clients.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.runtime.protocol.instructions import Absence
from tdcd.runtime.protocol.structure import Array, Message
from tdcd.runtime.protocol.wire import RejectedMessage

QUESTIONS = ("evaluate", "begin", "steps")
"""What a hub asks its clients in a round, in this order."""


class Claims(NamedTuple):
    """What a hub says of its clients with its scores."""

    absent: dict[str, list[int]]
    """By client: the rounds since the last scores in which it was left out."""
    unscored: list[str]
    """The clients whose rows are not in these scores."""


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
        """Go on without a client's answer, and without the client until it shows life."""
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
        """What other hubs are told with the scores of a round: the absences from round ``since`` on."""
        spans: dict[str, list[int]] = {}
        for past in range(since, round_index):
            for index in self.out(past):
                spans.setdefault(self._clients[index], []).append(past)
        absent = {client: spans[client] for client in self._clients if client in spans}
        unscored = [self._clients[index] for index in self.out(round_index, QUESTIONS[0])]
        return Claims(absent, unscored)


def union(masks: Iterable[Array | None]) -> NDArray[np.bool_] | None:
    """The samples that are absent in at least one hub's mask; None if no hub has one."""
    found = [mask.values for mask in masks if mask is not None]
    return np.logical_or.reduce(found) if found else None


def check_claims(
    hub: str, round_index: int, absent: Mapping[str, list[int]], unscored: Sequence[str], clients: Sequence[str]
) -> None:
    """Refuse what is said of a hub's ``clients`` that cannot be: other names, or rounds that are not in the past."""
    if not all(_are_rounds(rounds, round_index) for rounds in absent.values()):
        raise RejectedMessage("'absent' must be the rounds before this one, in order, by client")
    for client in (*absent, *unscored):
        if client not in clients:
            raise RejectedMessage(f"'{client}' is no client of {hub}")
    if len({*unscored}) != len(unscored) or len(unscored) >= len(clients):
        raise RejectedMessage("'unscored' names a client twice, or all clients")


def _are_rounds(rounds: list[int], before: int) -> bool:
    return bool(rounds) and rounds[0] >= 0 and rounds[-1] < before and all(a < b for a, b in pairwise(rounds))
