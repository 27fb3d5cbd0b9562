"""Keys for masks on certificates: whose they are is checked, and a hub's last as long as its run folder."""

import shutil

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import SubjectAlternativeName

from tdcd.runtime.certificates.agreement import Certified, ForgedCardError, Keys, RevokedCardError
from tdcd.runtime.certificates.check import read_certificate, read_key
from tdcd.runtime.certificates.issue import issue, revoke, throwaway
from tdcd.runtime.storage.keys import answer_key, forget_answer_key, mask_key

pytestmark = pytest.mark.quick

HUBS = {f"hub.{name}": ["127.0.0.1"] for name in "abc"}
PURPOSE = "some purpose"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The certificates of a federation, and of another one with the same names."""
    home = tmp_path_factory.mktemp("certs")
    for name in ("own", "foreign"):
        throwaway(home / name, HUBS, [])
    return home / "own", home / "foreign"


def keys(folder, party, secret=b"s" * 32):
    return Keys(party, secret, Certified(folder, party))


def test_two_parties_agree_on_a_secret_that_a_third_does_not_have(folders):
    a, b, c = (keys(folders[0], hub, hub.encode()).pair(PURPOSE) for hub in HUBS)
    assert a.agree("hub.b", PURPOSE, b.card()) == b.agree("hub.a", PURPOSE, a.card())
    assert c.agree("hub.b", PURPOSE, b.card()) != a.agree("hub.b", PURPOSE, b.card())
    # The same after a restart; another one for another purpose.
    assert keys(folders[0], "hub.a", b"hub.a").pair(PURPOSE).card().public == a.card().public
    assert keys(folders[0], "hub.a", b"hub.a").pair("another").card().public != a.card().public


def test_forged_cards_are_refused(folders):
    own, foreign = folders
    me, right = keys(own, "hub.a").pair(PURPOSE), keys(own, "hub.b").pair(PURPOSE).card()
    stolen = keys(own, "hub.c").pair(PURPOSE).card()
    cases = {
        "sent no key for masks": None,
        "comes with the certificate of hub.c": stolen,
        "comes with no certificate of this federation's authority": keys(foreign, "hub.b").pair(PURPOSE).card(),
        "is not signed with its certificate's key": type(right)(stolen.public, right.certificate, right.signature),
    }
    for text, card in cases.items():
        with pytest.raises(ForgedCardError, match=text):
            me.agree("hub.b", PURPOSE, card)
    with pytest.raises(ForgedCardError, match="is not signed"):
        me.agree("hub.b", "another purpose", right)
    weak = Keys("hub.b", b"", Certified(own, "hub.b"))
    signed = weak.signer.sign(b"\n".join([b"tdcd key for masks", b"hub.b", PURPOSE.encode(), bytes(32)]))
    with pytest.raises(ForgedCardError, match="none that a secret could come of"):
        me.agree("hub.b", PURPOSE, type(right)(bytes(32), *signed))


def test_cards_of_another_federation_of_the_same_authority_are_refused(tmp_path):
    throwaway(tmp_path, HUBS, [], "health")
    mine = Keys("hub.a", b"a" * 32, Certified(tmp_path, "hub.a", "trade")).pair(PURPOSE)
    theirs = keys(tmp_path, "hub.b").pair(PURPOSE).card()
    with pytest.raises(ForgedCardError, match="comes with a certificate of the federation 'health', not of 'trade'"):
        mine.agree("hub.b", PURPOSE, theirs)
    Keys("hub.a", b"a" * 32, Certified(tmp_path, "hub.a", "health")).pair(PURPOSE).agree("hub.b", PURPOSE, theirs)


def test_a_certificate_that_cannot_be_read_is_refused_like_any_other_forgery(folders):
    own, _ = folders
    right = keys(own, "hub.b").pair(PURPOSE).card()
    cert, issuer = x509.load_der_x509_certificate(right.certificate), read_certificate(own / "ca.pem")
    odd = (
        x509.CertificateBuilder(issuer.subject, cert.subject, cert.public_key(), 7)
        .not_valid_before(cert.not_valid_before_utc)
        .not_valid_after(cert.not_valid_after_utc)
        # An address of a kind that the library does not know, in what the authority itself signed.
        .add_extension(x509.UnrecognizedExtension(SubjectAlternativeName.oid, b"\x30\x02\xa3\x00"), critical=False)
        .sign(read_key(own / "ca.key"), hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    for name, broken in {
        "no such version": right.certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"),
        "an extension twice": right.certificate.replace(b"\x06\x03\x55\x1d\x11", b"\x06\x03\x55\x1d\x13"),
        "an unknown kind of address": odd,
        "no certificate": b"\x30",
    }.items():
        assert broken != right.certificate, name
        with pytest.raises(ForgedCardError, match="comes with no certificate of this federation's authority"):
            keys(own, "hub.a").pair(PURPOSE).agree("hub.b", PURPOSE, type(right)(right.public, broken, right.signature))


def test_a_revoked_certificate_binds_nothing(tmp_path):
    throwaway(tmp_path, HUBS, [])
    me, before = keys(tmp_path, "hub.a").pair(PURPOSE), keys(tmp_path, "hub.b").pair(PURPOSE).card()
    me.agree("hub.b", PURPOSE, before)
    revoke(tmp_path, ["hub.b"])
    with pytest.raises(RevokedCardError, match="a certificate that was revoked"):
        me.agree("hub.b", PURPOSE, before)
    without = shutil.copytree(tmp_path, tmp_path / "without", ignore=shutil.ignore_patterns("*.crl"))
    issue(tmp_path, "hub.b", ["127.0.0.1"], renew=True)
    text = r"the certificate of 'hub\.b~2', and list 0 \(.*\) expects 'hub\.b': copy the issuer's latest revoked\.crl"
    with pytest.raises(RevokedCardError, match=text):
        keys(without, "hub.a").pair(PURPOSE).agree("hub.b", PURPOSE, keys(tmp_path, "hub.b").pair(PURPOSE).card())
    me.agree("hub.b", PURPOSE, keys(tmp_path, "hub.b").pair(PURPOSE).card())


def test_the_key_of_a_run_folder_stays_and_is_for_its_owner_alone(tmp_path):
    first = mask_key(tmp_path)
    assert mask_key(tmp_path) == first
    path = tmp_path / "mask.key"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("half")
    with pytest.raises(ValueError, match=r"mask.key is damaged: .* restore the run folder"):
        mask_key(tmp_path)


def test_what_hides_a_clients_answers_stays_for_a_run_and_is_gone_after_it(tmp_path):
    path = tmp_path / "client.shop.c1.0123456789abcdef.key"
    first = answer_key(path)
    assert answer_key(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    forget_answer_key(path)
    assert not [*tmp_path.iterdir()]
    assert answer_key(path) != first
    path.write_text("no key\n")
    with pytest.raises(ValueError, match=r"\.key is damaged: .* Remove it: a new one hides what is sent from now on"):
        answer_key(path)
    with pytest.raises(
        ValueError, match=r"client\.key cannot be made \(No such file .*give it --out, a folder of its own"
    ):
        answer_key(tmp_path / "missing" / "client.key")
