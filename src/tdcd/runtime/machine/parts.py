"""The parts of an exchange: how a hub makes its own of its clients' answers, and what it takes as a peer's.

The model that hubs may share at the end is one of them. Anything else is refused.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.records.history import Record
from tdcd.records.metrics import metric_names
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.job import Job
from tdcd.runtime.messages.messages import (
    AnyPart,
    Diverged,
    EvaluationFigures,
    FiguresPart,
    ModelPart,
    Phi,
    PhiPart,
    Scores,
    ScoresPart,
    SlopePart,
    Steps,
)
from tdcd.runtime.messages.structure import Array, Arrays, Message, arrays_of, named
from tdcd.runtime.messages.validation import LEAVES_OUT, are_finite, take, take_all, take_json, take_mask, take_weights
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.tables.preparation import Preparation


def preparation_text(preparation: Preparation) -> str:
    """How columns become features, as a message has it."""
    return json.dumps(preparation.to_json())


def blocks_in(models: Iterable[ModelPart]) -> dict[str, Arrays]:
    """The blocks that other hubs shared, by hub."""
    return {message.sender: arrays_of(message.block) for message in models}


def preparations_in(models: Iterable[ModelPart]) -> dict[str, Preparation]:
    """How the other silos' columns become features, by hub, if that was shared."""
    found = {message.sender: preparation_in(message) for message in models}
    return {hub: preparation for hub, preparation in found.items() if preparation is not None}


def preparation_in(message: ModelPart) -> Preparation | None:
    """How the sender's columns become features, if a shared model says so."""
    if message.preparation is None:
        return None
    try:
        return Preparation.from_json(take_json(message.preparation, "preparation"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RejectedMessage(f"'preparation' is damaged: {error}") from None


class Claims(NamedTuple):
    """What a hub says of its clients with its scores."""

    absent: dict[str, list[int]]
    """By client: the rounds since the last scores in which it was left out."""
    unscored: list[str]
    """The clients whose rows are not in these scores."""


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


def model_part(header: Header, block: Tree, preparation: Preparation | None) -> ModelPart:
    """The silo's block, and how its columns become features."""
    sender, round_index, run, received = header
    text = None if preparation is None else preparation_text(preparation)
    leaves = named(named_leaves(block))
    return ModelPart(sender, "", round_index, run, received=received, block=leaves, preparation=text)


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
    figures = EvaluationFigures(record.train_loss, record.test_loss, record.metrics)
    return part.replace(figures=figures, absent=record.absent, unscored=record.unscored)


@np.errstate(over="ignore", invalid="ignore")
def steps(
    header: Header,
    clients: Sequence[str],
    compute: HubCompute,
    parts: Sequence[PhiPart] | SlopePart,
    without: Collection[int],
) -> list[Steps]:
    """What every client is sent of the exchange, from all hubs' parts or from the slopes that the hub received.

    The hub continues ``without`` some clients. There is nothing to send if the sum of all parts is not finite.
    """
    sender, round_index, run, _ = header
    weights = None
    if isinstance(parts, SlopePart):
        passed, absent = parts.slope.values, union([parts.absent])
        weights = None if parts.weights is None else parts.weights.values
    else:
        passed = compute.received(round_index, [arrays_of(part.arrays) for part in parts])
        absent = union(part.absent for part in parts)
    if not are_finite([passed]):
        return []
    by_client = zip(
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
            weights=Array.maybe(own_weights),
            remaining=remaining,
        )
        for client, rows, own_weights, remaining in by_client
    ]


def check_part(message: Message, job: Job, compute: HubCompute) -> AnyPart:
    """The message, if it is a peer's part that fits the samples, and that all agreed to."""
    if isinstance(message, PhiPart):
        _check_phi(message, job, compute)
    elif isinstance(message, ScoresPart):
        _check_scores(message, job, compute)
    elif isinstance(message, SlopePart):
        take(message.slope, "slope", job.settings.dtype, compute.statistic_shape)
        take_weights(message.weights, job.settings.dtype, compute.statistic_shape[:2], job.sends_weights)
        _check_mask(message.absent, "absent", compute.num_exchanged * compute.batch_size, job)
    elif isinstance(message, FiguresPart):
        _check_figures(message, job, compute)
    elif isinstance(message, ModelPart) and job.config.federation.share_model and _may_end(message.round, job):
        for name, array in message.block.items():
            take(array, name, job.settings.dtype, array.shape)
        preparation_in(message)
    else:
        raise RejectedMessage(f"a hub was not to send '{message.kind}'")
    return message


def _may_end(round_index: int, job: Job) -> bool:
    """Whether the run can end in a round: in the last one, or in one that is evaluated if it may end early."""
    is_early = job.stopping.patience is not None and round_index % job.config.evaluate.every == 0
    return round_index == job.stopping.rounds or (is_early and 0 < round_index < job.stopping.rounds)


def _check_phi(message: PhiPart, job: Job, compute: HubCompute) -> None:
    take_all(message.arrays, compute.links.between_hubs)
    _check_mask(message.absent, "absent", compute.num_exchanged * compute.batch_size, job)


def _check_scores(message: ScoresPart, job: Job, compute: HubCompute) -> None:
    training, held_out = compute.sample_index.num_samples, int(compute.sample_index.held_out.sum())
    take(message.train, "train", compute.links.scores_dtype, [training, compute.phi_width])
    take(message.test, "test", compute.links.scores_dtype, [held_out, compute.phi_width])
    if not math.isfinite(message.penalty):
        raise RejectedMessage("'penalty' is not finite")
    if (message.absent or message.unscored) and job.config.federation.client_grace_s is None:
        raise RejectedMessage(LEAVES_OUT)
    dropout = job.variant.dropout
    if (message.intercept is not None) != dropout.leaves_intercept(job.hubs.index(message.sender)):
        raise RejectedMessage("'intercept' is what the silo with the column of ones sends, with silo dropout")
    if message.intercept is not None:
        take(message.intercept, "intercept", job.settings.dtype, [compute.phi_width])
    clients = job.clients(job.hubs.index(message.sender))
    check_claims(message.sender, message.round, message.absent, message.unscored, clients)
    _check_mask(message.train_absent, "train_absent", training, job)
    _check_mask(message.test_absent, "test_absent", held_out, job)


def _check_figures(message: FiguresPart, job: Job, compute: HubCompute) -> None:
    """A line of the history that can be; its loss is not finite where the run diverged."""
    if (message.absent or message.unscored) and job.config.federation.client_grace_s is None:
        raise RejectedMessage(LEAVES_OUT)
    for silo, hub in enumerate(job.hubs):
        clients = job.clients(silo)
        absent = {client: rounds for client, rounds in message.absent.items() if client in clients}
        check_claims(hub, message.round, absent, [one for one in message.unscored if one in clients], clients)
    all_clients = {client for silo in range(len(job.hubs)) for client in job.clients(silo)}
    for client in (*message.absent, *message.unscored):
        if client not in all_clients:
            raise RejectedMessage(f"'{client}' is no client of the federation")
    if message.figures is None:
        return
    num_test, names = int(compute.sample_index.held_out.sum()), metric_names(compute.objective.loss)
    metrics, test_loss = message.figures.metrics, message.figures.test_loss
    if [*metrics] not in (["train"], ["train", "test"]) or any([*found] != names for found in metrics.values()):
        raise RejectedMessage(f"'metrics' must have {' and '.join(names)} of 'train', and maybe of 'test'")
    if ("test" in metrics) != (test_loss is not None) or (test_loss is not None and not num_test):
        raise RejectedMessage("'test_loss' goes with metrics of the held-out samples")


def _check_mask(mask: Array | None, name: str, size: int, job: Job) -> None:
    if mask is None:
        return
    if job.config.federation.client_grace_s is None:
        raise RejectedMessage(LEAVES_OUT)
    take_mask(mask, name, size)
