"""The estimators follow scikit-learn, and train what `tdcd run` trains."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tdcd import Federation, Linear, Model, Objective, Settings, TwoTierClassifier, TwoTierRegressor, train

REPEATED = "minibatches are drawn by sample: one that weighs twice as much is not drawn twice"
DIFFERENT = {"check_sample_weight_equivalence_on_dense_data": REPEATED}


@parametrize_with_checks(
    [TwoTierClassifier(dtype="float64"), TwoTierRegressor(dtype="float64")], expected_failed_checks=lambda _: DIFFERENT
)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def frame():
    draw = np.random.default_rng(1)
    age, city = draw.uniform(20, 70, 90), draw.choice(["rome", "oslo", "lima"], 90)
    frame = pd.DataFrame({"age": age, "city": city, "paid": draw.poisson(3, 90), "since": pd.Timestamp("2020-01-01")})
    frame.loc[::7, "age"] = np.nan
    frame["since"] += pd.to_timedelta(draw.integers(0, 900, 90), unit="D")
    return frame, np.where((age > 45) | (city == "oslo"), "buys", "leaves")


SILOS = {"bank": ["age", "since"], "shop": ["city", "paid"]}


def test_frames_of_every_kind_give_the_same_model(frame):
    rows, classes = frame
    estimator = TwoTierClassifier(SILOS, clients=[2, 1], batch_size=32)
    first = estimator.fit(rows, classes)
    assert first.feature_names_in_.tolist() == ["age", "city", "paid", "since"]
    assert first.classes_.tolist() == ["buys", "leaves"]
    assert first.score(rows, classes) > 0.8
    chances = first.predict_proba(rows)
    for other in (pl.from_pandas(rows), pa.Table.from_pandas(rows)):
        np.testing.assert_allclose(clone(estimator).fit(other, classes).predict_proba(other), chances, atol=1e-6)
    named = pl.from_pandas(rows).with_columns(pl.col("city").cast(pl.Categorical))
    np.testing.assert_allclose(first.predict_proba(named), chances, atol=1e-6)
    categorical = rows.astype({"city": "category"})
    np.testing.assert_allclose(first.predict_proba(categorical), chances, atol=1e-6)
    by_place = TwoTierClassifier({"bank": [0, 3], "shop": [1, 2]}, clients=[2, 1], batch_size=32).fit(rows, classes)
    np.testing.assert_array_equal(by_place.predict_proba(rows), chances)


def test_it_is_what_train_gives_on_the_same_frames(frame):
    rows, classes = frame
    frames = {silo: rows[columns] for silo, columns in SILOS.items()}
    frames["bank"] = frames["bank"].assign(label=classes)
    settings = Settings(local_steps=5, batch_size=32, step_size=0.1)
    federation = Federation.from_frames(frames, label="label", clients=[2, 1], holdout=0.0, data={"rare": 1})
    result = train(federation, Linear(), Objective("logistic"), settings, rounds=100, evaluate_every=10)
    keys = {"rounds": 100, "local_steps": 5, "batch_size": 32, "step_size": 0.1, "evaluate_every": 10}
    estimator = TwoTierClassifier(SILOS, clients=[2, 1], **keys).fit(rows, classes)
    assert [record.train_loss for record in estimator.history_] == [record.train_loss for record in result.history]
    np.testing.assert_array_equal(result.model.predict(frames), estimator.predict(rows))


def test_it_works_in_a_pipeline_a_grid_search_and_a_pickle(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(np.log1p), TwoTierClassifier(3, 2, rounds=10)),
        {"twotierclassifier__step_size": np.array([1e-4, 0.1])},
        cv=2,
    ).fit(X, y)
    assert search.best_params_ == {"twotierclassifier__step_size": 0.1}
    assert search.best_score_ > 0.95
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))


def test_a_run_folder_keeps_the_model(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    estimator = TwoTierRegressor(2, 2, rounds=30, step_size=0.1, holdout=0.2, out=tmp_path / "run").fit(X, y)
    assert estimator.score(X, y) > 0.4
    assert "test" in estimator.history_[-1].metrics
    rows = {"silo1": X[:, :5], "silo2": X[:, 5:]}
    np.testing.assert_allclose(Model.load(tmp_path / "run").predict(rows), estimator.predict(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"silos": 0}, "silos = 0: there must be at least one"),
        ({"silos": {"bank": ["age"], "shop": ["aged"]}}, "'shop' has the column 'aged', which X has not"),
        ({"silos": {"bank": ["age", "city"], "shop": ["city"]}}, "column 'city' is given to 'bank' and to 'shop'"),
        ({"silos": {"bank": [7]}}, "'bank' has the column number 7, and X has 4 columns"),
        ({"silos": [["age"]]}, "give a number, or the columns of each silo by name"),
        ({"silos": {"bank": slice(0, 2)}}, "'bank' has slice"),
        ({"silos": {"bank": []}}, "'bank' has no columns"),
        ({"clients": [1, 2, 3]}, "there are 2 silos; give a number, or one each"),
        ({"step_size": -1.0}, r"train.step_size = -1.0: must be greater than 0"),
        ({"class_weight": {"buy": 2.0}}, "class_weight: there is no class 'buy'; there are buys, leaves"),
        ({"holdout": "x"}, "evaluate.holdout = 'x': must be a number"),
        ({"holdout": 2.0}, "evaluate.holdout = 2.0: must be less than 1"),
        ({"batch_size": "x"}, "train.batch_size = 'x': must be a whole number"),
        ({"batch_size": 0.5}, "train.batch_size = 0.5: must be a whole number"),
        ({"bins": 1}, "model.bins = 1"),
        ({"optimizer": "adamw"}, "train.optimizer = 'adamw'"),
        ({"loss": "squared"}, "loss = 'squared': a classifier takes 'logistic' or 'softmax'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(frame, parameters, message):
    with pytest.raises(ValueError, match=message):
        TwoTierClassifier(**{"batch_size": 32, **parameters}).fit(*frame)


def test_a_run_that_diverges_says_so():
    X, y = load_diabetes(return_X_y=True)
    with pytest.raises(ValueError, match=r"training diverged with step_size = 50\.0: lower it"):
        TwoTierRegressor(2, 2, rounds=30, step_size=50.0).fit(X, y)
    with pytest.warns(
        ConvergenceWarning, match=r"The training loss ended at .* the step size is 1\.5: lower it"
    ) as said:
        fitted = TwoTierRegressor(2, 2, rounds=4, local_steps=5, step_size=1.5).fit(X, y)
    assert said[0].filename == __file__
    assert np.isfinite(fitted.predict(X)).all()


def test_weights_of_classes_and_samples_are_those_of_the_loss(frame):
    rows, classes = frame
    heavy = np.where(classes == "leaves", 3.0, 1.0)
    keys = {"batch_size": 90, "rounds": 60, "clients": [2, 1]}
    by_class = TwoTierClassifier(SILOS, class_weight={"leaves": 3.0}, **keys).fit(rows, classes)
    by_sample = TwoTierClassifier(SILOS, **keys).fit(rows, classes, sample_weight=heavy)
    plain = TwoTierClassifier(SILOS, **keys).fit(rows, classes)
    np.testing.assert_allclose(by_class.predict_proba(rows), by_sample.predict_proba(rows), atol=1e-5)
    assert (by_class.predict_proba(rows)[:, 1] > plain.predict_proba(rows)[:, 1]).mean() > 0.95
    with pytest.raises(ValueError, match="amounts have no classes"):
        TwoTierRegressor(SILOS, class_weight="balanced").fit(rows, np.arange(90.0))


def test_counts_and_bins():
    draw = np.random.default_rng(3)
    X = draw.uniform(-2, 2, (400, 2))
    y = draw.poisson(np.exp(np.abs(X[:, 0])))
    fitted = TwoTierRegressor(2, loss="poisson", bins=8, rounds=150, step_size=0.05, patience=5, holdout=0.2).fit(X, y)
    edge, middle = fitted.predict([[-1.9, 0.0], [1.9, 0.0]]), fitted.predict([[0.0, 0.0]])
    assert (edge > 2.5 * middle).all()


def test_patience_ends_training_and_the_best_model_stays():
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:150, :6], y[:150]
    keys = {"step_size": 5.0, "holdout": 0.3, "rounds": 40, "batch_size": 16, "evaluate_every": 1}
    stopped = TwoTierClassifier(2, 1, patience=1, keep="best", **keys).fit(X, y)
    losses = [record.test_loss for record in stopped.history_]
    assert len(losses) < 41
    assert losses[-1] >= losses[-2] == min(losses)


def test_an_array_then_a_frame_counts_columns_by_their_places(frame):
    rows, classes = frame
    amounts = rows[["age", "paid"]]
    fitted = TwoTierClassifier(2, batch_size=32, rounds=5, step_size=0.1).fit(amounts.to_numpy(), classes)
    with pytest.warns(UserWarning, match="feature names"):
        found = fitted.predict_proba(amounts)
    np.testing.assert_array_equal(found, fitted.predict_proba(amounts.to_numpy()))


def test_an_ensemble_on_piecewise_columns_stops_early_and_keeps_its_best_model():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 4))
    y = np.sin(2 * X[:, 0]) + np.abs(X[:, 1]) + X[:, 2] * (X[:, 2] > 0) + rng.normal(0, 0.1, 400)
    estimator = TwoTierRegressor(2, 2, block="ensemble", hidden=(16,), members=3, rounds=600, patience=3, verbose=0)
    fitted = estimator.fit(X, y)
    assert fitted.converged_
    assert fitted.n_iter_ < 600
    assert all(line.test_loss is not None for line in fitted.history_)
    assert fitted.score(X, y) > 0.8
    plain = TwoTierRegressor(2, 2, block="mlp", rounds=1, step_size=0.1, verbose=0).fit(X, y)
    assert plain.history_[-1].test_loss is None


@pytest.mark.parametrize("name", ["breast", "diabetes"])
def test_default_settings_are_as_good_as_the_best_linear_model_on_the_joined_table(name):
    made, is_regression = (load_breast_cancer, False) if name == "breast" else (load_diabetes, True)
    X, y = made(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[: len(y) * 4 // 5], order[len(y) * 4 // 5 :]
    ours = (TwoTierRegressor if is_regression else TwoTierClassifier)(2, 3, verbose=0)
    joined = RidgeCV(np.logspace(-3, 3, 7)) if is_regression else LogisticRegression()
    reached = []
    for model in (ours, make_pipeline(StandardScaler(), joined)):
        model.fit(X[train], y[train])
        scores = model.predict(X[test]) if is_regression else model.predict_proba(X[test])[:, 1]
        reached.append((r2_score if is_regression else roc_auc_score)(y[test], scores))
    assert ours.converged_
    assert reached[0] > reached[1] - 0.002
