"""What an organisation approves without a person: a function of its policy and a job, with the reasons if it does not.

Whatever a policy does not allow in so many words waits for a person. An empty one allows nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tdcd.config import ConfigError
from tdcd.config.errors import problems_in
from tdcd.config.reading import read_toml
from tdcd.config.schema import Name, Positive, PositiveFloat
from tdcd.core.words import counted, one_line

DAY_S, MONTH_S = 86_400, 30 * 86_400


class Policy(BaseModel):
    """The policy of an organisation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    proposers: list[Name] = []
    """The silos whose jobs may be approved."""
    purposes: list[str] = []
    """The purposes that a job may have, word for word."""
    columns: list[str] = []
    """The columns of the own silo that a job may use, its label and weight among them; a job has to name them all."""
    protect: Literal["none", "mask"] = "mask"
    """The least that ``exchange.protect`` may be."""
    protect_blocks: bool = True
    """Whether ``exchange.protect_blocks`` has to be on."""
    label_epsilon: PositiveFloat | None = None
    """The largest that ``federation.label_epsilon`` may be; by default labels need not be randomised."""
    share_model: bool = False
    """Whether every hub may get all silos' blocks."""
    silos: Positive = 2
    """The fewest silos of a job."""
    rows: Positive = 100
    """The fewest samples that all silos have: after the alignment, the hub refuses to train on fewer."""
    rounds: Positive = 1000
    """The most rounds of a job."""
    jobs_per_day: Annotated[int, Field(ge=0)] = 1
    """The most approvals by this policy in 24 hours."""
    jobs_per_month: Annotated[int, Field(ge=0)] = 10
    """The most approvals by this policy in 30 days."""
    hours: Annotated[list[Annotated[int, Field(ge=0, le=24)]], Field(min_length=2, max_length=2)] = [0, 24]
    """Between which hours of the day, in UTC, it approves: from the first to before the second."""

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """The policy in a file."""
        keys = read_toml(path)
        try:
            return cls.model_validate(keys)
        except ValidationError as error:
            raise ConfigError(problems_in(error, keys, cls), str(path)) from None


@dataclass(frozen=True)
class Facts:
    """What a policy asks of a job."""

    proposer: str
    """A silo."""
    purpose: str
    columns: frozenset[str] | None
    """Of the own silo; None if the job does not name them."""
    protect: str
    protect_blocks: bool
    label_epsilon: float | None
    share_model: bool
    silos: int
    steps: tuple[str, ...]
    rounds: int
    now: int
    """When it is judged, in seconds since 1970."""
    approved: tuple[int, ...] = ()
    """When the policy has approved other jobs."""


def judge(policy: Policy, job: Facts) -> list[str]:
    """Why a job has to wait for a person, a sentence each; none if the policy approves it."""
    return [
        *_who_and_why(policy, job),
        *_columns(policy, job.columns),
        *_protection(policy, job),
        *_size(policy, job),
        *_quota(policy, job.now, job.approved),
    ]


def _who_and_why(policy: Policy, job: Facts) -> list[str]:
    reasons = []
    if job.proposer not in policy.proposers:
        reasons.append(f"proposers: '{job.proposer}' is not among them")
    if job.purpose not in policy.purposes:
        reasons.append(f"purposes: {one_line(job.purpose, 100)!r} is not among them")
    return reasons


def _columns(policy: Policy, columns: frozenset[str] | None) -> list[str]:
    if columns is None:
        return ["columns: the job does not name those of this silo, and would use all"]
    return [f"columns: {one_line(column, 100)!r} is not among them" for column in sorted(columns - {*policy.columns})]


def _protection(policy: Policy, job: Facts) -> list[str]:
    reasons = []
    if policy.protect == "mask" and job.protect != "mask":
        reasons.append(f"protect = 'mask': the job has exchange.protect = {job.protect!r}")
    if policy.protect_blocks and not job.protect_blocks:
        reasons.append("protect_blocks = true: the job has exchange.protect_blocks = false")
    most, epsilon = policy.label_epsilon, job.label_epsilon
    if most is not None and (epsilon is None or not epsilon <= most):
        reasons.append(f"label_epsilon = {most:g}: the job has federation.label_epsilon = {epsilon}")
    if job.share_model and not policy.share_model:
        reasons.append("share_model = false: the job has federation.share_model = true")
    return reasons


def _size(policy: Policy, job: Facts) -> list[str]:
    reasons = []
    if job.silos < policy.silos:
        reasons.append(f"silos = {policy.silos}: the job has {counted(job.silos, 'silo')}")
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
    if not first <= (hour := datetime.fromtimestamp(now, UTC).hour) < end:
        reasons.append(f"hours = {policy.hours}: it is {hour} o'clock in UTC")
    return reasons
