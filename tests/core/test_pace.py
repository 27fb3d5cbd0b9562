"""Predicted times against a simulation of events, the closed forms of silos that are alike, and their laws."""

import heapq
import math
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.ledgers import ledger as ledger_of
from tdcd.core.family.overlap import Overlap
from tdcd.core.network import Link, Network
from tdcd.core.pace import Work, round_ends, seconds_after, seconds_per_round, silo_works

pytestmark = pytest.mark.quick

times = st.floats(0, 10)
works = st.builds(Work, times, times, times, times, times)
ROUNDS = 13


@st.composite
def federations(draw):
    """Silos of any pace, with overlap and periods."""
    silos = draw(st.lists(works, min_size=1, max_size=4))
    periods = draw(st.lists(st.integers(1, 4), min_size=len(silos), max_size=len(silos)))
    return silos, Overlap(draw(st.integers(0, 4)), tuple(periods))


class Events:
    """Silos that compute, send and wait, event by event. A silo's phi of round r is that of the block that everybody
    sees in round max(0, r - D).
    """

    def __init__(self, silos, overlap, rounds):
        self.silos, self.depth, self.periods, self.rounds = silos, overlap.rounds, overlap.periods, rounds
        self.queue, self.count = [], 0
        self.inbox = [set() for _ in silos]
        self.ready = [None] * len(silos)
        self.outbox, self.sending = [[] for _ in silos], [False] * len(silos)
        self.begun = [{} for _ in silos]

    def later(self, time, event, *arguments):
        self.count += 1
        heapq.heappush(self.queue, (time, self.count, event, arguments))

    def run(self):
        for silo in range(len(self.silos)):
            self.later(0.0, self.begin, silo, 0)
        while self.queue:
            time, _, event, arguments = heapq.heappop(self.queue)
            event(time, *arguments)
        return [
            max(begun[r // m * m] for begun, m in zip(self.begun, self.periods, strict=True))
            for r in range(self.rounds + 1)
        ]

    def begin(self, now, silo, update):
        self.begun[silo][update] = now
        if update > self.rounds:
            return
        period = self.periods[silo]
        horizon = range(self.rounds + self.depth + max(self.periods) + 1)
        own = [r for r in horizon if max(0, r - self.depth) // period * period == update]
        work = self.silos[silo]
        # What would be sent after the last round is cut off by the horizon, and is computed all the same.
        count = period + (self.depth if update == 0 else 0)
        self.later(now + work.before + count * work.per_phi, self.computed, silo, update, own, count)

    def computed(self, now, silo, update, rounds, count):
        self.ready[silo] = update
        self.outbox[silo].append((rounds, count))
        self.send(now, silo)
        self.step(now, silo)

    def send(self, now, silo):
        if self.sending[silo] or not self.outbox[silo]:
            return
        self.sending[silo] = True
        rounds, count = self.outbox[silo].pop(0)
        self.later(now + count * self.silos[silo].upload, self.sent, silo, rounds)

    def sent(self, now, silo, rounds):
        self.sending[silo] = False
        for other in range(len(self.silos)):
            if other != silo:
                self.later(now + self.silos[silo].latency, self.arrived, other, silo, rounds)
        self.send(now, silo)

    def arrived(self, now, silo, sender, rounds):
        self.inbox[silo] |= {(sender, r) for r in rounds}
        self.step(now, silo)

    def step(self, now, silo):
        update = self.ready[silo]
        others = set(range(len(self.silos))) - {silo}
        if update is None or not {(other, update) for other in others} <= self.inbox[silo]:
            return
        self.ready[silo] = None
        self.later(now + self.silos[silo].steps, self.begin, silo, update + self.periods[silo])


@settings(deadline=None)
@given(federations())
def test_the_recursion_is_what_happens_event_by_event(federation):
    silos, overlap = federation
    assert round_ends(silos, overlap, ROUNDS) == pytest.approx(Events(silos, overlap, ROUNDS).run())


@example(Work(0.0, 1.75, 0.03125, 1.8125, 0.0), 2, 3)  # the uplink is the limit, but by little
@given(works, st.integers(2, 4), st.integers(0, 5))
def test_silos_that_are_alike_take_the_longer_of_computing_and_talking(work, num_silos, depth):
    computing = work.before + work.per_phi + work.steps
    talking = (computing + work.upload + work.latency) / (depth + 1)
    found = seconds_per_round([work] * num_silos, Overlap(depth))
    assert found == pytest.approx(max(computing, talking, work.upload), abs=1e-9)


def test_an_uplink_that_falls_behind_slowly_is_the_limit_in_the_end():
    works, overlap = [Work(0.0, 1.75, 0.03125, 1.8125, 0.0)] * 2, Overlap(3)
    rounds = 2000
    assert seconds_after(works, overlap, rounds) == pytest.approx(round_ends(works, overlap, rounds)[-1], rel=5e-3)


@given(works, st.integers(2, 4), st.integers(1, 5))
def test_one_silo_alone_and_in_step_take_the_sum(work, num_silos, rounds):
    alone = round_ends([work], Overlap(), rounds)
    computing = work.before + work.per_phi + work.steps
    assert alone == pytest.approx([computing * r for r in range(rounds + 1)])
    together = round_ends([work] * num_silos, Overlap(), rounds)
    assert together == pytest.approx([(computing + work.upload + work.latency) * r for r in range(rounds + 1)])


links = st.builds(Link, st.floats(0, 1), st.floats(1, 1e9))
silos = st.lists(
    st.tuples(st.integers(1, 1000), st.lists(st.integers(1, 50), min_size=1, max_size=4)), min_size=2, max_size=4
)


@given(links, links, silos, st.integers(1, 40000), st.integers(1, 40000), st.floats(0, 1), st.floats(0, 1))
def test_in_step_at_equal_speeds_a_round_is_its_critical_path(client_hub, hub_hub, parts, inside, between, phi, step):
    r"""2 max_j [t_c(s d_j) + t_c(p_j b_c)] + t_phi + t_h((N - 1) b_h) + Q t_step."""
    parameters, clients = zip(*parts, strict=True)
    shares = [max(rows) / sum(rows) for rows in clients]
    ledger = ledger_of(parameters, [len(rows) for rows in clients], inside, between)
    found = silo_works(
        Network(client_hub, hub_hub), ledger, shares=shares, phi_seconds=phi, step_seconds=step, local_steps=3
    )
    largest = max(
        client_hub.seconds(4 * count) + client_hub.seconds(share * inside)
        for count, share in zip(parameters, shares, strict=True)
    )
    path = 2 * largest + phi + hub_hub.seconds((len(parts) - 1) * between) + 3 * step
    assert seconds_per_round(found) == pytest.approx(path)
    assert round_ends(found, Overlap(), 2) == pytest.approx([0, path, 2 * path])


@given(federations(), st.data())
def test_nothing_is_over_sooner_with_more_work(federation, data):
    silos, overlap = federation
    before = round_ends(silos, overlap, ROUNDS)
    silo = data.draw(st.integers(0, len(silos) - 1))
    part = data.draw(st.sampled_from(Work._fields))
    more = [*silos]
    more[silo] = more[silo]._replace(**{part: getattr(more[silo], part) + data.draw(times)})
    assert all(a <= b + 1e-9 for a, b in zip(before, round_ends(more, overlap, ROUNDS), strict=True))
    assert all(a <= b for a, b in pairwise(before))


@given(st.lists(works, min_size=2, max_size=4), st.integers(0, 3))
def test_in_the_long_run_more_overlap_is_never_slower(silos, depth):
    shallow, deep = (seconds_per_round(silos, Overlap(each)) for each in (depth, depth + 1))
    assert deep <= shallow * (1 + 1e-6) + 1e-6


def test_a_silo_four_times_slower_delays_no_other_with_a_period_of_four():
    """It computes 40 s where the others compute 10 s, and messages are quick."""
    quick, slow = Work(0.0, 0.0, 10.0, 0.0, 0.1), Work(0.0, 0.0, 40.0, 0.0, 0.1)
    in_step = seconds_per_round([quick, quick, slow])
    assert in_step == pytest.approx(40)
    period = (1, 1, 4)
    assert seconds_per_round([quick, quick, slow], Overlap(0, period)) == pytest.approx(10, rel=0.02)
    both = Overlap(1, period)
    assert seconds_per_round([quick, quick, slow], both) == pytest.approx(10)
    # The slow silo's block of round 4 is there once it has computed for 40 s.
    assert round_ends([quick, quick, slow], both, 8)[4] == pytest.approx(40.1, abs=0.11)


def test_smaller_blocks_up_and_slower_silos_count_where_they_are():
    one = Link(0.5, 100)
    parts = {"parameters": [25, 40], "clients": [1, 2], "inside": 200, "between": 300, "per_client": 10}
    figures = {"shares": [1.0, 0.5], "phi_seconds": 0.25, "step_seconds": 0.5, "local_steps": 3}
    plain = silo_works(Network(one, one), ledger_of(**parts), **figures)
    # Silo 1 sends 100 + 100 bytes of block and twice 210 of phi, silo 2 160 + 160 and twice 110.
    assert plain == (Work(0.5 + 1 + 0.5, 0.25 + 2.1, 0.5 + 2.1 + 1.5 + 0.5 + 1, 3.0, 0.5),) * 2
    fewer = silo_works(Network(one, one), ledger_of(**parts, blocks_up=[30, 50]), **figures)
    assert fewer[0] == pytest.approx(plain[0]._replace(steps=plain[0].steps - 0.7))
    slow = silo_works(Network(one, one), ledger_of(**parts), slower=[1.0, 4.0], **figures)
    assert slow[0] == plain[0]
    assert slow[1] == pytest.approx(plain[1]._replace(per_phi=plain[1].per_phi + 0.75, steps=plain[1].steps + 4.5))


def test_the_uplink_bounds_what_overlap_can_hide():
    narrow = Work(0.0, 0.0, 1.0, 5.0, 0.0)
    assert seconds_per_round([narrow] * 2, Overlap(1)) == pytest.approx(5)
    assert seconds_per_round([narrow] * 2, Overlap(8)) == pytest.approx(5)
    assert math.isclose(seconds_per_round([narrow] * 2), 6)


def test_a_star_takes_two_messages_one_after_the_other():
    """Phi to the hub with labels, then slopes to every other one on its uplink."""
    link = Link(latency_s=1.0, bytes_per_s=100.0)
    figures = {"shares": [1.0] * 3, "phi_seconds": 0.0, "step_seconds": 0.0, "local_steps": 1}
    cases = None, (0, 200), (0, 500)
    ledgers = [ledger_of([25] * 3, [1] * 3, 200, 200, slope=slope) for slope in cases]
    meshed, star, wide = (seconds_per_round(silo_works(Network(link, link), ledger, **figures)) for ledger in ledgers)
    assert meshed == pytest.approx(2 + 3 + 3 + 2 + (1 + 2 * 2))
    assert star == pytest.approx(2 + 3 + 3 + 2 + (1 + 2) + (1 + 2 * 2))
    assert wide == pytest.approx(2 + 3 + (1 + 5) + 2 + (1 + 2) + (1 + 2 * 5))


@pytest.mark.parametrize("overlap", [Overlap(), Overlap(1), Overlap(3), Overlap(2, (4, 1, 2))], ids=str)
def test_the_time_after_many_rounds_is_that_of_counting_each(overlap):
    works = [Work(1.0, 0.5, 2.0, 0.25, 3.0), Work(0.5, 1.5, 1.0, 0.5, 3.0), Work(2.0, 0.25, 0.5, 0.125, 3.0)]
    ends = round_ends(works, overlap, 500)
    assert [seconds_after(works, overlap, rounds) for rounds in range(501)] == pytest.approx(ends)
