"""Messages with something else in them than their types allow, as a party that lies could send them."""

import hashlib

import msgspec

from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import encode

MAGIC = b"tdcd\x0c\0\0\0"
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
    """Every array with the fields, keys and places that lead to it."""
    found = {}
    for name in content_fields(message):
        _gather(getattr(message, name), (name,), found)
    return found


def _gather(value, path, found):
    if isinstance(value, Array):
        found[path] = value
    elif isinstance(value, dict | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _gather(inner, (*path, key), found)


def with_array(message, path, values):
    """The message with another array there, or with none."""
    array = None if values is None else Array.of(values)
    field, *rest = path
    return message.replace(**{field: _with(getattr(message, field), rest, array)})


def _with(value, path, array):
    if not path:
        return array
    key, *rest = path
    if isinstance(value, tuple):
        return tuple(_with(inner, rest, array) if place == key else inner for place, inner in enumerate(value))
    changed = {**value, key: _with(value[key], rest, array)}
    return {name: inner for name, inner in changed.items() if inner is not None}
