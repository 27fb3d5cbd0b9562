"""The ledger: which messages rounds and evaluations send over which kind of link, and how many bytes they carry."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, get_args

import numpy as np

from tdcd.core.fixed_point import FixedPoint
from tdcd.core.settings import Settings

if TYPE_CHECKING:
    from tdcd.core.exchange import Exchange
    from tdcd.core.variant import Variant

Colocation = Literal["none", "silo", "all"]
"""Which parties share a machine: none; those of a silo; or all of them."""
Link = Literal["client_to_hub", "hub_to_client", "hub_to_hub"]
Count = Literal["bytes", "messages"]
COUNTS: tuple[Count, ...] = get_args(Count)


@dataclass(frozen=True)
class Traffic:
    """A count by link class, of bytes or of messages; adds up and scales."""

    client_to_hub: int = 0
    """Blocks and phi, from the clients to their hub."""
    hub_to_client: int = 0
    """Blocks and the rows of the others' phi, from a hub to its clients."""
    hub_to_hub: int = 0
    """Phi, from each hub to every other; with labels at one silo phi to its hub, and slopes back. Of baselines that
    need it, raw data between organisations, and the models of hubs and their centre."""

    def __add__(self, other: Self) -> Self:
        """The traffic of both."""
        return type(self)(
            self.client_to_hub + other.client_to_hub,
            self.hub_to_client + other.hub_to_client,
            self.hub_to_hub + other.hub_to_hub,
        )

    def __mul__(self, times: int) -> Self:
        """The traffic of ``times`` such rounds."""
        return type(self)(self.client_to_hub * times, self.hub_to_client * times, self.hub_to_hub * times)

    @property
    def total(self) -> int:
        """The count over all links."""
        return self.client_to_hub + self.hub_to_client + self.hub_to_hub


class Sent(NamedTuple):
    """All messages of one kind, of rounds or of evaluations."""

    kind: Literal["block", "phi", "phi_others", "slope", "rows", "scores", "figures"]
    link: Link
    messages: int
    bytes: int


class Moved(NamedTuple):
    """Raw data that an algorithm needs in another place than where it is, moved once, before the first round."""

    link: Link
    bytes: tuple[int, ...]
    """What each sender sends: a client to its hub, or all clients of a silo together to another organisation."""


class Centre(NamedTuple):
    """Where the models of several hubs are averaged."""

    hubs: int
    every: int
    """Rounds between two averages."""


class Told(NamedTuple):
    """What the others are told in place of phi where one silo alone has the labels."""

    silo: int
    """The one with the labels."""
    bytes: int
    """Of all samples of a round: to each other hub, and from that to all its clients together."""


class PhiBytes(NamedTuple):
    """The bytes of one silo's phi of a round."""

    client_hub: int
    """Between a hub and all its clients together, each way; without what is once per client."""
    hub_hub: int
    """From one hub to another, as the exchange encodes it."""
    per_client: int = 0
    """What is sent once per client, each way: the widths of quantised columns."""


def phi_bytes(settings: Settings, num_samples: int, num_outputs: int, variant: "Variant") -> PhiBytes:
    """What a silo's phi takes up: E minibatches of B samples with C outputs each.

    >>> from tdcd.core.variant import Variant
    >>> phi_bytes(Settings(local_steps=10, batch_size=100), 1000, 1, Variant())
    PhiBytes(client_hub=4000, hub_hub=4000, per_client=0)
    """
    samples = settings.num_exchanged, settings.effective_batch_size(num_samples)
    hub_hub = _wire_bytes(variant.exchange, (*samples, num_outputs), settings.dtype)
    none, all_rows = (
        _wire_bytes(variant.client_exchange, (rows, num_outputs), settings.dtype) for rows in (0, math.prod(samples))
    )
    return PhiBytes(all_rows - none, hub_hub, none)


def told_bytes(settings: Settings, num_samples: int, num_told: int, variant: "Variant") -> Told | None:
    """What is told where one silo alone has the labels, so many numbers of each sample; None if all have them."""
    silo, samples = variant.knowledge.label_silo, settings.num_exchanged * settings.effective_batch_size(num_samples)
    return None if silo is None else Told(silo, samples * num_told * item_bytes(settings))


class ScoresBytes(NamedTuple):
    """The bytes of the scores of all samples, which an evaluation sends."""

    client_hub: int = 0
    """From all clients of one silo together to their hub."""
    hub_hub: int = 0
    """From one hub to another."""
    intercept: int = 0
    """With silo dropout: what all hubs together get of the silo with the intercept besides."""


NO_SCORES = ScoresBytes()


def scores_bytes(
    settings: Settings, num_scored: int, num_outputs: int, variant: "Variant", num_silos: int
) -> ScoresBytes:
    """What an evaluation of so many samples, the held-out ones counted in, sends as scores.

    >>> from tdcd.core.variant import Variant
    >>> scores_bytes(Settings(), 1000, 1, Variant(), 2)
    ScoresBytes(client_hub=4000, hub_hub=4000, intercept=0)
    """
    size, dropout, label_silo = item_bytes(settings), variant.dropout, variant.knowledge.label_silo
    hearing = 0
    if dropout.rate and dropout.intercept is not None and dropout.intercept != label_silo:
        hearing = num_silos - 1 if label_silo is None else 1
    between = np.dtype(scores_dtype(variant, settings.dtype)).itemsize
    return ScoresBytes(
        num_scored * num_outputs * size, num_scored * num_outputs * between, hearing * num_outputs * size
    )


def scores_dtype(variant: "Variant", dtype: str) -> str:
    """Of the scores that hubs send each other: masked ones are whole numbers, like all that is masked."""
    return "uint32" if isinstance(variant.exchange, FixedPoint) else dtype


def is_evaluated(round_index: int, every: int, last: int) -> bool:
    """Whether the global model is evaluated after this round: now and then, and at the end."""
    return round_index % every == 0 or round_index == last


def item_bytes(settings: Settings) -> int:
    """The bytes of one number."""
    return np.dtype(settings.dtype).itemsize


def _wire_bytes(exchange: "Exchange", shape: tuple[int, ...], dtype: str) -> int:
    """The bytes that are sent for phi of this shape."""
    arrays = exchange.layout(shape, dtype).values()
    return sum(math.prod(size) * np.dtype(kind).itemsize for kind, size in arrays)


@dataclass(frozen=True)
class Ledger:
    r"""What communication rounds send, by kind of message.

    With :math:`d_j` parameters of s bytes each and :math:`K_j` clients in silo j: a client gets the hub's block and
    returns its own, :math:`s\,d_j` each way; a hub's clients together send the phi of all samples of the round and get
    that of the others, however the rows are split; and every hub sends its phi to each of the N - 1 others. If one silo
    has the labels, the others send phi to its hub only, and each gets slopes back. One silo alone has nothing to
    exchange, so its clients send blocks only. What parties on one machine tell each other is not sent. Phi counts
    in the round that it is of, however early it is sent. A silo that steps every m rounds exchanges blocks, and gets
    the others' phi, once in m rounds; what comes of its steps counts when its period ends. Of 4 bits, half a byte may
    be left over per client and round, which is not counted. If only some clients answer, those exchange blocks, and phi
    is taken to be of their part of the rows. A baseline that needs raw data in another place sends it before round 0.

    Evaluations are counted apart, see :meth:`evaluations`: a hub sends every client its block and gets the scores of
    all its samples, and hubs send each other their sums; or to the one with the labels, which returns figures.

    >>> for sent in Ledger([10, 20], [5, 3], PhiBytes(400, 400), itemsize=4).after(1):
    ...     print(*sent)
    block hub_to_client 8 440
    block client_to_hub 8 440
    phi client_to_hub 8 800
    phi_others hub_to_client 8 800
    phi hub_to_hub 2 800
    """

    parameters: Sequence[int]
    """Of each silo's block."""
    clients: Sequence[int]
    """Of each silo."""
    phi: PhiBytes
    itemsize: int
    colocation: Colocation = "none"
    blocks_up: Sequence[int] | None = None
    """Of each silo, the bytes of a block on its way up, if it is not sent as it is."""
    periods: Sequence[int] | None = None
    """m of each silo, if not all step in every round."""
    told: Told | None = None
    """What the others are told if one silo has the labels."""
    answering: Sequence[int] | None = None
    """Of each silo, the clients that answer in a round, if not all do."""
    moved: Sequence[Moved] = ()
    """What is sent before the first round."""
    centre: Centre | None = None
    """Of hierarchical local SGD: one silo's clients are those of several hubs, which average at a centre."""
    scores: ScoresBytes = NO_SCORES
    """Of an evaluation."""

    def after(self, rounds: int) -> tuple[Sent, ...]:
        """All messages of the first rounds."""
        down = [count * self.itemsize for count in self.parameters]
        periods = self.periods or [1] * len(down)
        # Of each silo: the updates that began, and those that ended; the last one of a slow silo may not.
        begun, ended = [-(-rounds // period) for period in periods], [rounds // period for period in periods]
        clients = self.answering or self.clients
        asked, answered = _times(clients, begun), _times(clients, ended)
        # What part of the rows of a round each silo sends phi of.
        parts = [some / everybody for some, everybody in zip(clients, self.clients, strict=True)]
        num_silos, phi = len(down), self.phi
        found: list[Sent] = [
            Sent("rows", link, sum(size > 0 for size in sizes), sum(sizes)) for link, sizes in self.moved
        ]
        if self.colocation == "none":
            found += [
                Sent("block", "hub_to_client", sum(asked), sum(_times(asked, down))),
                Sent("block", "client_to_hub", sum(answered), sum(_times(answered, self.blocks_up or down))),
            ]
            if num_silos > 1:
                sent = round(rounds * sum(parts) * phi.client_hub) + rounds * sum(clients) * phi.per_client
                rows = sum(map(mul, map(mul, ended, parts), self.rows_down))
                got = round(rows) + sum(answered) * phi.per_client
                found.append(Sent("phi", "client_to_hub", sum(asked), sent))
                found.append(Sent("phi_others", "hub_to_client", sum(answered), got))
        if self.colocation != "all" and num_silos > 1:
            pairs = rounds * (num_silos if self.told is None else 1) * (num_silos - 1)
            part = sum(parts) / num_silos
            found.append(Sent("phi", "hub_to_hub", pairs, round(pairs * part * phi.hub_hub)))
            if self.told is not None:
                found.append(Sent("slope", "hub_to_hub", pairs, round(pairs * part * self.told.bytes)))
        if self.centre is not None:
            models = 2 * self.centre.hubs * (rounds // self.centre.every)
            found.append(Sent("block", "hub_to_hub", models, models * sum(down)))
        return tuple(found)

    @property
    def rows_down(self) -> list[int]:
        """Of each silo, the bytes that all its clients together get of an exchange."""
        told = [self.phi.client_hub if self.told is None else self.told.bytes] * len(self.parameters)
        if self.told is not None:
            told[self.told.silo] = self.phi.client_hub
        return told

    def evaluations(self, rounds: int, every: int, last: int) -> tuple[Sent, ...]:
        """All messages of the evaluations until after so many rounds of a run.

        A silo that steps every m rounds asks its clients once in m rounds, since its block stays the same meanwhile.

        Args:
            every: rounds between two evaluations; that after round ``last``, the run's last one, is one more.
        """
        silos, hubs = len(self.parameters), 0 if self.centre is None else self.centre.hubs
        times = _evaluations(rounds, every, last)
        asked = [_evaluated_periods(rounds, every, last, period) for period in self.periods or [1] * silos]
        found: list[Sent] = []
        if self.colocation == "none":
            messages, down = _times(self.clients, asked), [count * self.itemsize for count in self.parameters]
            found.append(Sent("block", "hub_to_client", sum(messages), sum(_times(messages, down))))
            found.append(Sent("scores", "client_to_hub", sum(messages), sum(asked) * self.scores.client_hub))
        if self.colocation != "all" and silos > 1:
            pairs = times * (silos if self.told is None else 1) * (silos - 1)
            size = pairs * self.scores.hub_hub + times * self.scores.intercept
            found.append(Sent("scores", "hub_to_hub", pairs, size))
            if self.told is not None:
                found.append(Sent("figures", "hub_to_hub", pairs, 0))
        if hubs:
            found.append(Sent("scores", "hub_to_hub", times * hubs, times * self.scores.client_hub))
        return tuple(found)

    def traffic(self, rounds: int, count: Count) -> Traffic:
        """The bytes, or the messages, of the first rounds, by link class; without those of evaluations."""
        if self._is_even:
            return self._before[count] + self._per_round[count] * rounds
        return by_link(self.after(rounds), count)

    @cached_property
    def _is_even(self) -> bool:
        """Whether every round sends the same."""
        return set(self.periods or [1]) == {1} and self.centre is None and self.answering is None

    @cached_property
    def _before(self) -> dict[str, Traffic]:
        return {count: by_link(self.after(0), count) for count in COUNTS}

    @cached_property
    def _per_round(self) -> dict[str, Traffic]:
        one = replace(self, moved=()).after(1)
        return {count: by_link(one, count) for count in COUNTS}


def _evaluations(rounds: int, every: int, last: int) -> int:
    """How often a run was evaluated until after so many rounds, that before the first one counted in."""
    return rounds // every + 1 + (rounds == last and rounds % every != 0)


def _evaluated_periods(rounds: int, every: int, last: int, period: int) -> int:
    """In how many of a silo's periods that was."""
    if period > every:
        # Every period has an evaluation in it.
        latest = rounds if is_evaluated(rounds, every, last) else rounds - rounds % every
        return latest // period + 1
    is_apart = rounds // period != rounds // every * every // period
    return rounds // every + 1 + (rounds == last and is_apart)


def _times(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one * other for one, other in zip(some, others, strict=True)]


def by_link(sent: Sequence[Sent], count: Count) -> Traffic:
    """The bytes, or the messages, of each link class.

    >>> by_link(Ledger([10, 20], [5, 3], PhiBytes(400, 400), itemsize=4).after(1), "bytes")
    Traffic(client_to_hub=1240, hub_to_client=1240, hub_to_hub=800)
    """
    totals = {link.name: 0 for link in fields(Traffic)}
    for item in sent:
        totals[item.link] += getattr(item, count)
    return Traffic(**totals)
