"""``tdcd run`` and ``tdcd report``: one run, or a sweep of several."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.options import AllowCode, Assignments, ConfigFile, checked_config, chosen_devices, interruptible
from tdcd.cli.terminal import EXIT_DIVERGED, EXIT_INTERRUPTED, reported, screen, show_labels
from tdcd.cli.watch import LivePage, Watch
from tdcd.config import ConfigError

if TYPE_CHECKING:
    from tdcd.training.result import Result


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
    watch: Watch = False,
) -> None:
    """Simulate a federation: train, evaluate, write a run folder and its report.

    Without a CONFIG this is the demo: the digits data, each image cut into two halves that two silos hold, with five
    clients in each silo. `tdcd run --set train.local_steps=1` shows what fewer local steps cost.

    A key that lists values, as in `--set train.local_steps=[1,5,10]`, makes a sweep: all combinations are run, each
    into a folder of its own, and one table and one page compare them.

    Ctrl-C ends after the current round and leaves a folder that `tdcd run --resume DIR` continues, bit for bit.

    Exit status: 0 finished, 2 bad input, 3 the run diverged, 130 interrupted.
    """
    with LivePage(watch) as page:
        _run(config, out, settings or [], resume, allow_code, devices, coordinator, process, processes, page)


def _run(
    config: Path | None,
    out: Path | None,
    assignments: list[str],
    resume: Path | None,
    allow_code: bool,
    devices: int | None,
    coordinator: str | None,
    process: int | None,
    processes: int | None,
    page: LivePage,
) -> None:
    from tdcd.cli.console import RunDisplay, show_alignment
    from tdcd.cli.sweep import requested as sweep_requested
    from tdcd.cli.sweep import sweep as run_sweep
    from tdcd.config.resolve import plan as plan_config
    from tdcd.simulation.devices import Devices
    from tdcd.training.run import execute
    from tdcd.training.run import resume as resume_run

    with reported():
        wanted = sweep_requested(config, out, assignments, resume, allow_code=allow_code)
        if wanted is not None:
            if devices is not None or coordinator is not None:
                raise ConfigError(["a sweep runs in one process, on one device: leave --devices and --coordinator out"])
            page.show(wanted.folder)
            run_sweep(wanted.grid, wanted.folder)
            return
    display = RunDisplay(screen)
    with reported(), interruptible(display):
        line = chosen_devices(devices, coordinator, process, processes)
        hosts = Devices.first(line).hosts
        if resume is not None:
            if config is not None or out is not None:
                raise ConfigError(["--resume continues the folder's own settings: leave CONFIG and --out out"])
            if not process:
                page.show(resume)
            watched = {"observe": display.observe, "should_stop": display.should_stop}
            result = resume_run(resume, assignments, line, hosts, allow_code=allow_code, **watched)
        else:
            checked = checked_config(config, assignments)
            folder = out or _next_folder(checked.folder_name)
            planned = plan_config(checked, devices=line, hosts=hosts)
            if not process:
                show_labels(planned.federation.labels_in_words)
                show_alignment(screen, planned.federation.alignment)
                page.show(folder)
            result = execute(planned, folder, observe=display.observe, should_stop=display.should_stop)
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
