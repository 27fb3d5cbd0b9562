"""Keys that never travel: a party makes its key and a signing request, and the issuer signs what it has checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tdcd.runtime.certificates.check import fingerprint, read_key
from tdcd.runtime.certificates.issue import (
    AUTHORITY,
    AUTHORITY_KEY,
    PARTY_DAYS,
    Issued,
    certify,
    create_authority,
    is_good,
    key_pem,
    list_of,
    named,
    write_whole,
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
) -> Issued:
    """A certificate for the party and key of a request, by the authority of ``folder``.

    Of the request nothing but name and key is used: ``hosts`` and what the holder may do come from the shared file.
    """
    now = now or datetime.now(UTC)
    _check_request(folder, request, hosts, again, now)
    return _written(folder, request, certify(folder, request.party, hosts, request.key, days, now))


def _written(folder: Path, request: SigningRequest, cert: x509.Certificate) -> Issued:
    path = folder / f"{request.party}.pem"
    write_whole(path, cert.public_bytes(Encoding.PEM), private=False)
    return Issued(request.party, path, path.with_suffix(".key"), cert.not_valid_after_utc, is_new=True)


def _check_request(folder: Path, request: SigningRequest, hosts: Sequence[str], again: bool, now: datetime) -> None:
    """Raise a ValueError that says why a request cannot be signed."""
    cert_path, key_path = folder / f"{request.party}.pem", folder / f"{request.party}.key"
    if request.fingerprint in list_of(folder).keys.values():
        raise ValueError(
            f"{request.path} is for a key that was revoked; the party needs another: tdcd certs request --new-key"
        )
    if not again and is_good(folder, request.party, hosts, now):
        raise ValueError(
            f"{request.party} has a certificate that is still good ({cert_path}); if it really asked for another, "
            "give --again, and revoke the first if its key may be in other hands"
        )
    if key_path.exists() and fingerprint(read_key(key_path).public_key()) != request.fingerprint:
        raise ValueError(
            f"{key_path} is another key of {request.party} than that of {request.path}; move it away first"
        )


def sign_all(
    folder: Path, paths: Sequence[Path], parties: Mapping[str, Sequence[str]], days: int, again: bool
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
        _check_request(folder, request, parties[request.party], again, now)
    if not any((folder / name).exists() for name in (AUTHORITY, AUTHORITY_KEY)):
        create_authority(folder)
    certs = [certify(folder, one.party, parties[one.party], one.key, days, now) for one in requests]
    return [(one, _written(folder, one, cert)) for one, cert in zip(requests, certs, strict=True)]


def _check_key(key: CertificatePublicKeyTypes, path: Path) -> None:
    if isinstance(key, ec.EllipticCurvePublicKey):
        kind, is_good_kind = f"on the curve {key.curve.name}", isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
    elif isinstance(key, rsa.RSAPublicKey):
        kind, is_good_kind = f"RSA of {key.key_size} bits", key.key_size in RSA_BITS
    else:
        kind, is_good_kind = type(key).__name__, False
    if not is_good_kind:
        raise ValueError(f"{path}: its key is {kind}; give P-256 or P-384, as tdcd certs request does, or RSA of 3072")
