"""Which samples to train on, and who holds which columns and rows."""
# ruff: noqa: RUF012 - every configuration gets its own copy of a default

from typing import Annotated, Literal

from pydantic import Field

from tdcd.config.section import Address, Name, Positive, PositiveFloat, Section
from tdcd.core.choices import Keep
from tdcd.federation.partition import RowRule


class DataSection(Section):
    """Which samples to train on."""

    source: str = "digits"
    """One of the names in ``tdcd.data.SOURCES``, or ``"files"``: the tables that ``[[silos]]`` names."""
    standardize: bool = True
    """Features, and the labels of a regression, to mean 0 and variance 1."""
    rows: Positive | None = None
    """How many samples to draw; all by default."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the samples drawn and held out, so that runs with different seeds can share them."""
    folder: str | None = None
    """Where downloaded data is kept; by default the environment variable TDCD_DATA, or a cache in the home.

    With ``source = "files"``, where the tables are; by default beside the configuration file.
    """
    missing: Literal["mean", "refuse"] = "mean"
    """With ``source = "files"``: blank amounts become the silo's mean, told by a feature; or they stop the run."""
    rare: Positive = 10
    """With ``source = "files"``: the levels of a category with fewer training rows in the silo become "other"."""
    keep: Keep = "auto"
    """Where a simulation keeps the training samples: in memory of the host or of the device, by default where it fits.
    """
    delimiter: Annotated[str, Field(pattern=r'^[^"\r\n]$')] | None = None
    """With ``source = "files"``: what separates the fields of CSV files; by default found in each file's header."""
    encoding: Literal["utf-8", "latin-1", "cp1252"] = "utf-8"
    """With ``source = "files"``: of CSV files."""
    decimal: Literal[".", ","] = "."
    """With ``source = "files"``: the decimal mark of numbers that are texts, as all in CSV files are."""
    blank: list[str] = []
    """With ``source = "files"``: texts that stand for a blank, beside the usual ones."""
    align: bool = False
    """With ``source = "files"``: train on the ids that all silos have; otherwise ids that one lacks stop the run."""


class ClientSection(Section):
    """One client of a silo, with a table of its own."""

    name: Name
    """What its party, its certificate and the report are called by."""
    table: str
    """Its CSV or Parquet file; a real client is given ``--data`` instead."""


class SiloSection(Section):
    """A silo by name: who it is, and what it holds."""

    name: Name
    """What its hub, its certificate and the report are called by."""
    hub: Address | None = None
    """Where its hub listens, ``host:port``; only the real federation needs it."""
    clients: Positive | Annotated[list[Name], Field(min_length=1)] | None = None
    """How many, or their names; by default one, or those of ``client``."""
    features: Annotated[list[str], Field(min_length=1)] | None = None
    """Its columns by name; by default all that nobody names, or its share of a source's columns."""
    ignore: list[str] = []
    """With ``source = "files"``: columns of its tables that are not features, where ``features`` does not say it."""
    table: str | None = None
    """With ``source = "files"``: one CSV or Parquet file, which a simulation splits over the clients."""
    client: list[ClientSection] = []
    """With ``source = "files"``: every client's own table instead."""
    id: str = "id"
    """The column that tells which sample a row is about."""
    label: str | None = None
    """The column to predict, in at least one silo."""
    weight: str | None = None
    """The column that says how much a sample counts in the loss, beside the label; by default all count the same."""
    categorical: list[str] = []
    """Columns whose values are names rather than amounts."""
    period: Positive = 1
    """m of a slow silo: it makes one update, with a step m times as large, while the others make m."""

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names: c1, c2, ... where only their number is given."""
        if self.client:
            return tuple(client.name for client in self.client)
        if isinstance(self.clients, list):
            return tuple(self.clients)
        return tuple(f"c{index + 1}" for index in range(self.clients or 1))


class FederationSection(Section):
    """Who holds which columns and rows."""

    silos: Positive | None = None
    """How many, without ``[[silos]]``; 2 by default."""
    clients: Positive | Annotated[list[Positive], Field(min_length=1)] | None = None
    """How many per silo, or one number for each, without ``[[silos]]``; 5 by default."""
    rows: RowRule = "shuffled"
    """How a simulation deals a silo's rows to its clients: in order, at random, or with skewed labels."""
    sizes: list[PositiveFloat] | list[list[PositiveFloat]] | None = None
    """Relative shard sizes, one per client, or one such list per silo."""
    alpha: PositiveFloat = 1.0
    """Concentration of a Dirichlet split: the smaller, the more the clients' labels differ."""
    aligned: bool = False
    """Whether every silo splits the rows in the same way."""
    strips: bool | None = None
    """Cut images into upright strips (the default for images) rather than into runs of pixels."""
    bias: bool | None = None
    """Give the first silo a column of ones; by default for linear blocks."""
    labels: Name | None = None
    """The only silo whose clients have labels; by default all have them."""
    label_epsilon: float | None = None
    """Randomise the labels once, with this epsilon of differential privacy, and train with a corrected loss."""
    label_classes: Annotated[list[str | int], Field(min_length=2)] | None = None
    """With ``label_epsilon`` and ``source = "files"``: every class that a label can be."""
    share_model: bool = False
    """In the real federation, give every hub all silos' blocks at the end. All agree to it by sharing this file."""
    client_grace_s: PositiveFloat | None = None
    """In the real federation, how long a hub waits for a client after another one of its silo has answered, before it
    goes on without it; by default for ever."""
