r"""Randomised response: a label is kept with probability q, and is otherwise one of the other classes, all alike.

.. math:: q = \frac{e^\epsilon}{e^\epsilon + C - 1}, \qquad r = \frac{1 - q}{C - 1}

What is released says nearly as much for one label as for another: the chances of any outcome differ by a factor of
:math:`q / r = e^\epsilon` at most. With :math:`T = (q - r) I + r\, 11^\top` the matrix of these chances, the loss

.. math:: \tilde f(\phi, \tilde y) = \sum_c (T^{-1})_{\tilde y c}\, f(\phi, c)
          = \frac{f(\phi, \tilde y) - r \sum_c f(\phi, c)}{q - r}

of a randomised label has the loss of the true one as its mean. Losses whose label enters as a linear term keep their
second derivatives.
"""

from math import exp
from typing import NamedTuple, Self

MOST_EPSILON = 20.0
"""Above it, about one label in a billion would change."""


class Response(NamedTuple):
    """What randomised response does to a label."""

    keep: float
    """q: the chance that a label stays."""
    other: float
    """r: the chance of each other class."""

    @classmethod
    def of(cls, epsilon: float, num_classes: int) -> Self:
        """Randomised response with this epsilon, for C classes.

        >>> round(Response.of(1.0, 2).keep, 4)
        0.7311
        """
        changed = exp(-epsilon)
        total = 1 + (num_classes - 1) * changed
        return cls(1 / total, changed / total)

    @property
    def slope(self) -> float:
        """How much of a difference between classes is left, q - r."""
        return self.keep - self.other


KEPT = Response(1.0, 0.0)
"""Labels as they are."""


def problem_with(epsilon: float) -> str | None:
    """What is wrong with a value of epsilon; nothing if None."""
    if not epsilon > 0:
        return "must be above 0, where labels would be pure noise"
    if epsilon > MOST_EPSILON:
        return f"must be at most {MOST_EPSILON:g}: above it hardly any label changes, and it protects nothing"
    return None


def in_words(epsilon: float, num_classes: int) -> str:
    """What is done to the labels, in a sentence.

    >>> in_words(1.0, 2)
    'randomised with epsilon = 1: 73 % stay as they are'
    """
    keep = 100 * Response.of(epsilon, num_classes).keep
    return f"randomised with epsilon = {epsilon:g}: {keep:.0f} % stay as they are"
