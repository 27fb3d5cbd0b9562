"""Ledgers of rounds whose messages have given numbers of bytes."""

from tdcd.core.ledger import Ledger, Load
from tdcd.core.round import Everyone, Flow, From, To


def ledger(parameters, clients, inside, between, itemsize=4, *, per_client=0, slope=None, blocks_up=None, **rest):
    """A round whose phi has ``inside`` bytes between a hub and its clients together, and ``between`` two hubs.

    Args:
        per_client: what is in every client's message of phi, each way.
        slope: (silo with the labels, bytes of what it sends in place of phi); None if all have them.
        blocks_up: of each silo, the bytes of a block on its way up.
        rest: of :class:`Ledger`; ``scores`` is (client to hub, hub to hub, the intercept of silo 0).
    """
    count = len(parameters)
    none, all_alike = (0,) * count, lambda size: (size,) * count
    down = tuple(size * itemsize for size in parameters)
    scores, route = rest.pop("scores", (0, 0, 0)), Everyone() if slope is None else To(slope[0])
    loads = [Load(Flow("block", "hub_to_client", "parameters"), down, none)]
    if count > 1:
        loads.append(Load(Flow("phi", "client_to_hub"), all_alike(per_client), all_alike(inside)))
        loads.append(Load(Flow("phi", "hub_to_hub", route=route), all_alike(between), none))
        received = [inside if slope is None or silo == slope[0] else slope[1] for silo in range(count)]
        if slope is not None:
            loads.append(Load(Flow("slope", "hub_to_hub", route=From(slope[0])), all_alike(slope[1]), none))
        loads.append(Load(Flow("received", "hub_to_client", when="ended"), all_alike(per_client), tuple(received)))
    up = tuple(blocks_up) if blocks_up is not None else down
    loads.append(Load(Flow("block", "client_to_hub", "parameters", when="ended"), up, none))
    intercept = Flow("intercept", "hub_to_hub", "vector", route=route, silos=(0,), within="scores")
    evaluation = [
        Load(Flow("block", "hub_to_client", "parameters"), down, none),
        Load(Flow("scores", "client_to_hub"), none, all_alike(scores[0])),
        Load(Flow("scores", "hub_to_hub", route=route), all_alike(scores[1]), none),
        Load(intercept, all_alike(scores[2]), none),
    ]
    if slope is not None:
        evaluation.append(Load(Flow("figures", "hub_to_hub", "figures", route=From(slope[0])), none, none))
    return Ledger(clients, tuple(loads), tuple(evaluation), **rest)
