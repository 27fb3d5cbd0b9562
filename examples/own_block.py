"""Plug in a block of your own: two JAX functions, no change to tdcd. Or name it: [model] block = "own_block:Quadratic".

This one gives each silo a linear part and a low-rank quadratic part, as in a factorisation machine (Rendle, 2010).
Run it: python examples/own_block.py
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tdcd import Federation, Linear, Objective, load, standardize, train


@dataclass(frozen=True)
class Quadratic:
    """Phi = X w + ((X V)^2) u: pairs of the silo's columns, through a few learned directions V."""

    rank: int = 8

    def init(self, key, feature_shape, num_outputs):
        """Small random directions; everything that multiplies them starts at zero."""
        (num_columns,) = feature_shape
        return {
            "w": jnp.zeros((num_columns, num_outputs)),
            "v": jax.random.normal(key, (num_columns, self.rank)) / num_columns,
            "u": jnp.zeros((self.rank, num_outputs)),
        }

    def phi(self, block, features):
        """``[rows, D]`` features to the ``[rows, C]`` they add to the scores."""
        return features @ block["w"] + (features @ block["v"]) ** 2 @ block["u"]


def main():
    """Two silos, first both linear, then one with a block of its own: silos need not train the same model."""
    rows, held_out = standardize(*load("superconductors", rows=4000).split(0.2, seed=0))
    federation = Federation.cut(rows, held_out, silos=2, clients=[4, 2])
    for name, blocks in {"linear": Linear(), "linear and quadratic": [Linear(), Quadratic()]}.items():
        result = train(federation, blocks, Objective("squared", l2=1e-4), rounds=1000)
        print(f"{name}: R2 on held-out rows {result.history[-1].metrics['test']['r2']:.3f} ({rows.name})")


if __name__ == "__main__":
    main()
