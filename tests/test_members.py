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
HOMES = ("family/*", "codecs/*", "combine", "knowledge", "presence", "timing", "update")
"""Where the members of the family are, in core."""
NO_MEMBERS = {"NamedTuple", "ValueError"}
"""What a class inherits from that is a value or an error of a member's module."""
BASELINES = ("CentreAverage", "HubsInTurn")


def members():
    """The names of all members and of their protocols."""
    paths = [path for home in HOMES for path in sorted((PACKAGE / "core").glob(f"{home}.py"))]
    classes = [node for path in paths for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    own = [node.name for node in classes if not NO_MEMBERS & {ast.unparse(base) for base in node.bases}]
    return [*own, *BASELINES]


PARTS = "|".join(members())
WORDS = re.compile(rf"\b({PARTS}|label_silo|dropout)\b")
"""No line without one of these asks."""
PART = re.compile(rf"\b({PARTS})\b")
MADE = re.compile(rf"\b({PARTS})\(")


def asks(node):
    """Whether an expression depends on which part there is."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        return bool(PART.search(ast.unparse(node.args[1])))
    if isinstance(node, ast.Compare):
        sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
        types = any(side.startswith("type(") for side in sides) and any(PART.search(side) for side in sides)
        silo = any(side.endswith("label_silo") for side in sides) and isinstance(node.ops[0], ast.Is | ast.IsNot)
        return types or silo or any(MADE.match(side) for side in sides)
    if isinstance(node, ast.match_case):
        return bool(PART.search(ast.unparse(node.pattern)))
    tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.Assert | ast.While) else []
    tests += node.values if isinstance(node, ast.BoolOp) else []
    tests += [node.operand] if isinstance(node, ast.UnaryOp) else []
    return any(re.search(r"dropout\.(rate|intercept)\b", ast.unparse(test)) for test in tests) or (
        isinstance(node, ast.Attribute) and bool(re.search(r"(knowledge|variant)\.label_silo$", ast.unparse(node)))
    )


def asking(path):
    """The expressions of a module that ask which part they have."""
    text = path.read_text(encoding="utf-8")
    near = {number for number, line in enumerate(text.splitlines(), 1) if WORDS.search(line)}
    for node in ast.walk(ast.parse(text)) if near else ():
        # Most expressions are not near such a word, and need not be written out.
        if hasattr(node, "lineno") and near.isdisjoint(range(node.lineno, node.end_lineno + 1)):
            continue
        if asks(node):
            line = getattr(node, "lineno", 0)
            yield f"{path.relative_to(PACKAGE)}:{line}: {ast.unparse(node).splitlines()[0]}"


def test_the_names_of_members_are_those_of_the_package():
    assert {"EncryptedSlopes", "ClientMomentum", "Steered", "Scaled", "GaussianNoise", "Pairs", "Sgd"} <= {*members()}
    assert {"Window", "Sending", "BeyondRangeError"}.isdisjoint(members())


def test_no_line_outside_core_asks_which_member_it_is():
    outside = [path for path in sorted(PACKAGE.rglob("*.py")) if "core" not in path.relative_to(PACKAGE).parts[:1]]
    assert len(outside) > 100
    assert [place for path in outside for place in asking(path)] == []


def test_the_search_finds_what_it_looks_for(tmp_path, monkeypatch):
    monkeypatch.setattr("test_members.PACKAGE", tmp_path)
    lines = [
        "if isinstance(variant.exchange, FixedPoint): pass",
        "x = variant.exchange == Identity()",
        "if mode.label_silo is None: pass",
        "assert not variant.dropout.rate",
        "y = [part for part in parts if isinstance(part, Steered | Scaled)]",
        "z = type(variant.update) in (Sgd, ClientMomentum)",
        "use(isinstance(knowledge, EncryptedSlopes))",
        "match head:\n    case Pairs(): pass",
    ]
    for number, line in enumerate(lines):
        (tmp_path / f"m{number}.py").write_text(line)
        assert [*asking(tmp_path / f"m{number}.py")], line
    (tmp_path / "m.py").write_text("x = Variant(knowledge=EncryptedSlopes(0), update=Sgd())")
    assert [*asking(tmp_path / "m.py")] == []


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
    "config/members.py": 4,
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


OF_CODECS = {"is_identity", "sends_whole", "is_private"}
"""Functions that say what a codec is."""


def reading(path):
    """The expressions of a module outside core that read a trait of a variant, or ask a codec whether it is plain."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in TRAITS:
            if re.search(r"(variant|knowledge|combine|here|head)$", ast.unparse(node.value)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in OF_CODECS:
            yield ast.unparse(node)


def test_traits_of_members_are_read_in_few_places_outside_core():
    outside = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "core"]
    read = {path.relative_to(PACKAGE).as_posix(): [*reading(path)] for path in outside}
    assert {module: lines for module, lines in read.items() if len(lines) > LEFT.get(module, 0)} == {}
    assert sum(map(len, read.values())) == sum(LEFT.values()), "fewer than before: lower the numbers"


def test_reading_a_trait_is_found(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("if job.variant.encrypted is not None or is_identity(codec): pass\nflows.encrypted")
    assert len([*reading(module)]) == 2
