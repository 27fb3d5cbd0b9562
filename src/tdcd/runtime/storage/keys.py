"""Secrets that outlive a process: the keys of a hub's masks and noise, those that hide a client's answers where slopes
are encrypted, and that of a client's randomised labels.

All are files of their own, not the key of the party's certificate: certificates are renewed, and the draws must stay.
Each is durable before anything is drawn with it, so that a party that comes back draws the same.
"""

import os
import re
import secrets
from pathlib import Path

from tdcd.data.randomized import KEY_BYTES as LABEL_KEY_BYTES
from tdcd.records.files import sync_folder, write_all, write_synced
from tdcd.runtime.certificates.agreement import KEY_BYTES
from tdcd.runtime.machine.hub import NOISE_BYTES
from tdcd.runtime.storage.hub_restart import way_on

MASK_KEY, NOISE_KEY = "mask.key", "noise.key"


def mask_key(folder: Path) -> bytes:
    """The secret of a hub's masks."""
    return _run_key(folder / MASK_KEY, KEY_BYTES, way_on(folder))


def noise_key(folder: Path) -> bytes:
    """The secret of a hub's noise."""
    return _run_key(folder / NOISE_KEY, NOISE_BYTES, way_on(folder))


def answer_key(path: Path) -> bytes:
    """What a client's answers of one run are hidden with: where slopes are encrypted, or its blocks have noise."""
    try:
        return _run_key(path, KEY_BYTES, "Remove it: a new one hides what is sent from now on")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be made ({error.strerror}): encrypted slopes, and noise on blocks, need a secret that the "
            "client keeps while a run lasts; give it --out, a folder of its own that stays when it is started again"
        ) from None


def forget_answer_key(path: Path) -> None:
    """Delete it when the run is over: whoever gets it later could read the gradients of what was recorded."""
    _forget(path)


def _run_key(path: Path, size: int, remedy: str) -> bytes:
    """The secret of a run, drawn at the first start; only the party's own user can read it."""
    if not path.exists():
        _draw_run_key(path, size)
    text = path.read_text(errors="replace").strip()
    if not re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text):
        raise ValueError(f"{path} is damaged: it does not hold {2 * size} hexadecimal digits. {remedy}")
    return bytes.fromhex(text)


def forget_run_keys(folder: Path) -> None:
    """Delete the secrets of a run that is over: whoever gets them later could take masks and noise off what was
    recorded.
    """
    for name in (MASK_KEY, NOISE_KEY):
        _forget(folder / name)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.new").unlink(missing_ok=True)


def _draw_run_key(path: Path, size: int) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        write_all(file, secrets.token_hex(size).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    draft.replace(path)
    sync_folder(path.parent)


LABEL_KEY = "labels.key"
NEW_KEY = "this key is new: keep it, since another one is a second draw of the same labels, which doubles epsilon"


def label_key(path: Path) -> bytes:
    """The key in a file; a new one, if there is no such file."""
    if not path.exists():
        _make_label_key(path)
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:
        key = b""
    if len(key) != LABEL_KEY_BYTES:
        raise ValueError(
            f"{path}: is not a key of {2 * LABEL_KEY_BYTES} hexadecimal digits: restore it. A new one would randomise "
            "the labels a second time, which doubles epsilon"
        )
    return key


def _make_label_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of two processes that make one at the same time, the first to name it wins.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        write_synced(draft, secrets.token_bytes(LABEL_KEY_BYTES).hex().encode() + b"\n")
        path.hardlink_to(draft)
    except FileExistsError:
        return
    finally:
        draft.unlink()
    sync_folder(path.parent)
