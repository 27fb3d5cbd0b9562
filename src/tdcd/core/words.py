"""Counts in words."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things; ``plural`` where an s is not enough.

    >>> counted(1, "silo"), counted(2000, "client"), counted(2, "minibatch", "minibatches")
    ('1 silo', '2,000 clients', '2 minibatches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
