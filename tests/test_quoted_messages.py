"""What the documents quote is said by the code: messages, events of the log, lines of the output."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLAIN = re.compile(r"(?<![\w./'\"~-])[A-Za-z]+(?=[\s,.;:!?)]|$)(?![./]\w)")
"""A word that no name, number or path is part of."""


@cache
def _templates():
    """Every text in the package: what is always said of it, in pieces, with something between them."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add((node.value,))
            elif isinstance(node, ast.JoinedStr):
                found.add(tuple(piece for part in node.values for piece in _pieces(part)))
    return sorted(found)


def _pieces(part):
    """What a part of a text always says; of :func:`tdcd.core.words.counted`, what it says of several."""
    call = getattr(part, "value", None)
    if isinstance(part, ast.Constant):
        return [part.value]
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("counted", "there_are") and call.args[1:]:
        names = [noun.value for noun in call.args[1:]]
        there = ["there are "] if call.func.id == "there_are" else []
        return [*there, "", f" {names[1] if names[1:] else names[0] + 's'}"]
    return ["are"] if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "are" else [""]


def _said(message):
    """The places of a message's characters that some text of the package has in the same order."""
    places = set()
    for pieces in _templates():
        literals = [piece for piece in pieces if piece.strip()]
        if sum(map(len, literals)) < 6:
            continue
        start, spans = 0, []
        for literal in literals:
            at = message.find(literal, start)
            if at < 0:
                break
            spans.append(range(at, at + len(literal)))
            start = at + len(literal)
        else:
            places.update(place for span in spans for place in span)
    return places


def _unsaid(message):
    """The plain words of a message that no text of the package has in their place."""
    said = _said(message)
    return [word[0] for word in PLAIN.finditer(message) if not {*range(word.start(), word.end())} <= said]


def _table(text, heading):
    """The first cells of the tables whose first heading this is."""
    for table in re.findall(rf"^\| {heading} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        yield from (row.split(" | ")[0].removeprefix("| ") for row in table.splitlines())


def _quotes(text):
    """What is quoted in sentences and tables, and what commands are shown to print."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        yield from (line for line in block.splitlines() if not line.startswith("$ ") and " " in line)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from (" ".join(quote.split()) for quote in re.findall(r"`([^`]+)`", prose))


def test_quoted_messages_are_in_the_source():
    wrong, checked = {}, 0
    for path in DOCUMENTS:
        for quote in _quotes(path.read_text(encoding="utf-8")):
            is_sentence = quote.count(" ") > 2 and len(PLAIN.findall(quote)) > 3
            if is_sentence and not quote.startswith(("tdcd ", "pip ", "python ")):
                checked += 1
                if words := _unsaid(quote):
                    wrong[f"{path.name}: {quote}"] = words
    assert wrong == {}
    assert checked > 40


def test_events_of_the_log_are_logged():
    texts = {text for (text, *more) in _templates() if not more}
    events = {
        quote
        for path in DOCUMENTS
        for cell in _table(path.read_text(encoding="utf-8"), "event")
        for quote in re.findall(r"`([^`]+)`", cell)
    }
    assert len(events) > 15
    assert events - texts == set()
