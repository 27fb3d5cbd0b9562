"""A whole plan for a run: how many local steps, and which overlap, periods and bits."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tdcd.config.resolve import Plan
from tdcd.core.network import Network
from tdcd.planning.local_steps import Recommendation, recommend_local_steps
from tdcd.planning.variants import Ranking, rank_variants
from tdcd.theory.progress import Observer, silent

FOR_VARIANTS = 0.25
"""Of the time limit, what is kept for pilot runs of variants."""


class RunPlan(NamedTuple):
    """What to take."""

    local_steps: Recommendation
    variants: Ranking | None
    """None if no number of local steps is recommended."""


def plan_run(
    planned: Plan,
    network: Network,
    *,
    slower: Mapping[str, float] | None = None,
    seconds: float = 60.0,
    observe: Observer = silent,
    **options: Any,
) -> RunPlan:
    """Recommend a number of local steps, and then overlap, periods and bits for it.

    Args:
        slower: how many times longer the clients of a silo compute, by its name.
        seconds: a time limit for all.
        options: of :func:`.recommend_local_steps`.
    """
    began = time.monotonic()
    kept = FOR_VARIANTS * seconds
    found = recommend_local_steps(planned, network, slower=slower, seconds=seconds - kept, observe=observe, **options)
    if found.recommended is None:
        return RunPlan(found, None)
    left = max(kept, seconds - (time.monotonic() - began))
    return RunPlan(found, rank_variants(planned, found, slower=slower, seconds=left, observe=observe))
