"""The compiled evaluation of models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tdcd.core.objective import Objective
from tdcd.simulation.evaluation import penalties


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_regulariser_has_the_objectives_own_bits(dtype):
    rng, objective = np.random.default_rng(0), Objective("squared", 0.0123)
    with jax.enable_x64(dtype == "float64"):
        for _ in range(20):
            blocks = [
                {"weight": jnp.asarray(rng.standard_normal((21, 1)), dtype), "bias": jnp.asarray([rng.random()], dtype)}
                for _ in range(2)
            ]
            assert penalties(blocks, [objective]) == [sum(float(objective.penalty(block)) for block in blocks)]


def test_the_regulariser_of_a_run_that_diverged_is_no_number():
    assert np.isnan(penalties([{"weight": jnp.array([[jnp.inf]])}], [Objective("squared", 0.0)])[0])
