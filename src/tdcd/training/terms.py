"""Training keeps to the terms of its federation: who has labels, what was done to them, and what they are."""

from dataclasses import replace

from tdcd.core.knowledge import LabelsAt
from tdcd.core.losses import fitting
from tdcd.core.objective import Objective
from tdcd.core.settings import Settings
from tdcd.core.variant import Variant
from tdcd.federation.silos import Federation

MADE = "Federation.from_frames"


def on_terms(
    federation: Federation, objective: Objective, settings: Settings, variant: Variant | None
) -> tuple[Objective, Variant | None]:
    """The objective and the variant with what the federation's terms add; refuses those that contradict them."""
    _check_preparation(federation, objective, settings)
    return _corrected(federation, objective), _with_knowledge(federation, variant)


def _check_preparation(federation: Federation, objective: Objective, settings: Settings) -> None:
    """Refuse a loss for which the labels were not prepared, and a precision that the features do not have."""
    terms, loss = federation.terms, objective.kind
    if terms.dtype is not None and settings.dtype != terms.dtype:
        raise ValueError(
            f"Settings(dtype={settings.dtype!r}): {MADE} prepared the features in {terms.dtype}; give it "
            f"dtype={settings.dtype!r} too"
        )
    if terms.loss is not None and terms.loss != loss:
        raise ValueError(
            f"Objective({loss.name!r}): {MADE} was given the loss {terms.loss.name!r}, and prepared the labels for it; "
            "give both the same"
        )
    if terms.loss is None and terms.task is not None:
        taken = f"{MADE} took the labels for " + (federation.labels_in_words or terms.task)
        if terms.task not in loss.tasks:
            use = " or ".join(repr(name) for name in fitting(terms.task))
            raise ValueError(
                f"Objective({loss.name!r}): {taken}. Give it model={{'loss': {loss.name!r}}}, or train with {use}"
            )
        if federation.label_scale != 1 and not loss.standardizes:
            raise ValueError(
                f"Objective({loss.name!r}): {taken}, and standardised them. Give it model={{'loss': {loss.name!r}}}"
            )


def _corrected(federation: Federation, objective: Objective) -> Objective:
    epsilon, given = federation.terms.label_epsilon, objective.label_epsilon
    if epsilon is None or given == epsilon:
        return objective
    if given is not None:
        raise ValueError(
            f"Objective(label_epsilon={given:g}): the labels were randomised with federation.label_epsilon = "
            f"{epsilon:g}; leave it out"
        )
    return replace(objective, label_epsilon=epsilon)


def _with_knowledge(federation: Federation, variant: Variant | None) -> Variant | None:
    silo = federation.terms.label_silo
    if silo is None:
        return variant
    chosen = variant or Variant()
    here = LabelsAt([one.name for one in federation.silos].index(silo))
    if "knowledge" not in chosen.changed:
        chosen = replace(chosen, knowledge=here)
    elif chosen.knowledge.route != here.route:
        raise ValueError(
            f"variant: its knowledge = {chosen.knowledge}, and federation.labels = {silo!r} is {here}; leave it out"
        )
    for part, why in chosen.label_clashes:
        raise ValueError(
            f"variant: {part} = {getattr(chosen, part)} does not go with federation.labels = {silo!r}, since {why}; "
            "leave one of them out"
        )
    return chosen
