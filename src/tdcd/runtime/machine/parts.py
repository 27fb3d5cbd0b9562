"""What a hub takes as a peer's part of a flow; anything else is refused."""

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import NoneType

import numpy as np

from tdcd.core.codecs.encrypted import MODULUS_BITS
from tdcd.core.round import WITNESSES, FlowName
from tdcd.runtime.compute.hub_compute import HubCompute
from tdcd.runtime.job import Job
from tdcd.runtime.messages.messages import FiguresFacts, GapFacts, ModelFacts, Part, ProofFacts, ScoresFacts
from tdcd.runtime.messages.validation import LEAVES_OUT, take, take_all, take_json, take_mask
from tdcd.runtime.messages.wire import RejectedMessage
from tdcd.tables.preparation import Preparation

FACTS: dict[FlowName, type] = {
    "scores": ScoresFacts,
    "figures": FiguresFacts,
    "gram": ProofFacts,
    "mixture": ProofFacts,
    "witness_scores": ProofFacts,
    "residual": ProofFacts,
    "norm": ProofFacts,
    "gap": GapFacts,
    "model": ModelFacts,
}
"""By flow between hubs: what its parts carry in addition to arrays; those of other flows carry nothing else."""


def check_part(part: Part, job: Job, compute: HubCompute) -> None:
    """Refuse a peer's part that does not fit the samples, or that was not agreed on."""
    if type(part.facts) is not FACTS.get(part.flow, NoneType) or part.group is not None:
        raise RejectedMessage(f"'facts' or 'group' are not those of '{part.flow}'")
    if part.flow != "model":
        layout = compute.between_hubs.get((part.flow, job.hubs.index(part.sender)))
        if layout is None:
            raise RejectedMessage(f"a hub was not to send '{part.flow}'")
        take_all(part.arrays, layout.arrays, layout.masks)
        may_leave_out = job.may_be_absent if "absent" in layout.masks else job.has_grace
        for name, size in layout.masks.items():
            if name not in part.arrays:
                continue
            if not may_leave_out:
                raise RejectedMessage(LEAVES_OUT)
            take_mask(part.arrays[name], name, size)
    if part.flow in _CHECKS:
        _CHECKS[part.flow](part, job, compute)


def _check_slope(part: Part, job: Job, compute: HubCompute) -> None:
    _check_encrypted(part, job, compute)
    if "weights" in part.arrays and (part.arrays["weights"].values < 0).any():
        raise RejectedMessage("'weights' must be at least 0")


def _check_encrypted(part: Part, job: Job, compute: HubCompute) -> None:
    """Numbers that count modulo some prime; the library looks again when it takes them."""
    for name in ("slopes", "whole", "sums"):
        numbers = part.arrays[name].values if name in part.arrays else np.zeros(0)
        if (numbers >= 1 << max(MODULUS_BITS)).any() or (part.flow != "sums" and (numbers < 0).any()):
            raise RejectedMessage(f"'{name}' is not of a ciphertext")


def _check_scores(part: Part, job: Job, compute: HubCompute) -> None:
    facts = part.facts
    assert isinstance(facts, ScoresFacts)
    # Infinite where steered steps were not finite, so that the line is taken back.
    if not math.isfinite(facts.penalty) and not (job.stopping.steering is not None and facts.penalty > 0):
        raise RejectedMessage("'penalty' is not finite")
    if (facts.absent or facts.unscored) and not job.has_grace:
        raise RejectedMessage(LEAVES_OUT)
    check_claims(part.sender, part.round, facts, job.clients(job.hubs.index(part.sender)))


def _check_figures(part: Part, job: Job, compute: HubCompute) -> None:
    """A line of the history that can be; its loss is not finite where the run diverged."""
    facts = part.facts
    assert isinstance(facts, FiguresFacts)
    if (facts.absent or facts.unscored) and not job.has_grace:
        raise RejectedMessage(LEAVES_OUT)
    all_clients: set[str] = set()
    for silo, hub in enumerate(job.hubs):
        clients = job.clients(silo)
        all_clients.update(clients)
        absent = {client: rounds for client, rounds in facts.absent.items() if client in clients}
        unscored = [client for client in facts.unscored if client in clients]
        check_claims(hub, part.round, FiguresFacts(figures=None, absent=absent, unscored=unscored), clients)
    for client in (*facts.absent, *facts.unscored):
        if client not in all_clients:
            raise RejectedMessage(f"'{client}' is no client of the federation")
    if facts.figures is None:
        return
    num_test, names = int(compute.sample_index.held_out.sum()), [*compute.objective.kind.metric_names]
    metrics, test_loss = facts.figures.metrics, facts.figures.test_loss
    if [*metrics] not in (["train"], ["train", "test"]) or any([*figures] != names for figures in metrics.values()):
        raise RejectedMessage(f"'metrics' must have {' and '.join(names)} of 'train', and maybe of 'test'")
    if ("test" in metrics) != (test_loss is not None) or (test_loss is not None and not num_test):
        raise RejectedMessage("'test_loss' goes with metrics of the held-out samples")


def _check_proof(part: Part, job: Job, compute: HubCompute) -> None:
    facts = part.facts
    assert isinstance(facts, ProofFacts)
    if facts.models > WITNESSES:
        raise RejectedMessage(f"'models' must be {WITNESSES} at most")
    numbers = facts.square, facts.penalty, facts.gradient_square
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise RejectedMessage("'square', 'penalty' and 'gradient_square' must be numbers of at least 0")
    if not facts.is_whole and part.flow in ("gram", "mixture"):
        raise RejectedMessage(f"'{part.flow}' does not depend on clients")


def _check_model(part: Part, job: Job, compute: HubCompute) -> None:
    if not (job.config.federation.share_model and _may_end(part.round, job)):
        raise RejectedMessage(f"a hub was not to send '{part.flow}'")
    for name, array in part.arrays.items():
        take(array, name, job.settings.dtype, array.shape)
    preparation_in(part)


_CHECKS: dict[FlowName, Callable[[Part, Job, HubCompute], None]] = {
    "slope": _check_slope,
    "masked": _check_encrypted,
    "sums": _check_encrypted,
    "scores": _check_scores,
    "figures": _check_figures,
    "model": _check_model,
    "gram": _check_proof,
    "mixture": _check_proof,
    "witness_scores": _check_proof,
    "residual": _check_proof,
    "norm": _check_proof,
}
"""By flow: what is to be checked in addition to the layout of its arrays."""


def _may_end(round_index: int, job: Job) -> bool:
    """Whether the run can end in a round: in the last one, or in one that is evaluated if it may end early."""
    may_be_early = job.stopping.patience is not None or job.stopping.steering is not None
    is_early = may_be_early and round_index % job.config.evaluate.every == 0
    return round_index == job.stopping.rounds or (is_early and 0 < round_index < job.stopping.rounds)


def check_claims(hub: str, round_index: int, facts: ScoresFacts | FiguresFacts, clients: Sequence[str]) -> None:
    """Refuse claims about a hub's ``clients`` that cannot be true: other names, or rounds that are not in the past."""
    if not all(_are_rounds(rounds, round_index) for rounds in facts.absent.values()):
        raise RejectedMessage("'absent' must be the rounds before this one, in order, by client")
    for client in (*facts.absent, *facts.unscored):
        if client not in clients:
            raise RejectedMessage(f"'{client}' is no client of {hub}")
    if len({*facts.unscored}) != len(facts.unscored) or len(facts.unscored) >= len(clients):
        raise RejectedMessage("'unscored' names a client twice, or all clients")


def _are_rounds(rounds: list[int], before: int) -> bool:
    return bool(rounds) and rounds[0] >= 0 and rounds[-1] < before and all(a < b for a, b in pairwise(rounds))


def preparation_text(preparation: Preparation) -> str:
    """How columns become features, as a message has it."""
    return json.dumps(preparation.to_json())


def preparation_in(part: Part) -> Preparation | None:
    """How the sender's columns become features, if a shared model says so."""
    assert isinstance(part.facts, ModelFacts)
    if part.facts.preparation is None:
        return None
    try:
        return Preparation.from_json(take_json(part.facts.preparation, "preparation"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RejectedMessage(f"'preparation' is damaged: {error}") from None
