"""What a run folder keeps of its files' preparation, so that the model can be used on other rows."""

from collections.abc import Mapping
from pathlib import Path

from tdcd.records.run_folder import RunFolder
from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation


def save_preparations(folder: Path, preparations: Mapping[str, Preparation], label_encoding: LabelEncoding) -> None:
    """Write every silo's preparation and the labels' encoding to a run folder."""
    run = RunFolder(folder)
    for silo, preparation in preparations.items():
        run.write_preparation(silo, preparation.to_json())
    run.write_labels({key: value for key, value in label_encoding._asdict().items() if value is not None})


def load_preparation(folder: Path, silo: str) -> Preparation:
    """One silo's preparation."""
    return Preparation.from_json(RunFolder(folder).preparation(silo))


def load_label_encoding(folder: Path) -> LabelEncoding:
    """What the labels are."""
    keys = RunFolder(folder).labels()
    return LabelEncoding(**keys | {"classes": tuple(keys["classes"])})
