"""The draw of randomised labels: a function of a secret key and of what is drawn for, so that it is drawn once.

Every label has a draw of its own from (key, epsilon, classes, id, label). The same label of the same sample is so
always released alike, in a restarted client and in the next run, which gives nothing away that is not known already.
Anything else, another epsilon for example, draws independently: the epsilons of both releases then add up, and are not
undone by comparing them. With the key one can see which labels stayed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.randomized import Response
from tdcd.data.table import Table

KEY_BYTES = 32
_WHOLE = 1 << 64


def trial_key(seed: int) -> bytes:
    """The key of simulations and trials: a history can be had again from its file, and nothing is protected."""
    return hashlib.blake2b(f"labels of seed {seed}".encode(), digest_size=KEY_BYTES).digest()


def randomize(
    labels: NDArray[Any], ids: Sequence[str], classes: Sequence[str], epsilon: float, key: bytes
) -> NDArray[Any]:
    """Labels after randomised response.

    Args:
        labels: ``[n]``, places in ``classes``.
        ids: ``[n]``, of the samples.
        classes: all that a label can be.
        key: a secret of ``KEY_BYTES`` bytes.
    """
    context = json.dumps([float(epsilon), list(classes)]).encode()
    drawn_with = hashlib.blake2b(context, key=key, digest_size=KEY_BYTES).digest()
    kept = round(Response.of(epsilon, len(classes)).keep * _WHOLE)
    return np.array(
        [
            _drawn(int(label), sample, len(classes), kept, drawn_with)
            for label, sample in zip(labels.tolist(), ids, strict=True)
        ],
        labels.dtype,
    )


def _drawn(label: int, sample: str, num_classes: int, kept: int, key: bytes) -> int:
    digest = hashlib.blake2b(f"{label} {sample}".encode(), key=key, digest_size=16).digest()
    if int.from_bytes(digest[:8]) < kept:
        return label
    # Fair to one part in 2^64 / C.
    other = int.from_bytes(digest[8:]) % (num_classes - 1)
    return other + (other >= label)


def randomize_table(table: Table, epsilon: float, seed: int) -> Table:
    """The table with randomised labels; samples go by their place in it, and the seed stands for the secret."""
    if table.task == "regression":
        raise ValueError(
            f"federation.label_epsilon = {epsilon:g}: '{table.name}' has real-valued labels, and randomised response "
            "needs classes; leave it out"
        )
    classes = [str(number) for number in range(2 if table.task == "binary" else table.num_classes)]
    ids = [str(place) for place in range(len(table.labels))]
    labels = randomize(table.labels, ids, classes, epsilon, trial_key(seed))
    if len(np.unique(labels)) < len(classes):
        raise ValueError(
            f"federation.label_epsilon = {epsilon:g}: '{table.name}' has so few samples that no label of a class is "
            "left after it; take more samples, or leave it out"
        )
    return replace(table, labels=labels)
