"""Presence: whatever is missing, the hub's average of its clients' gradients is that of the samples that are left."""

import numpy as np
import pytest

from tdcd.core.algorithm import Minibatch
from tdcd.core.codecs.codec import Sending, seed_words
from tdcd.core.knowledge import Known
from tdcd.core.presence import Remaining, counted, counted_rows, row_weights

NUM_SAMPLES, BATCH, WIDTH = 40, 12, 12


def placed(owner, batch, clients, left):
    """Of each client: which places of the minibatch its rows are at, how many there are, and which are left."""
    for client in range(clients):
        places = np.flatnonzero(owner[batch] == client)
        mask = np.zeros((1, WIDTH), bool)
        mask[0, : len(places)] = left[places]
        yield places, np.array([len(places)]), mask


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("missing", ["nothing", "clients", "rows"])
def test_what_rows_and_blocks_weigh_makes_a_mean_over_the_samples_that_are_left(missing, seed):
    """Shares times weights are 1 / B' for every row that is left, for any split: Q = 1 is central minibatch SGD."""
    draw = np.random.default_rng(seed)
    clients = 4
    owner = draw.choice(clients, NUM_SAMPLES, p=[0.1, 0.2, 0.3, 0.4])
    answers, has_row = np.ones(clients, bool), np.ones(NUM_SAMPLES, bool)
    if missing == "clients":
        answers[draw.integers(clients)] = False
    if missing == "rows":
        has_row = draw.random(NUM_SAMPLES) < 0.6
    batch = draw.permutation(NUM_SAMPLES)[:BATCH]
    left = answers[owner[batch]] if missing == "clients" else has_row[batch]
    # A client that is left out takes its samples along, for every silo; a row that a silo lacks stays with the others.
    size = left.sum() if missing == "clients" else BATCH
    held = np.array([np.sum((owner == client) & has_row) for client in range(clients)], float)
    rows = held[answers].sum()
    total = np.zeros(BATCH)
    for client, (places, counts, mask) in enumerate(placed(owner, batch, clients, left)):
        if not held[client]:
            continue
        remaining = Remaining(rows, np.array([max(size, 1)], float), None if missing == "nothing" else mask)
        weights = row_weights(remaining, counts, WIDTH, gradient="unbiased", held=held[client])
        assert weights.shape == (1, WIDTH)
        assert not weights[0, len(places) :].any()
        total[places] += answers[client] * held[client] / rows * weights[0, : len(places)]
    np.testing.assert_allclose(total, np.where(left, 1 / max(size, 1), 0), rtol=1e-14)


@pytest.mark.quick
def test_the_mean_rule_divides_by_the_rows_that_are_left():
    mask = np.array([[True, False, True, True]])
    remaining = Remaining(10, np.array([5.0]), mask)
    weights = row_weights(remaining, np.array([3]), 4, gradient="mean", held=np.asarray(7.0))
    np.testing.assert_array_equal(weights, [[0.5, 0, 0.5, 0]])


@pytest.mark.quick
def test_phi_counts_where_its_silo_does():
    phi = np.arange(6.0).reshape(3, 2)
    kept = np.array([True, False, True])
    np.testing.assert_array_equal(counted(phi, kept), [[0, 1], [0, 0], [4, 5]])
    np.testing.assert_array_equal(counted(phi, kept, np.array([7.0, 8.0])), [[0, 1], [7, 8], [4, 5]])
    assert counted(phi, None) is phi


class Lacking:
    """A silo that lacks some rows, with or without a column of ones: a presence that no key offers yet."""

    def __init__(self, kept, has_ones):
        self.kept, self.has_ones = kept, has_ones

    def kept_rows(self, sending):
        return self.kept if sending.places is None else self.kept.reshape(-1)[sending.places]

    def leaves_intercept(self, silo):
        return self.has_ones

    def alone(self, silo, block, apply, num_features):
        return 0


@pytest.mark.parametrize("has_ones", [False, True])
def test_rows_for_which_a_silo_does_not_count_weigh_nothing_or_have_only_the_column_of_ones(has_ones):
    kept = np.array([[True, False, True, False]])
    sending = Sending(seed_words(0), 0, 0, (1, 4, 1), places=np.array([[3, 0]]))
    features = np.array([[[2.0, 3.0, 1.0], [4.0, 5.0, 1.0]]])
    known = Known(np.zeros((1, 2)), np.zeros((1, 2, 1)), np.full((1, 2, 1), 9.0))
    rows = counted_rows(Lacking(kept, has_ones), Minibatch(features, known, np.ones((1, 2))), sending, 5.0)
    np.testing.assert_array_equal(rows.weights, [[1, 1]] if has_ones else [[0, 1]])
    expected = [[[0, 0, 1], [4, 5, 1]]] if has_ones else features
    np.testing.assert_array_equal(rows.features, expected)
    np.testing.assert_array_equal(rows.known.phi_start[..., 0], [[5, 9]] if has_ones else [[9, 9]])
