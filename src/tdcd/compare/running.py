"""Running the entries of a comparison, with step sizes tuned if asked: each run into a run folder of its own.

A run that is finished is not run again, and one that was interrupted continues. What tuning tried is kept, too, and
the best of it is the first seed's run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tdcd.compare.scikit_learn import MODELS
from tdcd.config.resolve import Plan
from tdcd.records.history import Record
from tdcd.records.run_folder import RecordedRun
from tdcd.training.sweep.runner import Planned, RunTask, SweepProgress, run_planned, tuned

GRID = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The step sizes that are tried, as multiples of the configuration's."""


class Entrant(NamedTuple):
    """One entry's runs."""

    plans: tuple[Plan, ...]
    """One per seed."""
    runs: tuple[RecordedRun, ...]
    tried: Mapping[float, float]
    """By step size, the final training loss with the first seed; empty if it was not tuned."""


def num_runs(plans: Mapping[str, Sequence[Plan]], *, tune: bool) -> int:
    """How many runs there are in all."""
    tries = {label: len(_sizes(label, by_seed[0])) - 1 for label, by_seed in plans.items() if label not in MODELS}
    return sum(map(len, plans.values())) + (sum(tries.values()) if tune else 0)


def run_entries(
    plans: Mapping[str, Sequence[Plan]],
    out: Path,
    *,
    tune: bool,
    observe: Callable[[SweepProgress], None],
    should_stop: Callable[[], bool],
) -> dict[str, Entrant]:
    """Run what is missing under ``out``.

    Args:
        tune: try several step sizes with the first seed, as many for every entry but those that name one.
    """
    done = 0
    tried: dict[str, dict[float, float]] = {label: {} for label in plans}

    def run(chosen: Mapping[str, Sequence[Plan]]) -> dict[Path, list[Record]]:
        def counted(news: SweepProgress) -> None:
            observe(news._replace(done=done + news.done))

        groups = [
            [_task(out, label, plan, plans) for plan in chosen_plans]
            for label, chosen_plans in chosen.items()
            if chosen_plans
        ]
        return run_planned(groups, observe=counted, should_stop=should_stop) if groups else {}

    if tune:
        candidates = {
            label: [_with(by_seed[0], size) for size in _sizes(label, by_seed[0])] for label, by_seed in plans.items()
        }
        histories = run(candidates)
        for label, some in candidates.items():
            folders = [_folder(out, label, plan, plans) for plan in some]
            losses = [histories[folder][-1].train_loss for folder in folders]
            tried[label] = {plan.settings.step_size: loss for plan, loss in zip(some, losses, strict=True)}
        done = sum(map(len, candidates.values()))
    best = {
        label: [_with(plan, _best(tried[label], plan.settings.step_size)) for plan in by_seed]
        for label, by_seed in plans.items()
    }
    run({label: by_seed[1:] if tune else by_seed for label, by_seed in best.items()})
    return {
        label: Entrant(
            tuple(own), tuple(RecordedRun.read(_folder(out, label, plan, plans)) for plan in own), tried[label]
        )
        for label, own in best.items()
    }


def _sizes(label: str, planned: Plan) -> list[float]:
    """What tuning tries: nothing else if the entry names its step size."""
    own = planned.settings.step_size
    # Without the last bits of a product: the number is part of a folder's name.
    if planned.variant.is_steered or ",step_size=" in label:
        return [own]
    return [float(f"{factor * own:.6g}") for factor in GRID]


def _best(tried: Mapping[float, float], given: float) -> float:
    """The step size with the lowest loss; the smallest if all diverged."""
    return min(tried, key=lambda size: (tried[size] if math.isfinite(tried[size]) else math.inf, size), default=given)


def _with(planned: Plan, step_size: float) -> Plan:
    if planned.variant.is_steered:
        return planned
    return tuned(planned, step_size, planned.objective.l2)


def _task(out: Path, label: str, planned: Plan, plans: Mapping[str, Sequence[Plan]]) -> Planned:
    return RunTask(label, planned.config, _folder(out, label, planned, plans)), planned


def _folder(out: Path, label: str, planned: Plan, plans: Mapping[str, Sequence[Plan]]) -> Path:
    """The first seed's runs are where those of a single seed are, and those with the configuration's step size where
    they are if nothing is tuned: more seeds, and tuning, can follow. Other sizes have a folder that no entry's name is.
    """
    first, size = plans[label][0], planned.settings.step_size
    where = out if planned.config.seed == first.config.seed else out / f"seed-{planned.config.seed}"
    return where / label if size == first.settings.step_size else where / "tuned" / f"{label},step_size={size:g}"
