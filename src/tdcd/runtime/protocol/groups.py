"""Who takes part in a round: the samples that are left without absent clients, and whose blocks are added up."""

import msgspec

from tdcd.runtime.protocol.structure import Array, Count


class Remaining(msgspec.Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """What is left of a round's minibatches without the absent clients."""

    absent: Array
    """``[n]``: 1 for those of the client's rows that take no part."""
    present: Array
    """``[E]``: how many samples each minibatch still has."""
    rows: int
    """How many samples the silo's clients that take part hold."""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clients whose blocks a hub adds up: each sends its block times its part of their rows."""

    clients: tuple[Count, ...]
    """By index, in order."""
    rows: Count
    """The training rows that they hold together."""
    renewal: Count = 0
    """How often clients' keys, and so all masks, have been renewed: a block with former masks is told by it."""
