"""The secret that a client's labels are randomised with.

It is a file of its own, not the key of the party's certificate: certificates are renewed, and the draw must stay. It is
durable before a label is drawn with it, so that a client that comes back draws the same.
"""

import secrets
from pathlib import Path

from tdcd.data.randomized import KEY_BYTES
from tdcd.records.files import sync_folder, write_synced

LABEL_KEY = "labels.key"
NEW_KEY = "this key is new: keep it, since another one is a second draw of the same labels, which doubles epsilon"


def label_key(path: Path) -> bytes:
    """The key in a file; a new one, if there is no such file."""
    if not path.exists():
        _make(path)
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"{path}: is not a key of {2 * KEY_BYTES} hexadecimal digits: restore it. A new one would randomise "
            "the labels a second time, which doubles epsilon"
        )
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of two processes that make one at the same time, the first to name it wins.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        write_synced(draft, secrets.token_bytes(KEY_BYTES).hex().encode() + b"\n")
        path.hardlink_to(draft)
    except FileExistsError:
        return
    finally:
        draft.unlink()
    sync_folder(path.parent)
