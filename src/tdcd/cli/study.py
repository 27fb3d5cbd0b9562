"""``tdcd plan``, ``tdcd bound``, ``tdcd compare`` and ``tdcd audit``: what a run would cost, and what it gives away."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from pathlib import Path
from typing import Annotated, get_args

import typer

from tdcd.cli.options import (
    AllowCode,
    Assignments,
    ConfigFile,
    OnDevices,
    checked_config,
    chosen_devices,
    interruptible,
)
from tdcd.cli.terminal import reported, screen
from tdcd.compare.baselines import BASELINES
from tdcd.config import Config, ConfigError, stored_config
from tdcd.core.choices import Preset

FOR_COMMON_SAMPLES = 0.5
"""The part of the time limit of ``tdcd plan`` for trainings on fewer common samples, where there are others."""


def plan(
    config: ConfigFile = None,
    network: Annotated[
        str | None, typer.Option(help=f"{', '.join(get_args(Preset))} [default: what the configuration says].")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="A training loss [default: 90% of the way to the lowest one known].")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop looking after this long.")] = 60.0,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Say which noise on phi, rounds and figures this epsilon means, and no more.", min=1e-3),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, for example --set train.step_size=0.01.")
    ] = None,
    devices: OnDevices = None,
) -> None:
    """Say how many local steps to take, and with which overlap, periods of slow silos and bits of phi.

    A table over Q has safe step sizes, rounds, bytes and predicted time; a second one has overlap, periods and bits for
    the best Q. Rounds are counted in short pilot runs with the configuration's step size, or with the safe one where
    that diverges; what Theorem 1 promises stands next to it. With automatic steps the run itself is carried out, too,
    and what it takes on every network stands next to plain steps. Where silos' tables differ in their ids (data.align),
    also what another 10 % of common samples would buy, by trainings on fewer of them. Where silos lack samples
    (data.samples = "all") it gives only that, for the rows that two silos have. With --epsilon only the noise on phi is
    planned, by trainings with it. Nothing is written.
    """
    from tdcd.cli.console import (
        EstimateDisplay,
        show_automatic_run,
        show_noise,
        show_ranking,
        show_recommendation,
    )
    from tdcd.compare import network_of
    from tdcd.config.resolve import plan as plan_config
    from tdcd.core.network import preset
    from tdcd.planning import more_samples, plan_noise, plan_run
    from tdcd.planning.automatic_run import network_name

    display = EstimateDisplay(screen)
    with reported(), interruptible(display):
        checked = checked_config(config, settings or [])
        if epsilon is not None:
            noise = checked_config(config, [*(settings or []), f"exchange.epsilon={epsilon}"])
            planned_noise = plan_noise(
                noise, epsilon, devices=chosen_devices(devices), seconds=seconds, observe=display.observe
            )
            show_noise(screen, planned_noise)
            return
        links = preset(network) if network else network_of(checked.network)
        step_ms = checked.network.step_ms
        planned = plan_config(checked, devices=chosen_devices(devices))
        if not planned.federation.is_complete:
            gained = more_samples(planned, seconds=seconds, observe=display.observe)
            screen.print(gained if isinstance(gained, str) else gained.in_words, highlight=False)
            return
        lost = any(ids.lost for ids in planned.federation.alignment.values())
        kept = FOR_COMMON_SAMPLES * seconds if lost else 0.0
        advice = plan_run(
            planned,
            links,
            target=target,
            step_seconds=None if step_ms is None else step_ms / 1e3,
            slower=checked.network.slower,
            seconds=seconds - kept,
            observe=display.observe,
        )
        gained = more_samples(planned, seconds=kept, observe=display.observe) if lost else ""
    show_recommendation(screen, advice.local_steps)
    if advice.automatic is not None:
        show_automatic_run(screen, advice.automatic, network_name(links))
    if advice.variants is not None:
        show_ranking(screen, advice.variants, checked)
    if gained:
        screen.print("", gained if isinstance(gained, str) else gained.in_words, sep="\n", highlight=False)


def bound(
    source: Annotated[
        Path,
        typer.Argument(
            help="The folder of a finished run; or a configuration with automatic steps.", metavar="RUN|CONFIG"
        ),
    ],
    seconds: Annotated[float, typer.Option(help="Stop measuring after about this long.")] = 60.0,
    allow_code: AllowCode = False,
    devices: OnDevices = None,
) -> None:
    """Compare a run with Theorem 1: the bound's three terms next to the measured gradients.

    The run is repeated from its settings, and the gradient of the whole objective measured at the starts of rounds.
    Writes RUN/bound.html, one self-contained page with both over the iterations.

    With step_size = "auto" and linear blocks, what theory says of scaled steps on this data: L and L_max in scaled
    units, safe steps, and the promise for a step of one length. For that a configuration is enough.
    """
    from tdcd.cli.console import EstimateDisplay, show_bound, show_scaled_bound
    from tdcd.pages.bound import write_page, write_scaled_page
    from tdcd.planning import measure_bound, scaled_bound
    from tdcd.records.run_folder import RunFolder

    display = EstimateDisplay(screen)
    with reported(), interruptible(display):
        config = _configuration(source, [], allow_code=allow_code) if source.exists() else None
        if config is not None and (source.is_file() or config.train.is_automatic):
            where = source if source.is_file() else RunFolder(source).config_file
            scaled = scaled_bound(
                config, str(where), devices=chosen_devices(devices), seconds=seconds, observe=display.observe
            )
            show_scaled_bound(screen, scaled, write_scaled_page(scaled, source) if source.is_dir() else None)
            return
        result = measure_bound(
            source,
            allow_code=allow_code,
            devices=chosen_devices(devices),
            seconds=seconds,
            observe=display.observe,
        )
    show_bound(screen, result, write_page(result))


def compare(
    config: ConfigFile = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help=f"Baselines, with commas between ({', '.join(BASELINES)}), scikit-learn on the joined table of a "
            "trial (logistic, ridge, linear, boosting), or TDCD with other settings: tdcd,overlap=2,phi_bits=8. May be "
            "given several times [default: all baselines].",
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
    configured: Annotated[
        bool, typer.Option("--configured", help="Only the protection that the configuration asks for.")
    ] = False,
    settings: Assignments = None,
    allow_code: AllowCode = False,
    devices: OnDevices = None,
) -> None:
    """Attack what each party would see, in every protection mode, and write one page about what was recovered.

    The federation is simulated for some rounds. Each hub's and each client's transcript is then attacked: columns from
    phi, with and without rows that the attacker knows anyway; labels from slopes; properties of groups of rows;
    membership from losses. Writes audit.html, one self-contained page, and audit.json.
    """
    from tdcd.audit import audit as play
    from tdcd.audit import modes_of
    from tdcd.audit.modes import is_configured
    from tdcd.cli.console import EstimateDisplay, show_audit
    from tdcd.config.resolve import plan as plan_config
    from tdcd.pages.audit import write_page

    display = EstimateDisplay(screen)
    with reported(), interruptible(display):
        config = _configuration(source, settings or [], allow_code=allow_code)
        own = config.federation.label_epsilon
        # The attacks are on true labels; modes randomise them again.
        plain = config.federation.model_copy(update={"label_epsilon": None})
        true = plan_config(config.model_copy(update={"federation": plain}), devices=chosen_devices(devices))
        planned = true._replace(config=config)
        chosen = epsilon if epsilon is not None else own or 1.0
        asked = [mode for mode in modes_of(planned, chosen) if is_configured(mode, planned)] if configured else None
        played = play(planned, rounds=rounds, epsilon=chosen, modes=asked, observe=display.observe)
        page = write_page(played, out or _folder(source, config))
    show_audit(screen, played, page)


def _configuration(source: Path | None, assignments: list[str], *, allow_code: bool) -> Config:
    """The configuration of a file, or the one that a run folder keeps."""
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
