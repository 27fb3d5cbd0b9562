"""How long one client computes, measured on this machine."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tdcd.blocks.base import phi_of_members, step_phi
from tdcd.config.resolve import Plan
from tdcd.core import algorithm
from tdcd.core.algorithm import Descent, Minibatch
from tdcd.core.codecs.codec import seed_words
from tdcd.core.knowledge import Known
from tdcd.core.objective import Tree
from tdcd.core.schedule import batch_ids, step_keys
from tdcd.federation.placement import Placer
from tdcd.simulation.simulate import Simulation

REPEATS = 9
"""Timings of which the median counts."""
FORWARD_FRACTION = 1 / 3
"""The part of a step's time that phi of its rows takes: by the rule that a backward pass costs two forward ones."""


class Compute(NamedTuple):
    """What the slowest client takes."""

    phi_seconds: float
    """For the phi of all minibatches of a round; 0 where it is not exchanged."""
    step_seconds: float
    """For one local step."""


def given(step_seconds: float, planned: Plan) -> Compute:
    """The costs that follow from the time of a step, the same for every algorithm; phi by the rule of thumb."""
    exchanged = planned.settings.num_exchanged
    return Compute(exchanged * FORWARD_FRACTION * step_seconds if _exchanges(planned) else 0.0, step_seconds)


def measured(planned: Plan, simulation: Simulation) -> Compute:
    """The costs as measured on the functions that a client runs, for the largest client of each silo.

    Only that client computes, and by itself: a simulated round is no measure, since it runs all clients at once. The
    slowest silo counts; where all silos are on one machine, their steps come one after the other.
    """
    dtype = simulation.settings.dtype
    with jax.enable_x64(dtype == "float64"), simulation.execution.matrix_products(dtype):
        times = [_client(planned, simulation, index, block) for index, block in enumerate(simulation.init().blocks)]
    if not _exchanges(planned):
        return Compute(0.0, sum(silo.step_seconds for silo in times))
    return Compute(max(silo.phi_seconds for silo in times), max(silo.step_seconds for silo in times))


def _exchanges(planned: Plan) -> bool:
    return planned.federation.num_silos > 1 and planned.colocation != "all"


def _client(planned: Plan, simulation: Simulation, index: int, block: Tree) -> Compute:
    """The times of one silo's largest client, on as many of the first round's rows as it would pad to."""
    settings, federation = planned.settings, planned.federation
    silo = federation.silos[index]
    ids = batch_ids(
        settings.seed,
        [0],
        num_samples=federation.num_samples,
        batch_size=simulation.batch_size,
        local_steps=settings.local_steps,
        minibatches=settings.minibatches,
        draws=settings.draws,
    )[0]
    width = Placer(silo.holders, simulation.batch_size).usual
    rows = ids[:, :width]
    features = jnp.asarray(silo.features[rows], settings.dtype)
    labels = jnp.asarray(federation.labels[rows], simulation.objective.label_dtype(settings.dtype))
    model, objective, variant = simulation.blocks[index], simulation.objective, simulation.variant
    width_of_phi, knowledge = simulation.phi_width, variant.knowledge
    is_scored_here = knowledge.scored_at(index) == index
    width_received = width_of_phi if is_scored_here else objective.statistic_width(simulation.num_outputs)
    start, received = (jnp.zeros((*rows.shape, count), settings.dtype) for count in (width_of_phi, width_received))
    weights = jnp.full(rows.shape, 1 / width, settings.dtype)
    keys = None
    if phi_of_members(model) is not None:
        keys = step_keys(seed_words(settings.seed), 0, index, 0, len(features))
    minibatches = Minibatch(features, Known(labels, received, start), weights, keys)
    losses = partial(knowledge.losses, index, objective=objective)
    descent = Descent(losses, objective.l2, variant.update, jnp.asarray(settings.step_size, settings.dtype))
    phi = jax.jit(partial(algorithm.phi, apply=model.phi))
    steps = jax.jit(
        lambda block, minibatches: algorithm.client_steps(
            block,
            minibatches,
            jnp.zeros((), jnp.int32),
            apply=step_phi(model),
            descent=descent,
            steps=settings.local_steps,
        )
    )
    return Compute(
        _median_seconds(lambda: phi(block, features)),
        _median_seconds(lambda: steps(block, minibatches)) / settings.local_steps,
    )


def _median_seconds(call: Callable[[], Any]) -> float:
    jax.block_until_ready(call())  # type: ignore[no-untyped-call]
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(call())  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - began)
    return statistics.median(times)
