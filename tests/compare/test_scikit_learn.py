"""scikit-learn in a comparison: the same numbers as a direct fit, on the samples and features that TDCD has."""

import json

import numpy as np
import pytest
from sklearn import ensemble, linear_model
from sklearn.metrics import log_loss, mean_poisson_deviance, roc_auc_score
from threadpoolctl import threadpool_limits

from support.command import tdcd
from tdcd.compare import compare, network_of, num_runs, plan_all, scikit_learn
from tdcd.compare.scikit_learn import PENALTIES, JoinedSamples, fit, joined_plan
from tdcd.compare.tables import costs, joined, summary
from tdcd.config import ConfigError, check_config
from tdcd.pages.comparison import write_page

TRAIN = {"rounds": 2, "local_steps": 2, "batch_size": 32, "step_size": 0.05}
BREAST = {
    "data": {"source": "breast_cancer"},
    "federation": {"silos": 2, "clients": 2},
    "model": {"block": "linear", "l2": 0.02},
    "train": TRAIN,
    "network": {"step_ms": 1},
}
DIABETES = BREAST | {"data": {"source": "diabetes"}}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, threads that wait for each other take longer than one."""
    with threadpool_limits(limits=1):
        yield


@pytest.fixture
def short_grid(monkeypatch):
    monkeypatch.setattr(scikit_learn, "PENALTIES", (1e-3, 1e-2))


def plan_of(keys, name):
    return plan_all(check_config(keys), [name])[name][0]


def fitted(keys, name):
    plan = plan_of(keys, name)
    samples = JoinedSamples.of(plan)
    return fit(name, samples, plan), samples, plan


def test_logistic_regression_is_a_direct_fit_with_the_best_of_the_grid():
    found, samples, _ = fitted(BREAST, "logistic")
    l2 = float(found.setting.removeprefix("l2 = ").partition(" ")[0])
    assert l2 in {*PENALTIES, 0.02}
    direct = linear_model.LogisticRegression(C=1 / (l2 * len(samples.labels)), max_iter=10_000, tol=1e-8)
    direct.fit(samples.features, samples.labels)
    assert found.train_loss == pytest.approx(log_loss(samples.labels, direct.predict_proba(samples.features)), rel=1e-3)
    chances = direct.predict_proba(samples.test_features)[:, 1]
    assert found.test["auc"] == pytest.approx(roc_auc_score(samples.test_labels, chances), abs=1e-3)
    assert found.test["accuracy"] == pytest.approx(np.mean((chances > 0.5) == samples.test_labels), abs=0.01)


def test_the_table_is_all_prepared_columns_without_the_ones():
    plan = plan_of(BREAST, "logistic")
    samples = JoinedSamples.of(plan)
    first, second = (np.asarray(silo.features, np.float64) for silo in plan.federation.silos)
    assert plan.config.federation.bias
    assert samples.features.shape == (len(plan.federation.labels), 30)
    np.testing.assert_array_equal(samples.features, np.hstack([first[:, :-1], second]))
    assert samples.weights.mean() == pytest.approx(1)


def test_ridge_minimises_our_objective():
    """The closed form of the mean squared error / 2 plus l2 / 2 |w|^2 with a free intercept."""
    found, samples, _ = fitted(DIABETES, "ridge")
    l2 = float(found.setting.removeprefix("l2 = ").partition(" ")[0])
    x, y = samples.features - samples.features.mean(axis=0), samples.labels - samples.labels.mean()
    weights = np.linalg.solve(x.T @ x / len(y) + l2 * np.eye(x.shape[1]), x.T @ y / len(y))
    assert found.train_loss == pytest.approx(np.mean((y - x @ weights) ** 2) / 2, rel=1e-6)
    predicted = (samples.test_features - samples.features.mean(axis=0)) @ weights + samples.labels.mean()
    left_over = samples.test_labels - predicted
    assert found.test["rmse"] == pytest.approx(np.sqrt(np.mean(left_over**2)) * samples.unit, rel=1e-6)
    assert found == fitted(DIABETES, "linear")[0]._replace(seconds=found.seconds)


@pytest.mark.parametrize(("loss", "model"), [("poisson", "PoissonRegressor"), ("huber", "HuberRegressor")])
def test_the_linear_model_fits_the_loss(loss, model, short_grid):
    keys = DIABETES | {"model": {"block": "linear", "loss": loss}}
    found, samples, plan = fitted(keys, "linear")
    l2 = float(found.setting.removeprefix("l2 = ").partition(" ")[0])
    if loss == "poisson":
        direct = linear_model.PoissonRegressor(alpha=l2, max_iter=10_000, tol=1e-8).fit(
            samples.features, samples.labels
        )
        deviance = mean_poisson_deviance(samples.labels, direct.predict(samples.features))
        assert found.train_loss == pytest.approx(deviance / 2, rel=1e-4)
    else:
        # Better than the constant that is best for squares, and not better than the best there is.
        assert found.train_loss < plan.objective.kind.losses(np.zeros((len(samples.labels), 1)), samples.labels).mean()
    assert found.test["r2" if loss == "huber" else "d2"] > 0.3


def test_boosting_is_a_direct_fit_with_the_seed():
    found, samples, _ = fitted(BREAST, "boosting")
    direct = ensemble.HistGradientBoostingClassifier(random_state=0).fit(samples.features, samples.labels)
    chances = direct.predict_proba(samples.test_features)[:, 1]
    assert found.test["auc"] == pytest.approx(roc_auc_score(samples.test_labels, chances))
    assert found.train_loss == pytest.approx(log_loss(samples.labels, direct.predict_proba(samples.features)))
    assert found.setting == "default settings"


def test_several_classes_and_classes_that_training_lacks(short_grid):
    keys = BREAST | {"data": {"source": "digits", "rows": 300}, "model": {"block": "linear", "l2": 0.01}}
    plan = plan_of(keys, "logistic")
    samples = JoinedSamples.of(plan)
    assert fit("logistic", samples, plan).test["accuracy"] > 0.85
    rare = samples.labels != 9
    few = samples._replace(features=samples.features[rare], labels=samples.labels[rare], weights=samples.weights[rare])
    found = fit("logistic", few, plan)
    assert 0.7 < found.test["accuracy"] < 0.95


def test_sample_weights_count_as_repeated_rows(short_grid):
    _, samples, plan = fitted(BREAST, "logistic")
    twice = np.arange(len(samples.labels)) % 2 + 1.0
    rows = np.repeat(np.arange(len(samples.labels)), twice.astype(int))
    weighted = samples._replace(weights=twice / twice.mean())
    repeated = samples._replace(
        features=samples.features[rows], labels=samples.labels[rows], weights=np.ones(len(rows))
    )
    direct = [
        linear_model.LogisticRegression(C=1 / (0.01 * len(part.labels)), tol=1e-10, max_iter=10_000).fit(
            part.features, part.labels, sample_weight=part.weights
        )
        for part in (weighted, repeated)
    ]
    np.testing.assert_allclose(direct[0].coef_, direct[1].coef_, atol=1e-4)
    assert fit("logistic", weighted, plan).train_loss != fit("logistic", samples, plan).train_loss


@pytest.mark.parametrize(
    ("keys", "name", "words"),
    [
        (DIABETES, "logistic", "model.loss is 'squared', which logistic does not fit; use ridge or linear or boosting"),
        (BREAST, "ridge", "model.loss is 'logistic', which ridge does not fit; use logistic or linear or boosting"),
        (
            DIABETES | {"model": {"block": "linear", "loss": "poisson"}},
            "ridge",
            "model.loss is 'poisson', which ridge does not fit; use linear or boosting",
        ),
        (BREAST, "forest", "there is no such baseline; there are sgd"),
    ],
)
def test_what_does_not_fit_is_refused(keys, name, words):
    with pytest.raises(ConfigError, match=f"--with {name}: {words}"):
        plan_of(keys, name)


def test_boosted_trees_get_amounts_and_linear_models_bins(tmp_path):
    rows = np.random.default_rng(0).normal(size=(80, 2))
    for silo, column in enumerate(("a", "b")):
        label = (rows.sum(axis=1) > 0).astype(int)
        lines = [f"{i},{rows[i, silo]:.4f}" + (f",{label[i]}" if not silo else "") for i in range(80)]
        (tmp_path / f"{column}.csv").write_text("\n".join([f"id,{column}" + ",y" * (not silo), *lines]) + "\n")
    keys = {
        "data": {"source": "files"},
        "silos": [
            {"name": "one", "label": "y", "client": [{"name": "c1", "table": str(tmp_path / "a.csv")}]},
            {"name": "two", "client": [{"name": "c1", "table": str(tmp_path / "b.csv")}]},
        ],
        "model": {"block": "linear", "bins": 4},
        "train": TRAIN,
    }
    plan = plan_all(check_config(keys), [])["tdcd"][0]
    binned, amounts = (JoinedSamples.of(joined_plan(name, plan)) for name in ("linear", "boosting"))
    assert binned.features.shape[1] == 8
    assert amounts.features.shape[1] == 2
    np.testing.assert_array_equal(binned.labels, amounts.labels)
    np.testing.assert_array_equal(binned.test_labels, amounts.test_labels)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("scikit-learn")
    config = check_config(DIABETES)
    plans = plan_all(config, ["ridge,boosting"], seeds=2)
    return compare(plans, network_of(config.network), out, step_seconds=0.001), plans, out


def test_it_is_in_the_same_tables_and_page(done):
    comparison, plans, out = done
    head, rows = summary(comparison)
    assert [row[0] for row in rows] == ["tdcd", "ridge", "boosting"]
    assert [row[-1] for row in rows] == ["–", "all raw data in one place", "all raw data in one place"]
    ridge = comparison.joined[0]
    mean = np.mean([one.test["r2"] for one in ridge.fits])
    assert rows[1][head.index("held-out R²")].startswith(f"{mean:#.4g}")
    # 354 rows of 10 columns and a label, of 4 bytes each, as for the baseline sgd.
    assert costs(comparison).rows[1][2:4] == ["15.6 kB", "15.6 kB"]
    assert ridge.moved_bytes == 354 * 11 * 4
    assert joined(comparison).rows[1][1] == "Ridge"
    assert num_runs(plans, tune=True) == 2 + 4 + 2 + 2
    page = write_page(comparison, out).read_text()
    for words in ("scikit-learn on the joined table", "in one place", "Ridge regression of scikit-learn"):
        assert words in page
    numbers = json.loads((out / "compare.json").read_text())["scikit_learn"]
    assert [seed["final"]["held-out R²"] for seed in numbers["ridge"]["seeds"]] == [
        one.test["r2"] for one in ridge.fits
    ]


def test_a_finished_fit_is_read_and_one_of_other_data_is_not(done):
    comparison, plans, out = done
    kept = out / "ridge" / "scikit_learn.json"
    before = kept.read_text()
    again = compare(plans, comparison.network, out, step_seconds=0.001)
    assert again.joined == comparison.joined
    assert kept.read_text() == before
    kept.write_text(before.replace('"digest": "', '"digest": "0'))
    assert (
        compare(plans, comparison.network, out, step_seconds=0.001).joined[0].fits[0].test
        == again.joined[0].fits[0].test
    )
    assert json.loads(kept.read_text())["digest"] == json.loads(before)["digest"]
    kept.write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        compare(plans, comparison.network, out, step_seconds=0.001)
    kept.write_text(before)


def test_the_command_says_that_data_has_to_move(tmp_path):
    path = tmp_path / "diabetes.toml"
    path.write_text(
        '[data]\nsource = "diabetes"\n[model]\nblock = "linear"\n[train]\nrounds = 2\n[network]\nstep_ms = 1\n'
    )
    shown = tdcd("compare", path, "--with", "linear", "--out", tmp_path / "out", cwd=tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "scikit-learn needs all raw data in one place: only a trial has that." in shown.output
