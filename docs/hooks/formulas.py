"""Formulas become MathML when the site is built: browsers draw it themselves, so no script and no font is loaded."""

import inspect
import pydoc
import re
from typing import Any

import griffe
from latex2mathml.converter import convert

DIRECTIVE = re.compile(r"^\.\. math::[ \n]*(.+(?:\n[ ]+\S.*)*)", re.MULTILINE)
"""A formula as docstrings have it; lines that continue it are indented."""
INLINE = re.compile(r":math:`([^`]+)`")
ROLE = re.compile(r":\w+:`~?([^`]+)`")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def fence(source: str, *_: Any, **__: Any) -> str:
    """What a fenced block ``math`` becomes."""
    return f'<div class="formula">{convert(" ".join(source.split()), display="block")}</div>'


class Formulas(griffe.Extension):
    """Turns formulas and examples of docstrings into fenced blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, a class, a function or an attribute."""
        if obj.docstring:
            # What estimators have in common is put into their docstrings when they are imported.
            is_filled = obj.path.startswith("tdcd.estimators.two_tier.TwoTier")
            text = inspect.getdoc(pydoc.locate(obj.path)) if is_filled else None
            text = DIRECTIVE.sub(_as_fence, text or obj.docstring.value)
            text = INLINE.sub(_as_span, text)
            text = ROLE.sub(r"`\1`", text)
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", text)


def _as_span(found: re.Match[str]) -> str:
    """Not bare: Markdown takes an element that it does not know for a paragraph of its own."""
    return f"<span>{convert(' '.join(found[1].split()))}</span>"


def _as_fence(found: re.Match[str]) -> str:
    return f"```math\n{' '.join(found[1].split())}\n```"
