"""``tdcd track``: a run in MLflow or TensorBoard."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tdcd.cli.terminal import EXIT_INTERRUPTED, reported, screen, stoppable

if TYPE_CHECKING:
    from tdcd.tracking.tracker import Tracker


class To(StrEnum):
    """The trackers."""

    mlflow = "mlflow"
    tensorboard = "tensorboard"


def track(
    folder: Annotated[Path, typer.Argument(help="A run folder; of real parties, a hub's.", metavar="RUN")],
    to: Annotated[To, typer.Option(help="Each is an extra: pip install 'tdcd[mlflow]' or 'tdcd[tensorboard]'.")],
    at: Annotated[
        str | None,
        typer.Option(
            help="MLflow: its tracking URI [default: MLFLOW_TRACKING_URI]. TensorBoard: the new folder of event files "
            "[default: tensorboard/RUN].",
            show_default=False,
        ),
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow: the experiment that the run is added to.")] = "tdcd",
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run ends.")] = False,
) -> None:
    """Copy a run into MLflow or TensorBoard: settings, figures per round, report, model and manifest.

    The run folder is only read. Ids, labels and predictions of single samples, held-out.csv, stay there, and so does
    the key of the manifest.

    Exit status: 0 done, 2 bad input, 130 interrupted.
    """
    from tdcd.records.run_folder import RunFolder
    from tdcd.tracking.follow import track as track_run

    asked: list[bool] = []
    with reported(), stoppable(lambda: asked.append(True)):
        run = RunFolder.open(folder)
        tracker = _tracker(to, run.path.absolute().name, at, experiment)
        screen.print(Text(f"Tracked in {tracker.where}"), soft_wrap=True)
        ending = track_run(run, tracker, live=follow, should_stop=lambda: bool(asked))
    screen.print(Text(f"The run is {ending}."), soft_wrap=True)
    if asked:
        raise typer.Exit(EXIT_INTERRUPTED)


def _tracker(to: To, name: str, at: str | None, experiment: str) -> "Tracker":
    if to is To.mlflow:
        from tdcd.tracking.mlflow_tracker import MlflowTracker

        return MlflowTracker(name, at, experiment)
    from tdcd.tracking.tensorboard_tracker import TensorboardTracker

    return TensorboardTracker(Path(at) if at else Path("tensorboard") / name)
