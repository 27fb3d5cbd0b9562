"""What a member of the family is stays in core: no other line asks which one it has."""

import ast
import re
from pathlib import Path

import pytest

import tdcd
from tdcd.core.combine import Combine
from tdcd.core.knowledge import Knowledge
from tdcd.core.variant import Variant

pytestmark = pytest.mark.quick

PACKAGE = Path(tdcd.__file__).parent
PARTS = (
    "Identity|WholeBlock|Quantised|QuantisedChange|FixedPoint|FixedBlocks|GaussianNoise|SummedCodec|NumpyBlocks|"
    "LabelsEverywhere|LabelsAt|WrittenOut|Overlap|Followed|SiloDropout|FullParticipation|RandomClients|HubsInTurn|Sgd|"
    "ClientOptimizer|HubOptimizer|Average|CentreAverage|Sum|Hidden|Pairs"
)
WORDS = re.compile(rf"\b({PARTS}|label_silo|dropout)\b")
"""No file without one of these asks; most have none, and need not be parsed."""
ASKS = re.compile(
    rf"isinstance\(.*\b({PARTS})\b|type\(.*\) (is|in|==).*\b({PARTS})\b|[=!]= \(?({PARTS})\(|label_silo is|"
    r"knowledge\.label_silo|variant\.label_silo|\b(if|not|and|or) .*dropout\.(rate|intercept)\b"
)


def asking(path):
    """The statements of a module that ask which part they have."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if WORDS.search(text) else ():
        if isinstance(node, ast.If | ast.IfExp | ast.Assert | ast.Return | ast.Assign | ast.AugAssign | ast.While):
            line = ast.unparse(node.test if hasattr(node, "test") else node)
            if ASKS.search(line):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {line}"


def test_nobody_outside_core_asks_which_member_it_is():
    outside = [path for path in sorted(PACKAGE.rglob("*.py")) if "core" not in path.relative_to(PACKAGE).parts[:1]]
    assert len(outside) > 100
    assert [found for path in outside for found in asking(path)] == []


def test_the_search_finds_what_it_looks_for(tmp_path, monkeypatch):
    monkeypatch.setattr("test_members.PACKAGE", tmp_path)
    lines = [
        "if isinstance(variant.exchange, FixedPoint): pass",
        "x = variant.exchange == Identity()",
        "if mode.label_silo is None: pass",
        "assert not variant.dropout.rate",
    ]
    for number, line in enumerate(lines):
        (tmp_path / f"m{number}.py").write_text(line)
        assert len([*asking(tmp_path / f"m{number}.py")]) == 1


ANSWERED_BY_ALL = {
    "beyond_theorem",
    "changed",
    "drawn_problem",
    "is_batchable",
    "keys",
    "longest_factor",
    "needs_secret",
}
"""What every member has an answer to that its reader takes as it is: a new one needs no new line."""
LEFT = {
    # Which attacks there are: of sums, and with labels everywhere or at one silo.
    "audit/audit.py": 2,
    "audit/modes.py": 2,
    # The rounding that an attack has to allow for.
    "audit/recording.py": 2,
    # A head's columns are added to a block's.
    "blocks/base.py": 1,
    "compare/all_columns.py": 1,
    # What is said of step sizes that a run chooses itself.
    "cli/console.py": 1,
    "compare/running.py": 2,
    "training/description.py": 2,
    "training/train.py": 4,
    # A baseline has labels where TDCD has them.
    "compare/comparison.py": 1,
    # Keys that contradict each other, with their sentences.
    "config/members.py": 3,
    "planning/facts.py": 2,
    # What can be read off a model: of sums, or of a head.
    "prediction/interactions.py": 1,
    "prediction/model.py": 1,
    "training/subsets.py": 2,
    # Whether a run steers its steps.
    "records/outcome.py": 1,
    "runtime/machine/rounds.py": 2,
    # What is as it is needs neither JAX nor a copy: it is faster, and not another result.
    "runtime/compute/links.py": 4,
    "runtime/compute/local_steps.py": 2,
    "simulation/engines/base.py": 2,
    "simulation/engines/clients.py": 6,
    "simulation/engines/full.py": 1,
    "simulation/engines/grouped.py": 1,
    # Who answers in a round, and what a party must have to take part.
    "runtime/job.py": 6,
    "runtime/machine/masks.py": 1,
    "runtime/machine/questions.py": 1,
    # What a simulation of several runs or devices refuses, and noise on what is predicted.
    "runtime/process/predict.py": 1,
    "simulation/simulate.py": 4,
    # What a theorem is of.
    "theory/noise.py": 4,
    "theory/reused.py": 1,
}
"""By module, how often it reads a trait of the member that it has, and what for. These numbers only fall: what is sent,
by whom and in which form is read off the flows of a round, and what a member does is a method of its parts.
"""


TRAITS = {
    name
    for part in (Variant, Knowledge, Combine)
    for name, value in vars(part).items()
    if isinstance(value, property) and name not in ANSWERED_BY_ALL
}
"""The properties by which a member says what it is."""


def reading(path):
    """The expressions of a module outside core that read a trait of a variant, or ask a codec whether it is plain."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in TRAITS:
            if re.search(r"(variant|knowledge|combine|here|head)$", ast.unparse(node.value)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("is_identity", "sends_whole", "is_private"):
            yield ast.unparse(node)


def test_traits_of_members_are_read_in_few_places_outside_core():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE)
        if module.parts[0] != "core" and (count := len([*reading(path)])):
            found[module.as_posix()] = count
    assert found == LEFT


def test_reading_a_trait_is_found(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("if job.variant.encrypted is not None or is_identity(codec): pass\nflows.encrypted")
    assert len([*reading(module)]) == 2
