"""The quick set keeps its word: a test marked ``quick``, and not ``slow``, compiles nothing and starts no process."""

import os
import subprocess
from collections.abc import Generator
from typing import Any, NoReturn

import jax
import pytest

REMEDY = "Mark it slow, or take its module out of the set."
COMPILED: list[str] = []
"""One entry for each program that this process has compiled, or taken from the cache of compiled programs."""


def listen(event: str, seconds: float, **details: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(listen)


def refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise AssertionError(f"A test of the quick set starts a process. {REMEDY}")


def guarded(item: pytest.Item) -> Generator[None, Any, Any]:
    """A fixture or a test of the quick set that compiles or starts a process fails."""
    if item.get_closest_marker("quick") is None or item.get_closest_marker("slow") is not None:
        return (yield)
    before = len(COMPILED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        for name in ("fork", "posix_spawn", "posix_spawnp"):
            patch.setattr(os, name, refuse)
        result = yield
    count = len(COMPILED) - before
    assert not count, (
        f"A test of the quick set compiles {count} programs. Mark it slow, or take its module out of the set."
    )
    return result


pytest_runtest_setup = pytest_runtest_call = pytest.hookimpl(wrapper=True)(guarded)
