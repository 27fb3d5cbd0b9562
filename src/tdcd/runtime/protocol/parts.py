"""What a hub takes as a client's answer, or as a peer's part of an exchange; anything else is refused."""

import numpy as np

from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.protocol.absence import check_claims, check_nobody_left_out, read_mask
from tdcd.runtime.protocol.job import Job
from tdcd.runtime.protocol.messages import Message, RejectedMessage, array
from tdcd.runtime.protocol.sharing import preparation_in


def check_answer(message: Message, client: int, compute: HubCompute) -> None:
    """Refuse an answer whose arrays do not fit the client's rows."""
    dtype = compute.settings.dtype
    if message.kind == "phi":
        array(message, "phi", dtype, [compute.count(message.round, client), compute.num_outputs])
    elif message.kind == "block":
        for name, shape in compute.shapes.items():
            array(message, name, dtype, shape)
    elif message.kind == "scores":
        for name, held_out in (("train", False), ("test", True)):
            rows = compute.rows_of(client, held_out)
            if rows or name in message.arrays:
                array(message, name, dtype, [rows, compute.num_outputs])


def check_part(message: Message, job: Job, compute: HubCompute) -> None:
    """Refuse a peer's part that does not fit the samples, or that nobody agreed to."""
    dtype = job.settings.dtype
    samples = compute.num_exchanged * compute.batch_size
    training, held_out = compute.sample_index.num_samples, int(compute.sample_index.held_out.sum())
    if message.kind == "phi":
        for name, (kind, shape) in compute.wire.items():
            array(message, name, kind, shape)
    elif message.kind == "scores":
        array(message, "train", dtype, [training, compute.num_outputs])
        array(message, "test", dtype, [held_out, compute.num_outputs])
        array(message, "penalty", np.float64, [1])
    elif message.kind != "model" or not job.config.federation.share_model:
        raise RejectedMessage(f"a hub was not to send '{message.kind}'")
    else:
        for name in message.arrays.keys() - {"preparation"}:
            array(message, name, dtype, message.arrays[name].shape)
        preparation_in(message)
        return
    if job.config.federation.client_grace_s is None:
        check_nobody_left_out(message)
    check_claims(message, job.clients(job.hubs.index(message.sender)))
    for name, size in (("absent", samples), ("train_absent", training), ("test_absent", held_out)):
        if name in message.arrays:
            read_mask(message, name, size)
