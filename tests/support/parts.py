"""Parts of flows among the messages of a run, by the link that they go over."""

from tdcd.runtime.messages.messages import Part

CERTIFICATE = {"gram", "mixture", "witness", "witness_scores", "residual", "gradient", "norm", "gap"}
"""The flows of certificates."""
EVALUATION = {"evaluated", "scores", "figures"} | CERTIFICATE
"""The flows that the ledger counts as evaluation."""


def _is(message, flows, sender, receiver):
    ends = message.sender.startswith(sender), message.receiver.startswith(receiver)
    return isinstance(message, Part) and all(ends) and message.flow in flows


def between_hubs(message, *flows):
    """Whether it is a part of these flows from a hub to a hub."""
    return _is(message, flows, "hub.", "hub.")


def from_client(message, *flows):
    """Whether it is a part of these flows from a client to its hub."""
    return _is(message, flows, "client.", "hub.")


def to_client(message, *flows):
    """Whether it is a part of these flows from a hub to a client."""
    return _is(message, flows, "hub.", "client.")


def link_of(message):
    """The link that a message goes over, as the ledger names it."""
    return "_to_".join(party.partition(".")[0] for party in (message.sender, message.receiver))
