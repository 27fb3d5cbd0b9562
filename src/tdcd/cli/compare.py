"""``tdcd compare``: TDCD beside its baselines, and one page about them."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from pathlib import Path
from typing import Annotated, get_args

import typer

from tdcd.cli.options import Assignments, ConfigFile, OnDevices, checked_config, chosen_devices, interruptible
from tdcd.cli.terminal import reported, screen
from tdcd.config.baselines import BASELINES
from tdcd.core.choices import Preset


def compare(
    config: ConfigFile = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help=f"Baselines, with commas between ({', '.join(BASELINES)}), or TDCD with other settings: "
            "tdcd,overlap=2,phi_bits=8. May be given several times [default: all baselines].",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from the configuration's on.")] = 1,
    tune: Annotated[
        bool, typer.Option("--tune", help="Try five step sizes for every entry with the first seed, and take the best.")
    ] = False,
    network: Annotated[
        str | None, typer.Option(help=f"{', '.join(get_args(Preset))} [default: what the configuration says].")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where runs are kept [default: runs/compare-NAME].")] = None,
    settings: Assignments = None,
    devices: OnDevices = None,
) -> None:
    """Run TDCD, baselines and variants on the same data, and write one page that compares them.

    Loss against rounds, bytes and predicted time, and what joining the federation gains each silo. Each run has its
    own folder. Ctrl-C keeps what was done: the same command continues from there. Another --network runs nothing again.
    """
    from tdcd.cli.console import SweepDisplay, show_comparison
    from tdcd.compare import compare as compare_plans
    from tdcd.compare import network_of, num_runs, plan_all
    from tdcd.core.network import preset
    from tdcd.pages.comparison import write_page

    with reported():
        checked = checked_config(config, settings or [])
        links = preset(network) if network else network_of(checked.network)
        step_ms = checked.network.step_ms
        plans = plan_all(checked, names or list(BASELINES), chosen_devices(devices), seeds=seeds)
        folder = out or Path("runs") / f"compare-{checked.folder_name}"
        display = SweepDisplay(screen, num_runs(plans, tune=tune))
        with interruptible(display):
            comparison = compare_plans(
                plans,
                links,
                folder,
                step_seconds=None if step_ms is None else step_ms / 1e3,
                slower=checked.network.slower,
                tune=tune,
                observe=display.observe,
                should_stop=display.should_stop,
            )
        page = write_page(comparison, folder)
    show_comparison(screen, comparison, page)
