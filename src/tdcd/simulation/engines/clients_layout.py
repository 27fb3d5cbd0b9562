"""The arrays of a call of the general engine."""

from typing import Any, NamedTuple


class Shared(NamedTuple):
    """What all runs share; arrays, or how they are spread over several devices; so in :class:`Own`."""

    features: Any
    """Of each silo ``[M, ...]``, or the rows that a call is about. On several hosts, of each device's clients, or None
    if the rows of a call come with their placements."""
    labels: Any
    weights: Any = None
    """``[M]``: what each sample weighs, if not all weigh the same."""


class Own(NamedTuple):
    """What is a run's own in a call of R rounds."""

    ids: Any
    """``[R, E, B]``."""
    placements: Any
    """One per silo."""
    held: Any
    """Of each silo ``[K]``: n_k."""
    numbers: Any
    """Of each silo ``[K]``: 0, 1, 2 ... for its clients."""
    shares: Any
    """Of each silo ``[K]``: n_k / M; ``[R, K]`` if clients may be absent."""
    present: Any
    """``[R, E, B]``: which samples every silo has a client for in that round; None if all clients answer."""
    remaining: Any
    """Of each silo ``[R]``: how many samples the clients that answer hold; None if all answer."""
    rounds: Any
    """``[R]``: the rounds' numbers."""
    seed: Any
    """See :class:`tdcd.core.variant.Sending`."""
    step_size: Any
    l2: Any
    """None if it is compiled in."""
