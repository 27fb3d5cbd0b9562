"""The draw of randomised labels: once for each label, and a secret's own."""

from math import log

import numpy as np
import pytest

from tdcd.data import load
from tdcd.data.randomized import randomize, randomize_table, trial_key

pytestmark = pytest.mark.quick

NUMBER = 4000
IDS = [f"id {place}" for place in range(NUMBER)]
KEY = bytes(range(32))


def drawn(labels, classes="abcd", epsilon=1.0, key=KEY, ids=IDS):
    return randomize(np.asarray(labels), ids, list(classes), epsilon, key)


def test_a_label_keeps_its_draw_wherever_it_is_drawn():
    labels = np.arange(NUMBER) % 4
    whole = drawn(labels)
    assert (whole == drawn(labels)).all()
    backwards = drawn(labels[::-1][:100], ids=IDS[::-1][:100])
    assert (backwards == whole[::-1][:100]).all()


def test_the_shares_are_those_of_epsilon():
    labels = np.full(NUMBER, 2)
    shares = np.bincount(drawn(labels, epsilon=log(3)), minlength=4) / NUMBER
    # Half stay, a sixth becomes each other class; five standard deviations.
    assert np.abs(shares - [1 / 6, 1 / 6, 1 / 2, 1 / 6]).max() < 5 * np.sqrt(0.25 / NUMBER)


@pytest.mark.parametrize("other", [{"key": bytes(32)}, {"epsilon": 1.1}, {"classes": "abce"}, {"ids": IDS[::-1]}])
def test_anything_else_is_drawn_independently(other):
    """Whether a label stayed in one release says nothing about the other."""
    labels = np.zeros(NUMBER, int)
    first, second = drawn(labels) == 0, drawn(labels, **other) == 0
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(NUMBER)


def test_labels_that_were_corrected_are_drawn_independently():
    stayed = drawn(np.zeros(NUMBER, int)) == 0
    assert abs(np.corrcoef(stayed, drawn(np.ones(NUMBER, int)) == 1)[0, 1]) < 5 / np.sqrt(NUMBER)


def test_tables():
    table = load("breast_cancer")
    noisy = randomize_table(table, 1.0, seed=0)
    assert 0.65 < (noisy.labels == table.labels).mean() < 0.8
    assert noisy.labels.dtype == table.labels.dtype
    assert (randomize_table(table, 1.0, seed=0).labels == noisy.labels).all()
    assert trial_key(0) != trial_key(1)
    with pytest.raises(ValueError, match="'diabetes' has real-valued labels, and randomised response needs classes"):
        randomize_table(load("diabetes"), 1.0, seed=0)
