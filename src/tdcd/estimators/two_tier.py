"""``TwoTierClassifier`` and ``TwoTierRegressor``: a federation behind scikit-learn's interface.

The silos' tables are frames of their own, or parts of one table ``X`` whose columns are dealt to silos. Rows are dealt
to the silos' clients. The model is trained by TDCD as ``tdcd run`` does it, and predicts from raw rows. Parameters have
the names and meanings of the configuration's keys.

``fit`` gives scikit-learn's ConvergenceWarning if the training loss ends above where it began, or far above its lowest.
Ctrl-C ends ``fit`` after the current rounds with the model so far, and a ConvergenceWarning says so. A second Ctrl-C
raises KeyboardInterrupt.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeGuard, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, column_or_1d, validate_data

from tdcd.blocks import Linear
from tdcd.blocks.absent import without_stand_ins
from tdcd.config.resolve import Plan, plan
from tdcd.config.schema import LONG, stops_early
from tdcd.core.choices import PYTHON
from tdcd.core.losses import LOSSES
from tdcd.core.losses.huber import DELTA
from tdcd.core.settings import AUTO
from tdcd.core.words import counted, there_are
from tdcd.federation.missing_rows import presence_of, test_presence_of
from tdcd.federation.partition import contiguous_columns
from tdcd.federation.silos import Federation
from tdcd.prediction.model import Model
from tdcd.records.history import Record
from tdcd.tables.errors import caution
from tdcd.tables.from_frames import assemble_frames, frames_config, losses_in_words, silo_sections
from tdcd.tables.labels import canonical_label
from tdcd.tables.preparation import preparation_of
from tdcd.tables.reader import read_rows
from tdcd.tables.rows import PLACE, Columns
from tdcd.tables.source import Frame, arrow_of
from tdcd.training.choice import TIME_LIMIT, Choice, choose
from tdcd.training.display import progress_shown, say
from tdcd.training.train import Observer, Result, train_plan, warn

LABEL, WEIGHT = " label", " weight"
"""The columns of a silo's table that take y and the samples' weights; no column of X is called so."""

SECTIONS: Mapping[str, Sequence[str]] = {
    "data": ("standardize", "rare", "samples", "standin"),
    "federation": ("rows", "alpha", "labels"),
    "model": ("block", "hidden", "members", "dropout", "head", "encoding", "bins", "huber_delta", "l2"),
    "train": (
        "rounds",
        "local_steps",
        "step_size",
        "tol",
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


ROUNDS = 300
"""The most rounds, unless given otherwise or for ensembles that stop early."""
ENSEMBLE_HOLDOUT = 0.15
"""The part that is held out for early stopping of ensembles and for model="auto", by default."""

Estimator = TypeVar("Estimator", bound=type)

PARAMETERS = """Parameters
----------
silos : int, dict or None, default=None
    How the columns of one table are dealt to silos: how many silos take them in turn, or the columns of each silo by
    name or place, ``{"bank": ["age", "income"], "bureau": ["late"]}``. None is 2. With frames by silo, leave it out.
clients : int or list of int, default=1
    How many clients each silo has, to which its rows are dealt.
labels : str or None, default=None
    The only silo whose clients have labels; None if the clients of all silos have them.
samples : {"common", "all"}, default="common"
    With frames by silo and ids: "common" trains on the samples that all frames have, "all" on every sample with a
    label. Predictions then take ids that some frames lack, and do without frames that are not given.
standin : {"function", "constant", "none"}, default="function"
    With ``samples="all"``, what replaces a silo that lacks a sample: a small function of another silo's columns, a
    number, or nothing.
model : {"auto"} or None, default=None
    "auto" chooses ``block``, ``encoding`` and ``head``: a linear model, bins, an ensemble on piecewise columns and the
    same with a head are trained and compared on the held-out samples. ``choice_`` says which it is and by what margin.
time_limit : float, default=300.0
    Seconds for the comparison of ``model="auto"``. What the limit cuts is chosen if it is clearly ahead by then, and is
    not compared otherwise. The chosen model is trained to its end.
block : {"linear", "mlp", "ensemble"} or list, default="linear"
    The model of each silo: one for all, or one each. An ensemble of networks that share their weights is the strongest;
    its columns are piecewise by default.
hidden : list of int or "auto", default="auto"
    Widths of the hidden layers of an mlp or an ensemble: one of 32, and for an ensemble two of 128.
members : int, default=16
    Networks of an ensemble.
dropout : float, default=0.1
    The probability with which a unit of an ensemble is left out of a local step.
head : {"sum", "hidden", "pairs"}, default="sum"
    How the sum of the silos' phi becomes scores: as it is, by a hidden layer, or by products of every two silos'
    numbers, which sees columns of two silos together.
encoding : {"auto", "standard", "bins", "piecewise"}, default="auto"
    What an amount becomes: one standardised feature; a 0/1 feature per bin; or its position within each bin, which
    suits networks. "auto" is "piecewise" with an ensemble, else "bins" where ``bins`` is given, and else "standard".
bins : int or None, default=None
    How many bins an amount has at most, of about equally many training rows each; 48 by default where ``encoding`` asks
    for bins.
loss : str or None, default=None
    What is minimised. None is ``"logistic"`` for two classes, ``"softmax"`` for more and ``"squared"`` for amounts;
    ``"poisson"`` is for counts, ``"huber"`` for amounts with outliers.
huber_delta : float, default=1.35
    Where the Huber loss becomes linear, in standard deviations of the labels if they are standardised.
l2 : float or "auto", default="auto"
    Regularisation: the loss has this over 2 times the squared norm of all parameters in it. "auto" is 1 over the number
    of training samples for linear blocks with ``step_size="auto"``, a tenth of that for amounts, and else 0.
rounds : int or "auto", default="auto"
    Communication rounds; with ``step_size="auto"`` the most there are. "auto" is 300, and 1500 for ensembles that stop
    early.
step_size : float or "auto", default="auto"
    The learning rate of a client's local steps. "auto" chooses the steps by the blocks and the silos' curvature, steers
    them by the training loss, and ends training when it has converged.
tol : float or None, default=None
    With ``step_size="auto"``, training has converged when the training loss changes by less than this part in 10
    rounds; 0.0001 by default. With 0 it takes all rounds.
local_steps : int or "auto", default="auto"
    Gradient steps that a client takes between two communications: 10, or 1 for linear blocks with
    ``step_size="auto"``.
batch_size : int or "auto", default="auto"
    Samples in a minibatch of all clients, at most as many as there are training samples: 128; with
    ``step_size="auto"`` 256, and for linear blocks all of them.
minibatches : {"fresh", "reused", "full"}, default="fresh"
    A new minibatch for each local step, one for all steps of a round, or every sample in every step.
gradient : {"unbiased", "mean"}, default="unbiased"
    How a client averages over its rows of a minibatch: by the expected number of them, or by the actual one.
optimizer : {"sgd", "momentum", "adam"}, default="sgd"
    How a client's block follows its gradients. What the optimiser remembers lasts one round, so that networks learn
    less from "adam" here than from ``hub_optimizer="adam"``.
schedule : {"constant", "linear", "cosine"}, default="constant"
    How the step size falls until the last round.
clip : float or None, default=None
    The largest norm of a client's gradient in a step; a longer one is scaled down to it.
hub_optimizer : {"auto", "average", "momentum", "adam"}, default="auto"
    How a hub's block follows the average of its clients' blocks. "auto" is the average; with ``step_size="auto"`` steps
    scaled by the silo's curvature for linear blocks, and else Adam.
hub_step_size : float or "auto", default="auto"
    The learning rate of ``hub_optimizer``, unless it is ``"average"``. "auto" is 0.003 for ``"adam"``, and else 1.
momentum : float, default=0.9
    Of the optimisers that are called ``"momentum"``.
overlap : int, default=0
    How many rounds old the blocks are that the other silos' scores come from, so that silos compute while messages
    travel.
participation : float, default=1.0
    The fraction of each silo's clients that answer in a round.
silo_dropout : float, default=0.0
    The probability with which a sample is trained on without a silo, so that the model can predict without one.
phi_bits : {32, 8, 4}, default=32
    In how many bits partial scores are sent.
block_bits : {32, 8}, default=32
    In how many bits clients send what their steps changed.
rows : {"shuffled", "contiguous", "dirichlet"}, default="shuffled"
    How a silo's rows are dealt to its clients: at random, in order, or with skewed labels.
alpha : float, default=1.0
    The concentration of ``rows="dirichlet"``: the smaller, the more the clients' labels differ.
standardize : bool, default=True
    Whether amounts, and the labels of a regression, are scaled to mean 0 and variance 1.
rare : int, default=1
    Levels of a category with fewer training rows than this become one level, "other".
holdout : float or "auto", default="auto"
    The fraction of samples that are held out, for ``patience`` and the metrics in ``history_``. "auto" is 0.15 for
    ensembles with ``step_size="auto"``, which stop early, and with ``model="auto"``, and else 0.
evaluate_every : int, default=5
    Rounds between two evaluations of the model.
patience : int or None, default=None
    Early stopping: end after so many evaluations in a row without a lower loss, of the held-out samples if there are
    some. None is 24 for ensembles with ``step_size="auto"`` and held-out samples, and else never.
keep : {"auto", "last", "best"}, default="auto"
    Which model stays: that of the last round, or of the evaluation with the lowest loss. "auto" is the best one for
    ensembles with ``step_size="auto"`` and held-out samples, and else the last one.
class_weight : dict, "balanced" or None, default=None
    How much the samples of each class count, by class. A regressor takes None only.
dtype : {"float32", "float64"}, default="float32"
    The precision of training.
engine : str, default="auto"
    The engine of the simulation; ``"auto"`` takes the fastest that runs the problem.
random_state : int, RandomState instance or None, default=0
    The seed of the row splits, the first values and the minibatches.
out : str, Path or None, default=None
    A run folder to write, with report and model.
verbose : int, default=1
    0 shows no progress; 1 shows a bar in a terminal or a notebook until training ends."""

ATTRIBUTES = """feature_importances_ : ndarray of shape (n_features_in_,)
    Of linear blocks, also with levels and bins: the standard deviation of what a column adds to the scores of the
    training rows, as a share of the sum over all columns.
feature_names_in_ : ndarray of shape (n_features_in_,)
    The names of the columns; with frames by silo ``"silo.column"``.
n_features_in_ : int
    How many columns there were.
n_iter_ : int
    The rounds that were run.
converged_ : bool or None
    Whether the training loss no longer changes; None where the number of rounds was fixed by a ``step_size``, or
    early stopping by ``patience`` ended it.
n_matched_ : int
    With frames by silo, how many samples are in all of them.
n_lost_ : dict of str to int
    With frames by silo, how many rows of each are not used: another frame lacks their ids or, with
    ``samples="all"``, they have no label.
model_ : Model
    The trained model, which can be saved.
history_ : list of Record
    The losses, metrics and costs at each evaluation.
choice_ : Choice or None
    With ``model="auto"``, which model was chosen, its margin, and how each candidate did."""

FIT = """Parameters
----------
X : array, frame or dict of frames
    The rows, as an array or a frame of pandas, Polars or Arrow; missing values are allowed. Or one frame per silo,
    by its name: ``{"bank": df, "bureau": df}``.
y : array of shape (n_samples,), optional
    What is to be predicted, of one table.
sample_weight : array of shape (n_samples,) or str, optional
    How much each sample counts. With frames by silo, the name of a column next to the label.
id : str or dict of str to str, optional
    With frames by silo, the column that says which sample a row is about, or this column of each frame:
    ``{"bank": "customer", "bureau": "person_id"}``. Samples that a frame lacks are left out with a
    :class:`tdcd.DataWarning`, unless ``samples="all"``. Without ids, rows at the same place are about the same sample.
label : str, optional
    With frames by silo, the column that is to be predicted, in one of them or in several.

Returns
-------
self : object
    The fitted estimator."""


def _documented(estimator: Estimator) -> Estimator:
    """Fill in what both estimators' docstrings have in common; without docstrings, as with python -OO, nothing."""
    for documented in (estimator, vars(estimator)["fit"]):
        if documented.__doc__:
            text = inspect.cleandoc(documented.__doc__)
            common = {"parameters": PARAMETERS, "attributes": ATTRIBUTES, "fit": FIT}
            for name, shared in common.items():
                text = text.replace(f"{{{name}}}", shared)
            documented.__doc__ = text
    return estimator


class _TwoTier(BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

    def __init__(
        self,
        silos: int | Mapping[str, Sequence[str] | Sequence[int]] | None = None,
        clients: int | Sequence[int] = 1,
        *,
        labels: str | None = None,
        samples: str = "common",
        standin: str = "function",
        model: str | None = None,
        time_limit: float = TIME_LIMIT,
        block: str | Sequence[str] = "linear",
        hidden: Sequence[int] | str = "auto",
        members: int = 16,
        dropout: float = 0.1,
        head: str = "sum",
        encoding: str = "auto",
        bins: int | None = None,
        loss: str | None = None,
        huber_delta: float = DELTA,
        l2: float | str = "auto",
        rounds: int | str = AUTO,
        step_size: float | str = "auto",
        tol: float | None = None,
        local_steps: int | str = "auto",
        batch_size: int | str = "auto",
        minibatches: str = "fresh",
        gradient: str = "unbiased",
        optimizer: str = "sgd",
        schedule: str = "constant",
        clip: float | None = None,
        hub_optimizer: str = "auto",
        hub_step_size: float | str = "auto",
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
        holdout: float | str = "auto",
        evaluate_every: int = 5,
        patience: int | None = None,
        keep: str = "auto",
        class_weight: str | Mapping[Any, float] | None = None,
        dtype: str = "float32",
        engine: str = "auto",
        random_state: Any = 0,
        out: str | Path | None = None,
        verbose: int = 1,
    ) -> None:
        """Keep the parameters as they are, for ``clone`` and ``get_params``; :meth:`fit` checks them."""
        self.silos, self.clients, self.labels = silos, clients, labels
        self.samples, self.standin = samples, standin
        self.model, self.time_limit = model, time_limit
        self.block, self.hidden, self.members, self.dropout = block, hidden, members, dropout
        self.head, self.encoding, self.bins = head, encoding, bins
        self.loss, self.huber_delta, self.l2 = loss, huber_delta, l2
        self.rounds, self.step_size, self.tol = rounds, step_size, tol
        self.local_steps, self.batch_size = local_steps, batch_size
        self.minibatches, self.gradient = minibatches, gradient
        self.optimizer, self.schedule, self.clip, self.momentum = optimizer, schedule, clip, momentum
        self.hub_optimizer, self.hub_step_size = hub_optimizer, hub_step_size
        self.overlap, self.participation, self.silo_dropout = overlap, participation, silo_dropout
        self.phi_bits, self.block_bits = phi_bits, block_bits
        self.rows, self.alpha, self.class_weight = rows, alpha, class_weight
        self.standardize, self.rare = standardize, rare
        self.holdout, self.evaluate_every, self.patience, self.keep = holdout, evaluate_every, patience, keep
        self.dtype, self.engine, self.random_state = dtype, engine, random_state
        self.out, self.verbose = out, verbose

    model_: Model
    history_: list[Record]
    n_features_in_: int
    n_iter_: int
    converged_: bool | None
    choice_: Choice | None
    _label: str | None
    """The column to predict, where there was one frame per silo."""
    _features: list[tuple[str, str]]
    """The silo, none if it is not used, and the name of each column of ``feature_names_in_``."""

    def _fit_table(
        self,
        X: Any,  # noqa: N803
        labels: NDArray[np.float64],
        weights: Any,
        loss: str,
        classes: tuple[str, ...],
    ) -> Self:
        """Train on the checked rows of one table; ``labels`` are amounts, or numbers of ``classes``."""
        if self.samples == "all":
            raise ValueError("samples = 'all': it is for frames by silo, and X is one table: leave it out")
        table = _table(X, getattr(self, "feature_names_in_", None))
        self._names, self._label = table.column_names, None
        self._columns = _columns_by_silo(2 if self.silos is None else self.silos, self._names)
        tables = self._by_silo(table)
        holder = self.labels if self.labels in tables else next(iter(tables))
        tables[holder] = tables[holder].append_column(LABEL, pa.array(labels))
        weight = None if weights is None else WEIGHT
        if weights is not None:
            tables[holder] = tables[holder].append_column(WEIGHT, pa.array(_check_sample_weight(weights, labels)))
        numbers = {name: str(number) for number, name in enumerate(getattr(self, "classes_", ()))}
        sections = silo_sections(tables, None, LABEL, weight, self._clients_of([*tables]), self.labels)
        result = self._train(sections, tables, loss, self._class_weights(numbers), classes)
        for name in ("n_matched_", "n_lost_"):
            self.__dict__.pop(name, None)
        holders = {column: silo for silo, columns in self._columns.items() for column in columns}
        self._features = [(holders.get(name, ""), name) for name in self._names]
        return self._keep(result)

    def _fit_frames(self, frames: Mapping[str, Any], y: Any, weight: Any, id_column: Any, label: str | None) -> Self:
        """Train on one frame per silo."""
        if y is not None:
            raise ValueError("y: the labels of frames are a column of one of them: give label=COLUMN instead")
        if label is None:
            raise ValueError("label: name the column that is to be predicted, label=COLUMN")
        if weight is not None and not isinstance(weight, str):
            raise ValueError("sample_weight: the weights of frames are a column next to the label: give its name")
        if self.silos is not None:
            raise ValueError(f"silos = {self.silos!r}: there is one silo per frame; leave it out")
        if self.samples == "all" and id_column is None:
            raise ValueError("samples = 'all': which rows are about the same sample is not known: give id=COLUMN")
        tables = {str(silo): arrow_of(frame, f"frame '{silo}'") for silo, frame in frames.items()}
        sections = silo_sections(tables, id_column, label, weight, self._clients_of([*tables]), self.labels)
        values = next(table.column(label) for table in tables.values() if label in table.column_names)
        classes = {canonical_label(value): value for value in values.drop_null().unique().to_pylist()}
        different = dict(sorted(classes.items()))
        loss = self._chosen_loss(len(different))
        weights = self._class_weights({value: name for name, value in different.items()})
        align = id_column is not None and self.samples != "all"
        result = self._train(sections, tables, loss, weights, (), align=align)
        federation = result.federation
        present = np.concatenate([presence_of(federation), test_presence_of(federation)], axis=1)
        self.n_matched_ = int(present.all(axis=0).sum())
        self.n_lost_ = {
            silo: len(table) - int(own.sum()) for (silo, table), own in zip(tables.items(), present, strict=True)
        }
        self._label, self._columns = label, {silo.name: [*preparation_of(silo).parts] for silo in federation.silos}
        self._features = [(silo, column) for silo, columns in self._columns.items() for column in columns]
        self.feature_names_in_ = np.array([f"{silo}.{column}" for silo, column in self._features], object)
        self.n_features_in_ = len(self._features)
        self._keep_classes(different, federation.classes)
        return self._keep(result)

    def _train(
        self,
        sections: list[dict[str, Any]],
        tables: Mapping[str, pa.Table],
        loss: str,
        class_weights: str | dict[str, float] | None,
        classes: tuple[str, ...],
        *,
        align: bool = False,
    ) -> Result:
        """Train on one table per silo.

        Args:
            sections: the silos of a configuration.
            class_weights: by the names that the tables have for the classes.
            classes: the names of the classes that the tables number; none where they have the names themselves.
            align: whether only ids count that every table has.
        """
        keys = _keys(self.get_params(deep=False), loss)
        keys["silos"], keys["data"]["align"] = sections, align
        if class_weights is not None:
            keys["train"]["class_weights"] = class_weights

        def planned(model: Mapping[str, Any]) -> Plan:
            chosen = {**keys, "model": {**keys["model"], **model}}
            if self.rounds == AUTO:
                rounds = LONG if stops_early(chosen) else ROUNDS
                chosen["train"] = {**chosen["train"], "rounds": rounds}
            return _planned(chosen, tables, classes)

        out = None if self.out is None else Path(self.out)
        with progress_shown(self.verbose) as show:
            self.choice_ = self._choose(planned, show)
            if self.choice_ is not None and self.choice_.result is not None and out is None:
                # A second training would give the same, bit for bit.
                chosen, self.choice_ = self.choice_.result, replace(self.choice_, result=None)
                self._say_alignment(chosen.federation, align=align)
                return chosen
            plan = planned({} if self.choice_ is None else self.choice_.keys)
            self._say_alignment(plan.federation, align=align)
            return train_plan(plan, out, observe=show)

    def _choose(self, planned: Callable[[Mapping[str, Any]], Plan], show: Observer) -> Choice | None:
        """The model that ``model="auto"`` chooses; None where the parameters say which it is."""
        if self.model is None:
            return None
        if self.model != AUTO:
            raise ValueError(f"model = {self.model!r}: must be 'auto' or None; a block of your own is block=...")
        for name, unset in (("block", "linear"), ("encoding", AUTO), ("head", "sum")):
            if getattr(self, name) != unset:
                given = getattr(self, name)
                raise ValueError(f"{name} = {given!r}: model = 'auto' chooses block, encoding and head; leave one out")
        choice = choose(planned, self.time_limit, observe=show, report=lambda line: say(line, self.verbose))
        say(choice.in_words, self.verbose)
        return choice

    def _say_alignment(self, federation: Federation, *, align: bool) -> None:
        if losses := losses_in_words(federation):
            caution(losses)
        elif align:
            held_out = 0 if federation.test_labels is None else len(federation.test_labels)
            say(f"Every frame has the same {counted(federation.num_samples + held_out, 'id')}.", self.verbose)

    def _keep(self, result: Result) -> Self:
        """Take what was trained."""
        if result.history[-1].diverged:
            way = "give step_size a small number, such as 0.001" if self.step_size == "auto" else "lower it"
            raise ValueError(f"training diverged with step_size = {self.step_size}: {way}")
        self.model_, self.history_, self.n_iter_ = result.model, result.history, result.n_iter
        self.converged_ = result.converged
        self._spread = _spread(result)
        warn(result, stacklevel=4)
        if result.status == "interrupted":
            most = "" if self.rounds == AUTO else f" of {self.rounds}"
            words = f"Interrupted after round {result.round}{most}: the model of that round is kept."
            warnings.warn(words, ConvergenceWarning, stacklevel=4)
        return self

    def _chosen_loss(self, num_labels: int) -> str:
        """The loss for labels of so many different values."""
        raise NotImplementedError

    def _class_weights(self, names: Mapping[Any, str]) -> str | dict[str, float] | None:
        """By the name that a table has for each class; only a classifier has them."""
        if self.class_weight is None:
            return None
        raise ValueError(f"class_weight = {self.class_weight!r}: amounts have no classes; leave it out")

    def _keep_classes(self, values: Mapping[str, Any], names: Sequence[str]) -> None:
        """Take in the classes of frames, in the model's order; amounts have none."""

    def _clients_of(self, silos: Sequence[str]) -> list[int]:
        counts = [self.clients] * len(silos) if isinstance(self.clients, int | np.integer) else [*self.clients]
        if len(counts) != len(silos):
            raise ValueError(f"clients = {counts}: {there_are(len(silos), 'silo')}; give a number, or one each")
        return [int(count) for count in counts]

    def _by_silo(self, table: pa.Table) -> dict[str, pa.Table]:
        return {silo: table.select([*names]) for silo, names in self._columns.items()}

    def _new(self, X: Any) -> Mapping[str, Any]:  # noqa: N803
        """New rows by silo."""
        check_is_fitted(self)
        if self._label is not None:
            if not _are_frames(X):
                silos = ", ".join(self._columns)
                raise ValueError(f"X is one {type(X).__name__}, and fit had frames by silo: give those of {silos}")
            return X
        if _are_frames(X):
            raise ValueError("X has frames by silo, and fit had one table: give one table, or ask model_")
        checked = _checked(self, X, reset=False)
        table = _table(checked, getattr(self, "feature_names_in_", None))
        if not hasattr(self, "feature_names_in_"):
            # Fitted on columns without names: those of a frame count by their places.
            table = table.rename_columns(self._names)
        return self._by_silo(table)

    def _without(self, tables: Mapping[str, Any]) -> list[str]:
        """The silos whose frames are not given, if the model was trained on samples that some silos lack."""
        return [silo for silo in self._columns if silo not in tables and self.model_.stand_ins.knows_absence]

    def _labels_in(self, frames: Mapping[str, Any]) -> list[Any]:
        """The labels that frames have, as tables have them, in the order of :meth:`predict`."""
        check_is_fitted(self)
        if self._label is None:
            raise ValueError("y is missing: fit had one table and its labels")
        tables = {silo: arrow_of(frames[silo], f"frame '{silo}'") for silo in self._columns if silo in frames}
        holders = [silo for silo, table in tables.items() if self._label in table.column_names]
        if not holders:
            raise ValueError(f"no frame has the column '{self._label}': give it, or y")
        ids = {silo: self.model_.part(silo).columns.id for silo in tables}
        by_id = all(ids[silo] in table.column_names for silo, table in tables.items())
        id_of = {silo: ids[silo] if by_id else PLACE for silo in tables}
        # Where frames may lack samples, the order is that of all of them, and any may have a label.
        is_all = by_id and self.model_.stand_ins.knows_absence
        known, order = dict[str, Any](), dict[str, str]()
        for holder in reversed(holders if is_all else holders[:1]):
            known |= self._labels_by_id(holder, tables[holder], id_of[holder], self._label)
        for silo in [*tables] if is_all else [*tables][:1]:
            for sample in self._labels_by_id(silo, tables[silo], id_of[silo], None):
                order.setdefault(sample, silo)
        lacking = [sample for sample in order if sample not in known]
        if lacking:
            silo, holder = order[lacking[0]], " or ".join(f"'{holder}'" for holder in holders)
            raise ValueError(f"frame {holder} has no row with the id {lacking[0]!r}, and frame '{silo}' has")
        return [known[sample] for sample in order]

    def _labels_by_id(self, silo: str, table: pa.Table, id_column: str, label: str | None) -> dict[str, Any]:
        columns = Columns(id_column, label, (), dialect=self.model_.part(silo).columns.dialect)
        rows = read_rows(Frame(table, f"frame '{silo}'"), columns)
        labels = [None] * len(rows) if rows.labels is None else np.asarray(rows.labels).tolist()
        return dict(zip(rows.ids, labels, strict=True))

    def _linear(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """``[columns, C]`` and ``[C]``: the coefficients of a linear model; AttributeError where it has none."""
        check_is_fitted(self)
        try:
            *rows, intercept = self.model_.coefficients().rows
        except ValueError as error:
            raise AttributeError(f"there are no coefficients: {error}") from None
        coefficients = {(row.silo, row.column): row.values for row in rows}
        without = [column for silo, column in self._features if silo and (silo, column) not in coefficients]
        if without:
            raise AttributeError(
                f"column '{without[0]}' has a coefficient for each of its levels or bins: see model_.coefficients()"
            )
        unused = np.zeros_like(intercept.values)
        return np.stack([coefficients.get(feature, unused) for feature in self._features]), intercept.values

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """``[columns]``: each column's share in the spread of the scores over the training rows."""
        check_is_fitted(self)
        if isinstance(self._spread, str):
            advice = "sklearn.inspection.permutation_importance works with every model"
            raise AttributeError(f"there are no importances: {self._spread}; {advice}")
        spread = np.array([self._spread.get(feature, 0.0) for feature in self._features])
        shares: NDArray[np.float64] = spread / (spread.sum() or 1.0)
        return shares

    def effects(self, X: Any = None) -> Any:  # noqa: N803
        """What each column adds to the scores, see :meth:`tdcd.Model.effects`; of networks, averaged over rows X."""
        check_is_fitted(self)
        return self.model_.effects(None if X is None else self._new(X))

    def __sklearn_tags__(self) -> Any:
        """Missing values, and texts in frames, are allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@_documented
class TwoTierClassifier(ClassifierMixin, _TwoTier):  # type: ignore[misc]
    """A classifier that is trained over data split both ways: silos hold columns, their clients rows.

    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, in the order of :meth:`predict_proba`.
    coef_ : ndarray of shape (1, n_features_in_) or (n_classes, n_features_in_)
        Of linear blocks, what a unit of each column adds to :meth:`decision_function`, of rows without missing values.
        There is none where a column has levels or bins: see ``model_.coefficients()``.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        The decision function where every column is zero. As ``coef_``.
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> TwoTierClassifier(silos=3, clients=[4, 2, 3], verbose=0).fit(X, y).score(X, y) > 0.95
    True
    """

    classes_: NDArray[Any]

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        sample_weight: Any = None,
        *,
        id: str | Mapping[str, str] | None = None,
        label: str | None = None,
    ) -> Self:
        """Train on one table and its classes, or on one frame per silo.

        {fit}
        """
        if _are_frames(X):
            return self._fit_frames(X, y, sample_weight, id, label)
        _refuse_columns(id, label)
        X, y = _checked(self, X, y)  # noqa: N806
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        loss = self._chosen_loss(len(self.classes_))
        names = tuple(str(name) for name in self.classes_.tolist())
        return self._fit_table(X, codes.astype(np.float64), sample_weight, loss, names)

    def _chosen_loss(self, num_labels: int) -> str:
        if num_labels < 2:
            raise ValueError("every label is of one class: there is nothing to learn")
        loss = self.loss or ("logistic" if num_labels == 2 else "softmax")
        _check_target(loss, ("binary", "classes"), "a classifier")
        return loss

    def _class_weights(self, names: Mapping[Any, str]) -> str | dict[str, float] | None:
        if self.class_weight is None or isinstance(self.class_weight, str):
            return self.class_weight
        unknown = [name for name in self.class_weight if name not in names]
        if unknown:
            raise ValueError(f"class_weight: there is no class {unknown[0]!r}; there are {', '.join(map(str, names))}")
        return {names[name]: float(weight) for name, weight in self.class_weight.items()}

    def _keep_classes(self, values: Mapping[str, Any], names: Sequence[str]) -> None:
        self.classes_ = np.array([values.get(name, name) for name in names])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: N803
        """The accuracy on rows ``X`` with the classes ``y``, which frames may have in their label column."""
        if _are_frames(X) and y is None:
            labels = [canonical_label(label) for label in self._labels_in(X)]
            numbers = {name: number for number, name in enumerate(self.model_.label_encoding.classes)}
            unknown = [label for label in labels if label not in numbers]
            if unknown:
                raise ValueError(f"column '{self._label}' has the class {unknown[0]!r}, which training did not have")
            y = self.classes_[[numbers[label] for label in labels]]
        accuracy: float = super().score(X, y, sample_weight)
        return accuracy

    @property
    def coef_(self) -> NDArray[np.float64]:
        """The change of the decision function per unit of each column."""
        return _decision(self._linear()[0], len(self.classes_)).T

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """The decision function where every column is zero."""
        return _decision(self._linear()[1], len(self.classes_))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most likely class of each row."""
        likely = self.predict_proba(X).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[likely]
        return chosen

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """``[rows, classes]``: the probability of every class, in the order of ``classes_``."""
        tables = self._new(X)
        return self.model_.predict_proba(tables, self._without(tables))

    def decision_function(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The scores: of the second of two classes, or ``[rows, classes]``."""
        tables = self._new(X)
        scores = self.model_.scores(tables, self._without(tables)).astype(np.float64)
        scores = _decision(scores, len(self.classes_))
        return scores[:, 0] if scores.shape[1] == 1 else scores


@_documented
class TwoTierRegressor(RegressorMixin, _TwoTier):  # type: ignore[misc]
    """A regressor that is trained over data split both ways: silos hold columns, their clients rows.

    {parameters}

    Attributes
    ----------
    coef_ : ndarray of shape (n_features_in_,)
        Of linear blocks, what a unit of each column adds to the predicted amount (to its logarithm with
        ``loss="poisson"``), of rows without missing values. There is none where a column has levels or bins: see
        ``model_.coefficients()``.
    intercept_ : float
        The same sum where every column is zero. As ``coef_``.
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> TwoTierRegressor(silos=2, clients=3, verbose=0).fit(X, y).score(X, y) > 0.5
    True
    """

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        sample_weight: Any = None,
        *,
        id: str | Mapping[str, str] | None = None,
        label: str | None = None,
    ) -> Self:
        """Train on one table and its amounts, or on one frame per silo.

        {fit}
        """
        if _are_frames(X):
            return self._fit_frames(X, y, sample_weight, id, label)
        _refuse_columns(id, label)
        X, y = _checked(self, X, y, y_numeric=True)  # noqa: N806
        return self._fit_table(X, np.asarray(y, np.float64), sample_weight, self._chosen_loss(len(y)), ())

    def _chosen_loss(self, num_labels: int) -> str:
        loss = self.loss or "squared"
        _check_target(loss, ("amount",), "a regressor")
        return loss

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: N803
        """R2 on rows ``X`` with the amounts ``y``, which frames may have in their label column."""
        if _are_frames(X) and y is None:
            y = self._labels_in(X)
        explained: float = super().score(X, y, sample_weight)
        return explained

    @property
    def coef_(self) -> NDArray[np.float64]:
        """The change of the predicted amount per unit of each column."""
        return self._linear()[0][:, 0]

    @property
    def intercept_(self) -> float:
        """The amount where every column is zero."""
        return float(self._linear()[1][0])

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The expected amount of each row."""
        tables = self._new(X)
        return self.model_.predict(tables, self._without(tables))


def _decision(scores: NDArray[np.float64], num_classes: int) -> NDArray[np.float64]:
    """``[..., C]``: the scores, where two classes with a score each have the difference of both."""
    return np.diff(scores, axis=-1) if num_classes == 2 and scores.shape[-1] == 2 else scores


def _spread(result: Result) -> dict[tuple[str, str], float] | str:
    """For linear blocks, the standard deviation of what each column of each silo adds to the scores over the training
    rows; of others, why there is none. Of several classes, what all scores have in common does not count.
    """
    spreads = {}
    for silo, block in zip(result.federation.silos, result.simulation.blocks, strict=True):
        if not isinstance(block, Linear):
            return f"silo '{silo.name}' has a block of kind '{type(without_stand_ins(block)).__name__.lower()}'"
        weights, start = np.asarray(result.blocks[silo.name]["weight"], np.float64), 0
        if weights.shape[1] > 1:
            weights = weights - weights.mean(axis=1, keepdims=True)
        for column, encoding in preparation_of(silo).parts.items():
            own = slice(start, start + len(encoding.names(column)))
            parts = np.asarray(silo.features[:, own], np.float64) @ weights[own]
            spreads[silo.name, column] = float(np.sqrt(parts.var(axis=0).sum()))
            start = own.stop
    return spreads


def _refuse_columns(id_column: Any, label: Any) -> None:
    for name, value in (("id", id_column), ("label", label)):
        if value is not None:
            raise ValueError(f"{name} = {value!r}: it is for frames by silo, and X is one table: leave it out")


def _check_target(loss: str, targets: Sequence[str], kind: str) -> None:
    """Refuse a loss that predicts something else; one that does not exist is refused with the other settings."""
    fitting = [name for name, own in LOSSES.items() if own.target in targets]
    if loss in LOSSES and loss not in fitting:
        raise ValueError(f"loss = {loss!r}: {kind} takes {' or '.join(map(repr, fitting))}")


def _are_frames(X: Any) -> TypeGuard[Mapping[str, Any]]:  # noqa: N803
    """Whether there is one frame per silo. A sparse matrix of one kind is a mapping, too, and has a shape."""
    return isinstance(X, Mapping) and not hasattr(X, "shape")


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
        for column in columns:
            if isinstance(column, str) and column not in names:
                raise ValueError(
                    f"silos: '{silo}' has the column '{column}', which X has not; it has {', '.join(names)}"
                )
            if not isinstance(column, str) and not 0 <= column < len(names):
                raise ValueError(
                    f"silos: '{silo}' has the column number {column}, and X has {counted(len(names), 'column')}"
                )
            name = column if isinstance(column, str) else names[column]
            if name in taken:
                raise ValueError(f"silos: column '{name}' is given to '{taken[name]}' and to '{silo}'")
            taken[name] = silo
            chosen[silo].append(name)
        if not chosen[silo]:
            raise ValueError(f"silos: '{silo}' has no columns")
    if not chosen:
        raise ValueError("silos: there must be at least one")
    return chosen


def _planned(keys: Mapping[str, Any], tables: Mapping[str, pa.Table], classes: tuple[str, ...]) -> Plan:
    """A training on one table per silo; the names of the classes, if the tables number them."""
    config = frames_config(keys)
    assembled = assemble_frames(config, tables, bias=config.bias_silo)
    if config.train.batch_size != AUTO:
        most = min(config.train.batch_size, assembled.federation.num_samples)
        config = frames_config({**keys, "train": {**keys["train"], "batch_size": most}})
    planned = plan(config, assembled)
    described = planned.description
    described["data"]["source"] = PYTHON
    federation = replace(planned.federation, classes=classes or planned.federation.classes)
    return planned._replace(federation=federation, handed_over=described)


def _keys(parameters: Mapping[str, Any], loss: str) -> dict[str, Any]:
    """The sections of a configuration that say the same as an estimator's parameters, but for the silos."""
    keys: dict[str, Any] = {
        section: {name: _plain(parameters[name]) for name in names} for section, names in SECTIONS.items()
    }
    keys["model"]["loss"] = loss
    keys["train"]["batch_size"] = _plain(parameters["batch_size"])
    evaluate, block = keys["evaluate"], keys["model"]["block"]
    evaluate["every"] = _plain(parameters["evaluate_every"])
    if evaluate["holdout"] == AUTO:
        has_ensemble = "ensemble" in ([block] if isinstance(block, str) else block)
        stops_early = has_ensemble and parameters["step_size"] == AUTO
        evaluate["holdout"] = ENSEMBLE_HOLDOUT if stops_early or parameters["model"] == AUTO else 0.0
    # A configuration chooses what it is not given.
    for name, unset in (("patience", None), ("keep", AUTO)):
        if evaluate[name] == unset:
            del evaluate[name]
    return {**keys, "seed": _seed(parameters["random_state"]), "dtype": parameters["dtype"]}


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """A number of NumPy, as a grid search has it, as Python's own; a sequence as a list."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(item) for item in value]
    return value
