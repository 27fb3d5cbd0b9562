"""What a run folder holds, without the models."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from tdcd.core.words import counted
from tdcd.federation.silos import SiloIds
from tdcd.records.history import Record
from tdcd.records.patience import Best, Stopping
from tdcd.records.run_folder import RunFolder
from tdcd.records.verdict import verdict


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
        """Such as ``12 columns`` or ``8 × 4 pixels``."""
        if len(self.feature_shape) > 1:
            return " × ".join(str(size) for size in self.feature_shape) + " pixels"
        return counted(self.num_features, "column")


class FederationFacts(BaseModel):
    """The whole of ``federation.json``."""

    name: str
    num_samples: PositiveInt
    num_test: NonNegativeInt
    labels: str = ""
    """What they were taken for, where that was decided from a table's values."""
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
class Run:
    """What a run folder holds, without the models."""

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
        """What the run is called; the data's name for a run that Python started."""
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
        return (
            "" if self.history[-1].diverged else self._stopping.in_words(Best.of(self.history), self.history[-1].round)
        )

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
