"""The model in a run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tdcd.blocks import Block
from tdcd.blocks.start import start_block
from tdcd.config import Config, stored_config
from tdcd.config.losses import combine_of, named_loss
from tdcd.config.resolve import block_named, settings_of
from tdcd.core.choices import PYTHON
from tdcd.core.losses import Loss, fitting
from tdcd.core.words import counted, there_are
from tdcd.prediction.missing import StandIns
from tdcd.prediction.model import Model, Part
from tdcd.records.run import Run
from tdcd.records.run_folder import RunFolder
from tdcd.tables.preparation import load_label_encoding, load_preparation
from tdcd.tables.rows import Columns

SomeModel = TypeVar("SomeModel", bound=Model)
_KEPT = ("loss", "huber_delta", "folder", "l2", "bins", "head", "head_units")
"""What ``[model]`` says besides its blocks."""


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
    absent = {name: next((one for one in both if not one.is_file()), None) for name, both in files.items()}
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
        parts[silo.name] = Part(columns, preparation, silo.feature_shape, chosen[index], parameters)
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
