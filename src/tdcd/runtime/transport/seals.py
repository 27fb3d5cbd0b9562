"""What two processes prove to each other before their first message, and how later messages are bound to it.

A process has a key pair of its own (X25519, in memory only, new in every process). It signs the public key, with the
names of both parties and the nonces of both processes, by the key of its party's certificate. Every later message
is encrypted with keys that follow from both key pairs, one for each direction. So whoever has another certificate in
a party's name that TLS accepts, or passes proofs on, can neither read nor write what goes between the two processes.

A sealed piece is a number of eight bytes, and what AES-256-GCM makes of the piece with that number as its nonce. The
numbers of what a process sends to a party only grow, so no nonce is used twice with a key, and a piece that comes
again, or after a later one, does not open.
"""

from collections import Counter
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Meta

from tdcd.runtime.certificates.agreement import KEY_BYTES, Certified, ForgedCardError, derive
from tdcd.runtime.transport.processes import MOST_PROCESSES

MOST_PROOF_BYTES = 1 << 15
"""The size of a process's proof of who it is."""

_NUMBER_BYTES, _NONCE_BYTES, _TAG_BYTES = 8, 12, 16
SEAL_BYTES = _NUMBER_BYTES + _TAG_BYTES
"""By how much a sealed piece is longer than the piece."""


class IdentityProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process of a party shows that it has the key of the party's certificate, and which key seals its messages."""

    public: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    certificate: Annotated[bytes, Meta(max_length=1 << 14)]
    """See :class:`.Card`."""
    signature: Annotated[bytes, Meta(max_length=1 << 10)]


class _Keys:
    """What a process shares with one of a peer."""

    def __init__(self, public: bytes, sends: bytes, receives: bytes) -> None:
        self.public, self.sends, self.receives = public, AESGCM(sends), AESGCM(receives)
        self.newest = 0
        """The number of the last piece that opened."""


class Seals:
    """The proofs and keys of one process, with those of its peers that have proved who they are.

    Args:
        certified: signs for the process's party, and checks what others have signed.
        party: whose process this is.
        nonce: the process's own.
    """

    def __init__(self, certified: Certified, party: str, nonce: str) -> None:
        self._certified, self._party, self._nonce = certified, party, nonce
        self._private = X25519PrivateKey.generate()
        self._public = self._private.public_key().public_bytes_raw()
        self._numbers: Counter[str] = Counter()
        """How many pieces each peer was sent, of all its processes: links to one may close and open again."""
        self._keys: dict[str, dict[str, _Keys]] = {}
        """By peer, and nonce of its process; of many processes of a peer those that proved who they are last."""

    def proof(self, peer: str, nonce: str) -> bytes:
        """What proves to a process of a peer who this one is: good for these two processes, and no others."""
        text = _signed(self._party, peer, self._nonce, nonce, self._public)
        return msgspec.msgpack.encode(IdentityProof(self._public, *self._certified.sign(text)))

    def agree(self, peer: str, nonce: str, proof: bytes) -> None:
        """Take the keys that follow from a proof of a peer's process.

        Raises:
            ForgedCardError: it is none.
        """
        try:
            shown = msgspec.msgpack.decode(proof[:MOST_PROOF_BYTES], type=IdentityProof)
        except (msgspec.MsgspecError, ValueError):
            raise ForgedCardError(f"{peer} does not prove who it is") from None
        text = _signed(peer, self._party, nonce, self._nonce, shown.public)
        self._certified.authority.check(peer, text, shown, peer)
        # One that comes again must not open again what has been opened.
        of_peer = self._keys.setdefault(peer, {})
        known = of_peer.pop(nonce, None)
        if known is None or known.public != shown.public:
            try:
                secret = self._private.exchange(X25519PublicKey.from_public_bytes(shown.public))
            except ValueError:
                raise ForgedCardError(f"{peer} proves who it is with a key that no secret could come of") from None
            own, other = (self._party, self._nonce, self._public.hex()), (peer, nonce, shown.public.hex())
            known = _Keys(
                shown.public,
                derive(secret, "tdcd link", *own, *other),
                derive(secret, "tdcd link", *other, *own),
            )
        of_peer[nonce] = known
        while len(of_peer) > MOST_PROCESSES:
            del of_peer[next(iter(of_peer))]

    def seal(self, peer: str, nonce: str, piece: bytes, mark: bytes) -> bytes | None:
        """A piece of a message, for a process of a peer; None if that has not proved who it is, or long ago.

        ``mark`` says which piece it is.
        """
        keys = self._keys.get(peer, {}).get(nonce)
        if keys is None:
            return None
        self._numbers[peer] += 1
        number = self._numbers[peer].to_bytes(_NUMBER_BYTES)
        return number + keys.sends.encrypt(_nonce(number), piece, mark)

    def open(self, peer: str, nonce: str, sealed: bytes, mark: bytes) -> bytes | None:
        """The piece that a process of a peer has sealed for this one, with that mark.

        None if it has not, or if this piece, or a later one, was opened before.
        """
        keys, number = self._keys.get(peer, {}).get(nonce), int.from_bytes(sealed[:_NUMBER_BYTES])
        if keys is None or number <= keys.newest:
            return None
        try:
            piece = keys.receives.decrypt(_nonce(sealed[:_NUMBER_BYTES]), memoryview(sealed)[_NUMBER_BYTES:], mark)
        except InvalidTag:
            return None
        keys.newest = number
        return piece


def _signed(sender: str, receiver: str, by: str, to: str, public: bytes) -> bytes:
    """What the process ``by`` of a party signs for the process ``to`` of another."""
    return "\n".join(["tdcd link", sender, receiver, by, to, public.hex()]).encode()


def _nonce(number: bytes) -> bytes:
    return number.rjust(_NONCE_BYTES, b"\0")
