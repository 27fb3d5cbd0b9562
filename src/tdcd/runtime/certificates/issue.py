"""The federation's certificate authority, and the certificates that it issues to hubs and clients.

Keys need not travel: a party makes its key and a signing request, and the issuer signs what it has checked.

A party is ``hub.SILO`` or ``client.SILO.CLIENT``. That string is its certificate's common name, and it fixes what the
holder may do. A company may have an authority of its own, ``authority.SILO``, for its clients and for nothing else: to
all who trust the federation's authority alone, its certificate is one that may sign no other.

One folder, the issuer's, holds everything:

======================================  ====================================================================
``ca.pem``                              the authority's certificate, for every party
``ca.key``                              its key, which never leaves the issuer
``federation.secret``                   the key of the digests of ids and labels, for every party
``hub.bank.pem``, ``hub.bank.key``      a party's certificate and key, for that party; no key if the party made it
``revoked.crl``                         who was revoked, for every party: :mod:`tdcd.runtime.certificates.revocation`
``authority.bank.pem``, ``.key``        a company's own authority; the key is in the company's folder alone
``revoked.bank.crl``                    which of its clients it has revoked
======================================  ====================================================================
"""

import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tdcd.runtime.certificates.check import (
    AUTHORITY,
    SECRET_BYTES,
    authority_path,
    company_of,
    explain,
    facts_of,
    fingerprint,
    read_certificate,
    read_key,
    read_secret,
    role_of,
)
from tdcd.runtime.certificates.revocation import ENTRY, REVOKED, RevocationList, company_list, read_list

AUTHORITY_KEY = "ca.key"
SECRET = "federation.secret"
AUTHORITY_DAYS = 3650
PARTY_DAYS = 365
CLOCK_SKEW = timedelta(minutes=5)
COMPANY_USE = x509.ObjectIdentifier("2.25.226547247567619960890586341070681402949")
"""What the certificate of a company's authority is for: neither end of a TLS link."""
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"


# A name whose last label is a number would be an address, and a wrong one.
_HOST = re.compile(rf"(?=.{{1,253}}$)(?!(.*\.)?[0-9]+$){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True)
class Issued:
    """A party's certificate and key in the issuer's folder."""

    party: str
    certificate: Path
    key: Path
    expires: datetime
    is_new: bool
    """False for one that was there and is still good."""


@dataclass(frozen=True)
class Issuer:
    """The authority that signs a party's certificate, as files of a folder."""

    certificate: Path
    key: Path
    revoked: Path
    """Its list."""

    @classmethod
    def of(cls, folder: Path, party: str) -> "Issuer":
        """Of clients, their company's own authority if the folder knows it; of all others, the federation's."""
        company = company_of(party)
        cert, key = folder / f"{company}.pem", folder / f"{company}.key"
        if role_of(party) == "client" and (cert.exists() or key.exists()):
            return cls(cert, key, company_list(folder, party))
        return cls.of_federation(folder)

    @classmethod
    def of_federation(cls, folder: Path) -> "Issuer":
        """The federation's authority."""
        return cls(folder / AUTHORITY, folder / AUTHORITY_KEY, folder / REVOKED)

    @property
    def is_elsewhere(self) -> bool:
        """Whether another one has the key."""
        return self.certificate.exists() and not self.key.exists()

    def list(self) -> RevocationList:
        """Who was revoked by it."""
        return read_list(self.revoked, self.certificate)

    def opened(self, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Its certificate and its key, if it can sign now."""
        if not self.key.exists():
            raise ValueError(f"{self.key}: there is no such file; only its holder can issue certificates")
        ca, key = read_certificate(self.certificate), read_key(self.key)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
            raise ValueError(f"{self.key} is not the key of {self.certificate}; restore the two together")
        if now >= ca.not_valid_after_utc:
            raise ValueError(
                f"{self.certificate} expired on {ca.not_valid_after_utc:%Y-%m-%d}: the federation needs a new "
                "authority and new certificates; choose an empty folder"
            )
        return ca, key


def create_authority(folder: Path, days: int = AUTHORITY_DAYS, now: datetime | None = None) -> None:
    """Make a federation's authority: ``ca.pem``, ``ca.key`` and ``federation.secret`` in ``folder``.

    The authority signs parties' certificates only, never another authority. What is there already is not overwritten.
    """
    for name in (AUTHORITY, AUTHORITY_KEY, SECRET):
        if (folder / name).exists():
            raise ValueError(
                f"{folder / name} is there already, and a new authority makes all its certificates worthless; "
                "choose an empty folder"
            )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    # The tag distinguishes one federation's authority from another's in messages; nothing relies on it.
    subject = named(f"tdcd federation CA {secrets.token_hex(4)}")
    builder = _builder(subject, subject, key.public_key(), key, now, now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    cert = builder.add_extension(_key_usage(authority=True), critical=True).sign(key, hashes.SHA256())
    write_whole(folder / AUTHORITY_KEY, key_pem(key), private=True)
    write_whole(folder / SECRET, secrets.token_hex(SECRET_BYTES).encode() + b"\n", private=True)
    write_whole(folder / AUTHORITY, cert.public_bytes(Encoding.PEM), private=False)


def issue(
    folder: Path,
    party: str,
    hosts: Sequence[str] = (),
    days: int = PARTY_DAYS,
    renew: bool = False,
    now: datetime | None = None,
    federation: str | None = None,
) -> Issued:
    """A key and a certificate for ``party``, signed by the authority of ``folder``.

    A hub may serve, at ``hosts`` (names or addresses at which it is dialled), and dial other hubs. A client may only
    dial: its certificate names no host, so that it cannot pose as a server. A certificate that is still good is
    replaced only where ``renew`` says so, always with a new key. None outlives the authority.
    """
    now = now or datetime.now(UTC)
    paths = folder / f"{party}.pem", folder / f"{party}.key"
    if not renew and is_good(folder, party, hosts, now, federation):
        raise ValueError(f"{paths[0]} is there already and still good; to replace it and its key, give --renew")
    key = ec.generate_private_key(ec.SECP256R1())
    cert = certify(folder, party, hosts, key.public_key(), days, now, federation)
    write_whole(paths[1], key_pem(key), private=True)
    write_whole(paths[0], cert.public_bytes(Encoding.PEM), private=False)
    return Issued(party, *paths, cert.not_valid_after_utc, is_new=True)


def certify(
    folder: Path,
    party: str,
    hosts: Sequence[str],
    key: CertificatePublicKeyTypes,
    days: int,
    now: datetime,
    federation: str | None = None,
) -> x509.Certificate:
    """A certificate for ``party`` and its key, signed by the authority of ``folder``; it names ``federation``."""
    _check(party, hosts)
    issuer = Issuer.of(folder, party)
    ca, ca_key = issuer.opened(now)
    name = issuer.list().current_name(party)
    is_company = role_of(party) == "authority"
    # An authority of a company lasts as long as the federation's.
    expires = ca.not_valid_after_utc if is_company else min(now + timedelta(days=days), ca.not_valid_after_utc)
    builder = _builder(named(name, federation), ca.subject, key, ca_key, now, expires)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(authority=False), critical=True)
    usages = [COMPANY_USE if is_company else ExtendedKeyUsageOID.CLIENT_AUTH]
    if role_of(party) == "hub":
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName(map(_alternative, hosts)), critical=False)
    return builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False).sign(ca_key, hashes.SHA256())


def issue_all(
    folder: Path,
    hubs: Mapping[str, Sequence[str]],
    clients: Sequence[str],
    days: int = PARTY_DAYS,
    renew: bool = False,
    now: datetime | None = None,
    federation: str | None = None,
) -> list[Issued]:
    """One certificate for every party; the authority too, where ``folder`` has none.

    Certificates that are there and still good for their party and hosts stay, unless ``renew`` says otherwise: the same
    call adds a party later.

    Args:
        folder: the issuer's.
        hubs: for each hub's party name the hosts at which it is dialled.
        clients: the clients' party names.
        federation: what the certificates call it; those that are there and name another one are replaced.
    """
    now = now or datetime.now(UTC)
    parties = {**hubs, **dict.fromkeys(clients, ())}
    for party, hosts in parties.items():
        _check(party, hosts)
    _ensure_authority(folder, now)
    # Where another one is the issuer, the secret stays with it.
    if (folder / AUTHORITY_KEY).exists():
        read_secret(folder / SECRET)
    done = []
    for party, hosts in parties.items():
        if not renew and is_good(folder, party, hosts, now, federation):
            path = folder / f"{party}.pem"
            expires = facts_of(read_certificate(path)).not_after
            done.append(Issued(party, path, folder / f"{party}.key", expires, is_new=False))
        else:
            done.append(issue(folder, party, hosts, days, renew=True, now=now, federation=federation))
    return done


def throwaway(
    folder: Path, hubs: Mapping[str, Sequence[str]], clients: Sequence[str], federation: str | None = None
) -> list[Issued]:
    """An authority and certificates for a trial, all worthless after a day."""
    create_authority(folder, days=1)
    return issue_all(folder, hubs, clients, days=1, federation=federation)


def _check(party: str, hosts: Sequence[str]) -> None:
    role = role_of(party)
    if role is None:
        raise ValueError(
            f"'{party}' is no party's name: write hub.SILO or client.SILO.CLIENT, where names are up to 24 letters, "
            "digits, '_' and '-', and begin with a letter or digit"
        )
    if role == "hub" and not hosts:
        raise ValueError(f"{party} needs at least one host: the name or address at which the others dial it")
    if role != "hub" and hosts:
        what = "a client" if role == "client" else "an authority"
        raise ValueError(f"{party} is {what}, which no party dials: give it no hosts")
    for host in hosts:
        _alternative(host)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ValueError(f"'{host}' is neither a host name nor an IP address; leave the port out") from None
        return x509.DNSName(host)


def is_good(folder: Path, party: str, hosts: Sequence[str], now: datetime, federation: str | None = None) -> bool:
    """Whether the party's certificate in ``folder`` will do; its key may be with the party alone."""
    cert, key = folder / f"{party}.pem", folder / f"{party}.key"
    key_path, ca = key if key.exists() else None, authority_path(folder, party)
    wrong = [explain(cert, key_path, ca, party, host, now, federation) for host in hosts or (None,)]
    return not any(wrong) and not Issuer.of(folder, party).list().problems(cert)


def list_of(folder: Path) -> RevocationList:
    """Who was revoked by the federation's authority."""
    return Issuer.of_federation(folder).list()


def _ensure_authority(folder: Path, now: datetime) -> None:
    """Make the federation's authority in a folder that has none, and is not a company's."""
    if any((folder / name).exists() for name in (AUTHORITY, AUTHORITY_KEY, SECRET)):
        return
    if own := sorted(folder.glob("authority.*.key")):
        raise ValueError(f"{folder / AUTHORITY}: there is no such file; whoever signs {own[0].stem} has it")
    create_authority(folder, now=now)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertificatePublicKeyTypes,
    signer: ec.EllipticCurvePrivateKey,
    now: datetime,
    expires: datetime,
) -> x509.CertificateBuilder:
    """What every certificate has. It is valid from a little before ``now``, since clocks differ."""
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def named(name: str, federation: str | None = None) -> x509.Name:
    """The subject of a certificate with this common name, which names a federation or none."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if federation is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation))
    return x509.Name(parts)


def _key_usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as it is written to its file."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_whole(path: Path, data: bytes, private: bool) -> None:
    """Put ``data`` in place whole: no reader sees half a file, and a key is never readable by others."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600 if private else 0o644, exist_ok=False)
    draft.write_bytes(data)
    draft.replace(path)


def revoke(folder: Path, parties: Sequence[str], now: datetime | None = None) -> RevocationList:
    """Add the parties' certificates in ``folder`` to their authority's list, and sign it; all or none of them.

    All certificates under a party's common name are worthless from then on, also older ones that were renewed.
    """
    now = now or datetime.now(UTC)
    issuer, *others = {Issuer.of(folder, party) for party in parties}
    if others:
        raise ValueError(f"{', '.join(parties)}: a federation's authority and a company's revoke their own: one by one")
    ca, ca_key = issuer.opened(now)
    before = issuer.list()
    builder = x509.CertificateRevocationListBuilder(ca.subject, now, ca.not_valid_after_utc)
    builder = builder.add_extension(x509.CRLNumber(before.number + 1), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False)
    if before.number:
        for entry in x509.load_pem_x509_crl(issuer.revoked.read_bytes()):
            builder = builder.add_revoked_certificate(entry)
    for party in dict.fromkeys(parties):
        builder = builder.add_revoked_certificate(_entry(folder / f"{party}.pem", party, before, now))
    crl = builder.sign(ca_key, hashes.SHA256())
    write_whole(issuer.revoked, crl.public_bytes(Encoding.PEM), private=False)
    return issuer.list()


def _entry(path: Path, party: str, before: RevocationList, now: datetime) -> x509.RevokedCertificate:
    if not path.exists():
        raise ValueError(f"{path}: there is no such file; {party} has no certificate of this folder's authority")
    cert = read_certificate(path)
    facts = facts_of(cert)
    if facts.name != party:
        raise ValueError(f"{path} is the certificate of '{facts.name}', not of '{party}'; restore the right one")
    if facts.common_name in before.keys:
        raise ValueError(f"{path} was revoked already (list {before.number}); {party} has no certificate since")
    text = f"{facts.common_name} {fingerprint(cert.public_key())}"
    return (
        x509.RevokedCertificateBuilder(cert.serial_number, now)
        .add_extension(x509.UnrecognizedExtension(ENTRY, text.encode()), critical=False)
        .build()
    )


REQUEST_SUFFIX = ".csr"
RSA_BITS = range(3072, 4097)


@dataclass(frozen=True)
class SigningRequest:
    """A party's wish for a certificate, made by whoever has the key."""

    path: Path
    party: str
    key: CertificatePublicKeyTypes

    @property
    def fingerprint(self) -> str:
        """The key's, for both ends to compare."""
        return fingerprint(self.key)


def make_request(folder: Path, party: str, new_key: bool = False) -> SigningRequest:
    """Write ``PARTY.csr`` into ``folder``, and ``PARTY.key`` if there is none or ``new_key`` asks for another."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, key_path = folder / f"{party}{REQUEST_SUFFIX}", folder / f"{party}.key"
    if new_key or not key_path.exists():
        write_whole(key_path, key_pem(ec.generate_private_key(ec.SECP256R1())), private=True)
    key = read_key(key_path)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError(f"{key_path} is neither an elliptic curve key nor an RSA key; make another: --new-key")
    _check_key(key.public_key(), key_path)
    csr = x509.CertificateSigningRequestBuilder(named(party)).sign(key, hashes.SHA256())
    write_whole(path, csr.public_bytes(Encoding.PEM), private=False)
    return SigningRequest(path, party, key.public_key())


def read_request(path: Path, parties: Sequence[str]) -> SigningRequest:
    """The request at ``path``, if the holder of its key made it for one of ``parties``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if b"PRIVATE KEY-----" in data:
        raise ValueError(f"{path} holds a private key, which should not have left its party; ask for a new request")
    try:
        csr = x509.load_pem_x509_csr(data)
        key, is_signed = csr.public_key(), csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is not a signing request in PEM form, or is damaged; ask for it again") from None
    if not is_signed:
        raise ValueError(
            f"{path} was not signed with the key that it names: the sender did not prove that it has that key"
        )
    names = [str(part.value) for part in csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(names) != 1 or names[0] not in parties:
        raise ValueError(
            f"{path} asks for '{', '.join(names)}', and the parties of the shared file are {', '.join(parties)}"
        )
    _check_key(key, path)
    return SigningRequest(path, names[0], key)


def sign(
    folder: Path,
    request: SigningRequest,
    hosts: Sequence[str] = (),
    days: int = PARTY_DAYS,
    again: bool = False,
    now: datetime | None = None,
    federation: str | None = None,
) -> Issued:
    """A certificate for the party and key of a request, by the authority of ``folder``.

    Of the request nothing but name and key is used: ``hosts`` and what the holder may do come from the shared file.
    """
    now = now or datetime.now(UTC)
    _check_request(folder, request, hosts, again, now, federation)
    return _written(folder, request, certify(folder, request.party, hosts, request.key, days, now, federation))


def _written(folder: Path, request: SigningRequest, cert: x509.Certificate) -> Issued:
    path = folder / f"{request.party}.pem"
    write_whole(path, cert.public_bytes(Encoding.PEM), private=False)
    return Issued(request.party, path, path.with_suffix(".key"), cert.not_valid_after_utc, is_new=True)


def _check_request(
    folder: Path, request: SigningRequest, hosts: Sequence[str], again: bool, now: datetime, federation: str | None
) -> None:
    """Raise a ValueError that says why a request cannot be signed."""
    cert_path, key_path = folder / f"{request.party}.pem", folder / f"{request.party}.key"
    if request.fingerprint in Issuer.of(folder, request.party).list().keys.values():
        raise ValueError(
            f"{request.path} is for a key that was revoked; the party needs another: tdcd certs request --new-key"
        )
    if not again and is_good(folder, request.party, hosts, now, federation):
        raise ValueError(
            f"{request.party} has a certificate that is still good ({cert_path}); if it really asked for another, "
            "give --again, and revoke the first if its key may be in other hands"
        )
    if key_path.exists() and fingerprint(read_key(key_path).public_key()) != request.fingerprint:
        raise ValueError(
            f"{key_path} is another key of {request.party} than that of {request.path}; move it away first"
        )


def sign_all(
    folder: Path,
    paths: Sequence[Path],
    parties: Mapping[str, Sequence[str]],
    days: int,
    again: bool,
    federation: str | None = None,
) -> list[tuple[SigningRequest, Issued]]:
    """Sign several requests, or none if one of them cannot be; make the authority where ``folder`` has none.

    Args:
        folder: the issuer's.
        paths: the requests.
        parties: of every party in the shared file the hosts at which it is dialled.
    """
    requests = [read_request(path, [*parties]) for path in paths]
    asked: dict[str, SigningRequest] = {}
    for request in requests:
        if (other := asked.setdefault(request.party, request)) is not request:
            raise ValueError(f"{other.path} and {request.path} are both for {request.party}; give one of them")
    now = datetime.now(UTC)
    for request in requests:
        _check_request(folder, request, parties[request.party], again, now, federation)
    _ensure_authority(folder, now)
    certs = [
        certify(folder, request.party, parties[request.party], request.key, days, now, federation)
        for request in requests
    ]
    return [(request, _written(folder, request, cert)) for request, cert in zip(requests, certs, strict=True)]


def _check_key(key: CertificatePublicKeyTypes, path: Path) -> None:
    if isinstance(key, ec.EllipticCurvePublicKey):
        kind, is_good_kind = f"on the curve {key.curve.name}", isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
    elif isinstance(key, rsa.RSAPublicKey):
        kind, is_good_kind = f"RSA of {key.key_size} bits", key.key_size in RSA_BITS
    else:
        kind, is_good_kind = type(key).__name__, False
    if not is_good_kind:
        raise ValueError(f"{path}: its key is {kind}; give P-256 or P-384, as tdcd certs request does, or RSA of 3072")
