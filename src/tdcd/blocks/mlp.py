"""The multi-layer perceptron block."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tdcd.core.lazy import Array, compiled, jax, jnp
from tdcd.core.objective import Tree


@dataclass(frozen=True)
class Mlp:
    r"""Hidden layers on the silo's columns, then its slice of the shared linear classifier.

    .. math:: \Phi = h_L W, \quad h_i = \max(0, h_{i-1} W_i + b_i), \quad h_0 = X_{(j)}

    The slice has no bias: the silos' phi must add up to the scores of one classifier. Weights start normal with
    variance 2 / fan-in (He et al., 2015; 1 / fan-in for the slice), biases at zero.
    """

    hidden: tuple[int, ...] = (32,)

    def init(self, key: Array, feature_shape: tuple[int, ...], num_outputs: int) -> Tree:
        """Weights drawn from ``key``: a ``weight`` and a ``bias`` per hidden layer, and the ``slice``."""
        widths = [prod(feature_shape), *self.hidden]
        scales = [(2 / fan_in) ** 0.5 for fan_in in widths[:-1]]
        drawn: Tree = _draw(key, scales, widths[-1] ** 0.5, widths=(*widths, num_outputs))
        return drawn

    def phi(self, block: Tree, features: Array) -> Array:
        """The hidden layers, then the slice; images are flattened."""
        rows = features.reshape(features.shape[0], -1)
        for layer in block["hidden"]:
            rows = jax.nn.relu(rows @ layer["weight"] + layer["bias"])
        scores: Array = rows @ block["slice"]
        return scores


@compiled("widths")
def _draw(key: Array, scales: list[Array], divisor: Array, *, widths: tuple[int, ...]) -> Tree:
    """All layers as one program: a program takes longer to load than to run."""
    *hidden, last = zip(jax.random.split(key, len(widths) - 1), pairwise(widths), strict=True)
    layers = [
        {"weight": jax.random.normal(k, shape) * scale, "bias": jnp.zeros(shape[1])}
        for (k, shape), scale in zip(hidden, scales, strict=True)
    ]
    return {"hidden": layers, "slice": jax.random.normal(*last) / divisor}
