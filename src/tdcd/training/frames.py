"""Training on Arrow tables in memory, with the settings of a configuration."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tdcd.config.resolve import has_bias, plan
from tdcd.core.choices import PYTHON
from tdcd.tables.from_frames import assemble_frames, frames_config
from tdcd.training.result import Result
from tdcd.training.train import train


def train_frames(
    keys: Mapping[str, Any], tables: Mapping[str, pa.Table], classes: tuple[str, ...], out: Path | str | None = None
) -> Result:
    """Train on one table per silo; whoever calls this looks at the status of the result.

    Args:
        keys: a configuration.
        classes: the names of the classes that the labels number; empty where they are amounts.
        out: the run folder to write; none by default.
    """
    config = frames_config(keys)
    planned = plan(config, assemble_frames(config, tables, bias=has_bias(config)))
    federation = replace(planned.federation, classes=classes)
    described = planned.config.model_dump()
    described["data"]["source"] = PYTHON
    return train(
        federation,
        planned.blocks,
        planned.objective,
        planned.settings,
        rounds=planned.config.train.rounds,
        evaluate_every=planned.config.evaluate.every,
        patience=planned.config.evaluate.patience,
        keep=planned.config.evaluate.keep,
        out=out,
        config=described,
        execution=planned.execution,
        variant=planned.variant,
        quiet=True,
    )
