"""``tdcd run`` and ``tdcd report``: one run, or a sweep of several."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.options import (
    AllowCode,
    Assignments,
    ConfigFile,
    WatchOption,
    chosen_devices,
    interruptible,
    live_page,
)
from tdcd.cli.terminal import EXIT_DIVERGED, EXIT_INTERRUPTED, reported, screen, show_labels, stoppable
from tdcd.config import ConfigError, check_config, override, read_config
from tdcd.config.reading import varied_keys

if TYPE_CHECKING:
    from tdcd.training.sweep.grid import Grid
    from tdcd.training.train import Result


def run(
    config: ConfigFile = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder to write [default: the next free runs/NAME-N].")
    ] = None,
    settings: Assignments = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    allow_code: AllowCode = False,
    devices: Annotated[
        int | None,
        typer.Option(help="Spread the clients over this many devices [default: one, or all with processes]."),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="Run in several processes: HOST:PORT where process 0 listens.")
    ] = None,
    process: Annotated[int | None, typer.Option(help="Which of the processes this is, from 0 on.")] = None,
    processes: Annotated[int | None, typer.Option(help="How many processes there are.")] = None,
    watch: WatchOption = False,
) -> None:
    """Simulate a federation: train, evaluate, write a run folder and its report.

    Without a CONFIG this is the demo: the digits data, each image cut into two halves that two silos hold, with five
    clients in each silo. `tdcd run --set train.local_steps=1` shows what fewer local steps cost.

    A key that lists values, as in `--set train.local_steps=[1,5,10]`, makes a sweep: all combinations are run, each
    into a folder of its own, and one table and one page compare them.

    Ctrl-C ends after the current round and leaves a folder that `tdcd run --resume DIR` continues, bit for bit.

    Exit status: 0 finished, 2 bad input, 3 the run, or one of a sweep, diverged, 130 interrupted.
    """
    from tdcd.cli.console import RunDisplay, show_alignment
    from tdcd.config.resolve import plan
    from tdcd.simulation.devices import Devices
    from tdcd.training.train import train_plan

    assignments, where = settings or [], str(config or "the configuration")
    with live_page(watch) as show_page:
        with reported():
            keys = {} if resume is not None else override(read_config(config) if config else {}, assignments)
            grid = _resumed_sweep(resume, allow_code) if resume is not None else _sweep(keys, where)
            if grid is not None:
                if devices is not None or coordinator is not None:
                    raise ConfigError(
                        ["a sweep runs in one process, on one device: leave --devices and --coordinator out"]
                    )
                if resume is not None and (config is not None or out is not None or assignments):
                    raise ConfigError(
                        ["--resume continues the sweep's own settings: leave CONFIG, --out and --set out"]
                    )
                _run_sweep(grid, resume or out or _sweep_folder(grid), show_page)
                return
        display = RunDisplay(screen)
        with reported(), interruptible(display):
            line = chosen_devices(devices, coordinator, process, processes)
            hosts = Devices.first(line).hosts
            if resume is not None:
                from tdcd.training.run import resume as resume_run

                if config is not None or out is not None:
                    raise ConfigError(["--resume continues the folder's own settings: leave CONFIG and --out out"])
                if not process:
                    show_page(resume)
                watched = {"observe": display.observe, "should_stop": display.should_stop}
                result = resume_run(resume, assignments, line, hosts, allow_code=allow_code, **watched)
            else:
                checked = check_config(keys, where)
                folder = out or _next_folder(checked.folder_name)
                planned = plan(checked, devices=line, hosts=hosts)
                if not process:
                    show_labels(planned.federation.labels_in_words)
                    show_alignment(screen, planned.federation.alignment)
                    show_page(folder)
                result = train_plan(planned, folder, observe=display.observe, should_stop=display.should_stop)
        if result.folder is not None:
            _finish(result)


def report(folder: Annotated[Path, typer.Argument(help="A run folder.", metavar="DIR")]) -> None:
    """Write DIR/report.html: one self-contained page with curves, the federation and the settings."""
    from tdcd.pages.report import write_report

    with reported():
        screen.print(f"Report: {write_report(folder)}", soft_wrap=True, highlight=False)


def _finish(result: "Result") -> None:
    from tdcd.cli.console import show_result
    from tdcd.pages.report import write_report

    assert result.folder is not None
    with reported():
        page = write_report(result.folder)
    show_result(screen, result, page)
    if result.status == "diverged":
        raise typer.Exit(EXIT_DIVERGED)
    if result.status == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def _next_folder(name: str) -> Path:
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def _sweep(keys: Mapping[str, Any], where: str) -> "Grid | None":
    """The sweep that a configuration asks for; None if it asks for a single run."""
    if not varied_keys(keys):
        return None
    from tdcd.training.sweep.grid import expand

    return expand(keys, where)


def _resumed_sweep(folder: Path, allow_code: bool) -> "Grid | None":
    """The sweep in a folder; None if it has none."""
    from tdcd.records.run_folder import SweepFolder
    from tdcd.training.sweep.sweep import read_grid

    return read_grid(folder, allow_code=allow_code) if SweepFolder(folder).is_begun else None


def _sweep_folder(grid: "Grid") -> Path:
    """The same command finds the same folder again, and continues there."""
    return Path("runs") / "-".join(["sweep", grid.settings[0].config.folder_name, *grid.titles.values()])


def _run_sweep(grid: "Grid", folder: Path, show_page: Callable[[Path], None]) -> None:
    """Run a sweep, and show its table and page; Ctrl-C keeps what is done."""
    from tdcd.cli.console import SweepDisplay, show_table
    from tdcd.config.user_code import resume_command
    from tdcd.core.execution import Interrupted
    from tdcd.pages.sweep import result_table, write_page
    from tdcd.training.sweep.sweep import read_outcomes, run_sweep

    show_page(folder)
    display, interrupted = SweepDisplay(screen, len(grid.settings)), False
    try:
        with stoppable(display.stop), display:
            run_sweep(grid, folder, observe=display.observe, should_stop=display.should_stop)
    except Interrupted:
        interrupted = True
    sweep = read_outcomes(grid, folder)
    written = write_page(sweep)
    show_table(screen, result_table(sweep), sweep.best)
    screen.print(f"Sweep folder: {folder}", soft_wrap=True, highlight=False)
    screen.print(f"Page:         {written}", soft_wrap=True, highlight=False)
    if interrupted:
        screen.print(f"Interrupted. To continue: {resume_command(folder, grid.keys)}", soft_wrap=True, highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED)
    if any(outcome.status == "diverged" for outcome in sweep.outcomes):
        raise typer.Exit(EXIT_DIVERGED)
