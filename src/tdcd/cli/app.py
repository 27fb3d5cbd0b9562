"""The command line: parse, call, print.

What needs JAX is imported by the commands that train: the others, and --help, start faster without it.
"""
# ruff: noqa: PLC0415

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from tdcd import __version__
from tdcd.cli.align import align
from tdcd.cli.certificates import certs_app
from tdcd.cli.federation import client, hub, up
from tdcd.cli.predict import export, predict
from tdcd.cli.status import status
from tdcd.cli.tables import check, split
from tdcd.cli.terminal import EXIT_DIVERGED, EXIT_INTERRUPTED, errors, reported, screen, show_labels, stoppable
from tdcd.config import Config, ConfigError, check_config, override, read_config
from tdcd.config.baselines import BASELINES
from tdcd.core.choices import Preset
from tdcd.core.compiled import keep_compiled, silence_alarms
from tdcd.experiments.experiment import NAMES, load_experiment

if TYPE_CHECKING:
    from tdcd.cli.console import Display
    from tdcd.core.devices import Devices
    from tdcd.experiments.sweep import ExperimentResult
    from tdcd.training.train import Result

app = typer.Typer(
    help="Train one model over data that is split by columns between organisations and by rows inside each.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tdcd {__version__}")
        raise typer.Exit


OnDevices = Annotated[
    int | None, typer.Option("--devices", help="Spread the clients over this many devices [default: one].")
]


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train one model over data that is split by columns between organisations and by rows inside each."""


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML configuration; without one, the demo.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder to write [default: the next free runs/NAME-N].")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, for example --set train.rounds=50.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Spread the clients over this many devices [default: one, or all with processes]."),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="Run in several processes: HOST:PORT where process 0 listens.")
    ] = None,
    process: Annotated[int | None, typer.Option(help="Which of the processes this is, from 0 on.")] = None,
    processes: Annotated[int | None, typer.Option(help="How many processes there are.")] = None,
) -> None:
    """Simulate a federation: train, evaluate, write a run folder and its report.

    Without a CONFIG this is the demo: the digits data, each image cut into two halves that two silos hold, with five
    clients in each silo. `tdcd run --set train.local_steps=1` shows what fewer local steps cost.

    A key that lists values, as in `--set train.local_steps=[1,5,10]`, makes a sweep: all combinations are run, each
    into a folder of its own, and one table and one page compare them.

    Ctrl-C ends after the current round and leaves a folder that `tdcd run --resume DIR` continues, bit for bit.

    Exit status: 0 finished, 2 bad input, 3 the loss diverged, 130 interrupted.
    """
    from tdcd.cli.console import RunDisplay
    from tdcd.cli.sweep import requested as sweep_requested
    from tdcd.cli.sweep import sweep as run_sweep
    from tdcd.config.resolve import plan as plan_config
    from tdcd.training.run import execute
    from tdcd.training.run import resume as resume_run

    assignments = settings or []
    with reported():
        wanted = sweep_requested(config, out, assignments, resume)
        if wanted is not None:
            if devices is not None or coordinator is not None:
                raise ConfigError(["a sweep runs in one process, on one device: leave --devices and --coordinator out"])
            run_sweep(wanted.grid, wanted.folder)
            return
    display = RunDisplay(screen)
    with reported(), _interruptible(display):
        line = _devices(devices, coordinator, process, processes)
        if resume is not None:
            if coordinator is not None:
                raise ConfigError(["--resume goes on in one process: leave --coordinator out"])
            if config is not None or out is not None:
                raise ConfigError(["--resume continues the folder's own settings: leave CONFIG and --out out"])
            result = resume_run(
                resume, assignments, devices=line, observe=display.observe, should_stop=display.should_stop
            )
        else:
            checked = _checked(config, assignments)
            folder = out or _next_folder(checked.data.source)
            planned = plan_config(checked, devices=line)
            if not process:
                show_labels(planned.federation.labels_in_words)
            result = execute(planned, folder, observe=display.observe, should_stop=display.should_stop)
    if result.folder is not None:
        _finish(result)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A run folder.", metavar="DIR")]) -> None:
    """Write DIR/report.html: one self-contained page with curves, the federation and the settings."""
    from tdcd.report import write_report

    with reported():
        screen.print(f"Report: {write_report(folder)}", soft_wrap=True, highlight=False)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help=f"{', '.join(NAMES)}; all by default.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's size; the CNN figures then want a GPU.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where runs are kept [default: runs/reproduce or runs/reproduce-full].")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="How to run: --set train.precision=float32 (a GPU's products), --set data.keep=host."
        ),
    ] = None,
    devices: OnDevices = None,
) -> None:
    """Reproduce the paper's figures, check its claims, and write one page that shows both.

    Each curve is run with several seeds, each run into its own folder. Ctrl-C keeps what was done: the same command
    goes on from there, curve by curve. Data sets are downloaded once into $TDCD_DATA; where that fails, a stand-in is
    used and the page says so loudly.
    """
    from tdcd.cli.console import SweepDisplay, show_claims
    from tdcd.experiments.claims import check_claims
    from tdcd.experiments.page import write_page
    from tdcd.experiments.sweep import run_experiment

    folder = out or Path("runs") / ("reproduce-full" if full else "reproduce")
    assignments = settings or []
    with reported():
        spread = _devices(devices)
        experiments = [load_experiment(name, full=full, assignments=assignments) for name in names or NAMES]
        display = SweepDisplay(screen, sum(experiment.num_runs for experiment in experiments))
        results: dict[str, ExperimentResult] = {}
        with _interruptible(display):
            for experiment in experiments:
                display.begin(sum(done.experiment.num_runs for done in results.values()))
                results[experiment.name] = run_experiment(
                    experiment, folder, devices=spread, observe=display.observe, should_stop=display.should_stop
                )
        page = write_page(results, folder, full=full, assignments=assignments)
    for result in results.values():
        if result.stand_in:
            line = f"{result.experiment.name} ran on {result.data}, NOT on the paper's data: {result.stand_in}"
            errors.print(line, style="bold yellow", highlight=False)
    show_claims(screen, check_claims(results), page)


@app.command()
def compare(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML configuration; without one, the demo.", show_default=False)
    ] = None,
    names: Annotated[str, typer.Option("--with", help="Baselines, with commas between.")] = ",".join(BASELINES),
    network: Annotated[
        str | None, typer.Option(help=f"{', '.join(get_args(Preset))} [default: what the configuration says].")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where runs are kept [default: runs/compare-NAME].")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, for example --set train.rounds=50.")
    ] = None,
    devices: OnDevices = None,
) -> None:
    """Run TDCD and baselines on the same data, and write one page that compares them.

    Loss against rounds, bytes and predicted time, and what joining the federation gains each silo. Each run has its
    own folder. Ctrl-C keeps what was done: the same command goes on from there. Another --network runs nothing again.
    """
    from tdcd.cli.console import SweepDisplay, show_comparison
    from tdcd.compare import compare as compare_plans
    from tdcd.compare import network_of, plan_all, write_page
    from tdcd.compare.network import preset

    with reported():
        checked = _checked(config, settings or [])
        links = preset(network) if network else network_of(checked.network)
        step_ms = checked.network.step_ms
        plans = plan_all(checked, [name.strip() for name in names.split(",") if name.strip()], _devices(devices))
        folder = out or Path("runs") / f"compare-{config.stem if config else checked.data.source}"
        display = SweepDisplay(screen, len(plans))
        with _interruptible(display):
            comparison = compare_plans(
                plans,
                links,
                folder,
                step_seconds=None if step_ms is None else step_ms / 1e3,
                observe=display.observe,
                should_stop=display.should_stop,
            )
        page = write_page(comparison, folder)
    show_comparison(screen, comparison, page)


@app.command()
def plan(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML configuration; without one, the demo.", show_default=False)
    ] = None,
    network: Annotated[
        str | None, typer.Option(help=f"{', '.join(get_args(Preset))} [default: what the configuration says].")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="A training loss [default: 90% of the way to the lowest one known].")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop looking after this long.")] = 60.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, for example --set train.step_size=0.01.")
    ] = None,
    devices: OnDevices = None,
) -> None:
    """Say how many local steps to take: a table over Q with safe step sizes, rounds, bytes and predicted time.

    Rounds are counted in short pilot runs with the configuration's step size, or with the safe one where that
    diverges; what Theorem 1 promises stands beside. Nothing is written.
    """
    from tdcd.cli.console import EstimateDisplay, show_plan
    from tdcd.compare import network_of
    from tdcd.compare.network import preset
    from tdcd.config.resolve import plan as plan_config
    from tdcd.planning import plan_local_steps

    display = EstimateDisplay(screen)
    with reported(), _interruptible(display):
        checked = _checked(config, settings or [])
        links = preset(network) if network else network_of(checked.network)
        step_ms = checked.network.step_ms
        table = plan_local_steps(
            plan_config(checked, devices=_devices(devices)),
            links,
            target=target,
            step_seconds=None if step_ms is None else step_ms / 1e3,
            seconds=seconds,
            observe=display.observe,
        )
    show_plan(screen, table)


@app.command()
def bound(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    seconds: Annotated[float, typer.Option(help="Stop measuring after about this long.")] = 60.0,
    devices: OnDevices = None,
) -> None:
    """Hold a run against Theorem 1: the bound's three terms beside the measured gradients.

    The run is repeated from its settings, and the gradient of the whole objective measured at the starts of rounds.
    Writes RUN/bound.html, one self-contained page with both over the iterations.
    """
    from tdcd.cli.console import EstimateDisplay, show_check
    from tdcd.planning import check_run, write_page

    display = EstimateDisplay(screen)
    with reported(), _interruptible(display):
        check = check_run(folder, devices=_devices(devices), seconds=seconds, observe=display.observe)
    show_check(screen, check, write_page(check))


app.command()(hub)
app.command()(client)
app.command()(up)
app.command()(status)
app.command()(align)
app.command()(check)
app.command()(split)
app.command()(predict)
app.command()(export)
app.add_typer(certs_app, name="certs")


def _checked(config: Path | None, assignments: list[str]) -> Config:
    keys = override(read_config(config) if config else {}, assignments)
    return check_config(keys, str(config or "the configuration"))


def _devices(
    count: int | None, coordinator: str | None = None, process: int | None = None, processes: int | None = None
) -> "Devices":
    """The devices that a run is to use; joins the other processes if there are some."""
    from tdcd.core.devices import Devices, join

    if coordinator is None:
        if process is not None or processes is not None:
            raise ConfigError(["--process and --processes go with --coordinator HOST:PORT"])
        return Devices.first(count or 1)
    if process is None or processes is None:
        raise ConfigError(["--coordinator needs --process and --processes: which process this is, and of how many"])
    join(coordinator, process, processes)
    return Devices.first(count)


def _finish(result: "Result") -> None:
    from tdcd.cli.console import show_result
    from tdcd.report import write_report

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


@contextmanager
def _interruptible(display: "Display") -> Iterator[None]:
    """Show progress, and let Ctrl-C end the work in good order."""
    from tdcd.core.stopping import Interrupted

    try:
        with stoppable(display.stop), display:
            yield
    except Interrupted as stopped:
        screen.print(str(stopped) or "Interrupted; the same command goes on from here.", highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def main() -> None:
    """The ``tdcd`` command."""
    silence_alarms()
    keep_compiled()
    sys.exit(app())
