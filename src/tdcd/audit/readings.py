"""What an audit's numbers mean, in a sentence each."""

from tdcd.audit.lines import BY_KEY, PARTLY, RECOVERED, Finding

NOT_TRIED = (
    "Attackers who do not follow the protocol: a hub that sends its clients blocks of its choice, a client that lies.",
    "Parties that pool what they see. With masked sums, all other hubs but one together see that one's phi.",
    "Gradient inversion of single clients' blocks by their own hub. It sees phi of the same rows, which says more.",
    "The exact course of a linear silo's block, worked out from labels and everybody's phi. It gives the rows up to a "
    "rotation, without any known row.",
    "Decoders trained on public data of the same kind, which would do better on blocks that are not linear.",
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
        "Somebody who knows enough rows from elsewhere reads all others.",
        "Known rows and the transcript together give part of the columns.",
        "The transcript adds nothing to what known rows say.",
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
        "A hub knows what this silo thinks of every sample.",
        "The sum says part of what this silo thinks, the more so the more alike the silos are.",
        "A silo's own score stays hidden.",
    ),
    "split": (
        "A hub can compare the silos, sample by sample.",
        "A hub can tell the silos' parts in the sum to some degree.",
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
    "probe": (
        "A silo's phi says far more about the labels than its columns do.",
        "Training taught the silo something about the labels that a few known ones would not have.",
        "Phi says no more about the labels than the silo's own columns and a few known labels.",
    ),
    "membership": (
        "The model knows its training samples by heart.",
        "The model's losses show to some degree who was trained on.",
        "Losses do not show who was trained on.",
    ),
}


def reading(finding: Finding) -> str:
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
    recovered, partly, failed = _OUTCOMES[finding.line]
    sentence = recovered if finding.gain >= RECOVERED else partly if finding.gain >= PARTLY else failed
    return " ".join([sentence, *_about_mode(finding)])


def _held(finding: Finding) -> str:
    if finding.bound is None:
        return "It has the labels by the rules of this mode; there is nothing to attack."
    return f"It has randomised labels and no others: {finding.bound:.2f} of them are right, in expectation."


def _about_mode(finding: Finding) -> list[str]:
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
        (mode.masked and line == "known rows", "Masks do not change that: a sum of linear silos is linear too."),
        (mode.masked and line == "own hub", "Masks are between hubs; inside a silo nothing changes."),
        (mode.epsilon is not None and "columns" in BY_KEY[line].target, "Label privacy is about labels only."),
    ]
    return [sentence for is_so, sentence in reasons if is_so and finding.gain >= PARTLY]
