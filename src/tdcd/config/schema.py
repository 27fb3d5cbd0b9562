"""The schema of the TOML configuration."""
# ruff: noqa: RUF012 - every configuration gets its own copy of a default

import re
from typing import Annotated

from pydantic import Field

from tdcd.config.data_sections import ClientSection, DataSection, FederationSection, SiloSection
from tdcd.config.section import PositiveFloat, Section
from tdcd.config.training_sections import EvaluateSection, ExchangeSection, ModelSection, TrainSection
from tdcd.core.choices import Preset
from tdcd.core.settings import Dtype

__all__ = [
    "ClientSection",
    "Config",
    "DataSection",
    "EvaluateSection",
    "ExchangeSection",
    "FederationSection",
    "LinkSection",
    "ModelSection",
    "NetworkSection",
    "RuntimeSection",
    "SiloSection",
    "TrainSection",
]


class LinkSection(Section):
    """One kind of link."""

    latency_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """How long a message is on its way, one way."""
    mbit_s: PositiveFloat
    """How many megabits it carries per second."""


class NetworkSection(Section):
    """The links that ``tdcd plan`` and ``tdcd compare`` predict times for; no run depends on them."""

    preset: Preset = "wan"
    """Links of a usual kind: in one building, between cities, or to phones."""
    client_hub: LinkSection | None = None
    """In place of the preset's link between a client and its hub."""
    hub_hub: LinkSection | None = None
    """In place of the preset's link between two hubs."""
    step_ms: PositiveFloat | None = None
    """What a client takes for one local step; by default measured on this machine."""
    slower: dict[str, Annotated[float, Field(ge=1, allow_inf_nan=False)]] = {}
    """How many times longer than that the clients of a silo compute, by its name."""


class RuntimeSection(Section):
    """The real federation; no simulation depends on it."""

    max_message_mb: PositiveFloat = 256.0
    """What a party refuses to receive, before it takes memory for it."""
    lease_s: Annotated[float, Field(ge=1, le=600)] = 6.0
    """How long a party may be silent before its link is closed; more than the longest round trip."""
    resend_s: PositiveFloat = 2.0
    """How long an answer may take before it is asked for again, at least; the wait doubles each time."""
    longest_resend_s: PositiveFloat = 30.0
    """How long the wait gets at most."""
    linger_s: PositiveFloat = 120.0
    """How long a hub that is done stays for parties that have not heard of it."""


class Config(Section):
    """A whole configuration. Every key has a default; the defaults are the demo."""

    name: Annotated[str, Field(min_length=1, max_length=80)] | None = None
    """What pages and folders call the run: by default the configuration file's name without .toml, and without a file
    the data's."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the row splits, the blocks' initial values and the minibatches."""
    dtype: Dtype = "float32"
    """Of features, blocks and phi. Data is read, centred and scaled in float64 and rounded last."""
    data: DataSection = DataSection()
    federation: FederationSection = FederationSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    exchange: ExchangeSection = ExchangeSection()
    evaluate: EvaluateSection = EvaluateSection()
    network: NetworkSection = NetworkSection()
    runtime: RuntimeSection = RuntimeSection()
    silos: list[SiloSection] = []
    """Silos by name, in place of ``federation.silos`` and ``federation.clients``."""

    @property
    def title(self) -> str:
        """What pages call the run."""
        return self.name or self.data.source

    @property
    def folder_name(self) -> str:
        """The same as a part of a path."""
        return re.sub(r"[^\w.-]+", "-", self.title).strip(".-") or "run"

    @property
    def num_silos(self) -> int:
        """N."""
        return len(self.silos) or self.federation.silos or 2

    @property
    def silo_names(self) -> list[str]:
        """The silos' names: silo1, silo2, ... where only their number is given."""
        return [silo.name for silo in self.silos] or [f"silo{index + 1}" for index in range(self.num_silos)]

    @property
    def block_names(self) -> list[str]:
        """What each silo trains."""
        block = self.model.block
        return [block] * self.num_silos if isinstance(block, str) else [*block]

    @property
    def has_bias(self) -> bool:
        """Whether the first silo carries a column of ones: by default for linear blocks, and with silo dropout for an
        mlp, too: every silo would have to know the base rate otherwise.
        """
        by_default = ("linear", "mlp") if self.train.silo_dropout else ("linear",)
        return self.block_names[0] in by_default if self.federation.bias is None else self.federation.bias

    @property
    def client_counts(self) -> list[int]:
        """K of each silo."""
        if self.silos:
            return [len(silo.client_names) for silo in self.silos]
        clients = self.federation.clients or 5
        return [clients] * self.num_silos if isinstance(clients, int) else clients
