"""What ``tdcd certs`` does: issue a federation's certificates, check those of a party, and print the results."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import rich.box
from rich.table import Table
from rich.text import Text

from tdcd.cli.terminal import screen
from tdcd.config import Config, ConfigError, check_config, read_config
from tdcd.federation.party_names import client_of, hub_of
from tdcd.runtime.certificates.check import Facts, cautions, explain, facts_of, read_certificate, read_secret, role_of
from tdcd.runtime.certificates.issue import AUTHORITY, AUTHORITY_KEY, SECRET, Issued, issue_all

Hubs = dict[str, tuple[str, ...]]


def issue_for(federation: Path, out: Path, days: int, renew: bool, only: str | None) -> None:
    """Make an authority where there is none, and the certificates of all parties, or of one."""
    hubs, clients = parties(check_config(read_config(federation), str(federation)), str(federation))
    if only is not None:
        if only not in hubs and only not in clients:
            raise ValueError(f"--only {only}: the parties of {federation} are {', '.join([*hubs, *clients])}")
        hubs = {party: hosts for party, hosts in hubs.items() if party == only}
        clients = [party for party in clients if party == only]
    _show_issued(out, issue_all(out, hubs, clients, days=days, renew=renew))


def check_all(paths: Sequence[Path], party: str | None, host: str | None) -> bool:
    """Print what there is to say about each certificate; whether all are good."""
    if party is not None and role_of(party) is None:
        raise ValueError(f"--party {party}: write hub.SILO or client.SILO.CLIENT")
    is_good = True
    for path in paths:
        for cert in _certificates(path, party):
            is_good &= _show_checked(cert, party, host)
        if path.is_dir():
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


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _certificates(path: Path, party: str | None) -> Sequence[Path]:
    """The certificates that ``path`` means: itself, or those in the folder."""
    if not path.is_dir():
        return [path]
    if party is not None:
        return [path / f"{party}.pem"]
    found = [cert for cert in sorted(path.glob("*.pem")) if cert.name != AUTHORITY]
    if not found:
        raise ValueError(f"{path} holds no party's certificate; they are called hub.SILO.pem or client.SILO.CLIENT.pem")
    return found


def _show_checked(cert: Path, party: str | None, host: str | None) -> bool:
    """Print what there is to say about one certificate; whether it is good."""
    key, expected = cert.with_suffix(".key"), party or (cert.stem if role_of(cert.stem) else None)
    problems = explain(cert, key, cert.with_name(AUTHORITY), expected, host)
    verdict = ("bad", "bold red") if problems else ("good", "bold green")
    screen.print(Text.assemble(f"{cert}: ", verdict), soft_wrap=True)
    with suppress(ValueError):  # Where it cannot be read, the problems say why.
        _say(_in_words(facts_of(read_certificate(cert))))
    for problem in problems:
        _say(problem, "red")
    for caution in cautions(cert, key):
        _say(f"Warning: {caution}", "yellow")
    return not problems


def _say(line: str, style: str = "") -> None:
    screen.print(Text(f"  {line}", style), soft_wrap=True)


def _in_words(facts: Facts) -> str:
    use = " and ".join(facts.usages) or "neither server nor client"
    return (
        f"{facts.name}, signed by {facts.issuer}; expires {facts.not_after:%Y-%m-%d} ({facts.days_left()} days left); "
        f"for use as {use}" + (f" at {', '.join(facts.hosts)}" if facts.hosts else "")
    )


def _show_issued(folder: Path, done: Sequence[Issued]) -> None:
    table = Table(box=rich.box.SIMPLE_HEAD)
    for column in ("party", "its own files", "valid until", ""):
        table.add_column(column, overflow="fold")
    for item in done:
        state = "new" if item.is_new else "kept"
        table.add_row(item.party, f"{item.certificate.name}\n{item.key.name}", f"{item.expires:%Y-%m-%d}", state)
    screen.print(table)
    screen.print(
        f"Give each party its own two files, {AUTHORITY} and {SECRET}, all in {folder}, over a private channel.\n"
        f"{AUTHORITY_KEY} stays here: whoever has it can pose as anybody.",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
