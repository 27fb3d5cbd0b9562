"""Keys that never travel: requests made by parties, what an issuer refuses to sign, and the commands for it all."""

import re
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from support.transport_parties import HUB, NORTH, SOON, ZenohNetwork
from tdcd.cli.certificates import certs_app
from tdcd.runtime.certificates.check import explain, facts_of, fingerprint, read_certificate, read_key
from tdcd.runtime.certificates.issue import (
    create_authority,
    issue,
    key_pem,
    make_request,
    read_request,
    revoke,
    sign,
    sign_all,
)
from tdcd.runtime.transport.transport import Joined, Received

pytestmark = pytest.mark.quick

PARTIES = [HUB, NORTH]
SHA256 = hashes.SHA256()
FINGERPRINT = r"([0-9a-f]{4} ){7}[0-9a-f]{4}"


@pytest.fixture
def issuer(tmp_path):
    create_authority(tmp_path / "issuer")
    return tmp_path / "issuer"


def written(path, key, *, name=NORTH, algorithm=SHA256):
    """A request of whoever likes to make one."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one) for one in name.split("+") if one])
    csr = x509.CertificateSigningRequestBuilder(subject).sign(key, algorithm)
    path.write_bytes(csr.public_bytes(Encoding.PEM))
    return path


def curve_key(curve=ec.SECP256R1):
    return ec.generate_private_key(curve())


class TestRequest:
    def test_the_key_is_closed_to_others_and_is_not_in_the_request(self, tmp_path):
        request = make_request(tmp_path / "certs", NORTH)
        key = tmp_path / "certs" / f"{NORTH}.key"
        assert key.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o700
        assert b"PRIVATE" not in request.path.read_bytes()
        assert request.fingerprint == fingerprint(read_key(key).public_key())
        assert re.fullmatch(FINGERPRINT, request.fingerprint)

    def test_asking_again_keeps_the_key_unless_another_is_wanted(self, tmp_path):
        first = make_request(tmp_path, NORTH)
        assert make_request(tmp_path, NORTH).fingerprint == first.fingerprint
        assert make_request(tmp_path, NORTH, new_key=True).fingerprint != first.fingerprint

    def test_both_ends_see_the_same_fingerprint(self, tmp_path):
        made = make_request(tmp_path, HUB)
        assert read_request(made.path, PARTIES) == made


class TestSigning:
    def test_a_signed_certificate_is_good_with_the_key_that_stayed(self, tmp_path, issuer):
        request = make_request(tmp_path / "party", HUB)
        done = sign(issuer, read_request(request.path, PARTIES), ["bank.example"])
        assert not (issuer / f"{HUB}.key").exists()
        for name in ("ca.pem", f"{HUB}.pem"):
            shutil.copy(issuer / name, tmp_path / "party")
        paths = [tmp_path / "party" / name for name in (f"{HUB}.pem", f"{HUB}.key", "ca.pem")]
        assert not explain(*paths, party=HUB, host="bank.example")
        facts = facts_of(read_certificate(done.certificate))
        assert (facts.name, facts.usages, facts.hosts) == (HUB, ("server", "client"), ("bank.example",))

    def test_parties_that_made_their_own_keys_talk(self, tmp_path, issuer):
        """Also with RSA, as some organisations' key stores make it."""
        folder = tmp_path / "party"
        folder.mkdir()
        (folder / f"{NORTH}.key").write_bytes(key_pem(rsa.generate_private_key(65537, 3072)))
        for party, hosts in ((HUB, ["127.0.0.1"]), (NORTH, [])):
            shutil.copy(sign(issuer, make_request(folder, party), hosts).certificate, folder)
        shutil.copy(issuer / "ca.pem", folder)
        network = ZenohNetwork(folder)
        with network.join(HUB, [NORTH]) as hub, network.join(NORTH, [HUB]) as north:
            assert [hub.receive(SOON), north.receive(SOON)] == [Joined(NORTH), Joined(HUB)]
            north.send(HUB, b"hello")
            assert hub.receive(SOON) == Received(NORTH, b"hello")

    def test_what_else_a_request_asks_for_is_not_granted(self, tmp_path, issuer):
        builder = x509.CertificateSigningRequestBuilder(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NORTH)])
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("bank.example")]), critical=False)
        (tmp_path / "x.csr").write_bytes(builder.sign(curve_key(), hashes.SHA256()).public_bytes(Encoding.PEM))
        facts = facts_of(read_certificate(sign(issuer, read_request(tmp_path / "x.csr", PARTIES)).certificate))
        assert (facts.is_authority, facts.usages, facts.hosts) == (False, ("client",), ())

    @pytest.mark.parametrize("name", ["client.bank.west", "hub.bank~2", f"{HUB}+{NORTH}", ""])
    def test_a_name_that_is_no_party(self, tmp_path, name):
        path = written(tmp_path / "x.csr", curve_key(), name=name)
        with pytest.raises(
            ValueError, match=r"x\.csr asks for '.*', and the parties of the shared file are hub\.bank, cl"
        ):
            read_request(path, PARTIES)

    @pytest.mark.parametrize(
        ("key", "algorithm", "words"),
        [
            (rsa.generate_private_key(65537, 2048), hashes.SHA256(), "RSA of 2048 bits"),
            (curve_key(ec.SECP256K1), hashes.SHA256(), "on the curve secp256k1"),
            (curve_key(ec.SECP521R1), hashes.SHA256(), "on the curve secp521r1"),
            (ed25519.Ed25519PrivateKey.generate(), None, "Ed25519PublicKey"),
        ],
    )
    def test_a_key_that_is_weak_or_odd(self, tmp_path, key, algorithm, words):
        path = written(tmp_path / "x.csr", key, algorithm=algorithm)
        with pytest.raises(ValueError, match=rf"x\.csr: its key is {words}; give P-256 or P-384"):
            read_request(path, PARTIES)

    def test_a_request_for_another_ones_key(self, tmp_path):
        """The right name and key, the signature of another: nobody showed that they have the key."""
        asked, other = (
            x509.load_pem_x509_csr(written(tmp_path / "x.csr", key).read_bytes()).public_bytes(Encoding.DER)
            for key in (curve_key(), curve_key())
        )
        whole = x509.load_der_x509_csr(asked)
        signature = x509.load_der_x509_csr(other).signature
        # Signatures are the last bytes; one of the same length keeps the form.
        while len(signature) != len(whole.signature):
            other = x509.load_pem_x509_csr(written(tmp_path / "y.csr", curve_key()).read_bytes())
            signature = other.signature
        swapped = x509.load_der_x509_csr(asked[: -len(signature)] + signature)
        (tmp_path / "x.csr").write_bytes(swapped.public_bytes(Encoding.PEM))
        with pytest.raises(ValueError, match=r"x\.csr was not signed with the key that it names"):
            read_request(tmp_path / "x.csr", PARTIES)

    def test_what_is_no_request(self, tmp_path, issuer):
        for content, text in (
            (b"nonsense", r"is not a signing request in PEM form, or is damaged; ask for it again"),
            ((issuer / "ca.pem").read_bytes(), r"is not a signing request"),
            (key_pem(curve_key()), r"holds a private key, which should not have left its party"),
        ):
            (tmp_path / "x.csr").write_bytes(content)
            with pytest.raises(ValueError, match=rf"x\.csr {text}"):
                read_request(tmp_path / "x.csr", PARTIES)
        with pytest.raises(ValueError, match=r"none\.csr cannot be read: No such file"):
            read_request(tmp_path / "none.csr", PARTIES)

    def test_a_second_certificate_needs_to_be_asked_for(self, tmp_path, issuer):
        request = make_request(tmp_path, NORTH)
        first = sign(issuer, request).certificate.read_bytes()
        with pytest.raises(
            ValueError, match=r"client\.bank\.north has a certificate that is still good .*give --again"
        ):
            sign(issuer, make_request(tmp_path, NORTH, new_key=True))
        assert (issuer / f"{NORTH}.pem").read_bytes() == first
        sign(issuer, request, again=True)
        assert (issuer / f"{NORTH}.pem").read_bytes() != first

    def test_of_several_requests_all_are_signed_or_none(self, tmp_path, issuer):
        parties = {HUB: ["bank.example"], NORTH: ()}
        hub, north = (make_request(tmp_path / "party", party).path for party in (HUB, NORTH))
        sign_all(issuer, [north], parties, 30, again=False)
        before = {path.name: path.read_bytes() for path in issuer.iterdir()}
        with pytest.raises(ValueError, match=r"client\.bank\.north has a certificate that is still good"):
            sign_all(issuer, [hub, north], parties, 30, again=False)
        assert {path.name: path.read_bytes() for path in issuer.iterdir()} == before
        other = make_request(tmp_path / "other", HUB).path
        with pytest.raises(ValueError, match=rf"{HUB}\.csr and .*other/{HUB}\.csr are both for {HUB}"):
            sign_all(tmp_path / "new", [hub, other], parties, 30, again=False)
        assert not (tmp_path / "new").exists()
        assert len(sign_all(issuer, [hub, north], parties, 30, again=True)) == 2

    def test_a_revoked_key_is_never_signed_again(self, tmp_path, issuer):
        request = make_request(tmp_path, NORTH)
        sign(issuer, request)
        revoke(issuer, [NORTH])
        with pytest.raises(ValueError, match=r"north\.csr is for a key that was revoked; .*--new-key"):
            sign(issuer, request, again=True)
        done = sign(issuer, make_request(tmp_path, NORTH, new_key=True))
        assert facts_of(read_certificate(done.certificate)).common_name == f"{NORTH}~2"

    def test_a_key_that_the_issuer_made_is_not_mixed_up_with_the_partys(self, tmp_path, issuer):
        issue(issuer, NORTH)
        with pytest.raises(
            ValueError, match=r"client\.bank\.north\.key is another key of client\.bank\.north than that of"
        ):
            sign(issuer, make_request(tmp_path, NORTH), again=True)


FEDERATION = """
[[silos]]
name = "bank"
hub = "bank.example:7447"
clients = ["north", "south"]
"""


class TestCommands:
    @pytest.fixture
    def certs(self, tmp_path, monkeypatch):
        """``tdcd certs`` in a folder with a shared file; every machine has a folder of its own in it."""
        monkeypatch.chdir(tmp_path)
        Path("federation.toml").write_text(FEDERATION)

        def invoke(command, *arguments, status=0):
            done = CliRunner().invoke(certs_app, [command, *arguments])
            assert done.exit_code == status, done.output
            return done.output

        return invoke

    def test_from_request_to_check(self, certs):
        asked = certs("request", "federation.toml", HUB, "--out", "hub")
        assert f"Send hub/{HUB}.csr to the issuer; it is no secret. hub/{HUB}.key stays here." in asked
        assert "and federation.secret over a private channel" in asked
        digits = re.search(FINGERPRINT, asked)[0]
        other = certs("request", "federation.toml", NORTH, "--out", "north")
        assert "federation.secret" not in other
        signed = certs("sign", "federation.toml", f"hub/{HUB}.csr", f"north/{NORTH}.csr", "--out", "issuer")
        assert digits in signed
        assert re.search(FINGERPRINT, other)[0] in signed
        assert "let the party read its fingerprint to you by telephone" in signed
        assert {path.name for path in Path("issuer").glob("*.key")} == {"ca.key"}
        assert certs("check", "issuer").count(": good\n") == 2
        for party, folder, more in ((HUB, "hub", ["federation.secret"]), (NORTH, "north", [])):
            for name in (f"{party}.pem", "ca.pem", *more):
                shutil.copy(Path("issuer") / name, folder)
            checked = certs("check", folder)
            assert checked.count(": good\n") == 1
            authority = re.search(rf"{FINGERPRINT}(?= \(the authority's\))", checked)[0]
            assert authority in signed
        assert digits in certs("check", "hub")
        Path("hub/federation.secret").unlink()
        assert "hub/federation.secret: there is no such file" in certs("check", "hub", status=2)

    def test_what_cannot_be_asked_for_or_signed(self, certs):
        text = certs("request", "federation.toml", "client.bank.west", status=2)
        assert "client.bank.west: the parties of federation.toml are hub.bank, client.bank.north, client.bank.s" in text
        assert not Path("certs").exists()
        certs("request", "federation.toml", NORTH)
        Path("nonsense.csr").write_text("nonsense")
        text = certs("sign", "federation.toml", f"certs/{NORTH}.csr", "nonsense.csr", "--out", "issuer", status=2)
        assert "nonsense.csr is not a signing request" in text
        assert not Path("issuer").exists(), "all or none"
        certs("sign", "federation.toml", f"certs/{NORTH}.csr", "--out", "issuer")
        assert "give --again" in certs(
            "sign", "federation.toml", f"certs/{NORTH}.csr", "--out", "issuer", status=2
        ).replace("\n", " ")
        certs("sign", "federation.toml", f"certs/{NORTH}.csr", "--out", "issuer", "--again")

    def test_revoke_then_a_new_certificate(self, certs):
        certs("issue", "federation.toml")
        said = certs("revoke", NORTH)
        assert f"certs/revoked.crl is list 1: it revokes {NORTH}." in said
        assert "Copy it to the certs folder of every hub" in said
        checked = certs("check", "certs", status=2)
        assert f"certs/{NORTH}.pem was revoked (list 1, certs/revoked.crl)" in checked
        assert checked.count(": good\n") == 2
        again = certs("issue", "federation.toml", "--renew")
        assert f"Revoked, and left as they are: {NORTH}. For a new certificate: --only PARTY." in again
        assert "was revoked already" in certs("revoke", NORTH, status=2)
        assert "new" in certs("issue", "federation.toml", "--only", NORTH)
        checked = certs("check", "certs")
        assert f"{NORTH}~2, signed by" in checked
        assert "Revoked" not in certs("issue", "federation.toml")
        Path("certs/revoked.crl").write_text("nonsense")
        assert "certs/revoked.crl is not a list that tdcd certs revoke wrote" in certs("check", "certs", status=2)

    def test_issuing_leaves_certificates_of_parties_with_their_own_keys_alone(self, certs):
        certs("request", "federation.toml", NORTH, "--out", "north")
        certs("sign", "federation.toml", f"north/{NORTH}.csr")
        before = Path(f"certs/{NORTH}.pem").read_bytes()
        certs("issue", "federation.toml")
        assert Path(f"certs/{NORTH}.pem").read_bytes() == before
        assert not Path(f"certs/{NORTH}.key").exists()
