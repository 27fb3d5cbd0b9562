"""scikit-learn on the joined table of a trial: what a user would pick if all data were in one place.

The models see the same prepared features as TDCD, train on the same samples and are judged on the same held-out ones by
the same metrics.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import sklearn
from numpy.typing import NDArray

from tdcd.blocks.linear import is_linear
from tdcd.compare.prediction import moving_seconds
from tdcd.compare.raw_data import to_one_place
from tdcd.config import ConfigError
from tdcd.config.resolve import Plan
from tdcd.core.execution import Interrupted
from tdcd.core.losses import LOSSES, Huber, Loss, metrics
from tdcd.core.losses.figures import Figures
from tdcd.core.network import Network
from tdcd.core.objective import Objective
from tdcd.records.files import digest_of, parse_json, write_durably
from tdcd.tables.preparation import preparation_of
from tdcd.training.sweep.runner import planned as plan_again

NEEDS = "all raw data in one place"
PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""The values of l2 among which cross-validation chooses, besides the configuration's own."""
FOLDS = 5
MOST_ITERATIONS = 5000
"""The limit of a linear model's solver."""
MOST_COLUMNS = 1000
"""With more, second-order steps cost too much."""
KEPT = "scikit_learn.json"
"""The file of a finished fit, in a folder of the entry's name."""
Matrix = NDArray[np.float64]


class Kind(NamedTuple):
    """An entry of scikit-learn."""

    words: str
    losses: Mapping[str, str]
    """The estimator for each loss that it fits."""


_CLASSES = {"logistic": "LogisticRegression", "softmax": "LogisticRegression"}
_AMOUNTS = {"squared": "Ridge", "poisson": "PoissonRegressor", "huber": "HuberRegressor"}
_CHOSEN = "with the l2 that has the lowest loss in 5-fold cross-validation on the training samples"
MODELS: Mapping[str, Kind] = {
    "logistic": Kind(f"Logistic regression of scikit-learn on the joined table, {_CHOSEN}.", _CLASSES),
    "ridge": Kind(f"Ridge regression of scikit-learn on the joined table, {_CHOSEN}.", {"squared": "Ridge"}),
    "linear": Kind(
        f"The linear model of scikit-learn that fits the loss, on the joined table, {_CHOSEN}.", _CLASSES | _AMOUNTS
    ),
    "boosting": Kind(
        "Boosted trees of scikit-learn (histogram gradient boosting, default settings) on the joined table; amounts "
        "are not in bins for it.",
        {
            **dict.fromkeys(_CLASSES, "HistGradientBoostingClassifier"),
            **dict.fromkeys(_AMOUNTS, "HistGradientBoostingRegressor"),
        },
    ),
}
"""By the name that ``--with`` takes."""


class Fit(NamedTuple):
    """One fitted model."""

    setting: str
    """What cross-validation chose, and what went wrong with it if something did."""
    seconds: float
    """For choosing and fitting, on this machine."""
    train_loss: float
    """The mean loss of the training samples, without a penalty."""
    test: Figures
    """The held-out metrics by name; empty if no samples are held out."""


@dataclass(frozen=True)
class JoinedModel:
    """A scikit-learn entry of a comparison."""

    label: str
    estimator: str
    fits: tuple[Fit, ...]
    """One per seed."""
    moved_bytes: int
    """The raw data that goes to one place first."""
    moving: float
    """The seconds that this takes on the network."""

    @property
    def seconds(self) -> float:
        """Moving the data and fitting, as a mean over the seeds."""
        return self.moving + sum(fit.seconds for fit in self.fits) / len(self.fits)


def joined_plan(name: str, plan: Plan) -> Plan:
    """TDCD's plan with the data that an entry trains on; what does not fit the loss is refused.

    Boosted trees cut amounts into bins of their own, so they get the amounts where ``model.encoding`` cuts them.
    """
    kind, loss = MODELS[name], plan.objective.kind
    if loss.name not in kind.losses or loss.name not in LOSSES:
        fitting = [other for other, kind in MODELS.items() if loss.name in kind.losses]
        instead = f"use {' or '.join(fitting)}" if fitting else "scikit-learn has no model for it"
        raise ConfigError([f"--with {name}: model.loss is {loss.name!r}, which {name} does not fit; {instead}"])
    if loss.target != "amount" and len(np.unique(plan.federation.labels)) < 2:
        raise ConfigError([f"--with {name}: every training label is of one class, and scikit-learn needs two"])
    if name != "boosting" or plan.config.model.num_bins is None:
        return plan
    model = plan.config.model.model_copy(update={"bins": None, "encoding": "standard"})
    return plan_again(plan.config.model_copy(update={"model": model}), plan.execution.devices)


def fit_all(
    name: str,
    plans: Sequence[Plan],
    out: Path,
    network: Network,
    *,
    observe: Callable[[int], None] = lambda done: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> JoinedModel:
    """Fit an entry with every seed; a fit of the same data that is under ``out`` is read instead.

    Args:
        plans: of :func:`joined_plan`, one per seed.
        observe: is given how many seeds are done.
    """
    fits = []
    for number, plan in enumerate(plans):
        observe(number)
        where = out if number == 0 else out / f"seed-{plan.config.seed}"
        fits.append(_fit_once(name, plan, where / name, should_stop))
    moved = to_one_place(plans[0])
    moving = sum(moving_seconds(some, network) for some in moved)
    total = sum(sum(some.bytes) for some in moved)
    return JoinedModel(name, MODELS[name].losses[plans[0].objective.kind.name], tuple(fits), total, moving)


def _fit_once(name: str, plan: Plan, folder: Path, should_stop: Callable[[], bool]) -> Fit:
    samples, path = JoinedSamples.of(plan), folder / KEPT
    digest = digest_of(
        [name, sklearn.__version__, plan.config.seed, plan.objective.l2, repr(plan.objective.kind), samples.unit],
        {key: value for key, value in samples._asdict().items() if isinstance(value, np.ndarray)},
    )
    if path.exists():
        try:
            known = parse_json(path.read_bytes())
            if known.pop("digest") == digest:
                return Fit(**known)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and the model is fitted again") from None
    fitted = fit(name, samples, plan, should_stop)
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(path, (json.dumps({"digest": digest, **fitted._asdict()}, indent=1) + "\n").encode())
    return fitted


class JoinedSamples(NamedTuple):
    """The joined table."""

    features: Matrix
    """``[M, D]``: the prepared columns of all silos, without a column of ones."""
    labels: NDArray[Any]
    weights: Matrix
    """``[M]``, with mean 1."""
    test_features: Matrix | None
    test_labels: NDArray[Any] | None
    unit: float

    @classmethod
    def of(cls, plan: Plan) -> "JoinedSamples":
        """Those of a plan, all silos' columns side by side."""
        federation = plan.federation
        num_ones = [math.prod(silo.feature_shape) - len(preparation_of(silo).columns) for silo in federation.silos]

        def joined(parts: Sequence[Any]) -> Matrix:
            wide = [np.asarray(part, np.float64).reshape(len(part), -1) for part in parts]
            # What the weights of a linear block are multiplied by, where it has stand-ins.
            wide = [
                np.asarray(block.design(cast("Any", part))) if is_linear(block) else part
                for block, part in zip(plan.blocks, wide, strict=True)
            ]
            return np.hstack([part[:, : part.shape[1] - ones] for part, ones in zip(wide, num_ones, strict=True)])

        given = federation.weights
        weights = np.ones(federation.num_samples) if given is None else np.asarray(given, np.float64)
        held_out = [silo.test_features for silo in federation.silos]
        return cls(
            joined([silo.features for silo in federation.silos]),
            np.asarray(federation.labels),
            weights / weights.mean(),
            None if federation.test_labels is None else joined(held_out),
            None if federation.test_labels is None else np.asarray(federation.test_labels),
            float(federation.label_scale),
        )


def fit(name: str, samples: JoinedSamples, plan: Plan, should_stop: Callable[[], bool] = lambda: False) -> Fit:
    """Choose, fit and judge one model."""
    # Importing them takes a second, which other commands need not wait, and which is not the model's.
    from sklearn import ensemble, linear_model, model_selection  # noqa: PLC0415, F401

    loss, seed = plan.objective.kind, plan.config.seed
    outputs = plan.objective.num_outputs([samples.labels, samples.test_labels])
    kind, began = MODELS[name].losses[loss.name], time.perf_counter()
    features, labels, weights, *_ = samples

    def trained(rows: Any, l2: float) -> tuple[Any, bool]:
        model = _estimator(kind, loss, l2, features[rows].shape, seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(features[rows], labels[rows], sample_weight=weights[rows])
        return model, not any("converge" in str(warning.message).lower() for warning in caught)

    setting, l2 = "default settings", 0.0
    if name != "boosting":
        l2, candidates = _chosen(samples, plan, trained, should_stop)
        ends = {candidates[0]: " (smallest tried)", candidates[-1]: " (largest tried)"}
        setting = f"l2 = {l2:g}{ends.get(l2, '')}"
    model, has_converged = trained(slice(None), l2)
    seconds = time.perf_counter() - began
    setting += "" if has_converged else f"; its solver did not converge in {MOST_ITERATIONS} iterations"
    mean = np.average(_losses(plan, _scores(model, loss, features, outputs), labels), weights=weights)
    test: Figures = {}
    if samples.test_features is not None and samples.test_labels is not None:
        scores = _scores(model, loss, samples.test_features, outputs)
        test = metrics(loss, scores, samples.test_labels, samples.unit, plan.objective.label_epsilon)
    return Fit(setting, seconds, float(mean), test)


def _chosen(
    samples: JoinedSamples,
    plan: Plan,
    trained: Callable[[Any, float], tuple[Any, bool]],
    should_stop: Callable[[], bool],
) -> tuple[float, list[float]]:
    """The l2 with the lowest cross-validated loss, and all that were tried."""
    loss, own = plan.objective.kind, plan.objective.l2
    outputs = plan.objective.num_outputs([samples.labels, samples.test_labels])
    candidates = sorted({*PENALTIES, *([own] if own > 0 else [])})
    totals = dict.fromkeys(candidates, 0.0)
    for train, test in _folds(samples.labels, loss, plan.config.seed):
        if loss.target != "amount" and len(np.unique(samples.labels[train])) < 2:
            continue
        for l2 in candidates:
            if should_stop():
                raise Interrupted
            model, _ = trained(train, l2)
            scores = _scores(model, loss, samples.features[test], outputs)
            totals[l2] += float(samples.weights[test] @ _losses(plan, scores, samples.labels[test]))
    return min(candidates, key=lambda l2: (totals[l2], l2)), candidates


def _folds(labels: NDArray[Any], loss: Loss, seed: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    from sklearn.model_selection import KFold, StratifiedKFold  # noqa: PLC0415 - see fit

    smallest = min(np.unique(labels, return_counts=True)[1]) if loss.target != "amount" else 0
    kind = StratifiedKFold if smallest >= FOLDS else KFold
    folds = kind(min(FOLDS, len(labels)), shuffle=True, random_state=seed)
    splits: Iterator[tuple[NDArray[Any], NDArray[Any]]] = folds.split(np.empty((len(labels), 0)), labels)
    return splits


def _estimator(kind: str, loss: Loss, l2: float, shape: tuple[int, int], seed: int) -> Any:
    """The estimator whose objective is ours: the mean loss plus l2 / 2 times the squared weights.

    The intercept is not penalised. HuberRegressor also estimates the errors' scale, so its l2 is ours only roughly.
    """
    from sklearn import ensemble, linear_model  # noqa: PLC0415 - see fit

    rows, columns = shape
    if kind == "LogisticRegression":
        # Second-order steps where they are cheap: columns may be correlated, and l2 may be small.
        solver = "newton-cholesky" if loss.target == "binary" and columns <= MOST_COLUMNS else "lbfgs"
        options = {"max_iter": MOST_ITERATIONS, "tol": 1e-5, "solver": solver}
        return linear_model.LogisticRegression(C=1 / (l2 * rows), **options)
    if kind == "Ridge":
        return linear_model.Ridge(alpha=l2 * rows)
    if kind == "PoissonRegressor":
        return linear_model.PoissonRegressor(alpha=l2, max_iter=MOST_ITERATIONS, tol=1e-6, solver="newton-cholesky")
    if isinstance(loss, Huber) and kind == "HuberRegressor":
        return linear_model.HuberRegressor(epsilon=max(1.0, loss.delta), alpha=l2 * rows / 2, max_iter=MOST_ITERATIONS)
    if kind == "HistGradientBoostingRegressor":
        # It has no Huber loss.
        named = "poisson" if loss.name == "poisson" else "squared_error"
        return ensemble.HistGradientBoostingRegressor(loss=named, random_state=seed)
    return ensemble.HistGradientBoostingClassifier(random_state=seed)


def _scores(model: Any, loss: Loss, features: Matrix, outputs: int) -> Matrix:
    """``[n, C]``: what our loss calls scores."""
    if loss.target == "amount":
        predicted = np.asarray(model.predict(features), np.float64)[:, None]
        # A mean that rounds to 0 has no logarithm.
        return np.log(np.maximum(predicted, np.finfo(np.float64).tiny)) if loss.name == "poisson" else predicted
    raw = np.asarray(model.decision_function(features), np.float64)
    if loss.target == "binary":
        return raw[:, None]
    if raw.ndim == 1:
        raw = np.stack([np.zeros_like(raw), raw], axis=1)
    # A class that no training row has gets a row's lowest score.
    scores = np.repeat(raw.min(axis=1, keepdims=True), outputs, axis=1)
    scores[:, model.classes_.astype(int)] = raw
    return scores


def _losses(plan: Plan, scores: Any, labels: NDArray[Any]) -> Matrix:
    """The loss of every sample; of randomised labels an estimate of the true ones', as TDCD's is."""
    objective = Objective(plan.objective.loss, label_epsilon=plan.objective.label_epsilon)
    numbers: Any = labels.astype(np.int64 if objective.kind.target == "classes" else np.float64)
    return np.asarray(objective.losses(scores, numbers), np.float64)
