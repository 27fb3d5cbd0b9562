"""Running a plan: begin, resume, finish; alone or as one of several."""

from pathlib import Path
from typing import Any

from tdcd.config import Config, ConfigError, check_config, override, stored_config
from tdcd.config.resolve import Plan, plan
from tdcd.core.settings import AUTO
from tdcd.core.stopping import Interrupted
from tdcd.federation.hosts import Hosts
from tdcd.records.history import Record
from tdcd.records.outcome import Stopping
from tdcd.records.run_folder import RunFolder
from tdcd.training.description import differences
from tdcd.training.train import Result, train_plan

DECIDED_BY_DATA = (
    "federation.bias",
    "federation.strips",
    "model.loss",
    "model.l2",
    "train.local_steps",
    "train.batch_size",
)
"""The keys that a plan fills in."""


def run(config: Config, out: Path, devices: int | None = 1, **watch: Any) -> Result:
    """Run a configuration into a new run folder; ``watch`` is passed on to :func:`tdcd.train`."""
    return train_plan(plan(config, devices=devices), out, **watch)


def resume(
    out: Path,
    assignments: list[str],
    devices: int | None = 1,
    hosts: Hosts | None = None,
    *,
    allow_code: bool = False,
    **watch: Any,
) -> Result:
    """Continue the run in ``out``. Its settings stay, but for ``train.rounds``, which may change.

    Args:
        allow_code: import the code that the settings name; refused otherwise.
        hosts: the processes that do so together; the first one has the folder.
    """

    def settings() -> dict[str, Any]:
        return RunFolder.open(out).checked_config()

    before = settings() if hosts is None else hosts.broadcast(settings)
    keys = override(before, assignments)
    allowed = override(before, [f"train.rounds={keys.get('train', {}).get('rounds')}"])
    if keys != allowed:
        raise ConfigError(["--resume takes only --set train.rounds=...; anything else would be another run"])
    config = stored_config(keys, str(RunFolder(out).config_file), allow_code=allow_code)
    if config.train.algorithm != "tdcd":
        from tdcd.compare.all_columns import check_resumed  # noqa: PLC0415 - a run of TDCD needs no baseline

        check_resumed(check_config(before, str(RunFolder(out).config_file)), config)
    return train_plan(plan(config, devices=devices, hosts=hosts), out, resume=True, **watch)


def finish(planned: Plan, folder: Path, **watch: Any) -> list[Record]:
    """The history of one run: read if it is complete, resumed if it is not, begun if there is none."""
    history = complete_history(planned.config, folder)
    if history is not None:
        return history
    result = train_plan(planned, folder, resume=RunFolder(folder).is_begun, **watch)
    if result.status == "interrupted":
        raise Interrupted
    return result.history


def complete_history(config: Config, folder: Path) -> list[Record] | None:
    """The history of the run in the folder; None if it is not complete, or not begun.

    A run that ended before its first checkpoint is removed, since there is nothing to resume. So is one whose history
    lost lines, since running it again gives the same.

    Args:
        config: the run's, planned or, of TDCD itself, not planned yet. A folder with another run is refused.
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
    asked = config.model_dump()
    # Not planned yet: what the data decides is as it was.
    open_keys = [key for key in DECIDED_BY_DATA if asked[key.partition(".")[0]][key.partition(".")[2]] in (None, AUTO)]
    if config.train.is_automatic:
        open_keys.append("train.minibatches")
    try:
        return not differences(asked, check_config(existing.config()).model_dump(), free=open_keys)
    except ConfigError:
        return False
