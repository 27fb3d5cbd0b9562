"""A company with an authority of its own: what it can sign, and what it cannot, for its own hub and for others."""

import shutil
from pathlib import Path

import pytest
import zenoh
from cryptography.hazmat.primitives.serialization import Encoding
from test_zenoh_transport import as_process, intruder
from typer.testing import CliRunner

from support.party_processes import wait_until
from support.ports import free_address
from support.transport_parties import HUB, MILL, NORTH, SHOP, SHOP_NORTH, SOON, SOUTH
from tdcd.cli.certificates import certs_app
from tdcd.runtime.certificates.agreement import Authority, Card, Certified, ForgedCardError, RevokedCardError
from tdcd.runtime.certificates.check import explain, facts_of, read_certificate
from tdcd.runtime.certificates.issue import create_authority, issue, make_request, revoke, sign
from tdcd.runtime.certificates.revocation import company_watched, watched_list
from tdcd.runtime.transport.transport import Joined, Received
from tdcd.runtime.transport.zenoh_settings import Tls
from tdcd.runtime.transport.zenoh_transport import ZenohTransport

COMPANY = "authority.bank"
HERE = ["127.0.0.1"]
TEXT = b"what was signed"


class Companies:
    """The federation's issuer, the bank's own, and a folder for every party."""

    def __init__(self, folder: Path, federation: str | None = None) -> None:
        self.folder, self.federation = folder, federation
        self.issuer, self.bank = folder / "issuer", folder / "company"
        create_authority(self.issuer)
        shutil.copy(self.issuer / "ca.pem", folder)
        request = make_request(self.bank, COMPANY)
        shutil.copy(sign(self.issuer, request, federation=federation).certificate, self.bank)
        shutil.copy(self.issuer / "ca.pem", self.bank)
        for hub in (HUB, SHOP, MILL):
            issue(self.issuer, hub, HERE, federation=federation)
        for client in (NORTH, SOUTH):
            sign(self.bank, make_request(self.bank, client), federation=federation)
        self.homes = {party: self.home(party) for party in (HUB, SHOP, MILL, NORTH, SOUTH)}

    def home(self, party, source=None, name=None):
        """A party's folder of certificates, with what it gets."""
        of_bank = party.split(".")[1] == "bank"
        source = source or (self.bank if of_bank and party != HUB else self.issuer)
        home = self.folder / (name or party)
        home.mkdir()
        for file in (f"{party}.pem", f"{party}.key"):
            shutil.copy(source / file, home)
        shutil.copy(self.issuer / "ca.pem", home)
        if of_bank:
            shutil.copy(self.bank / f"{COMPANY}.pem", home)
        return home

    def forged(self, party, name, hosts=()):
        """A certificate that the bank's authority signs with its key, whatever tdcd allows; its chain is in it."""
        forge = self.folder / f"forge of {name}"
        forge.mkdir()
        shutil.copy(self.bank / f"{COMPANY}.pem", forge / "ca.pem")
        shutil.copy(self.bank / f"{COMPANY}.key", forge / "ca.key")
        issue(forge, party, hosts)
        home = self.home(party, forge, name)
        (home / f"{party}.pem").write_bytes((forge / f"{party}.pem").read_bytes() + (forge / "ca.pem").read_bytes())
        return home


@pytest.fixture(scope="module")
def companies(tmp_path_factory):
    return Companies(tmp_path_factory.mktemp("companies"))


def joined(party, home, peers, addresses, federation=None):
    return ZenohTransport(
        party, peers, addresses=addresses, listen=addresses.get(party), tls=Tls.of(home, party), federation=federation
    )


def test_clients_of_a_company_have_links_and_other_hubs_know_nothing_of_its_authority(companies):
    addresses = {hub: free_address() for hub in (HUB, MILL)}
    with (
        joined(HUB, companies.homes[HUB], [NORTH, SOUTH, MILL], addresses) as hub,
        joined(MILL, companies.homes[MILL], [HUB], addresses) as mill,
        joined(NORTH, companies.homes[NORTH], [HUB], addresses) as north,
    ):
        assert {hub.receive(SOON), hub.receive(SOON)} == {Joined(NORTH), Joined(MILL)}
        assert [mill.receive(SOON), north.receive(SOON)] == [Joined(HUB)] * 2
        north.send(HUB, b"hello")
        assert hub.receive(SOON) == Received(NORTH, b"hello")
    assert not (companies.homes[MILL] / f"{COMPANY}.pem").exists()
    assert not [*companies.issuer.glob("client.*")], "no client's request has crossed the border"


@pytest.mark.parametrize(("party", "hosts"), [(SHOP, HERE), (SHOP_NORTH, []), (NORTH, [])])
def test_to_other_hubs_a_companys_authority_is_nobody(companies, party, hosts):
    """Not for the hub of another company, nor for clients; not with its own certificate in the chain either."""
    home = companies.forged(party, f"{party} of the bank", hosts)
    address = {MILL: free_address()}
    with joined(MILL, companies.homes[MILL], [SHOP], address | {SHOP: free_address()}) as mill:
        with (
            pytest.raises(zenoh.ZError, match="Unable to connect"),
            intruder(Tls.of(home, party), dial=address[MILL]),
        ):
            pass
        assert mill.receive(0.1) is None


def test_hubs_do_not_take_a_server_with_its_certificate_for_another_hub(companies):
    home, addresses = companies.forged(MILL, "mill of the bank", HERE), {hub: free_address() for hub in (SHOP, MILL)}
    with (
        intruder(Tls.of(home, MILL), listen=addresses[MILL]) as server,
        joined(SHOP, companies.homes[SHOP], [MILL], addresses) as shop,
    ):
        assert shop.receive(1.0) is None
        assert server.info.links() == []


@pytest.mark.parametrize(
    ("party", "text"),
    [
        (SHOP, "hub.shop comes with no certificate of this federation's authority"),
        (NORTH, "client.bank.north comes with no certificate of authority.bank, which signs those of its clients here"),
    ],
)
def test_its_own_hub_takes_every_certificate_from_one_authority_only(companies, party, text):
    """TLS there trusts both: a hub with a certificate of the company's, a client with one of the federation's."""
    if party == SHOP:
        home = companies.forged(SHOP, "shop at the bank", HERE)
        (home / f"{SHOP}.pem").write_bytes(
            (companies.folder / "forge of shop at the bank" / f"{SHOP}.pem").read_bytes()
        )
    else:
        forge = companies.folder / "forge of the issuer"
        forge.mkdir()
        for name in ("ca.pem", "ca.key"):
            shutil.copy(companies.issuer / name, forge)
        issue(forge, NORTH)
        home = forge
    addresses = {hub: free_address() for hub in (HUB, SHOP)}
    with joined(HUB, companies.homes[HUB], [SHOP, NORTH], addresses) as hub:
        with (
            intruder(Tls.of(home, party), dial=addresses[HUB]) as session,
            as_process(session, party, hub, home) as send,
        ):
            wait_until(lambda: hub.unfit.get(party) == text)
            send(b"believe me")
            assert hub.receive(0.2) is None
        # Whoever has the right certificate has the link.
        with joined(party, companies.homes[party], [HUB], addresses):
            assert hub.receive(SOON) == Joined(party)


def test_certificates_of_another_federation_of_the_same_authority_have_no_link(tmp_path):
    """Also if their holders do not look at their own: both ends say why."""
    for name in ("trade", "health"):
        folder = tmp_path / name
        if name == "trade":
            create_authority(folder)
        else:
            folder.mkdir()
            for file in ("ca.pem", "ca.key", "federation.secret"):
                shutil.copy(tmp_path / "trade" / file, folder)
        issue(folder, HUB, HERE, federation=name)
        issue(folder, NORTH, federation=name)
    address = {HUB: free_address()}
    with (
        joined(HUB, tmp_path / "health", [NORTH], address, "health") as hub,
        joined(NORTH, tmp_path / "trade", [HUB], address, "health") as north,
    ):
        text = "client.bank.north comes with a certificate of the federation 'trade', not of 'health'"
        wait_until(lambda: hub.unfit and north.unfit)
        assert hub.unfit == {NORTH: text}
        assert north.unfit == {HUB: f"hub.bank has no link with this process of client.bank.north: {text}"}
        north.send(HUB, b"believe me")
        assert hub.receive(0.1) is None
        with joined(NORTH, tmp_path / "health", [HUB], address, "health"):
            assert hub.receive(SOON) == Joined(NORTH)


def signed(home, party):
    return Card(b"x" * 32, *Certified(home, party).sign(TEXT))


def test_what_clients_sign_shows_their_companys_authority_to_all(companies):
    """As entries of a standing federation's log do, which other companies check."""
    everybody = [Authority(companies.homes[party]) for party in (HUB, MILL, SOUTH)]
    card = signed(companies.homes[NORTH], NORTH)
    for authority in everybody:
        authority.check(NORTH, TEXT, card, "it")
    for party, hosts in ((SHOP, HERE), (SHOP_NORTH, []), (HUB, HERE)):
        home = companies.forged(party, f"{party} signs", hosts)
        (home / f"{COMPANY}.pem").unlink(missing_ok=True)
        alone = signed(home, party)
        chain = alone.certificate + card.certificate[len(signed_alone(companies)) :]
        for shown in (alone.certificate, chain):
            for authority in everybody:
                with pytest.raises(ForgedCardError, match=r"^(it|the authority of it) comes with"):
                    authority.check(party, TEXT, Card(b"x" * 32, shown, alone.signature), "it")


def test_chains_that_are_none_are_refused(companies):
    authority, card = Authority(companies.homes[MILL]), signed(companies.homes[NORTH], NORTH)
    cert = signed_alone(companies)
    company = card.certificate[len(cert) :]
    for shown in (
        *(cert + company * 2, company + cert, company, cert * 2, cert + b"\x30", b"\x30\x84\xff\xff\xff\xff" + cert),
        *(
            card.certificate[:-1],
            card.certificate + b"\x00",
            b"\x30\xff" + cert,
            b"\x30\x80\x00\x00",
            b"\x00" * 99,
            b"",
        ),
    ):
        with pytest.raises(ForgedCardError, match=r"^it comes with"):
            authority.check(NORTH, TEXT, Card(b"x" * 32, shown, card.signature), "it")
    with pytest.raises(ForgedCardError, match=r"^it is not signed with its certificate's key"):
        authority.check(NORTH, TEXT + b"!", card, "it")


def signed_alone(companies):
    """The certificate of a client, without that of its authority."""
    return read_certificate(companies.homes[NORTH] / f"{NORTH}.pem").public_bytes(Encoding.DER)


def test_a_company_revokes_its_own_clients_and_no_others(tmp_path):
    companies = Companies(tmp_path)
    hub, card = companies.homes[HUB], signed(companies.homes[NORTH], NORTH)
    authority = Authority(hub)
    told = []
    watched = watched_list(hub, HUB, told.append)
    assert revoke(companies.bank, [NORTH]).source.name == "revoked.bank.crl"
    shutil.copy(companies.bank / "revoked.bank.crl", hub)
    assert watched.changed()
    assert told == [f"{hub}/revoked.bank.crl: list 1 is in force; newly revoked: {NORTH}"]
    assert watched.current.current_name(NORTH) == f"{NORTH}~2"
    with pytest.raises(RevokedCardError, match="it comes with a certificate that was revoked"):
        authority.check(NORTH, TEXT, card, "it")
    authority.check(NORTH, TEXT, card, "it", past=True)
    with pytest.raises(ValueError, match=r"is for a key that was revoked"):
        sign(companies.bank, make_request(companies.bank, NORTH), again=True)
    back = sign(companies.bank, make_request(companies.bank, NORTH, new_key=True))
    assert facts_of(read_certificate(back.certificate)).common_name == f"{NORTH}~2"
    # Other companies have not got the list, nor do they need it to take what the client signs.
    Authority(companies.homes[MILL]).check(NORTH, TEXT, signed(companies.home(NORTH, name="back"), NORTH), "it")
    # The list of the company may not name others, whoever wrote it.
    forge = tmp_path / "forge"
    forge.mkdir()
    shutil.copy(companies.bank / f"{COMPANY}.pem", forge / "ca.pem")
    shutil.copy(companies.bank / f"{COMPANY}.key", forge / "ca.key")
    issue(forge, SHOP, HERE)
    no_client = r"names 'hub\.shop', which is no client of authority\.bank"
    with pytest.raises(ValueError, match=no_client):
        revoke(forge, [SHOP])
    shutil.copy(forge / "revoked.crl", hub / "revoked.bank.crl")
    with pytest.raises(ValueError, match=no_client):
        watched_list(hub, HUB, told.append)


def test_an_authority_whose_key_was_stolen_is_replaced(tmp_path):
    companies = Companies(tmp_path)
    mill, before = companies.homes[MILL], signed(companies.homes[NORTH], NORTH)
    revoke(companies.bank, [SOUTH])
    shutil.copy(companies.bank / "revoked.bank.crl", companies.homes[HUB])
    told = []
    watched = watched_list(companies.homes[HUB], HUB, told.append)
    Authority(mill).check(NORTH, TEXT, before, "it")
    revoke(companies.issuer, [COMPANY])
    for folder in (mill, companies.bank, companies.homes[HUB]):
        shutil.copy(companies.issuer / "revoked.crl", folder)
    with pytest.raises(ValueError, match=r"authority\.bank\.csr is for a key that was revoked"):
        sign(companies.issuer, make_request(companies.bank, COMPANY), again=True)
    with pytest.raises(RevokedCardError, match="the authority of it comes with a certificate that was revoked"):
        Authority(mill).check(NORTH, TEXT, before, "it")
    shutil.copy(sign(companies.issuer, make_request(companies.bank, COMPANY, new_key=True)).certificate, companies.bank)
    (companies.bank / "revoked.bank.crl").unlink()
    for client in (NORTH, SOUTH):
        sign(companies.bank, make_request(companies.bank, client, new_key=client == SOUTH), again=True)
    after, home = companies.home(NORTH, name="north again"), companies.homes[HUB]
    shutil.copy(companies.bank / f"{COMPANY}.pem", home)
    # A hub that runs honours the list of the authority that its company has now.
    (home / "revoked.bank.crl").unlink()
    watched.follow(company_watched(home, HUB, told.append))
    assert not watched.current.is_revoked(SOUTH)
    revoke(companies.bank, [SOUTH])
    shutil.copy(companies.bank / "revoked.bank.crl", home)
    assert watched.changed()
    assert watched.current.is_revoked(SOUTH)
    addresses = {HUB: free_address()}
    for authority in (Authority(mill), Authority(home)):
        authority.check(NORTH, TEXT, signed(after, NORTH), "it")
        with pytest.raises(ForgedCardError):
            authority.check(NORTH, TEXT, before, "it")
        authority.check(NORTH, TEXT, before, "it", past=True)
    with joined(HUB, home, [NORTH], addresses) as hub, joined(NORTH, after, [HUB], addresses):
        assert hub.receive(SOON) == Joined(NORTH)


class TestCommands:
    @pytest.fixture
    def certs(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        text = ""
        for silo in ("bank", "shop"):
            text += f'[[silos]]\nname = "{silo}"\nhub = "{silo}.example:7447"\nclients = ["north"]\n'
        Path("federation.toml").write_text(text)

        def invoke(command, *arguments, status=0):
            done = CliRunner().invoke(certs_app, [command, *arguments])
            assert done.exit_code == status, done.output
            return done.output.replace("\n", " ") if status else done.output

        return invoke

    def test_only_the_hubs_and_authoritys_requests_cross_a_border(self, certs):
        said = certs("request", "federation.toml", COMPANY, "--out", "company")
        assert "asks to be the authority of client.bank.*" in said
        said = certs("sign", "federation.toml", "company/authority.bank.csr", "--out", "issuer")
        assert read_certificate(Path("issuer/authority.bank.pem")).not_valid_after_utc.year > 2030
        certs("request", "federation.toml", NORTH, "--out", "north")
        early = certs("sign", "federation.toml", f"north/{NORTH}.csr", "--out", "company", status=2)
        assert "company/ca.pem: there is no such file" in early
        for name in ("ca.pem", "authority.bank.pem"):
            shutil.copy(f"issuer/{name}", "company")
            shutil.copy(f"issuer/{name}", "north")
        text = certs("sign", "federation.toml", f"north/{NORTH}.csr", "--out", "issuer", status=2)
        assert "authority.bank.key: there is no such file; only its holder can issue certificates" in text
        said = certs("sign", "federation.toml", f"north/{NORTH}.csr", "--out", "company")
        assert "authority.bank.key stays here" in said
        shutil.copy(f"company/{NORTH}.pem", "north")
        said = certs("check", "north")
        assert said.count(": good\n") == 2
        assert f"{NORTH}, signed by {COMPANY}; expires" in said
        certs("request", "federation.toml", HUB, "--out", "company")
        text = certs("sign", "federation.toml", f"company/{HUB}.csr", "--out", "company", status=2)
        assert "company/ca.key: there is no such file; only its holder can issue certificates" in text
        said = certs("issue", "federation.toml", "--out", "issuer")
        assert f"Left to their own authority: {NORTH}." in said
        assert "client.shop.north" in said
        assert explain(*(Path("north") / name for name in (f"{NORTH}.pem", f"{NORTH}.key", "authority.bank.pem"))) == []
        Path("north/authority.bank.pem").unlink()
        assert "was signed by another authority ('authority.bank')" in certs("check", "north", status=2)
