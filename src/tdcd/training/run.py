"""Running a plan: begin, resume, finish; alone or as one of several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tdcd.config import Config, ConfigError, check_config, override, stored_config
from tdcd.config.all_columns import check_resumed
from tdcd.config.resolve import Plan, plan
from tdcd.core.objective import Tree
from tdcd.core.stopping import Interrupted
from tdcd.federation.hosts import Hosts
from tdcd.prediction.predictions import Named, scores_of, write_held_out
from tdcd.records.history import Record
from tdcd.records.patience import Stopping
from tdcd.records.run_folder import RunFolder
from tdcd.simulation.engines.base import ROUNDS_PER_CALL, Run
from tdcd.simulation.simulate import Simulation
from tdcd.training.result import Result
from tdcd.training.silo_only import train_silo_only
from tdcd.training.train import numbered, train


def run(config: Config, out: Path, devices: int | None = 1, **watch: Any) -> Result:
    """Run a configuration into a new run folder; ``watch`` is passed on to :func:`tdcd.train`."""
    return execute(plan(config, devices=devices), out, **watch)


def resume(
    out: Path,
    assignments: list[str],
    devices: int | None = 1,
    hosts: Hosts | None = None,
    *,
    allow_code: bool = False,
    **watch: Any,
) -> Result:
    """Continue the run in ``out``. Its settings stay, but for ``train.rounds``, which may be set anew.

    Args:
        allow_code: import the code that the settings name; refused otherwise.
        hosts: the processes that do so together; the first one has the folder.
    """

    def settings() -> dict[str, Any]:
        folder = RunFolder.open(out)
        folder.check_settings()
        return folder.config()

    before = settings() if hosts is None else hosts.broadcast(settings)
    keys = override(before, assignments)
    allowed = override(before, [f"train.rounds={keys.get('train', {}).get('rounds')}"])
    if keys != allowed:
        raise ConfigError(["--resume takes only --set train.rounds=...; anything else would be another run"])
    config = stored_config(keys, str(RunFolder(out).config_file), allow_code=allow_code)
    check_resumed(check_config(before, str(RunFolder(out).config_file)), config)
    return execute(plan(config, devices=devices, hosts=hosts), out, resume=True, **watch)


def execute(planned: Plan, out: Path, **options: Any) -> Result:
    """Train what was planned; ``options`` are passed on to :func:`tdcd.train`."""
    config = planned.config
    result = train(
        planned.federation,
        planned.blocks,
        planned.objective,
        planned.settings,
        rounds=config.train.rounds,
        evaluate_every=config.evaluate.every,
        patience=config.evaluate.patience,
        keep=config.evaluate.keep,
        colocation=planned.colocation,
        moved=planned.moved,
        out=out,
        config=config.model_dump(),
        execution=planned.execution,
        variant=planned.variant,
        named=named_in(planned),
        quiet=True,
        **options,
    )
    if config.evaluate.alone and config.train.algorithm == "tdcd" and result.status == "finished":
        train_silo_only(planned, out, options.get("should_stop", lambda: False))
    return result


def named_in(planned: Plan) -> Named | None:
    """What the held-out samples of a plan from files are called; None if they have numbers, or if there are none."""
    assembled, federation = planned.assembled, planned.federation
    if assembled is None or federation.test_labels is None:
        return None
    # The only silo of those who hold all columns is none of the file's.
    named = (silo.id for silo in planned.config.silos if silo.name == federation.silos[0].name)
    id_column = next(named, planned.config.silos[0].id)
    return Named(id_column, assembled.test_ids, assembled.test_labels, assembled.label_encoding)


def save_held_out(planned: Plan, folder: Path, hub_blocks: Sequence[Tree]) -> None:
    """Write what a model says of the held-out samples of its plan."""
    if planned.federation.test_labels is not None:
        scores = scores_of(planned.federation, planned.blocks, hub_blocks)
        objective = planned.objective
        named = named_in(planned) or numbered(planned.federation, objective)
        write_held_out(
            folder, named, objective.scores(scores), objective.loss, randomized=objective.label_epsilon is not None
        )


def simulate(*plans: Plan, most_rounds: int = ROUNDS_PER_CALL) -> Simulation:
    """The simulation of a plan; or of several that differ in nothing but seed, step size and l2."""
    first, runs = plans[0], [Run(plan.federation, plan.objective, plan.settings) for plan in plans]
    return Simulation.of_runs(runs, first.blocks, first.execution, first.variant, most_rounds)


def finish(planned: Plan, folder: Path, **watch: Any) -> list[Record]:
    """The history of one run: read if it is complete, resumed if it is not, begun if there is none."""
    history = complete_history(planned.config, folder)
    if history is not None:
        return history
    result = execute(planned, folder, resume=RunFolder(folder).is_begun, **watch)
    if result.status == "interrupted":
        raise Interrupted
    return result.history


def complete_history(config: Config, folder: Path) -> list[Record] | None:
    """The history of the run in the folder; None if it is not complete, or not begun.

    A run that ended before its first checkpoint is removed, since there is nothing to resume. So is one whose history
    lost lines, since running it again gives the same.

    Args:
        config: the run's, with every default filled in. A folder with another run is refused.
    """
    if not RunFolder(folder).is_begun:
        return None
    existing = RunFolder.open(folder)
    if not _holds(existing, config):
        raise FileExistsError(f"{folder} holds a run of other settings: remove it, or choose another --out")
    mark = existing.mark()
    if mark is None or len(existing.records()) < mark.lines:
        existing.remove()
        return None
    history = existing.marked_history(mark)
    if len(history) == mark.lines and Stopping.of(config.model_dump()).is_complete(history):
        return history
    return None


def _holds(existing: RunFolder, config: Config) -> bool:
    """Whether the folder's run is one of ``config``; keys that were added since count with their defaults."""
    try:
        return check_config(existing.config()) == config
    except ConfigError:
        return False
