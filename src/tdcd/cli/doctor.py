"""``tdcd doctor``: what is wrong with this machine, and what to do about it."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tdcd.cli.terminal import screen
from tdcd.config import Config, ConfigError, check_config, read_config

if TYPE_CHECKING:
    from tdcd.runtime.process.doctor import Finding, Party

STYLES = {"ok": "green", "caution": "yellow", "wrong": "bold red"}


def doctor(
    federation: Annotated[
        Path | None,
        typer.Argument(help="Also check this federation's hubs.", metavar="[FEDERATION.toml]", show_default=False),
    ] = None,
    silo: Annotated[str | None, typer.Option(help="As this silo's hub; with --client, as a client of it.")] = None,
    client: Annotated[str | None, typer.Option(help="As this client.")] = None,
    certs: Annotated[
        Path | None, typer.Option(help="The folder of certificates to check [default: certs, if it is there].")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="host:port, if the hub is to listen elsewhere.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are to go.")] = Path("runs"),
) -> None:
    """Check this machine: versions, devices, disk space, clock; with a file, also ports, addresses and certificates.

    Nothing is trained, and nothing is sent but an attempt to connect to the hubs. Every line that is not ok says what
    to do.

    Exit status: 0 nothing is wrong, 1 something is.
    """
    from tdcd.runtime.process.doctor import Party, examine_machine

    folder = certs or (Path("certs") if Path("certs").is_dir() else None)
    levels = [_shown(finding) for finding in examine_machine(out)]
    levels += [_shown(finding) for finding in _of_file(federation, Party(silo, client, folder, listen))]
    if "wrong" in levels:
        raise typer.Exit(1)


def _of_file(path: Path | None, party: "Party") -> Iterator["Finding"]:
    from tdcd.runtime.process.doctor import Finding, examine_federation

    if path is None:
        if party.silo or party.client:
            yield Finding("federation", "wrong", "--silo and --client need the federation's file: give it, too")
        return
    try:
        config = check_config(read_config(path), str(path))
        _check_party(config, party)
    except ConfigError as error:
        yield Finding("federation", "wrong", str(error))
        return
    yield Finding("federation", "ok", f"{path} is valid: silos {', '.join(config.silo_names)}")
    yield from examine_federation(config, party)


def _check_party(config: Config, party: "Party") -> None:
    silos = {silo.name: silo.client_names for silo in config.silos}
    if party.client is not None and party.silo is None:
        raise ConfigError(["--client needs --silo, the silo that it belongs to"])
    if party.silo is not None and party.silo not in silos:
        raise ConfigError([f"--silo {party.silo}: there is no such silo; there are {', '.join(silos)}"])
    if party.silo is not None and party.client is not None and party.client not in silos[party.silo]:
        known = ", ".join(silos[party.silo])
        raise ConfigError([f"--client {party.client}: silo '{party.silo}' has no such client; it has {known}"])


def _shown(finding: "Finding") -> str:
    line = Text.assemble((f"{finding.level:<8}", STYLES[finding.level]), f"{finding.subject}: {finding.words}")
    screen.print(line, soft_wrap=True)
    return finding.level
