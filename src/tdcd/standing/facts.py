"""What a job asks of a silo: what its clients read, what leaves them, and who gets what."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import NamedTuple

from tdcd.config import Config
from tdcd.config.schema import SiloSection
from tdcd.standing.statements import JobKind, Offer

DAY_S, MONTH_S = 86_400, 30 * 86_400


class Reads(NamedTuple):
    """The columns and files that a job makes the clients of a silo read, by what they are for."""

    features: tuple[str, ...] | None
    """None if the job does not name them: then all that nothing else is."""
    ids: tuple[str, ...]
    """The id column; where there are labels, also what it may be called in a second table, with the labels."""
    label: str | None
    weight: str | None
    key: str | None
    link: str | None
    aggregate: tuple[str, ...]

    @classmethod
    def of(cls, config: Config, silo: SiloSection) -> "Reads":
        """As clients read tables: a label or weight that the silo does not name is called as another silo says."""
        sections, label, weight, ids = config.silos, None, None, {silo.id: None}
        if config.federation.labels in (None, silo.name):
            label = silo.label or next((section.label for section in sections if section.label is not None), None)
            weight = silo.weight or next((section.weight for section in sections if section.weight is not None), None)
            ids |= {section.id: None for section in sections if section.label is not None}
        features = None if silo.features is None else tuple(dict.fromkeys([*silo.features, *silo.categorical]))
        return cls(features, (*ids,), label, weight, silo.key, silo.link, tuple(silo.aggregate or ()))

    @property
    def columns(self) -> frozenset[str]:
        """All that are named."""
        rest = {name for name in (self.label, self.weight, self.key) if name is not None}
        return frozenset({*self.ids, *rest, *(self.features or ())})

    def for_prediction(self) -> "Reads":
        """What of it is read of new rows."""
        return self._replace(ids=self.ids[:1], label=None, weight=None)

    def in_words(self) -> str:
        """For people who decide."""
        words = [f"features {', '.join(self.features)}" if self.features else "features: all that no silo names"]
        words += [f"id {' or '.join(self.ids)}"]
        words += [f"label {self.label}"] * (self.label is not None) + [f"weight {self.weight}"] * bool(self.weight)
        words += [f"key {self.key}, in the link table {self.link}"] * (self.key is not None)
        words += [f"several rows of a sample as {', '.join(self.aggregate)}"] * bool(self.aggregate)
        return "; ".join(words)


def paths_outside(config: Config) -> list[str]:
    """What is wrong with files that a job names: they have to be next to a client's data, or below."""
    problems = []
    for silo in config.silos:
        if silo.link is None:
            continue
        where = f"silo '{silo.name}': link = {silo.link!r}"
        path = PurePosixPath(silo.link)
        if path.is_absolute() or ".." in path.parts or PureWindowsPath(silo.link).drive or "\\" in silo.link:
            problems.append(f"{where}: must be a file in the folder of a client's data, named from there, without '..'")
        if config.data.folder is not None:
            problems.append(f"{where}: counts from the folder of a client's data; leave out data.folder")
    return problems


def not_audited(config: Config) -> list[str]:
    """Why there can be no audit of a job, a sentence each."""
    problems, exchange = [], config.exchange
    if config.data.source != "files":
        problems.append(f"data.source = {config.data.source!r}: clients audit their own tables")
    if config.data.samples == "all":
        problems.append("data.samples = 'all': an audit needs samples that all silos have")
    if exchange.block_epsilon is not None:
        problems.append(f"exchange.block_epsilon = {exchange.block_epsilon:g}: an audit takes blocks as they are")
    if config.train.start is not None:
        problems.append(f"train.start = {config.train.start!r}: an audit attacks a run from its first block")
    if config.train.silo_dropout:
        problems.append("train.silo_dropout: an audit takes phi of every sample; leave it out")
    if config.train.algorithm != "tdcd":
        problems.append(f"train.algorithm = {config.train.algorithm!r}: an audit attacks what parties of TDCD send")
    if any(silo.weight for silo in config.silos):
        problems.append("weight under [[silos]]: no attack of an audit looks at weights")
    return problems


class LabelDraw(NamedTuple):
    """What randomised labels follow from: the same once more gives nothing more away."""

    epsilon: float
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    spelling: str

    @classmethod
    def of(cls, config: Config, silo: SiloSection) -> "LabelDraw | None":
        """That of a silo's labels; None if they are not randomised, or not used."""
        federation, reads = config.federation, Reads.of(config, silo)
        if federation.label_epsilon is None or reads.label is None:
            return None
        classes = tuple(sorted(map(str, federation.label_classes or ())))
        return cls(federation.label_epsilon, classes, (reads.label, *reads.ids), config.data.ids)


def epsilons(draw: LabelDraw | None, month: Sequence[LabelDraw], ever: Sequence[LabelDraw]) -> tuple[float, float]:
    """What a job asks of the labels, and what other jobs have spent in 30 days.

    Args:
        draw: the job's.
        month: those of the other jobs that were approved in 30 days.
        ever: those of all other jobs that were approved.
    """
    asked = 0.0 if draw is None or draw in ever else draw.epsilon
    return asked, sum(other.epsilon for other in {*month})


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a policy asks of a job."""

    proposer: str
    """A silo."""
    purpose: str
    kind: JobKind = "train"
    columns: frozenset[str]
    """Of the own silo: all that the job names for clients to read."""
    takes_all_columns: bool = False
    """Whether it does not name the features."""
    links: tuple[str, ...] = ()
    aggregate: tuple[str, ...] = ()
    rare: int
    samples: str = "common"
    protect: str
    protect_blocks: bool
    is_encrypted: bool = False
    """Whether slopes are encrypted."""
    has_labels: bool = True
    """Whether labels of the own silo are used."""
    sends_slopes: bool = False
    """Whether others get slopes of the own silo's labels that they can read."""
    label_epsilon: float | None
    epsilon_asked: float = 0.0
    """What the job adds to what labels have given away: nothing if the same was drawn before."""
    epsilon_spent: float = 0.0
    """What other jobs have added in 30 days."""
    phi_epsilon: float | None = None
    """That of the noise on phi of the own silo; None if there is none, or slopes without noise leave it instead."""
    share_model: bool
    predictions: tuple[str, ...] = ()
    """The silos that get predictions."""
    joining: tuple[str, ...] = ()
    """The parties that join."""
    silos: int
    steps: tuple[str, ...]
    rounds: int
    now: int
    """When it is judged, in seconds since 1970."""
    approved: tuple[int, ...] = ()
    """When the policy has approved other jobs."""

    @classmethod
    def of(
        cls,
        offer: Offer,
        config: Config,
        silo: str,
        now: int,
        approved: tuple[int, ...] = (),
        spent: tuple[float, float] = (0.0, 0.0),
        joining: tuple[str, ...] = (),
    ) -> "Facts":
        """Those of a job for a silo, by which ``joining`` parties join; ``spent`` are :func:`epsilons`."""
        section = next(section for section in config.silos if section.name == silo)
        reads, federation = Reads.of(config, section), config.federation
        is_encrypted = federation.protect_labels == "encrypt"
        has_labels = offer.kind == "train" and reads.label is not None
        if offer.kind not in ("train", "audit"):
            reads = reads.for_prediction()
        return cls(
            proposer=offer.proposer.removeprefix("hub."),
            purpose=offer.purpose,
            kind=offer.kind,
            columns=reads.columns,
            takes_all_columns=reads.features is None,
            links=() if reads.link is None else (reads.link,),
            aggregate=reads.aggregate,
            rare=config.data.rare,
            samples=config.data.samples,
            protect=config.exchange.protect,
            protect_blocks=config.exchange.protect_blocks,
            is_encrypted=is_encrypted,
            has_labels=has_labels,
            sends_slopes=has_labels and federation.labels == silo and not is_encrypted,
            label_epsilon=federation.label_epsilon,
            epsilon_asked=spent[0],
            epsilon_spent=spent[1],
            phi_epsilon=None if federation.labels == silo else config.exchange.epsilon,
            share_model=federation.share_model,
            predictions=tuple(hub.removeprefix("hub.") for hub in offer.to),
            joining=joining,
            silos=len(config.silos),
            steps=offer.steps,
            rounds=config.train.rounds,
            now=now,
            approved=approved,
        )
