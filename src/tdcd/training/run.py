"""Running a plan: begin, resume, finish; alone or as one of several; and again, to see whether the same comes out."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.config import Config, ConfigError, check_config, override, stored_config
from tdcd.config.resolve import Plan, plan
from tdcd.core.execution import Interrupted
from tdcd.core.settings import AUTO
from tdcd.core.words import counted
from tdcd.federation.hosts import Hosts
from tdcd.records.history import Record, flat
from tdcd.records.model_file import read_block
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


CLOSE = {"float64": 1e-8, "float32": 1e-3}
"""How close a simulation is to real parties, and to a sweep's runs at once, by dtype: they add up in another order."""


def replay(
    run: RunFolder,
    scratch: Path,
    *,
    within: float = 0.0,
    allow_code: bool = False,
    devices: int | None = 1,
    observe: Callable[[Any], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Train into ``scratch`` what ``run`` was trained from; how history and model differ, a sentence each.

    Both are compared bit for bit, but for seconds.

    Args:
        allow_code: import the code that its settings name; refused otherwise.
        within: how far numbers may differ, relative and absolute; :data:`CLOSE` if it was not simulated by itself.

    Raises:
        ValueError: the run is not over, or was not made from a configuration.
        Interrupted: ``should_stop`` returned True.
    """
    config, history = _settings(run, allow_code=allow_code), run.history()
    if not Stopping.of(config.model_dump()).is_complete(history):
        raise ValueError(f"{run.path} ends at round {history[-1].round} of {config.train.rounds}: continue it first")
    # What each silo reaches alone takes as long again, and is not compared.
    alone = config.evaluate.model_copy(update={"alone": False})
    planned = plan(config.model_copy(update={"evaluate": alone}), devices=devices)
    if train_plan(planned, scratch, observe=observe, should_stop=should_stop).status == "interrupted":
        raise Interrupted("Interrupted; the run folder is as it was.")
    again = RunFolder(scratch)
    return _history_differences(history, again.history(), within) + _model_differences(run, again, within)


def _settings(run: RunFolder, *, allow_code: bool) -> Config:
    try:
        return stored_config(run.config(), str(run.config_file), allow_code=allow_code)
    except ConfigError as error:
        raise ValueError(f"only runs of a configuration can be trained again: {error}") from None


def _history_differences(there: Sequence[Record], here: Sequence[Record], within: float) -> list[str]:
    """The first line that differs, and in what."""
    for old, new in zip(there, here, strict=False):
        if old.evaluation_bytes is None:
            # An earlier version did not write these.
            new = replace(new, evaluation_bytes=None, evaluation_messages=None, worse_than="")  # noqa: PLW2901
        if old.gap is None and old.gradient_norm is None:
            # Nor do real parties.
            new = replace(new, gap=None, gradient_norm=None)  # noqa: PLW2901
        left, right = (flat(json.loads(record.without_seconds())) for record in (old, new))
        names = [name for name in left | right if not _close(left.get(name), right.get(name), within)]
        if names:
            words = ", ".join(f"{name} is {left.get(name)} and is {right.get(name)} now" for name in names[:2])
            return [f"history: from round {old.round} on it differs: {words}"]
    if len(there) != len(here):
        return [f"history: {counted(len(there), 'line')} in the folder and {len(here)} now"]
    return []


def _close(left: Any, right: Any, within: float) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or math.isclose(left, right, rel_tol=within, abs_tol=within)
    return bool(left == right)


def _model_differences(there: RunFolder, here: RunFolder, within: float) -> list[str]:
    sentences = []
    for path in sorted(there.model.path.glob("*.safetensors")):
        other = here.model.path / path.name
        if not other.is_file():
            sentences.append(f"model: {path.name} is not made now")
            continue
        (old, old_facts), (new, new_facts) = read_block(path), read_block(other)
        if old_facts["round"] != new_facts["round"]:
            sentences.append(f"model: {path.name} is of round {old_facts['round']}, and of {new_facts['round']} now")
        worst = [_largest(old[name], new.get(name), within) for name in sorted(old)]
        if any(worst) or set(old) != set(new):
            sentences.append(f"model: {path.name} differs, by {max(worst):.3g} at most")
    return sentences


def _largest(left: Any, right: Any, within: float) -> float:
    """The largest difference; 0 if there is none that counts."""
    if right is None or left.shape != right.shape or left.dtype != right.dtype:
        return math.inf
    if left.tobytes() == right.tobytes() or (within and np.allclose(left, right, rtol=within, atol=within)):
        return 0.0
    return float(np.max(np.abs(left - right))) or math.inf
