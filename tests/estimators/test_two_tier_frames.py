"""Estimators on one frame per silo: ids, labels and losses of rows, and what is known of the model afterwards."""

import inspect
import pickle
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score

from tdcd import DataWarning, Federation, Linear, Objective, Settings, TwoTierClassifier, TwoTierRegressor, train

KEYS = {"clients": [2, 1], "rounds": 10, "local_steps": 5, "batch_size": 32, "step_size": 0.1}
IDS = {"bank": "customer", "bureau": "person_id"}


@pytest.fixture(scope="module")
def frames():
    """The bank knows customers 0 to 89, the bureau persons 10 to 99, in another order; 80 are in both."""
    draw = np.random.default_rng(1)
    everyone = pd.DataFrame({"age": draw.uniform(20, 70, 100), "late": draw.poisson(1.5, 100)})
    everyone["cards"] = draw.integers(0, 5, 100)
    everyone["default"] = np.where(everyone["late"] + (everyone["age"] > 45) > 1, "yes", "no")
    everyone["amount"] = 2.0 * everyone["age"] + 10.0 * everyone["late"]
    bank = everyone.loc[:89, ["age", "default", "amount"]].reset_index(names="customer")
    bureau = everyone.loc[10:, ["late", "cards"]].reset_index(names="person_id").sample(frac=1, random_state=1)
    return {"bank": bank.drop(columns="amount"), "bureau": bureau}, bank["amount"]


def common(frames):
    """The rows of both."""
    return {"bank": frames["bank"].iloc[10:], "bureau": frames["bureau"].query("person_id < 90")}


def joined(frames):
    rows = frames["bank"].merge(frames["bureau"], left_on="customer", right_on="person_id")
    return rows[["age", "late", "cards"]].to_numpy(float), rows["default"].to_numpy()


@pytest.fixture(scope="module")
def fitted(frames):
    return TwoTierClassifier(**KEYS).fit(common(frames[0]), id=IDS, label="default")


def test_rows_that_a_frame_lacks_are_left_out_and_reported(frames, fitted):
    estimator = TwoTierClassifier(**KEYS)
    words = "80 ids are in every silo: silo 'bank' has 90, and loses 10; silo 'bureau' has 90, and loses 10"
    with pytest.warns(DataWarning, match=words) as warned:
        estimator.fit(frames[0], id=IDS, label="default")
    assert warned[0].filename == __file__
    assert (estimator.n_matched_, estimator.n_lost_) == (80, {"bank": 10, "bureau": 10})
    assert (fitted.n_matched_, fitted.n_lost_) == (80, {"bank": 0, "bureau": 0})
    losses = [[record.train_loss for record in one.history_] for one in (estimator, fitted)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("labels", [None, "bank"])
def test_all_samples_with_a_label_train_and_frames_may_be_missing(frames, labels):
    rows = frames[0]
    estimator = TwoTierClassifier(**KEYS, samples="all", labels=labels).fit(rows, id=IDS, label="default")
    # Ten persons of the bureau have no label.
    assert (estimator.n_matched_, estimator.n_lost_) == (80, {"bank": 0, "bureau": 10})
    terms = {"federation": {"labels": labels}, "data": {"rare": 1, "samples": "all"}}
    federation = Federation.from_frames(rows, id=IDS, label="default", clients=[2, 1], holdout=0.0, **terms)
    settings = Settings(local_steps=5, batch_size=32, step_size=0.1)
    result = train(federation, Linear(), Objective("logistic"), settings, rounds=10)
    for ours, theirs in zip(estimator.history_, result.history, strict=True):
        assert (ours.train_loss, ours.bytes) == (theirs.train_loss, theirs.bytes)
    known = {"bank": rows["bank"], "bureau": rows["bureau"].query("person_id < 90")}
    scores, expected = estimator.decision_function(known), result.model.scores(known)
    np.testing.assert_array_equal(scores, expected[:, 0])
    assert estimator.score(known) == accuracy_score(rows["bank"]["default"], estimator.predict(known))
    # Those that only the bank knows are scored alike without the bureau's frame.
    alone = estimator.decision_function({"bank": rows["bank"]})
    np.testing.assert_allclose(alone[:10], scores[:10], rtol=1e-6)
    assert np.abs(alone - scores)[10:].max() > 1e-3
    with pytest.warns(UserWarning, match="without silo 'bank', its phi is replaced by its mean"):
        assert estimator.predict({"bureau": rows["bureau"]}).shape == (90,)
    with pytest.raises(ValueError, match=r"frame 'bank' has no row with the id '\d+', and frame 'bureau' has"):
        estimator.score(rows)
    assert estimator.feature_importances_.shape == (3,)
    with pytest.raises(AttributeError, match=r"data\.samples = 'all': "):
        _ = estimator.coef_


def test_all_samples_are_those_of_frames_with_ids(frames):
    X, y = joined(common(frames[0]))
    with pytest.raises(ValueError, match="samples = 'all': it is for frames by silo, and X is one table: leave it out"):
        TwoTierClassifier(samples="all").fit(X, y)
    with pytest.raises(ValueError, match="samples = 'all': which rows are about the same sample is not known"):
        TwoTierRegressor(samples="all").fit(common(frames[0]), label="default")
    with pytest.raises(ValueError, match=r"data\.standin = 'constant': goes with data\.samples = 'all'; leave it out"):
        TwoTierClassifier(standin="constant").fit(X, y)


@pytest.mark.parametrize("labels", [None, "bank"])
def test_it_is_what_train_gives_on_the_same_frames(frames, labels):
    rows = common(frames[0])
    estimator = TwoTierClassifier(**KEYS, labels=labels, evaluate_every=5).fit(rows, id=IDS, label="default")
    federation = Federation.from_frames(
        rows, id=IDS, label="default", clients=[2, 1], holdout=0.0, federation={"labels": labels}, data={"rare": 1}
    )
    settings = Settings(local_steps=5, batch_size=32, step_size=0.1)
    result = train(federation, Linear(), Objective("logistic"), settings, rounds=10)
    for one, other in zip(estimator.history_, result.history, strict=True):
        assert (one.train_loss, one.bytes) == (other.train_loss, other.bytes)
    np.testing.assert_array_equal(estimator.predict(rows), result.model.predict(rows))


def test_labels_at_one_silo_of_one_table_take_the_same_steps(frames):
    X, y = joined(common(frames[0]))
    silos = {"bank": [0], "bureau": [1, 2]}
    everywhere, at_one = (TwoTierClassifier(silos, **KEYS, labels=labels).fit(X, y) for labels in (None, "bureau"))
    losses = [[record.train_loss for record in one.history_] for one in (everywhere, at_one)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    sent = [one.history_[-1].evaluation_bytes.hub_to_hub for one in (everywhere, at_one)]
    # Three evaluations in float32, whose scores go one way only with labels at one silo; and a certificate in float64,
    # of which scores go both ways, or scores there and residuals back.
    scores, exact = 4 * len(y), 8 * len(y)
    assert sent == [3 * 2 * scores + 2 * exact, 3 * scores + 2 * exact]
    with pytest.raises(ValueError, match=r"federation.labels = 'shop'"):
        TwoTierClassifier(silos, labels="shop").fit(X, y)


@pytest.mark.parametrize("kind", [str, bool, int, "category"])
def test_classes_have_the_values_of_the_label_column(frames, kind):
    rows = common(frames[0])
    labels = rows["bank"]["default"]
    labels = labels.astype(kind) if kind in (str, "category") else (labels == "yes").astype(kind)
    bank = rows["bank"].assign(default=labels)
    estimator = TwoTierClassifier(**KEYS).fit({**rows, "bank": bank}, id=IDS, label="default")
    assert estimator.classes_.tolist() == sorted(labels.unique().tolist())
    predicted = estimator.predict(rows)
    assert accuracy_score(labels, predicted) > 0.85
    assert estimator.score({**rows, "bank": bank}) == accuracy_score(labels, predicted)


def test_scores_of_frames_go_by_id_or_by_place(frames, fitted):
    rows = common(frames[0])
    accuracy = accuracy_score(rows["bank"]["default"], fitted.predict(rows))
    assert fitted.score(rows) == fitted.score(rows, rows["bank"]["default"]) == accuracy
    shuffled = {"bureau": rows["bureau"].sample(frac=1, random_state=3), "bank": rows["bank"].iloc[::-1]}
    assert fitted.score(shuffled) == accuracy
    # The label may be in another frame than the first, whose order counts.
    moved = rows["bureau"].merge(rows["bank"][["customer", "default"]], left_on="person_id", right_on="customer")
    moved = {"bank": rows["bank"].drop(columns="default"), "bureau": moved.drop(columns="customer")}
    assert fitted.score(moved) == accuracy
    by_place = {"bank": rows["bank"], "bureau": rows["bureau"].sort_values("person_id")}
    without = {silo: frame.drop(columns=IDS[silo]) for silo, frame in by_place.items()}
    estimator = TwoTierClassifier(**KEYS).fit(without, label="default")
    assert estimator.score(without) == accuracy_score(without["bank"]["default"], estimator.predict(without))
    np.testing.assert_array_equal(estimator.predict(without), estimator.predict(by_place))


def test_frames_of_polars_give_the_same_model_and_it_is_cloned_and_pickled(frames, fitted):
    rows = {silo: pl.from_pandas(frame) for silo, frame in common(frames[0]).items()}
    other = pickle.loads(pickle.dumps(clone(fitted).fit(rows, id=IDS, label="default")))
    np.testing.assert_array_equal(other.predict_proba(rows), fitted.predict_proba(common(frames[0])))
    assert other.feature_names_in_.tolist() == ["bank.age", "bureau.late", "bureau.cards"]
    assert other.n_features_in_ == 3
    assert other.n_iter_ == 10


def test_weights_of_samples_and_classes_are_the_same_in_frames_and_in_a_table(frames):
    rows = common(frames[0])
    heavy = np.where(rows["bank"]["default"] == "yes", 3.0, 1.0)
    weighted = {**rows, "bank": rows["bank"].assign(weight=heavy)}
    by_row = TwoTierClassifier(**KEYS).fit(weighted, id=IDS, label="default", sample_weight="weight")
    by_class = TwoTierClassifier(**KEYS, class_weight={"yes": 3.0}).fit(rows, id=IDS, label="default")
    np.testing.assert_allclose(by_row.predict_proba(rows), by_class.predict_proba(rows), atol=1e-5)
    assert "bank.weight" not in by_row.feature_names_in_


def test_a_regressor_on_frames(frames):
    rows = common(frames[0])
    amounts = frames[1].iloc[10:]
    with_amounts = {**rows, "bank": rows["bank"].assign(default=amounts)}
    estimator = TwoTierRegressor(**{**KEYS, "rounds": 60}).fit(with_amounts, id=IDS, label="default")
    assert estimator.score(with_amounts) == pytest.approx(r2_score(amounts, estimator.predict(rows)))
    assert estimator.score(with_amounts) > 0.95
    assert estimator.coef_ == pytest.approx([2.0, 10.0, 0.0], abs=0.5)


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        ({}, {"label": None}, "label: name the column that is to be predicted"),
        ({}, {"y": [1, 2]}, "y: the labels of frames are a column of one of them"),
        ({}, {"label": "deflt"}, "no frame has the column 'deflt', which is to be predicted"),
        ({}, {"id": {"bank": "customer"}}, "id: name the id column of frame 'bureau', too"),
        ({}, {"id": {**IDS, "shop": "id"}}, "id: there is no frame 'shop'; there are bank, bureau"),
        ({}, {"id": "customer"}, "frame 'bureau': has no column 'customer'"),
        ({}, {"sample_weight": [1.0]}, "sample_weight: the weights of frames are a column next to the label"),
        ({}, {"sample_weight": "weigh"}, "frame 'bank': has no column 'weigh'"),
        ({"silos": 2}, {}, "silos = 2: there is one silo per frame; leave it out"),
        ({"clients": [1, 2, 3]}, {}, r"clients = \[1, 2, 3\]: there are 2 silos"),
        ({"labels": "bureau"}, {}, "frame 'bank': column 'default' is the label, and only silo 'bureau' may have it"),
        ({"class_weight": {"maybe": 2.0}}, {}, "class_weight: there is no class 'maybe'; there are no, yes"),
        ({"loss": "squared"}, {}, "loss = 'squared': a classifier takes 'logistic' or 'softmax'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(frames, parameters, arguments, message):
    keys = {**KEYS, **parameters}
    with pytest.raises(ValueError, match=message):
        TwoTierClassifier(**keys).fit(common(frames[0]), **{"id": IDS, "label": "default", **arguments})


def test_frames_whose_ids_or_values_do_not_fit_are_refused_with_frame_column_and_value(frames):
    rows = common(frames[0])
    twice = {**rows, "bank": pd.concat([rows["bank"], rows["bank"].iloc[:1]])}
    with pytest.raises(ValueError, match=r"frame 'bank'.*'10'"):
        TwoTierClassifier(**KEYS).fit(twice, id=IDS, label="default")
    blank = {**rows, "bank": rows["bank"].assign(default=rows["bank"]["default"].mask(rows["bank"]["customer"] == 12))}
    with pytest.raises(ValueError, match=r"frame 'bank'.*column 'default'"):
        TwoTierClassifier(**KEYS).fit(blank, id=IDS, label="default")
    others = {**rows, "bureau": rows["bureau"].assign(person_id=lambda one: one["person_id"] + 1000)}
    with pytest.raises(ValueError, match=r"0 ids are in every silo.*check that the id columns mean the same"):
        TwoTierClassifier(**KEYS).fit(others, id=IDS, label="default")
    with pytest.raises(ValueError, match="frames without ids must have the same rows in the same order"):
        TwoTierClassifier(**KEYS).fit({**rows, "bank": rows["bank"].iloc[1:]}, label="default")
    with pytest.raises(ValueError, match=r"labels of silo 'bank'.*but one is 'no'"):
        TwoTierRegressor(**KEYS).fit(rows, id=IDS, label="default")


def test_a_table_and_frames_are_not_mixed_up(frames, fitted):
    rows = common(frames[0])
    X, y = joined(rows)
    with pytest.raises(ValueError, match="X is one ndarray, and fit had frames by silo: give those of bank, bureau"):
        fitted.predict(X)
    with pytest.raises(ValueError, match="id = 'customer': it is for frames by silo, and X is one table"):
        TwoTierClassifier(**KEYS).fit(X, y, id="customer")
    with pytest.raises(ValueError, match="no frame has the column 'default'"):
        fitted.score({**rows, "bank": rows["bank"].drop(columns="default")})
    with pytest.raises(ValueError, match="has the class 'maybe', which training did not have"):
        fitted.score({**rows, "bank": rows["bank"].assign(default="maybe")})
    other = clone(fitted).fit(rows, id=IDS, label="default").fit(X, y)
    assert not hasattr(other, "n_lost_")
    assert not hasattr(other, "feature_names_in_")
    with pytest.raises(ValueError, match="X has frames by silo, and fit had one table"):
        other.predict(rows)


def test_coefficients_give_the_scores(frames, fitted):
    rows = common(frames[0])
    X, y = joined(rows)
    assert fitted.coef_.shape == (1, 3)
    np.testing.assert_allclose(X @ fitted.coef_[0] + fitted.intercept_[0], fitted.decision_function(rows), atol=1e-5)
    # In another order than the silos have, and with a column that no silo has.
    table = TwoTierClassifier({"bureau": [2], "bank": [0]}, **KEYS).fit(X, y)
    assert table.coef_[0, 1] == table.feature_importances_[1] == 0
    np.testing.assert_allclose(X @ table.coef_[0] + table.intercept_[0], table.decision_function(X), atol=1e-5)
    softmax = TwoTierClassifier(2, **KEYS, loss="softmax").fit(X, y)
    np.testing.assert_allclose(X @ softmax.coef_[0] + softmax.intercept_[0], softmax.decision_function(X), atol=1e-5)
    several = TwoTierClassifier(2, **KEYS).fit(X, X[:, 2])
    assert several.coef_.shape == (5, 3)
    np.testing.assert_allclose(X @ several.coef_.T + several.intercept_, several.decision_function(X), atol=1e-5)
    amounts = TwoTierRegressor(2, **KEYS).fit(X, X @ [1.0, 2.0, 3.0])
    np.testing.assert_allclose(X @ amounts.coef_ + amounts.intercept_, amounts.predict(X), rtol=1e-5)


def test_importances_are_shares_of_the_spread(frames, fitted):
    X, y = joined(common(frames[0]))
    spread = np.abs(fitted.coef_[0]) * X.std(axis=0)
    np.testing.assert_allclose(fitted.feature_importances_, spread / spread.sum(), rtol=1e-4)
    # Levels of a category count as one column: what it adds is what the scores differ by without it.
    named = pd.DataFrame({"age": X[:, 0], "late": pd.Categorical(X[:, 1].astype(int).astype(str)), "cards": X[:, 2]})
    estimator = TwoTierClassifier(2, **KEYS).fit(named, y)
    scores = estimator.decision_function(named)
    spread = [np.std(scores - estimator.decision_function(named.assign(**{name: named[name][0]}))) for name in named]
    np.testing.assert_allclose(estimator.feature_importances_, spread / np.sum(spread), rtol=1e-4)


def test_where_an_attribute_means_nothing_it_is_not_there_and_says_why(frames):
    X, y = joined(common(frames[0]))
    estimator = TwoTierClassifier(2, **KEYS)
    for name in ("coef_", "intercept_", "feature_importances_", "n_iter_", "n_lost_"):
        assert not hasattr(estimator, name)
    with pytest.raises(NotFittedError):
        _ = estimator.coef_
    network = TwoTierClassifier(2, **KEYS, block="mlp", hidden=(4,)).fit(X, y)
    with pytest.raises(AttributeError, match="there are no coefficients: silo 'silo1' has a block of kind 'mlp'"):
        _ = network.coef_
    with pytest.raises(AttributeError, match=r"silo 'silo1' has a block of kind 'mlp'; .*permutation_importance"):
        _ = network.feature_importances_
    binned = TwoTierClassifier(2, **KEYS, bins=4).fit(X, y)
    with pytest.raises(AttributeError, match=r"column 'x0' has a coefficient for each of its levels or bins"):
        _ = binned.coef_
    assert binned.feature_importances_.sum() == pytest.approx(1)


def documented(text, section):
    """The names and types in a section of a docstring in numpydoc's form."""
    (body,) = re.findall(rf"^{section}\n-+\n(.*?)(?=^\w+\n---|\Z)", inspect.cleandoc(text), re.DOTALL | re.MULTILINE)
    return dict(re.findall(r"^(\w+) : (\S.*)$", body, re.MULTILINE)), body


@pytest.mark.parametrize("estimator", [TwoTierClassifier, TwoTierRegressor])
def test_every_parameter_and_attribute_is_documented(estimator, frames):
    parameters = inspect.signature(estimator).parameters
    found, body = documented(estimator.__doc__, "Parameters")
    assert [*found] == [*parameters]
    for name, parameter in parameters.items():
        (default,) = re.findall(r"default=(.*)$", found[name])
        assert default.replace('"', "'") == repr(parameter.default), name
    assert all(re.search(rf"^{name} : .*\n    \S", body, re.MULTILINE) for name in parameters)
    attributes, _ = documented(estimator.__doc__, "Attributes")
    rows = common(frames[0])
    rows["bank"] = rows["bank"].assign(default=rows["bank"]["age"] > 40)
    known = estimator(**KEYS).fit(rows, id=IDS, label="default")
    public = {name for name in dir(known) if re.fullmatch(r"[a-z]\w*[a-z]_", name)}
    assert {*attributes} == public
    of_fit, _ = documented(estimator.fit.__doc__, "Parameters")
    assert [*of_fit] == [name for name in inspect.signature(estimator.fit).parameters if name != "self"]
    assert "{" + "parameters}" not in estimator.__doc__
