"""``tdcd reproduce``: the paper's figures and sentences, and one page about them. Nothing else imports them."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tdcd.cli.options import OnDevices, chosen_devices, interruptible
from tdcd.cli.terminal import errors, reported, screen
from tdcd.reproduction.experiment import PAPER, SETS, expand, load_experiment

if TYPE_CHECKING:
    from tdcd.reproduction.claims import Claim
    from tdcd.reproduction.results import ExperimentResult


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIGURE]...", help=f"{', '.join(PAPER)}: all by default; {', '.join(SETS)}: not by default."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's size; the CNN figures then need a GPU.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where runs are kept [default: runs/reproduce or runs/reproduce-full].")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="How to run: --set train.precision=float32 (a GPU's products), --set data.keep=host."
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="Also show times of real processes: the file of `python -m benchmarks stragglers --json FILE`."
        ),
    ] = None,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Run nothing: write the page again from results.json in --out.")
    ] = False,
    devices: OnDevices = None,
) -> None:
    """Reproduce the paper's figures, check its claims, and write one page that shows both.

    Each curve is run with several seeds, each run into its own folder. Figures that the folder has already stay on the
    page. Ctrl-C keeps what was done: the same command continues from there, curve by curve. Data sets are downloaded
    once into $TDCD_DATA; where that fails, a stand-in is used, the page says so wherever it matters, and no sentence is
    judged by it.
    """
    from tdcd.cli.console import SweepDisplay
    from tdcd.pages.reproduction import grouped, write_page
    from tdcd.reproduction.claims import judge
    from tdcd.reproduction.results import joined, read_measured, read_results
    from tdcd.reproduction.sweep import run_experiment

    folder = out or Path("runs") / ("reproduce-full" if full else "reproduce")
    assignments = settings or []
    with reported():
        spread = chosen_devices(devices)
        real = None if measured is None else read_measured(measured)
        wanted = [] if redraw else expand(names or [])
        experiments = [load_experiment(name, full=full, assignments=assignments) for name in wanted]
        earlier = read_results(folder / "results.json")
        if redraw and not earlier:
            raise ValueError(f"{folder / 'results.json'} is not there: give the folder of a reproduction with --out")
        display = SweepDisplay(screen, sum(experiment.num_runs for experiment in experiments))
        done = 0
        results: dict[str, ExperimentResult] = {}
        with interruptible(display):
            for experiment in experiments:
                display.begin(done)
                results[experiment.name] = run_experiment(
                    experiment, folder, devices=spread, observe=display.observe, should_stop=display.should_stop
                )
                done += experiment.num_runs
        together = joined(earlier, results)
        page = write_page(folder, together, assignments=assignments, measured=real)
    for result in results.values():
        if result.stand_in:
            line = f"{result.name} ran on {result.data}, NOT on the paper's data: {result.stand_in}"
            errors.print(line, style="bold yellow", highlight=False)
    for title, says, claims in grouped(judge(together)):
        _show(title, says, claims)
    screen.print(f"Page: {page}", soft_wrap=True, highlight=False)


def _show(title: str, says: str, claims: Sequence["Claim"]) -> None:
    table = Table("figure", says, "verdict", "measured", title=title, title_justify="left")
    for claim in claims:
        style = {"holds": "green", "does not hold": "red"}.get(claim.verdict, "yellow")
        where = f"{claim.figure} (stand-in data)" if claim.mark else claim.figure
        table.add_row(where, escape(claim.sentence), f"[{style}]{claim.words}[/{style}]", escape(claim.measured))
    screen.print(table)
