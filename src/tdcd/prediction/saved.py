"""A model in one file: safetensors, with everything else that it takes to predict in its metadata."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.blocks import Block
from tdcd.config import stored_config
from tdcd.config.losses import chosen_loss, combine_of, loss_keys
from tdcd.config.resolve import block_keys
from tdcd.config.user_code import WAY_ON
from tdcd.core.losses import Loss
from tdcd.core.trees import named_leaves
from tdcd.prediction.folder import chosen_blocks, without_given
from tdcd.prediction.missing import StandIns
from tdcd.prediction.model import Model, Part
from tdcd.records.files import SHARED, parse_json, read_plain, write_durably
from tdcd.records.mark import digest_of
from tdcd.records.model_file import read_metadata
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation
from tdcd.tables.rows import Columns

KEY = "tdcd model"
SomeModel = TypeVar("SomeModel", bound=Model)


def save_file(model: Model, path: Path) -> None:
    """Write a model with all its parts to one file; the folders that lead there are made."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a file, such as {path / 'model.tdcd'}")
    if model.absent:
        name, file = next(iter(model.absent.items()))
        raise FileNotFoundError(
            f"{file} is missing: only a whole model can be saved, and silo '{name}' has a part of it"
        )
    blocks = [model.parts[name].block for name in model.silos]
    keys = block_keys(blocks)
    if keys is None:
        kinds = ", ".join(sorted({type(block).__name__ for block in blocks}))
        raise ValueError(
            f"a file cannot keep blocks of your own ({kinds}): keep the run folder, and give them to Model.load"
        )
    module = keys.get("module", "")
    if module.startswith("__main__:"):
        way_on = WAY_ON.format(module.removeprefix("__main__:"))
        raise ValueError(f"the module of TorchBlock is made by {module}, a function of this script, and {way_on}")
    loss = loss_keys(model.loss)
    if loss is None:
        raise ValueError(f"a file cannot keep a loss of your own ({model.loss.name}): keep the run folder")
    about: dict[str, Any] = {
        "model": {**keys, **loss, **model.head.keys},
        "dtype": model.dtype,
        "labels": model.label_encoding._asdict(),
        "stand_ins": model.stand_ins._asdict(),
        "silos": [
            {
                "name": name,
                "id": model.parts[name].columns.id,
                "reading": model.parts[name].columns.reading,
                "feature_shape": [*model.parts[name].feature_shape],
                "preparation": model.parts[name].preparation.to_json(),
            }
            for name in model.silos
        ],
    }
    tensors = {
        f"{name}/{leaf}": np.asarray(value)
        for name in model.silos
        for leaf, value in named_leaves(model.parts[name].parameters).items()
    }
    about["digest"] = digest_of(about, tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(tensors, {KEY: json.dumps(about)}), SHARED)
    except OSError as error:
        why = f"{path.parent} is no folder" if path.parent.is_file() else error.strerror
        raise OSError(f"{path} cannot be written: {why}") from None


def load_file(
    kind: type[SomeModel],
    path: Path,
    blocks: Block | Sequence[Block] | None = None,
    own: Loss | None = None,
    *,
    allow_code: bool = False,
) -> SomeModel:
    """Read what :func:`save_file` wrote; ``blocks`` and loss that are given take the place of those that it names."""
    try:
        content = read_plain(path, None)
        tensors, about = load(content), parse_json(read_metadata(content)[KEY])
        if about.pop("digest") != digest_of(about, tensors):
            raise ValueError("its content does not match its digest")
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a model, or is damaged: {error}") from None
    names = [silo["name"] for silo in about["silos"]]
    keys = {"model": about["model"], "dtype": about["dtype"], "federation": {"silos": len(names)}}
    config = stored_config(without_given(keys, blocks, own), str(path), allow_code=allow_code)
    encoding = LabelEncoding(**about["labels"] | {"classes": tuple(about["labels"]["classes"])})
    loss = own or chosen_loss(config.model)
    assert loss is not None
    outputs, head = loss.num_outputs(len(encoding.classes)), combine_of(config.model)
    parts = {}
    for silo, block in zip(about["silos"], chosen_blocks(config, names, blocks), strict=True):
        preparation = Preparation.from_json(silo["preparation"])
        columns = Columns.read_as(silo["id"], silo["reading"]).only([*preparation.parts], preparation.categorical)
        parameters = _tree(block, silo, tensors, head.width(outputs))
        parts[silo["name"]] = Part(columns, preparation, tuple(silo["feature_shape"]), block, parameters)
    stand_ins = StandIns(**about.get("stand_ins", {}))
    return kind((*parts,), parts, encoding, loss, config.dtype, str(path), stand_ins=stand_ins, head=head)


def _tree(block: Any, silo: Any, tensors: Any, outputs: int) -> Any:
    """A silo's parameters in the block's own structure."""
    template = jax.eval_shape(lambda: block.init(jax.random.key(0), tuple(silo["feature_shape"]), outputs))
    leaves = [tensors[f"{silo['name']}/{leaf}"] for leaf in named_leaves(template)]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)
