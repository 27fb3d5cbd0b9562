"""A loss of your own: the 90 % quantile of amounts. Run this file, or name it: [model] loss = "own_loss:Quantile"."""

from dataclasses import dataclass

import jax
import numpy as np

from tdcd import Federation, Linear, Loss, Objective, load, standardize, train


@dataclass(frozen=True)
class Quantile(Loss):
    """The pinball loss of quantile q, its corner rounded over a width h: q r + h log(1 + exp(-r / h)), r = y - s."""

    q: float = 0.9
    width: float = 0.1
    metric_names = ("below",)

    @property
    def curvature(self):
        """What `tdcd plan` and `tdcd bound` need; leave it out if there is no bound."""
        return 1 / (4 * self.width)

    def losses(self, scores, labels):
        """Of scores ``[..., 1]``, the silos' phi summed, and labels ``[...]``."""
        residual = labels - scores[..., 0]
        return self.q * residual + self.width * jax.nn.softplus(-residual / self.width)

    def statistic(self, scores, labels, response):
        """With labels at one silo, what it sends the others of a sample, ``[..., 1]``: here the residual."""
        return labels[..., None] - scores

    def change(self, residual, change, response):
        """What the loss grows by from there if the score grows by ``change``; leave both out if all have labels."""
        return self.losses(change, residual[..., 0]) - self.losses(0 * change, residual[..., 0])

    def metrics(self, scores, labels, unit, response):
        """The share of labels that are below the prediction: q, if all is well."""
        return {"below": float(np.mean(labels <= scores[:, 0]))}


if __name__ == "__main__":
    rows, held_out = standardize(*load("diabetes").split(0.2, seed=0))
    federation = Federation.cut(rows, held_out, silos=2, clients=4, bias=True)
    for q in (0.5, 0.9):
        last = train(federation, Linear(), Objective(Quantile(q)), rounds=300).history[-1]
        print(f"quantile {q}: {last.metrics['train']['below']:.3f} of the labels are below the prediction")
