"""``tdcd`` as a user gives it, but in the process of the test: starting one takes longer than most commands."""

from contextlib import chdir
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from tdcd.cli.app import app


def tdcd(*arguments: object, cwd: Path) -> Result:
    """Its ``exit_code``, ``stdout`` and ``stderr``."""
    with chdir(cwd):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
