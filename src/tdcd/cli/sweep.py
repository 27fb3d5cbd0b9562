"""``tdcd run`` with a configuration whose keys list values."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from tdcd.cli.console import SweepDisplay, show_table
from tdcd.cli.terminal import EXIT_INTERRUPTED, screen, stoppable
from tdcd.config import ConfigError, override, read_config
from tdcd.config.named import resume_command
from tdcd.core.stopping import Interrupted
from tdcd.pages.sweep import result_table, write_page
from tdcd.records.sweep_folder import SweepFolder
from tdcd.training.sweep.grid import Grid, expand, varied_keys
from tdcd.training.sweep.sweep import read_grid, read_outcomes, run_sweep


class Request(NamedTuple):
    """What to run, and where."""

    grid: Grid
    folder: Path


def requested(
    config: Path | None, out: Path | None, assignments: Sequence[str], resume: Path | None, *, allow_code: bool
) -> Request | None:
    """The sweep that the arguments of ``tdcd run`` ask for; None if they ask for a single run."""
    if resume is not None:
        if not SweepFolder(resume).is_begun:
            return None
        if config is not None or out is not None or assignments:
            raise ConfigError(["--resume continues the sweep's own settings: leave CONFIG, --out and --set out"])
        return Request(read_grid(resume, allow_code=allow_code), resume)
    keys = override(read_config(config) if config else {}, assignments)
    if not varied_keys(keys):
        return None
    grid = expand(keys, str(config or "the configuration"))
    name = grid.settings[0].config.folder_name
    # The same command finds the same folder again, and continues there.
    return Request(grid, out or Path("runs") / "-".join(["sweep", name, *grid.titles.values()]))


def sweep(grid: Grid, folder: Path) -> None:
    """Run a sweep, and show its table and page; Ctrl-C keeps what is done."""
    display, interrupted = SweepDisplay(screen, len(grid.settings)), False
    try:
        with stoppable(display.stop), display:
            run_sweep(grid, folder, observe=display.observe, should_stop=display.should_stop)
    except Interrupted:
        interrupted = True
    outcomes = read_outcomes(grid, folder)
    page = write_page(outcomes)
    show_table(screen, result_table(outcomes), outcomes.best)
    screen.print(f"Sweep folder: {folder}", soft_wrap=True, highlight=False)
    screen.print(f"Page:         {page}", soft_wrap=True, highlight=False)
    if interrupted:
        screen.print(f"Interrupted. To continue: {resume_command(folder, grid.keys)}", soft_wrap=True, highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED)
