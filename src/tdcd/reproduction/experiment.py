"""An experiment: curves over communication rounds, each a configuration run with several seeds.

Each is one TOML file next to this module: ``[config]`` is an ordinary configuration, every ``[[curves]]`` entry adds
its own keys, and ``[quick]`` changes what the default size makes smaller. ``like`` names another experiment, whose
entries it has but for those of its own.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from tdcd.config import ConfigError, override

FIGURES = ("fig2a", "fig2b", "fig2c", "fig3a", "fig3b")
REMARKS = ("error", "error-n", "error-k", "error-eta")
"""On what the paper says after Theorem 1."""
FINDINGS = ("stability",)
"""What we found on the paper's own data, and it does not say."""
AS_PRINTED = ("fig2a-lambda1", "fig2b-lambda1", "fig2c-lambda1")
"""With the objective as the paper prints it, lambda = 1."""
PAPER = (*FIGURES, *REMARKS, *FINDINGS, "accuracy")
"""What is run unless something else is asked for."""
SETS = {
    "lambda1": AS_PRINTED,
    "stragglers": ("stragglers-ridge", "stragglers-cnn", "bits-ridge", "bits-cnn"),
}
"""Experiments that are asked for by one name."""
NAMES = (*PAPER, *(name for members in SETS.values() for name in members))
FALLBACKS = {"superconductivity": "superconductors", "mnist": "digits28"}
"""What stands in for a data set that is not available."""


Axis = Literal["rounds", "steps", "megabytes", "hub_megabytes", "seconds"]
"""What curves are drawn against: communication rounds; local steps; bytes over all links, or between hubs alone;
predicted time."""
SETTABLE = ("train.precision", "data.keep")
"""The keys that say how a run is carried out rather than what it computes."""


@dataclass(frozen=True)
class ExperimentCurve:
    """One line of the figure: a label and the configuration's keys, seed aside."""

    label: str
    keys: dict[str, Any]

    @property
    def slug(self) -> str:
        """The label as a folder name."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.label).strip("-")


@dataclass(frozen=True)
class Experiment:
    """What to run and how to show it."""

    name: str
    title: str
    curves: tuple[ExperimentCurve, ...]
    """In the order of the swept quantity."""
    num_seeds: int
    chosen: tuple[str, ...]
    """What the paper does not give, in words."""
    inset: int | None = None
    """Enlarge the last points: so many of them."""
    metric: str | None = None
    """A held-out metric to show next to the loss."""
    against: tuple[Axis, ...] = ("rounds", "megabytes")
    """The axes of its figures, the most important one first."""
    phi_share: float = 0.0
    """Where time is predicted: what the phi of a round takes, as a share of its local steps."""
    full_size: bool = True
    """Whether it is as large as the paper has it."""
    limits: tuple[tuple[int, int], ...] = ()
    """Pairs of N and Q whose largest step sizes are computed."""

    @property
    def num_runs(self) -> int:
        """Curves times seeds."""
        return len(self.curves) * self.num_seeds


def expand(names: Sequence[str]) -> list[str]:
    """The experiments that were asked for; those of the paper if none was.

    >>> expand(["fig2a", "stragglers"])
    ['fig2a', 'stragglers-ridge', 'stragglers-cnn', 'bits-ridge', 'bits-cnn']
    """
    return [member for name in names or PAPER for member in SETS.get(name, (name,))]


def load_experiment(name: str, *, full: bool, assignments: Sequence[str] = ()) -> Experiment:
    """The experiment of that name, at the paper's size or at the default one.

    Args:
        assignments: ``section.key=value``, of the keys in :data:`SETTABLE`.
    """
    if name not in NAMES:
        known = ", ".join((*PAPER, *SETS, *NAMES[len(PAPER) :]))
        raise ValueError(f"there is no experiment '{name}'; there are {known}")
    refused = [text for text in assignments if text.partition("=")[0].strip() not in SETTABLE]
    if refused:
        allowed = " and ".join(SETTABLE)
        raise ConfigError([f"--set {refused[0]}: an experiment is as the paper has it; only {allowed} can be set"])
    tables = _read(name)
    base = tables["config"] if full else merge(tables["config"], tables.get("quick", {}))
    curves, smaller = [], not full and "quick" in tables
    for entry in tables["curves"]:
        keys = dict(entry)
        label, quick = keys.pop("label"), keys.pop("quick", {})
        smaller |= not full and bool(quick)
        curves.append(ExperimentCurve(label, override(merge(base, keys if full else merge(keys, quick)), assignments)))
    limits = tables.get("limits", {"silos": [], "local_steps": []})
    chosen = tables["chosen"] + ([] if full else tables.get("quick_chosen", []))
    return Experiment(
        name,
        tables["title"],
        tuple(curves),
        tables["seeds"] if full else tables.get("quick_seeds", tables["seeds"]),
        tuple(chosen),
        tables.get("inset"),
        tables.get("metric"),
        tuple(tables.get("against", Experiment.against)),
        tables.get("phi_share", Experiment.phi_share),
        not smaller,
        tuple((n, q) for n in limits["silos"] for q in limits["local_steps"]),
    )


def _read(name: str) -> dict[str, Any]:
    tables = tomllib.loads(files("tdcd.reproduction").joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    like = tables.pop("like", None)
    return merge(_read(like), tables) if like else tables


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, those ``above`` on top.

    >>> merge({"train": {"rounds": 1, "local_steps": 2}}, {"train": {"rounds": 3}})
    {'train': {'rounds': 3, 'local_steps': 2}}
    """
    merged = dict(below)
    for key, value in above.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if nested else value
    return merged
