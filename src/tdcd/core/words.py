"""Counts in words."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things; ``plural`` where an s is not enough.

    >>> counted(1, "silo"), counted(2000, "client"), counted(2, "minibatch", "minibatches")
    ('1 silo', '2,000 clients', '2 minibatches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def there_are(number: int, noun: str = "", plural: str = "") -> str:
    """A count as a clause.

    >>> there_are(1, "silo"), there_are(3, "class", "classes"), there_are(2)
    ('there is 1 silo', 'there are 3 classes', 'there are 2')
    """
    return f"there {are(number)} {counted(number, noun, plural) if noun else format(number, ',')}"


def are(number: int) -> str:
    """The verb that goes with a number.

    >>> are(1), are(0)
    ('is', 'are')
    """
    return "is" if number == 1 else "are"
