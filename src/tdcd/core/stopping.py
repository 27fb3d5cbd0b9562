"""How long work ends early."""


class Interrupted(Exception):  # noqa: N818
    """The user asked to stop; what was done is kept."""
