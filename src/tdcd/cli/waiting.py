"""What the terminal shows while parties exchange messages."""

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn

from tdcd.cli.console import Display


class Waiting(Display):
    """Who is being waited for, and how much of this party's work is done."""

    stopping = "Stopping; once more to stop at once."

    def __init__(self, console: Console, doing: str) -> None:
        super().__init__(console, "{task.description}", BarColumn(), TaskProgressColumn())
        self._doing, self._missing = doing, [""]
        self._task = self._bar.add_task(doing, total=1.0)

    def show(self, missing: list[str]) -> None:
        """Say who is missing."""
        if missing == self._missing:
            return
        self._missing = missing
        shown = ", ".join(escape(one) for one in missing[:3])
        names = f"; waiting for {shown}{', ...' if len(missing) > 3 else ''}" if missing else ""
        self._bar.update(self._task, description=self._doing + names)
        if names and not self._console.is_terminal:
            self._console.print(self._doing + names, highlight=False)

    def progress(self, done: float) -> None:
        """Show which fraction is done."""
        self._bar.update(self._task, completed=done)
