"""The order of ids, the same at every silo."""

from collections.abc import Iterable


def id_order(ids: Iterable[str]) -> list[str]:
    """Ids by number if all are decimal integers, else by text.

    >>> id_order(["10", "9", "-1"]), id_order(["10", "9", "a"])
    (['-1', '9', '10'], ['10', '9', 'a'])
    """
    names = list(ids)
    if all(name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)
