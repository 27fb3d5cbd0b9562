"""Whether what somebody's counts ask for can be: before anything of that size is made.

Blocks, and the scores of all samples, have to travel in one message. So ``runtime.max_message_mb``, which is a party's
own setting, bounds the samples, outputs and features that others can make it believe in.
"""

import math

import numpy as np

from tdcd.blocks.start import block_bytes
from tdcd.runtime.protocol.job import Job

SCORE_BYTES = 4
"""Of a score between hubs, at least."""


def scores_beyond(job: Job, silo: int, num_samples: int, num_outputs: int) -> str:
    """Why the scores of all samples cannot be; nothing if they can.

    They travel in one message between hubs. In a federation of one silo, each client sends its own.
    """
    messages = 1 if job.peers(silo) else len(job.clients(silo))
    if num_samples * num_outputs * SCORE_BYTES <= messages * job.most_bytes:
        return ""
    scores = f"the scores of {num_samples} samples with {num_outputs} outputs each"
    return f"{scores} are more than a message may have: {_advice(job)}"


def block_beyond(job: Job, silo: int, feature_shape: tuple[int, ...], num_outputs: int) -> str:
    """Why a silo's block cannot be; nothing if it can."""
    # Axes are positive, and even their product may be beyond what a machine can count.
    too_many = math.prod(feature_shape) * np.dtype(job.settings.dtype).itemsize > 2**20 * job.most_bytes
    if not too_many and block_bytes(job.block(silo), job.settings, feature_shape, num_outputs) <= job.most_bytes:
        return ""
    block = f"a block for features {[*feature_shape]} and {num_outputs} outputs"
    return f"{block} is more than a message may have: {_advice(job)}"


def _advice(job: Job) -> str:
    return f"raise runtime.max_message_mb = {job.config.runtime.max_message_mb:g} everywhere"
