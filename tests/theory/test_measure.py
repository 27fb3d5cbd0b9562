"""What a run measures is what plain loops measure at the starts of its rounds, and the figure shows it."""

from dataclasses import replace

import numpy as np
import pytest
from ridge_problem import Ridge, run_plainly

from tdcd import Linear, Objective, Settings, Simulation
from tdcd.core.family.overlap import Overlap
from tdcd.core.variant import Variant
from tdcd.theory import bound, bound_figure, constants, effective_clients, gradient_norms, initial_gap, sigmas


def small_run() -> tuple[Ridge, Simulation]:
    problem = replace(Ridge.replicated(7, num_silos=2, num_clients=3), l2=0.1)
    chosen = Settings(local_steps=3, batch_size=6, step_size=0.02, dtype="float64")
    return problem, Simulation(problem.federation(), [Linear()] * 2, Objective("squared", 0.1), chosen)


def test_gradient_norms_are_those_at_the_starts_of_rounds():
    problem, simulation = small_run()
    start = problem.blocks(problem.start)
    models = run_plainly(problem, rounds=7, local_steps=3, step_size=0.02, batch_size=6, seed=0).models
    norms = [np.sum(problem.gradient(model) ** 2) for model in models[::3]]
    found = gradient_norms(problem.federation(), simulation, 7, start=start)
    assert found.squared_norms == pytest.approx(norms)
    assert found.iterations.tolist() == [3, 6, 9, 12, 15, 18, 21]
    assert found.averages[-1] == pytest.approx(np.mean(norms))
    last = simulation.advance(simulation.state_of(start), 0, 7).blocks
    assert all((a["weight"] == b["weight"]).all() for a, b in zip(found.last, last, strict=True))

    fewer = gradient_norms(problem.federation(), simulation, 7, start=start, every=3)
    assert fewer.squared_norms == pytest.approx(norms[::3])
    assert fewer.iterations.tolist() == [9, 18, 21]
    news = []
    hurried = gradient_norms(problem.federation(), simulation, 7, seconds=1e-9, observe=news.append)
    assert len(hurried.squared_norms) == 1
    assert news[0][:3] == ("squared gradient norm", 1, 7)


def test_late_runs_are_those_of_the_plain_loops_where_every_silo_begins_a_period():
    problem, simulation = small_run()
    timing = Overlap(2, (3, 1))
    late = Simulation(
        problem.federation(),
        simulation.blocks,
        simulation.objective,
        simulation.settings,
        variant=Variant(timing=timing),
    )
    plain = run_plainly(problem, rounds=9, local_steps=3, step_size=0.02, batch_size=6, seed=0, timing=timing)
    norms = [np.sum(problem.gradient(model) ** 2) for model in plain.models[::9]]
    found = gradient_norms(problem.federation(), late, 9, every=3, start=problem.blocks(problem.start))
    assert found.squared_norms == pytest.approx(norms)


def test_a_run_stays_below_its_bound_and_the_figure_shows_both():
    problem, simulation = small_run()
    federation, blocks, chosen = problem.federation(), simulation.blocks, simulation.settings
    found = gradient_norms(federation, simulation, 20)
    limit = bound(
        constants(federation, blocks, simulation.objective),
        sigmas(federation, blocks, simulation.objective, chosen, [found.first, found.last], samples=20).maximum,
        step_size=chosen.step_size,
        local_steps=chosen.local_steps,
        num_silos=federation.num_silos,
        num_clients=effective_clients(federation),
        iterations=60,
        gap=initial_gap(federation, blocks, simulation.objective, found.first),
    )
    assert all(average < limit.at(int(t)).total for average, t in zip(found.averages, found.iterations, strict=True))
    figure = str(bound_figure(found, limit))
    assert "average squared gradient norm against iterations T" in figure
    assert "measured at the starts of rounds" in figure
    assert ">bound<" in figure


def test_a_diverging_run_is_measured_while_its_numbers_are_finite():
    problem, simulation = small_run()
    wild = Simulation(
        problem.federation(), simulation.blocks, simulation.objective, Settings(step_size=1e9, batch_size=6)
    )
    found = gradient_norms(problem.federation(), wild, 20, start=problem.blocks(problem.start))
    assert 1 <= len(found.squared_norms) < 20
    assert np.isfinite(found.squared_norms).all()
    assert all(np.isfinite(block["weight"]).all() for block in found.last)


def test_bad_input_is_refused():
    problem, simulation = small_run()
    with pytest.raises(ValueError, match="rounds and every must be at least 1, not 0 and 1"):
        gradient_norms(problem.federation(), simulation, 0)
    lost = problem.blocks([part * np.nan for part in problem.start])
    with pytest.raises(ValueError, match="the hub blocks hold numbers that are not finite: take them from before the"):
        gradient_norms(problem.federation(), simulation, 1, start=lost)
