"""``tdcd`` as a user gives it, but in the process of the test: starting one takes longer than most commands.

Where it must be another process, that is a copy of one that has imported everything.
"""

import os
from contextlib import chdir
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.runtime.process.forking import PartyProcess, start_party, warm_up


def tdcd(*arguments: object, cwd: Path) -> Result:
    """Its ``exit_code``, ``stdout`` and ``stderr``."""
    with chdir(cwd):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])


def start_tdcd(*arguments: object, cwd: Path, log: Path) -> PartyProcess:
    """The same as a process; ``log`` gets what it prints."""
    warm_up(with_jax=True)
    with chdir(cwd):
        return start_party([str(argument) for argument in arguments], log, os.environ)
