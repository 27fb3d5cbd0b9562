"""Secrets that exactly two parties share: X25519, with public keys that are bound to certificates.

A hub derives its key pair from a secret in its run folder, so that one that was restarted makes the same masks again; a
client has a new one in every process. The public key travels on a :class:`Card`, signed with the key of the party's
certificate: whoever passes cards on, as a hub does for its clients, cannot put keys of its own in their place.
"""

import hashlib
import hmac
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Meta

from tdcd.runtime.certificates.check import (
    AUTHORITY,
    authority_path,
    company_of,
    facts_of,
    of_another_federation,
    read_certificate,
    read_key,
    role_of,
)
from tdcd.runtime.certificates.revocation import REVOKED, WatchedList, company_list


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An X25519 public key, signed by a party."""

    public: Annotated[bytes, Meta(min_length=32, max_length=32)]
    certificate: Annotated[bytes, Meta(max_length=1 << 14)]
    """The party's certificate in DER form, then that of its company's authority if that has signed it; empty where
    parties have none.
    """
    signature: Annotated[bytes, Meta(max_length=1 << 10)]
    """A signature over the key, the party's name and the key's purpose."""


KEY_BYTES = 32


class ForgedCardError(ValueError):
    """A card that is not the party's; the text says why."""


class RevokedCardError(ForgedCardError):
    """A card with a certificate that this party's list of revoked ones does not honour; another list may."""


class Signer(Protocol):
    """Signs for one party, and checks what others have signed."""

    def sign(self, text: bytes) -> tuple[bytes, bytes]:
        """The party's certificate, and its signature."""
        ...

    def check(self, party: str, text: bytes, card: Card) -> None:
        """Raise :class:`ForgedCardError` unless ``party`` has signed the text."""
        ...


@dataclass(frozen=True)
class Keys:
    """What a party derives its key pairs from, and signs them with."""

    party: str
    secret: bytes
    """Known to this party alone."""
    signer: Signer

    def pair(self, purpose: str, *, kept_with: str = "") -> "KeyPair":
        """The key pair for a purpose that all who check it know; another one if ``kept_with`` is another."""
        private = derive(self.secret, "tdcd key pair", self.party, purpose, kept_with)
        return KeyPair(self, purpose, X25519PrivateKey.from_private_bytes(private))

    @classmethod
    def of_secret(cls, party: str, secret: bytes) -> "Keys":
        """Where parties have no certificates, but a secret of all of them: for trials on one machine."""
        return cls(party, derive(secret, "tdcd party", party), SharedSecret(secret))


@dataclass(frozen=True)
class KeyPair:
    """A party's key pair for one purpose."""

    keys: Keys
    purpose: str
    private: X25519PrivateKey

    def card(self) -> Card:
        """The public key, signed."""
        public = self.private.public_key().public_bytes_raw()
        return Card(public, *self.keys.signer.sign(_text(self.keys.party, self.purpose, public)))

    def agree(self, party: str, purpose: str, card: Card | None) -> bytes:
        """The secret that this party shares with another one, whose card this is for that ``purpose``."""
        if card is None:
            raise ForgedCardError(f"{party} sent no key for masks: run the same version of tdcd everywhere")
        self.keys.signer.check(party, _text(party, purpose, card.public), card)
        try:
            return self.private.exchange(X25519PublicKey.from_public_bytes(card.public))
        except ValueError:
            raise ForgedCardError(f"the key for masks of {party} is none that a secret could come of") from None


def derive(secret: bytes, *purposes: str) -> bytes:
    """A key for these purposes: HKDF with SHA-256."""
    info = b"".join(len(purpose.encode()).to_bytes(4, "little") + purpose.encode() for purpose in purposes)
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def _text(party: str, purpose: str, public: bytes) -> bytes:
    return b"\n".join([b"tdcd key for masks", party.encode(), purpose.encode(), public])


@dataclass(frozen=True)
class SharedSecret:
    """Signs with a secret that all parties have: it separates one federation's parties from others, and no more."""

    secret: bytes

    def sign(self, text: bytes) -> tuple[bytes, bytes]:
        """No certificate, and a keyed digest."""
        return b"", hmac.new(self.secret, text, hashlib.sha256).digest()

    def check(self, party: str, text: bytes, card: Card) -> None:
        """Whether the digest is right."""
        if not hmac.compare_digest(self.sign(text)[1], card.signature):
            raise ForgedCardError(f"the key for masks of {party} is not signed with the federation's secret")


class Certified:
    """Signs with the key of a party's certificate, and checks what others have signed with theirs.

    A certificate that takes the place of the first is used as soon as its key is there, too.
    """

    def __init__(self, folder: Path, party: str, federation: str | None = None) -> None:
        """Take a party's folder of certificates, and the federation that others' have to name, if any has to.

        Who is revoked is read again at every check.
        """
        self.authority = Authority(folder, federation)
        paths = folder / f"{party}.pem", folder / f"{party}.key"
        company = authority_path(folder, party)
        self._paths = (*paths, *([] if company.name == AUTHORITY else [company]))
        self._written = self._contents()
        self._certificate, self._key = self._read()

    def sign(self, text: bytes) -> tuple[bytes, bytes]:
        """The certificate, and a signature with its key."""
        with suppress(ValueError, OSError):
            if (written := self._contents()) != self._written:
                self._certificate, self._key = self._read()
                self._written = written
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._certificate, self._key.sign(text, padding.PKCS1v15(), hashes.SHA256())
        return self._certificate, self._key.sign(text, ec.ECDSA(hashes.SHA256()))

    def check(self, party: str, text: bytes, card: Card) -> None:
        """Whether the certificate is the party's, of this federation's authority and valid, and signed the text."""
        self.authority.check(party, text, card, f"the key for masks of {party}")

    def _contents(self) -> list[bytes]:
        return [path.read_bytes() for path in self._paths]

    def _read(self) -> tuple[bytes, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]:
        """The certificates in DER form, and the key of the first."""
        cert, company, key = self._paths[0], self._paths[2:], read_key(self._paths[1])
        certs = [read_certificate(path) for path in (cert, *company)]
        if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise ValueError(f"{self._paths[1]} is neither an elliptic curve key nor an RSA key: tdcd certs")
        if key.public_key() != certs[0].public_key():
            raise ValueError(f"{self._paths[1]} is not the key of {cert}; copy both files again")
        return b"".join(part.public_bytes(Encoding.DER) for part in certs), key


class Signature(Protocol):
    """What shows that a party has signed something."""

    @property
    def certificate(self) -> bytes:
        """The party's certificate in DER form."""

    @property
    def signature(self) -> bytes:
        """The signature, made with the key of the certificate."""


class Authority:
    """Checks what holders of certificates have signed; who is revoked is read again at every check.

    The federation's authority signs certificates of hubs, of clients, and of companies' own authorities, which sign
    those of their own clients and nothing else. Where the folder has a company's, it alone can sign for its clients.
    """

    def __init__(self, folder: Path, federation: str | None = None) -> None:
        """Take a folder with the authority's certificate and its list of revoked ones, if it has one.

        Args:
            federation: the one that certificates have to name; by default any, or none.
        """
        self._federation = federation
        self._certificate = read_certificate(folder / AUTHORITY)
        # The transport reports on the same lists.
        self._revoked = WatchedList(folder / REVOKED, folder / AUTHORITY, lambda news: None)
        self._companies = {
            path.stem: (read_certificate(path), WatchedList(company_list(folder, path.stem), path, lambda news: None))
            for path in folder.glob("authority.*.pem")
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its certificate."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def check(
        self, party: str, text: bytes, signed: Signature, where: str, now: datetime | None = None, *, past: bool = False
    ) -> None:
        """Raise :class:`ForgedCardError` unless the certificate is the party's and valid, and its key signed the text.

        Args:
            where: what is checked, as errors name it.
            now: when the certificate has to be valid; by default this moment.
            past: whether certificates that were revoked or replaced since are good.
        """
        now = now or datetime.now(UTC)
        try:
            cert, *others = _certificates(signed.certificate)
            # What cannot be read of them is found here.
            key, _ = cert.public_key(), [_facts_of(each) for each in (cert, *others)]
            issuer = self._issuer(party, others, where, now, past)
            _check_issued(cert, issuer)
        except ForgedCardError:
            raise
        except Exception:
            # What is wrong with the form of a certificate has no common kind of error.
            raise ForgedCardError(f"{where} comes with no certificate of this federation's authority") from None
        self._check_facts(party, cert, where, now)
        if not past:
            # Who is revoked by a company's authority, and has a later name since, is known where its list is.
            _, company_list = self._companies.get(company_of(party), (None, None))
            revoked = self._revoked if issuer is self._certificate else company_list
            if revoked is not None:
                _check_revoked(revoked, party, cert, where)
        try:
            if isinstance(key, rsa.RSAPublicKey):
                key.verify(signed.signature, text, padding.PKCS1v15(), hashes.SHA256())
            else:
                assert isinstance(key, ec.EllipticCurvePublicKey)
                key.verify(signed.signature, text, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, AssertionError):
            raise ForgedCardError(f"{where} is not signed with its certificate's key") from None

    def _issuer(
        self, party: str, others: Sequence[x509.Certificate], where: str, now: datetime, past: bool
    ) -> x509.Certificate:
        """Who has to have signed a party's certificate: the federation's authority, or that of its company."""
        name, is_client = company_of(party), role_of(party) == "client"
        known = self._companies.get(name)
        is_known = known is None or [other.public_key() for other in others] == [known[0].public_key()]
        # What was signed before the company had this authority stays signed.
        if is_client and not is_known and not past:
            raise ForgedCardError(f"{where} comes with no certificate of {name}, which signs those of its clients here")
        if not others:
            return self._certificate
        (company,) = others
        company.verify_directly_issued_by(self._certificate)
        if not is_client:
            raise ForgedCardError(
                f"{where} comes with a certificate of a company's authority, which signs clients' only"
            )
        self._check_facts(name, company, f"the authority of {where}", now)
        if not past:
            _check_revoked(self._revoked, name, company, f"the authority of {where}")
        return company

    def _check_facts(self, party: str, cert: x509.Certificate, where: str, now: datetime) -> None:
        facts = _facts_of(cert)
        if facts.name != party:
            raise ForgedCardError(f"{where} comes with the certificate of {facts.name}")
        if other := of_another_federation(facts, self._federation):
            raise ForgedCardError(f"{where} comes with a certificate {other}")
        if not facts.not_before <= now <= facts.not_after:
            raise ForgedCardError(f"{where} comes with a certificate that expired, or is not valid yet")


def _check_revoked(watched: WatchedList, party: str, cert: x509.Certificate, where: str) -> None:
    watched.changed()
    revoked, common_name = watched.current, facts_of(cert).common_name
    wanted, file = revoked.current_name(party), revoked.source.name
    if common_name in revoked.keys:
        raise RevokedCardError(f"{where} comes with a certificate that was revoked")
    if common_name != wanted:
        raise RevokedCardError(
            f"{where} comes with the certificate of '{common_name}', and list {revoked.number} "
            f"({revoked.source}) expects '{wanted}': copy the issuer's latest {file} here"
        )


@lru_cache(maxsize=1024)
def _check_issued(cert: x509.Certificate, issuer: x509.Certificate) -> None:
    """Raise an error unless one certificate was signed with the other's key; a log has the same ones in all entries."""
    cert.verify_directly_issued_by(issuer)


_facts_of = lru_cache(maxsize=1024)(facts_of)


@lru_cache(maxsize=1024)
def _certificates(data: bytes) -> list[x509.Certificate]:
    """The certificates that stand in DER form one after the other."""
    certs = []
    while data:
        head = 2 + (data[1] & 0x7F) * (data[1] >> 7)
        size = head + (int.from_bytes(data[2:head]) if data[1] >> 7 else data[1])
        certs.append(x509.load_der_x509_certificate(data[:size]))
        data = data[size:]
    return certs
