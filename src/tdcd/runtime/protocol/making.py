"""What a hub sends of its own, made of its clients' answers."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.records.history import Record
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.compute.layout import Left
from tdcd.runtime.protocol.absence import Claims, union
from tdcd.runtime.protocol.groups import Remaining
from tdcd.runtime.protocol.label_messages import Figures, FiguresPart, SlopePart
from tdcd.runtime.protocol.messages import Diverged, Model, Phi, PhiPart, Scores, ScoresPart, Steps
from tdcd.runtime.protocol.sharing import preparation_text
from tdcd.runtime.protocol.structure import Array, Arrays, Message, arrays_of, named
from tdcd.runtime.protocol.taking import are_finite
from tdcd.tables.preparation import Preparation


class NotFinite(Exception):  # noqa: N818
    """Something of this silo is too large for a number; the text says what."""


class Header(NamedTuple):
    """What every part of an exchange says."""

    sender: str
    round: int
    run: str
    received: dict[str, str]
    """The digest of what each hub sent in the exchange of the round before."""


def phi_part(header: Header, compute: HubCompute, answers: Sequence[Message | None], place: int) -> PhiPart:
    """The silo's phi of a round's minibatches; ``place`` is where it is in the clients' answers."""
    sender, round_index, run, received = header
    _refuse_diverged("phi", answers)
    phis = [arrays_of(answer.phi[place]) if isinstance(answer, Phi) else None for answer in answers]
    phi, absent = compute.phi_part(round_index, phis)
    mask = None if absent is None else Array.of(absent)
    return PhiPart(sender, "", round_index, run, received=received, arrays=named(phi), absent=mask)


# What overflows is not finite, and is found by that: here and below.
@np.errstate(over="ignore", invalid="ignore")
def scores_part(
    header: Header, compute: HubCompute, block: Tree, answers: Sequence[Message | None], claims: Claims
) -> ScoresPart:
    """The silo's phi of all samples, and what it says of its clients."""
    sender, round_index, run, received = header
    _refuse_diverged("scores", answers)
    if not math.isfinite(penalty := compute.penalty(block)):
        raise NotFinite(f"the sum of squares of the block of {sender}")
    found = named(compute.scores_part(round_index, [_scores_in(answer) for answer in answers]))
    return ScoresPart(
        sender,
        "",
        round_index,
        run,
        received=received,
        train=found["train"],
        test=found["test"],
        penalty=penalty,
        train_absent=found.get("train_absent"),
        test_absent=found.get("test_absent"),
        absent=claims.absent,
        unscored=claims.unscored,
        intercept=None if (alone := compute.intercept(block)) is None else Array.of(alone),
    )


def _refuse_diverged(what: str, answers: Sequence[Message | None]) -> None:
    for answer in answers:
        if isinstance(answer, Diverged):
            raise NotFinite(f"the {what} of {answer.sender}")


def _scores_in(answer: Message | None) -> Arrays | None:
    """A client's scores by name; ``test`` only if it has any."""
    if not isinstance(answer, Scores):
        return None
    return {"train": answer.train.values, **({} if answer.test is None else {"test": answer.test.values})}


def model_part(header: Header, block: Tree, preparation: Preparation | None) -> Model:
    """The silo's block, and how its columns become features."""
    sender, round_index, run, received = header
    text = None if preparation is None else preparation_text(preparation)
    leaves = named(named_leaves(block))
    return Model(sender, "", round_index, run, received=received, block=leaves, preparation=text)


@np.errstate(over="ignore", invalid="ignore")
def slope_part(header: Header, compute: HubCompute, parts: Sequence[PhiPart]) -> SlopePart:
    """How the loss of every sample slopes, from all hubs' parts."""
    sender, round_index, run, received = header
    absent = union(part.absent for part in parts)
    slope = compute.slope(round_index, [arrays_of(part.arrays) for part in parts], absent)
    weights = Array.maybe(compute.weights(round_index, absent))
    mask = None if absent is None else Array.of(absent.astype(np.uint8))
    return SlopePart(
        sender, "", round_index, run, received=received, slope=Array.of(slope), weights=weights, absent=mask
    )


def figures_part(header: Header, record: Record | None) -> FiguresPart:
    """A line of the history, or that there is none."""
    sender, round_index, run, received = header
    part = FiguresPart(sender, "", round_index, run, received=received, figures=None)
    if record is None:
        return part
    figures = Figures(record.train_loss, record.test_loss, record.metrics)
    return part.replace(figures=figures, absent=record.absent, unscored=record.unscored)


@np.errstate(over="ignore", invalid="ignore")
def steps(
    header: Header,
    clients: Sequence[str],
    compute: HubCompute,
    parts: Sequence[PhiPart] | SlopePart,
    without: Collection[int],
) -> list[Steps]:
    """What every client is sent of the exchange, from all hubs' parts or from the slope that the hub was told.

    The hub goes on ``without`` some clients. There is nothing to send if the sum of all parts is not finite.
    """
    sender, round_index, run, _ = header
    weights = None
    if isinstance(parts, SlopePart):
        passed, absent = parts.slope.values, union([parts.absent])
        weights = None if parts.weights is None else parts.weights.values
    else:
        passed = compute.pass_on(round_index, [arrays_of(part.arrays) for part in parts])
        absent = union(part.absent for part in parts)
    if not are_finite([passed]):
        return []
    told = zip(
        clients,
        compute.project(round_index, passed),
        compute.weights_of(round_index, weights),
        compute.presence(round_index, absent, without),
        strict=True,
    )
    return [
        Steps(
            sender,
            client,
            round_index,
            run,
            phi_others=named(rows),
            weights=Array.maybe(own),
            remaining=_remaining(one),
        )
        for client, rows, own, one in told
    ]


def _remaining(left: Left | None) -> Remaining | None:
    """What a client is told of the samples that are left."""
    return None if left is None else Remaining(Array.of(left.absent), Array.of(left.present), left.rows)
