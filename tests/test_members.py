"""What a member of the family is stays in core: no other line asks which one it has."""

import ast
import re
from pathlib import Path

import pytest

import tdcd

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
