"""Messages on the wire.

Sixteen bytes of BLAKE2b over the rest; ``tdcd`` and a number; eight bytes that say how long the header is;
the header, which is the message as MessagePack; the numbers of its arrays, each array at a multiple of eight. Nothing
is ever unpickled, and every length is compared with what has arrived before it is used. Fields that are not known and
values of another type are refused. A message has one form only: other bytes that would mean the same are refused too.

The number is that of the protocol on links, and that of the format in files. So a new protocol does not make files
worthless, as long as what is in them has the same structure, but for new fields with defaults.
"""

import math
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import numpy as np

from tdcd.runtime.messages.messages import AnyMessage
from tdcd.runtime.messages.structure import DTYPES, MOST_NUMBERS, Message

PROTOCOL = 12
"""The version of messages. Parties of different protocols have no link."""
FORMAT = 5
"""The version of files and of the digests in them. A version continues runs whose checkpoints have its format."""


class Form(NamedTuple):
    """The first bytes of a message, and the error for bytes that begin otherwise."""

    magic: bytes
    otherwise: str


ON_LINKS = Form(
    b"tdcd" + PROTOCOL.to_bytes(4, "little"),
    f"it is not a message of protocol {PROTOCOL}: run the same version of tdcd everywhere",
)
IN_FILES = Form(
    b"tdcd" + FORMAT.to_bytes(4, "little"),
    f"it is not of format {FORMAT}, which this version of tdcd reads: continue with the version that wrote it",
)
_DIGEST_BYTES, _LENGTH = 16, 24
_START = _LENGTH + 8
_hash = partial(blake2b, digest_size=_DIGEST_BYTES)
_PADDING = [bytes(-size % 8) for size in range(8)]
_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(AnyMessage).decode


class RejectedMessage(Exception):  # noqa: N818
    """An incoming message that is not acted upon; the text says why."""


def encode(message: Message, form: Form = ON_LINKS) -> bytes:
    """The bytes on the wire, or in a file; the same message always gives the same bytes."""
    try:
        header = _pack(message)
    except UnicodeEncodeError:
        # A reason may quote what a peer sent: half a character is no reason to fail.
        texts = {name: _whole(value) for name, value in msgspec.structs.asdict(message).items() if type(value) is str}
        header = _pack(message.replace(**texts))
    parts: list[bytes | memoryview] = [form.magic, len(header).to_bytes(8, "little"), header, _PADDING[len(header) % 8]]
    for array in message.all_arrays:
        values = array.values
        if size := values.nbytes:
            parts += (values.data, _PADDING[size % 8])
    body = b"".join(parts)
    return _hash(body).digest() + body


def digest(message: Message) -> str:
    """A digest of a message without its receiver; it is kept in files, and compared after an upgrade."""
    return encode(message.to(""), IN_FILES)[:_DIGEST_BYTES].hex()


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def decode(data: bytes, *, sender: str, receiver: str, form: Form = ON_LINKS) -> Message:
    """The message in ``data``, which came over ``sender``'s link to ``receiver``; anything else is refused."""
    view = memoryview(data)
    if data[:_DIGEST_BYTES] != _hash(view[_DIGEST_BYTES:]).digest():
        raise RejectedMessage("its content does not match its digest")
    if data[_DIGEST_BYTES:_LENGTH] != form.magic:
        raise RejectedMessage(form.otherwise)
    end = _START + int.from_bytes(data[_LENGTH:_START], "little")
    if end > len(data):
        raise RejectedMessage("it is not a message: its header is longer than what arrived")
    header = view[_START:end]
    try:
        message: Message = _unpack(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RejectedMessage(f"it is not a message: {error}") from None
    if _pack(message) != header:
        raise RejectedMessage("it is not a message: its header is not written as the protocol writes it")
    if message.sender != sender:
        raise RejectedMessage(f"it says that it is from {message.sender!r}")
    if message.receiver != receiver:
        raise RejectedMessage(f"it was meant for {message.receiver!r}")
    _fill(message, data, end)
    return message


def _fill(message: Message, data: bytes, end: int) -> None:
    """Give the message's arrays their numbers: views of ``data``, which they must fill to its end."""
    place = end + -end % 8
    is_padded = data[end:place] == _PADDING[end % 8]
    for array in message.all_arrays:
        dtype, shape = DTYPES[array.code], array.shape
        count = math.prod(shape)
        end = place + count * dtype.itemsize
        if end > len(data):
            raise RejectedMessage("it is not a message: an array is longer than what arrived")
        if not count and math.prod(filter(None, shape)) > MOST_NUMBERS:
            raise RejectedMessage(f"it is not a message: an array of shape {[*shape]} has too many numbers")
        array.__dict__["values"] = np.ndarray(shape, dtype, data, place) if count else np.empty(shape, dtype)
        place = end + -end % 8
        is_padded &= data[end:place] == _PADDING[end % 8]
    if place != len(data):
        raise RejectedMessage(f"it is not a message: it has {len(data)} bytes, and should have {place}")
    if not is_padded:
        raise RejectedMessage("it is not a message: there is something between its arrays")
