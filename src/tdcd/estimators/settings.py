"""An estimator's parameters as a configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from tdcd.core.words import there_are
from tdcd.tables.rows import PLACE

LABEL, WEIGHT = " label", " weight"
"""The columns of the first silo's table that take y and the samples' weights; no column of X is called so."""

SECTIONS: Mapping[str, Sequence[str]] = {
    "data": ("standardize", "rare"),
    "federation": ("rows", "alpha"),
    "model": ("block", "hidden", "bins", "huber_delta", "l2"),
    "train": (
        "rounds",
        "local_steps",
        "step_size",
        "minibatches",
        "gradient",
        "optimizer",
        "schedule",
        "clip",
        "momentum",
        "hub_optimizer",
        "hub_step_size",
        "overlap",
        "participation",
        "silo_dropout",
        "engine",
    ),
    "exchange": ("phi_bits", "block_bits"),
    "evaluate": ("holdout", "patience", "keep"),
}
"""The parameters that are keys of the same name."""


def settings_of(
    parameters: Mapping[str, Any], silos: Sequence[str], num_samples: int, loss: str, *, weighted: bool
) -> dict[str, Any]:
    """The sections of a configuration that say the same as an estimator's parameters.

    Args:
        silos: their names.
        num_samples: of training.
        weighted: whether the first silo's table has weights.
    """
    clients = parameters["clients"]
    counts = [clients] * len(silos) if isinstance(clients, int | np.integer) else [*clients]
    if len(counts) != len(silos):
        raise ValueError(f"clients = {counts}: {there_are(len(silos), 'silo')}; give a number, or one each")
    first = {"label": LABEL, **({"weight": WEIGHT} if weighted else {})}
    keys: dict[str, Any] = {
        section: {name: _plain(parameters[name]) for name in names} for section, names in SECTIONS.items()
    }
    keys["model"]["loss"] = loss
    size = _plain(parameters["batch_size"])
    # What is no number is left to the checks of the configuration.
    keys["train"]["batch_size"] = min(size, num_samples) if isinstance(size, int) else size
    keys["evaluate"]["every"] = _plain(parameters["evaluate_every"])
    return {
        **keys,
        "seed": _seed(parameters["random_state"]),
        "dtype": parameters["dtype"],
        "silos": [
            {"name": silo, "clients": int(count), "id": PLACE, **({} if place else first)}
            for place, (silo, count) in enumerate(zip(silos, counts, strict=True))
        ],
    }


def held_out(holdout: Any, num_samples: int) -> int:
    """How many samples are; what is no number is left to the checks of the configuration."""
    return round(holdout * num_samples) if isinstance(holdout, int | float | np.number) else 0


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """A number of NumPy, as a grid search has it, as Python's own; a sequence as a list."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(one) for one in value]
    return value
