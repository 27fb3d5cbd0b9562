"""Who attacks what: the lines of an audit, what came of each in one mode, and what that means in a sentence."""

from dataclasses import dataclass, field
from typing import Literal

from tdcd.audit.modes import Mode

RecoveryMeasure = Literal["variance explained", "AUC", "accuracy", "squared correlation"]
RECOVERED, PARTLY = 0.9, 0.1
"""An attack that closes so much of the gap between the guess and everything has recovered it, or part of it."""


@dataclass(frozen=True)
class AuditLine:
    """A party, what it is after, and how."""

    key: str
    party: str
    target: str
    attack: str
    reference: str


LINES = (
    AuditLine(
        "own hub",
        "a silo's own hub",
        "its clients' columns",
        "Phi of every row at many moments, and the block that each comes from: least squares for the row (linear "
        "blocks), or Gauss-Newton steps (others).",
        "Luo et al. 2021; Fredrikson et al. 2015",
    ),
    AuditLine(
        "two rows",
        "another hub",
        "which of two rows a sample has",
        "The attacker knows the silo's block at every moment, and two rows, of which one is the sample's: the other is "
        "the one whose phi differs most. Phi is closer to one of them. No attack on a row's phi does better, and noise "
        "on phi bounds it.",
        "Neyman and Pearson 1933; Dong, Roth and Su 2022",
    ),
    AuditLine(
        "first block",
        "another hub",
        "a silo's columns, from the first block",
        "The first block is drawn from the seed in the shared file, so every party knows it. Phi of round 0 gives one "
        "equation per output and row.",
        "Fredrikson et al. 2015",
    ),
    AuditLine(
        "few known rows",
        "another hub",
        "a silo's columns, few rows known",
        "The attacker knows two rows more than the silo has columns. They give the blocks, and the blocks all other "
        "rows. Linear silos only.",
        "Weng et al. 2020",
    ),
    AuditLine(
        "known rows",
        "another hub",
        "a silo's columns, more rows known",
        "A ridge regression from what the attacker sees of a row to its columns, fitted on known rows: four more than "
        "all other silos have columns together. It works on sums too.",
        "Weng et al. 2020; regression is ours",
    ),
    AuditLine(
        "inverse",
        "another hub",
        "a silo's columns, by a learned inverse",
        "Half of the rows are the attacker's own, at most 256. On them it learns the way from phi and its own columns "
        "back to the silo's columns, linear or by kernels, and goes it on the other rows.",
        "Luo et al. 2021; He et al. 2019; kernels are ours",
    ),
    AuditLine(
        "property",
        "another hub",
        "the share of a group above a column's mean",
        "By the same inverse: the chance that a column is above its mean, averaged over groups of 16 other rows. Which "
        "groups have a share above the median?",
        "Ateniese et al. 2015; Melis et al. 2019",
    ),
    AuditLine(
        "slopes to columns",
        "a hub without labels",
        "the label silo's columns, rows known",
        "Slopes give the label and then the score; less its own phi that is the sum of the others' phi. Then the "
        "regression above, with as many known rows.",
        "the inverse of the loss's derivative",
    ),
    AuditLine(
        "client",
        "a client of another silo",
        "a silo's columns, rows known",
        "The regression above on what a client gets for its own rows, with as many of them known.",
        "Weng et al. 2020; regression is ours",
    ),
    AuditLine(
        "score",
        "another hub",
        "what a silo says of each sample",
        "Phi itself, in the last round. From a sum, the attacker takes an equal share of it for each silo.",
        "no attack: it is what is sent",
    ),
    AuditLine(
        "split",
        "another hub",
        "how two silos differ on each sample",
        "Phi of one silo less that of another, in the last round. From a sum, the attacker shares it out by the silos' "
        "numbers of columns.",
        "no attack: it is what is sent",
    ),
    AuditLine(
        "labels of hub",
        "another hub",
        "the labels",
        "The sign of the slope (two classes), its negative coordinate (several), its first value (amounts), or the "
        "expected count less the slope (counts).",
        "Li et al. 2022; Zhao et al. 2020",
    ),
    AuditLine(
        "labels of client",
        "a client of another silo",
        "the labels of its rows",
        "The same, for the client's own rows.",
        "Li et al. 2022; Zhao et al. 2020",
    ),
    AuditLine(
        "clusters",
        "a hub without labels",
        "the labels, by clusters",
        "K-means on each row's slopes over the rounds; the clusters are named in the best possible way.",
        "Fu et al. 2022",
    ),
    AuditLine(
        "sums",
        "a hub without labels, with its clients",
        "the labels, from its gradients",
        "Where slopes are encrypted: each gradient is an equation per column for the slopes of a minibatch. Who has "
        "the features solves them. The guess is the silo's own part of the model.",
        "least squares; ours",
    ),
    AuditLine(
        "label property",
        "a hub without labels",
        "the share of a class in a minibatch",
        "Labels by their slopes, averaged over each round's minibatch. Where slopes are encrypted: what the silo's own "
        "part of the model expects, less the mean slope, which a gradient says if a column is constant or columns add "
        "up to 1. Which minibatches have a share above the median?",
        "Melis et al. 2019; Zhang et al. 2021",
    ),
    AuditLine(
        "probe",
        "a hub without labels",
        "the labels, from its own phi",
        "Model completion: to its own part of the model, phi over the rounds, a linear model is added that says the "
        "label, fitted on a few rows whose labels it knows. The guess is the same with its own columns.",
        "Fu et al. 2022",
    ),
    AuditLine(
        "membership",
        "anybody with the model",
        "who was trained on",
        "Training samples have smaller losses than held-out ones.",
        "Yeom et al. 2018",
    ),
)
BY_KEY = {line.key: line for line in LINES}


@dataclass(frozen=True)
class AuditFinding:
    """What an attack recovered in one mode."""

    line: str
    """Its key in :data:`LINES`."""
    mode: Mode
    party: str = ""
    silo: str = ""
    """The silo whose columns are attacked; empty for labels and membership."""
    sees: str = ""
    measure: RecoveryMeasure = "variance explained"
    recovered: float | None = None
    """The mean over columns, or the measure of labels; None if the attack was not played."""
    guess: float = 0.0
    """The same without the transcript."""
    columns: dict[str, float] = field(default_factory=dict)
    """By name."""
    bound: float | None = None
    """What randomised labels, or noise on phi, allow at most, in expectation."""
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


NOT_TRIED = (
    "Attackers who do not follow the protocol: a hub that sends its clients blocks of its choice, a client that lies.",
    "Parties that pool what they see. With masked sums, all other hubs but one together see that one's phi.",
    "Gradient inversion of single clients' blocks by their own hub. It sees phi of the same rows, which says more.",
    "The exact course of a linear silo's block, worked out from labels and everybody's phi. It gives the rows up to a "
    "rotation, without any known row.",
    "Deep decoders trained on much public data of the same kind, which may do better than the inverse learned here.",
    "What is sent before round 0: counts, means and spreads of columns to the silo's own hub, digests between hubs.",
    "Held-out rows: phi of them is sent at every evaluation too, and the same attacks apply.",
)
"""What an audit leaves out, in words."""
_OUTCOMES = {
    "own hub": (
        "The hub reads its clients' rows. Hub and clients must trust each other.",
        "The hub gets part of its clients' rows; more rounds or a better attack give more.",
        "This attack did not get the rows; that is no proof that none does.",
    ),
    "two rows": (
        "Phi says which row a sample has.",
        "Phi says more often than not which row a sample has.",
        "Phi does not say which of two rows a sample has.",
    ),
    "first block": (
        "The first block is known from the seed, and its phi is enough to read the rows.",
        "The first block is known from the seed, and its phi gives part of the rows to everybody who sees it.",
        "Round 0 gives nothing away here: a linear block starts at zero, and from a sum little follows.",
    ),
    "few known rows": (
        "Knowing a handful of rows is enough to read all others.",
        "A handful of known rows gives part of the others; a few more may give all of them.",
        "A handful of known rows was not enough for this attack; see the next one.",
    ),
    "known rows": (
        "An attacker who knows enough rows from elsewhere reads all others.",
        "Known rows and the transcript together give part of the columns.",
        "The transcript adds nothing to what known rows say.",
    ),
    "inverse": (
        "An attacker with rows of its own learns to read the others.",
        "An attacker with rows of its own reads part of the others.",
        "Phi adds nothing to what an attacker with rows of its own could learn from its own columns.",
    ),
    "property": (
        "Phi says which groups have many rows above a column's mean.",
        "Phi says more about groups of rows than the attacker's own columns do.",
        "Phi says no more about groups of rows than the attacker's own columns do.",
    ),
    "slopes to columns": (
        "Slopes are scores in other words: with known rows they give the label silo's columns.",
        "Slopes give the label silo's columns in part: where the loss is flat, rounding hides the score.",
        "Slopes added nothing to what known rows say.",
    ),
    "client": (
        "A client that knows enough of its own rows in another silo reads the rest of its rows there.",
        "A client that knows some of its own rows in another silo gets part of the rest.",
        "By this attack a client learns no more than from what it knows already.",
    ),
    "score": (
        "A hub knows this silo's score of every sample.",
        "The sum reveals part of this silo's scores; the more alike the silos are, the more.",
        "A silo's own score stays hidden.",
    ),
    "split": (
        "A hub can compare the silos, sample by sample.",
        "A hub can separate the silos' parts in the sum to some degree.",
        "Who contributed what to the sum stays hidden: this is what masks are for.",
    ),
    "labels of hub": (
        "The slope is the label: whoever gets slopes has the labels.",
        "Labels are found as often as the randomisation lets them through.",
        "The labels stay hidden from this attack.",
    ),
    "labels of client": (
        "The slope is the label: a client has the labels of its rows.",
        "Labels are found as often as the randomisation lets them through.",
        "The labels stay hidden from this attack.",
    ),
    "clusters": (
        "The slopes fall into one cluster per class.",
        "Clusters of slopes show part of the labels.",
        "Clusters of slopes show no labels.",
    ),
    "sums": (
        "The gradients are as good as the labels: there are as many equations as samples. Use larger minibatches.",
        "The gradients say more about the labels than the model that is made of them. Larger minibatches say less.",
        "The gradients say no more about the labels than the silo's own part of the model does.",
    ),
    "label property": (
        "Which minibatches have many labels of a class is seen.",
        "More is seen of the share of a class in a minibatch than the silo's own part of the model says.",
        "No more is seen of the share of a class than what the silo's own part of the model says.",
    ),
    "probe": (
        "A silo's phi says far more about the labels than its columns do.",
        "Training taught the silo something about the labels that a few known ones would not have.",
        "Phi says no more about the labels than the silo's own columns and a few known labels.",
    ),
    "membership": (
        "The model has memorised its training samples.",
        "The model's losses show to some degree who was trained on.",
        "Losses do not show who was trained on.",
    ),
}


_COLUMNS = (
    "With three silos or more, exchange.protect = 'mask' leaves the sum; exchange.epsilon puts a bound on a row's phi. "
    "Fewer evaluations and rounds, and wider blocks, give less to start from."
)
_KNOWN = (
    "Masks do not help against many known rows: exchange.epsilon does, or to leave out columns that the partners know "
    "anyway."
)
_LABELS = (
    "Linear blocks: federation.protect_labels = 'encrypt'. Others: federation.label_epsilon, which randomises labels."
)
_REMEDIES = {
    "own hub": "Nothing here hides rows from their own hub: run it inside the organisation of its clients.",
    "two rows": "Set exchange.epsilon, or a smaller one: it bounds this attack, and all others on a row's phi.",
    "first block": "Use linear blocks, which start at zero, or exchange.epsilon.",
    "few known rows": _COLUMNS,
    "known rows": _KNOWN,
    "inverse": _KNOWN,
    "property": (
        "Set exchange.epsilon, or a smaller one: it is for a row, and of a group of rows phi says more. Fewer "
        "evaluations and rounds say less."
    ),
    "slopes to columns": _LABELS,
    "client": "Set exchange.epsilon: what a client gets of the others then has noise, too.",
    "score": _COLUMNS,
    "split": "With three silos or more, set exchange.protect = 'mask'.",
    "labels of hub": _LABELS,
    "labels of client": _LABELS,
    "clusters": _LABELS,
    "sums": "Use larger minibatches (train.batch_size), or federation.label_epsilon as well.",
    "label property": (
        "Slopes as they are: federation.protect_labels = 'encrypt'. Encrypted: larger minibatches, and no bins in the "
        "silos without labels, since bins add up to a constant column."
    ),
    "probe": "What the model learns cannot be hidden from who trains it; federation.label_epsilon makes it less.",
    "membership": "Regularise more (model.l2, early stopping), or share the model with fewer (share_model = false).",
}


def remedy(finding: AuditFinding) -> str:
    """What to do now; nothing where the attack gained nothing."""
    is_red = finding.gain >= PARTLY and not finding.holds
    return _REMEDIES[finding.line] if is_red else ""


def reading(finding: AuditFinding) -> str:
    """What came of an attack, honestly."""
    if finding.recovered is None:
        return f"Not tried: {finding.why_not}." if finding.why_not else "Nothing to recover: no column varies."
    if finding.holds:
        return _held(finding)
    if finding.line.startswith("labels") and finding.bound is not None:
        return (
            f"Of the true labels the slope gives what randomisation lets through; at ε = {finding.mode.epsilon:g} no "
            f"more than {finding.bound:.2f} of them in expectation. What the model itself predicts is not hidden."
        )
    if finding.line == "two rows" and finding.bound is not None:
        return (
            "With its noise, a guess between two rows from phi, whatever attack it is made by, is right in "
            f"{finding.bound:.2f} of cases at most in expectation: what the rounds attacked here have spent."
        )
    if finding.mode.is_encrypted and finding.line.startswith(("labels", "clusters")):
        return "It has no key for the slopes that pass through it: their ciphertexts say nothing of the labels."
    recovered, partly, failed = _OUTCOMES[finding.line]
    sentence = recovered if finding.gain >= RECOVERED else partly if finding.gain >= PARTLY else failed
    return " ".join([sentence, *_about_mode(finding)])


def _held(finding: AuditFinding) -> str:
    if finding.bound is None:
        return "It has the labels by the rules of this mode; there is nothing to attack."
    return f"It has randomised labels and no others: {finding.bound:.2f} of them are right, in expectation."


def _about_mode(finding: AuditFinding) -> list[str]:
    """Why a mode does not help where one may think that it does."""
    mode, line = finding.mode, finding.line
    reasons = [
        (
            mode.blocks_summed and line == "own hub",
            "Summing the blocks does not help: phi of every row still reaches the hub, and the sum is the block.",
        ),
        (
            mode.bits < 32 and line in ("own hub", "few known rows", "known rows"),
            "Few bits do not help: evaluations send phi as it is, and noise averages out over rounds.",
        ),
        (
            mode.masked and line in ("known rows", "inverse"),
            "Masks do not change that: a sum of linear silos is linear too.",
        ),
        (mode.noise is not None and line == "own hub", "Noise is between hubs; inside a silo nothing changes."),
        (mode.masked and line == "own hub", "Masks are between hubs; inside a silo nothing changes."),
        (mode.epsilon is not None and "columns" in BY_KEY[line].target, "Label privacy is about labels only."),
    ]
    return [sentence for is_so, sentence in reasons if is_so and finding.gain >= PARTLY]
