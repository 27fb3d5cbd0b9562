"""The ledger against a plain loop over every message of a round."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdcd.ledger import Traffic, round_traffic


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 6)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from([4, 8]),
    st.integers(0, 2**32 - 1),
)
def test_equals_every_message_added_up_for_any_row_split(silos, samples, outputs, itemsize, seed):
    rng = np.random.default_rng(seed)
    up = down = between = 0
    for parameters, clients in silos:
        owner = rng.integers(0, clients, samples)
        for client in range(clients):
            rows = int(np.sum(owner == client)) if len(silos) > 1 else 0
            up += parameters * itemsize + rows * outputs * itemsize
            down += parameters * itemsize + rows * outputs * itemsize
        for _ in range(len(silos) - 1):
            between += samples * outputs * itemsize
    parameters, clients = zip(*silos, strict=True)
    found = round_traffic(parameters, clients, samples=samples, outputs=outputs, itemsize=itemsize)
    assert found == Traffic(up, down, between)


def test_traffic_scales_and_adds_up():
    traffic = Traffic(1, 2, 3) * 4
    assert traffic == Traffic(4, 8, 12)
    assert traffic.total == 24
