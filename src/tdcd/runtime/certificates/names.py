"""The common names of a party's certificates, and the fingerprint of a key.

A party's first certificate, and those that renew it, bear its name: ``client.bank.north``. After that name is revoked,
the next certificate bears ``client.bank.north~2``: links are admitted by common name, so the old one stays shut out
although the party is back.
"""

import hashlib
import re

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_LATER = re.compile(r"(?P<party>[^~]+)~(?:[2-9]|[1-9][0-9]{1,3})")


def common_name(party: str, generation: int) -> str:
    """The common name of a party's certificates after it was revoked ``generation - 1`` times.

    >>> common_name("hub.bank", 1), common_name("hub.bank", 2)
    ('hub.bank', 'hub.bank~2')
    """
    return party if generation == 1 else f"{party}~{generation}"


def party_of(name: str) -> str:
    """Whose certificate bears this common name.

    >>> party_of("hub.bank~2"), party_of("hub.bank"), party_of("hub.bank~1")
    ('hub.bank', 'hub.bank', 'hub.bank~1')
    """
    found = _LATER.fullmatch(name)
    return found["party"] if found else name


def fingerprint(key: PublicKeyTypes) -> str:
    """A public key in 32 hexadecimal digits, in groups that can be read out over the telephone."""
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return " ".join(digest[start : start + 4] for start in range(0, 32, 4))
