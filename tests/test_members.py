"""What a member of the family is stays in core: no other line asks which one it has."""

import ast
import re
from pathlib import Path

import pytest

import tdcd

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
