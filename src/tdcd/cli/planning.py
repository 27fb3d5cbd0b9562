"""``tdcd plan`` and ``tdcd bound``: how many local steps to take, and Theorem 1 beside a finished run."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from pathlib import Path
from typing import Annotated, get_args

import typer

from tdcd.cli.options import AllowCode, ConfigFile, OnDevices, checked_config, chosen_devices, interruptible
from tdcd.cli.terminal import reported, screen
from tdcd.core.choices import Preset


def plan(
    config: ConfigFile = None,
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
    """Say how many local steps to take, and with which overlap, periods of slow silos and bits of phi.

    A table over Q has safe step sizes, rounds, bytes and predicted time; a second one has overlap, periods and bits for
    the best Q. Rounds are counted in short pilot runs with the configuration's step size, or with the safe one where
    that diverges; what Theorem 1 promises stands beside. Nothing is written.
    """
    from tdcd.cli.console import EstimateDisplay, show_ranking, show_recommendation
    from tdcd.compare import network_of
    from tdcd.config.resolve import plan as plan_config
    from tdcd.core.network import preset
    from tdcd.planning import plan_run

    display = EstimateDisplay(screen)
    with reported(), interruptible(display):
        checked = checked_config(config, settings or [])
        links = preset(network) if network else network_of(checked.network)
        step_ms = checked.network.step_ms
        found = plan_run(
            plan_config(checked, devices=chosen_devices(devices)),
            links,
            target=target,
            step_seconds=None if step_ms is None else step_ms / 1e3,
            slower=checked.network.slower,
            seconds=seconds,
            observe=display.observe,
        )
    show_recommendation(screen, found.local_steps)
    if found.variants is not None:
        show_ranking(screen, found.variants, checked)


def bound(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    seconds: Annotated[float, typer.Option(help="Stop measuring after about this long.")] = 60.0,
    allow_code: AllowCode = False,
    devices: OnDevices = None,
) -> None:
    """Compare a run with Theorem 1: the bound's three terms beside the measured gradients.

    The run is repeated from its settings, and the gradient of the whole objective measured at the starts of rounds.
    Writes RUN/bound.html, one self-contained page with both over the iterations.
    """
    from tdcd.cli.console import EstimateDisplay, show_bound
    from tdcd.pages.bound import write_page
    from tdcd.planning import measure_bound

    display = EstimateDisplay(screen)
    with reported(), interruptible(display):
        result = measure_bound(
            folder,
            allow_code=allow_code,
            devices=chosen_devices(devices),
            seconds=seconds,
            observe=display.observe,
        )
    show_bound(screen, result, write_page(result))
