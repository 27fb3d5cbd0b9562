"""Certificates of simulated runs: :mod:`tdcd.core.certificate` over all clients' rows at once."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import activations
from tdcd.blocks.linear import is_linear
from tdcd.core import certificate
from tdcd.core.certificate import Certificate, Floats, Proof, Samples, SiloSide
from tdcd.core.codecs.fixed_point import FixedBlocks, largest_product, product_steps, summed_products
from tdcd.core.family.scaled import Window
from tdcd.core.trees import leaves_of
from tdcd.federation.silos import Silo
from tdcd.simulation.engines.base import State
from tdcd.simulation.simulate import Simulation


def certify(simulation: Simulation, run: int, state: State) -> Certificate:
    """The certificate of a run's model."""
    objective, federation = simulation.runs[run].objective, simulation.federation
    labels = federation.labels.astype(objective.label_dtype("float64"))
    samples = Samples.of(objective, labels, federation.weights)
    with np.errstate(all="ignore"):
        if simulation.certificate_kind == "gradient":
            return _of_any_blocks(simulation, state, samples)
        return _of_linear_blocks(simulation, state, samples)


def _of_linear_blocks(simulation: Simulation, state: State, samples: Samples) -> Certificate:
    variant, silos, fixed = simulation.variant, simulation.federation.silos, simulation.round.summed_phi
    blocks = [[np.asarray(leaves_of(block)[0], np.float64)] for block in state.blocks]
    if simulation.certificate_kind == "witness":
        windows = [variant.window(update) for update in state.updates]
        weights = certificate.weights_of(*_products(windows, are_hidden=fixed is not None), samples.objective)
        for own, window in zip(blocks, windows, strict=True):
            own.append(certificate.witness(weights, window, own[0]))
    tables = simulation.tables
    designs = [block.design for block in simulation.blocks if is_linear(block)]
    parts: list[Any] = [
        certificate.scores_of(rows, np.stack(own), design)
        for rows, own, design in zip(tables, blocks, designs, strict=True)
    ]
    if fixed is None:
        scores = np.asarray(sum(parts[1:], start=parts[0]))
    else:
        steps = [fixed.steps(part) for part in parts]
        scores = fixed.numbers(sum(steps[1:], start=steps[0]), np.float64)
    proof = Proof(samples, scores, len(blocks[0]), certificate.score_error(fixed, len(silos)))
    sides = []
    for rows, own, silo, design in zip(tables, blocks, silos, designs, strict=True):
        pull_back = partial(certificate.pull_back, design=design)
        pulled, error = _pulled(pull_back, rows, proof.slopes, silo, simulation.round.summed_blocks)
        sides.append(SiloSide.of(pulled, own, samples.objective.l2, error))
    return proof.certificate(sides)


def _products(windows: Sequence[Window | None], *, are_hidden: bool) -> tuple[Floats, list[int]]:
    """The sum of all silos' products of gradients, and how many rounds each remembers."""
    largest = largest_product(len(windows)) if are_hidden else np.inf
    products, counts = zip(*(certificate.products(window, largest) for window in windows), strict=True)
    if not are_hidden:
        return np.asarray(sum(products[1:], start=products[0])), [*counts]
    steps = [product_steps(gram) for gram in products]
    return summed_products(sum(steps[1:], start=steps[0])), [*counts]


def _pulled(
    pull_back: Callable[[Any, Floats], Floats],
    rows: NDArray[Any],
    slopes: Floats,
    silo: Silo,
    summed: FixedBlocks | None,
) -> tuple[Floats, float]:
    """X' times the slopes, as a hub adds it up of its clients, and how far each number may be off."""
    if summed is None:
        return pull_back(rows, slopes), 0.0
    parts = [
        certificate.fixed_gradient(pull_back(rows[own], slopes[own]), summed, silo.num_clients) for own in silo.rows
    ]
    if any(part is None for part in parts):
        return np.full((1, 1), np.nan), 0.0
    return certificate.sum_of_gradients(sum(parts[1:], start=parts[0]), summed, len(parts))


def _of_any_blocks(simulation: Simulation, state: State, samples: Samples) -> Certificate:
    """The norm of the gradient by all parameters."""
    dtype = simulation.settings.dtype
    scores = np.asarray(simulation.scores_of_run(state.blocks), np.float64)
    slopes = samples.slopes(scores).astype(dtype)
    sides = []
    with jax.enable_x64(dtype == "float64"):
        for model, block, rows in zip(simulation.blocks, state.blocks, simulation.tables, strict=True):
            pulled = activations.pull_back(model, block, np.asarray(rows, dtype), slopes)
            sides.append(SiloSide.of_any(pulled, block, samples.objective.l2))
    return certificate.gradient_norm(sides)
