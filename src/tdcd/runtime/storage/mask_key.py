"""The secret that a hub's masks follow from: kept in its run folder, since a hub that comes back must make the same."""

import os
import re
import secrets
from pathlib import Path

from tdcd.records.files import sync_folder, write_all
from tdcd.runtime.certificates.agreement import KEY_BYTES
from tdcd.runtime.storage.hub_restart import way_on

MASK_KEY = "mask.key"


def mask_key(folder: Path) -> bytes:
    """The secret in a run folder, drawn at the first start; nobody but the hub's own user can read it."""
    path = folder / MASK_KEY
    if not path.exists():
        _draw(path)
    text = path.read_text(errors="replace").strip()
    if not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        raise ValueError(f"{path} is damaged: it does not hold {2 * KEY_BYTES} hexadecimal digits. {way_on(folder)}")
    return bytes.fromhex(text)


def forget_mask_key(folder: Path) -> None:
    """Delete the secret of a run that is over: whoever gets it later could take the masks off what was recorded."""
    for name in (MASK_KEY, f"{MASK_KEY}.new"):
        (folder / name).unlink(missing_ok=True)


def _draw(path: Path) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        write_all(file, secrets.token_hex(KEY_BYTES).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    draft.replace(path)
    sync_folder(path.parent)
