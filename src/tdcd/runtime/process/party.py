"""One party of a federation as a process: its own files, its link to the others, its run."""

import ipaddress
import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tdcd.blocks.start import FormerBlock
from tdcd.config import Config, ConfigError, check_config, read_config
from tdcd.config.errors import problems_in
from tdcd.config.reading import read_toml
from tdcd.core.lazy import configure
from tdcd.federation import client_of
from tdcd.runtime.certificates.agreement import KEY_BYTES, Certified, Keys, SharedSecret
from tdcd.runtime.certificates.check import authority_path, cautions, company_of, explain, read_secret
from tdcd.runtime.certificates.issue import SECRET
from tdcd.runtime.certificates.revocation import WatchedList, company_watched, watched_list
from tdcd.runtime.compute import encryption
from tdcd.runtime.compute.client_data import ClientData
from tdcd.runtime.job import Job
from tdcd.runtime.machine.client import Client
from tdcd.runtime.machine.handshake import MOST_CALLS
from tdcd.runtime.machine.hub import Hub, Shutdown
from tdcd.runtime.machine.instructions import HubState, RunOutcome
from tdcd.runtime.messages.wire import PROTOCOL
from tdcd.runtime.process.driver import ClientDriver, HubDriver
from tdcd.runtime.process.log import event
from tdcd.runtime.process.metrics import PATTERN, Metrics
from tdcd.runtime.process.status import ClientStatus
from tdcd.runtime.storage.account import Account, Limits
from tdcd.runtime.storage.failpoints import arm_as_asked
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.runtime.storage.keys import (
    LABEL_KEY,
    NEW_KEY,
    answer_key,
    forget_answer_key,
    label_key,
    mask_key,
)
from tdcd.runtime.transport.processes import Activity, Process
from tdcd.runtime.transport.renewal import Renewal, RenewedTransport
from tdcd.runtime.transport.transport import Transport
from tdcd.runtime.transport.zenoh_settings import Tls
from tdcd.runtime.transport.zenoh_transport import ZenohTransport
from tdcd.tables.client_table import read_client, row_numbers, taken_for
from tdcd.tables.label_privacy import check_ready, protected
from tdcd.tables.preparation import load_former_block
from tdcd.tables.sample_list import SampleList

NEEDS_JAX = (
    "is not a linear block with plain steps, a loss of tdcd's own, whole phi and blocks, no hub optimiser or dropout"
)


class PartySection(BaseModel):
    """A party's own small file: what is not for the others. Every key can be given on the command line instead."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    certs: str = "certs"
    """The folder with ca.pem, this party's certificate and key, federation.secret for a hub, and revoked.crl if any."""
    out: str | None = None
    """A hub's run folder; a client's folder for its status.json, which is written nowhere by default."""
    listen: Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")] | None = None
    """Where a hub listens, host:port, if that is not the address at which others reach it."""
    metrics: Annotated[str, Field(pattern=PATTERN)] | None = None
    """Where a hub answers Prometheus, host:port; a port alone is one of 127.0.0.1. Nowhere by default."""
    account: str | None = None
    """A hub's file of what its runs have spent of its rows and labels; none by default."""
    most_epsilon: Annotated[float, Field(gt=0)] | None = None
    """With ``account``: the largest epsilon of a row's phi over all runs; a run beyond it is not begun."""
    most_block_epsilon: Annotated[float, Field(gt=0)] | None = None
    """The same of a client's changes of blocks."""
    most_label_epsilon: Annotated[float, Field(gt=0)] | None = None
    """The same of a label."""
    most_runs: Annotated[int, Field(ge=0)] | None = None
    """The same: the most runs on labels as they are."""
    start: str | None = None
    """Where a hub has the folder of the former run that ``train.start`` names, if it is elsewhere here."""
    cold: bool = False
    """Of a hub whose silo was not in the former run that ``train.start`` names: its block begins as it is drawn."""
    samples: str | None = None
    """A hub's list of samples, where silos may lack some (``data.samples = "all"``), as tdcd align writes it."""
    data: str | None = None
    """A client's rows: CSV, Parquet, or safetensors arrays that ``tdcd up`` wrote."""
    labels: str | None = None
    """A second table with the labels of those rows, if the first has none."""
    ids: str | None = None
    """A text file of the ids to train on, one a line; other rows are left out."""
    label_key: str | None = None
    """The secret that a client randomises its labels with; made at first need. By default certs/labels.key."""
    insecure: bool = False
    """Without TLS; only where every address is this machine's own."""


OWN_PATHS = (
    *("certs", "out", "account", "start", "samples", "data", "labels", "ids", "label_key"),
    *("federation", "joins", "folder", "policy", "new"),
)
"""The keys that are paths, of a party's own file and of one that stands by."""
Own = TypeVar("Own", bound=PartySection)


def own_file(path: Path | None, **given: Any) -> PartySection:
    """A party's own file with what was ``given`` on the command line on top; relative paths count from the file."""
    return read_own(path, PartySection, given)


def read_own(path: Path | None, schema: type[Own], given: Mapping[str, Any]) -> Own:
    """The same with further keys."""
    keys: dict[str, Any] = {} if path is None else read_toml(path)
    for name in OWN_PATHS:
        if path is not None and isinstance(keys.get(name), str):
            keys[name] = str(path.parent / keys[name])
    keys |= {name: value for name, value in given.items() if value is not None and value is not False}
    try:
        return schema.model_validate(keys)
    except ValidationError as error:
        raise ConfigError(problems_in(error, keys, schema), str(path or "the command line")) from None


def read_job(path: Path) -> Job:
    """The federation that a shared file describes."""
    try:
        return Job(check_config(read_config(path), str(path)))
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "optax"):
            raise
        raise ConfigError([f"it needs JAX for what {NEEDS_JAX}: pip install jax optax"], str(path)) from None
    except ConfigError as error:
        raise error if str(path) in str(error) else ConfigError(error.problems, str(path)) from None


def run_hub(job: Job, silo: str, own: PartySection, should_stop: Callable[[], bool]) -> RunOutcome:
    """Run a silo's hub to its end."""
    arm_as_asked()
    index = job.silo_index(silo)
    # A block that cannot be loaded is reported before other parties wait for this one.
    job.block(index)
    _require_encryption(job)
    account = account_of(own)
    folder = HubFolder(Path(own.out or f"runs/hub-{silo}"), job, index)
    for complaint in folder.complaints:
        event("checkpoint refused", why=complaint)
    if folder.is_over:
        return RunOutcome(folder.about["status"], f"{folder.path} holds the whole run already")
    if account is not None and folder.about["status"] is None:
        account.begin(job, index, folder.nonce, _limits_of(own))
        folder.note_end = partial(account.end, job, index, folder.nonce)
    if folder.restored is not None:
        event("restored", round=folder.restored.round)
    # A run that is over makes no more masks and no more noise, and has no keys for them.
    is_running = not isinstance(folder.restored, Shutdown)
    is_masked = job.config.exchange.protect == "mask" and is_running
    if is_masked and isinstance(folder.restored, HubState) and folder.restored.chain is None:
        raise ValueError(
            f"{folder.path}: this run has masks of an earlier version, which this one does not make: finish it with "
            "the version that began it, or start over with another folder"
        )
    hub = Hub(
        job,
        index,
        secret=secret_of(job, own),
        nonce=folder.nonce,
        restored=folder.restored,
        absences=folder.absences,
        keys=keys_of(job, job.hubs[index], own, mask_key(folder.path)) if is_masked else None,
        first_call=secrets.randbelow(MOST_CALLS // 2),
        noise_key=folder.noise_key() if job.variant.needs_secret and is_running else b"",
        listed=None if own.samples is None else SampleList.read(Path(own.samples)),
        former=_former_of(job, silo, own),
    )
    with open_transport(job, hub.name, [*hub.clients, *hub.peers], own, "train") as transport:
        event("listening", address=own.listen or job.config.silos[index].hub)
        if own.metrics is None:
            return HubDriver(hub, transport, folder, job.config.runtime.resend_s).run(should_stop)
        metrics = Metrics(folder.path, (*hub.clients, *hub.peers))
        reached_at = str(job.config.silos[index].hub).rpartition(":")[0]
        with metrics.served(own.metrics, [reached_at]):
            driver = HubDriver(hub, transport, folder, job.config.runtime.resend_s, metrics=metrics)
            return driver.run(should_stop)


def _former_of(job: Job, silo: str, own: PartySection) -> FormerBlock | None:
    """The silo's block of a former run, if it starts from one."""
    named = job.config.train.start
    if named is None and own.start is not None:
        raise ConfigError([f"start = {own.start!r}: goes with train.start in the shared file"])
    if own.cold and (named is None or own.start is not None):
        raise ConfigError(["cold = true: goes with train.start in the shared file, and without start"])
    if named is None or own.cold:
        return None
    former = load_former_block(Path(own.start or named), silo)
    if former is None:
        event(
            "cold start", why=f"the run {own.start or named} has no silo '{silo}', whose block is drawn from the seed"
        )
    return former


def account_for_predictions(own: PartySection) -> Account | None:
    """The hub's account, if it keeps one, for phi of new rows, which has no noise and so no epsilon.

    Raises:
        ConfigError: there is a limit to epsilon.
    """
    account = account_of(own)
    if own.most_epsilon is not None:
        raise ConfigError(
            [f"most_epsilon = {own.most_epsilon:g}: predictions send phi of new rows as it is, which has no epsilon"]
        )
    return account


def _limits_of(own: PartySection) -> Limits:
    return Limits(own.most_epsilon, own.most_label_epsilon, own.most_runs, own.most_block_epsilon)


def account_of(own: PartySection) -> Account | None:
    """The file of what was spent, if the hub keeps one."""
    names = ("most_epsilon", "most_block_epsilon", "most_label_epsilon", "most_runs")
    limits = {name: getattr(own, name) for name in names}
    given = [f"{name} = {value}" for name, value in limits.items() if value is not None]
    if own.account is None and given:
        raise ConfigError([f"{given[0]}: goes with account, the file of what was spent; name one"])
    return None if own.account is None else Account(Path(own.account))


def run_client(job: Job, silo: str, client: str, own: PartySection, should_stop: Callable[[], bool]) -> RunOutcome:
    """Run a client to its end."""
    arm_as_asked()
    # A client waits for every program that it starts: a second thread would only have to be woken for it.
    configure("jax_cpu_enable_async_dispatch", False)
    index = job.silo_index(silo)
    names = job.config.silos[index].client_names
    if client not in names:
        raise ConfigError([f"silo '{silo}' has no client '{client}'; it has {', '.join(names)}"])
    if job.needs_jax(index) and find_spec("jax") is None:
        raise ConfigError([f"a client of silo '{silo}' needs JAX for what {NEEDS_JAX}: pip install jax optax"])
    job.block(index)
    _require_encryption(job)
    name = client_of(silo, client)
    if own.out is None:
        return _run_client(job, index, name, own, should_stop, None)
    # Before any party knows of this process: another one of the same name may be at work.
    with closing(ClientStatus(Path(own.out), name, job.config.train.rounds)) as status:
        return _run_client(job, index, name, own, should_stop, status)


def _run_client(
    job: Job, index: int, name: str, own: PartySection, should_stop: Callable[[], bool], status: ClientStatus | None
) -> RunOutcome:
    data = read_data(job.config, index, own)
    if data.table is not None and data.labels is not None:
        event("labels", taken_for=taken_for(job.config, data.table))
    # New ones in every process: a client keeps nothing, and whoever gets its key later can take no masks off.
    keys = keys_of(job, name, own, secrets.token_bytes(KEY_BYTES)) if job.config.exchange.protect_blocks else None
    # What it encrypts has to be the same when it comes back.
    secret_file = _answer_key_file(job, name, own)
    secret = b"" if secret_file is None else answer_key(secret_file)
    machine = Client(job, index, name, data, secrets.token_hex(8), keys, secret)
    with open_transport(job, machine.name, [machine.hub], own, "train") as transport:
        event("dialling", address=job.config.silos[index].hub)
        driver = ClientDriver(machine, transport)
        outcome = driver.run(
            should_stop if status is None else status.shown_before(machine, driver.endpoint, should_stop)
        )
    if secret_file is not None and outcome.status in ("finished", "diverged"):
        forget_answer_key(secret_file)
    return outcome


def _require_encryption(job: Job) -> None:
    """Refuse to start without what encrypts, if slopes are encrypted."""
    if job.round.encrypted is not None:
        encryption.require()


def read_data(config: Config, silo: int, own: PartySection) -> ClientData:
    """A client's rows from its own files."""
    if own.data is None:
        raise ConfigError(["data: is missing; a client needs --data FILE, its rows as CSV or Parquet"])
    path, holder, name = Path(own.data), config.federation.labels, config.silos[silo].name
    only = f"federation.labels = {holder!r}, and this is a client of '{name}'"
    if own.labels is not None and holder not in (None, name):
        raise ConfigError([f"labels = {own.labels!r}: {only}, which must not have labels; leave it out"])
    if path.suffix == ".safetensors" and config.data.samples == "all":
        raise ConfigError(
            [f"data = {own.data!r}: data.samples = 'all' takes tables, CSV or Parquet, whose rows have ids"]
        )
    if path.suffix == ".safetensors":
        data = ClientData.load(path)
        if (data.labels is None) == (holder in (None, name)):
            raise ValueError(f"{path} has {'no' if data.labels is None else 'the'} labels of its rows: {only}")
        if data.labels is not None:
            check_ready(config, data.label_epsilon, str(path))
        return data
    labels, ids = (None if given is None else Path(given) for given in (own.labels, own.ids))
    rows = read_client(config, config.silos[silo], path, labels, ids)
    for caution in row_numbers(rows):
        event("table", logging.WARNING, why=caution)
    rows = protected(config, config.silos[silo].name, rows, lambda: _label_key(own))
    return ClientData([*rows.ids], rows.labels, table=rows, weights=rows.weights)


def _label_key(own: PartySection) -> bytes:
    """The secret to randomise this client's labels with."""
    path = Path(own.certs) / LABEL_KEY if own.label_key is None else Path(own.label_key)
    if not path.exists():
        event("label key", logging.WARNING, file=str(path), why=NEW_KEY)
    return label_key(path)


def secret_of(job: Job, own: PartySection) -> bytes:
    """The key of the digests that parties compare."""
    # Without certificates everything is on one machine: the digests then need no key that others lack.
    return bytes.fromhex(job.digest) if own.insecure else read_secret(Path(own.certs) / SECRET)


def keys_of(job: Job, party: str, own: PartySection, secret: bytes) -> Keys:
    """What a party's masks follow from: a ``secret`` of its own, signed with its certificate's key if it has one."""
    signer = (
        SharedSecret(secret_of(job, own))
        if own.insecure
        else Certified(Path(own.certs), party, job.config.federation.name)
    )
    return Keys(party, secret, signer)


def _answer_key_file(job: Job, party: str, own: PartySection) -> Path | None:
    """Where a client keeps what hides its answers, for as long as the run; None where nothing is encrypted and no
    client adds noise, or on one machine without certificates, where all parties could read it.
    """
    if not job.variant.client_needs_secret or own.insecure:
        return None
    return Path(own.out or own.certs) / f"{party}.{job.digest[:16]}.key"


def open_transport(job: Job, party: str, peers: list[str], own: PartySection, work: Activity) -> Transport:
    """Check the party's certificate, then open its links, and say on them what this process does."""
    addresses = {}
    for hub, silo in zip(job.hubs, job.config.silos, strict=True):
        if silo.hub is None:
            raise ConfigError([f"silo '{silo.name}': hub is missing; add hub = \"host:port\""])
        if own.insecure and not _is_own(silo.hub):
            raise ConfigError([f"--insecure: {hub} is at {silo.hub}, which is not this machine's own address"])
        addresses[hub] = silo.hub
    open_links = partial(
        ZenohTransport,
        party,
        peers,
        addresses={hub: address for hub, address in addresses.items() if hub in peers},
        dialled=dialled(job, party, peers),
        listen=(own.listen or _everywhere(addresses[party])) if party in addresses else None,
        federation=job.config.federation.name,
        max_message_bytes=job.most_bytes,
        lease_s=job.config.runtime.lease_s,
        report=_log_port,
        process=Process(work, job.config.title, PROTOCOL),
    )
    if own.insecure:
        return open_links(tls=None)
    tls = Tls.of(Path(own.certs), party)
    host = addresses[party].rpartition(":")[0].strip("[]") if party in addresses else None
    revocations: list[WatchedList] = []
    authorities: list[bytes] = []  # The one that the party began with, and the one that is there now.

    def problems() -> list[str]:
        folder = tls.authority.parent
        authority, federation = authority_path(folder, party), job.config.federation.name
        if faults := explain(tls.certificate, tls.key, authority, party, host, federation=federation):
            return faults
        authorities[1:] = [tls.authority.read_bytes()]
        if authorities[-1] != authorities[0]:
            # Whose signatures are under the keys for masks and the lists of revoked certificates that are in use.
            return [f"{tls.authority} is another authority's: stop all parties and start them again, the run continues"]
        if not revocations:
            revocations.append(watched_list(folder, party, _log_list))
        try:
            return watched_list(folder, party, _log_list).current.problems(tls.certificate)
        except ValueError as error:
            return [str(error)]

    if faults := problems():
        raise ConfigError(faults, f"the certificate of {party}")
    for caution in cautions(tls.certificate, tls.key):
        event("certificate", why=caution)
    files = [tls.certificate, tls.key, tls.authority, tls.authority.with_name(f"{company_of(party)}.pem")]
    renewal = Renewal(files, problems, partial(_log_renewal, party))

    def opened() -> Transport:
        # The company's authority may be another one by now.
        revocations[0].follow(company_watched(tls.authority.parent, party, _log_list))
        return open_links(tls=tls, revocations=revocations[0])

    return RenewedTransport(opened, renewal)


def dialled(job: Job, party: str, peers: Collection[str]) -> list[str]:
    """The hubs among the peers that a party dials: a client its own, a hub as the shared file says."""
    hubs = dict(zip(job.hubs, job.config.silo_names, strict=True))
    return [hub for hub in peers if hub in hubs and (party not in hubs or job.config.dials(hubs[party], hubs[hub]))]


def _log_port(news: str) -> None:
    event("port", logging.WARNING, why=news)


def _log_renewal(party: str, news: str) -> None:
    event("certificate", logging.WARNING, who=party, why=news)


def _log_list(news: str) -> None:
    event("revocation list", logging.WARNING, why=news)


def _everywhere(address: str) -> str:
    """Where to listen for those who dial ``address``: on all interfaces, unless it is this machine's own."""
    host, _, port = address.rpartition(":")
    return address if _is_own(address) else f"{'[::]' if host.startswith('[') else '0.0.0.0'}:{port}"


def _is_own(address: str) -> bool:
    """Whether only this machine can dial an address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
