"""What is wrong with a configuration, in the user's words: the key, its value and what is allowed."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

PATTERNS = {
    # After the names of blocks that come with the package.
    "block": "'package.module:name'",
    "loss": "must be 'package.module:name'",
    "variant": "must be 'package.module:name'",
    "module": "must be 'package.module:function'",
    "delimiter": "must be one character, such as ';' or a tab, and not a quote",
    "hub": "must be host:port, for example hub.bank.example:7447",
}
"""What a text has to look like, by its key."""


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one line each."""

    def __init__(self, problems: Sequence[str], where: str = "the configuration") -> None:
        """Join ``problems`` under a heading that names ``where`` they are."""
        self.problems = list(problems)
        count = f"{len(self.problems)} problem" + ("s" if len(self.problems) > 1 else "")
        super().__init__(f"{where} has {count}:\n" + "\n".join(f"  {problem}" for problem in self.problems))


def problems_in(error: ValidationError, keys: Mapping[str, Any], schema: type[BaseModel]) -> list[str]:
    """One line per key that is wrong; what the members of a union say about it is joined."""
    by_path: dict[tuple[int | str, ...], list[str]] = {}
    for item in error.errors():
        path, model = _locate(item["loc"], schema, unknown=item["type"] == "extra_forbidden")
        by_path.setdefault(path, []).append(_explain(item["type"], item["msg"], path, model))
    # A list that is wrong inside was meant as a list: the complaint that it is no number adds nothing.
    deepest = [p for p in by_path if not any(len(q) > len(p) and q[: len(p)] == p for q in by_path)]
    lines = []
    for path in deepest:
        value = _value(keys, path)
        shown = "" if value is None or by_path[path][0].startswith("there is no such key") else f" = {value!r}"
        lines.append(".".join(map(str, path)) + shown + ": " + " or ".join(dict.fromkeys(by_path[path])))
    return lines


def _explain(kind: str, message: str, path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), list(model.model_fields), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "the keys here are " + ", ".join(model.model_fields)
        return f"there is no such key; {hint}"
    fixed = {
        "missing": "is missing",
        "string_pattern_mismatch": "must be letters, digits, '_' and '-', and begin with a letter or digit",
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "bool_type": "must be true or false",
        "model_type": "must be a table of keys",
        "dict_type": "must be a table of keys",
    }
    if kind == "string_pattern_mismatch" and (key := next(iter({*path} & {*PATTERNS}), "")):
        return PATTERNS[str(key)]
    if kind == "too_short":
        return "must not be empty" if "at least 1 " in message else message.replace("List should", "must")
    return fixed.get(kind, message.replace("Input should be", "must be").replace("a valid ", "a "))


def _locate(
    loc: tuple[int | str, ...], schema: type[BaseModel], unknown: bool
) -> tuple[tuple[int | str, ...], type[BaseModel]]:
    """The user's key path in a pydantic location, without the names of union members, and the section it is in."""
    path: list[int | str] = []
    model = schema
    for part in loc[:-1] if unknown else loc:
        if isinstance(part, int) or part in model.model_fields:
            path.append(part)
            if isinstance(part, str):
                model = next(filter(_is_model, _kinds(model.model_fields[part].annotation)), model)
    return (*path, *loc[len(loc) - unknown :]), model


def _kinds(annotation: Any) -> list[Any]:
    """An annotation and everything inside it."""
    return [annotation, *(kind for inner in get_args(annotation) for kind in _kinds(inner))]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _value(keys: Any, path: tuple[int | str, ...]) -> Any:
    for part in path:
        try:
            keys = keys[part]
        except (KeyError, IndexError, TypeError):
            return None
    return keys


def clashing(where: str, clashes: Iterable[tuple[bool, str, str]]) -> list[str]:
    """A sentence for every key that is so and does not go with ``where``, and why it does not."""
    return [
        f"{key}: does not go with {where}, since {why}; leave one of them out" for is_so, key, why in clashes if is_so
    ]
