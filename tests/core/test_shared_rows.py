"""Rows that belong to many samples: how they are numbered and counted, and which flows are of them."""

import numpy as np
import pytest

from tdcd.core.codecs.quantised import Quantised
from tdcd.core.family.dropout import SiloDropout
from tdcd.core.family.labels import LabelsAt
from tdcd.core.knowledge import LabelsEverywhere
from tdcd.core.ledger import Ledger, Sizes
from tdcd.core.objective import Objective
from tdcd.core.round import Widths, round_of
from tdcd.core.shared_rows import SharedCounts, SharedRows, distinct, is_sent_whole
from tdcd.core.variant import Variant

pytestmark = pytest.mark.quick


def test_rows_with_other_marks_are_other_rows():
    rng = np.random.default_rng(0)
    rows, marks = rng.integers(0, 9, 200) * 1000, rng.integers(0, 2, (200, 3)).astype(bool)
    index = distinct(rows, marks)
    names = [(row, *own) for row, own in zip(rows.tolist(), marks.tolist(), strict=True)]
    assert index.max() + 1 == len({*names})
    assert len({*zip(names, index.tolist(), strict=True)}) == len({*names})


def test_what_is_summed_by_rows_is_what_rows_are_gathered_from_transposed():
    """The gradient of a sum over samples whose phi was gathered: <v, gather(phi)> = <sum(v), phi>."""
    rng = np.random.default_rng(1)
    shared = SharedRows.of(rng.integers(3, 12, 50))
    phi, values = rng.normal(size=(len(shared), 2)), rng.normal(size=(50, 2))
    gathered = phi[shared.index]
    assert (values * gathered).sum() == pytest.approx((shared.summed(values) * phi).sum(), rel=1e-12)


def test_a_client_sends_all_its_rows_only_where_that_is_less():
    # 10 rows of 100 of 400 samples: 25 of its samples are in a round of 100, 10 in one of 40.
    assert is_sent_whole(10, 100, 400, 100)
    assert not is_sent_whole(10, 100, 400, 40)
    counts = SharedCounts.of([np.arange(100) % 10, np.arange(300)], [np.array([3, 3, 4])], 400, 100)
    assert counts == SharedCounts(trained=310, scored=312, sent=10, drawn=300)
    sizes = Sizes((1, 100), 403, "float64", [1, 1], trained=400, shared=[None, counts])
    sent = {(one.kind, one.link): one.bytes for one in Ledger.of(flows(Variant()), sizes, [1, 2]).after(1)}
    assert sent["phi", "client_to_hub"] == 8 * (100 + 10 + 75)
    assert sent["received", "hub_to_client"] == 8 * 200


def flows(variant):
    return round_of(variant, 2, Widths(1, 1, certificate="witness", shared=(1,)))


@pytest.mark.parametrize(
    ("variant", "phi"),
    [
        (Variant(), "rows"),
        (Variant(client_exchange=Quantised(8)), "samples"),
        (Variant(dropout=SiloDropout(0.3)), "samples"),
    ],
)
def test_flows_of_rows(variant, phi):
    """With few bits the dither, and with silo dropout the silos that count, are of samples."""
    made = flows(variant)
    assert made.flow("phi", "client_to_hub", 0).carries == "samples"
    assert made.flow("phi", "client_to_hub", 1).carries == phi
    assert [flow.carries for flow in made.evaluation if flow.link == "client_to_hub"] == ["samples", "rows"]
    assert made.flow("residual", "hub_to_client", 1).carries == "rows"
    assert made.flow("received", "hub_to_client", 1).carries == "samples"
    assert made.answers() == round_of(variant, 2, Widths(1, 1, certificate="witness")).answers()


@pytest.mark.parametrize(
    ("knowledge", "one_step", "carries", "width"),
    [(LabelsAt(0), True, "rows", 1), (LabelsAt(0), False, "samples", 2), (LabelsEverywhere(), True, "samples", 1)],
)
def test_slopes_are_summed_by_rows_where_a_round_is_one_step(knowledge, one_step, carries, width):
    widths = Widths(1, 2, weighs=True, shared=(1,), one_step=one_step)
    made = round_of(Variant(knowledge=knowledge), 2, widths)
    received = made.flow("received", "hub_to_client", 1)
    assert (received.carries, received.width) == (carries, width)
    # What samples weigh is in the sums.
    has_weights = carries == "samples" and not knowledge.are_labels_everywhere
    assert (made.flow("weights", "hub_to_client", 1) is not None) == has_weights


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax", "poisson", "huber"])
def test_the_slopes_at_the_start_are_those_of_the_loss(loss):
    """From the statistic that hubs send in place of labels, whatever it is."""
    rng, objective = np.random.default_rng(2), Objective(loss)
    width = 3 if loss == "softmax" else 1
    scores = rng.normal(size=(2, 20, width))
    labels = rng.integers(0, 3 if loss == "softmax" else 2, (2, 20)).astype(float)
    statistic = objective.statistic(scores, labels.astype(objective.label_dtype("float64")))
    slopes = LabelsAt(0).start_slopes(statistic, width, objective)
    expected = objective.slopes(scores, labels.astype(objective.label_dtype("float64")))
    np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=1e-12)
