"""What a hub takes as a client's answer, or as a peer's part of an exchange; anything else is refused."""

import math

from tdcd.records.metrics import metric_names
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.protocol.absence import check_claims
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.label_messages import FiguresPart, SlopePart
from tdcd.runtime.protocol.messages import AnyPart, Block, Model, Phi, PhiPart, Scores, ScoresPart
from tdcd.runtime.protocol.sharing import preparation_in
from tdcd.runtime.protocol.structure import Array, Message
from tdcd.runtime.protocol.taking import LEAVES_OUT, take, take_all, take_mask, take_weights
from tdcd.runtime.protocol.wire import RejectedMessage


def check_answer(message: Message, client: int, compute: HubCompute) -> None:
    """Refuse an answer whose arrays do not fit the client's rows."""
    dtype, outputs = compute.settings.dtype, compute.num_outputs
    if isinstance(message, Phi):
        rounds = compute.sends(message.round)
        if len(message.phi) != len(rounds):
            raise RejectedMessage(f"'phi' is of {len(message.phi)} rounds, not of {len(rounds)}")
        for sent, round_index in zip(message.phi, rounds, strict=True):
            take_all(sent, compute.links.rows_layout(compute.count(round_index, client)))
    elif isinstance(message, Block):
        take_all(message.block, compute.block_layout)
    elif isinstance(message, Scores):
        take(message.train, "train", dtype, [compute.rows_of(client, held_out=False), outputs])
        held_out = compute.rows_of(client, held_out=True)
        if message.test is not None:
            take(message.test, "test", dtype, [held_out, outputs])
        elif held_out:
            raise RejectedMessage("it has no array 'test'")


def check_part(message: Message, job: Job, compute: HubCompute) -> AnyPart:
    """The message, if it is a peer's part that fits the samples, and that all agreed to."""
    if isinstance(message, PhiPart):
        _check_phi(message, job, compute)
    elif isinstance(message, ScoresPart):
        _check_scores(message, job, compute)
    elif isinstance(message, SlopePart):
        take(message.slope, "slope", job.settings.dtype, compute.told_shape)
        take_weights(message.weights, job.settings.dtype, compute.told_shape[:2], job.tells_weights)
        _check_mask(message.absent, "absent", compute.num_exchanged * compute.batch_size, job)
    elif isinstance(message, FiguresPart):
        _check_figures(message, job, compute)
    elif isinstance(message, Model) and job.config.federation.share_model and _may_end(message.round, job):
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
    take(message.train, "train", compute.links.scores_dtype, [training, compute.num_outputs])
    take(message.test, "test", compute.links.scores_dtype, [held_out, compute.num_outputs])
    if not math.isfinite(message.penalty):
        raise RejectedMessage("'penalty' is not finite")
    if (message.absent or message.unscored) and job.config.federation.client_grace_s is None:
        raise RejectedMessage(LEAVES_OUT)
    dropout = job.variant.dropout
    if (message.intercept is None) != (not dropout.rate or dropout.intercept != job.hubs.index(message.sender)):
        raise RejectedMessage("'intercept' is what the silo with the column of ones sends, with silo dropout")
    if message.intercept is not None:
        take(message.intercept, "intercept", job.settings.dtype, [compute.num_outputs])
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
    everybody = {client for silo in range(len(job.hubs)) for client in job.clients(silo)}
    for client in (*message.absent, *message.unscored):
        if client not in everybody:
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
