"""What each silo reaches without the others, to compare with the federation: ``alone.json`` in a run folder."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from tdcd.config.baselines import labelled_silos, rewrite
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder
from tdcd.training.train import train

if TYPE_CHECKING:
    from tdcd.config.resolve import Plan


def train_silo_only(
    plan: "Plan", folder: Path, should_stop: Callable[[], bool] = lambda: False
) -> dict[str, dict[str, float | None]]:
    """Train every silo that has labels on its own columns with its own clients, for as many local steps as the plan.

    Several processes train together, as for the plan itself, and the first one writes. Nothing else of these runs is
    kept. With the whole federation's model in ``folder``, its report shows both.

    Args:
        plan: of TDCD.
        should_stop: asked between two engine calls; true leaves the folder as it is.

    Returns:
        By silo, its model's metrics on the held-out samples, or on the training ones if none are held out; nothing
        if it was stopped.
    """
    found = {}
    for silo in labelled_silos(plan):
        silo_only = rewrite(plan, "local-sgd", silo)
        rounds, evaluate = silo_only.config.train.rounds, plan.config.evaluate
        is_judged = evaluate.patience is not None or evaluate.keep == "best"
        result = train(
            silo_only.federation,
            silo_only.blocks,
            silo_only.objective,
            silo_only.settings,
            rounds=rounds,
            evaluate_every=evaluate.every if is_judged else max(rounds, 1),
            patience=evaluate.patience,
            keep=evaluate.keep,
            should_stop=should_stop,
            execution=silo_only.execution,
            variant=silo_only.variant,
        )
        if result.status == "interrupted":
            return {}
        figures = result.final.metrics if is_judged else result.history[-1].metrics
        found[silo] = figures.get("test", figures["train"])
    if jax.process_index() == 0:
        run = RunFolder(folder)
        run.write_alone(found)
        if (manifest := Manifest(run)).exists:
            manifest.seal()
    return found
