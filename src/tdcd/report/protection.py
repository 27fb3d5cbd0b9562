"""What a run's settings keep from whom, in sentences."""

from collections.abc import Iterator, Mapping
from typing import Any

from tdcd.report import html
from tdcd.report.html import Html


def protections(config: Mapping[str, Any]) -> Iterator[Html]:
    """One paragraph, if anything differs from labels everywhere and phi and blocks as they are."""
    federation, exchange = config.get("federation", {}), config.get("exchange", {})
    labels, epsilon = federation.get("labels"), federation.get("label_epsilon")
    sentences = []
    if labels:
        sentences.append(f"Only {labels} has labels; the other silos get slopes of the loss, which tell of labels too.")
        weighted = config.get("train", {}).get("class_weights") is not None
        if weighted or any(silo.get("weight") is not None for silo in config.get("silos", ())):
            sentences.append("They also get what samples weigh.")
    if epsilon is not None:
        sentences.append(f"Labels were randomised with epsilon = {epsilon:g}; all figures are estimates from them.")
    if exchange.get("protect") == "mask":
        whose = f"the hub of {labels} gets" if labels else "hubs get"
        sentences.append(f"Masked: {whose} the sum of the other silos' phi, not each silo's.")
    if exchange.get("protect_blocks"):
        sentences.append("Masked: a hub gets the weighted sum of its clients' blocks, not each block.")
    if sentences:
        yield html.paragraph(" ".join(sentences))
