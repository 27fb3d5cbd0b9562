"""Who attacks what: the lines of an audit, and what came of each in one mode."""

from dataclasses import dataclass, field
from typing import Literal

from tdcd.audit.modes import Mode

Measure = Literal["variance explained", "AUC", "accuracy", "squared correlation"]
RECOVERED, PARTLY = 0.9, 0.1
"""An attack that closes so much of the gap between the guess and everything has recovered it, or part of it."""


@dataclass(frozen=True)
class Line:
    """A party, what it is after, and how."""

    key: str
    party: str
    target: str
    attack: str
    reference: str


LINES = (
    Line(
        "own hub",
        "a silo's own hub",
        "its clients' columns",
        "Phi of every row at many moments, and the block that each comes from: least squares for the row (linear "
        "blocks), or Gauss-Newton steps (others).",
        "Luo et al. 2021; Fredrikson et al. 2015",
    ),
    Line(
        "first block",
        "another hub",
        "a silo's columns, from the first block",
        "The first block is drawn from the seed in the shared file, so everybody knows it. Phi of round 0 gives one "
        "equation per output and row.",
        "Fredrikson et al. 2015",
    ),
    Line(
        "few known rows",
        "another hub",
        "a silo's columns, few rows known",
        "The attacker knows two rows more than the silo has columns. They give the blocks, and the blocks all other "
        "rows. Linear silos only.",
        "Weng et al. 2020",
    ),
    Line(
        "known rows",
        "another hub",
        "a silo's columns, more rows known",
        "A ridge regression from what the attacker sees of a row to its columns, fitted on known rows: four more than "
        "all other silos have columns together. It works on sums too.",
        "Weng et al. 2020; regression is ours",
    ),
    Line(
        "slopes to columns",
        "a hub without labels",
        "the label silo's columns, rows known",
        "Slopes give the label and then the score; less its own phi that is the sum of the others' phi. Then the "
        "regression above, with as many known rows.",
        "the inverse of the loss's derivative",
    ),
    Line(
        "client",
        "a client of another silo",
        "a silo's columns, rows known",
        "The regression above on what a client gets for its own rows, with as many of them known.",
        "Weng et al. 2020; regression is ours",
    ),
    Line(
        "score",
        "another hub",
        "what a silo says of each sample",
        "Phi itself, in the last round. From a sum, the attacker takes an equal share of it for each silo.",
        "no attack: it is what is sent",
    ),
    Line(
        "split",
        "another hub",
        "how two silos differ on each sample",
        "Phi of one silo less that of another, in the last round. From a sum, the attacker shares it out by the silos' "
        "numbers of columns.",
        "no attack: it is what is sent",
    ),
    Line(
        "labels of hub",
        "another hub",
        "the labels",
        "The sign of the slope (two classes), its negative coordinate (several), its first value (amounts), or the "
        "expected count less the slope (counts).",
        "Li et al. 2022; Zhao et al. 2020",
    ),
    Line(
        "labels of client",
        "a client of another silo",
        "the labels of its rows",
        "The same, for the client's own rows.",
        "Li et al. 2022; Zhao et al. 2020",
    ),
    Line(
        "clusters",
        "a hub without labels",
        "the labels, by clusters",
        "K-means on each row's slopes over the rounds; the clusters are named in the best possible way.",
        "Fu et al. 2022",
    ),
    Line(
        "probe",
        "a hub without labels",
        "the labels, from its own phi",
        "A linear model from its own silo's phi over the rounds to the label, fitted on a few rows whose labels it "
        "knows. The guess is the same with its own columns.",
        "Fu et al. 2022",
    ),
    Line(
        "membership",
        "anybody with the model",
        "who was trained on",
        "Training samples have smaller losses than held-out ones.",
        "Yeom et al. 2018",
    ),
)
BY_KEY = {line.key: line for line in LINES}


@dataclass(frozen=True)
class Finding:
    """What an attack recovered in one mode."""

    line: str
    """Its key in :data:`LINES`."""
    mode: Mode
    party: str = ""
    silo: str = ""
    """Whose columns; empty for labels and membership."""
    sees: str = ""
    measure: Measure = "variance explained"
    recovered: float | None = None
    """The mean over columns, or the measure of labels; None if the attack was not played."""
    guess: float = 0.0
    """The same without the transcript."""
    columns: dict[str, float] = field(default_factory=dict)
    """By name."""
    bound: float | None = None
    """What randomised labels allow at most, in expectation."""
    known: int = 0
    """Rows, or labels, that the attacker is given."""
    why_not: str = ""
    """Why it was not played."""
    holds: bool = False
    """The party has it by the rules: nothing needs to be attacked."""

    @property
    def gain(self) -> float:
        """The part of the gap between the guess and everything that the transcript closes; 0 if it was not played."""
        if self.recovered is None or self.guess >= 1:
            return 0.0
        return max(0.0, (self.recovered - self.guess) / (1 - self.guess))

    @property
    def best_column(self) -> str | None:
        """The column that was recovered best."""
        return max(self.columns, key=lambda name: self.columns[name]) if self.columns else None
