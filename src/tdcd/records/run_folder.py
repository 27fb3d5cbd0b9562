"""The run folder: everything a run leaves behind, and all that resuming it needs.

::

    config.toml                 the resolved settings
    federation.json             silos, columns, clients and their rows; the engine that simulates them
    history.jsonl               one line per evaluated round
    model/<silo>.safetensors    each hub's block; the round is in the metadata
    model/<silo>.memory.safetensors    what else a hub remembers, if its variant has it remember anything
    preparation/<silo>.json     how the silo's columns become features; of a run from files
    labels.json                 what the labels are; of a run from files
    held-out.csv                ids, labels and predictions of the held-out samples
    alone.json                  what each silo reaches alone, if that was asked for
    subsets.json                what the model reaches with every subset of silos
    report.html
    manifest.json               versions, machine, and digests of all of this; see :mod:`tdcd.records.manifest`
    manifest.key                what the digests of data there are keyed with; for the owner's eyes only

A sweep's folder has one run folder per setting, and next to them

::

    sweep.json      the configuration, lists and all, and what each run came to
    sweep.html

Nothing else in the package reads or writes these files. What a hub's folder holds in addition is in
:mod:`tdcd.runtime.storage`.
"""

import json
import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.core.words import counted
from tdcd.federation.silos import Federation, SiloIds
from tdcd.records.files import (
    NO_LINES,
    PRIVATE,
    Mark,
    digest_of,
    marks_of,
    parse_json,
    parse_toml,
    read_json,
    read_plain,
    write_durably,
    write_json,
)
from tdcd.records.history import Record, read_history
from tdcd.records.model_file import RESTORE, ModelFiles, settings_digest
from tdcd.records.outcome import Stopping, verdict

CONFIG, HISTORY, FACTS, REPORT = "config.toml", "history.jsonl", "federation.json", "report.html"


class RunFolder:
    """A run folder, of a simulation or a hub: see above for its files."""

    def __init__(self, path: Path) -> None:
        """Point to ``path``; see :meth:`create` and :meth:`open`."""
        self.path = path
        self.config_file, self.history_file = path / CONFIG, path / HISTORY
        self.facts_file, self.alone_file = path / FACTS, path / "alone.json"
        self.held_out_file, self.labels_file = path / "held-out.csv", path / "labels.json"
        self.subsets_file, self.report_file = path / "subsets.json", path / REPORT
        self.model = ModelFiles(path)
        self._settings = ""

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], facts: Mapping[str, Any]) -> Self:
        """Start a new run; refuses a folder that already holds one.

        Args:
            config: nested settings, written as TOML.
            facts: see :func:`federation_facts`.
        """
        folder = cls(path)
        if folder.is_begun:
            raise FileExistsError(
                f"{path} already holds a run: resume it (--resume {path}, or resume=True) or choose another folder"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(f"{path} is there already and is not an empty folder: choose another one")
        # Held-out labels, predictions and models are for their owner alone.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Of two runs that start in the same folder at the same time, one fails here.
        os.close(os.open(folder.history_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        folder.write_config(config)
        folder.write_facts(facts)
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run."""
        folder = cls(path)
        for file in (folder.config_file, folder.history_file):
            if not file.is_file():
                raise FileNotFoundError(f"{path} is not a run folder: it has no {file.name}")
        return folder

    @property
    def is_begun(self) -> bool:
        """Whether there is a run."""
        return self.history_file.exists()

    def remove(self) -> None:
        """Delete the run with all its files."""
        shutil.rmtree(self.path)

    # Settings and facts.

    def config(self) -> dict[str, Any]:
        """The resolved settings."""
        try:
            return parse_toml(read_plain(self.config_file))
        except ValueError as error:
            raise ValueError(f"{self.config_file} is not valid TOML: {error}") from None

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the settings, as when a resumed run is given more rounds."""
        text = toml_text(config)
        self._settings = settings_digest(tomllib.loads(text))
        write_durably(self.config_file, text.encode())

    def checked_config(self) -> dict[str, Any]:
        """The settings, if they are those of the models; but for what a resumed run may change."""
        config = self.config()
        digest = settings_digest(config)
        for path, facts in self.model.facts():
            if facts.get("settings") and facts["settings"] != digest:
                raise ValueError(f"{self.config_file} is not what {path} was trained with: {RESTORE}")
        self._settings = digest
        return config

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Say who holds what, see :func:`federation_facts`."""
        write_json(self.facts_file, facts)

    def facts(self) -> dict[str, Any]:
        """Who holds what, see :func:`federation_facts`."""
        try:
            return dict(read_json(self.facts_file))
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path} is not a run folder: it has no {self.facts_file.name}") from None
        except TypeError as error:
            raise ValueError(f"{self.facts_file} is damaged: {error}") from None

    # History.

    def append(self, record: Record) -> None:
        """Add one line to the history."""
        with self.history_file.open("a") as file:
            file.write(record.to_json() + "\n")

    def sync_history(self) -> None:
        """Make the lines so far durable."""
        with self.history_file.open("rb") as file:
            os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """The records so far; none before the first evaluation."""
        return read_history(self.history_file)

    def history(self) -> list[Record]:
        """The records so far, at least the one before training."""
        records = self.records()
        if not records:
            raise ValueError(
                f"{self.history_file} is empty: let the run get as far as its first evaluation, or start it again"
            )
        return records

    def records_before(self, round_index: int, every: int, mark: Mark) -> list[Record]:
        """The history up to ``round_index``, if its first lines are those of ``mark``.

        A last record that an uninterrupted run, evaluated every ``every`` rounds, would not have is left out.
        """
        return [
            record
            for record in self.marked_history(mark)[: mark.lines]
            if record.round <= round_index and record.round % every == 0 and not record.diverged
        ]

    def marked_history(self, mark: Mark) -> list[Record]:
        """All records, if the first lines are those of ``mark``."""
        records = self.records()
        difference = mark.difference(marks_of(record.without_seconds() for record in records))
        if difference:
            raise ValueError(f"{self.history_file} {difference}: {RESTORE}")
        return records

    def rewrite_history(self, records: Sequence[Record]) -> None:
        """Leave nothing in the history but these records."""
        write_durably(self.history_file, "".join(record.to_json() + "\n" for record in records).encode())

    # The model.

    def mark(self) -> Mark | None:
        """The history that the last checkpoint knows; None if there is no checkpoint to resume from."""
        return self._about_model().get("history")

    def data_digest(self) -> str:
        """The digest of the rows that the last checkpoint was trained on; empty if it is not known."""
        return str(self._about_model().get("data", ""))

    def _about_model(self) -> dict[str, Any]:
        return next((facts for _, facts in self.model.facts()), {})

    def save_blocks(
        self,
        names: Sequence[str],
        hub_blocks: Sequence[Tree],
        round_index: int,
        history: Mark = NO_LINES,
        data: str = "",
        memory: Sequence[Tree] = (),
        last: tuple[Sequence[Tree], int] | None = None,
    ) -> None:
        """Replace all silos' blocks at once, each with what it takes to know its run again.

        Args:
            history: the lines so far, without seconds; ``data`` is a digest of the federation's rows.
            memory: what else each hub remembers; nothing is written for a hub that remembers nothing.
            last: the blocks of the last round, and that round, where ``hub_blocks`` are the best ones.
        """
        self._settings = self._settings or settings_digest(self.config())
        remembered = [(f"{name}.memory", tree) for name, tree in zip(names, memory, strict=False) if named_leaves(tree)]
        facts: dict[str, Any] = {"round": round_index, "history": history, "settings": self._settings, "data": data}
        extra: list[tuple[str, Tree]] = []
        if last is not None:
            extra, facts["last"] = [(f"{name}.last", tree) for name, tree in zip(names, last[0], strict=True)], last[1]
        self.model.save([*zip(names, hub_blocks, strict=True), *extra, *remembered], facts)

    def load_blocks(self, names: Sequence[str], templates: Sequence[Tree]) -> tuple[list[Tree], int]:
        """All silos' blocks, shaped like ``templates``, and the round they belong to."""
        blocks, facts = self.load_checkpoint(names, templates)
        return blocks, int(facts["round"])

    def load_checkpoint(self, names: Sequence[str], templates: Sequence[Tree]) -> tuple[list[Tree], dict[str, Any]]:
        """All silos' blocks, shaped like ``templates``, and what :meth:`save_blocks` wrote about them."""
        return self.model.load(names, templates)

    # What is there besides.

    def preparation_file(self, silo: str) -> Path:
        """The file that says how a silo's columns become features."""
        return self.path / "preparation" / f"{silo}.json"

    def write_preparation(self, silo: str, preparation: Mapping[str, Any]) -> None:
        """Say how a silo's columns become features."""
        path = self.preparation_file(silo)
        path.parent.mkdir(exist_ok=True)
        write_json(path, preparation)

    def preparation(self, silo: str) -> Any:
        """How a silo's columns become features."""
        return _of_files(self.preparation_file(silo))

    def write_labels(self, encoding: Mapping[str, Any]) -> None:
        """Say what the labels are."""
        write_json(self.labels_file, encoding)

    def labels(self) -> Any:
        """How the labels are encoded."""
        return _of_files(self.labels_file)

    def write_alone(self, figures: Mapping[str, Mapping[str, float | None]]) -> None:
        """Say what each silo reaches alone: its metrics by name."""
        write_json(self.alone_file, figures)

    def alone(self) -> dict[str, dict[str, float | None]]:
        """What each silo reaches alone; nothing if that was not asked for."""
        if not self.alone_file.exists():
            return {}
        by_silo = read_json(self.alone_file)
        if not isinstance(by_silo, dict) or not all(isinstance(figures, dict) for figures in by_silo.values()):
            raise ValueError(f"{self.alone_file} is damaged: it does not give each silo's figures")
        return by_silo

    def write_subsets(self, subsets: Mapping[str, Any]) -> None:
        """Say what the model reaches with every subset of silos.

        Args:
            subsets: ``silos``, all of them in order; ``silo_dropout``, the run's; ``samples``, ``"test"`` or
                ``"train"``: of which the figures are; ``mean_phi`` and ``stand_in``, by silo ``[C]`` numbers each, its
                mean phi over the training samples and what takes its place where it is missing; ``subsets``, for each
                its ``silos``, their ``loss`` and ``metrics``; ``shuffled``, see
                :func:`tdcd.prediction.subsets.silo_importances`; where silos lack samples ``patterns``, figures by the
                silos that have them, ``trained_without``, see :func:`tdcd.federation.missing_rows.trained_without`, and
                ``means``, see :func:`tdcd.prediction.subsets.means_by_pattern`; ``interactions``, see
                :func:`tdcd.prediction.interactions.interactions_of`; of ensembles with probabilities ``calibration``,
                see :func:`tdcd.prediction.calibration.describe_calibration`; of simulations ``importance``, see
                :func:`tdcd.prediction.importance.describe_importances`, and ``effects``, by silo those of its columns
                where its block is not linear, see :class:`tdcd.tables.effects.Effect`.
        """
        write_json(self.subsets_file, subsets)

    def subsets(self) -> dict[str, Any]:
        """What :meth:`write_subsets` wrote; nothing if the run has not ended, or is of an earlier version."""
        if not self.subsets_file.exists():
            return {}
        recorded = read_json(self.subsets_file)
        if not isinstance(recorded, dict) or not isinstance(recorded.get("subsets"), list):
            raise ValueError(f"{self.subsets_file} is damaged: it does not give the figures of subsets of silos")
        return recorded

    def write_report(self, page: str) -> Path:
        """Replace the report; its path."""
        write_durably(self.report_file, page.encode())
        return self.report_file

    def gather(self, parts: Sequence["RunFolder"]) -> None:
        """Make this folder that of the whole run, of which every silo in order has a part."""
        first, facts = parts[0], [part.facts() for part in parts]
        if any(part.records() != first.records() for part in parts):
            raise ValueError(f"the hubs in {first.path.parent} have different histories")
        # Where one silo alone has labels, it alone knows what they are.
        names, holder = [silo["name"] for silo in facts[0]["silos"]], first.config()["federation"].get("labels")
        index = names.index(holder) if holder in names else 0
        knows = parts[index]
        files = (first.config_file, first.history_file, knows.labels_file, knows.held_out_file, knows.subsets_file)
        for file in files:
            if file.exists():
                shutil.copy(file, self.path)
        for name in ("model", "preparation"):
            for part in parts:
                if (part.path / name).exists():
                    shutil.copytree(part.path / name, self.path / name, dirs_exist_ok=True)
        # Only a silo itself knows the names of its columns.
        self.write_facts({**facts[index], "silos": [fact["silos"][place] for place, fact in enumerate(facts)]})


def _of_files(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing: it is there after a run from files that ended or was stopped"
        ) from None


def federation_facts(federation: Federation, parameters: Sequence[int], engine: str) -> dict[str, Any]:
    """What ``federation.json`` says: silos, columns, clients and their rows, and the engine that simulates them.

    Args:
        parameters: of each silo's block.
    """
    return {
        "name": federation.name,
        "num_samples": federation.num_samples,
        "num_test": 0 if federation.test_labels is None else len(federation.test_labels),
        "labels": federation.labels_in_words,
        "engine": engine,
        "alignment": {silo: asdict(ids) for silo, ids in federation.alignment.items()},
        "silos": [
            {
                "name": silo.name,
                "feature_shape": list(silo.feature_shape),
                "columns": list(silo.columns),
                "clients": silo.rows_held.tolist(),
                "parameters": count,
            }
            for silo, count in zip(federation.silos, parameters, strict=True)
        ],
    }


def toml_text(config: Mapping[str, Any]) -> str:
    """Nested settings as TOML; entries that are None are left out.

    >>> print(toml_text({"seed": 0, "train": {"rounds": 5, "note": None}}), end="")
    seed = 0
    <BLANKLINE>
    [train]
    rounds = 5
    """
    tables = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    lines = [
        f"{key} = {_toml_value(value)}" for key, value in config.items() if key not in tables and value is not None
    ]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_toml_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items() if item is not None)
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # JSON and TOML agree on these but for characters past the basic plane and the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


class SiloFacts(BaseModel):
    """One silo, as ``federation.json`` describes it."""

    name: str
    feature_shape: tuple[PositiveInt, ...]
    columns: tuple[str, ...]
    """Empty for images."""
    clients: tuple[PositiveInt, ...] = Field(min_length=1)
    """The rows that each client holds."""
    parameters: NonNegativeInt

    @property
    def num_features(self) -> int:
        """Numbers in one sample: columns, or pixels."""
        return prod(self.feature_shape)

    @property
    def features_in_words(self) -> str:
        """The features in words, such as ``12 columns`` or ``8 × 4 pixels``."""
        if len(self.feature_shape) > 1:
            return " × ".join(str(size) for size in self.feature_shape) + " pixels"
        return counted(self.num_features, "column")


class FederationFacts(BaseModel):
    """The whole of ``federation.json``."""

    name: str
    num_samples: PositiveInt
    num_test: NonNegativeInt
    labels: str = ""
    """How they were interpreted, where that was decided from a table's values."""
    engine: str = ""
    """The engine of the simulation that ran; empty for a real federation."""
    alignment: dict[str, SiloIds] = Field(default_factory=dict)
    """By silo, where samples that one of them lacks were left out."""
    silos: tuple[SiloFacts, ...] = Field(min_length=1)

    @property
    def num_clients(self) -> int:
        """Clients of all silos."""
        return sum(len(silo.clients) for silo in self.silos)


@dataclass(frozen=True)
class RecordedRun:
    """The contents of a run folder, without the models."""

    path: Path
    config: dict[str, Any]
    federation: FederationFacts
    history: list[Record]
    """At least one record."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a run folder; an error names the file, and the line where there is one."""
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is not a folder: give the folder that a run wrote")
        folder = RunFolder.open(path)
        return cls(path, folder.config(), _federation(folder), folder.history())

    @property
    def name(self) -> str:
        """The run's name; the data's name for a run that Python started."""
        return str(self.config.get("name") or self.federation.name)

    @property
    def data(self) -> list[str]:
        """The data's name, if it is another."""
        return [self.federation.name] if self.federation.name != self.name else []

    @property
    def diverged(self) -> bool:
        """Whether it is over and its model is not to be trusted."""
        return bool(self.verdict)

    @property
    def verdict(self) -> str:
        """Why the model of a run that is over is not to be trusted; nothing if training made it better."""
        is_over = self._stopping.is_complete(self.history)
        return verdict(self.history, self._stopping) if is_over else ""

    @property
    def final(self) -> Record:
        """The record of the model that stays: the last with a finite loss, or the best; the very first if none has."""
        return self._stopping.kept(self.history)

    @property
    def ending(self) -> str:
        """Why the run ended early, and which model stays, if that is not as usual."""
        return "" if self.history[-1].diverged else self._stopping.ending(self.history)

    @property
    def _stopping(self) -> Stopping:
        return Stopping.of(self.config)

    @property
    def metric_names(self) -> list[str]:
        """Every metric of the history, in order of appearance."""
        figures = (figures for record in self.history for figures in record.metrics.values())
        return list(dict.fromkeys(name for named in figures for name in named))


def _federation(folder: RunFolder) -> FederationFacts:
    try:
        return FederationFacts.model_validate(folder.facts())
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ValueError(f"{folder.facts_file} does not describe a federation: {'; '.join(problems)}") from None


SWEEP = "sweep.json"


class SweepFolder:
    """One sweep on disk."""

    def __init__(self, path: Path) -> None:
        """Point to ``path``, where a sweep is or shall be."""
        self.path, self.file = path, path / SWEEP

    @property
    def is_begun(self) -> bool:
        """Whether there is a sweep."""
        return self.file.exists()

    def begun_runs(self) -> list[str]:
        """The names of the run folders that are there."""
        return sorted(path.name for path in self.path.glob("*") if RunFolder(path).is_begun)

    def write(self, keys: Mapping[str, Any], varied: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> None:
        """Say what is varied, and what each run came to so far."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {"keys": keys, "digest": digest_of(keys, {}), "varied": [*varied], "runs": [*runs]})

    def keys(self) -> dict[str, Any]:
        """The configuration, with a list where a key is varied."""
        try:
            content = parse_json(read_plain(self.file))
            keys, digest = content["keys"], content["digest"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.file} is damaged: {error!r}; {RESTORE}") from None
        if digest != digest_of(keys, {}):
            raise ValueError(f"{self.file} is damaged: 'keys' does not match 'digest'; {RESTORE}")
        return dict(keys)

    def write_page(self, page: str) -> Path:
        """Replace ``sweep.html``; its path."""
        path = self.path / "sweep.html"
        write_durably(path, page.encode())
        return path
