r"""When rounds are over: silos that compute, wait and exchange phi on links of a given latency and bandwidth.

In silo j a round is work before its phi is sent and work after the others' has come:

.. math:: a_j(n) = t_c(s\,d) + n\,t_{phi} + t_c(n\,p\,b_c), \qquad b_j = t_c(p\,b_c) + Q\,t_{step} + t_c(u)

that is: block down, phi of n rounds computed, phi up; then the others' phi down, Q steps, block up. Here :math:`t_c` is
the time of a message between client and hub, d the parameters of a block of s bytes each, u the bytes of a block on its
way up, p the share of the rows that the largest client holds and :math:`b_c` the bytes of a round's phi inside a silo.
A silo that is f times slower takes f times :math:`t_{phi}` and :math:`t_{step}`.

A silo that begins round r at :math:`S_j(r)` takes its local steps when its own phi is sent and the phi of round r has
come from every other silo l, which sent it in an earlier round :math:`r_l`:

.. math:: S_j(r + m_j) = \max\big[ S_j(r) + a_j,\ \max_{l \ne j} A_l(r_l) \big] + b_j

What hub l sends in a round has arrived at :math:`A_l`: its uplink carries one message after the other, to all N - 1
peers, and the last byte travels for the link's latency. With silos alike, :math:`a + b` the work of a round and
:math:`t_h = latency + bytes` the exchange, a round takes in the long run

.. math:: \max\big[ a + b,\ (a + b + t_h) / (D + 1),\ bytes \big]

which for D = 0 is :math:`a + t_h + b`: the sum of all.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tdcd.core.family.overlap import Overlap
from tdcd.core.ledger import Ledger
from tdcd.core.network import INSIDE, Network
from tdcd.core.round import FlowName, LinkClass

SETTLED = 100
"""Rounds after which the start no longer shows."""
IN_STEP = Overlap()
"""Everybody waits for everybody's phi of this round."""
_INSIDE_A_SILO: tuple[tuple[FlowName, LinkClass], ...] = (
    ("block", "hub_to_client"),
    ("block", "client_to_hub"),
    ("phi", "client_to_hub"),
    ("received", "hub_to_client"),
)


class Work(NamedTuple):
    """What one silo takes for its parts of a round, in seconds."""

    before: float
    """Before its phi is sent: block down, and the latency of phi on its way up."""
    per_phi: float
    """For the phi of each round that it sends: computed, and its bytes on their way up."""
    steps: float
    """After the others' phi has come: that down, Q local steps, block up."""
    upload: float = 0.0
    """The bytes of one round's phi on the hub's uplink to all other hubs."""
    latency: float = 0.0
    """Between hubs."""


def silo_works(
    network: Network,
    ledger: Ledger,
    *,
    shares: Sequence[float],
    phi_seconds: float,
    step_seconds: float,
    local_steps: int,
    slower: Sequence[float] | None = None,
) -> tuple[Work, ...]:
    """The work of every silo in a round, with the messages that the ledger counts. What is assumed:

    - a message takes its link's latency plus its bytes over the bandwidth, alone on the link: no headers, no
      handshakes, no loss, no other traffic;
    - every client has a link of its own to its hub, as fast both ways, and the hub serves all of them at once;
    - what a hub sends to its N - 1 peers shares its uplink; it sends while it receives; with labels at one silo, its
      hub sends slopes when phi has come, so that two messages follow one another;
    - a client's part of phi is its share of the rows, so the largest client is the one that its hub waits for;
    - messages inside every silo take as long as those of the silo in which they take longest;
    - averaging, stacking and summing at the hubs take no time.

    Args:
        ledger: of one silo alone, which exchanges nothing, or of several.
        shares: for each silo, the share of the rows that its largest client holds.
        phi_seconds: what the slowest client takes for the phi of all samples of a round.
        step_seconds: what the slowest client takes for one local step.
        slower: for each silo, how many times longer than that it computes.

    >>> from tdcd.core.ledger import Sizes
    >>> from tdcd.core.network import Link
    >>> from tdcd.core.round import Widths, round_of
    >>> from tdcd.core.variant import Variant
    >>> one = Link(latency_s=1.0, bytes_per_s=100.0)
    >>> flows = round_of(Variant(), 2, Widths(1, 1))
    >>> ledger = Ledger.of(flows, Sizes((1, 50), 0, "float32", [25, 50]), [1, 2])
    >>> figures = dict(shares=[1.0, 0.5], phi_seconds=0.25, step_seconds=0.5, local_steps=3)
    >>> works = silo_works(Network(one, one), ledger, **figures)
    >>> works[0] == works[1] == Work(before=3.0, per_phi=2.25, steps=6.5, upload=2.0, latency=1.0)
    True
    >>> seconds_per_round(works), seconds_per_round(works, Overlap(1))
    (14.75, 11.75)
    """
    count = ledger.num_silos
    message = (network.client_hub if ledger.colocation == "none" else INSIDE).seconds
    between = INSIDE if ledger.colocation == "all" or count == 1 else network.hub_hub
    sent = [
        [ledger.bytes_inside(name, link, silo, share) for name, link in _INSIDE_A_SILO]
        for silo, share in enumerate(shares)
    ]
    block_down, block_up, rows_sent, rows_got = map(message, max(sent, key=lambda sizes: sum(map(message, sizes))))
    latency = message(0)
    if count == 1:
        latency = rows_sent = rows_got = phi_seconds = 0.0
    uploads = ledger.uploads()
    return tuple(
        Work(
            before=block_down + latency,
            per_phi=times * phi_seconds + rows_sent - latency,
            steps=rows_got + times * local_steps * step_seconds + block_up,
            upload=between.seconds(sum(uploads)) - between.latency_s,
            latency=max(1, len(uploads)) * between.latency_s,
        )
        for times in slower or [1.0] * count
    )


def round_ends(works: Sequence[Work], overlap: Overlap, rounds: int) -> list[float]:
    """When each of the first rounds begins everywhere, that is when the one before it is over; the first at 0.

    Entry r is when every hub has its block of round r. A silo of period m has that since it began its last update.

    Returns:
        ``rounds + 1`` times.
    """
    silos = range(len(works))
    begun, following, uplink = ([0.0] * len(works) for _ in range(3))
    ready = [0.0] * len(works)
    arrivals: list[list[float]] = [[] for _ in silos]
    ends = []
    for round_index in range(rounds + 1):
        stepping = [silo for silo in silos if overlap.steps_in(silo, round_index)]
        for silo in stepping:
            work, sent = works[silo], len(overlap.sends(silo, round_index))
            begun[silo] = following[silo]
            ready[silo] = begun[silo] + work.before + sent * work.per_phi
            uplink[silo] = max(uplink[silo], ready[silo]) + sent * work.upload
            arrivals[silo].append(uplink[silo] + work.latency)
        ends.append(max(begun))
        latest = [
            came[overlap.sent_in(silo, round_index) // overlap.period(silo)] for silo, came in enumerate(arrivals)
        ]
        last = max(silos, key=latest.__getitem__)
        last_but_one = max((time for silo, time in enumerate(latest) if silo != last), default=-math.inf)
        for silo in stepping:
            came = last_but_one if silo == last else latest[last]
            following[silo] = max(ready[silo], came) + works[silo].steps
    return ends


def seconds_per_round(works: Sequence[Work], overlap: Overlap = IN_STEP) -> float:
    """What a round takes in the long run."""
    ends, pattern = _until_settled(tuple(works), overlap)
    return max((ends[-1] - ends[-1 - pattern]) / pattern, _slowest_uplink(works))


def seconds_after(works: Sequence[Work], overlap: Overlap, rounds: int) -> float:
    """When the first ``rounds`` rounds are over: :func:`round_ends`, without counting every round.

    With overlap the first round takes longer than those after it: the phi of D + 1 rounds is computed and sent, and
    everybody waits until it has come. From then on messages travel while silos compute.

    >>> works = [Work(before=1.0, per_phi=1.0, steps=2.0, upload=0.0, latency=4.0)] * 2
    >>> [seconds_after(works, Overlap(1), rounds) for rounds in (0, 1, 2, 3)]
    [0.0, 9.0, 13.0, 17.0]
    """
    ends, pattern = _until_settled(tuple(works), overlap)
    repeated = max(0, -(-(rounds + 1 - len(ends)) // pattern))
    seconds = ends[rounds - repeated * pattern] + repeated * (ends[-1] - ends[-1 - pattern])
    return max(seconds, rounds * _slowest_uplink(works))


def _slowest_uplink(works: Sequence[Work]) -> float:
    """What a round takes at least: one that is a little slower than all else falls behind over very many rounds, far
    more than are counted, before it is the limit.
    """
    return max(work.upload for work in works) if len(works) > 1 else 0.0


@lru_cache(maxsize=256)
def _until_settled(works: tuple[Work, ...], overlap: Overlap) -> tuple[list[float], int]:
    """When rounds end, until the start no longer shows; and after how many rounds the pattern repeats."""
    # The pattern of who waits for whom: a pair of silos waits for each other over 2 (D + 1) updates.
    pattern = 2 * (overlap.rounds + 1) * math.lcm(*(overlap.period(silo) for silo in range(len(works))))
    before = max(1, SETTLED // pattern) * pattern
    return round_ends(works, overlap, before + pattern), pattern
