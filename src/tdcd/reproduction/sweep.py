"""Running an experiment: every curve with every seed, each into a run folder of its own.

A run that is finished is not run again, and one that was interrupted continues.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.compare import network_of
from tdcd.compare.compute import Compute
from tdcd.compare.prediction import predict
from tdcd.config import Config, check_config
from tdcd.data import DataUnavailable
from tdcd.federation.silos import Federation
from tdcd.records.history import Record
from tdcd.records.run_folder import RunFolder
from tdcd.reproduction.experiment import FALLBACKS, Experiment, ExperimentCurve, merge
from tdcd.reproduction.results import CurveResult, ExperimentResult, Limit, made_with
from tdcd.theory import RoundMap, max_step_size
from tdcd.training.sweep.runner import RunTask, SweepProgress, planned, run_all, source_table
from tdcd.training.train import ledger_of, simulate


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    devices: int | None = 1,
    observe: Callable[[SweepProgress], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ExperimentResult:
    """Run what is missing under ``out`` and gather all curves; ``devices`` as for :func:`tdcd.config.resolve.plan`."""
    asked, (experiment, reason) = experiment, _with_available_data(experiment)
    tasks = [
        RunTask(
            f"{experiment.name}, {curve.label}, seed {seed}",
            check_config(merge(curve.keys, {"seed": seed})),
            out / experiment.name / curve.slug / f"seed-{seed}",
        )
        for curve in experiment.curves
        for seed in range(experiment.num_seeds)
    ]
    histories = iter(run_all(tasks, devices=devices, observe=observe, should_stop=should_stop))
    results = []
    for curve in experiment.curves:
        config = check_config(curve.keys)
        by_seed = [next(histories) for _ in range(experiment.num_seeds)]
        folder = out / experiment.name / curve.slug / "seed-0"
        gathered = _gather(curve.label, by_seed, experiment.metric, config, RunFolder(folder).facts())
        if "seconds" in experiment.against:
            ends = predicted_ends(config, int(gathered.rounds[-1]), experiment.phi_share)
            gathered = replace(gathered, seconds=np.array(ends)[gathered.rounds])
        results.append(gathered)
    last = planned(tasks[-1].config)
    squared = last.objective.kind.target == "amount"
    return ExperimentResult(
        asked.name,
        experiment.title,
        last.federation.name,
        tuple(results),
        ridge_optimum(last.federation, last.objective.l2) if squared else None,
        reason,
        experiment.full_size,
        experiment.chosen,
        experiment.inset,
        experiment.metric,
        experiment.against,
        made_with(last.config, [task.folder for task in tasks]),
        tuple(_limits(last.config, experiment.limits)),
    )


def _limits(config: Config, wanted: Sequence[tuple[int, int]]) -> Iterator[Limit]:
    """The largest step sizes on an experiment's table, with other N and Q."""
    for silos in dict.fromkeys(silos for silos, _ in wanted):
        changed = config.model_copy(update={"federation": config.federation.model_copy(update={"silos": silos})})
        own = planned(changed)
        rounds = RoundMap.of(own.federation, own.objective.l2)
        for steps in (steps for other, steps in wanted if other == silos):
            proof, printed = (max_step_size(rounds.constants, steps, silos, each) for each in ("proof", "printed"))
            yield Limit(silos, steps, rounds.largest_stable(steps, proof), proof, printed)


def _with_available_data(experiment: Experiment) -> tuple[Experiment, str]:
    """The experiment itself, or one on the stand-in for its data and the reason."""
    try:
        source_table(check_config(experiment.curves[0].keys))
    except DataUnavailable as error:
        # A file that is there and is not the right one is a mistake, which nothing else makes up for.
        if not error.by_hand:
            raise
        return stand_in(experiment), f"{str(error).splitlines()[0]}; {error.by_hand}"
    return experiment, ""


def stand_in(experiment: Experiment) -> Experiment:
    """The experiment on the table that stands in for its own, or as much of it as there is.

    Its runs are kept separately.
    """
    keys = experiment.curves[0].keys
    data = check_config(keys).data
    source = FALLBACKS[data.source]
    available = len(source_table(check_config(merge(keys, {"data": {"source": source, "rows": None}}))).labels)
    curves = []
    for curve in experiment.curves:
        changed = {**curve.keys["data"], "source": source}
        if data.rows is not None and data.rows > available:
            del changed["rows"]
        curves.append(ExperimentCurve(curve.label, {**curve.keys, "data": changed}))
    return replace(experiment, name=f"{experiment.name}-{source}", curves=tuple(curves))


def _gather(
    label: str, histories: Sequence[list[Record]], metric: str | None, config: Config, facts: dict[str, Any]
) -> CurveResult:
    longest = max(histories, key=len)

    def rows(value: Callable[[Record], float | None]) -> Iterator[list[float]]:
        for history in histories:
            values = [value(record) for record in history]
            padded = values + [None] * (len(longest) - len(values))
            yield [float("nan") if number is None else number for number in padded]

    return CurveResult(
        label,
        np.array([record.round for record in longest]),
        np.array(list(rows(lambda record: record.train_loss))),
        np.array([record.bytes.total / 1e6 for record in longest]),
        np.array([record.bytes.hub_to_hub / 1e6 for record in longest]),
        None if metric is None else np.array(list(rows(lambda record: record.metrics["test"][metric]))),
        # A baseline may take fewer than its configuration says.
        local_steps=longest[-1].iteration // max(longest[-1].round, 1),
        batch_size=int(config.train.batch_size),
        step_size=float(config.train.step_size),
        hub_messages=longest[-1].messages.hub_to_hub // max(longest[-1].round, 1),
        parameters=sum(silo["parameters"] for silo in facts["silos"]),
    )


def predicted_ends(config: Config, rounds: int, phi_share: float) -> list[float]:
    """When each of the first rounds is over on the network of a configuration, which says what a step takes.

    Args:
        phi_share: what the phi of a round takes, as a share of its local steps.
    """
    network, own = config.network, planned(config)
    assert network.step_ms is not None
    simulation, step = simulate(own), network.step_ms / 1e3
    ledger = ledger_of(simulation, simulation.init().blocks)
    compute = Compute(phi_share * own.settings.local_steps * step, step)
    return predict(own, ledger, network_of(network), compute, network.slower).ends(rounds)


def ridge_optimum(federation: Federation, l2: float) -> float:
    r"""The least value of the ridge objective, from its normal equations in float64.

    .. math:: \Big(\frac1M X^T X + \lambda I\Big)\theta^* = \frac1M X^T y
    """
    features = np.concatenate([silo.features.reshape(len(silo.features), -1) for silo in federation.silos], axis=1)
    features, labels = features.astype(np.float64), np.asarray(federation.labels, np.float64)
    gram = features.T @ features / len(labels) + l2 * np.eye(features.shape[1])
    solution = np.linalg.solve(gram, features.T @ labels / len(labels))
    residual = features @ solution - labels
    return float(residual @ residual / (2 * len(labels)) + l2 / 2 * solution @ solution)
