"""``tdcd certs``: issue the federation's certificates, and check those of a party."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.terminal import EXIT_INPUT, reported

certs_app = typer.Typer(
    help="Issue the certificates of a federation, and check them.", no_args_is_help=True, add_completion=False
)


@certs_app.command()
def issue(
    federation: Annotated[Path, typer.Argument(help="The federation's TOML file.", metavar="FEDERATION.toml")],
    out: Annotated[Path, typer.Option(help="The issuer's folder; an authority is made where it has none.")] = Path(
        "certs"
    ),
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Replace certificates that are still good.")] = False,
    only: Annotated[str | None, typer.Option(help="Just this party: hub.SILO or client.SILO.CLIENT.")] = None,
) -> None:
    """Make an authority and one certificate for every party of a federation.

    Run it again when a party is added or a certificate expires: good certificates stay as they are.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.cli.certificate_files import issue_for  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        issue_for(federation, out, days, renew, only)


@certs_app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(help="Certificates, or folders of them.", metavar="FOLDER_OR_PEM...")],
    party: Annotated[str | None, typer.Option(help="Whose certificate it has to be.")] = None,
    host: Annotated[str | None, typer.Option(help="The name or address at which the hub is dialled.")] = None,
) -> None:
    """Say whether certificates are good, and in plain words what is wrong with those that are not.

    A certificate's key, and the authority's ca.pem, are looked for beside it.

    Exit status: 0 all are good, 2 at least one is bad.
    """
    from tdcd.cli.certificate_files import check_all  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        is_good = check_all(paths, party, host)
    if not is_good:
        raise typer.Exit(EXIT_INPUT)
