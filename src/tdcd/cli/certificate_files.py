"""What ``tdcd certs`` does: issue, request, sign, revoke and check certificates, and print the results."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import rich.box
from rich.table import Table
from rich.text import Text

from tdcd.cli.terminal import screen
from tdcd.config import Config, ConfigError, check_config, read_config
from tdcd.core.words import counted
from tdcd.federation import client_of, hub_of
from tdcd.runtime.certificates.check import (
    AUTHORITY,
    CertificateFacts,
    authority_path,
    cautions,
    company_of,
    explain,
    facts_of,
    fingerprint,
    party_of,
    read_certificate,
    read_secret,
    role_of,
)
from tdcd.runtime.certificates.issue import (
    AUTHORITY_KEY,
    SECRET,
    Issued,
    Issuer,
    SigningRequest,
    issue_all,
    make_request,
    revoke,
    sign_all,
)
from tdcd.runtime.certificates.revocation import REVOKED, watched_list

Hubs = dict[str, tuple[str, ...]]


def issue_for(federation: Path, out: Path, days: int, renew: bool, only: str | None) -> None:
    """Make an authority where there is none, and the certificates of all parties, or of one."""
    hubs, clients = _parties_in(federation)
    name = check_config(read_config(federation), str(federation)).federation.name
    if only is not None:
        _find(only, federation, "--only ")
    # Who was revoked gets a new certificate only if that is asked for by name.
    barred = _barred(out, [*hubs, *clients]) if only is None else set()
    elsewhere = {party for party in (*hubs, *clients) if Issuer.of(out, party).is_elsewhere}
    wanted = {only} if only is not None else {*hubs, *clients} - barred - elsewhere
    chosen = {party: hosts for party, hosts in hubs.items() if party in wanted}
    others = [party for party in (*clients, *_authorities(hubs)) if party in wanted]
    _show_issued(out, issue_all(out, chosen, others, days=days, renew=renew, federation=name))
    if elsewhere and only is None:
        _tell(f"Left to their own authority: {', '.join(sorted(elsewhere))}.")
    if barred:
        _tell(f"Revoked, and left as they are: {', '.join(sorted(barred))}. For a new certificate: --only PARTY.")


def request_for(federation: Path, party: str, out: Path, new_key: bool) -> None:
    """Make a party's key, where it has none, and a request for a certificate."""
    _find(party, federation)
    request = make_request(out, party, new_key)
    if role_of(party) == "authority":
        clients = f"client.{party.partition('.')[2]}.*"
        _tell(
            f"{party} asks to be the authority of {clients}, with this key:\n\n    {request.fingerprint}\n\n"
            f"Send {request.path} to the federation's issuer; its tdcd certs sign shows the same digits.\n"
            f"{out / party}.key stays here: whoever has it can pose as any of these clients, and as no one else.\n"
            f"You get {party}.pem and {AUTHORITY} back. Put them into {out}, and sign your clients' requests there:\n"
            f"tdcd certs sign {federation} CLIENT.csr --out {out}\n"
            f"Your hub and your clients need {party}.pem, too."
        )
        return
    _tell(
        f"{party} asks for a certificate for this key:\n\n    {request.fingerprint}\n\n"
        f"Send {request.path} to the issuer; it is no secret. {out / party}.key stays here.\n"
        f"The issuer's tdcd certs sign shows the same digits: compare them by telephone.\n"
        f"You get {party}.pem and {AUTHORITY} back{_and_secret(party)}. Put them into {out}, and run\n"
        f"tdcd certs check {out}"
    )


def sign_for(federation: Path, paths: Sequence[Path], out: Path, days: int, again: bool) -> None:
    """Check requests and sign them; make an authority where there is none."""
    hubs, clients = _parties_in(federation)
    name = check_config(read_config(federation), str(federation)).federation.name
    others: list[str] = [*clients, *_authorities(hubs)]
    done = sign_all(out, paths, {**hubs, **dict.fromkeys(others, ())}, days, again, name)
    _show_signed(out, done)


def revoke_for(parties: Sequence[str], out: Path) -> None:
    """Write a list that no longer honours the parties' certificates."""
    revoked = revoke(out, parties)
    if revoked.source.name != REVOKED:
        _tell(
            f"{revoked.source} is list {revoked.number}: it revokes {', '.join(parties)}.\n"
            "Copy it to the certs folder of your hub; with exchange.protect_blocks, to those of your clients, too."
        )
        return
    _tell(
        f"{out / REVOKED} is list {revoked.number}: it revokes {', '.join(parties)}.\n"
        "Copy it to the certs folder of every hub, and of the clients of a revoked hub. It is signed, and no secret.\n"
        "With exchange.protect_blocks, all clients of a revoked client's silo need it, too.\n"
        "Parties that run honour it within about a second, without a restart. Call them: they must have it.\n"
        "A party that may come back makes a new key, tdcd certs request --new-key, and you sign its request."
    )


def check_all(paths: Sequence[Path], party: str | None, host: str | None) -> bool:
    """Print what there is to say about each certificate; whether all are good."""
    if party is not None and role_of(party) is None:
        raise ValueError(f"--party {party}: write hub.SILO or client.SILO.CLIENT")
    is_good = True
    for path in paths:
        certs = _certificates(path, party)
        for cert in certs:
            is_good &= _show_checked(cert, party, host)
        # Clients need no secret.
        if path.is_dir() and ((path / SECRET).exists() or any(role_of(cert.stem) == "hub" for cert in certs)):
            read_secret(path / SECRET)
    return is_good


def parties(config: Config, where: str) -> tuple[Hubs, list[str]]:
    """The hubs of a federation with their hosts, and its clients, by their names as parties.

    >>> silo = {"name": "bank", "hub": "bank.example:7447", "clients": ["north", "south"]}
    >>> parties(check_config({"silos": [silo]}), "federation.toml")
    ({'hub.bank': ('bank.example',)}, ['client.bank.north', 'client.bank.south'])
    """
    if not config.silos:
        raise ConfigError(["silos: is missing; a real federation names its silos, each under [[silos]]"], where)
    if homeless := [silo.name for silo in config.silos if silo.hub is None]:
        raise ConfigError([f"silos: '{name}' has no hub; add hub = \"host:port\"" for name in homeless], where)
    hubs: Hubs = {hub_of(silo.name): (_host(silo.hub),) for silo in config.silos if silo.hub is not None}
    return hubs, [client_of(silo.name, client) for silo in config.silos for client in silo.client_names]


def _parties_in(federation: Path) -> tuple[Hubs, list[str]]:
    return parties(check_config(read_config(federation), str(federation)), str(federation))


def _find(party: str, federation: Path, option: str = "") -> None:
    hubs, clients = _parties_in(federation)
    known = [*hubs, *clients]
    if party not in known and party not in _authorities(hubs):
        raise ValueError(
            f"{option}{party}: the parties of {federation} are {', '.join(known)}; companies may have an authority of "
            f"their own, {', '.join(_authorities(hubs))}"
        )


def _authorities(hubs: Hubs) -> list[str]:
    """The authorities that companies may have for their own clients."""
    return [company_of(hub) for hub in hubs]


def _barred(folder: Path, parties: Sequence[str]) -> set[str]:
    """The parties whose certificate in the issuer's folder was revoked."""
    lists = [issuer.list() for issuer in {Issuer.of(folder, party) for party in parties}]
    certificates = [(party_of(name), revoked) for revoked in lists for name in revoked.keys]
    return {
        party
        for party, revoked in certificates
        if not (folder / f"{party}.pem").exists() or revoked.problems(folder / f"{party}.pem")
    }


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _certificates(path: Path, party: str | None) -> Sequence[Path]:
    """The certificates that ``path`` means: itself, or those in the folder."""
    if not path.is_dir():
        return [path]
    if party is not None:
        return [path / f"{party}.pem"]
    certificates = [cert for cert in sorted(path.glob("*.pem")) if cert.name != AUTHORITY]
    if not certificates:
        raise ValueError(f"{path} holds no party's certificate; they are called hub.SILO.pem or client.SILO.CLIENT.pem")
    return certificates


def _show_checked(cert: Path, party: str | None, host: str | None) -> bool:
    """Print what there is to say about one certificate; whether it is good."""
    key, expected = cert.with_suffix(".key"), party or (cert.stem if role_of(cert.stem) else None)
    ca = authority_path(cert.parent, expected or "")
    # The issuer has the certificates, but not the keys, of parties that made their own; and a company's authority has
    # its key in one place alone.
    is_issuers = ca.with_suffix(".key").exists() or role_of(cert.stem) == "authority"
    is_elsewhere = not key.exists() and is_issuers
    problems = explain(cert, None if is_elsewhere else key, ca, expected, host)
    problems = problems or watched_list(cert.parent, expected or "", _say).current.problems(cert)
    verdict = ("bad", "bold red") if problems else ("good", "bold green")
    screen.print(Text.assemble(f"{cert}: ", verdict), soft_wrap=True)
    with suppress(ValueError):  # Where it cannot be read, the problems say why.
        _say(_in_words(facts_of(read_certificate(cert))))
        _say(f"fingerprint {fingerprint(read_certificate(cert).public_key())}")
        _say(f"fingerprint {fingerprint(read_certificate(ca).public_key())} (the authority's)")
    for problem in problems:
        _say(problem, "red")
    for caution in cautions(cert, key):
        _say(f"Warning: {caution}", "yellow")
    return not problems


def _say(line: str, style: str = "") -> None:
    screen.print(Text(f"  {line}", style), soft_wrap=True)


def _in_words(facts: CertificateFacts) -> str:
    use = " and ".join(facts.usages) or "neither server nor client"
    return (
        f"{facts.common_name}{f' of {facts.federation}' if facts.federation else ''}, signed by {facts.issuer}; "
        f"expires {facts.not_after:%Y-%m-%d} ({counted(facts.days_left(), 'day')} left); "
        f"for use as {use}" + (f" at {', '.join(facts.hosts)}" if facts.hosts else "")
    )


def _show_issued(folder: Path, done: Sequence[Issued]) -> None:
    table = Table(box=rich.box.SIMPLE_HEAD)
    for column in ("party", "its own files", "valid until", ""):
        table.add_column(column, overflow="fold")
    for item in done:
        state = "new" if item.is_new else "kept"
        files = [path.name for path in (item.certificate, item.key) if path.exists()]
        table.add_row(item.party, "\n".join(files), f"{item.expires:%Y-%m-%d}", state)
    screen.print(table)
    _tell(
        f"Give each party its own two files, {AUTHORITY} and {SECRET}, all in {folder}, over a private channel.\n"
        f"{AUTHORITY_KEY} stays here: whoever has it can pose as anybody."
    )


def _show_signed(folder: Path, done: Sequence[tuple[SigningRequest, Issued]]) -> None:
    table = Table(box=rich.box.SIMPLE_HEAD)
    table.add_column("party", overflow="fold")
    table.add_column("its key's fingerprint", no_wrap=True)  # people read it aloud: one line in every terminal
    for column in ("certificate", "valid until"):
        table.add_column(column, overflow="fold")
    for request, issued in done:
        table.add_row(request.party, request.fingerprint, issued.certificate.name, f"{issued.expires:%Y-%m-%d}")
    screen.print(table)
    issuer = Issuer.of(folder, done[0][0].party)
    is_company = issuer.certificate.name != AUTHORITY
    authority = fingerprint(read_certificate(issuer.certificate).public_key())
    files = f"{AUTHORITY}, {issuer.certificate.name}" if is_company else AUTHORITY
    secret = "" if is_company else f"Hubs also need {SECRET}: over a private channel. "
    _tell(
        "Before you hand a certificate out, let the party read its fingerprint to you by telephone, and read it the\n"
        f"authority's, which tdcd certs check shows there: {authority}\n"
        f"If both are right, send its certificate, {files}, and {issuer.revoked.name} if there is one: none of it is "
        f"secret.\n{secret}{issuer.key.name} stays here.\n"
        "If one is wrong, remove that certificate, hand out nothing, and ask for the request again."
    )


def _and_secret(party: str) -> str:
    return f", and {SECRET} over a private channel" if role_of(party) == "hub" else ""


def _tell(text: str) -> None:
    screen.print(text, soft_wrap=True, highlight=False, markup=False)
