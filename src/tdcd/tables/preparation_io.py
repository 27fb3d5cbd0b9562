"""What a run folder keeps of its files' preparation, so that the model can be used on other rows.

::

    preparation/<silo>.json     how the silo's columns become features
    labels.json                 what the labels are
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdcd.tables.labels import LabelEncoding
from tdcd.tables.preparation import Preparation


def save_preparations(folder: Path, preparations: Mapping[str, Preparation], label_encoding: LabelEncoding) -> None:
    """Write every silo's preparation and the labels' encoding to a run folder."""
    (folder / "preparation").mkdir(exist_ok=True)
    for silo, preparation in preparations.items():
        _write(folder / "preparation" / f"{silo}.json", preparation.to_json())
    _write(folder / "labels.json", label_encoding._asdict())


def load_preparation(folder: Path, silo: str) -> Preparation:
    """One silo's preparation."""
    return Preparation.from_json(_read(folder / "preparation" / f"{silo}.json"))


def load_label_encoding(folder: Path) -> LabelEncoding:
    """What the labels are."""
    keys = _read(folder / "labels.json")
    return LabelEncoding(**keys | {"classes": tuple(keys["classes"])})


def _write(path: Path, value: Any) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing: it is there after a run from files that ended or was stopped"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
