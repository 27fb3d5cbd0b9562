"""What noise on phi for a wanted epsilon would cost: how many rounds to take, the noise, and the figures to expect.

More rounds need more noise in each, and so does a larger clip. So the configuration is trained in a simulation with 3,
10, 30 ... rounds and with its clip, a third and a tenth of it, each with the noise that its rounds and its two
evaluations need. Every model is measured by its exact scores.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tdcd.config import Config
from tdcd.config.resolve import Plan
from tdcd.config.resolve import plan as plan_config
from tdcd.core.losses import metrics
from tdcd.core.words import TextTable, figure, metric_title
from tdcd.theory.progress import EstimateObserver, Meter, silent
from tdcd.training.train import train_plan

ROUNDS, PARTS = (3, 10, 30, 100, 300), (1.0, 0.3, 0.1)
"""What is tried: rounds, and parts of the configuration's clip."""


class Noisy(NamedTuple):
    """One training."""

    rounds: int
    clip: float | None
    """The largest norm of a row's phi; None without noise."""
    deviation: float | None
    """Of the noise on each number of phi; None without."""
    loss: float
    """Of the held-out samples, or of the training samples if none are held out, by exact scores."""
    figures: Mapping[str, float | None]


class NoisePlan(NamedTuple):
    """What there is to choose from."""

    epsilon: float
    delta: float
    choices: Sequence[Noisy]
    plain: Noisy
    """Without noise."""

    @property
    def best(self) -> Noisy:
        """The choice with the lowest loss."""
        return min(self.choices, key=lambda choice: choice.loss)

    @property
    def table(self) -> TextTable:
        """One row per number of rounds, and one without noise."""
        names = list(self.plain.figures)
        head = ["rounds", "clip", "noise on phi", "loss", *(metric_title(name) for name in names)]
        rows = [
            [
                f"{trained.rounds:,}",
                "none" if trained.clip is None else figure(trained.clip),
                "none" if trained.deviation is None else figure(trained.deviation),
                figure(trained.loss),
                *(figure(trained.figures[name]) for name in names),
            ]
            for trained in (*self.choices, self.plain)
        ]
        return TextTable(head, rows)

    @property
    def in_words(self) -> str:
        """What the choice is, and which lines to write."""
        taken = self.best
        return (
            f"With {taken.rounds} rounds and clip {figure(taken.clip)} the loss is lowest, {figure(taken.loss)}; "
            f"without noise it is {figure(self.plain.loss)}. To take it, write:\n\n[train]\nrounds = {taken.rounds}\n\n"
            f"[evaluate]\nevery = {taken.rounds}\n\n[exchange]\nepsilon = {self.epsilon:g}\n"
            f"delta = {self.delta:g}\nclip = {taken.clip:g}"
        )


def plan_noise(
    config: Config,
    epsilon: float,
    *,
    devices: int | None = 1,
    seconds: float = 60.0,
    observe: EstimateObserver = silent,
) -> NoisePlan:
    """Train with the noise of several numbers of rounds, from few to as many as the configuration has, and clips.

    Args:
        seconds: no further training begins after so long.
    """
    rounds_tried = [rounds for rounds in ROUNDS if rounds < config.train.rounds] + [config.train.rounds]
    tried = [(rounds, part * config.exchange.clip) for rounds in rounds_tried for part in PARTS]
    meter, choices = Meter(1 + len(tried), seconds, observe), list[Noisy]()
    plain = _trained(config.model_copy(update={"exchange": type(config.exchange)()}), devices)
    meter.report("loss without noise", plain.loss, finished=True)
    for rounds, clip in tried:
        if choices and meter.expired:
            break
        sections = {
            "exchange": config.exchange.model_copy(update={"epsilon": epsilon, "clip": clip}),
            "train": config.train.model_copy(update={"rounds": rounds}),
            "evaluate": config.evaluate.model_copy(update={"every": max(1, rounds)}),
        }
        choices.append(_trained(config.model_copy(update=sections), devices))
        meter.report(f"loss after {rounds} rounds with clip {clip:g}", choices[-1].loss, finished=True)
    return NoisePlan(epsilon, config.exchange.delta, choices, plain)


def _trained(config: Config, devices: int | None) -> Noisy:
    """What the model of a configuration reaches, by its exact scores."""
    planned: Plan = plan_config(config, devices=devices)
    result = train_plan(planned)
    federation, simulation, objective = planned.federation, result.simulation, planned.objective
    blocks = [result.blocks[silo.name] for silo in federation.silos]
    is_held_out = federation.test_labels is not None
    features = [silo.test_features for silo in federation.silos] if is_held_out else None
    labels = federation.test_labels if federation.test_labels is not None else federation.labels
    weights = federation.test_weights if is_held_out else federation.weights
    scores = simulation.scores(blocks, features)
    loss = simulation.losses(blocks, scores, labels, weights)[0]
    figures = metrics(objective.loss, objective.scores(scores), labels, federation.label_scale, objective.label_epsilon)
    exchange = planned.variant.exchange
    return Noisy(result.n_iter, getattr(exchange, "clip", None), getattr(exchange, "deviation", None), loss, figures)
