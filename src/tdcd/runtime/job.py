"""What every party knows before it meets the others: the shared file, worked out."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tdcd.blocks.absent import Absent
from tdcd.blocks.base import Block, with_head
from tdcd.blocks.start import block_bytes
from tdcd.config import Config, ConfigError
from tdcd.config.checks import weight_keys
from tdcd.config.losses import combine_of
from tdcd.config.members import variant_of, with_steps
from tdcd.config.resolve import block_named, objective_of, settings_of
from tdcd.core import certificate
from tdcd.core.codecs.codec import WIRE_DTYPES, sent_up
from tdcd.core.combine import Combine
from tdcd.core.round import Round, Widths, round_of
from tdcd.core.settings import Settings
from tdcd.core.shared_rows import is_one_step
from tdcd.core.timing import HubTiming, followed
from tdcd.core.trees import leaves_of
from tdcd.core.variant import Variant
from tdcd.core.words import counted, one_line
from tdcd.federation import client_of, hub_of
from tdcd.records.outcome import Stopping
from tdcd.runtime.messages.messages import PublishedKind
from tdcd.runtime.messages.structure import SettingValue


class IncompatibleParties(Exception):  # noqa: N818
    """Parties that cannot train together; the text names both and what differs."""


class UnfitLabels(IncompatibleParties):
    """Labels that nothing can be trained on; the text may quote some, so it is not for silos that have none."""


WAY_ON = (
    "The other parties wait: restore the run folder from a newer backup and give the same command again; or start over "
    "everywhere, with a new folder for every hub"
)
"""What can still be done for a hub that cannot continue from its run folder."""


class Lost(IncompatibleParties):
    """A hub lacks what it needs to continue. It leaves without a word, so that the others hold the round and wait."""


@dataclass(frozen=True)
class Topology:
    """Which hubs are sent which message: the routes of a round's flows, by the hubs' names."""

    hubs: tuple[str, ...]
    """In silo order."""
    round: Round
    label_hub: str | None = None
    """The only one that has labels; None if all have them."""

    def receivers(self, what: PublishedKind, sender: str) -> list[str]:
        """The hubs that a hub sends its part of a flow to, in silo order; what comes before round 0 goes to all."""
        if what in ("hello", "opening"):
            return [hub for hub in self.hubs if hub != sender]
        return [self.hubs[silo] for silo in self.round.receivers(what, self.hubs.index(sender))]

    @property
    def broadcasters(self) -> tuple[str, ...]:
        """The hubs that send several others the same, of which digests are compared.

        With labels everywhere this finds a hub that sent two others different things. In the star it finds a mistake
        of the hub with the labels, not a lie: that hub alone carries digests between the others.
        """
        broadcasters = self.round.broadcasters() if self.label_hub is not None else range(len(self.hubs))
        return tuple(self.hubs[silo] for silo in broadcasters)


NONE_ABSENT = Absent()

SHARED = ("seed", "dtype", "data", "federation", "model", "train", "exchange", "evaluate", "silos")
"""The sections that all parties must have alike; the others are each party's own business."""


@dataclass(frozen=True)
class Job:
    """A training that several parties do together."""

    config: Config

    def __post_init__(self) -> None:
        """Refuse what only a simulation can do; labels at one silo by a variant are ``federation.labels``."""
        knowledge, problems = self.variant.knowledge, []
        if self.config.silos and not knowledge.are_labels_everywhere:
            holder = self.config.silos[knowledge.scored_at(0)].name
            federation = self.config.federation.model_copy(update={"labels": holder})
            object.__setattr__(self, "config", self.config.model_copy(update={"federation": federation}))
        if not self.config.silos:
            problems.append("silos: is missing; a real federation needs [[silos]] with name, hub and clients each")
        if self.config.train.algorithm != "tdcd":
            problems.append(f"train.algorithm = {self.config.train.algorithm!r}: a real federation runs 'tdcd' only")
        if self.config.model.loss is not None:
            objective_of(self.config, self.config.model.loss)
        clashes = self.variant.clashes(len(self.config.silos), self.combine)
        problems += [f"train.variant: {clash.sentence}" for clash in clashes]
        if self.variant.drawn_problem:
            problems.append(f"train.participation: {self.variant.drawn_problem}")
        problems += _only_simulated(self.variant, self.config.dtype) + self._late()
        if problems:
            raise ConfigError(problems)

    def _late(self) -> list[str]:
        """What is wrong with a variant's overlap and periods here; those of the file were checked before."""
        timing, grace, silos = self.variant.timing, self.config.federation.client_grace_s, len(self.config.silos)
        periods = getattr(timing, "periods", ())
        if periods and len(periods) != silos:
            return [f"train.variant: {timing} has {counted(len(periods), 'period')} for {counted(silos, 'silo')}"]
        is_late = self.timing.rounds or self.timing.longest_period > 1
        if grace and is_late:
            return [f"train.variant: {timing} does not go with federation.client_grace_s = {grace}"]
        if is_late and not self.variant.all_answer:
            # A client that is not drawn for a round would have to send phi of later ones.
            return [f"train.variant: {timing} does not go with {self.variant.participation}"]
        return []

    @cached_property
    def timing(self) -> HubTiming:
        """When hubs send phi of which rounds."""
        return followed(self.variant.timing, len(self.config.silos))

    @cached_property
    def shared(self) -> dict[str, Any]:
        """The settings that all parties compare, by dotted key; the paths of tables are left out."""
        return _shared(self.config, exclude_defaults=False)

    @cached_property
    def chosen(self) -> dict[str, Any]:
        """The keys that are not at their defaults."""
        return _shared(self.config, exclude_defaults=True)

    @cached_property
    def digest(self) -> str:
        """A fingerprint of what was chosen."""
        return shared_digest(self.config)

    @cached_property
    def settings(self) -> Settings:
        """The numbers of Algorithm 1."""
        return self._steps[0]

    @cached_property
    def most_bytes(self) -> int:
        """The largest size of a message in bytes."""
        return int(self.config.runtime.max_message_mb * 2**20)

    @cached_property
    def variant(self) -> Variant:
        """The member of the TDCD family."""
        return self._steps[1]

    @cached_property
    def _steps(self) -> tuple[Settings, Variant]:
        return with_steps(self.config, settings_of(self.config), variant_of(self.config))

    @cached_property
    def combine(self) -> Combine:
        """How the sum of the silos' phi becomes scores."""
        return combine_of(self.config.model)

    @cached_property
    def stopping(self) -> Stopping:
        """When the run ends, and which model stays."""
        return Stopping.of(self.config.model_dump(), self.variant)

    def block(self, silo: int, absent: Absent = NONE_ABSENT) -> Block:
        """What a silo trains, with stand-ins for silos that lack some of its samples. The code of another silo's own
        block is neither needed nor imported here.
        """
        if (silo, absent) not in self._blocks:
            block = block_named(self.config.block_names[silo], self.config.model)
            self._blocks[silo, absent] = with_head(absent.block(block, int(self.has_bias(silo))), self.combine)
        return self._blocks[silo, absent]

    @cached_property
    def _blocks(self) -> dict[tuple[int, Absent], Block]:
        return {}

    @cached_property
    def may_lack_samples(self) -> bool:
        """Whether silos may lack samples that others have, so that every hub needs its part of the list of samples."""
        return self.config.data.samples == "all"

    @cached_property
    def keyed(self) -> tuple[int, ...]:
        """The silos whose rows belong to many samples."""
        return tuple(index for index, silo in enumerate(self.config.silos) if silo.key is not None)

    @cached_property
    def is_one_step(self) -> bool:
        """Whether a round is one local step of linear blocks."""
        return is_one_step(self.settings, self.combine, are_linear=self.are_linear)

    @cached_property
    def hubs(self) -> tuple[str, ...]:
        """All hubs, in silo order."""
        return tuple(hub_of(silo.name) for silo in self.config.silos)

    @cached_property
    def topology(self) -> Topology:
        """Which hubs are sent what."""
        flows = self.round
        return Topology(self.hubs, flows, None if flows.centre is None else self.hubs[flows.centre])

    @cached_property
    def round(self) -> Round:
        """What parties send each other; how wide it is, is known when the samples are."""
        # So is whether there is anything to prove; who is sent what is known now.
        kind = certificate.kind_of(self.variant, self.combine, self.are_linear, 0)
        return round_of(
            self.variant, len(self.hubs), Widths(1, 1, certificate=kind, shared=self.keyed, one_step=self.is_one_step)
        )

    @cached_property
    def are_linear(self) -> bool:
        """Whether every silo's block is linear."""
        return all(name == "linear" for name in self.config.block_names)

    @cached_property
    def is_certified_linear(self) -> bool:
        """Whether certificates are of linear blocks whose sums are the scores."""
        return self.are_linear and self.combine.is_additive

    def has_bias(self, silo: int) -> bool:
        """Whether the features of a silo end with a column of ones."""
        return silo == self.config.bias_silo

    def has_labels(self, silo: int) -> bool:
        """Whether the clients of a silo have labels."""
        return silo in self._with_labels

    @cached_property
    def _with_labels(self) -> tuple[int, ...]:
        return tuple(silo for silo in range(len(self.hubs)) if self.round.scored_at(silo) == silo)

    def where_labels_are(self, silo: str) -> str:
        """In words, for the hub of a silo; nothing if all have labels."""
        holder = self.config.federation.labels
        if holder is None:
            return ""
        return "here, and in no other silo" if holder == silo else f"not here: only silo '{holder}' has them"

    @cached_property
    def has_grace(self) -> bool:
        """Whether a hub may continue without a client that does not answer."""
        return self.config.federation.client_grace_s is not None

    @cached_property
    def may_be_absent(self) -> bool:
        """Whether a round may lack samples of clients: those that do not answer, or that it does not draw."""
        return self.has_grace or not self.variant.all_answer

    @cached_property
    def sends_weights(self) -> bool:
        """Whether the hub with the labels sends the others the sample weights in every round."""
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
        sent = self.timing.sends(silo, round_index)
        return [later for later in sent if later < self.config.train.rounds]

    def needs_jax(self, silo: int) -> bool:
        """Whether a client of the silo differentiates, compiles or draws; what only adds and multiplies is NumPy's."""
        variant, loss = self.variant, self.config.model.loss
        is_written_out = loss is None or objective_of(self.config, loss).is_written_out
        is_linear = self.config.block_names[silo] == "linear" and not self.combine.extends_phi
        return not (variant.is_numpy and is_written_out and is_linear)

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


def _only_simulated(variant: Variant, dtype: str) -> list[str]:
    """The parts of a variant that real parties cannot honour, each with the reason."""
    sent: list[tuple[Any, str, str]] = [
        (exchange, name, kind)
        for exchange in dict.fromkeys((variant.exchange, variant.client_exchange))
        for name, (kind, _) in exchange.layout((1, 1, 1), dtype).items()
    ]
    block = sent_up(np.zeros((1, 1), dtype), variant.block_exchange)
    sent += [(variant.block_exchange, "block", str(leaf.dtype)) for leaf in leaves_of(block)]
    allowed = ", ".join(WIRE_DTYPES)
    return [
        f"train.variant: {exchange} sends '{name}' as {kind}, but hubs send only {allowed}"
        for exchange, name, kind in sent
        if kind not in (*WIRE_DTYPES, dtype)
    ]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not items:
        return {path: value}
    return {k: v for key, inner in items for k, v in _flat(inner, f"{path}.{key}" if path else str(key)).items()}


SHOWN = 200
"""Letters of a key or a value of another party that are shown."""


def compare_settings(party: str, theirs: Mapping[str, SettingValue], own: str, job: Job) -> None:
    """Raise unless two parties have the same shared settings; the error names the first key that differs.

    A key that one of them does not know, since its version is older, counts unless the other has set it.
    """
    ours = job.shared
    for key in sorted({*(theirs.keys() & ours.keys()), *(job.chosen.keys() - theirs.keys())}):
        if key not in theirs or theirs[key] != ours[key]:
            values = f"{_shown(theirs.get(key))} at {party} and {_shown(ours[key])} at {own}"
            raise IncompatibleParties(f"the shared files differ: {one_line(key, SHOWN)} is {values}")
    known = {_setting(key) for key in ours}
    for key in sorted(theirs.keys() - ours.keys()):
        if _setting(key) in known:
            values = f"{_shown(theirs[key])} at {party} and absent at {own}"
            raise IncompatibleParties(f"the shared files differ: {one_line(key, SHOWN)} is {values}")


def _shown(value: SettingValue) -> str:
    return one_line(repr(value), SHOWN)


def _setting(key: str) -> str:
    """The setting that a dotted key is a part of."""
    section, _, rest = key.partition(".")
    return section if section == "silos" else f"{section}.{rest.partition('.')[0]}"


SCORE_BYTES = 4
"""The fewest bytes of a score between hubs."""


def scores_beyond(job: Job, silo: int, num_samples: int, num_outputs: int) -> str:
    """Why the scores of all samples cannot be; nothing if they can.

    They travel in one message between hubs. In a federation of one silo, each client sends its own.
    """
    messages = 1 if job.peers(silo) else len(job.clients(silo))
    if num_samples * job.combine.width(num_outputs) * SCORE_BYTES <= messages * job.most_bytes:
        return ""
    scores = f"the scores of {num_samples} samples with {num_outputs} outputs each"
    return f"{scores} are more than a message may have: {_advice(job)}"


def block_beyond(
    job: Job, silo: int, feature_shape: tuple[int, ...], num_outputs: int, absent: Absent = NONE_ABSENT
) -> str:
    """Why a silo's block, with its stand-ins, cannot be; nothing if it can."""
    # Axes are positive, and even their product may be beyond what a machine can count.
    too_many = math.prod(feature_shape) * np.dtype(job.settings.dtype).itemsize > 2**20 * job.most_bytes
    width = job.combine.width(num_outputs)
    if not too_many and block_bytes(job.block(silo, absent), job.settings, feature_shape, width) <= job.most_bytes:
        return ""
    block = f"a block for features {[*feature_shape]} and {num_outputs} outputs"
    return f"{block} is more than a message may have: {_advice(job)}"


def _advice(job: Job) -> str:
    return f"raise runtime.max_message_mb = {job.config.runtime.max_message_mb:g} everywhere"
