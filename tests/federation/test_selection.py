"""The test for labels that differ between patterns of presence: its rate, its power, and scipy's own statistics."""

import numpy as np
import pytest

from tdcd.federation.selection import FEWEST, label_test, selection_in_words

pytestmark = pytest.mark.quick


def drawn(draw, sizes, *, amounts, differs=0.0):
    if amounts:
        return [draw.exponential(1 + place * differs, size).round(2) for place, size in enumerate(sizes)]
    return [(draw.random(size) < 0.2 + place * differs).astype(float) for place, size in enumerate(sizes)]


@pytest.mark.parametrize("amounts", [False, True])
def test_at_random_it_speaks_as_rarely_as_p_says(amounts):
    draw = np.random.default_rng(1)
    p = np.array([label_test(drawn(draw, (400, 150, 90), amounts=amounts), amounts=amounts) for _ in range(600)])
    assert np.mean(p < 0.05) < 0.05 + 3 * 0.0089
    assert np.mean(p < 0.5) == pytest.approx(0.5, abs=4 * 0.0204)


@pytest.mark.parametrize("amounts", [False, True])
def test_it_sees_what_is_not_at_random(amounts):
    draw = np.random.default_rng(2)
    p = [label_test(drawn(draw, (800, 400), amounts=amounts, differs=0.4), amounts=amounts) for _ in range(50)]
    assert np.mean(np.array(p) < 0.01) > 0.6


@pytest.mark.slow
def test_the_statistics_are_those_of_scipy():
    from scipy.stats import chi2_contingency, kruskal

    draw = np.random.default_rng(3)
    amounts = drawn(draw, (60, 35, 40), amounts=True)
    assert label_test(amounts, amounts=True) == pytest.approx(kruskal(*amounts).pvalue, rel=1e-9)
    classes = [draw.integers(0, 3, size).astype(float) for size in (80, 120)]
    table = [[np.sum(group == one) for one in range(3)] for group in classes]
    assert label_test(classes, amounts=False) == pytest.approx(chi2_contingency(table).pvalue, rel=1e-9)


def test_too_little_to_say():
    one = np.zeros(FEWEST - 1)
    assert label_test([one, np.ones(500)], amounts=False) is None
    assert label_test([np.ones(50), np.ones(50)], amounts=False) is None
    assert label_test([np.ones(50), np.ones(50)], amounts=True) is None
    # A class of three samples decides nothing: it is one with others, or left out.
    rare = [np.array([0.0] * 60 + [1.0] * 3), np.zeros(60)]
    assert label_test(rare, amounts=False) is None


def test_the_sentence_says_so_in_plain_words():
    groups = {("bank", "bureau"): np.repeat([0.0, 1.0], [100, 100]), ("bank",): np.repeat([0.0, 1.0], [180, 20])}
    words = selection_in_words(groups, 2, amounts=False)
    assert words.startswith("labels differ between samples that both silos have and those that some lack, by more than")
    assert "rows are not missing at random" in words
    assert not selection_in_words({("bank",): groups["bank",], ("bureau",): groups["bank",]}, 2, amounts=False)
