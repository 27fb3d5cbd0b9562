"""What each silo trains, how, what it sends, and when the model is measured."""
# ruff: noqa: RUF012 - every configuration gets its own copy of a default

from typing import Annotated, Literal

from pydantic import Field

from tdcd.config.section import Positive, PositiveFloat, Section
from tdcd.core.choices import MASK_RANGE, Algorithm, EngineName, Gradient, KeepModel, Loss, Precision
from tdcd.core.losses.huber import DELTA
from tdcd.core.schedule import Minibatches

NAMED = r"^[\w.]+:\w+$"
"""Something in a module of the user's own: ``package.module:name``."""
BlockName = Literal["linear", "mlp", "cnn", "torch"] | Annotated[str, Field(pattern=NAMED)]


class ModelSection(Section):
    """What each silo trains."""

    block: BlockName | Annotated[list[BlockName], Field(min_length=1)] = "mlp"
    """One for all silos, or one each; ``package.module:name`` is one of your own, in JAX."""
    hidden: list[Positive] = [32]
    """Widths of an mlp's hidden layers."""
    channels: Annotated[list[Positive], Field(min_length=1)] = [64, 64]
    """Of a cnn's convolutions."""
    kernel: Annotated[list[Positive], Field(min_length=2, max_length=2)] = [5, 3]
    """Height and width of a cnn's convolutions."""
    embedding: Positive = 256
    """Width of a cnn's last hidden layer."""
    module: Annotated[str, Field(pattern=NAMED)] | None = None
    """For torch blocks, ``package.module:function``: called without arguments, it returns the nn.Module."""
    folder: str | None = None
    """Where the file of ``module``, or of a block or loss of your own, is looked for first, before the working
    directory and Python's own path; by default beside the configuration file."""
    loss: Loss | Annotated[str, Field(pattern=NAMED)] | None = None
    """By default the one that fits the labels; ``package.module:name`` is one of your own."""
    huber_delta: PositiveFloat = DELTA
    """Where the Huber loss becomes linear, in standard deviations of the labels if they are standardised."""
    l2: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Lambda: the objective has this over 2 times the squared norm of all parameters in it."""
    head: Literal["sum", "hidden"] = "sum"
    """How the sum of the silos' phi becomes scores: the sum is the score; or one hidden layer of ReLU units on the sum,
    without parameters, which sees columns of several silos together."""
    head_units: Annotated[int, Field(ge=1, le=1000)] = 8
    """Units of a hidden layer, for each score; phi is so many times wider, and one."""
    bins: Annotated[int, Field(ge=2, le=1000)] | None = None
    """With ``data.source = "files"``: amounts become so many bins at most, of about equally many training rows."""


class TrainSection(Section):
    """Algorithm 1."""

    algorithm: Algorithm = "tdcd"
    """TDCD, or a baseline that takes as many local steps."""
    silo: str | None = None
    """The silo that trains alone, for ``local-sgd``."""
    rounds: Annotated[int, Field(ge=0)] = 200
    """Communication rounds."""
    local_steps: Positive = 10
    """Q: gradient steps that a client takes between two communications."""
    batch_size: Positive = 128
    """B: samples in a global minibatch; each client works on those that it holds."""
    step_size: PositiveFloat = 0.05
    """Eta: of a client's local steps."""
    minibatches: Minibatches = "fresh"
    """Q different ones per round, one for all Q steps, or every sample in every step."""
    gradient: Gradient = "unbiased"
    """M / (n_k B) times the sum over the client's rows of the minibatch, or their mean."""
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """What a sample counts in the loss by its class: "balanced", so that all classes count the same together, or a
    weight by class, 1 for those that are not named."""
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    """How a client's block follows its gradients; what the optimiser remembers lasts one round."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the step size falls: not at all, or to zero at the end of ``rounds``."""
    clip: PositiveFloat | None = None
    """The most that the norm of a client's whole gradient may be in a step; a longer one is scaled down to it."""
    hub_optimizer: Literal["average", "momentum", "adam"] = "average"
    """How a hub's block follows the average of its clients' blocks: it is the average, or moves towards it."""
    hub_step_size: PositiveFloat = 1.0
    """Of ``hub_optimizer``, unless it is ``average``."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of ``momentum`` optimisers."""
    overlap: Annotated[int, Field(ge=0)] = 0
    """D: in round r the others' phi comes from their blocks of round r - D, so that silos compute while messages
    travel."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """In a simulation, the fraction of each silo's clients that answer in a round, drawn anew each time."""
    silo_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The probability with which a sample's score goes without a silo, drawn anew for every silo, sample and round: the
    model learns to do without any of them."""
    variant: Annotated[str, Field(pattern=NAMED)] | None = None
    """A variant of your own, ``package.module:name``, in place of the keys above from ``optimizer`` on."""
    folder: str | None = None
    """Where to look for the variant's module first; by default beside the configuration file."""
    precision: Precision = "tf32"
    """Of float32 matrix products in a simulation on a GPU; a CPU always computes them in float32."""
    engine: EngineName = "auto"
    """Of a simulation: the fastest that runs the problem, or the one of this name."""


class ExchangeSection(Section):
    """How numbers are sent: in how many bits, and what hides them."""

    phi_bits: Literal[32, 8, 4] = 32
    """Of phi, between hubs and between clients and their hub; 32 sends it as it is."""
    block_bits: Literal[32, 8] = 32
    """Of what clients send up: with 8, what their steps changed of the block; 32 sends the block as it is."""
    protect: Literal["none", "mask"] = "none"
    """With "mask", hubs add masks to their phi that cancel in the sum: each learns the sum of the others' phi only."""
    protect_blocks: bool = False
    """The same for blocks: a hub learns the weighted sum of its clients' blocks only."""
    mask_range: Annotated[float, Field(gt=0, le=2**20)] = MASK_RANGE
    """The largest magnitude that masked numbers may have."""

    @property
    def changed(self) -> list[str]:
        """The keys that are not at their defaults, with their values."""
        plain = type(self)().model_dump()
        return [f"exchange.{key} = {value!r}" for key, value in self.model_dump().items() if value != plain[key]]


class EvaluateSection(Section):
    """When and on what the global model is measured."""

    every: Positive = 5
    """Rounds between two evaluations of the global model."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The fraction of samples that nobody trains on."""
    stratify: bool = False
    """Hold out the same fraction of every class. Off by default: runs of earlier versions keep their samples."""
    patience: Positive | None = None
    """End the run when so many evaluations in a row gave no lower loss than the lowest before: of the held-out samples,
    or of the training samples if none are held out."""
    keep: KeepModel = "last"
    """Which model stays: that of the last round, or of the evaluation with the lowest such loss."""
    alone: bool = False
    """Also train each silo without the others, and show in the report what joining gains."""
