"""Messages with something else in them than their types allow, as a party that lies could send them."""

import hashlib

import msgspec

from tdcd.runtime.protocol.structure import Array
from tdcd.runtime.protocol.wire import encode

MAGIC = b"tdcd\x03\0\0\0"
HEADER = ("sender", "receiver", "round", "run")


def signed(body):
    """A body with the digest that fits it: what a party that speaks the protocol, but lies, can send."""
    return hashlib.blake2b(body, digest_size=16).digest() + body


def headed(header, content=b""):
    """A body with any header."""
    text = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    return MAGIC + len(text).to_bytes(8, "little") + text + bytes(-len(text) % 8) + content


def with_fields(message, **changes):
    """The message's bytes with other values in its header, whatever their types."""
    body = encode(message)[16:]
    size = int.from_bytes(body[8:16], "little")
    header = msgspec.msgpack.decode(body[16 : 16 + size])
    return signed(headed(header | changes, body[16 + size + -size % 8 :]))


def content_fields(message):
    return [name for name in message.__struct_fields__ if name not in HEADER]


def arrays_at(message):
    """Every array with the fields that lead to it."""
    found = {}
    for name in content_fields(message):
        value = getattr(message, name)
        if isinstance(value, Array):
            found[name,] = value
        elif isinstance(value, dict):
            found |= {(name, key): inner for key, inner in value.items() if isinstance(inner, Array)}
    return found


def with_array(message, path, values):
    """The message with another array there, or with none."""
    array = None if values is None else Array.of(values)
    if len(path) == 1:
        return message.replace(**{path[0]: array})
    others = {name: value for name, value in getattr(message, path[0]).items() if name != path[1]}
    return message.replace(**{path[0]: others if array is None else {**others, path[1]: array}})
