import numpy as np
import pytest

from tdcd.core.losses import Poisson, Squared
from tdcd.core.randomized import KEPT
from tdcd.tables.labels import Labels, encode, in_words, standardized

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("values", "loss", "task", "classes", "numbers"),
    [
        ([0.0, 1, 1], None, "binary", ("0", "1"), [0, 1, 1]),
        ([1.0, -1, 1], None, "binary", ("-1", "1"), [1, 0, 1]),
        ([0.5, 2.5, 0.5], None, "binary", ("0.5", "2.5"), [0, 1, 0]),
        (["yes", "no"], None, "binary", ("no", "yes"), [1, 0]),
        (["10", "9", "x"], None, "multiclass", ("10", "9", "x"), [0, 1, 2]),
        (["10", "9.0", "9"], None, "binary", ("9", "10"), [1, 0, 0]),
        ([2.0, 10, 3], None, "multiclass", ("2", "3", "10"), [0, 2, 1]),
        ([2.0, 1000, 3], None, "regression", (), [2, 1000, 3]),
        ([2.0, -10, 3], None, "regression", (), [2, -10, 3]),
        ([0.5, 1, 2], None, "regression", (), [0.5, 1, 2]),
        ([0.0, 1, 1], "squared", "regression", (), [0, 1, 1]),
        ([2.0, 1000, 3], "softmax", "multiclass", ("2", "3", "1000"), [0, 2, 1]),
        ([3.0, 3, 3], "squared", "regression", (), [3, 3, 3]),
    ],
)
def test_labels_become_numbers(values, loss, task, classes, numbers):
    encoded = encode(np.array(values), loss)
    assert (encoded.task, encoded.classes) == (task, classes)
    assert encoded.numbers.tolist() == numbers


def test_many_whole_numbers_are_amounts():
    assert encode(np.arange(20.0)).task == "multiclass"
    assert encode(np.arange(21.0)).task == "regression"


@pytest.mark.parametrize(
    ("values", "loss", "message"),
    [
        ([1.0, 1], None, "every label is '1': there is nothing to learn"),
        (["a", "b", "3"], "squared", "model.loss = 'squared': the labels must be numbers, but one is 'a'"),
        ([1.0, 2, 3], "logistic", "model.loss = 'logistic': there are 3 different labels, not two"),
        ([1.5, 2, 3], "softmax", "model.loss = 'softmax': the labels are amounts, not classes: use 'squared'"),
    ],
)
def test_labels_that_do_not_fit_are_refused(values, loss, message):
    with pytest.raises(ValueError, match=message):
        encode(np.array(values), loss)


def test_amounts_are_standardised_over_training_samples():
    values, training = np.array([1.0, 3, 100, 7]), np.array([True, True, False, True])
    numbers, mean, scale = standardized(Labels("regression", values), training, Squared().unit)
    known = values[training]
    assert (mean, scale) == (known.mean(), known.std())
    np.testing.assert_allclose(numbers * scale + mean, values)
    assert standardized(Labels("binary", values), training, Squared().unit) == (values, 0.0, 1.0)


def test_counts_are_divided_by_the_mean_of_the_training_samples():
    """The deviance of counts that are m times as large is m times as large, and so is the loss, at other scores."""
    values, training = np.array([1.0, 3, 100, 8, 0]), np.array([True, True, False, True, True])
    numbers, mean, scale = standardized(Labels("regression", values), training, Poisson().unit)
    assert (mean, scale) == (0.0, 3.0)
    np.testing.assert_array_equal(numbers, values / 3)
    scores = np.linspace(-1, 2, 5)[:, None]
    given = Poisson().losses(scores + np.log(scale), values)
    np.testing.assert_allclose(scale * Poisson().losses(scores, numbers), given, rtol=1e-12)
    own = Poisson().metrics(scores, numbers, scale, KEPT)
    assert own == pytest.approx(Poisson().metrics(scores + np.log(scale), values, 1.0, KEPT), rel=1e-12)
    assert own["deviance"] == pytest.approx(2 * given.mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "loss", "words"),
    [
        (
            np.arange(10.0),
            None,
            '10 classes 0 to 9 (model.loss = "softmax" decided from the values; set model.loss = "squared" to predict '
            "amounts)",
        ),
        (np.arange(10.0), "squared", 'amounts 0 to 9 (model.loss = "squared")'),
        (
            [0.0, 7.0, 7.0],
            None,
            '2 classes 0, 7 (model.loss = "logistic" decided from the values; set model.loss = "squared" to predict '
            "amounts)",
        ),
        (list("fbadcea"), None, '6 classes a, b, c, d, e, ... (model.loss = "softmax" decided from the values)'),
        ([0.5, 1.0, 2e6], None, 'amounts 0.5 to 2e+06 (model.loss = "squared" decided from the values)'),
        (
            np.arange(30.0),
            None,
            'amounts 0 to 29 (model.loss = "squared" decided from the values; set model.loss = "softmax" to predict '
            "classes)",
        ),
    ],
)
def test_how_labels_were_interpreted_is_reported(values, loss, words):
    assert in_words(encode(np.array(values), loss), loss) == words


def test_one_client_may_have_one_class_only():
    encoded = encode(["no", "no"], partly=True)
    assert (encoded.task, encoded.classes) == ("binary", ("no",))
    words = in_words(encoded, None, partly=True)
    assert words.startswith('1 class no (model.loss = "logistic" decided from the values here; all clients')


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            [f"{n}.25" for n in range(40)] + ["oops"],
            "41 different labels that look like amounts, but 'oops' is no",
        ),
        ([f"{n},5" for n in range(40)], r'but \'0,5\' is not a number: set data.decimal = ","'),
    ],
)
def test_amounts_with_a_slip_do_not_become_classes(labels, said):
    with pytest.raises(ValueError, match=said):
        encode(labels)
    assert len(encode(labels, "softmax").classes) == len(labels)


def test_many_names_are_classes():
    assert len(encode([f"town {n}" for n in range(40)]).classes) == 40
