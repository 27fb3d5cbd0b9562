"""What every party knows before it meets the others: the shared file, worked out."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tdcd.blocks.base import Block
from tdcd.config import Config, ConfigError
from tdcd.config.members import variant_of
from tdcd.config.resolve import block_named, has_bias, objective_of, settings_of
from tdcd.config.weighting import weight_keys
from tdcd.core.exchange import WIRE_DTYPES, AsItIs, WholeBlock, sent_up
from tdcd.core.fixed_point import FixedBlocks
from tdcd.core.knowledge import WrittenOut
from tdcd.core.settings import Settings
from tdcd.core.timing import Overlap
from tdcd.core.trees import leaves_of
from tdcd.core.update import Sgd
from tdcd.core.variant import Everybody, Variant
from tdcd.core.words import counted
from tdcd.federation.party_names import client_of, hub_of
from tdcd.records.patience import Stopping
from tdcd.runtime.protocol.audience import Audience

SHARED = ("seed", "dtype", "data", "federation", "model", "train", "exchange", "evaluate", "silos")
"""The sections that all parties must have alike; the others are each party's own business."""


@dataclass(frozen=True)
class Job:
    """A training that several parties do together."""

    config: Config

    def __post_init__(self) -> None:
        """Refuse what only a simulation can do."""
        problems = []
        if not self.config.silos:
            problems.append("silos: is missing; a real federation needs [[silos]] with name, hub and clients each")
        if self.config.train.algorithm != "tdcd":
            problems.append(f"train.algorithm = {self.config.train.algorithm!r}: a real federation runs 'tdcd' only")
        if self.config.model.loss is not None:
            objective_of(self.config, self.config.model.loss)
        problems += _only_simulated(self.variant, self.config.dtype, self.config.federation.labels) + self._late()
        if problems:
            raise ConfigError(problems)

    def _late(self) -> list[str]:
        """What is wrong with a variant's overlap and periods here; those of the file were checked before."""
        timing, grace = self.variant.timing, self.config.federation.client_grace_s
        if not isinstance(timing, Overlap) or timing == Overlap():
            return []
        problems = [f"train.variant: {timing} does not go with federation.client_grace_s = {grace}"] if grace else []
        if timing.periods and len(timing.periods) != len(self.config.silos):
            problems.append(
                f"train.variant: {timing} has {counted(len(timing.periods), 'period')} for "
                f"{counted(len(self.config.silos), 'silo')}"
            )
        return problems

    @cached_property
    def shared(self) -> dict[str, Any]:
        """The settings that all parties compare, by dotted key; the paths of tables are left out."""
        return _shared(self.config, exclude_defaults=False)

    @cached_property
    def chosen(self) -> dict[str, Any]:
        """Those of them that are not at their defaults."""
        return _shared(self.config, exclude_defaults=True)

    @cached_property
    def digest(self) -> str:
        """A fingerprint of what was chosen."""
        return shared_digest(self.config)

    @cached_property
    def settings(self) -> Settings:
        """The numbers of Algorithm 1."""
        return settings_of(self.config)

    @cached_property
    def most_bytes(self) -> int:
        """Of a message."""
        return int(self.config.runtime.max_message_mb * 2**20)

    @cached_property
    def variant(self) -> Variant:
        """The member of the TDCD family."""
        return variant_of(self.config)

    @cached_property
    def stopping(self) -> Stopping:
        """When the run ends, and which model stays."""
        return Stopping.of(self.config.model_dump())

    def block(self, silo: int) -> Block:
        """What a silo trains. The code of another silo's own block is neither needed nor imported here."""
        if silo not in self._blocks:
            self._blocks[silo] = block_named(self.config.block_names[silo], self.config.model)
        return self._blocks[silo]

    @cached_property
    def _blocks(self) -> dict[int, Block]:
        return {}

    @property
    def hubs(self) -> tuple[str, ...]:
        """All hubs, in silo order."""
        return tuple(hub_of(silo.name) for silo in self.config.silos)

    @cached_property
    def audience(self) -> Audience:
        """Which hubs are sent what."""
        labels = self.config.federation.labels
        return Audience(self.hubs, None if labels is None else hub_of(labels))

    def has_bias(self, silo: int) -> bool:
        """Whether the features of a silo end with a column of ones."""
        return silo == 0 and has_bias(self.config)

    def has_labels(self, silo: int) -> bool:
        """Whether the clients of a silo have labels."""
        return self.config.federation.labels in (None, self.config.silos[silo].name)

    def where_labels_are(self, silo: str) -> str:
        """In words, for the hub of a silo; nothing if all have labels."""
        holder = self.config.federation.labels
        if holder is None:
            return ""
        return "here, and in no other silo" if holder == silo else f"not here: only silo '{holder}' has them"

    @cached_property
    def tells_weights(self) -> bool:
        """Whether the hub with the labels tells the others in every round what samples weigh."""
        return self.config.federation.labels is not None and bool(weight_keys(self.config))

    def silo_index(self, name: str) -> int:
        """Which silo is called ``name``."""
        names = [silo.name for silo in self.config.silos]
        if name not in names:
            raise ConfigError([f"there is no silo '{name}'; the federation has {', '.join(names)}"])
        return names.index(name)

    def clients(self, silo: int) -> tuple[str, ...]:
        """The clients of a silo, in order."""
        chosen = self.config.silos[silo]
        return tuple(client_of(chosen.name, client) for client in chosen.client_names)

    def sends(self, silo: int, round_index: int) -> list[int]:
        """The rounds whose phi a silo sends in this one."""
        sent = timing_of(self.variant).sends(silo, round_index)
        return [later for later in sent if later < self.config.train.rounds]

    def needs_jax(self, silo: int) -> bool:
        """Whether a client of the silo differentiates, compiles or draws; what only adds and multiplies is NumPy's."""
        variant, loss = self.variant, self.config.model.loss
        plain = (variant.update, variant.client_exchange, variant.dropout.rate) == (Sgd(), AsItIs(), 0)
        plain &= isinstance(variant.block_exchange, WholeBlock | FixedBlocks)
        plain &= isinstance(variant.knowledge, WrittenOut) and (
            loss is None or objective_of(self.config, loss).is_written_out
        )
        return not (plain and self.config.block_names[silo] == "linear")

    def peers(self, silo: int) -> tuple[str, ...]:
        """The other hubs."""
        return tuple(hub for index, hub in enumerate(self.hubs) if index != silo)


def shared_digest(config: Config) -> str:
    """A fingerprint of what was chosen: a key that a later version adds changes it only when it is set."""
    chosen = _shared(config, exclude_defaults=True)
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()


def _shared(config: Config, *, exclude_defaults: bool) -> dict[str, Any]:
    """The settings that all parties must have alike, by dotted key."""
    keys = config.model_dump(include=set(SHARED), exclude_defaults=exclude_defaults)
    for section in ("data", "model", "train"):
        keys.get(section, {}).pop("folder", None)
    for silo in keys.get("silos", []):
        silo.pop("table", None)
        silo["client"] = [client["name"] for client in silo.get("client", [])]
    return _flat(keys)


def _only_simulated(variant: Variant, dtype: str, labels: str | None) -> list[str]:
    """The parts of a variant that real parties cannot honour, each with the reason."""
    problems = []
    if variant.knowledge.label_silo is not None and not labels:
        problems.append("train.variant: real parties have labels at one silo by federation.labels, not by a variant")
    if not isinstance(variant.timing, Overlap):
        problems.append(f"train.variant: only a simulation can follow {variant.timing}; real hubs know tdcd.Overlap")
    if variant.participation != Everybody():
        problems.append(
            "train.participation: real clients answer when they can, so only a simulation draws who does; "
            "federation.client_grace_s says how long a hub waits for one"
        )
    sent: list[tuple[Any, str, str]] = [
        (exchange, name, kind)
        for exchange in dict.fromkeys((variant.exchange, variant.client_exchange))
        for name, (kind, _) in exchange.layout((1, 1, 1), dtype).items()
    ]
    block = sent_up(np.zeros((1, 1), dtype), variant.block_exchange)
    sent += [(variant.block_exchange, "block", str(leaf.dtype)) for leaf in leaves_of(block)]
    allowed = ", ".join(WIRE_DTYPES)
    return problems + [
        f"train.variant: {exchange} sends '{name}' as {kind}, but hubs send only {allowed}"
        for exchange, name, kind in sent
        if kind not in (*WIRE_DTYPES, dtype)
    ]


def timing_of(variant: Variant) -> Overlap:
    """When hubs send, which a job has checked."""
    assert isinstance(variant.timing, Overlap)
    return variant.timing


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not items:
        return {path: value}
    return {k: v for key, inner in items for k, v in _flat(inner, f"{path}.{key}" if path else str(key)).items()}
