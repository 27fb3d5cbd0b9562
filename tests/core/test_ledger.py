"""The ledger against a plain loop over every message of a round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ledgers import ledger as ledger_of
from tdcd.core.ledger import Traffic, by_link

pytestmark = pytest.mark.quick


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 6)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from([4, 8]),
    st.integers(0, 2**32 - 1),
)
def test_equals_every_message_added_up_for_any_row_split(silos, samples, outputs, itemsize, seed):
    rng = np.random.default_rng(seed)
    up, down, between = [], [], []
    for parameters, clients in silos:
        owner = rng.integers(0, clients, samples)
        for client in range(clients):
            up.append(parameters * itemsize)
            down.append(parameters * itemsize)
            if len(silos) > 1:
                up.append(int(np.sum(owner == client)) * outputs * itemsize)
                down.append(int(np.sum(owner == client)) * outputs * itemsize)
        between += [samples * outputs * itemsize] * (len(silos) - 1)
    parameters, clients = zip(*silos, strict=True)
    sent = ledger_of(parameters, clients, *[samples * outputs * itemsize] * 2, itemsize=itemsize).after(1)
    assert by_link(sent, "bytes") == Traffic(sum(up), sum(down), sum(between))
    assert by_link(sent, "messages") == Traffic(len(up), len(down), len(between))


@given(st.integers(1, 7), st.integers(0, 30), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans())
def test_evaluations_are_those_of_a_plain_loop(every, last, periods, is_star):
    """A silo's clients are asked in the first round of a period that has an evaluation in it."""
    silos, star = len(periods), (silos_with_labels, 9) if (silos_with_labels := len(periods) - 1) and is_star else None
    is_star = star is not None
    ledger = ledger_of([3] * silos, [2] * silos, 0, 0, periods=periods, slope=star, scores=(100, 50, 7))
    due = [one for one in range(last + 1) if one % every == 0 or one == last]
    for rounds in due:
        until = [one for one in due if one <= rounds]
        asked = sum(len({one // period for one in until}) for period in periods)
        told = len(until) * (silos - 1) * (1 if is_star else silos)
        sent, messages = (by_link(ledger.evaluations(rounds, every, last), count) for count in ("bytes", "messages"))
        between = told * 50 + len(until) * 7 * (1 if is_star else silos - 1)
        assert sent == Traffic(asked * 100, asked * 2 * 3 * 4, between)
        assert messages == Traffic(asked * 2, asked * 2, told * (2 if is_star else 1))


def test_traffic_scales_and_adds_up():
    traffic = Traffic(1, 2, 3) * 4
    assert traffic == Traffic(4, 8, 12)
    assert traffic.total == 24
