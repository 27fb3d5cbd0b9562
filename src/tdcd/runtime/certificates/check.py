"""Whether a party's certificate will do, and in plain words what is wrong with one that will not."""

import hashlib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tdcd.core.words import counted

_LATER = re.compile(r"(?P<party>[^~]+)~(?:[2-9]|[1-9][0-9]{1,3})")


def common_name(party: str, generation: int) -> str:
    """The common name of a party's certificates after it was revoked ``generation - 1`` times.

    >>> common_name("hub.bank", 1), common_name("hub.bank", 2)
    ('hub.bank', 'hub.bank~2')
    """
    return party if generation == 1 else f"{party}~{generation}"


def party_of(name: str) -> str:
    """The party whose certificate has this common name.

    >>> party_of("hub.bank~2"), party_of("hub.bank"), party_of("hub.bank~1")
    ('hub.bank', 'hub.bank', 'hub.bank~1')
    """
    match = _LATER.fullmatch(name)
    return match["party"] if match else name


def fingerprint(key: PublicKeyTypes) -> str:
    """A public key in 32 hexadecimal digits, in groups that can be read out over the telephone."""
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return " ".join(digest[start : start + 4] for start in range(0, 32, 4))


Role = Literal["hub", "client", "authority"]
AUTHORITY = "ca.pem"
"""The file with the certificate of the federation's authority."""
T = TypeVar("T")
E = TypeVar("E", bound=x509.ExtensionType)
SECRET_BYTES = 32
EXPIRES_SOON = timedelta(days=30)
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}"
_HUB = re.compile(rf"hub\.{_NAME}")
_CLIENT = re.compile(rf"client\.{_NAME}\.{_NAME}")
_COMPANY = re.compile(rf"authority\.{_NAME}")
_USAGES = {ExtendedKeyUsageOID.SERVER_AUTH: "server", ExtendedKeyUsageOID.CLIENT_AUTH: "client"}
RENEWAL = "tdcd certs request, or tdcd certs issue --renew"
_NEEDED: dict[Role, tuple[str, ...]] = {"hub": ("server", "client"), "client": ("client",), "authority": ()}


@dataclass(frozen=True)
class CertificateFacts:
    """What a certificate says of itself."""

    name: str
    """The party it belongs to."""
    common_name: str
    """What it is admitted by: the party's name, with ``~2`` and so on after revocations."""
    issuer: str
    not_before: datetime
    not_after: datetime
    usages: tuple[str, ...]
    """What TLS lets its holder be: ``server``, ``client`` or both."""
    hosts: tuple[str, ...]
    """Where its holder may serve, as written in the certificate's alternative names."""
    is_authority: bool
    federation: str | None = None
    """The federation that it was issued for, if it names one."""

    def days_left(self, now: datetime | None = None) -> int:
        """Whole days until it expires; negative once it has."""
        return (self.not_after - (now or datetime.now(UTC))).days


def role_of(party: str) -> Role | None:
    """What a party of that name is, or None where it is no party's name.

    >>> role_of("hub.bank"), role_of("client.bank.north"), role_of("authority.bank"), role_of("bank")
    ('hub', 'client', 'authority', None)
    """
    roles: dict[Role, re.Pattern[str]] = {"hub": _HUB, "client": _CLIENT, "authority": _COMPANY}
    return next((role for role, pattern in roles.items() if pattern.fullmatch(party)), None)


def company_of(party: str) -> str:
    """The name of the authority that a party's company may have for its clients.

    >>> company_of("client.bank.north"), company_of("hub.bank")
    ('authority.bank', 'authority.bank')
    """
    return f"authority.{'.'.join(party.split('.')[1:2])}"


def authority_path(folder: Path, party: str) -> Path:
    """The certificate of the authority that signs a party's: of clients the company's own, where ``folder`` has it."""
    company = folder / f"{company_of(party)}.pem" if role_of(party) == "client" else folder / AUTHORITY
    return company if company.exists() else folder / AUTHORITY


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate at ``path``; a ValueError says why there is none."""
    data = _read(path)
    if b"PRIVATE KEY-----" in data:
        raise ValueError(f"{path} holds a private key, where the certificate belongs; were the two files swapped?")
    try:
        cert = x509.load_pem_x509_certificate(data)
        # Both are decoded when first asked for: ask now, so that damage is found here.
        cert.extensions, cert.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is not a certificate in PEM form, or is damaged; copy the file again") from None
    return cert


def read_key(path: Path) -> PrivateKeyTypes:
    """The private key at ``path``; a ValueError says why there is none."""
    data = _read(path)
    if b"BEGIN CERTIFICATE-----" in data:
        raise ValueError(f"{path} holds a certificate, where the private key belongs; were the two files swapped?")
    try:
        return load_pem_private_key(data, password=None)
    except TypeError:
        raise ValueError(f"{path} is locked with a passphrase; give the key without one") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is not a private key in PEM form, or is damaged; copy the file again") from None


def read_secret(path: Path) -> bytes:
    """The bytes that all parties share: the key of the digests of ids and labels; a ValueError says what is wrong."""
    text = _read(path).decode("ascii", errors="replace").strip()
    if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", text):
        raise ValueError(f"{path} does not hold {2 * SECRET_BYTES} hexadecimal digits; copy the file again")
    return bytes.fromhex(text)


def facts_of(cert: x509.Certificate) -> CertificateFacts:
    """What ``cert`` says of itself."""
    constraints = _extension(cert, x509.BasicConstraints)
    usages = _extension(cert, x509.ExtendedKeyUsage) or ()
    names = _extension(cert, x509.SubjectAlternativeName) or x509.SubjectAlternativeName([])
    return CertificateFacts(
        name=party_of(_common_name(cert.subject)),
        common_name=_common_name(cert.subject),
        issuer=_common_name(cert.issuer),
        not_before=cert.not_valid_before_utc,
        not_after=cert.not_valid_after_utc,
        usages=tuple(name for oid, name in _USAGES.items() if oid in usages),
        hosts=(*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))),
        is_authority=constraints is not None and constraints.ca,
        federation=_named(cert.subject, NameOID.ORGANIZATION_NAME) or None,
    )


def of_another_federation(facts: CertificateFacts, federation: str | None) -> str:
    """How a certificate names another federation than this, or none; empty if it does not, or if none is asked for.

    >>> facts = CertificateFacts("hub.a", "hub.a", "ca", datetime.now(UTC), datetime.now(UTC), (), (), False, "trade")
    >>> of_another_federation(facts, "trade"), of_another_federation(facts, None)
    ('', '')
    >>> of_another_federation(facts, "health")
    "of the federation 'trade', not of 'health'"
    """
    if federation in (None, facts.federation):
        return ""
    theirs = "no federation" if facts.federation is None else f"the federation '{facts.federation}'"
    return f"of {theirs}, not of '{federation}'"


def explain(
    cert_path: Path,
    key_path: Path | None,
    ca_path: Path,
    party: str | None = None,
    host: str | None = None,
    now: datetime | None = None,
    federation: str | None = None,
) -> list[str]:
    """Everything that is wrong with a party's certificate, a sentence each; an empty list means that it is good.

    Args:
        cert_path: the party's certificate.
        key_path: its private key; None where that is not at hand.
        ca_path: the certificate of the federation's authority.
        party: whose certificate it has to be; by default whoever it names.
        host: the address at which the others dial this hub; by default any.
        now: when it has to be valid; by default this moment.
        federation: which one it has to name; by default any, or none.
    """
    now = now or datetime.now(UTC)
    problems: list[str] = []
    cert = _attempt(read_certificate, cert_path, problems)
    key = None if key_path is None else _attempt(read_key, key_path, problems)
    ca = _attempt(read_certificate, ca_path, problems)
    if cert is not None and facts_of(cert).is_authority:
        wanted = f"{party}.pem" if party else "the party's own"
        problems.append(f"{cert_path} is the certificate of an authority, not of a party; give {wanted}")
        cert = None
    if cert is not None:
        problems += _name_problems(cert_path, facts_of(cert), party)
        problems += _date_problems(cert_path, facts_of(cert), now, f"ask for a new one: {RENEWAL}")
        problems += _use_problems(cert_path, facts_of(cert), party, host)
        if other := of_another_federation(facts_of(cert), federation):
            problems.append(
                f"{cert_path} is {other}, which federation.name asks for; ask for one that is: tdcd certs request, or "
                "tdcd certs issue --renew"
            )
    if cert is not None and key is not None and _public(key.public_key()) != _public(cert.public_key()):
        problems.append(
            f"{key_path} is not the key of {cert_path}: the two were not issued together; copy both files again"
        )
    if ca is not None:
        is_company = role_of(facts_of(ca).name) == "authority" and ca_path.name != AUTHORITY
        if is_company:
            company, root = company_of(party or ca_path.stem), ca_path.with_name(AUTHORITY)
            problems += explain(ca_path, None, root, company, None, now, federation)
        else:
            problems += _authority_problems(ca_path, facts_of(ca), now)
    if cert is not None and ca is not None and (is_company or facts_of(ca).is_authority):
        problems += _signature_problems(cert_path, cert, ca_path, ca)
    return problems


def cautions(cert_path: Path, key_path: Path, now: datetime | None = None) -> list[str]:
    """What is not wrong yet, a sentence each: a certificate that expires soon, a key that others can read."""
    sentences: list[str] = []
    cert = _attempt(read_certificate, cert_path, [])
    left = facts_of(cert).not_after - (now or datetime.now(UTC)) if cert else EXPIRES_SOON
    if timedelta(0) < left < EXPIRES_SOON:
        sentences.append(f"{cert_path} expires in {counted(left.days, 'day')}; renew it: {RENEWAL}")
    if key_path.is_file() and (mode := key_path.stat().st_mode & 0o777) & 0o077:
        sentences.append(f"{key_path} is open to other users (mode {mode:04o}); close it: chmod 600 {key_path}")
    return sentences


def _name_problems(path: Path, facts: CertificateFacts, party: str | None) -> list[str]:
    if party is not None and facts.name != party:
        return [f"{path} is the certificate of '{facts.name}', not of '{party}'; give the one that is"]
    if role_of(facts.name) is None:
        return [f"{path} names '{facts.name}', which is no party; names are hub.SILO and client.SILO.CLIENT"]
    return []


def _date_problems(path: Path, facts: CertificateFacts, now: datetime, remedy: str) -> list[str]:
    if now > facts.not_after:
        return [f"{path} expired on {_when(facts.not_after)} and it is {_when(now)}; {remedy}"]
    if now < facts.not_before:
        start = _when(facts.not_before)
        return [f"{path} is not valid before {start} and it is {_when(now)} here; set this machine's clock, or wait"]
    return []


def _use_problems(path: Path, facts: CertificateFacts, party: str | None, host: str | None) -> list[str]:
    """Whether TLS will let the holder play its role, at that address."""
    role = role_of(party or facts.name)
    if role is None:
        return []
    problems = []
    if missing := [usage for usage in _NEEDED[role] if usage not in facts.usages]:
        allowed = f"only as a {facts.usages[0]}" if facts.usages else "neither as a server nor as a client"
        problems.append(
            f"{path} may be used {allowed}, but a {role} has to be a {' and a '.join(missing)} too; "
            f"give a certificate that was issued to a {role}"
        )
    if role == "hub" and not facts.hosts:
        problems.append(f"{path} names no host, so no party can dial a hub that shows it; issue one to the hub")
    elif role == "hub" and host is not None and _plain(host) not in map(_plain, facts.hosts):
        problems.append(
            f"{path} is for {', '.join(facts.hosts)}, but the hub is dialled as {host}; "
            "correct the hub's address, or have a certificate made for it: tdcd certs sign --again, or issue --renew"
        )
    return problems


def _authority_problems(path: Path, facts: CertificateFacts, now: datetime) -> list[str]:
    if not facts.is_authority:
        return [f"{path} is the certificate of '{facts.name}', not of an authority; give the federation's ca.pem"]
    remedy = "the federation needs a new authority and new certificates: tdcd certs issue into an empty folder"
    return _date_problems(path, facts, now, remedy)


def _signature_problems(path: Path, cert: x509.Certificate, ca_path: Path, ca: x509.Certificate) -> list[str]:
    try:
        cert.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        issuer, wanted = facts_of(cert).issuer, facts_of(ca).name
        signer = "by itself" if cert.subject == cert.issuer else f"by another authority ('{issuer}')"
        return [
            f"{path} was signed {signer}, not by that of {ca_path} ('{wanted}'); "
            "all parties need certificates of one authority: copy ca.pem again, or ask for a new certificate"
        ]
    return []


def _attempt(read: Callable[[Path], T], path: Path, problems: list[str]) -> T | None:
    try:
        return read(path)
    except ValueError as error:
        problems.append(str(error))
        return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        origin = "tdcd certs request makes it here, or the issuer" if path.suffix == ".key" else "the issuer"
        raise ValueError(f"{path}: there is no such file; {origin} has it (tdcd certs sign or issue)") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _extension(cert: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return cert.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _common_name(name: x509.Name) -> str:
    return _named(name, NameOID.COMMON_NAME)


def _named(name: x509.Name, kind: x509.ObjectIdentifier) -> str:
    return ", ".join(str(part.value) for part in name.get_attributes_for_oid(kind))


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _plain(host: str) -> str:
    """A host name or address in the one form in which equal ones are equal."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def when(seconds: float) -> str:
    """A moment for people.

    >>> when(1794895440)
    '2026-11-17 06:04 UTC'
    """
    return _when(datetime.fromtimestamp(seconds, UTC))


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
