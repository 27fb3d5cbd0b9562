"""What an organisation approves without a person: a function of its policy and a job, with the reasons if it does not.

Whatever a policy does not allow in so many words waits for a person. An empty one allows nothing. A client's policy is
read in the same way; what it does not allow the client refuses.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tdcd.config import ConfigError
from tdcd.config.errors import problems_in
from tdcd.config.reading import read_toml
from tdcd.config.schema import Aggregate, Name, Positive, PositiveFloat
from tdcd.core.words import counted, one_line
from tdcd.standing.facts import DAY_S, MONTH_S, Facts
from tdcd.standing.statements import PARTY, JobKind

OF_HUBS = ("jobs_per_day", "jobs_per_month", "hours")
"""The keys of hubs' policies alone: when and how often to approve."""


class Policy(BaseModel):
    """The policy of an organisation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    proposers: list[Name] = []
    """The silos whose jobs may be approved."""
    purposes: list[str] = []
    """The purposes that a job may have, word for word."""
    kinds: list[JobKind] = ["train"]
    """What a job may do: train, predict, audit, delete or join."""
    columns: list[str] = []
    """The columns of the own silo that a job may read: features, id, label, weight and key; a job has to name them all.
    """
    links: list[str] = []
    """The link tables, next to a client's data, that a job may read."""
    aggregate: list[Aggregate] = []
    """The figures that a job may make of several rows of a sample."""
    rare: Positive = 10
    """The least that ``data.rare`` may be: levels with fewer rows are not named."""
    samples: Literal["common", "all"] = "common"
    """Whether a job may train on samples that some silos lack, by which hubs learn more of each other's samples."""
    protect: Literal["none", "mask"] = "mask"
    """The least that ``exchange.protect`` may be."""
    protect_blocks: bool = True
    """Whether ``exchange.protect_blocks`` has to be on."""
    encrypted: bool = False
    """Whether a job with encrypted slopes may do without these two."""
    slopes: bool = False
    """Whether slopes of the own silo's labels may be sent as they are, which reveal the labels; with ``label_epsilon``
    they are slopes of randomised ones, and may."""
    label_epsilon: PositiveFloat | None = None
    """The largest that ``federation.label_epsilon`` may be where labels of the own silo are used; by default labels
    need not be randomised."""
    epsilon_per_month: PositiveFloat | None = None
    """The most that the epsilons of all jobs in 30 days may add up to; by default any number."""
    phi_epsilon: PositiveFloat | None = None
    """The largest ``exchange.epsilon``, of the noise on phi; by default phi needs no noise."""
    share_model: bool = False
    """Whether every hub may get all silos' blocks."""
    predictions: list[Name] = []
    """The silos that may get predictions."""
    members: list[str] = []
    """The hubs and clients that may join: hub.SILO, client.SILO.NAME."""
    silos: Positive = 2
    """The fewest silos of a job."""
    rows: Positive = 100
    """The fewest samples that all silos have: after the alignment, the hub refuses to train on fewer. Of a client, the
    fewest of its own."""
    rounds: Positive = 1000
    """The most rounds of a job."""
    jobs_per_day: Annotated[int, Field(ge=0)] = 1
    """The most approvals by this policy in 24 hours."""
    jobs_per_month: Annotated[int, Field(ge=0)] = 10
    """The most approvals by this policy in 30 days."""
    hours: Annotated[list[Annotated[int, Field(ge=0, le=24)]], Field(min_length=2, max_length=2)] = [0, 24]
    """Between which hours of the day, in UTC, it approves: from the first to before the second, overnight too."""

    @field_validator("hours")
    @classmethod
    def _some_hour(cls, hours: list[int]) -> list[int]:
        if hours[0] % 24 == hours[1] % 24 and hours != [0, 24]:
            raise ValueError("must be two different hours; leave it out for all hours")
        return hours

    @field_validator("members")
    @classmethod
    def _some_parties(cls, members: list[str]) -> list[str]:
        for name in members:
            if not re.fullmatch(PARTY, name):
                raise ValueError(f"{name!r} is no party: write hub.SILO or client.SILO.NAME")
        return members

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """The policy in a file."""
        keys = read_toml(path)
        try:
            return cls.model_validate(keys)
        except ValidationError as error:
            raise ConfigError(problems_in(error, keys, cls), str(path)) from None


def judge(policy: Policy, job: Facts) -> list[str]:
    """Why a job has to wait for a person, a sentence each; none if the policy approves it."""
    return [*judge_content(policy, job), *_quota(policy, job.now, job.approved)]


def judge_content(policy: Policy, job: Facts) -> list[str]:
    """The same without when and how often: what a client judges."""
    reasons = _who_and_why(policy, job)
    if job.kind == "join":
        reasons += [f"members: '{party}' is not among them" for party in job.joining if party not in policy.members]
    elif job.kind != "delete":
        reasons += _reading(policy, job)
    if job.kind in ("train", "predict"):
        reasons += _protection(policy, job)
    if job.kind == "train":
        reasons += [*_labels(policy, job), *_size(policy, job)]
    return reasons


def _who_and_why(policy: Policy, job: Facts) -> list[str]:
    reasons = []
    if job.proposer not in policy.proposers:
        reasons.append(f"proposers: '{job.proposer}' is not among them")
    if job.purpose not in policy.purposes:
        reasons.append(f"purposes: {one_line(job.purpose, 100)!r} is not among them")
    if job.kind not in policy.kinds:
        reasons.append(f"kinds: {job.kind!r} is not among them")
    return reasons


def _reading(policy: Policy, job: Facts) -> list[str]:
    reasons = [
        f"{key}: {one_line(name, 100)!r} is not among them"
        for key, names, allowed in (
            ("columns", job.columns, policy.columns),
            ("links", job.links, policy.links),
            ("aggregate", job.aggregate, policy.aggregate),
            ("predictions", job.predictions, policy.predictions),
        )
        for name in sorted({*names} - {*allowed})
    ]
    if job.takes_all_columns:
        reasons.append("columns: the job does not name the features of this silo, and would use all")
    if job.rare < policy.rare:
        reasons.append(f"rare = {policy.rare}: the job has data.rare = {job.rare}")
    return reasons


def _protection(policy: Policy, job: Facts) -> list[str]:
    reasons = []
    if job.silos < policy.silos:
        reasons.append(f"silos = {policy.silos}: the job has {counted(job.silos, 'silo')}")
    if policy.encrypted and job.is_encrypted:
        return reasons
    if policy.protect == "mask" and job.protect != "mask":
        reasons.append(f"protect = 'mask': the job has exchange.protect = {job.protect!r}")
    if policy.protect_blocks and not job.protect_blocks:
        reasons.append("protect_blocks = true: the job has exchange.protect_blocks = false")
    return reasons


def _labels(policy: Policy, job: Facts) -> list[str]:
    reasons = []
    most, epsilon, month = policy.label_epsilon, job.label_epsilon, policy.epsilon_per_month
    if job.has_labels and most is not None and (epsilon is None or not epsilon <= most):
        reasons.append(f"label_epsilon = {most:g}: the job has federation.label_epsilon = {epsilon}")
    if job.has_labels and month is not None and epsilon is None:
        reasons.append(f"epsilon_per_month = {month:g}: the job does not randomise labels")
    elif job.has_labels and month is not None and not job.epsilon_asked + job.epsilon_spent <= month:
        spent = f"{job.epsilon_spent:g} of it is spent, and the job asks for {job.epsilon_asked:g}"
        reasons.append(f"epsilon_per_month = {month:g}: {spent}")
    if job.sends_slopes and not policy.slopes and most is None:
        reasons.append("slopes = false: the job sends slopes of this silo's labels as they are")
    return reasons


def _size(policy: Policy, job: Facts) -> list[str]:
    reasons, most = [], policy.phi_epsilon
    if most is not None and (job.phi_epsilon is None or not job.phi_epsilon <= most):
        words = "nothing adds noise to what this silo's phi gives away"
        if job.phi_epsilon is not None:
            words = f"the job has exchange.epsilon = {job.phi_epsilon:g}"
        reasons.append(f"phi_epsilon = {most:g}: {words}")
    if job.share_model and not policy.share_model:
        reasons.append("share_model = false: the job has federation.share_model = true")
    if job.samples == "all" and policy.samples != "all":
        reasons.append("samples = 'common': the job has data.samples = 'all'")
    if "align" not in job.steps:
        reasons.append(f"rows = {policy.rows}: a job without an alignment does not say how many samples are common")
    if job.rounds > policy.rounds:
        reasons.append(f"rounds = {policy.rounds}: the job has {job.rounds}")
    return reasons


def _quota(policy: Policy, now: int, approved: Sequence[int]) -> list[str]:
    reasons = []
    for name, most, span in (
        ("jobs_per_day", policy.jobs_per_day, DAY_S),
        ("jobs_per_month", policy.jobs_per_month, MONTH_S),
    ):
        recent = sum(now - moment < span for moment in approved)
        if recent >= most:
            reasons.append(f"{name} = {most}: it has approved {recent} already")
    first, end = policy.hours
    hour = datetime.fromtimestamp(now, UTC).hour
    if not (first <= hour < end if first < end else hour >= first or hour < end):
        reasons.append(f"hours = {policy.hours}: it is {hour} o'clock in UTC")
    return reasons
