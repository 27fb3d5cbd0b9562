"""What the entries of a comparison take for computing, and their rounds on a network."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tdcd.compare.compute import Compute, given, measured
from tdcd.compare.prediction import Prediction, predict
from tdcd.config.resolve import Plan
from tdcd.core.network import Network
from tdcd.simulation.simulate import Simulation
from tdcd.training.train import ledger_of, simulate


def computes_alike(planned: Plan, tdcd: Plan) -> bool:
    """Whether a client's phi and local steps are the same work."""
    settings = replace(planned.settings, step_size=tdcd.settings.step_size)
    return planned.federation is tdcd.federation and (settings, planned.variant.update) == (
        tdcd.settings,
        tdcd.variant.update,
    )


def time_rounds(
    planned: Plan, folder: Path, network: Network, step_seconds: float | None, slower: Mapping[str, float]
) -> tuple[Compute, Prediction]:
    """What a client takes, as given or measured once and kept in ``folder``, and what rounds do."""
    simulation = simulate(planned)
    if step_seconds is None:
        compute = _measured_once(planned, simulation, folder / "compute.json")
    else:
        compute = given(step_seconds, planned)
    ledger = ledger_of(simulation, simulation.init().blocks, planned)
    return compute, predict(planned, ledger, network, compute, slower)


def _measured_once(planned: Plan, simulation: Simulation, path: Path) -> Compute:
    """Measured, and kept next to the run: the same folder gives the same page."""
    if path.exists():
        try:
            return Compute(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and the time is measured again") from None
    compute = measured(planned, simulation)
    path.write_text(json.dumps(compute._asdict()) + "\n")
    return compute
