"""Writing the federation's list of revoked certificates, at the issuer."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from tdcd.runtime.certificates.check import facts_of, read_certificate
from tdcd.runtime.certificates.issue import authority_of, list_of, write_whole
from tdcd.runtime.certificates.names import fingerprint
from tdcd.runtime.certificates.revocation import ENTRY, REVOKED, RevocationList


def revoke(folder: Path, parties: Sequence[str], now: datetime | None = None) -> RevocationList:
    """Add the parties' certificates in ``folder`` to the list, and sign it; all or none of them.

    All certificates under a party's common name are worthless from then on, also older ones that were renewed.
    """
    now = now or datetime.now(UTC)
    ca, ca_key = authority_of(folder, now)
    before = list_of(folder)
    builder = x509.CertificateRevocationListBuilder(ca.subject, now, ca.not_valid_after_utc)
    builder = builder.add_extension(x509.CRLNumber(before.number + 1), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False)
    if before.number:
        for entry in x509.load_pem_x509_crl((folder / REVOKED).read_bytes()):
            builder = builder.add_revoked_certificate(entry)
    for party in dict.fromkeys(parties):
        builder = builder.add_revoked_certificate(_entry(folder / f"{party}.pem", party, before, now))
    crl = builder.sign(ca_key, hashes.SHA256())
    write_whole(folder / REVOKED, crl.public_bytes(Encoding.PEM), private=False)
    return list_of(folder)


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
