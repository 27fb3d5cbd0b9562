"""Whatever precision products have, averages of blocks are in full float32: a block is never rounded to few bits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import jax
import numpy as np
import pytest

from support.problems import Problem, Shape, arrays
from tdcd.blocks import Linear, Mlp
from tdcd.core.choices import Precision
from tdcd.core.execution import ALGORITHMS, Execution
from tdcd.core.objective import Objective
from tdcd.simulation.engines.base import compiled
from tdcd.simulation.simulate import Simulation

CLIENTS = 7
"""No other axis that a product adds up over is this long."""
LINEAR = Shape(clients=(CLIENTS, CLIENTS), columns=(3, 2), num_samples=210, batch_size=30)
MLP = Shape(clients=(CLIENTS, CLIENTS), columns=(3, 2), num_samples=210, batch_size=30, blocks=(Mlp((4,)), Linear()))
CASES = [("flat", LINEAR), ("grouped", LINEAR), ("clients", MLP)]
PRECISIONS = get_args(Precision)


@dataclass(frozen=True)
class AsOnGpu(Execution):
    """Asks for short factors on a CPU too, which has none: only the traced program shows them there."""

    def matrix_products(self, dtype: str) -> Any:
        return jax.default_matmul_precision(ALGORITHMS[self.precision])


def simulation(engine: str, shape: Shape, precision: Precision) -> tuple[Simulation, Problem]:
    problem = Problem.draw(shape, Objective("squared"), 1, "shuffled", step_size=1e-4, dtype="float32")
    execution = AsOnGpu(engine=engine, precision=precision, keep="device")
    return Simulation(problem.federation, problem.blocks, problem.objective, problem.settings, execution), problem


def products(program: Any) -> Iterator[Any]:
    """Every matrix product of a traced program, also those in its loops."""
    for step in program.eqns:
        if step.primitive.name == "dot_general":
            yield step
        for inner in jax.tree.leaves(step.params, is_leaf=lambda part: hasattr(part, "eqns") or hasattr(part, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from products(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize(("engine", "shape"), CASES, ids=[engine for engine, _ in CASES])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_that_add_clients_up_are_exact(engine, shape, precision):
    made, problem = simulation(engine, shape, precision)
    start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), problem.start)
    call = next(made._calls(0, 1))
    with made._context():
        run = compiled(made._engine.program, made.rounds_per_call)
        traced = jax.make_jaxpr(lambda state: run(state, *call.arguments))(made.state_of(start))

    def adds_up_clients(product: Any) -> bool:
        (axes, _), _ = product.params["dimension_numbers"]
        return CLIENTS in [product.invars[0].aval.shape[axis] for axis in axes]

    averages = [product for product in products(traced.jaxpr) if adds_up_clients(product)]
    assert len(averages) >= len(jax.tree.leaves(start))
    highest = jax.lax.Precision.HIGHEST
    assert {product.params["precision"] for product in averages} == {(highest, highest)}


@pytest.mark.parametrize(("engine", "shape"), CASES, ids=[engine for engine, _ in CASES])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_update_of_a_round_is_that_of_float32(engine, shape, precision):
    """To the rounding of its products: steps are so short that a block in few bits would hide them.

    On a CPU there is only float32; run on a GPU, this compares real products.
    """
    updates = []
    for chosen in ("float32", precision):
        made, problem = simulation(engine, shape, chosen)
        start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), problem.start)
        moved = arrays(made.advance(made.state_of(start), 0, 1))
        pairs = zip(moved, arrays(start), strict=True)
        updates.append(np.concatenate([np.ravel(a - b) for now, then in pairs for a, b in zip(now, then, strict=True)]))
    exact, found = updates
    assert np.linalg.norm(exact) > 0
    assert np.linalg.norm(found - exact) < 2e-2 * np.linalg.norm(exact)
