"""``tdcd audit``: what each party could find out about the others' data."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.options import AllowCode, Assignments, OnDevices, checked_config, chosen_devices, interruptible
from tdcd.cli.terminal import reported, screen
from tdcd.config import Config, ConfigError, stored_config


def audit(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG|RUN]",
            help="A TOML configuration, or the folder of a run; without one, the demo.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many rounds each attacker gets to see.")] = 60,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Of the modes that randomise labels [default: the configuration's, or 1].", show_default=False
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the page goes [default: RUN, or runs/audit-NAME].")] = None,
    settings: Assignments = None,
    allow_code: AllowCode = False,
    devices: OnDevices = None,
) -> None:
    """Attack what each party would see, in every protection mode, and write one page about what was recovered.

    The federation is simulated for some rounds. Each hub's and each client's transcript is then attacked: columns from
    phi, with and without rows that the attacker knows anyway; labels from slopes; membership from losses. Writes
    audit.html, one self-contained page, and audit.json.
    """
    from tdcd.audit import audit as play
    from tdcd.cli.console import EstimateDisplay, show_audit
    from tdcd.config.resolve import plan as plan_config
    from tdcd.pages.audit import write_page

    display = EstimateDisplay(screen)
    with reported(), interruptible(display):
        config = _configuration(source, settings or [], allow_code=allow_code)
        own = config.federation.label_epsilon
        # The attacks are on true labels; modes randomise them anew.
        plain = config.federation.model_copy(update={"label_epsilon": None})
        true = plan_config(config.model_copy(update={"federation": plain}), devices=chosen_devices(devices))
        planned = true._replace(config=config)
        chosen = epsilon if epsilon is not None else own or 1.0
        found = play(planned, rounds=rounds, epsilon=chosen, observe=display.observe)
        page = write_page(found, out or _folder(source, config))
    show_audit(screen, found, page)


def _configuration(source: Path | None, assignments: list[str], *, allow_code: bool) -> Config:
    """Of a file, or the one that a run folder keeps."""
    if source is None or not source.is_dir():
        return checked_config(source, assignments)
    from tdcd.records.run_folder import RunFolder

    folder = RunFolder.open(source)
    if assignments:
        raise ConfigError(["--set goes with a configuration: the audit of a run takes the run's own settings"])
    return stored_config(folder.config(), str(folder.config_file), allow_code=allow_code)


def _folder(source: Path | None, config: Config) -> Path:
    if source is not None and source.is_dir():
        return source
    return Path("runs") / f"audit-{config.folder_name}"
