"""A party's public key for masks, and what binds it to the party."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An X25519 public key, signed by a party."""

    public: Annotated[bytes, Meta(min_length=32, max_length=32)]
    certificate: Annotated[bytes, Meta(max_length=1 << 14)]
    """The party's certificate in DER form; empty where parties have none."""
    signature: Annotated[bytes, Meta(max_length=1 << 10)]
    """Of the key, the party's name and what the key is for."""
