"""A party that stands by: its own file, its folder, who it is and what it has signed."""

import secrets
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tdcd.config import ConfigError, read_config
from tdcd.config.schema import Name
from tdcd.federation import client_of, hub_of
from tdcd.records.files import read_plain, write_durably
from tdcd.runtime.certificates.agreement import Authority, Certified
from tdcd.runtime.certificates.check import AUTHORITY, company_of, when
from tdcd.runtime.certificates.revocation import REVOKED, company_list
from tdcd.runtime.job import Job
from tdcd.runtime.process.party import PartySection, read_own
from tdcd.runtime.storage.account import Account, Totals
from tdcd.serving.address import check_address, is_socket
from tdcd.standing.children import beyond_machine
from tdcd.standing.facts import MONTH_S, Facts, LabelDraw, epsilons
from tdcd.standing.jobs import Jobs, JobState, membership, parties_of, without_code
from tdcd.standing.log import Log
from tdcd.standing.policy import OF_HUBS, Policy, judge, judge_content
from tdcd.standing.statements import Approved, Offer, Proposed, Refused, SignedEntry, Started, Statement, Step

SHARED_FILE = "federation.toml"
LOG = "log"


class StandingSection(PartySection):
    """The own file of a party that stands by."""

    federation: str = SHARED_FILE
    """The shared file with the silos, their hubs and clients when the log began; jobs bring settings of their own."""
    joins: str | None = None
    """Of a party that is new: the shared file with it among the others, as ``tdcd propose --join`` has it."""
    silo: Name
    """The party's silo."""
    client: Name | None = None
    """Its name, if it is a client."""
    folder: str = "standing"
    """Where the log and the jobs are kept."""
    policy: str | None = None
    """A policy.toml: what a hub approves without a person, or what a client does not refuse. Without one every job
    waits for a person, and a client follows its hub."""
    new: str | None = None
    """Of a client: the rows that jobs predict, CSV or Parquet."""
    serve: str | None = None
    """Of a hub: where it answers programs of its own organisation from what jobs have predicted, a port of this machine
    alone or the path of a Unix socket; nowhere by default."""
    memory: Annotated[float, Field(gt=0)] | None = None
    """The most memory that a step of a job may take, in GB; any by default."""
    cores: Annotated[int, Field(ge=1)] | None = None
    """The most cores that a step of a job may use; all by default."""


class Home:
    """A party's files, and what it says."""

    def __init__(self, path: Path, log: Log | None = None) -> None:
        """Read the party's own file, the shared one and the log.

        Args:
            log: what was read of the log already.
        """
        self.path = path
        own = read_own(path, StandingSection, {})
        # Services are started in any directory: defaults count from the file, too.
        unset = {"certs", "federation", "folder"} - own.model_fields_set
        if problems := beyond_machine(own.memory, own.cores):
            raise ConfigError(problems, str(path))
        defaults = {name: str(path.parent / getattr(own, name)) for name in unset}
        self.own = own.model_copy(update=defaults | _served(own, path))
        if self.own.insecure:
            raise ConfigError(["insecure = true: a party that stands by signs with its certificate"], str(path))
        self.founding = read_standing(Path(self.own.federation))
        self.party = hub_of(self.own.silo) if self.own.client is None else client_of(self.own.silo, self.own.client)
        joins = None if self.own.joins is None else read_standing(Path(self.own.joins))
        self._members = self.meets = self.founding if joins is None else joins
        """The parties that have links; what it says of others does not count."""
        if self.party not in parties_of(self.meets):
            file, why = self.own.federation, "; if it joins, name the shared file that it is in: joins"
            raise ConfigError([f"{self.party} is no party of {self.own.joins or file + why}"], str(path))
        if not self.is_hub and self.own.data is None:
            raise ConfigError(["data: is missing; a client needs its rows"], str(path))
        if self.is_hub and self.own.new is not None:
            raise ConfigError([f"new = {self.own.new!r}: clients score new rows, not their hub"], str(path))
        if not self.is_hub and self.own.serve is not None:
            raise ConfigError([f"serve = {self.own.serve!r}: its hub has the model, and answers"], str(path))
        self.certs, self.folder = Path(self.own.certs), Path(self.own.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if log is None:
            log = _log_in(self.folder, self.founding, Authority(self.certs, self.founding.config.federation.name))
            # Once it is known that the log is of these members, and not of others, who may have left.
            self._keep(Path(self.own.federation), SHARED_FILE)
            self._keep(self.certs / AUTHORITY, AUTHORITY)
        self.log = log
        self.keep_public_files()
        self._jobs: Jobs | None = None
        self._draws: dict[str, LabelDraw | None] = {}
        """By job: what it asks of the silo's labels."""
        self.jobs()

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
        return self.partners_in(self.meets)

    def partners_in(self, job: Job) -> list[str]:
        """Who has a link with it in a job."""
        silo = job.silo_index(self.own.silo)
        return [*job.clients(silo), *job.peers(silo)] if self.is_hub else [self.hub]

    @property
    def has_joined(self) -> bool:
        """Whether it may say something: it was there from the beginning, or all who are there let it join."""
        return self.party in self.log.chains

    @property
    def _said(self) -> list[SignedEntry]:
        return self.log.chains.get(self.party, [])

    def has_part_in(self, jobs: Jobs, state: JobState) -> bool:
        """Whether a job's shared file names the party: those of former members do not name all who are there now."""
        return self.party in parties_of(jobs.members_of(state))

    @property
    def policy(self) -> Policy | None:
        """The party's policy, as it is now."""
        if self.own.policy is None:
            return None
        policy = Policy.read(Path(self.own.policy))
        if not self.is_hub and (keys := [key for key in OF_HUBS if key in policy.model_fields_set]):
            problems = [f"{key} = {getattr(policy, key)}: hubs alone approve, so leave it out here" for key in keys]
            raise ConfigError(problems, self.own.policy)
        return policy

    @cached_property
    def signer(self) -> Certified:
        """The key of the party's certificate."""
        return Certified(self.certs, self.party)

    def jobs(self) -> Jobs:
        """All jobs, as the log says now."""
        self.log.refresh()
        jobs = Jobs.of(self.founding, self.log) if self._jobs is None else self._jobs.read_on()
        self._jobs = jobs
        members = jobs.meeting(time.time())
        if members is not self._members and self.party in parties_of(members):
            self._members = members
            # How it runs is its own business.
            self.meets = Job(members.config.model_copy(update={"runtime": self.founding.config.runtime}))
        return jobs

    def say(self, statement: Statement) -> None:
        """Sign it, for good."""
        self._must_have_joined()
        self.log.append(self.party, self.signer, statement)

    def propose(
        self,
        path: Path,
        steps: tuple[Step, ...],
        purpose: str,
        contact: str,
        days: float,
        known: JobState | None = None,
    ) -> JobState:
        """Offer to all to train, to audit or to let members join; the proposer's organisation has approved it then.

        Args:
            known: a former job, whose common ids are not compared again.
        """
        about = {} if known is None else {"of": known.name}
        return self._offer(read_plain(path, 1 << 16).decode(), str(path), steps, purpose, contact, days, **about)

    def propose_about(
        self, former: JobState, step: Step, purpose: str, contact: str, days: float, to: Sequence[str] = ()
    ) -> JobState:
        """Offer to predict with the model of a former job, for the silos in ``to``, or to delete its folder."""
        about: dict[str, Any] = {"of": former.name, "to": tuple(hub_of(silo) for silo in dict.fromkeys(to))}
        where = f"job {former.name[:12]}"
        return self._offer(former.offer.shared_file, where, (step,), purpose, contact, days, **about)

    def _offer(
        self, shared: str, where: str, steps: tuple[Step, ...], purpose: str, contact: str, days: float, **about: Any
    ) -> JobState:
        self._speak_for_the_silo("propose a job")
        jobs = self.jobs()
        self._must_have_joined()
        if steps == ("join",):
            about["of"] = jobs.joined
        offer = Offer(
            federation=self.log.federation,
            proposer=self.party,
            shared_file=shared,
            steps=steps,
            purpose=purpose,
            contact=contact,
            expires=int(time.time() + 86_400 * days),
            nonce=secrets.token_hex(16),
            **about,
        )
        if problems := jobs.offer_problems(offer):
            raise ConfigError(problems, where)
        self.say(Proposed(offer))
        self.say(Approved(offer.job, offer.expires, "person"))
        return self.jobs().named(offer.job)

    def approve(self, state: JobState, by: str = "person") -> None:
        """Agree to a job."""
        self._speak_for_the_silo("approve a job")
        if state.is_over:
            raise ValueError(f"job {state.name[:12]} is over")
        jobs = self.jobs()
        if problems := jobs.offer_problems(state.offer):
            raise ConfigError(problems, f"job {state.name[:12]}")
        self._take_part(jobs, state, "approve")
        if time.time() > state.offer.expires:
            raise ValueError(f"job {state.name[:12]} had to begin by {when(state.offer.expires)}")
        self.say(Approved(state.name, state.offer.expires, "policy" if by == "policy" else "person"))

    def refuse(self, state: JobState, because: str) -> None:
        """Not take part in a job, or no longer."""
        if state.closed is not None:
            raise ValueError(f"job {state.name[:12]} is over")
        self.say(Refused(state.name, because))

    def verdict(self, jobs: Jobs, state: JobState, now: int) -> list[str]:
        """Why a job waits for a person at a hub, or is refused by a client."""
        self._take_part(jobs, state, "judge")
        if self.is_hub:
            try:
                policy = self.policy
            except ConfigError as error:
                return [str(error)]
            return ["there is no policy"] if policy is None else judge(policy, self.facts(jobs, state, now))
        reasons, policy = [], self.policy
        if state.offer.kind == "predict" and self.own.new is None:
            reasons.append("new: its party.toml names no new rows to predict")
        return reasons + ([] if policy is None else judge_content(policy, self.facts(jobs, state, now)))

    def facts(self, jobs: Jobs, state: JobState, now: int) -> Facts:
        """What the policy asks of a job."""
        mine = [signed.entry for signed in self._said]
        approved = tuple(
            entry.time for entry in mine if isinstance(entry.statement, Approved) and entry.statement.by == "policy"
        )
        spent = self._epsilons(jobs, state, now)
        joining = tuple(jobs.newcomers(state.offer))
        return Facts.of(state.offer, state.job.config, self.own.silo, now, approved, spent, joining)

    def epsilon_left(self, jobs: Jobs, now: int) -> dict[str, tuple[float, float]]:
        """By limit of the policy and of the account: what is left of it, and the limit."""
        own, left = self.own, {}
        policy = self.policy
        if policy is not None and policy.epsilon_per_month is not None:
            _, spent = self._epsilons(jobs, None, now)
            left["epsilon_per_month"] = policy.epsilon_per_month - spent, policy.epsilon_per_month
        if own.account is not None:
            totals = Totals.of(Account(Path(own.account)).read())
            if own.most_epsilon is not None:
                spent = own.most_epsilon if totals.phi is None else totals.phi
                left["most_epsilon"] = own.most_epsilon - spent, own.most_epsilon
            if own.most_label_epsilon is not None:
                spent = own.most_label_epsilon if totals.plain_labels else totals.labels
                left["most_label_epsilon"] = own.most_label_epsilon - spent, own.most_label_epsilon
        return {limit: (max(0.0, rest), whole) for limit, (rest, whole) in left.items()}

    def _epsilons(self, jobs: Jobs, state: JobState | None, now: int) -> tuple[float, float]:
        """What a job asks of the silo's labels, and what others have spent that the party approved or began."""
        month, ever = [], []
        for entry in (signed.entry for signed in self._said):
            statement = entry.statement
            if not isinstance(statement, Approved | Started) or (state is not None and statement.job == state.name):
                continue
            if (draw := self._draw(jobs.states.get(statement.job))) is not None:
                ever.append(draw)
                month += [draw] * (now - entry.time < MONTH_S)
        return epsilons(self._draw(state), month, ever)

    def _draw(self, state: JobState | None) -> LabelDraw | None:
        if state is None or state.offer.kind != "train":
            return None
        if state.name not in self._draws:
            self._draws[state.name] = self._drawn(state)
        return self._draws[state.name]

    def _drawn(self, state: JobState) -> LabelDraw | None:
        try:
            config = state.job.config
        except ConfigError:
            return None
        own = [silo for silo in config.silos if silo.name == self.own.silo]
        return LabelDraw.of(config, own[0]) if own else None

    def job_of(self, state: JobState) -> Job:
        """The training as this party takes part: how it runs, and where its files are, is its own business."""
        file = self.prepared_folder(state) / SHARED_FILE
        if file.read_bytes() != state.offer.shared_file.encode():
            raise ConfigError(["it is not the file that all have approved; remove it"], str(file))
        config = read_standing(file).config
        # Links of new samples are next to the new rows.
        rows = self.own.new if state.offer.kind == "predict" else self.own.data
        folder = self.folder if rows is None else Path(rows).parent
        for silo in config.silos:
            path = folder / (silo.link or "")
            if silo.name == self.own.silo and not path.resolve().is_relative_to(folder.resolve()):
                raise ConfigError([f"link = {silo.link!r}: leads out of {folder}"], f"job {state.name[:12]}")
        data = config.data.model_copy(update={"folder": str(folder)})
        return Job(config.model_copy(update={"runtime": self.founding.config.runtime, "data": data}))

    def job_folder(self, state: JobState) -> Path:
        """Where a job's files are."""
        return self.folder / "jobs" / state.name[:32]

    def prepared_folder(self, state: JobState) -> Path:
        """The same, with the job's shared file in it."""
        folder = self.job_folder(state)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / SHARED_FILE
        if not file.exists():
            write_durably(file, state.offer.shared_file.encode())
        return folder

    def _must_have_joined(self) -> None:
        if not self.has_joined:
            raise ValueError(f"{self.party} is new here: the organisations that are there have not all let it join yet")

    def _take_part(self, jobs: Jobs, state: JobState, what: str) -> None:
        if not self.has_part_in(jobs, state):
            words = f"it has no part in job {state.name[:12]}, whose shared file does not name it"
            raise ValueError(f"{self.party} cannot {what}: {words}")

    def _speak_for_the_silo(self, what: str) -> None:
        if not self.is_hub:
            raise ValueError(f"{self.party} cannot {what}: only hubs speak for their organisations")

    def keep_public_files(self) -> None:
        """Next to the log, who is revoked, as the lists say now; the rest that it is checked with stays."""
        company = self.certs / f"{company_of(self.party)}.pem"
        for file in (self.certs / REVOKED, company, company_list(self.certs, self.party)):
            self._keep(file, file.name)

    def _keep(self, source: Path, name: str) -> None:
        copy = self.folder / name
        # Another process of the party may be reading it.
        if source.exists() and not (copy.exists() and copy.read_bytes() == source.read_bytes()):
            write_durably(copy, source.read_bytes())


def _served(own: StandingSection, path: Path) -> dict[str, str]:
    """Where it answers, if that is an address of this machine alone; a relative path counts from the file."""
    if own.serve is None:
        return {}
    address = str(path.parent.absolute() / own.serve) if is_socket(own.serve) else own.serve
    try:
        check_address(address, "serve =")
    except ValueError as error:
        raise ConfigError([str(error)], str(path)) from None
    return {"serve": address}


def read_standing(path: Path) -> Job:
    """The training that a shared file describes."""
    return without_code(read_config(path), str(path))


def open_log_of(folder: Path) -> Log:
    """The log in a party's folder, checked entry by entry with the files next to it."""
    standing = read_standing(folder / SHARED_FILE)
    return _log_in(folder, standing, Authority(folder, standing.config.federation.name))


def _log_in(folder: Path, standing: Job, authority: Authority) -> Log:
    federation = membership(standing.config, authority.fingerprint)
    return Log(folder / LOG, federation, parties_of(standing), authority)
