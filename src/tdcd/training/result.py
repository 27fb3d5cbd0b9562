"""What training gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdcd.core.objective import Tree
from tdcd.core.words import there_are
from tdcd.data.table import numbers
from tdcd.federation.silos import Federation
from tdcd.prediction.model import Model
from tdcd.records.history import Record
from tdcd.simulation.simulate import Simulation
from tdcd.training.recording import Status
from tdcd.training.subsets import Trained, stand_ins_of


@dataclass(frozen=True)
class Result:
    """What training gave."""

    history: list[Record]
    blocks: dict[str, Tree]
    """The hub block of each silo, by name."""
    round: int
    """The round those blocks are of."""
    status: Status
    """``"finished"``, or ``"interrupted"`` by Ctrl-C or a request to stop, or ``"diverged"``: the loss stopped being
    finite, or the model is worse than before training or far above the best (:mod:`tdcd.records.verdict`)."""
    simulation: Simulation
    federation: Federation
    folder: Path | None = None
    reason: str = ""
    """Why it diverged, why it ended before its last round, or which other round's model is kept."""

    @property
    def final(self) -> Record:
        """The line of the model that stays, or the last one before it if it was not evaluated."""
        return next(one for one in reversed(self.history) if one.round <= self.round and not one.diverged)

    @property
    def engine(self) -> str:
        """The name of the engine that ran the rounds."""
        return self.simulation.engine

    @property
    def model(self) -> Model:
        """The trained model, which predicts from raw rows."""
        simulation, hosts = self.simulation, self.simulation.hosts
        hub_blocks = [self.blocks[silo.name] for silo in self.federation.silos]
        trained = Trained(self.federation, simulation.blocks, simulation.objective, simulation.variant, hosts)
        stand_ins = stand_ins_of(trained, hub_blocks, self.folder)
        dtype = simulation.settings.dtype
        return Model.of(self.federation, simulation.blocks, hub_blocks, simulation.objective, dtype, stand_ins)

    def scores(self, features: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The trained model's scores ``[rows, C]`` for other samples: each silo's prepared features of them.

        For raw rows see :attr:`model`.

        Of a regression, ``scores * federation.label_scale + federation.label_mean`` are amounts in the data's own
        units.
        """
        silos = self.federation.silos
        tables = [numbers(table, f"features {index}") for index, table in enumerate(features)]
        if len(tables) != len(silos):
            raise ValueError(
                f"{there_are(len(silos), 'silo')}, but features of {len(tables)}: give every silo's columns"
            )
        for silo, table in zip(silos, tables, strict=True):
            wanted = (len(tables[0]), *silo.feature_shape)
            if table.shape != wanted:
                raise ValueError(f"silo '{silo.name}': features have shape {table.shape}, but must have {wanted}")
        total = self.simulation.scores(list(self.blocks.values()), tables)
        return np.asarray(self.simulation.objective.scores(total))
