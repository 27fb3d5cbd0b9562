"""The federation's list of revoked certificates: reading it, and noticing that it has changed.

The list is a certificate revocation list (CRL), signed by the federation's authority. Each entry also has the common
name and the key's fingerprint of the certificate that it revokes, since parties are admitted by common name.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from tdcd.runtime.certificates.check import common_name, facts_of, read_certificate

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
        if facts.common_name in self.keys:
            return [
                f"{cert} was revoked (list {self.number}, {self.source}); ask for a new one with a new key: "
                "tdcd certs request --new-key"
            ]
        wanted = self.current_name(facts.name)
        if facts.common_name != wanted:
            return [
                f"{cert} is for '{facts.common_name}', and list {self.number} ({self.source}) expects '{wanted}'; "
                f"copy the issuer's latest {REVOKED} here"
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
    return RevocationList(number, dict(entries), path)


def _entry(revoked: x509.RevokedCertificate) -> tuple[str, str]:
    """The common name that an entry revokes, and the fingerprint of its key."""
    extension = revoked.extensions.get_extension_for_oid(ENTRY).value
    assert isinstance(extension, x509.UnrecognizedExtension)
    name, _, key = extension.value.decode().partition(" ")
    return name, key


class WatchedList:
    """The list in a party's folder, read again when its file has changed.

    A list that is damaged, of another authority or older than the one in force is refused, and the one in force stays.

    Args:
        path: Where the list is, or will be.
        authority: The authority's certificate.
        report: Called with a sentence on whom a new list revokes, or why it is refused.
        clock: Seconds.
    """

    def __init__(
        self,
        path: Path,
        authority: Path,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._ca, self.report, self._clock = path, read_certificate(authority), report, clock
        self.current = read_list(path, authority)
        self._data = self._read()
        self._looked_at = clock()

    def is_due(self) -> bool:
        """Whether the last look is :data:`LOOK_S` ago."""
        return self._clock() - self._looked_at >= LOOK_S

    def changed(self) -> bool:
        """Look at the file; whether another list is in force than at the last call."""
        self._looked_at = self._clock()
        data = self._read()
        if data == self._data:
            return False
        self._data = data
        try:
            newer = self._newer(data)
        except ValueError as refusal:
            self.report(f"{refusal}; list {self.current.number} stays in force")
            return False
        new = sorted(newer.keys.keys() - self.current.keys.keys())
        self.report(f"{self._path}: list {newer.number} is in force; newly revoked: {', '.join(new) or 'none'}")
        self.current = newer
        return True

    def _newer(self, data: bytes | None) -> RevocationList:
        if data is None:
            raise ValueError(f"{self._path} cannot be read any more; put it back")
        newer = parse_list(data, self._path, self._ca)
        if newer.number < self.current.number or (newer.number == self.current.number and newer != self.current):
            raise ValueError(
                f"{self._path} is list {newer.number}, and list {self.current.number} was there before; "
                "copy the issuer's latest list"
            )
        return newer

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except OSError:
            return None
