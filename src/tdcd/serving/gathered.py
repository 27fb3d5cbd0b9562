"""Phi that a prediction between hubs has gathered at one of them, in a file of its own: what that hub answers from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.prediction.model import Model
from tdcd.prediction.scores import SiloScores, in_common
from tdcd.records.files import PRIVATE, parse_json, read_plain, write_durably

IDS = "ids"


def write_gathered(path: Path, parts: Mapping[str, SiloScores], sums: str | None = None) -> None:
    """Keep what silos add to the scores of the ids that all have, for this user alone.

    Args:
        parts: by silo.
        sums: the silo whose own part it is, where all that is known of the others is their sum: the parts of the
            others add up to it, and no single one means anything.
    """
    common = in_common(parts)
    ids = next(iter(common.values())).ids
    arrays = {silo: _in_order(part, ids) for silo, part in common.items()}
    if sums is not None:
        others = [silo for silo in arrays if silo != sums]
        # Added up as a prediction adds them.
        total = sum((arrays[silo] for silo in others[1:]), start=arrays[others[0]])
        arrays = {sums: arrays[sums], " + ".join(others): total}
    names = json.dumps([*ids]).encode()
    tensors = {f"phi {name}": phi for name, phi in arrays.items()} | {IDS: np.frombuffer(names, np.uint8)}
    write_durably(path, save(tensors), PRIVATE)


def _in_order(part: SiloScores, ids: Sequence[str]) -> NDArray[Any]:
    row_of = {sample: row for row, sample in enumerate(part.ids)}
    return np.ascontiguousarray(part.phi[[row_of[sample] for sample in ids]])


def read_gathered(path: Path, model: Model) -> dict[str, SiloScores]:
    """What :func:`write_gathered` wrote, if it fits the model: by silo, or of one silo and of the sum of the others."""
    try:
        arrays = load(read_plain(path, None))
        ids = parse_json(arrays.pop(IDS).tobytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}; propose the prediction again") from None
    parts = {name.removeprefix("phi "): phi for name, phi in arrays.items()}
    for phi in parts.values():
        if phi.shape != (len(ids), model.phi_width) or str(phi.dtype) != model.dtype or not np.isfinite(phi).all():
            raise ValueError(f"{path} does not fit the model: propose the prediction again")
    if {silo for name in parts for silo in name.split(" + ")} != {*model.silos}:
        raise ValueError(f"{path} is of other silos than the model: propose the prediction again")
    in_order = sorted(parts, key=lambda name: model.silos.index(name.split(" + ")[0]))
    return {name: SiloScores(ids, parts[name]) for name in in_order}
