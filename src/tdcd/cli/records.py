"""``tdcd verify``, ``tdcd spent`` and ``tdcd track``: what is there of runs, checked, added up and copied elsewhere."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tdcd.cli.options import AllowCode, OnDevices, chosen_devices, interruptible
from tdcd.cli.terminal import EXIT_INTERRUPTED, reported, screen, stoppable

if TYPE_CHECKING:
    from tdcd.records.manifest import Manifest
    from tdcd.records.run_folder import RunFolder
    from tdcd.tracking.tracker import Tracker

EXIT_DIFFERS = 1


def verify(
    folder: Annotated[Path, typer.Argument(help="A run folder, a sweep's, or that of `tdcd up`.", metavar="RUN")],
    replay: Annotated[bool, typer.Option("--replay", help="Also train again from config.toml and compare.")] = False,
    allow_code: AllowCode = False,
    devices: OnDevices = None,
    log: Annotated[
        bool, typer.Option("--log", help="Check the log in the folder of a party that stands by, entry by entry.")
    ] = False,
) -> None:
    """Check a run folder against its manifest.json, and name every file that is not as the run left it.

    With --replay, train again from its config.toml into a temporary folder, and compare history and model bit for
    bit. They are the same with the same versions on the same kind of machine; where they are not, both are named. A
    run of real parties, or of several at once in a sweep, is simulated by itself, and compared up to rounding.

    With --log, check the log of a party that stands by: every entry is signed, and follows the one before.

    Exit status: 0 everything is as it was, 1 something differs, 2 bad input: no manifest, or a run that is not over.
    """
    from tdcd.records.manifest import differences

    if log:
        from tdcd.cli.standing import verify_log

        with reported():
            if replay or allow_code or devices is not None:
                raise ValueError("--log checks the log of a party that stands by, and nothing else: give it alone")
            verify_log(folder)
        return
    problems: list[str] = []
    with reported():
        for manifest in _manifests(folder):
            changed = differences(manifest)
            problems += _shown(
                manifest.run.path, changed, f"as {manifest.file.name} says (SHA-256 {manifest.fingerprint})"
            )
            if replay and not changed and manifest.run.path.parent.name != "silos":
                problems += _replayed(manifest, devices, allow_code=allow_code)
    if problems:
        raise typer.Exit(EXIT_DIFFERS)


def _manifests(folder: Path) -> list["Manifest"]:
    """The manifests of the folder itself and the hubs in it, or of every run of a sweep."""
    from tdcd.records.manifest import Manifest
    from tdcd.records.run_folder import RunFolder, SweepFolder

    sweep = SweepFolder(folder)
    if sweep.file.is_file():
        return [Manifest(RunFolder.open(folder / name)) for name in sweep.begun_runs()]
    hubs = sorted(path.parent for path in folder.glob("silos/*/manifest.json"))
    return [Manifest(RunFolder.open(path)) for path in (folder, *hubs)]


def _replayed(manifest: "Manifest", devices: int | None, *, allow_code: bool) -> list[str]:
    """How a second training differs; with the versions and machines of both if it does."""
    from tdcd.cli.console import RunDisplay
    from tdcd.records.manifest import hardware, versions
    from tdcd.training.run import CLOSE, replay

    display, run = RunDisplay(screen), manifest.run
    sessions = manifest.read()["sessions"]
    is_simulated = all(session["by"] == "simulation" for session in sessions)
    within = 0.0 if is_simulated else CLOSE[run.config().get("dtype", "float32")]
    with TemporaryDirectory() as scratch, interruptible(display):
        changed = replay(
            run,
            Path(scratch) / "run",
            within=within,
            allow_code=allow_code,
            devices=chosen_devices(devices),
            observe=display.observe,
            should_stop=display.should_stop,
        )
    if changed:
        for session in sessions:
            words = f"made by {session['by']} {_made_with(session['versions'], session['hardware'])}"
            changed.append(f"{words}; here: {_made_with(versions(), hardware())}")
    made_by = sessions[0]["by"]
    precision = "bit for bit" if is_simulated else f"within {within:g}; {made_by} adds up in another order"
    return _shown(run.path, changed, f"trained again: the same history and model, {precision}{_proven(run)}")


def _proven(run: "RunFolder") -> str:
    """What the last line of the history proves, computed again."""
    from tdcd.core.certificate import in_words

    last = run.history()[-1]
    words = in_words(last.gap, last.gradient_norm)
    return f"; the training loss is {words}" if last.gap is not None else f"; {words}" if words else ""


def _made_with(versions: Mapping[str, Any], hardware: Mapping[str, Any]) -> str:
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"with {named} on {hardware['cpu']} ({hardware['device']}, {hardware['devices']} of them)"


def _shown(path: Path, changed: list[str], good: str) -> list[str]:
    for line in changed:
        screen.print(Text(f"{path}: {line}", "red"), soft_wrap=True)
    if not changed:
        screen.print(Text(f"{path}: {good}"), soft_wrap=True)
    return changed


class TrackerName(StrEnum):
    """The trackers."""

    mlflow = "mlflow"
    tensorboard = "tensorboard"


def track(
    folder: Annotated[Path, typer.Argument(help="A run folder; of real parties, a hub's.", metavar="RUN")],
    to: Annotated[
        TrackerName, typer.Option(help="Each is an extra: pip install 'tdcd[mlflow]' or 'tdcd[tensorboard]'.")
    ],
    at: Annotated[
        str | None,
        typer.Option(
            help="MLflow: its tracking URI [default: MLFLOW_TRACKING_URI]. TensorBoard: the new folder of event files "
            "[default: tensorboard/RUN].",
            show_default=False,
        ),
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow: the experiment that the run is added to.")] = "tdcd",
    follow: Annotated[bool, typer.Option("--follow", help="Continue until the run ends.")] = False,
) -> None:
    """Copy a run into MLflow or TensorBoard: settings, figures per round, report, model and manifest.

    The run folder is only read. Ids, labels and predictions of single samples, held-out.csv, stay there, and so does
    the key of the manifest.

    Exit status: 0 done, 2 bad input, 130 interrupted.
    """
    from tdcd.records.run_folder import RunFolder
    from tdcd.tracking.tracker import track as track_run

    asked: list[bool] = []
    with reported(), stoppable(lambda: asked.append(True)):
        run = RunFolder.open(folder)
        tracker = _tracker(to, run.path.absolute().name, at, experiment)
        screen.print(Text(f"Tracked in {tracker.where}"), soft_wrap=True)
        ending = track_run(run, tracker, live=follow, should_stop=lambda: bool(asked))
    screen.print(Text(f"The run is {ending}."), soft_wrap=True)
    if asked:
        raise typer.Exit(EXIT_INTERRUPTED)


def spent(
    file: Annotated[Path, typer.Argument(help="The file that a hub was given with --account.", metavar="ACCOUNT")],
    as_json: Annotated[bool, typer.Option("--json", help="The sums as JSON.")] = False,
) -> None:
    """Say what a silo's runs have spent of its rows and labels: run by run, and in all.

    Epsilon of a row's phi is by given blocks, see docs/privacy.md; a run that has not ended counts in full. Each line
    has a digest of those before it, and one that is missing or was changed is named.
    """
    from tdcd.cli.console import show_table
    from tdcd.runtime.storage.account import Account, Totals, account_table, account_totals, as_facts

    with reported():
        if not file.exists():
            raise FileNotFoundError(f"{file}: there is no such file: give the one that a hub was given with --account")
        lines = Account(file).read()
        totals = Totals.of(lines)
        table = account_table(lines)
    if as_json:
        print(as_facts(totals))
        return
    show_table(screen, table)
    screen.print(account_totals(totals), soft_wrap=True, highlight=False)


def _tracker(to: TrackerName, name: str, at: str | None, experiment: str) -> "Tracker":
    if to is TrackerName.mlflow:
        from tdcd.tracking.mlflow_tracker import MlflowTracker

        return MlflowTracker(name, at, experiment)
    from tdcd.tracking.tensorboard_tracker import TensorboardTracker

    return TensorboardTracker(Path(at) if at else Path("tensorboard") / name)
