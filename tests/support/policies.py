"""Policies and jobs by chance, and which jobs a policy allows, written on its own."""

from datetime import UTC, datetime

from tdcd.standing.facts import Facts
from tdcd.standing.policy import Policy

SILOS, PURPOSES = ["bank", "shop", "bureau"], ["credit", "fraud"]
MEMBERS = ["hub.lab", "client.lab.main", "client.bank.south"]
COLUMNS, LINKS, FIGURES = ["id", "age", "debt", "bought"], ["homes.csv"], ["sum", "max"]
NOON, HOUR = 1_794_916_800, 3600
OPEN = {
    "proposers": SILOS,
    "purposes": PURPOSES,
    "kinds": ["train", "predict", "audit", "delete", "join"],
    "columns": COLUMNS,
    "links": LINKS,
    "aggregate": FIGURES,
    "predictions": SILOS,
    "members": MEMBERS,
    "rare": 1,
    "samples": "all",
    "protect": "none",
    "protect_blocks": False,
    "slopes": True,
    "share_model": True,
    "silos": 1,
    "jobs_per_day": 100,
    "jobs_per_month": 100,
}
"""All that a policy can allow."""


def some(rng, names):
    """Some of them, often all."""
    return [name for name in names if rng.random() < 0.8]


def policy_by_chance(rng, **keys):
    """A policy; every rule may be strict, and most are not."""
    first, end = rng.randrange(24), rng.randrange(24)
    strict = {
        "proposers": some(rng, SILOS),
        "purposes": some(rng, PURPOSES),
        "kinds": some(rng, OPEN["kinds"]),
        "columns": some(rng, COLUMNS),
        "links": [],
        "aggregate": some(rng, FIGURES),
        "predictions": some(rng, SILOS),
        "members": some(rng, MEMBERS),
        "rare": 10,
        "samples": "common",
        "protect": "mask",
        "protect_blocks": True,
        "encrypted": True,
        "slopes": False,
        "label_epsilon": rng.choice([0.5, 1.0, 2.0]),
        "epsilon_per_month": rng.choice([0.5, 1.0, 2.0]),
        "phi_epsilon": rng.choice([0.5, 1.0, 2.0]),
        "share_model": False,
        "silos": rng.randrange(1, 5),
        "rounds": rng.randrange(1, 20),
        "jobs_per_day": rng.randrange(4),
        "jobs_per_month": rng.randrange(4),
        "hours": [first, end] if first != end else [0, 24],
    }
    return Policy(**OPEN | {key: value for key, value in strict.items() if rng.random() < 0.15} | keys)


def facts_by_chance(rng):
    """What a job asks of a silo, also what no configuration can."""

    def chance(share=0.3):
        return rng.random() < share

    return Facts(
        proposer=rng.choice(SILOS),
        purpose=rng.choice(PURPOSES),
        kind=rng.choice(["train", "train", "train", "predict", "audit", "delete", "join"]),
        columns=frozenset(name for name in [*COLUMNS, "visits"] if rng.random() < 0.6 - 0.5 * (name == "visits")),
        takes_all_columns=chance(0.1),
        links=("homes.csv",) if chance() else ("/etc/passwd",) if chance(0.1) else (),
        aggregate=tuple(some(rng, FIGURES)) if chance() else (),
        rare=10 if chance(0.8) else 2,
        samples="all" if chance() else "common",
        protect="mask" if chance(0.7) else "none",
        protect_blocks=chance(0.7),
        is_encrypted=chance(),
        has_labels=chance(0.7),
        sends_slopes=chance(),
        label_epsilon=rng.choice([None, 0.5, 1.0, 2.0]),
        epsilon_asked=rng.choice([0.0, 0.5, 1.0]),
        epsilon_spent=rng.choice([0.0, 0.5, 1.0]),
        phi_epsilon=rng.choice([None, 0.5, 1.0, 2.0]),
        share_model=chance(),
        predictions=tuple(some(rng, SILOS)) if chance() else (),
        joining=tuple(some(rng, MEMBERS)),
        silos=rng.randrange(1, 5),
        steps=("align", "train") if chance(0.8) else ("train",),
        rounds=rng.randrange(1, 20),
        now=NOON + rng.randrange(24 * HOUR),
        approved=tuple(NOON - rng.randrange(60 * 24 * HOUR) for _ in range(rng.randrange(4))),
    )


def is_within(policy, job, *, of_client=False):
    """Whether a policy allows a job, as a truth table."""
    hour = datetime.fromtimestamp(job.now, UTC).hour
    first, end = policy.hours
    open_hours = {*range(first, end)} if first < end else {*range(first, 24), *range(end)}
    is_time = hour in open_hours
    is_time &= len([at for at in job.approved if at > job.now - 24 * HOUR]) < policy.jobs_per_day
    is_time &= len([at for at in job.approved if at > job.now - 30 * 24 * HOUR]) < policy.jobs_per_month
    is_asked = job.proposer in policy.proposers and job.purpose in policy.purposes and job.kind in policy.kinds
    if not is_asked or not (is_time or of_client):
        return False
    if job.kind == "delete":
        return True
    if job.kind == "join":
        return {*job.joining} <= {*policy.members}
    is_hidden = (job.protect == "mask" or policy.protect == "none") and (
        job.protect_blocks or not policy.protect_blocks
    )
    reads_alone = (
        not job.takes_all_columns
        and all(name in policy.columns for name in job.columns)
        and all(name in policy.links for name in job.links)
        and all(name in policy.aggregate for name in job.aggregate)
        and all(name in policy.predictions for name in job.predictions)
        and job.rare >= policy.rare
    )
    if job.kind == "audit":
        return reads_alone
    is_hidden |= job.is_encrypted and policy.encrypted
    reads = reads_alone and job.silos >= policy.silos and is_hidden
    if job.kind == "predict" or not reads:
        return reads
    epsilon = 9e9 if job.label_epsilon is None else job.label_epsilon
    most, month = policy.label_epsilon or 1e10, policy.epsilon_per_month or 1e10
    spends = job.epsilon_asked + job.epsilon_spent if job.label_epsilon is not None else 9e9
    are_labels_kept = not job.has_labels or (epsilon <= most and spends <= month)
    are_slopes_kept = not job.sends_slopes or policy.slopes or policy.label_epsilon is not None
    return (
        are_labels_kept
        and are_slopes_kept
        and (job.phi_epsilon or 9e9) <= (policy.phi_epsilon or 1e10)
        and (policy.share_model or not job.share_model)
        and (policy.samples == "all" or job.samples == "common")
        and job.steps == ("align", "train")
        and job.rounds <= policy.rounds
    )
