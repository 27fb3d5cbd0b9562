"""What commands that simulate share: their configuration, their devices, and how they end early."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tdcd.cli.terminal import EXIT_INTERRUPTED, screen, stoppable
from tdcd.config import Config, ConfigError, check_config, override, read_config

if TYPE_CHECKING:
    from tdcd.cli.console import Display

ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML configuration; without one, the demo.", show_default=False)
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key, for example --set train.rounds=50.")
]
OnDevices = Annotated[
    int | None, typer.Option("--devices", help="Spread the clients over this many devices [default: one].")
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Follow it live on a page in the browser, as `tdcd watch FOLDER` does.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there already.")]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Import the code that a run folder or a model file names: whoever wrote it chose that."
    ),
]

LogLevelOption = Annotated[
    Literal["info", "warning", "error"], typer.Option("--log-level", help="Log events of this level and above.")
]


def checked_config(config: Path | None, assignments: list[str]) -> Config:
    """The configuration in a file, or the demo, with assignments on top."""
    keys = override(read_config(config) if config else {}, assignments)
    return check_config(keys, str(config or "the configuration"))


def chosen_devices(
    count: int | None, coordinator: str | None = None, process: int | None = None, processes: int | None = None
) -> int | None:
    """The devices that a run is to use; joins the other processes if there are some."""
    from tdcd.simulation.devices import Devices, join

    if coordinator is None:
        if process is not None or processes is not None:
            raise ConfigError(["--process and --processes go with --coordinator HOST:PORT"])
        # Refused at once if there are fewer.
        Devices.first(count or 1)
        return count or 1
    if process is None or processes is None:
        raise ConfigError(["--coordinator needs --process and --processes: which process this is, and of how many"])
    join(coordinator, process, processes)
    return count


@contextmanager
def interruptible(display: "Display") -> Iterator[None]:
    """Show progress, and let Ctrl-C end the work cleanly."""
    from tdcd.core.execution import Interrupted

    try:
        with stoppable(display.stop), display:
            yield
    except Interrupted as stopped:
        screen.print(str(stopped) or "Interrupted; the same command continues from here.", highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def live_page(wanted: bool) -> Iterator[Callable[[Path], None]]:
    """What opens the live page of the run in a folder; it does nothing unless it is ``wanted``."""
    if not wanted:
        yield lambda folder: None
        return
    from tdcd.cli.watch import LivePage

    with LivePage() as page:
        yield page.show
