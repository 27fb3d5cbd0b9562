"""``TwoTierClassifier`` and ``TwoTierRegressor``: a federation behind scikit-learn's interface.

The columns of ``X`` are dealt to silos and its rows to their clients; the model is trained by TDCD as ``tdcd run`` does
it, and predicts from raw rows. Parameters have the names and meanings of the configuration's keys.

``fit`` gives scikit-learn's ConvergenceWarning if the training loss ends above where it began, or far above its lowest.
Ctrl-C raises KeyboardInterrupt, as in every estimator; what was trained until then stays, and predicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, column_or_1d, validate_data

from tdcd.config.resolve import plan
from tdcd.core.choices import PYTHON
from tdcd.core.losses import LOSSES
from tdcd.core.losses.huber import DELTA
from tdcd.core.words import counted, there_are
from tdcd.federation.partition import contiguous_columns
from tdcd.prediction.model import Model
from tdcd.records.history import Record
from tdcd.tables.from_frames import assemble_frames, frames_config
from tdcd.tables.rows import PLACE
from tdcd.tables.source import arrow_of
from tdcd.training.result import Result
from tdcd.training.train import train_plan, warn_of_divergence

LABEL, WEIGHT = " label", " weight"
"""The columns of the first silo's table that take y and the samples' weights; no column of X is called so."""

SECTIONS: Mapping[str, Sequence[str]] = {
    "data": ("standardize", "rare"),
    "federation": ("rows", "alpha"),
    "model": ("block", "hidden", "bins", "huber_delta", "l2"),
    "train": (
        "rounds",
        "local_steps",
        "step_size",
        "minibatches",
        "gradient",
        "optimizer",
        "schedule",
        "clip",
        "momentum",
        "hub_optimizer",
        "hub_step_size",
        "overlap",
        "participation",
        "silo_dropout",
        "engine",
    ),
    "exchange": ("phi_bits", "block_bits"),
    "evaluate": ("holdout", "patience", "keep"),
}
"""The parameters that are keys of the same name."""


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
        self._columns = _columns_by_silo(self.silos, self._names)
        num_samples = len(labels) - _held_out(self.holdout, len(labels))
        weighted = weights is not None
        keys = _keys(self.get_params(deep=False), [*self._columns], num_samples, loss, weighted=weighted)
        tables = self._by_silo(table)
        first = next(iter(tables))
        tables[first] = tables[first].append_column(LABEL, pa.array(labels))
        if weighted:
            tables[first] = tables[first].append_column(WEIGHT, pa.array(_check_sample_weight(weights, labels)))
        if self.class_weight is not None:
            keys["train"]["class_weights"] = self._class_weights()
        result = _train(keys, tables, classes, None if self.out is None else Path(self.out))
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


def _train(
    keys: Mapping[str, Any], tables: Mapping[str, pa.Table], classes: tuple[str, ...], out: Path | None
) -> Result:
    """Train on one table per silo, with the settings of a configuration.

    Args:
        classes: the names of the classes that the labels number; empty where they are amounts.
    """
    config = frames_config(keys)
    planned = plan(config, assemble_frames(config, tables, bias=config.has_bias))
    described = planned.description
    described["data"]["source"] = PYTHON
    federation = replace(planned.federation, classes=classes)
    return train_plan(planned._replace(federation=federation, handed_over=described), out)


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


def _columns_by_silo(
    silos: int | Mapping[str, Sequence[str] | Sequence[int]], names: Sequence[str]
) -> dict[str, list[str]]:
    """The names of every silo's columns.

    Args:
        silos: how many, which take the columns in turn, as many of them as there are columns; or the columns of each
            by name or by place.
        names: of all columns.

    >>> _columns_by_silo(2, ["a", "b", "c"])
    {'silo1': ['a', 'b'], 'silo2': ['c']}
    >>> _columns_by_silo({"bank": [0, 2], "shop": ["b"]}, ["a", "b", "c"])
    {'bank': ['a', 'c'], 'shop': ['b']}
    """
    if not isinstance(silos, Mapping | int | np.integer):
        raise ValueError(f"silos = {silos!r}: give a number, or the columns of each silo by name")
    if not isinstance(silos, Mapping):
        if silos < 1:
            raise ValueError(f"silos = {silos}: there must be at least one")
        parts = contiguous_columns(len(names), min(silos, len(names)))
        return {f"silo{place + 1}": [names[index] for index in part] for place, part in enumerate(parts)}
    chosen: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    for silo, given in silos.items():
        columns = [given] if isinstance(given, str) else given
        if not isinstance(columns, Sequence | np.ndarray):
            raise ValueError(f"silos: '{silo}' has {given!r}, not a list of columns")
        chosen[silo] = []
        for one in columns:
            if isinstance(one, str) and one not in names:
                raise ValueError(f"silos: '{silo}' has the column '{one}', which X has not; it has {', '.join(names)}")
            if not isinstance(one, str) and not 0 <= one < len(names):
                raise ValueError(
                    f"silos: '{silo}' has the column number {one}, and X has {counted(len(names), 'column')}"
                )
            name = one if isinstance(one, str) else names[one]
            if name in taken:
                raise ValueError(f"silos: column '{name}' is given to '{taken[name]}' and to '{silo}'")
            taken[name] = silo
            chosen[silo].append(name)
        if not chosen[silo]:
            raise ValueError(f"silos: '{silo}' has no columns")
    if not chosen:
        raise ValueError("silos: there must be at least one")
    return chosen


def _keys(
    parameters: Mapping[str, Any], silos: Sequence[str], num_samples: int, loss: str, *, weighted: bool
) -> dict[str, Any]:
    """The sections of a configuration that say the same as an estimator's parameters.

    Args:
        silos: their names.
        num_samples: of training.
        weighted: whether the first silo's table has weights.
    """
    clients = parameters["clients"]
    counts = [clients] * len(silos) if isinstance(clients, int | np.integer) else [*clients]
    if len(counts) != len(silos):
        raise ValueError(f"clients = {counts}: {there_are(len(silos), 'silo')}; give a number, or one each")
    first = {"label": LABEL, **({"weight": WEIGHT} if weighted else {})}
    keys: dict[str, Any] = {
        section: {name: _plain(parameters[name]) for name in names} for section, names in SECTIONS.items()
    }
    keys["model"]["loss"] = loss
    size = _plain(parameters["batch_size"])
    # What is no number is left to the checks of the configuration.
    keys["train"]["batch_size"] = min(size, num_samples) if isinstance(size, int) else size
    keys["evaluate"]["every"] = _plain(parameters["evaluate_every"])
    return {
        **keys,
        "seed": _seed(parameters["random_state"]),
        "dtype": parameters["dtype"],
        "silos": [
            {"name": silo, "clients": int(count), "id": PLACE, **({} if place else first)}
            for place, (silo, count) in enumerate(zip(silos, counts, strict=True))
        ],
    }


def _held_out(holdout: Any, num_samples: int) -> int:
    """How many samples are; what is no number is left to the checks of the configuration."""
    return round(holdout * num_samples) if isinstance(holdout, int | float | np.number) else 0


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """A number of NumPy, as a grid search has it, as Python's own; a sequence as a list."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(one) for one in value]
    return value
