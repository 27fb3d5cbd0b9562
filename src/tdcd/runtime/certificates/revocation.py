"""The federation's list of revoked certificates: reading it, and noticing that it has changed.

The list is a certificate revocation list (CRL), signed by the federation's authority. Each entry also has the common
name and the key's fingerprint of the certificate that it revokes, since parties are admitted by common name. A company
with an authority of its own has a list of its own, on which are its clients alone.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from tdcd.runtime.certificates.check import (
    AUTHORITY,
    common_name,
    company_of,
    facts_of,
    party_of,
    read_certificate,
    role_of,
)

REVOKED = "revoked.crl"

ENTRY = x509.ObjectIdentifier("2.25.226547247567619960890586341070681402948")
"""The extension of an entry that holds the revoked common name and the key's fingerprint, as text."""

LOOK_S = 1.0
"""How often a party looks whether the list has changed."""


@dataclass(frozen=True)
class RevocationList:
    """Who was revoked, by common name."""

    number: int = 0
    """Every list has a higher one than the list before; 0 where there is none yet."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The fingerprint of the revoked key, by the revoked common name."""
    source: Path = Path(REVOKED)
    company: "RevocationList | None" = None
    """That of the company's own authority, whose keys are among ``keys``."""

    def joined(self, company: "RevocationList") -> "RevocationList":
        """This list and a company's."""
        return replace(self, keys={**self.keys, **company.keys}, company=company)

    def of(self, party: str) -> "RevocationList":
        """The list on which a party would be."""
        own = self.company
        return own if own is not None and any(party_of(name) == party for name in own.keys) else self

    def current_name(self, party: str) -> str:
        """The common name by which a party is admitted."""
        return self.next_names(party, 1)[0]

    def next_names(self, party: str, number: int) -> list[str]:
        """The common name by which a party is admitted, and those by which it would be after further revocations."""
        names = (common_name(party, generation) for generation in count(1))
        return [*islice((name for name in names if name not in self.keys), number)]

    def is_revoked(self, party: str) -> bool:
        """Whether a party was ever revoked; it may have a new certificate since."""
        return party in self.keys

    def problems(self, cert: Path) -> list[str]:
        """What the list has to say against a certificate: a sentence, or nothing."""
        facts = facts_of(read_certificate(cert))
        part = self.of(facts.name)
        if facts.common_name in self.keys:
            return [
                f"{cert} was revoked (list {part.number}, {part.source}); ask for a new one with a new key: "
                "tdcd certs request --new-key"
            ]
        wanted = self.current_name(facts.name)
        if facts.common_name != wanted:
            return [
                f"{cert} is for '{facts.common_name}', and list {part.number} ({part.source}) expects '{wanted}'; "
                f"copy the issuer's latest {part.source.name} here"
            ]
        return []


def read_list(path: Path, ca_path: Path) -> RevocationList:
    """The list at ``path``, or an empty one where there is none; a ValueError says why it cannot be honoured."""
    if not path.exists():
        return RevocationList(source=path)
    return parse_list(path.read_bytes(), path, read_certificate(ca_path))


def parse_list(data: bytes, path: Path, ca: x509.Certificate) -> RevocationList:
    """The list in ``data``, which was read from ``path``, if the authority ``ca`` has signed it."""
    try:
        crl = x509.load_pem_x509_crl(data)
        signed = crl.issuer == ca.subject and crl.is_signature_valid(ca.public_key())  # type: ignore[arg-type]
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = [_entry(entry) for entry in crl]
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.ExtensionNotFound):
        raise ValueError(
            f"{path} is not a list that tdcd certs revoke wrote, or is damaged; copy the issuer's file again"
        ) from None
    if not signed:
        raise ValueError(
            f"{path} was not signed by this federation's authority, '{facts_of(ca).name}'; copy the issuer's file again"
        )
    company = facts_of(ca).name
    if role_of(company) == "authority":
        for name, _ in entries:
            if role_of(party_of(name)) != "client" or company_of(name) != company:
                raise ValueError(f"{path} names '{name}', which is no client of {company}: it is not honoured")
    return RevocationList(number, dict(entries), path)


def _entry(revoked: x509.RevokedCertificate) -> tuple[str, str]:
    """The common name that an entry revokes, and the fingerprint of its key."""
    extension = revoked.extensions.get_extension_for_oid(ENTRY).value
    assert isinstance(extension, x509.UnrecognizedExtension)
    name, _, key = extension.value.decode().partition(" ")
    return name, key


def company_list(folder: Path, party: str) -> Path:
    """Where the list of a party's company is, if it has an authority of its own."""
    return folder / f"revoked.{company_of(party).partition('.')[2]}.crl"


def watched_list(folder: Path, party: str, report: Callable[[str], None]) -> "WatchedList":
    """What a party's folder says of who is revoked: the federation's list, and that of its company if that has one."""
    return WatchedList(folder / REVOKED, folder / AUTHORITY, report, company=company_watched(folder, party, report))


def company_watched(folder: Path, party: str, report: Callable[[str], None]) -> "WatchedList | None":
    """The list of a party's company, if that has an authority of its own."""
    company = folder / f"{company_of(party)}.pem"
    return WatchedList(company_list(folder, party), company, report) if company.exists() else None


class WatchedList:
    """The list in a party's folder, read again when its file has changed.

    A list that is damaged, of another authority or older than the one in force is refused, and the one in force stays.

    Args:
        path: Where the list is, or will be.
        authority: The authority's certificate.
        report: Called with a sentence on whom a new list revokes, or why it is refused.
        clock: Seconds.
        company: The list of the party's company, if that has one.
    """

    def __init__(
        self,
        path: Path,
        authority: Path,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        company: "WatchedList | None" = None,
    ) -> None:
        self._path, self._ca, self.report, self._clock = path, read_certificate(authority), report, clock
        self._current, self._company = read_list(path, authority), company
        self._data = self._read()
        self._looked_at = clock()

    @property
    def current(self) -> RevocationList:
        """The list that is in force."""
        return self._current if self._company is None else self._current.joined(self._company.current)

    def follow(self, company: "WatchedList | None") -> None:
        """Take the list of the company's authority, if that is another one than before."""
        if company is None or self._company is None or company._ca != self._company._ca:
            self._company = company

    def is_due(self) -> bool:
        """Whether the last look is :data:`LOOK_S` ago."""
        return self._clock() - self._looked_at >= LOOK_S

    def changed(self) -> bool:
        """Look at the file; whether another list is in force than at the last call."""
        is_other = self._company is not None and self._company.changed()
        return self._has_changed() or is_other

    def _has_changed(self) -> bool:
        self._looked_at = self._clock()
        data = self._read()
        if data == self._data:
            return False
        self._data = data
        try:
            newer = self._newer(data)
        except ValueError as refusal:
            self.report(f"{refusal}; list {self._current.number} stays in force")
            return False
        new = sorted(newer.keys.keys() - self._current.keys.keys())
        self.report(f"{self._path}: list {newer.number} is in force; newly revoked: {', '.join(new) or 'none'}")
        self._current = newer
        return True

    def _newer(self, data: bytes | None) -> RevocationList:
        if data is None:
            raise ValueError(f"{self._path} cannot be read any more; put it back")
        newer = parse_list(data, self._path, self._ca)
        before = self._current
        if newer.number < before.number or (newer.number == before.number and newer != before):
            raise ValueError(
                f"{self._path} is list {newer.number}, and list {before.number} was there before; "
                "copy the issuer's latest list"
            )
        return newer

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except OSError:
            return None
