"""``TwoTierClassifier`` and ``TwoTierRegressor``: a federation behind scikit-learn's interface.

The columns of ``X`` are dealt to silos and its rows to their clients; the model is trained by TDCD as ``tdcd run`` does
it, and predicts from raw rows. Parameters have the names and meanings of the configuration's keys.

``fit`` gives scikit-learn's ConvergenceWarning if the training loss ends above where it began, or far above its lowest.
Ctrl-C raises KeyboardInterrupt, as in every estimator; what was trained until then stays, and predicts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, column_or_1d, validate_data

from tdcd.core.losses import LOSSES
from tdcd.core.losses.huber import DELTA
from tdcd.core.words import counted
from tdcd.estimators.columns import columns_by_silo
from tdcd.estimators.settings import LABEL, WEIGHT, held_out, settings_of
from tdcd.prediction.model import Model
from tdcd.records.history import Record
from tdcd.tables.source import arrow_of
from tdcd.training.frames import train_frames
from tdcd.training.train import warn_of_divergence


class _TwoTier(BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

    def __init__(
        self,
        silos: int | Mapping[str, Sequence[str] | Sequence[int]] = 2,
        clients: int | Sequence[int] = 1,
        *,
        block: str | Sequence[str] = "linear",
        hidden: Sequence[int] = (32,),
        bins: int | None = None,
        loss: str | None = None,
        huber_delta: float = DELTA,
        l2: float = 0.0,
        rounds: int = 100,
        local_steps: int = 5,
        batch_size: int = 128,
        step_size: float = 0.1,
        minibatches: str = "fresh",
        gradient: str = "unbiased",
        optimizer: str = "sgd",
        schedule: str = "constant",
        clip: float | None = None,
        hub_optimizer: str = "average",
        hub_step_size: float = 1.0,
        momentum: float = 0.9,
        overlap: int = 0,
        participation: float = 1.0,
        silo_dropout: float = 0.0,
        phi_bits: int = 32,
        block_bits: int = 32,
        rows: str = "shuffled",
        alpha: float = 1.0,
        standardize: bool = True,
        rare: int = 1,
        holdout: float = 0.0,
        evaluate_every: int = 10,
        patience: int | None = None,
        keep: str = "last",
        class_weight: str | Mapping[Any, float] | None = None,
        dtype: str = "float32",
        engine: str = "auto",
        random_state: Any = 0,
        out: str | Path | None = None,
    ) -> None:
        """Keep the parameters as they are, for ``clone`` and ``get_params``; :meth:`fit` checks them."""
        self.silos, self.clients = silos, clients
        self.block, self.hidden, self.bins = block, hidden, bins
        self.loss, self.huber_delta, self.l2 = loss, huber_delta, l2
        self.rounds, self.local_steps, self.batch_size, self.step_size = rounds, local_steps, batch_size, step_size
        self.minibatches, self.gradient = minibatches, gradient
        self.optimizer, self.schedule, self.clip, self.momentum = optimizer, schedule, clip, momentum
        self.hub_optimizer, self.hub_step_size = hub_optimizer, hub_step_size
        self.overlap, self.participation, self.silo_dropout = overlap, participation, silo_dropout
        self.phi_bits, self.block_bits = phi_bits, block_bits
        self.rows, self.alpha, self.class_weight = rows, alpha, class_weight
        self.standardize, self.rare = standardize, rare
        self.holdout, self.evaluate_every, self.patience, self.keep = holdout, evaluate_every, patience, keep
        self.dtype, self.engine, self.random_state, self.out = dtype, engine, random_state, out

    model_: Model
    history_: list[Record]
    n_features_in_: int

    def _fit(
        self,
        X: Any,  # noqa: N803
        labels: NDArray[np.float64],
        weights: Any,
        loss: str,
        classes: tuple[str, ...],
    ) -> Self:
        """Train on checked rows; ``labels`` are amounts, or numbers of ``classes``."""
        table = _table(X, getattr(self, "feature_names_in_", None))
        self._names = table.column_names
        self._columns = columns_by_silo(self.silos, self._names)
        num_samples = len(labels) - held_out(self.holdout, len(labels))
        weighted = weights is not None
        keys = settings_of(self.get_params(deep=False), [*self._columns], num_samples, loss, weighted=weighted)
        tables = self._by_silo(table)
        first = next(iter(tables))
        tables[first] = tables[first].append_column(LABEL, pa.array(labels))
        if weighted:
            tables[first] = tables[first].append_column(WEIGHT, pa.array(_check_sample_weight(weights, labels)))
        if self.class_weight is not None:
            keys["train"]["class_weights"] = self._class_weights()
        result = train_frames(keys, tables, classes, out=self.out)
        if result.history[-1].diverged:
            raise ValueError(f"training diverged with step_size = {self.step_size}: lower it")
        self.model_, self.history_ = result.model, result.history
        if result.status == "diverged":
            warn_of_divergence(result, stacklevel=4)
        if result.status == "interrupted":
            # A search over parameters, or a loop, is to end as well.
            raise KeyboardInterrupt
        return self

    def _class_weights(self) -> str | dict[str, float]:
        """By the number of the class, as labels are here; only a classifier has them."""
        raise ValueError(f"class_weight = {self.class_weight!r}: amounts have no classes; leave it out")

    def _by_silo(self, table: pa.Table) -> dict[str, pa.Table]:
        return {silo: table.select([*names]) for silo, names in self._columns.items()}

    def _new(self, X: Any) -> dict[str, pa.Table]:  # noqa: N803
        """New rows by silo."""
        check_is_fitted(self)
        checked = _checked(self, X, reset=False)
        table = _table(checked, getattr(self, "feature_names_in_", None))
        if not hasattr(self, "feature_names_in_"):
            # Fitted on columns without names: those of a frame count by their places.
            table = table.rename_columns(self._names)
        return self._by_silo(table)

    def __sklearn_tags__(self) -> Any:
        """Blanks, and texts in frames, are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class TwoTierClassifier(ClassifierMixin, _TwoTier):  # type: ignore[misc]
    """A classifier that is trained over data split both ways, see :mod:`tdcd.estimators`.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> TwoTierClassifier(silos=3, clients=[4, 2, 3], rounds=20).fit(X, y).score(X, y) > 0.95
    True
    """

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on rows ``X`` (an array, or a frame of pandas, Polars or Arrow) and their classes ``y``."""
        X, y = _checked(self, X, y)  # noqa: N806
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"every label is of one class, {self.classes_[0]!r}: there is nothing to learn")
        loss = self.loss or ("logistic" if len(self.classes_) == 2 else "softmax")
        _check_target(loss, ("binary", "classes"), "a classifier")
        names = tuple(str(name) for name in self.classes_.tolist())
        return self._fit(X, codes.astype(np.float64), sample_weight, loss, names)

    def _class_weights(self) -> str | dict[str, float]:
        if isinstance(self.class_weight, str):
            return self.class_weight
        numbers = {name: str(number) for number, name in enumerate(self.classes_.tolist())}
        unknown = [name for name in self.class_weight or {} if name not in numbers]
        if unknown:
            raise ValueError(
                f"class_weight: there is no class {unknown[0]!r}; there are {', '.join(map(str, numbers))}"
            )
        return {numbers[name]: float(weight) for name, weight in (self.class_weight or {}).items()}

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most likely class of each row."""
        likely = self.predict_proba(X).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[likely]
        return chosen

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """``[rows, classes]``: the probability of every class, in the order of ``classes_``."""
        tables = self._new(X)
        return self.model_.predict_proba(tables)

    def decision_function(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The scores: of the second of two classes, or ``[rows, classes]``."""
        tables = self._new(X)
        scores = self.model_.scores(tables).astype(np.float64)
        if scores.shape[1] == 1:
            return scores[:, 0]
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores


class TwoTierRegressor(RegressorMixin, _TwoTier):  # type: ignore[misc]
    """A regressor that is trained over data split both ways, see :mod:`tdcd.estimators`.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> TwoTierRegressor(silos=2, clients=3).fit(X, y).score(X, y) > 0.5
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on rows ``X`` (an array, or a frame of pandas, Polars or Arrow) and their amounts ``y``."""
        X, y = _checked(self, X, y, y_numeric=True)  # noqa: N806
        loss = self.loss or "squared"
        _check_target(loss, ("amount",), "a regressor")
        return self._fit(X, np.asarray(y, np.float64), sample_weight, loss, ())

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The expected amount of each row."""
        tables = self._new(X)
        return self.model_.predict(tables)


def _check_target(loss: str, targets: Sequence[str], kind: str) -> None:
    """Refuse a loss that predicts something else; one that does not exist is refused with the other settings."""
    fitting = [name for name, one in LOSSES.items() if one.target in targets]
    if loss in LOSSES and loss not in fitting:
        raise ValueError(f"loss = {loss!r}: {kind} takes {' or '.join(map(repr, fitting))}")


def _is_frame(X: Any) -> bool:  # noqa: N803
    return hasattr(X, "columns") or hasattr(X, "__arrow_c_stream__") or isinstance(X, pa.Table)


def _checked(
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any = "no_validation",
    *,
    reset: bool = True,
    y_numeric: bool = False,
) -> Any:
    """What scikit-learn asks of X and y. Frames keep their columns' types."""
    if not _is_frame(X):
        numeric = {"y_numeric": True} if y_numeric else {}
        return validate_data(estimator, X, y, reset=reset, ensure_all_finite="allow-nan", **numeric)
    validate_data(estimator, X, y, reset=reset, skip_check_array=True)
    if isinstance(y, str):
        return X
    y = column_or_1d(check_array(y, ensure_2d=False, dtype=None) if y_numeric else y, warn=True)
    if len(y) != len(X):
        raise ValueError(f"X has {counted(len(X), 'row')}, and y has {counted(len(y), 'label')}")
    return X, y


def _table(X: Any, names: Any) -> pa.Table:  # noqa: N803
    count = 0 if _is_frame(X) else np.shape(X)[1]
    columns = [*map(str, names)] if names is not None else [f"x{place}" for place in range(count)]
    return arrow_of(X, "X", columns)
