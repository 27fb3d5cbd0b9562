"""A party's latest report on what it is doing, from its folder, and whether its process is alive.

The lock on the folder shows that. It belongs to the open file. A POSIX lock belongs to the process, and ends when any
copy of the file's descriptor is closed, by whatever part of the program.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tdcd.core import certificate
from tdcd.core.words import counted, one_line
from tdcd.records.files import create, open_plain, parse_json, read_plain, write_all

TRIES, PAUSE_S = 20, 0.02
"""Who asks whether the process lives has the lock for a moment: that must not keep a party from starting."""


def is_alive(path: Path) -> bool:
    """Whether a process has the folder at ``path`` open."""
    if not (path / "hub.lock").exists():
        return False
    with open_plain(path / "hub.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def lock(path: Path, pause: Callable[[float], None] = time.sleep) -> int:
    """Lock the folder for this process; the lock ends with the process, however that ends."""
    descriptor = os.open(path / "hub.lock", os.O_RDWR | os.O_CREAT, 0o644)
    for _ in range(TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pause(PAUSE_S)
        else:
            return descriptor
    os.close(descriptor)
    raise FileExistsError(f"{path} is in use by another process: stop that one first")


STATUS = "status.json"
MOST_BYTES = 16 << 20
LOSSES = {"train_loss": "train loss  ", "test_loss": "test loss   "}
"""What a hub knows and a client does not."""


def write_status(folder: Path, facts: Mapping[str, Any]) -> None:
    """Replace ``status.json``."""
    replace_quickly(folder / STATUS, json.dumps({**facts, "pid": os.getpid()}).encode())


def replace_quickly(path: Path, content: bytes) -> None:
    """Replace a file that only people look at; losing it in a crash, or on a full disk, is no loss."""
    temporary = path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(OSError):
        file = create(temporary)
        try:
            write_all(file, content)
        finally:
            os.close(file)
        temporary.replace(path)


def read_status(folder: Path) -> dict[str, Any]:
    """The party's latest report, and whether its process is ``alive``."""
    path = folder / STATUS
    if not path.exists():
        raise ValueError(
            f"{folder} has no {STATUS}: give the run folder of a hub (--out of tdcd hub), or --out of tdcd client, "
            "or the folder of tdcd party"
        )
    try:
        facts: dict[str, Any] = {**parse_json(read_plain(path, MOST_BYTES)), "alive": is_alive(folder)}
        in_words(facts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}; a running party writes it again in a moment") from None
    return facts


def in_words(facts: dict[str, Any]) -> str:
    """The facts as a few lines for people."""
    gone = "ended" if facts["status"] is not None else "its process is gone: give the same command again"
    lines = [
        f"{facts['party']}: {facts['status'] or facts['phase']}, {'alive' if facts['alive'] else gone}",
        *([f"  round       {facts['round']} of {facts['rounds']}"] if "rounds" in facts else []),
        *(f"  {words}{_number(facts[name])}" for name, words in LOSSES.items() if name in facts),
        *([f"  model       {known}"] if (known := _distance(facts)) else []),
        *([f"  ended       {one_line(facts['reason'])}"] if _has_finished(facts) else []),
        *([f"  labels      {facts['labels']}"] if facts.get("labels") else []),
        *([f"  epsilon     {facts['epsilon']:.4g} spent"] if facts.get("epsilon") is not None else []),
        *([f"  of blocks   {facts['block_epsilon']:.4g} spent"] if facts.get("block_epsilon") is not None else []),
        f"  connected   {', '.join(facts['connected']) or 'none'}",
    ]
    for party, seconds in facts.get("missing_s", {}).items():
        away = "" if party in facts["connected"] else ", not connected"
        lines.append(f"  waits for   {party}, {seconds:.0f} s{away}")
    lines += [f"  job         {job}: {words}" for job, words in facts.get("jobs", {}).items()]
    lines += [f"  left out    {party}" for party in facts.get("left_out", [])]
    lines += [f"  revoked     {party}, until it has a new certificate" for party in facts.get("revoked", [])]
    lines += [f"  no link     {why}" for why in facts.get("unfit", {}).values()]
    lines += [
        f"  certificate {_left(party, days)}" for party, days in facts.get("certificate_days", {}).items() if days < 30
    ]
    lines += [f"  refused     {counted(count, 'message')} of {party}" for party, count in facts["refused"].items()]
    if facts.get("phi_age"):
        lines.append(f"  uses phi    {_ages(facts['phi_age'])}")
    if facts["last_error"]:
        lines.append(f"  last error  {one_line(facts['last_error'])}")
    return "\n".join(lines)


def _has_finished(facts: Mapping[str, Any]) -> bool:
    """Whether there is a reason of the end that is no error: those have a line of their own."""
    return facts["status"] == "finished" and bool(facts.get("reason"))


def _distance(facts: Mapping[str, Any]) -> str:
    """How far the model is from the best one, as far as the last line of the history says so.

    >>> _distance({"gap": 0.000312, "gradient_norm": None}), _distance({})
    ('at most 0.00032 above the best possible training loss', '')
    """
    known = [None if (value := facts.get(name)) is None else float(value) for name in ("gap", "gradient_norm")]
    return certificate.in_words(*known)


def _left(party: str, days: float) -> str:
    """How long a certificate is valid yet.

    >>> _left("hub.bank", 12.5), _left("hub.shop", -0.5)
    ('of hub.bank expires in 12 days: renew it', 'of hub.shop has expired: renew it')
    """
    return f"of {party} {'has expired' if days < 0 else 'expires in ' + counted(int(days), 'day')}: renew it"


def _ages(ages: dict[str, int]) -> str:
    """How old the phi of each silo is.

    >>> _ages({"clinic": 1, "lab": 4, "bank": 1})
    'of clinic, bank: 1 round old; of lab: 4 rounds old'
    """
    silos: dict[int, list[str]] = {}
    for silo, age in ages.items():
        silos.setdefault(age, []).append(silo)
    return "; ".join(f"of {', '.join(names)}: {age} round{'s' * (age != 1)} old" for age, names in silos.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
