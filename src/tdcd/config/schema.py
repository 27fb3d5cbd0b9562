"""The schema of the TOML configuration: its sections, their keys, and the types of these."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tdcd.core.choices import (
    MASK_RANGE,
    NOISE_DELTA,
    Algorithm,
    EngineName,
    Gradient,
    Keep,
    KeepModel,
    Precision,
    Preset,
    StandInKind,
)
from tdcd.core.losses import LossName
from tdcd.core.losses.huber import DELTA
from tdcd.core.schedule import Drawing, Minibatches
from tdcd.core.settings import ADAM_STEP, AUTO, BATCH_SIZE, LOCAL_STEPS, STEP_SIZE, Dtype
from tdcd.federation.partition import RowRule

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=24)]
"""The name of a silo or a client; short enough that a certificate can carry both."""
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")]


Auto = Literal["auto"]
"""What is left to the product."""


class Section(BaseModel):
    """A table of the TOML file: unknown keys are errors, and values have the types that they are written with."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataSection(Section):
    """Which samples to train on."""

    source: str = "digits"
    """One of the names in ``tdcd.data.SOURCES``, or ``"files"``: the tables that ``[[silos]]`` names."""
    standardize: bool = True
    """Features, and the labels of a regression, to mean 0 and variance 1."""
    rows: Positive | None = None
    """How many samples to draw; all by default."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the samples drawn and held out, so that runs with different seeds can share them."""
    folder: str | None = None
    """Where downloaded data is kept; by default the environment variable TDCD_DATA, or a cache in the home.

    With ``source = "files"``, where the tables are; by default next to the configuration file.
    """
    missing: Literal["mean", "refuse"] = "mean"
    """With ``source = "files"``: blank amounts become the silo's mean, marked by a feature; or they stop the run."""
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
    """With ``source = "files"``: texts that mean a missing value, in addition to the usual ones."""
    ids: Literal["exact", "plain"] = "exact"
    """With ``source = "files"``: how ids are compared: as exact texts, or without case, blanks around them, leading
    zeros and ``.0`` at the end, so that ``001``, ``1`` and ``1.0`` are one sample."""
    align: bool = False
    """With ``source = "files"``: train on the ids that all silos have; otherwise ids that one lacks stop the run."""
    samples: Literal["common", "all"] = "common"
    """With ``source = "files"``: which samples train: those that every silo has, or ``"all"`` that have a label."""
    standin: StandInKind = "function"
    """With ``samples = "all"``: what takes the place of a silo that lacks a sample: a function of the columns of a silo
    that has the labels, a constant, or nothing."""


Aggregate = Literal["count", "sum", "mean", "min", "max"]


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
    accept_hubs: bool = True
    """Whether other hubs can dial its hub. If not, it dials them; its own clients dial it in any case."""
    clients: Positive | Annotated[list[Name], Field(min_length=1)] | None = None
    """How many, or their names; by default one, or those of ``client``."""
    features: Annotated[list[str], Field(min_length=1)] | None = None
    """Its columns by name; by default all that no silo names, or its share of a source's columns."""
    ignore: list[str] = []
    """With ``source = "files"``: columns of its tables that are not features, where ``features`` does not say it."""
    table: str | None = None
    """With ``source = "files"``: one CSV or Parquet file, which a simulation splits over the clients."""
    client: list[ClientSection] = []
    """With ``source = "files"``: every client's own table instead."""
    id: str = "id"
    """The column with the id of a row's sample."""
    label: str | None = None
    """The column to predict, in at least one silo."""
    weight: str | None = None
    """The column that says how much a sample counts in the loss, next to the label; by default all count the same."""
    categorical: list[str] = []
    """Columns whose values are names rather than amounts."""
    aggregate: Annotated[list[Aggregate], Field(min_length=1)] | None = None
    """With ``source = "files"``: a sample may have several rows, such as visits or claims. They become one row with
    these figures of every amount, and the most frequent name of a categorical column; by default an id that is there
    twice stops the run."""
    key: str | None = None
    """With ``source = "files"``: a row belongs to many samples, such as a household's or an hour's. This column of the
    silo's tables is its key, and ``link`` says which key each sample has."""
    link: str | None = None
    """With ``key``: a CSV or Parquet file in ``data.folder`` with the columns ``id`` and ``key``, and ``label`` and
    ``weight`` if the silo has them; every client of the silo has it."""
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

    name: Name | None = None
    """What certificates call the federation: ``tdcd certs`` writes it into them, and one of another federation, or
    that names none, is refused. By default certificates name none."""
    run: Name | None = None
    """Which run of the federation this is: parties of another one are refused. Certificates are for all runs."""
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
    protect_labels: Literal["none", "encrypt"] = "none"
    """With "encrypt", the silo with the labels sends what others step on encrypted, so that no other party can read
    labels from it. For linear blocks, with ``labels``; needs ``pip install 'tdcd[encrypt]'``."""
    label_epsilon: float | None = None
    """Randomise the labels once, with this epsilon of differential privacy, and train with a corrected loss."""
    label_classes: Annotated[list[str | int], Field(min_length=2)] | None = None
    """With ``label_epsilon`` and ``source = "files"``: every class that a label can be."""
    share_model: bool = False
    """In the real federation, give every hub all silos' blocks at the end. All agree to it by sharing this file."""
    client_grace_s: PositiveFloat | None = None
    """In the real federation, how long a hub waits for a client after another one of its silo has answered, before it
    continues without it; by default for ever."""


NUM_BINS = 48
"""The default of ``model.bins`` where ``model.encoding`` asks for bins."""
NAMED = r"^[\w.]+:\w+$"
"""Something in a module of the user's own: ``package.module:name``."""
BlockName = Literal["linear", "mlp", "ensemble", "cnn", "torch"] | Annotated[str, Field(pattern=NAMED)]


class ModelSection(Section):
    """What each silo trains."""

    block: BlockName | Annotated[list[BlockName], Field(min_length=1)] = "mlp"
    """One for all silos, or one each; ``package.module:name`` is one of your own, in JAX, Flax or Equinox."""
    hidden: list[Positive] | Auto = "auto"
    """Widths of the hidden layers of an mlp or an ensemble: by default one of 32, and for an ensemble two of 128."""
    members: Annotated[int, Field(ge=1, le=256)] = 16
    """Networks of an ensemble; they share their weights, but for scalings of layers' inputs and outputs."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The probability with which a unit of an ensemble is left out of a local step."""
    channels: Annotated[list[Positive], Field(min_length=1)] = [64, 64]
    """Output channels of a cnn's convolutions."""
    kernel: Annotated[list[Positive], Field(min_length=2, max_length=2)] = [5, 3]
    """Height and width of a cnn's convolutions."""
    embedding: Positive = 256
    """Width of a cnn's last hidden layer."""
    module: Annotated[str, Field(pattern=NAMED)] | None = None
    """For torch blocks, ``package.module:function``: called without arguments, it returns the nn.Module."""
    folder: str | None = None
    """Where the file of ``module``, or of a block or loss of your own, is looked for first, before the working
    directory and Python's own path; by default next to the configuration file."""
    loss: LossName | Annotated[str, Field(pattern=NAMED)] | None = None
    """By default the one that fits the labels; ``package.module:name`` is one of your own."""
    huber_delta: PositiveFloat = DELTA
    """Where the Huber loss becomes linear, in standard deviations of the labels if they are standardised."""
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Auto = "auto"
    """Lambda, of regularisation: the objective has this over 2 times the squared norm of all parameters in it. By
    default 0; with ``train.step_size = "auto"`` and linear blocks 1 over the number of training samples for classes,
    and a tenth of that for amounts."""
    head: Literal["sum", "hidden", "pairs"] = "sum"
    """How the sum of the silos' phi becomes scores: the sum is the score; or one hidden layer of ReLU units on the sum;
    or the sum plus the products of every two silos' numbers, a factorisation machine. Neither has parameters, and both
    see columns of several silos together."""
    head_units: Annotated[int, Field(ge=1, le=1000)] = 8
    """Units of a hidden layer, for each score; phi is so many times wider, and one."""
    head_rank: Annotated[int, Field(ge=1, le=1000)] = 8
    """Of ``head = "pairs"``: how many numbers of every two silos are multiplied, for each score; phi is so many times
    wider, and two."""
    encoding: Literal["standard", "bins", "piecewise"] | Auto = "auto"
    """With ``data.source = "files"``, what an amount becomes: one feature; a 0/1 feature per bin; or a feature per bin
    that is the value's position within it, 0 below the bin and 1 above it, less its mean with ``data.standardize``. By
    default "piecewise" where a block is an ensemble, else "bins" where ``bins`` is given, and else "standard"."""
    bins: Annotated[int, Field(ge=2, le=1000)] | None = None
    """With ``data.source = "files"``: how many bins an amount has at most, of about equally many training rows each; 48
    by default where ``encoding`` asks for bins."""

    @property
    def chosen_encoding(self) -> Literal["standard", "bins", "piecewise"]:
        """What an amount becomes."""
        if self.encoding != "auto":
            return self.encoding
        if "ensemble" in ([self.block] if isinstance(self.block, str) else self.block):
            return "piecewise"
        return "standard" if self.bins is None else "bins"

    @property
    def num_bins(self) -> int | None:
        """How many bins an amount has at most; None where it has none."""
        return None if self.chosen_encoding == "standard" else self.bins or NUM_BINS


class TrainSection(Section):
    """Algorithm 1."""

    @model_validator(mode="before")
    @classmethod
    def _fixed_steps(cls, keys: Any) -> Any:
        """With a step size that is a number, what is left open has numbers as well; the hubs' step always has."""
        if not isinstance(keys, Mapping):
            return keys
        if keys.get("hub_step_size", AUTO) == AUTO:
            keys = {**keys, "hub_step_size": ADAM_STEP if keys.get("hub_optimizer") == "adam" else 1.0}
        if keys.get("step_size", STEP_SIZE) == AUTO:
            return keys
        fixed = {"local_steps": LOCAL_STEPS, "batch_size": BATCH_SIZE, "hub_optimizer": "average"}
        return {**keys, **{key: value for key, value in fixed.items() if keys.get(key, AUTO) == AUTO}}

    @property
    def is_automatic(self) -> bool:
        """Whether the steps are chosen and steered by the product."""
        return bool(self.step_size == AUTO)

    algorithm: Algorithm = "tdcd"
    """TDCD, or a baseline that takes as many local steps."""
    silo: str | None = None
    """The silo that trains alone, for ``local-sgd``."""
    start: Annotated[str, Field(min_length=1)] | None = None
    """The folder of a former run, whose blocks this one starts from; by default they are drawn from the seed."""
    rounds: Annotated[int, Field(ge=0)] = 200
    """Communication rounds; with ``step_size = "auto"`` the most there are."""
    step_size: PositiveFloat | Auto = STEP_SIZE
    """Eta, the learning rate of a client's local steps. "auto" chooses the steps by the blocks and the silos'
    curvature, steers them by the training loss, and ends the run when it has converged."""
    tol: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """With ``step_size = "auto"``: the run has converged when the training loss changes by less than this part in 10
    rounds; 0.0001 by default. With 0 it takes all rounds."""
    local_steps: Positive | Auto = "auto"
    """Q: gradient steps that a client takes between two communications; 10 by default, or 1 where ``step_size =
    "auto"`` scales the steps of linear blocks."""
    batch_size: Positive | Auto = "auto"
    """B: samples in a global minibatch; each client works on those that it holds. 128 by default; with ``step_size =
    "auto"`` 256, and for linear blocks every sample."""
    minibatches: Minibatches = "fresh"
    """Q different ones per round, one for all Q steps, or every sample in every step."""
    draws: Drawing = "auto"
    """How a minibatch's samples are drawn: the first distinct ones of a stream, or the first ones of a keyed
    permutation, which takes memory for the minibatch alone; by default the permutation from 2^24 samples on."""
    gradient: Gradient = "unbiased"
    """M / (n_k B) times the sum over the client's rows of the minibatch, or their mean."""
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """What a sample counts in the loss by its class: "balanced", so that all classes count the same together, or a
    weight by class, 1 for those that are not named."""
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    """How a client's block follows its gradients. What the optimiser remembers lasts one round: an Adam that starts
    over in every round costs networks much accuracy, and ``hub_optimizer = "adam"`` does not."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the step size falls: not at all, or to zero at the end of ``rounds``."""
    clip: PositiveFloat | None = None
    """The most that the norm of a client's whole gradient may be in a step; a longer one is scaled down to it."""
    hub_optimizer: Literal["auto", "average", "momentum", "adam"] = "auto"
    """How a hub's block follows the average of its clients' blocks: it is the average, or moves towards it. By default
    the average; with ``step_size = "auto"`` steps scaled by the silo's curvature for linear blocks, else Adam."""
    hub_step_size: PositiveFloat | Auto = "auto"
    """The step size of ``hub_optimizer``, unless it is ``average``: by default 0.003 for ``adam``, whose steps are as
    long as that in every parameter, and 1 for ``momentum``."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The decay of ``momentum`` optimisers."""
    overlap: Annotated[int, Field(ge=0)] = 0
    """D: in round r the others' phi comes from their blocks of round r - D, so that silos compute while messages
    travel."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """In a simulation, the fraction of each silo's clients that answer in a round, drawn again each time."""
    silo_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The probability with which a sample's score goes without a silo, drawn for every silo, sample and round: the
    model learns to do without any of them."""
    variant: Annotated[str, Field(pattern=NAMED)] | None = None
    """A variant of your own, ``package.module:name``, in place of the keys above from ``optimizer`` on."""
    folder: str | None = None
    """Where to look for the variant's module first; by default next to the configuration file."""
    precision: Precision = "tf32"
    """Precision of float32 matrix products in a simulation on a GPU; a CPU always computes them in float32."""
    engine: EngineName = "auto"
    """The engine of a simulation: the fastest that runs the problem, or the one of this name."""


class ExchangeSection(Section):
    """How numbers are sent: in how many bits, and what hides them."""

    phi_bits: Literal[32, 8, 4] = 32
    """Bits per number of phi, between hubs and between clients and their hub; 32 sends it as it is."""
    block_bits: Literal[32, 8] = 32
    """Bits per number that clients send: with 8, what their steps changed of the block; 32 sends the block as it is."""
    protect: Literal["none", "mask"] = "none"
    """With "mask", hubs add masks to their phi that cancel in the sum: each learns the sum of the others' phi only."""
    protect_blocks: bool = False
    """The same for blocks: a hub learns the weighted sum of its clients' blocks only."""
    mask_range: Annotated[float, Field(gt=0, le=2**20)] = MASK_RANGE
    """The largest magnitude that masked numbers may have."""
    epsilon: PositiveFloat | None = None
    """Add noise to the phi that hubs send, so much that all planned rounds and evaluations together spend this epsilon
    of a row's phi; needs ``pip install 'tdcd[dp]'``."""
    delta: Annotated[float, Field(gt=0, le=1e-3)] = NOISE_DELTA
    """The probability for which ``epsilon`` and ``block_epsilon`` make no promise; 0.001 at most."""
    clip: PositiveFloat = 1.0
    """With ``epsilon``, the largest norm of a row's phi; a longer one is scaled down to it."""
    block_epsilon: PositiveFloat | None = None
    """With ``protect_blocks``: let every client add noise to what its steps changed of the block, so much that all
    planned rounds together spend this epsilon of a client's changes; needs ``pip install 'tdcd[dp]'``."""
    block_clip: PositiveFloat = 1.0
    """With ``block_epsilon``, the largest norm of such a change of a client with an equal part of the rows; a longer
    one is scaled down to it."""

    @property
    def changed(self) -> list[str]:
        """The keys that are not at their defaults, with their values."""
        plain = type(self)().model_dump()
        return [f"exchange.{key} = {value!r}" for key, value in self.model_dump().items() if value != plain[key]]


HOLDOUT = 0.2
"""The default of ``evaluate.holdout``."""
PATIENCE, LONG = 24, 1500
"""The defaults of ``evaluate.patience`` and ``train.rounds`` for ensembles that stop early."""


def stops_early(keys: Mapping[str, Any]) -> bool:
    """Whether a configuration's sections are of an ensemble with automatic steps and held-out samples."""
    model, train, evaluate = (keys.get(name, {}) for name in ("model", "train", "evaluate"))
    if not all(isinstance(section, Mapping) for section in (model, train, evaluate)):
        return False
    block, is_automatic = model.get("block"), train.get("step_size", STEP_SIZE) == AUTO
    has_ensemble = block == "ensemble" or (isinstance(block, list) and "ensemble" in block)
    return bool(has_ensemble and is_automatic and evaluate.get("holdout", HOLDOUT))


class EvaluateSection(Section):
    """When and on what the global model is measured."""

    every: Positive = 5
    """Rounds between two evaluations of the global model."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = HOLDOUT
    """The fraction of samples that is held out from training."""
    stratify: bool = False
    """Hold out the same fraction of every class. Off by default: runs of earlier versions keep their samples."""
    patience: Positive | None = None
    """End the run when so many evaluations in a row gave no lower loss than the lowest before: of the held-out samples,
    or of the training samples if none are held out. By default never; 10 for ensembles with ``train.step_size =
    "auto"`` and held-out samples."""
    keep: KeepModel = "last"
    """Which model stays: that of the last round, or of the evaluation with the lowest such loss. By default the last
    one; the best one for ensembles with ``train.step_size = "auto"`` and held-out samples."""
    alone: bool = False
    """Also train each silo without the others, and show in the report what joining gains."""


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
    """How long a hub that is done stays for parties that do not know it yet."""


class Config(Section):
    """A whole configuration. Every key has a default; the defaults are the demo."""

    name: Annotated[str, Field(min_length=1, max_length=80)] | None = None
    """What pages and folders call the run: by default the configuration file's name without .toml, and without a file
    the data's."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the row splits, the blocks' initial values and the minibatches."""
    dtype: Dtype = "float32"
    """The type of features, blocks and phi. Data is read, centred and scaled in float64 and rounded last."""
    data: DataSection = DataSection()
    federation: FederationSection = FederationSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    exchange: ExchangeSection = ExchangeSection()
    evaluate: EvaluateSection = EvaluateSection()
    network: NetworkSection = NetworkSection()
    runtime: RuntimeSection = RuntimeSection()

    @model_validator(mode="before")
    @classmethod
    def _early_stopping(cls, keys: Any) -> Any:
        """An ensemble with automatic steps stops early and keeps its best model, where samples are held out."""
        if not isinstance(keys, Mapping) or not stops_early(keys):
            return keys
        evaluate = {"patience": PATIENCE, "keep": "best", **keys.get("evaluate", {})}
        return {**keys, "train": {"rounds": LONG, **keys.get("train", {})}, "evaluate": evaluate}

    silos: list[SiloSection] = []
    """Silos by name, in place of ``federation.silos`` and ``federation.clients``."""

    @property
    def title(self) -> str:
        """What pages call the run."""
        return self.name or self.data.source

    @property
    def folder_name(self) -> str:
        """The name as a part of a path."""
        return re.sub(r"[^\w.-]+", "-", self.title).strip(".-") or "run"

    @property
    def num_silos(self) -> int:
        """N."""
        return len(self.silos) or self.federation.silos or 2

    @property
    def silo_names(self) -> list[str]:
        """The silos' names: silo1, silo2, ... where only their number is given."""
        return [silo.name for silo in self.silos] or [f"silo{index + 1}" for index in range(self.num_silos)]

    def dials(self, silo: str, other: str) -> bool:
        """Whether the hub of one silo dials that of another one; only one of two does."""
        accepts = {section.name: section.accept_hubs for section in self.silos}
        return accepts[other] if accepts[silo] != accepts[other] else other < silo

    @property
    def block_names(self) -> list[str]:
        """What each silo trains."""
        block = self.model.block
        return [block] * self.num_silos if isinstance(block, str) else [*block]

    @property
    def bias_silo(self) -> int | None:
        """Which silo carries a column of ones, if one does: by default for linear blocks, and with silo dropout for an
        mlp or an ensemble, too: every silo would have to know the base rate otherwise.

        It is the first; with encrypted slopes the one with the labels, since the gradient of that column is the mean
        slope, which says how many samples of a minibatch have which label.
        """
        federation, names = self.federation, self.silo_names
        is_encrypted = federation.protect_labels == "encrypt" and federation.labels in names
        silo = names.index(str(federation.labels)) if is_encrypted else 0
        by_default = ("linear", "mlp", "ensemble") if self.train.silo_dropout else ("linear",)
        has_one = self.block_names[silo] in by_default if federation.bias is None else federation.bias
        return silo if has_one else None

    @property
    def client_counts(self) -> list[int]:
        """K of each silo."""
        if self.silos:
            return [len(silo.client_names) for silo in self.silos]
        clients = self.federation.clients or 5
        return [clients] * self.num_silos if isinstance(clients, int) else clients
