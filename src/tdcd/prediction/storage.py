"""A model on disk: in a run folder, or in one safetensors file with all else that predicting takes in its metadata."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tdcd.blocks import Block
from tdcd.blocks.start import start_block
from tdcd.config import Config, stored_config
from tdcd.config.losses import chosen_loss, combine_of, loss_keys, named_loss
from tdcd.config.resolve import block_keys, block_named, settings_of
from tdcd.config.user_code import WAY_ON
from tdcd.core.choices import PYTHON
from tdcd.core.losses import Loss, fitting
from tdcd.core.trees import named_leaves
from tdcd.core.words import counted, there_are
from tdcd.prediction.model import Model, SiloModel
from tdcd.prediction.scores import StandIns
from tdcd.records.files import SHARED, parse_json, read_plain, write_durably
from tdcd.records.mark import digest_of
from tdcd.records.model_file import read_metadata
from tdcd.records.run import Run
from tdcd.records.run_folder import RunFolder
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation, load_label_encoding, load_preparation
from tdcd.tables.rows import Columns

KEY = "tdcd model"
SomeModel = TypeVar("SomeModel", bound=Model)
_KEPT = ("loss", "huber_delta", "folder", "l2", "bins", "head", "head_units")
"""What ``[model]`` says besides its blocks."""


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
        parts[silo["name"]] = SiloModel(columns, preparation, tuple(silo["feature_shape"]), block, parameters)
    stand_ins = StandIns(**about.get("stand_ins", {}))
    return kind((*parts,), parts, encoding, loss, config.dtype, str(path), stand_ins=stand_ins, head=head)


def _tree(block: Any, silo: Any, tensors: Any, outputs: int) -> Any:
    """A silo's parameters in the block's own structure."""
    template = jax.eval_shape(lambda: block.init(jax.random.key(0), tuple(silo["feature_shape"]), outputs))
    leaves = [tensors[f"{silo['name']}/{leaf}"] for leaf in named_leaves(template)]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def load_folder(
    kind: type[SomeModel],
    path: Path,
    blocks: Block | Sequence[Block] | None,
    own: Loss | None,
    *,
    allow_code: bool = False,
) -> SomeModel:
    """The model in the folder of any run: of all silos, or of a hub's own one."""
    run, folder = Run.read(path), RunFolder(path)
    names = [silo.name for silo in run.federation.silos]
    config = _config(run, blocks, own, allow_code=allow_code)
    chosen = chosen_blocks(config, names, blocks)
    encoding = load_label_encoding(path)
    loss = own or named_loss(config.model, config.model.loss or fitting(encoding.task)[0])
    outputs, head = encoding.num_outputs or loss.num_outputs(len(encoding.classes)), combine_of(config.model)
    files = {name: (folder.model.file(name), folder.preparation_file(name)) for name in names}
    absent = {name: next((path for path in paths if not path.is_file()), None) for name, paths in files.items()}
    lacking = {name: file for name, file in absent.items() if file is not None}
    ids = {section.name: section.id for section in config.silos} | _ids(run.config)
    parts = {}
    for index, silo in enumerate(run.federation.silos):
        if silo.name in lacking:
            continue
        preparation = load_preparation(path, silo.name)
        template = start_block(chosen[index], settings_of(config), index, silo.feature_shape, outputs, combine=head)
        (parameters,), _ = folder.load_blocks([silo.name], [template])
        columns = _columns(config, silo.name, ids.get(silo.name, "id"), run.config.get("data", {}))
        columns = columns.only([*preparation.parts], preparation.categorical)
        parts[silo.name] = SiloModel(columns, preparation, silo.feature_shape, chosen[index], parameters)
    labels, subsets = config.federation.labels, folder.subsets()
    stand_ins = StandIns(subsets.get("stand_in", {}), subsets.get("silo_dropout", config.train.silo_dropout))
    return kind((*names,), parts, encoding, loss, config.dtype, str(path), lacking, labels, stand_ins, head)


def without_given(keys: Mapping[str, Any], blocks: Block | Sequence[Block] | None, loss: Loss | None) -> dict[str, Any]:
    """Settings without those that are given as objects, and without a variant, which no model needs."""
    model, train = dict(keys.get("model", {})), dict(keys.get("train", {}))
    if blocks is not None:
        model = {key: value for key, value in model.items() if key in _KEPT}
        model["block"] = "linear"
    if loss is not None:
        model.pop("loss", None)
    train.pop("variant", None)
    return {**keys, "model": model, "train": train}


def _config(run: Run, blocks: Block | Sequence[Block] | None, loss: Loss | None, *, allow_code: bool) -> Config:
    """The settings of a run; of one that Python started, those that make its model."""
    keys, where = without_given(run.config, blocks, loss), str(RunFolder(run.path).config_file)
    if keys.get("data", {}).get("source") != PYTHON:
        return stored_config(keys, where, allow_code=allow_code)
    model: dict[str, Any] = keys["model"]
    if any("(" in name or "." in name for name in _names(model["block"])):
        raise ValueError(
            f"{where}: model.block = {model['block']!r} is a block of your own: give it, Model.load(path, blocks)"
        )
    if "(" in model.get("loss", ""):
        raise ValueError(
            f"{where}: model.loss = {model['loss']!r} is a loss of your own: give it, Model.load(path, loss=...)"
        )
    known = {"seed": keys["seed"], "dtype": keys["dtype"], "model": model}
    known["federation"] = {"silos": len(run.federation.silos)}
    return stored_config(known, where, allow_code=allow_code)


def chosen_blocks(config: Config, names: Sequence[str], given: Block | Sequence[Block] | None) -> list[Block]:
    """One per silo of the run, which may be one silo of the configuration alone."""
    if given is not None:
        own = [*given] if isinstance(given, Sequence) else [given] * len(names)
        if len(own) != len(names):
            raise ValueError(
                f"{there_are(len(names), 'silo')}, but {counted(len(own), 'block')}: give one for all, or one each"
            )
        return own
    known, of_silos = dict(zip(config.silo_names, config.block_names, strict=True)), config.block_names
    chosen = [known.get(name, of_silos[index % len(of_silos)]) for index, name in enumerate(names)]
    made = {block: block_named(block, config.model) for block in dict.fromkeys(chosen)}
    return [made[block] for block in chosen]


def _names(block: str | Sequence[str]) -> Sequence[str]:
    return [block] if isinstance(block, str) else block


def _columns(config: Config, silo: str, id_column: str, reading: Mapping[str, Any]) -> Columns:
    section = next((one for one in config.silos if one.name == silo), None)
    if section is None or config.data.source != "files":
        return Columns.read_as(id_column, reading)
    return Columns.of(config, section)


def _ids(keys: Mapping[str, Any]) -> dict[str, str]:
    """What the tables of a run that Python started call the id, by silo."""
    found = keys.get("data", {}).get("ids", {})
    return dict(found) if isinstance(found, Mapping) else {}
