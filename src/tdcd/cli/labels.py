"""``tdcd labels``: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.federation import Force
from tdcd.cli.terminal import refuse_existing, reported, screen, show_labels
from tdcd.config import ConfigError, check_config, read_config


def labels(
    federation: Annotated[Path, typer.Argument(help="The federation's TOML file.", metavar="FEDERATION.toml")],
    silo: Annotated[str, typer.Option(help="The organisation that the labels come from, as the file calls it.")],
    data: Annotated[Path, typer.Option(help="Its table with ids and true labels, CSV or Parquet.")],
    out: Annotated[Path, typer.Option(help="The table of randomised labels to write, .csv or .parquet.")],
    key: Annotated[Path, typer.Option(help="The secret to draw with. It is made if it is not there; keep it.")] = Path(
        "labels.key"
    ),
    force: Force = False,
) -> None:
    """Randomise labels once, so that they can be shared: every client then reads OUT with `tdcd client --labels OUT`.

    `federation.label_epsilon` says how much. Give OUT to the others, never the key or the true labels. With the same
    key the same labels come out; another key is a second release of the same labels, which doubles epsilon.

    Exit status: 0 done, 2 bad input.
    """
    from tdcd.runtime.storage.keys import NEW_KEY, label_key  # noqa: PLC0415 - see tdcd.cli.app
    from tdcd.tables.client_table import read_labels, taken_for  # noqa: PLC0415
    from tdcd.tables.labels import canonical_label  # noqa: PLC0415
    from tdcd.tables.randomized import randomized_labels, write_randomized  # noqa: PLC0415
    from tdcd.tables.writing import check_name  # noqa: PLC0415

    with reported():
        config = check_config(read_config(federation), str(federation))
        epsilon = config.federation.label_epsilon
        if epsilon is None:
            raise ConfigError(["federation.label_epsilon: is missing; it says how much to randomise"], str(federation))
        check_name(out)
        refuse_existing(out, force)
        true = read_labels(config, silo, data)
        assert true.labels is not None
        is_new = not key.exists()
        drawn = randomized_labels(config, true.labels, true.ids, label_key(key), str(data))
        section = next(one for one in config.silos if one.name == silo)
        weights = None if true.weights is None else (section.weight or "", true.weights.tolist())
        names = [canonical_label(one) for one in drawn]
        write_randomized(out, (section.id, section.label or ""), true.ids, names, epsilon, weights)
        words = taken_for(config, true)
    show_labels(words)
    screen.print(f"Randomised labels: {out}\nKeep secret:       {key}", soft_wrap=True, highlight=False)
    if is_new:
        screen.print(f"Warning: {NEW_KEY}", style="yellow", soft_wrap=True, highlight=False)
