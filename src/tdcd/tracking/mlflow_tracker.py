"""A run in MLflow: on a server, in a database or in a local folder."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tdcd.tracking.tracker import MissingExtraError, RunEnding, TrackedPoint

LONGEST_VALUE, PARAMETERS_AT_ONCE, METRICS_AT_ONCE = 6000, 100, 1000
"""MLflow's own limits."""
FIRST_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""By itself MLflow asks for four minutes: right for a server that restarts, too long for an address that is wrong."""
FOLDERS = {"MLFLOW_ALLOW_FILE_STORE": "true"}
"""MLflow refuses folders unless this is set; a user who names one wants it."""
WAYS = (
    "as installed, tdcd[mlflow] takes --at http://HOST:PORT, a server's address, and --at FOLDER; a database, which is "
    "MLflow's own default, needs the whole of MLflow: pip install mlflow"
)
_STATUS: dict[RunEnding, str] = {"finished": "FINISHED", "diverged": "FAILED", "unfinished": "KILLED"}


class MlflowTracker:
    """One new run of an experiment."""

    def __init__(self, name: str, at: str | None, experiment: str) -> None:
        """Start a run called ``name``.

        Args:
            at: MLflow's tracking URI, or a folder; by default what MLFLOW_TRACKING_URI says.
            experiment: made if it is not there.

        Raises:
            ValueError: MLflow is not installed, or does not take it.
        """
        try:
            from mlflow import MlflowClient  # noqa: PLC0415 - an extra
        except ImportError:
            raise MissingExtraError("mlflow") from None
        from mlflow import get_tracking_uri  # noqa: PLC0415 - an extra

        self._place = f"MLflow at {at or get_tracking_uri()}"
        # Without a scheme, or with one that is a drive's letter, it is a folder.
        scheme = urlsplit(at or get_tracking_uri()).scheme
        is_folder = len(scheme) < 2 or scheme == "file"
        ways = "" if is_folder or scheme.startswith(("http", "databricks")) else WAYS
        settings = {**FIRST_RETRIES, **(FOLDERS if is_folder else {})}
        with _refused(f"{self._place} refuses the run", ways), _environment(settings):
            self._client: Any = MlflowClient(at)
            known = self._client.get_experiment_by_name(experiment)
            number = known.experiment_id if known is not None else self._client.create_experiment(experiment)
            self._run = self._client.create_run(number, run_name=name).info.run_id
        self.where = f"experiment '{experiment}', run {self._run}" + (f", at {at}" if at else "")

    def settings(self, settings: Mapping[str, str]) -> None:
        """Log parameters."""
        from mlflow.entities import Param  # noqa: PLC0415

        given = [Param(key, value[:LONGEST_VALUE]) for key, value in settings.items()]
        with self._taken():
            for part in _parts(given, PARAMETERS_AT_ONCE):
                self._client.log_batch(self._run, params=part)

    def points(self, points: list[TrackedPoint]) -> None:
        """Log metrics, the round as the step."""
        from mlflow.entities import Metric  # noqa: PLC0415

        given = [
            Metric(key, value, int(point.seconds * 1000), point.round)
            for point in points
            for key, value in point.figures.items()
        ]
        with self._taken():
            for part in _parts(given, METRICS_AT_ONCE):
                self._client.log_batch(self._run, metrics=part)

    def file(self, path: Path, folder: str) -> None:
        """Log an artifact."""
        with self._taken():
            self._client.log_artifact(self._run, str(path), folder or None)

    def end(self, ending: RunEnding) -> None:
        """End MLflow's run."""
        with self._taken():
            self._client.set_terminated(self._run, _STATUS[ending])

    def _taken(self) -> AbstractContextManager[None]:
        return _refused(f"{self._place} does not take the run any more")


@contextmanager
def _refused(words: str, ways: str = "") -> Iterator[None]:
    """What MLflow says against it becomes a sentence that begins with ``words`` and ends with the ways that work."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - an extra

    try:
        yield
    except MlflowException as error:
        reason = str(error).strip()
        raise ValueError(f"{words}: {reason.rstrip('.')}; {ways}" if ways else f"{words}: {reason}") from None


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """With MLflow's settings in the environment, but for those that the user has given there."""
    own = {key: value for key, value in settings.items() if key not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for key in own:
            del os.environ[key]


def _parts(items: list[Any], size: int) -> list[list[Any]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
