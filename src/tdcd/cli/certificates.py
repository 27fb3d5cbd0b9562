"""``tdcd certs``: issue the federation's certificates, sign requests for them, revoke them, and check them."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.federation import FederationFile
from tdcd.cli.terminal import EXIT_INPUT, reported

certs_app = typer.Typer(
    help="The certificates of a federation: requested by the parties and signed by an issuer (request, sign), or made "
    "all in one place for a trial (issue); revoked, and checked.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

IssuersFolder = Annotated[Path, typer.Option(help="The issuer's folder; an authority is made where it has none.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")]


@certs_app.command(epilog="Example: `tdcd certs issue federation.toml --out issued`")
def issue(
    federation: FederationFile,
    out: IssuersFolder = Path("certs"),
    days: Days = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Replace certificates that are still good.")] = False,
    only: Annotated[str | None, typer.Option(help="Just this party: hub.SILO or client.SILO.CLIENT.")] = None,
) -> None:
    """Make an authority and, for every party of a federation, a key and a certificate: for trials.

    Whoever runs this has everybody's keys, and can pose as anybody. If you do not want that, use tdcd certs request
    and tdcd certs sign instead.

    Run it again when a party is added or a certificate expires: good certificates stay as they are.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.cli.certificate_files import issue_for  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        issue_for(federation, out, days, renew, only)


@certs_app.command(epilog="Example: `tdcd certs request federation.toml client.bank.c1`")
def request(
    federation: FederationFile,
    party: Annotated[
        str, typer.Argument(help="Who asks: hub.SILO, client.SILO.CLIENT or authority.SILO.", metavar="PARTY")
    ],
    out: Annotated[Path, typer.Option(help="This party's folder of certificates.")] = Path("certs"),
    new_key: Annotated[bool, typer.Option("--new-key", help="Make another key, for example after a theft.")] = False,
) -> None:
    """On the party's machine: make its key, and a request that the issuer signs. The key never leaves the machine.

    A company whose clients' requests are to stay inside asks as authority.SILO for an authority of its own. Requests of
    its clients are then signed in that folder, and at no other issuer.

    Writes PARTY.key, unless it is there, and PARTY.csr. To renew a certificate, run it again: the key stays, and the
    party can work on until the new certificate is there.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.cli.certificate_files import request_for  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        request_for(federation, party, out, new_key)


@certs_app.command(epilog="Example: `tdcd certs sign federation.toml client.bank.c1.csr hub.bureau.csr`")
def sign(
    federation: FederationFile,
    requests: Annotated[list[Path], typer.Argument(help="The parties' requests.", metavar="REQUEST.csr...")],
    out: IssuersFolder = Path("certs"),
    days: Days = 365,
    again: Annotated[
        bool, typer.Option("--again", help="Also for a party whose certificate is still good, for example to renew it.")
    ] = False,
) -> None:
    """At the issuer: sign parties' requests. No private key but the authority's is needed or seen.

    A request is refused unless whoever made it has its key, its name is a party of the shared file, and the key is
    strong. Hosts and rights come from the shared file, not from the request. Compare the fingerprints by telephone
    before you hand the certificates out: otherwise you may have signed an attacker's key.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.cli.certificate_files import sign_for  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        sign_for(federation, requests, out, days, again)


@certs_app.command(epilog="Example: `tdcd certs revoke client.bank.c1`")
def revoke(
    parties: Annotated[list[str], typer.Argument(help="hub.SILO or client.SILO.CLIENT.", metavar="PARTY...")],
    out: Annotated[Path, typer.Option(help="The issuer's folder.")] = Path("certs"),
) -> None:
    """At the issuer: write a signed list, revoked.crl, of certificates that are not honoured any more. The list of a
    company's own authority is revoked.SILO.crl.

    Copy it to the certs folder of every hub. Hubs that run close the links of revoked parties within about a second,
    and let them in again only with a new certificate for a new key. No party has to be restarted.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.cli.certificate_files import revoke_for  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        revoke_for(parties, out)


@certs_app.command(epilog="Example: `tdcd certs check certs`")
def check(
    paths: Annotated[list[Path], typer.Argument(help="Certificates, or folders of them.", metavar="FOLDER_OR_PEM...")],
    party: Annotated[str | None, typer.Option(help="Whose certificate it has to be.")] = None,
    host: Annotated[str | None, typer.Option(help="The name or address at which the hub is dialled.")] = None,
) -> None:
    """Say whether certificates are good, and in plain words what is wrong with those that are not.

    A certificate's key, the authority's ca.pem and the list of revoked certificates are looked for next to it. The
    fingerprints are for comparing with the issuer's by telephone.

    Exit status: 0 all are good, 2 at least one is bad.
    """
    from tdcd.cli.certificate_files import check_all  # noqa: PLC0415 - see tdcd.cli.app

    with reported():
        is_good = check_all(paths, party, host)
    if not is_good:
        raise typer.Exit(EXIT_INPUT)
