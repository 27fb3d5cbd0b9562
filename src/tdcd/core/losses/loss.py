"""What a loss is: a small protocol. Whoever writes one says what the loss of a row is; the rest has defaults."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tdcd.core.lazy import Array
from tdcd.core.losses import figures
from tdcd.core.losses.figures import Figures, Tallies
from tdcd.core.randomized import Response

Target = Literal["amount", "binary", "classes"]
"""What a model predicts: an amount; whether it is the second of two classes, by one score; or a class, by one score
per class."""
Task = Literal["regression", "binary", "multiclass"]
"""What labels are."""
TASKS: dict[Target, tuple[Task, ...]] = {
    "amount": ("regression",),
    "binary": ("binary",),
    "classes": ("multiclass", "binary"),
}
"""The tasks that a loss fits; it can be the default for the first."""


LabelUnit = Callable[[NDArray[Any]], tuple[float, float]]
"""From the amounts of the training samples: what is taken off amounts, and what they are divided by."""


@runtime_checkable
class Loss(Protocol):
    """A loss: a frozen dataclass that inherits from this, with :meth:`losses` and whatever differs from the defaults.

    The defaults are those of a loss of amounts that is not known to be curved by a bounded amount.
    """

    target: Target = "amount"
    labels: str = "finite numbers"
    """Which labels it takes, in words."""
    standardizes: bool = True
    """Whether amounts get mean 0 and variance 1 before training, where features do; see :meth:`unit`."""
    curvature: float | None = None
    """The supremum over scores and labels of the spectral norm of its second derivative; None if there is none, or it
    is not known."""
    is_quadratic: bool = False
    """Whether that derivative is the same everywhere."""
    is_convex: bool = False
    """Whether it is a convex function of the scores for every label, corrected for randomised ones as well: then a run
    with linear blocks and l2 > 0 comes with a certificate."""
    metric_names: tuple[str, ...] = ("rmse", "r2")
    """What :meth:`metrics` returns, in order."""
    statistic: "Callable[[Array, Array, Response], Array] | None" = None
    """With labels at one silo, what the others receive of a sample, from its scores ``[..., C]`` and its label
    ``[...]``: ``[..., W]`` with W of :meth:`statistic_width`. None: the slope of its loss, the
    derivative by the scores."""
    change: "Callable[[Array, Array, Response], Array] | None" = None
    """How much a sample's loss grows when its scores change, from its statistic before and the change, ``[...,
    W]`` and ``[..., C]``, to ``[...]``; None if it does not follow from that, and so labels must be known everywhere.
    Labels may have been randomised: the loss is then the corrected one."""
    slopes: "Callable[[Array, Array, Response], Array] | None" = None
    """The derivative of a sample's loss by its scores, ``[..., C]`` and ``[...]`` to ``[..., C]``, corrected where
    labels were randomised. If it is written out, all of the loss is for NumPy and JAX alike, and parties with linear
    blocks do without JAX; None: by differentiation."""
    change_slopes: "Callable[[Array, Array, Response], Array] | None" = None
    """The derivative of :attr:`change` by the change, where both are."""
    corrected: "Callable[[Array, Array, Response], Array] | None" = None
    """The loss of randomised labels, with that of the true ones as its mean; None where labels are no classes."""

    def __init_subclass__(cls, **options: Any) -> None:
        """What another loss has written out is not this one's."""
        super().__init_subclass__(**options)
        if "metrics" in cls.__dict__ and "sums" not in cls.__dict__:
            setattr(cls, "sums", None)  # noqa: B010
        if "losses" in cls.__dict__:
            for name in ("statistic", "change", "corrected", "slopes", "change_slopes"):
                if name not in cls.__dict__:
                    setattr(cls, name, None)
            if "is_convex" not in cls.__dict__:
                cls.is_convex = False
            if "statistic_width" not in cls.__dict__:
                setattr(cls, "statistic_width", Loss.statistic_width)  # noqa: B010

    @property
    def name(self) -> str:
        """The name in configurations and messages."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that it fits."""
        return TASKS[self.target]

    def losses(self, scores: Array, labels: Array) -> Array:
        """The loss of every sample: ``[..., C]`` summed phi and ``[...]`` labels to ``[...]``.

        In JAX, or for NumPy as well if there are :attr:`slopes`.

        None is below 0, or else what ``tdcd plan`` and ``tdcd bound`` take for the least loss is not.
        """
        ...

    def fits(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Which finite labels it takes, ``[n]`` to ``[n]``."""
        return np.ones(labels.shape, np.bool_)

    def unit(self, labels: NDArray[Any]) -> tuple[float, float]:
        """What is taken off amounts, and what they are divided by, where features are standardised: ``[n]`` labels.

        Predictions, :meth:`inverse_link`, are multiplied by the second, and get the first back.
        """
        return (float(labels.mean()), float(labels.std()) or 1.0) if self.standardizes else (0.0, 1.0)

    def inverse_link(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """What scores ``[n, C]`` predict: amounts ``[n, 1]``, or the chances of the second class or of every class.

        By default amounts as they are, and for classes the chances of a logistic or softmax model.
        """
        if self.target == "amount":
            return scores
        if self.target == "binary":
            # Equal to 1 / (1 + exp(-score)), which overflows.
            return np.asarray((1 + np.tanh(scores / 2)) / 2)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))

    def metrics(self, scores: NDArray[np.float64], labels: NDArray[Any], unit: float, response: Response) -> Figures:
        """The figures of :attr:`metric_names`; None where one is undefined.

        Args:
            scores: ``[n, C]``, all finite.
            labels: ``[n]``.
            unit: what 1 is in the labels' own unit, if they were standardised.
            response: what happened to labels that were randomised.
        """
        return figures.of_amounts(self.inverse_link(scores)[:, 0], labels, unit)

    def sums(self, scores: NDArray[np.float64], labels: NDArray[Any]) -> Tallies:
        """What :meth:`metrics_of_sums` takes, of some of the samples: several hosts add it up.

        A loss with :meth:`metrics` of its own, and without this, has all scores sent to every host.
        """
        return figures.sums_of_amounts(self.inverse_link(scores)[:, 0], labels)

    def metrics_of_sums(self, sums: Tallies, unit: float, response: Response) -> Figures:
        """:meth:`metrics`, from sums over all samples; an AUC is that of scores in bins."""
        return figures.amounts_of_sums(sums, unit)

    def num_outputs(self, num_classes: int) -> int:
        """C, the scores of a sample; amounts have 0 classes."""
        return num_classes if self.target == "classes" else 1

    def statistic_width(self, num_outputs: int) -> int:
        """W, the numbers of the statistic of a sample with C scores."""
        return num_outputs

    def label_dtype(self, dtype: str) -> np.dtype[Any]:
        """The type of labels in a run whose arithmetic has ``dtype``."""
        return np.dtype(np.int32 if self.target == "classes" else dtype)
