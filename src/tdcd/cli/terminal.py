"""What every command shares: the two streams, the exit statuses, and how bad input and Ctrl-C end."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

import logging
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tdcd.core.words import visible
from tdcd.tables.errors import DataWarning


class PlainConsole(Console):
    """A console on which no text is markup, and no character is a control character, whoever wrote it.

    Styles are given by :class:`~rich.text.Text` and by ``style``.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of what is printed; those of rich itself that move the cursor are as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


screen = PlainConsole()
errors = PlainConsole(stderr=True)

EXIT_DEFECT = 1
EXIT_INPUT = 2
EXIT_DIVERGED = 3
EXIT_INTERRUPTED = 130


def _in_log(level: int, what: str, **facts: str) -> bool:
    """Log an event, if standard error has lines for machines."""
    from tdcd.runtime.process.log import event, is_for_machines

    if not is_for_machines():
        return False
    event(what, level, **facts)
    return True


def report_failure(what: str, why: str) -> None:
    """Say why a command ends with a status other than 0: as its last line, whoever reads it."""
    from tdcd.runtime.process.log import FAILED

    if not _in_log(logging.ERROR, FAILED, status=what.lower(), why=why):
        errors.print(Text.assemble((f"{what}: ", "bold red"), why), soft_wrap=True, highlight=False)


@contextmanager
def reported() -> Iterator[None]:
    """Bad input ends with its sentence and status 2, not with a traceback; what may be a mistake is one line."""
    try:
        with warnings.catch_warnings():
            show, shown = warnings.showwarning, set[str]()

            def as_a_line(message: Warning | str, category: type[Warning], *where: Any) -> None:
                if issubclass(category, DataWarning):
                    if str(message) in shown:
                        return
                    shown.add(str(message))
                    if not _in_log(logging.WARNING, "caution", why=str(message)):
                        errors.print(Text(f"Warning: {message}", "yellow"), soft_wrap=True)
                else:
                    show(message, category, *where)

            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = as_a_line  # type: ignore[assignment]
            yield
    except (ValueError, OSError) as error:
        report_failure("Error", str(error))
        raise typer.Exit(EXIT_INPUT) from None
    except typer.Exit:
        raise
    except Exception as error:
        # A defect: a person gets the traceback as Python prints it.
        if not _in_log(logging.CRITICAL, "crashed", why=repr(error), traceback=traceback.format_exc()):
            raise
        raise typer.Exit(EXIT_DEFECT) from None


@contextmanager
def stoppable(stop: Callable[[], None], *, cleanly: bool = False) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) asks for the end by calling ``stop``, the second ends at once.

    If that has to be done ``cleanly``, because there are other processes to end, a second SIGTERM raises
    KeyboardInterrupt too.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        stop()
        signal.signal(number, signal.default_int_handler if cleanly or number == signal.SIGINT else signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """A KeyboardInterrupt, which is the second Ctrl-C, ends with its own status and no traceback."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print("Interrupted at once: the same command continues from the last checkpoints.", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def show_labels(in_words: str) -> None:
    """Print in one line how the labels were interpreted, if that had to be decided."""
    if in_words:
        screen.print(Text(f"Labels: {in_words}"), soft_wrap=True)


def refuse_existing(out: Path, force: bool) -> None:
    """Keep what is there, unless it may be replaced."""
    if out.exists() and not force:
        raise FileExistsError(f"{out} is there already: choose another --out, or replace it with --force")
