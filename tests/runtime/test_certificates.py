"""Certificates on disk, each wrong kind by its text, and in real TLS handshakes on loopback."""

import re
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from typer.testing import CliRunner

from tdcd.cli.certificates import certs_app
from tdcd.runtime.certificates.check import cautions, explain, facts_of, read_certificate, read_key, read_secret
from tdcd.runtime.certificates.issue import create_authority, issue, issue_all, throwaway

pytestmark = pytest.mark.quick

HUB, CLIENT = "hub.bank", "client.bank.north"
HOSTS = ["bank.example", "127.0.0.1"]
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def issued(tmp_path_factory) -> Path:
    """A federation's folder, only to be read."""
    folder = tmp_path_factory.mktemp("issued") / "certs"
    issue_all(folder, {HUB: HOSTS, "hub.shop": ["::1"]}, [CLIENT, "client.bank.south"])
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Path:
    """The same parties' folder under another authority."""
    folder = tmp_path_factory.mktemp("foreign") / "certs"
    issue_all(folder, {HUB: HOSTS}, [CLIENT])
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    create_authority(tmp_path / "certs")
    return tmp_path / "certs"


def test_a_certificate_names_its_federation_and_one_of_another_is_refused(folder):
    """Two federations of one authority: what stands in their files decides."""
    old = issue(folder, CLIENT)
    assert facts_of(read_certificate(old.certificate)).federation is None
    assert problems(old.certificate) == []
    sentence = f"{old.certificate} is of no federation, not of 'health', which federation.name asks for; ask for one"
    assert only_problem(old.certificate, federation="health").startswith(sentence)
    # It is replaced where the file has a name since, and stays where it has the same one.
    (new,) = issue_all(folder, {}, [CLIENT], federation="health")
    assert new.is_new
    assert not issue_all(folder, {}, [CLIENT], federation="health")[0].is_new
    facts = facts_of(read_certificate(new.certificate))
    assert (facts.federation, facts.common_name) == ("health", CLIENT)
    assert problems(new.certificate, federation="health") == problems(new.certificate) == []
    assert "is of the federation 'health', not of 'trade'" in only_problem(new.certificate, federation="trade")


def test_the_issuer_writes_the_name_in_the_shared_file(tmp_path):
    shared = tmp_path / "f.toml"
    shared.write_text('[federation]\nname = "health"\n[[silos]]\nname = "bank"\nhub = "bank.example:7447"\n')
    out = ["--out", str(tmp_path / "certs")]
    assert CliRunner().invoke(certs_app, ["request", str(shared), "hub.bank", "--out", str(tmp_path)]).exit_code == 0
    done = CliRunner().invoke(certs_app, ["sign", str(shared), str(tmp_path / "hub.bank.csr"), *out])
    assert done.exit_code == 0, done.output
    assert facts_of(read_certificate(tmp_path / "certs" / "hub.bank.pem")).federation == "health"
    issued = CliRunner().invoke(certs_app, ["issue", str(shared), "--renew", "--out", str(tmp_path / "other")])
    assert issued.exit_code == 0, issued.output
    assert facts_of(read_certificate(tmp_path / "other" / "hub.bank.pem")).federation == "health"
    shown = CliRunner().invoke(certs_app, ["check", str(tmp_path / "other")]).output
    assert "hub.bank of health, signed by" in shown


def problems(cert, key=None, ca=None, **wanted):
    """What is wrong with a certificate, by default beside its key and authority."""
    return explain(cert, key or cert.with_suffix(".key"), ca or cert.with_name("ca.pem"), **wanted)


def only_problem(*paths, **wanted):
    found = problems(*paths, **wanted)
    assert len(found) == 1, found
    return found[0]


def mode(path):
    return path.stat().st_mode & 0o777


class TestIssuing:
    def test_every_file_is_there_and_secrets_are_closed_to_others(self, issued):
        parties = [HUB, "hub.shop", CLIENT, "client.bank.south"]
        names = {f"{party}.{kind}" for party in parties for kind in ("pem", "key")}
        assert {path.name for path in issued.iterdir()} == names | {"ca.pem", "ca.key", "federation.secret"}
        assert mode(issued) == 0o700
        closed = {path.name for path in issued.iterdir() if mode(path) == 0o600}
        assert closed == {"ca.key", "federation.secret", *(f"{party}.key" for party in parties)}
        assert len(read_secret(issued / "federation.secret")) == 32

    def test_authority_may_sign_parties_and_nothing_else(self, issued):
        ca = read_certificate(issued / "ca.pem")
        constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
        assert constraints.critical
        assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
        usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
        assert usage.key_cert_sign
        assert usage.crl_sign
        assert not usage.digital_signature

    def test_names_and_uses_follow_the_role(self, issued):
        hub, client = (facts_of(read_certificate(issued / f"{party}.pem")) for party in (HUB, CLIENT))
        assert (hub.name, hub.usages, hub.hosts) == (HUB, ("server", "client"), tuple(HOSTS))
        assert (client.name, client.usages, client.hosts) == (CLIENT, ("client",), ())
        assert hub.issuer == facts_of(read_certificate(issued / "ca.pem")).name
        assert hub.not_before < datetime.now(UTC) - timedelta(minutes=4)
        assert not problems(issued / "hub.bank.pem", party=HUB, host="BANK.example")
        assert not problems(issued / "hub.shop.pem", party="hub.shop", host="0:0::1")
        assert not problems(issued / "client.bank.north.pem", party=CLIENT)

    def test_a_second_authority_is_refused(self, folder):
        before = (folder / "ca.key").read_bytes()
        with pytest.raises(ValueError, match=r"certs/ca\.pem is there already.*choose an empty folder"):
            create_authority(folder)
        assert (folder / "ca.key").read_bytes() == before

    def test_a_good_certificate_is_replaced_only_on_demand(self, folder):
        issue(folder, CLIENT)
        before = (folder / "client.bank.north.key").read_bytes()
        with pytest.raises(ValueError, match=r"client\.bank\.north\.pem is there already and still good.*--renew"):
            issue(folder, CLIENT)
        assert (folder / "client.bank.north.key").read_bytes() == before
        issue(folder, CLIENT, renew=True)
        assert (folder / "client.bank.north.key").read_bytes() != before
        assert not problems(folder / "client.bank.north.pem")

    def test_issuing_again_adds_what_is_missing_and_replaces_what_is_bad(self, folder):
        issue(folder, CLIENT)
        issue(folder, "client.bank.south", days=1, now=NOW - timedelta(days=9))
        issue(folder, HUB, ["old.example"])
        done = issue_all(folder, {HUB: HOSTS}, [CLIENT, "client.bank.south", "client.bank.west"])
        assert {item.party: item.is_new for item in done} == {
            HUB: True,  # It moved.
            CLIENT: False,
            "client.bank.south": True,  # It had expired.
            "client.bank.west": True,
        }
        assert not any(problems(item.certificate, item.key) for item in done)
        assert not any(item.is_new for item in issue_all(folder, {HUB: HOSTS}, [CLIENT]))
        assert all(item.is_new for item in issue_all(folder, {HUB: HOSTS}, [CLIENT], renew=True))

    @pytest.mark.parametrize(
        ("party", "hosts", "text"),
        [
            ("bank", [], "'bank' is no party's name: write hub.SILO or client.SILO.CLIENT"),
            ("hub.ba/nk", ["a"], "'hub.ba/nk' is no party's name"),
            ("client.bank.../../x", [], "is no party's name"),
            ("hub." + "x" * 25, ["a"], "up to 24 letters"),
            (HUB + "\n", ["a"], "is no party's name"),
            (HUB, [], "hub.bank needs at least one host"),
            (CLIENT, ["a.example"], "client.bank.north is a client, which no party dials: give it no hosts"),
            (HUB, ["a.example:7447"], "'a.example:7447' is neither a host name nor an IP address; leave the port out"),
            (HUB, ["127.0.0.300"], "'127.0.0.300' is neither a host name nor an IP address"),
        ],
    )
    def test_a_wrong_party_or_host_is_refused_before_anything_is_written(self, tmp_path, party, hosts, text):
        hubs, clients = ({party: hosts}, []) if party.startswith("hub") or hosts else ({}, [party])
        with pytest.raises(ValueError, match=re.escape(text)):
            issue_all(tmp_path / "certs", {"hub.shop": ["a"]} | hubs, clients)
        assert not (tmp_path / "certs").exists()

    def test_only_the_holder_of_the_authoritys_own_living_key_issues(self, folder, issued):
        (folder / "ca.key").write_bytes((issued / "ca.key").read_bytes())
        with pytest.raises(ValueError, match=r"certs/ca\.key is not the key of .*ca\.pem"):
            issue(folder, CLIENT)
        (folder / "ca.key").unlink()
        with pytest.raises(ValueError, match=r"certs/ca\.key: there is no such file; only its holder can issue"):
            issue_all(folder, {}, [CLIENT])
        with pytest.raises(ValueError, match=r"certs/ca\.pem expired on 20.*needs a new authority"):
            issue(issued, CLIENT, now=NOW + timedelta(days=5000))

    def test_nothing_outlives_its_authority(self, tmp_path):
        create_authority(tmp_path / "certs", days=10)
        ends = read_certificate(tmp_path / "certs" / "ca.pem").not_valid_after_utc
        assert issue(tmp_path / "certs", CLIENT, days=365).expires == ends

    def test_a_throwaway_authority_lasts_a_day(self, tmp_path):
        done = throwaway(tmp_path / "certs", {HUB: ["127.0.0.1"]}, [CLIENT])
        for item in done:
            assert not problems(item.certificate, party=item.party)
            late = problems(item.certificate, party=item.party, now=NOW + timedelta(hours=25))
            assert ["expired on" in problem for problem in late] == [True, True]

    def test_a_damaged_secret_is_reported(self, folder):
        (folder / "federation.secret").write_text("abc\n")
        with pytest.raises(ValueError, match=r"federation\.secret does not hold 64 hexadecimal digits"):
            issue_all(folder, {}, [CLIENT])


class TestExplain:
    """One test for each kind of wrong certificate: exactly one problem, and its words."""

    def test_missing_files(self, issued, tmp_path):
        found = problems(tmp_path / "hub.bank.pem")
        assert [problem.split(":")[0] for problem in found] == [
            str(tmp_path / name) for name in ("hub.bank.pem", "hub.bank.key", "ca.pem")
        ]
        assert "there is no such file; the issuer has it (tdcd certs sign or issue)" in found[0]
        assert "there is no such file; tdcd certs request makes it here, or the issuer has it (tdcd" in found[1]

    def test_a_folder_cannot_be_read(self, issued):
        assert only_problem(issued / "hub.bank.pem", issued) == f"{issued} cannot be read: Is a directory"

    @pytest.mark.parametrize("content", [b"", b"hello\n", b"\x30\x82\x00\xff", "half"])
    def test_not_pem(self, issued, tmp_path, content):
        whole = (issued / "hub.bank.pem").read_bytes()
        (tmp_path / "x.pem").write_bytes(whole[: len(whole) // 2] if content == "half" else content)
        text = only_problem(tmp_path / "x.pem", issued / "hub.bank.key", issued / "ca.pem")
        assert text == f"{tmp_path}/x.pem is not a certificate in PEM form, or is damaged; copy the file again"
        text = only_problem(issued / "hub.bank.pem", tmp_path / "x.pem", issued / "ca.pem")
        if content != "half":
            assert text == f"{tmp_path}/x.pem is not a private key in PEM form, or is damaged; copy the file again"

    def test_swapped_files(self, issued):
        key, cert, ca = issued / "hub.bank.key", issued / "hub.bank.pem", issued / "ca.pem"
        found = problems(key, cert, ca)
        assert f"{key} holds a private key, where the certificate belongs" in found[0]
        assert f"{cert} holds a certificate, where the private key belongs" in found[1]

    def test_a_locked_key(self, issued, tmp_path):
        key = read_key(issued / "hub.bank.key")
        locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
        (tmp_path / "hub.key").write_bytes(locked)
        text = only_problem(issued / "hub.bank.pem", tmp_path / "hub.key")
        assert text == f"{tmp_path}/hub.key is locked with a passphrase; give the key without one"

    def test_expired(self, folder):
        cert = issue(folder, CLIENT, days=1, now=NOW - timedelta(days=10)).certificate
        assert f"{cert} expired on {NOW - timedelta(days=9):%Y-%m-%d}" in only_problem(cert)
        assert "tdcd certs issue --renew" in only_problem(cert)

    def test_not_yet_valid(self, folder):
        cert = issue(folder, CLIENT, now=NOW + timedelta(days=10)).certificate
        assert f"{cert} is not valid before {NOW + timedelta(days=10) - timedelta(minutes=5):%Y-%m-%d}" in only_problem(
            cert
        )
        assert "set this machine's clock" in only_problem(cert)

    def test_signed_by_another_authority(self, issued, foreign):
        text = only_problem(foreign / "hub.bank.pem", None, issued / "ca.pem", party=HUB)
        theirs, ours = (facts_of(read_certificate(place / "ca.pem")).name for place in (foreign, issued))
        assert f"was signed by another authority ('{theirs}'), not by that of {issued}/ca.pem ('{ours}')" in text

    def test_signed_by_an_authority_of_the_same_name(self, issued, folder):
        """The name alone proves nothing: the signature decides."""
        ca = read_certificate(issued / "ca.pem")
        key = read_key(folder / "ca.key")
        forged = x509.CertificateBuilder(
            ca.subject, ca.subject, key.public_key(), 1, NOW - timedelta(1), NOW + timedelta(1), list(ca.extensions)
        )
        (folder / "ca.pem").write_bytes(forged.sign(key, ca.signature_hash_algorithm).public_bytes(Encoding.PEM))
        cert = issue(folder, CLIENT).certificate
        assert not problems(cert)
        assert "was signed by another authority" in only_problem(cert, None, issued / "ca.pem")

    def test_signed_by_itself(self, issued, folder):
        good = read_certificate(issued / "client.bank.north.pem")
        key = read_key(issued / "client.bank.north.key")
        own = x509.CertificateBuilder(
            good.subject,
            good.subject,
            key.public_key(),
            1,
            NOW - timedelta(1),
            NOW + timedelta(1),
            list(good.extensions),
        )
        (folder / "own.pem").write_bytes(own.sign(key, good.signature_hash_algorithm).public_bytes(Encoding.PEM))
        text = only_problem(folder / "own.pem", issued / "client.bank.north.key", issued / "ca.pem", party=CLIENT)
        assert "own.pem was signed by itself, not by that of" in text

    def test_another_partys(self, issued):
        text = only_problem(issued / "client.bank.south.pem", party=CLIENT)
        assert "is the certificate of 'client.bank.south', not of 'client.bank.north'" in text

    def test_nobodys(self, issued, folder):
        good = read_certificate(issued / "hub.bank.pem")
        key, ca_key = read_key(issued / "hub.bank.key"), read_key(issued / "ca.key")
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "boss")])
        cert = x509.CertificateBuilder(
            good.issuer, name, key.public_key(), 1, NOW - timedelta(1), NOW + timedelta(1), list(good.extensions)
        )
        (folder / "boss.pem").write_bytes(cert.sign(ca_key, good.signature_hash_algorithm).public_bytes(Encoding.PEM))
        text = only_problem(folder / "boss.pem", issued / "hub.bank.key", issued / "ca.pem")
        assert "boss.pem names 'boss', which is no party; names are hub.SILO and client.SILO.CLIENT" in text

    def test_key_of_another_certificate(self, issued):
        text = only_problem(issued / "hub.bank.pem", issued / "hub.shop.key", party=HUB)
        assert text.startswith(f"{issued}/hub.shop.key is not the key of {issued}/hub.bank.pem")

    def test_a_client_as_a_hub(self, issued):
        found = problems(issued / "client.bank.north.pem", party=HUB, host="bank.example")
        assert len(found) == 3
        assert "is the certificate of 'client.bank.north', not of 'hub.bank'" in found[0]
        assert "may be used only as a client, but a hub has to be a server too" in found[1]
        assert "names no host, so no party can dial a hub that shows it" in found[2]

    def test_another_host(self, issued):
        text = only_problem(issued / "hub.bank.pem", party=HUB, host="127.0.0.2")
        assert "is for bank.example, 127.0.0.1, but the hub is dialled as 127.0.0.2" in text

    def test_the_authoritys_own(self, issued):
        text = only_problem(issued / "ca.pem", party=HUB)
        assert text == f"{issued}/ca.pem is the certificate of an authority, not of a party; give hub.bank.pem"

    def test_a_party_as_the_authority(self, issued):
        text = only_problem(issued / "client.bank.north.pem", None, issued / "hub.bank.pem")
        assert text.startswith(f"{issued}/hub.bank.pem is the certificate of 'hub.bank', not of an authority")

    def test_cautions_do_not_make_it_bad(self, folder):
        made = issue(folder, CLIENT, days=20, now=NOW)
        assert not problems(made.certificate)
        made.key.chmod(0o640)
        assert not problems(made.certificate)
        soon, open_key = cautions(made.certificate, made.key, NOW - timedelta(minutes=1))
        assert soon.startswith(f"{made.certificate} expires in 20 days; renew it")
        assert open_key == f"{made.key} is open to other users (mode 0640); close it: chmod 600 {made.key}"
        made.key.chmod(0o600)
        assert not cautions(made.certificate, made.key, NOW - timedelta(days=20))


def handshake(server: Path, client: Path, *, ca: Path, host: str | None = "127.0.0.1") -> bytes:
    """Mutual TLS on loopback between the holders of two certificates; what the server said, if it came to that."""
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.verify_mode = ssl.CERT_REQUIRED
    dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialling.check_hostname = host is not None
    for context, cert in ((listening, server), (dialling, client)):
        context.load_cert_chain(cert, cert.with_suffix(".key"))
        context.load_verify_locations(ca)
        context.verify_flags |= ssl.VERIFY_X509_STRICT

    def serve(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with plain, listening.wrap_socket(plain, server_side=True) as link:
            link.sendall(b"welcome")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        served = pool.submit(serve, listener)
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as plain,
                dialling.wrap_socket(plain, server_hostname=host) as link,
            ):
                said = link.recv(100)
        except ssl.SSLError as error:
            # What the side that refused says is clearer than the alert that it sends.
            reason = served.exception()
            raise error if isinstance(error, ssl.SSLCertVerificationError) or reason is None else reason from None
        served.result()
    return said


class TestHandshake:
    def test_good_pairs(self, issued):
        for dialler in (CLIENT, "hub.shop"):
            assert handshake(issued / "hub.bank.pem", issued / f"{dialler}.pem", ca=issued / "ca.pem") == b"welcome"

    @pytest.mark.parametrize("host", ["127.0.0.1", None])
    def test_a_client_cannot_serve(self, issued, host):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"unsuitable certificate purpose|unsupported cert"):
            handshake(issued / "client.bank.south.pem", issued / "hub.shop.pem", ca=issued / "ca.pem", host=host)

    def test_another_host(self, issued):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for '127\.0\.0\.1'"):
            handshake(issued / "hub.shop.pem", issued / "client.bank.north.pem", ca=issued / "ca.pem")

    @pytest.mark.parametrize("wrong", ["server", "client"])
    def test_a_foreign_authority(self, issued, foreign, wrong):
        server, client = (foreign if wrong == side else issued for side in ("server", "client"))
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer certificate"):
            handshake(server / "hub.bank.pem", client / "client.bank.north.pem", ca=issued / "ca.pem")

    @pytest.mark.parametrize("wrong", ["server", "client"])
    def test_expired(self, folder, wrong):
        for side, party, hosts in (("server", HUB, HOSTS), ("client", CLIENT, [])):
            issue(folder, party, hosts, days=5, now=NOW - timedelta(days=10 if side == wrong else 0))
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
            handshake(folder / "hub.bank.pem", folder / "client.bank.north.pem", ca=folder / "ca.pem")


FEDERATION = """
[[silos]]
name = "bank"
hub = "bank.example:7447"
clients = ["north", "south"]

[[silos]]
name = "shop"
hub = "[::1]:7448"
"""


class TestCommand:
    @pytest.fixture
    def certs(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("federation.toml").write_text(FEDERATION)
        return lambda *arguments: CliRunner().invoke(certs_app, list(arguments))

    def test_issue_then_check(self, certs):
        done = certs("issue", "federation.toml")
        assert done.exit_code == 0, done.output
        for party in ("hub.bank", "hub.shop", "client.bank.north", "client.bank.south", "client.shop.c1"):
            assert f"{party}.pem" in done.output
            assert f"{party}.key" in done.output
        assert "Give each party its own two files, ca.pem and federation.secret, all in certs" in done.output
        assert "ca.key stays here" in done.output
        checked = certs("check", "certs")
        assert checked.exit_code == 0
        assert checked.output.count(": good\n") == 5
        assert "(364 days left); for use as server and client at ::1" in checked.output

    def test_one_party_and_renewal(self, certs):
        certs("issue", "federation.toml", "--out", "ca", "--only", "client.bank.north", "--days", "9")
        assert {path.name for path in Path("ca").glob("*.pem")} == {"ca.pem", "client.bank.north.pem"}
        before = Path("ca/client.bank.north.key").read_bytes()
        assert "kept" in certs("issue", "federation.toml", "--out", "ca").output
        assert Path("ca/client.bank.north.key").read_bytes() == before
        assert "kept" not in certs("issue", "federation.toml", "--out", "ca", "--renew").output
        assert Path("ca/client.bank.north.key").read_bytes() != before
        failed = certs("issue", "federation.toml", "--only", "client.bank.west")
        assert failed.exit_code == 2
        assert "--only client.bank.west: the parties of federation.toml are hub.bank, hub.shop, client" in failed.output

    def test_bad_ones_are_status_2_with_words(self, certs):
        certs("issue", "federation.toml", "--days", "9")
        Path("certs/client.bank.south.pem").write_bytes(Path("certs/hub.bank.pem").read_bytes())
        Path("certs/hub.shop.key").chmod(0o644)
        failed = certs("check", "certs")
        assert failed.exit_code == 2
        assert "client.bank.south.pem: bad" in failed.output
        assert "is the certificate of 'hub.bank', not of 'client.bank.south'" in failed.output
        assert "Warning: certs/hub.shop.pem expires in 8 days" in failed.output
        assert "Warning: certs/hub.shop.key is open to other users" in failed.output
        good = certs("check", "certs", "--party", "hub.bank", "--host", "bank.example")
        assert good.exit_code == 0
        assert good.output.count(": good") == 1
        other = certs("check", "certs/hub.bank.pem", "--host", "other.example")
        assert other.exit_code == 2
        assert "but the hub is dialled as other.example" in other.output

    def test_a_folder_without_its_secret_or_certificates(self, certs):
        certs("issue", "federation.toml")
        Path("certs/federation.secret").unlink()
        assert "certs/federation.secret: there is no such file" in certs("check", "certs").output
        Path("empty").mkdir()
        failed = certs("check", "empty")
        assert failed.exit_code == 2
        assert "empty holds no party's certificate" in failed.output
        assert "--party bank: write hub.SILO" in certs("check", "certs", "--party", "bank").output

    def test_a_federation_that_cannot_meet(self, certs):
        Path("federation.toml").write_text('[[silos]]\nname = "bank"\n')
        failed = certs("issue", "federation.toml")
        assert failed.exit_code == 2
        assert "silos: 'bank' has no hub; add hub = \"host:port\"" in failed.output
        Path("federation.toml").write_text("")
        assert "silos: is missing; a real federation names its silos" in certs("issue", "federation.toml").output
        assert not Path("certs").exists()
