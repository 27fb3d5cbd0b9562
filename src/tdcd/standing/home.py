"""A party that stands by: its own file, its folder, who it is and what it has signed."""

import secrets
import shutil
import time
from functools import cached_property
from pathlib import Path

from tdcd.config import ConfigError, read_config
from tdcd.config.schema import Name
from tdcd.core.words import counted
from tdcd.federation import client_of, hub_of
from tdcd.records.files import read_plain, write_durably
from tdcd.runtime.certificates.agreement import Authority, Certified
from tdcd.runtime.certificates.check import when
from tdcd.runtime.certificates.issue import AUTHORITY
from tdcd.runtime.certificates.revocation import REVOKED
from tdcd.runtime.job import Job
from tdcd.runtime.process.party import PartySection, read_own
from tdcd.standing.jobs import Jobs, JobState, job_of, membership, misfits, parties_of, without_code
from tdcd.standing.log import Log
from tdcd.standing.policy import Facts, Policy, judge
from tdcd.standing.statements import Approved, Offer, Proposed, Refused, Statement, Step

SHARED_FILE = "federation.toml"
IDS = "ids.txt"
LOG = "log"


class StandingSection(PartySection):
    """The own file of a party that stands by."""

    federation: str = SHARED_FILE
    """The shared file with the silos, their hubs and clients; jobs bring settings of their own."""
    silo: Name
    """The party's silo."""
    client: Name | None = None
    """Its name, if it is a client."""
    folder: str = "standing"
    """Where the log and the jobs are kept."""
    policy: str | None = None
    """A hub's policy.toml; without one every job waits for a person."""


class Home:
    """A party's files, and what it says."""

    def __init__(self, path: Path) -> None:
        """Read the party's own file, the shared one and the log."""
        self.path = path
        own = read_own(path, StandingSection, {})
        # Services are started in any directory: defaults count from the file, too.
        unset = {"certs", "federation", "folder"} - own.model_fields_set
        self.own = own.model_copy(update={name: str(path.parent / getattr(own, name)) for name in unset})
        if self.own.insecure:
            raise ConfigError(["insecure = true: a party that stands by signs with its certificate"], str(path))
        self.standing = read_standing(Path(self.own.federation))
        self.party = hub_of(self.own.silo) if self.own.client is None else client_of(self.own.silo, self.own.client)
        if self.party not in parties_of(self.standing):
            raise ConfigError([f"{self.party} is no party of {self.own.federation}"], str(path))
        if not self.is_hub and self.own.data is None:
            raise ConfigError(["data: is missing; a client needs its rows"], str(path))
        if not self.is_hub and self.own.policy is not None:
            raise ConfigError([f"policy = {self.own.policy!r}: hubs have one, clients follow their hub"], str(path))
        self.certs, self.folder = Path(self.own.certs), Path(self.own.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keep_public_files()
        self.log = open_log_of(self.folder)

    @property
    def is_hub(self) -> bool:
        """Whether the party is a hub, and so speaks for its organisation."""
        return self.own.client is None

    @property
    def hub(self) -> str:
        """The hub of its silo."""
        return hub_of(self.own.silo)

    @property
    def partners(self) -> list[str]:
        """Who has a link with it."""
        silo = self.standing.silo_index(self.own.silo)
        return [*self.standing.clients(silo), *self.standing.peers(silo)] if self.is_hub else [self.hub]

    @property
    def policy(self) -> Policy | None:
        """The organisation's policy, as it is now."""
        return None if self.own.policy is None else Policy.read(Path(self.own.policy))

    @cached_property
    def signer(self) -> Certified:
        """The key of the party's certificate."""
        return Certified(self.certs, self.party)

    def jobs(self) -> Jobs:
        """All jobs, as the log says now."""
        self.log.refresh()
        return Jobs.of(self.standing, self.log)

    def say(self, statement: Statement) -> None:
        """Sign it, for good."""
        self.log.append(self.party, self.signer, statement)

    def propose(self, path: Path, steps: tuple[Step, ...], purpose: str, contact: str, days: float) -> JobState:
        """Offer a job to all; the proposer's organisation has approved it then."""
        self._speak_for_the_silo("propose a job")
        offer = Offer(
            federation=self.log.federation,
            proposer=self.party,
            shared_file=read_plain(path, 1 << 16).decode(),
            steps=steps,
            purpose=purpose,
            contact=contact,
            expires=int(time.time() + 86_400 * days),
            nonce=secrets.token_hex(16),
        )
        if problems := misfits(self.standing, offer, job_of(offer)):
            raise ConfigError(problems, str(path))
        self.say(Proposed(offer))
        self.say(Approved(offer.job, offer.expires, "person"))
        return self.jobs().named(offer.job)

    def approve(self, state: JobState, by: str = "person") -> None:
        """Agree to a job."""
        self._speak_for_the_silo("approve a job")
        if state.is_over:
            raise ValueError(f"job {state.name[:12]} is over")
        if problems := self.jobs().unfit(state):
            raise ConfigError(problems, f"job {state.name[:12]}")
        if time.time() > state.offer.expires:
            raise ValueError(f"job {state.name[:12]} had to begin by {when(state.offer.expires)}")
        self.say(Approved(state.name, state.offer.expires, "policy" if by == "policy" else "person"))

    def refuse(self, state: JobState, because: str) -> None:
        """Not take part in a job, or no longer."""
        if state.closed is not None:
            raise ValueError(f"job {state.name[:12]} is over")
        self.say(Refused(state.name, because))

    def verdict(self, state: JobState, now: int) -> list[str]:
        """Why a job waits for a person."""
        try:
            policy = self.policy
        except ConfigError as error:
            return [str(error)]
        return ["there is no policy"] if policy is None else judge(policy, self.facts(state, now))

    def facts(self, state: JobState, now: int) -> Facts:
        """What the policy asks of a job."""
        config = state.job.config
        silo = next(silo for silo in config.silos if silo.name == self.own.silo)
        extra = [column for column in (silo.label, silo.weight) if column is not None]
        mine = [signed.entry for signed in self.log.chains[self.party]]
        return Facts(
            proposer=state.offer.proposer.removeprefix("hub."),
            purpose=state.offer.purpose,
            columns=None if silo.features is None else frozenset([*silo.features, *extra]),
            protect=config.exchange.protect,
            protect_blocks=config.exchange.protect_blocks,
            label_epsilon=config.federation.label_epsilon,
            share_model=config.federation.share_model,
            silos=len(config.silos),
            steps=state.offer.steps,
            rounds=config.train.rounds,
            now=now,
            approved=tuple(
                entry.time for entry in mine if isinstance(entry.statement, Approved) and entry.statement.by == "policy"
            ),
        )

    def job_of(self, state: JobState) -> Job:
        """The training as this party takes part: how it runs is its own business, not the proposer's."""
        job = read_standing(self.job_folder(state) / SHARED_FILE)
        return Job(job.config.model_copy(update={"runtime": self.standing.config.runtime}))

    def job_folder(self, state: JobState) -> Path:
        """The folder of a job, with its shared file in it."""
        folder = self.folder / "jobs" / state.name[:16]
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / SHARED_FILE
        if not file.exists():
            write_durably(file, state.offer.shared_file.encode())
        return folder

    def _speak_for_the_silo(self, what: str) -> None:
        if not self.is_hub:
            raise ValueError(f"{self.party} cannot {what}: only hubs speak for their organisations")

    def _keep_public_files(self) -> None:
        """Next to the log, what it is checked with."""
        for source, name in (
            (Path(self.own.federation), SHARED_FILE),
            (self.certs / AUTHORITY, AUTHORITY),
            (self.certs / REVOKED, REVOKED),
        ):
            if source.exists():
                shutil.copyfile(source, self.folder / name)


def read_standing(path: Path) -> Job:
    """The training that a shared file describes."""
    return without_code(read_config(path), str(path))


def open_log_of(folder: Path) -> Log:
    """The log in a party's folder, checked entry by entry with the files next to it."""
    standing, authority = read_standing(folder / SHARED_FILE), Authority(folder)
    federation = membership(standing.config, authority.fingerprint)
    return Log(folder / LOG, federation, parties_of(standing), authority)


def describe(state: JobState, standing: Job) -> list[tuple[str, str]]:
    """What a person has to know to decide, each with its heading."""
    offer, config = state.offer, state.job.config
    exchange, labels = config.exchange, config.federation.labels
    columns = [
        f"{silo.name}: {', '.join(silo.features) if silo.features else 'all that no other silo names'}"
        + (f"; label {silo.label}" if silo.label else "")
        + (f"; weight {silo.weight}" if silo.weight else "")
        for silo in config.silos
    ]
    epsilon = config.federation.label_epsilon
    label_words = "labels" if epsilon is None else f"labels randomised with epsilon {epsilon:g}"
    clients_send = f"ids, {label_words} of silos that have them, sums and counts of columns, " + (
        "phi, and blocks of which the hub learns the sum only" if exchange.protect_blocks else "phi and blocks"
    )
    hubs_send = "phi under masks, of which others learn the sum only" if exchange.protect == "mask" else "phi"
    weakest = [] if exchange.protect == "mask" and exchange.protect_blocks else ["some numbers are sent as they are"]
    return [
        ("job", state.name),
        ("proposed by", f"{offer.proposer}, contact {offer.contact or 'not given'}"),
        ("purpose", offer.purpose or "not given"),
        ("must begin by", when(offer.expires)),
        ("steps", ", ".join(offer.steps)),
        *(("columns", words) for words in columns),
        ("labels", "all silos have them" if labels is None else f"only silo {labels} has them"),
        ("leaves a client", clients_send),
        ("leaves a hub", hubs_send + "; digests of ids, to find those that all have" * ("align" in offer.steps)),
        (
            "protection",
            "; ".join(
                [
                    f"exchange.protect = {exchange.protect!r}",
                    f"exchange.protect_blocks = {str(exchange.protect_blocks).lower()}",
                    f"federation.label_epsilon = {epsilon}",
                    *weakest,
                ]
            ),
        ),
        ("rounds", f"{config.train.rounds:,}"),
        (
            "who gets the model",
            "every hub all blocks"
            if config.federation.share_model
            else f"every hub its own silo's block, of {counted(len(standing.hubs), 'silo')}",
        ),
    ]
