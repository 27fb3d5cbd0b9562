"""``tdcd track --to mlflow`` against MLflow's own server on a local file store, read back by MLflow's client.

It is skipped where only ``mlflow-skinny`` is installed, the client: the server is in the package ``mlflow``.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from support.command import tdcd
from tdcd.config import check_config
from tdcd.prediction.model import Model
from tdcd.records.history import read_history
from tdcd.training.run import run

pytest.importorskip("mlflow", reason="needs MLflow: pip install mlflow")
pytest.importorskip("flask", reason="needs MLflow's server: pip install mlflow")

# What these packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

PATIENCE_S = 120
CONFIG = {
    "data": {"source": "diabetes"},
    "silos": [{"name": "clinic", "clients": 2}, {"name": "lab", "clients": 2}],
    "model": {"block": "linear"},
    "train": {"rounds": 6, "local_steps": 3, "batch_size": 32, "step_size": 0.05},
    "evaluate": {"every": 2},
}
FIGURES = {"train/loss", "test/loss", "train/rmse", "train/r2", "test/rmse", "test/r2", "seconds"}
LINKS = {"bytes/client_to_hub", "bytes/hub_to_client", "bytes/hub_to_hub", "bytes/total"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Its address, which answers."""
    home = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    places = ["--backend-store-uri", (home / "store").as_uri(), "--artifacts-destination", (home / "files").as_uri()]
    allowed = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"}
    with (home / "log").open("w") as log:
        # A session of its own, so that its workers end with it.
        process = subprocess.Popen(
            [*command, *places], env=allowed, cwd=home, stdout=log, stderr=log, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(address), process)
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(PATIENCE_S)


def answers(address):
    try:
        with urlopen(f"{address}/health"):
            return True
    except URLError:
        return False


def wait_until(is_so, process):
    """For something that another process does."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def only_run(client, experiment):
    (found,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return found


def test_a_server_has_settings_figures_report_model_and_manifest(server, tmp_path):
    from mlflow import MlflowClient

    folder = tmp_path / "run"
    assert run(check_config(CONFIG), folder).status == "finished"
    assert tdcd("report", folder, cwd=tmp_path).exit_code == 0
    done = tdcd("track", folder, "--to", "mlflow", "--at", server, "--experiment", "credit", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    client = MlflowClient(server)
    found = only_run(client, "credit")
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["train.rounds"] == "6"
    assert json.loads(found.data.params["silos"])[0]["name"] == "clinic"
    history = read_history(folder / "history.jsonl")
    assert set(found.data.metrics) == FIGURES | LINKS
    for name, expected in {
        "train/loss": [record.train_loss for record in history],
        "test/r2": [record.metrics["test"]["r2"] for record in history],
        "bytes/total": [record.bytes.total for record in history],
    }.items():
        points = sorted(client.get_metric_history(found.info.run_id, name), key=lambda point: point.step)
        assert [(point.step, point.value) for point in points] == [
            (record.round, value) for record, value in zip(history, expected, strict=True)
        ]
    (tmp_path / "back").mkdir()
    kept = Path(client.download_artifacts(found.info.run_id, "", str(tmp_path / "back")))
    for name in ("report.html", "manifest.json", "model/clinic.safetensors", "history.jsonl"):
        assert (kept / name).read_bytes() == (folder / name).read_bytes()
    assert not (kept / "held-out.csv").exists()
    assert not (kept / "manifest.key").exists()
    assert Model.load(kept).label_encoding == Model.load(folder).label_encoding


def test_a_run_is_followed_on_a_server(server, tmp_path):
    """The training waits in every evaluation until MLflow has it."""
    from mlflow import MlflowClient

    client, folder, followers = MlflowClient(server), tmp_path / "live", []
    place = ["--to", "mlflow", "--at", server, "--experiment", "live", "--follow"]

    def observe(progress):
        if progress.record is None:
            return
        if not followers:
            command = [sys.executable, "-m", "tdcd", "track", str(folder), *place]
            followers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        wait_until(lambda: progress.round in rounds_of(client, "live"), followers[0])

    assert run(check_config(CONFIG), folder, observe=observe).status == "finished"
    assert only_run(client, "live").info.status == "RUNNING"
    assert tdcd("report", folder, cwd=tmp_path).exit_code == 0
    assert "The run is finished." in followers[0].communicate(timeout=PATIENCE_S)[0]
    found = only_run(client, "live")
    assert found.info.status == "FINISHED"
    assert rounds_of(client, "live") == [0, 2, 4, 6]
    kept = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert {"report.html", "manifest.json", "model"} <= kept


def rounds_of(client, experiment):
    """The rounds whose training loss has arrived."""
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id]) if found else []
    return sorted(point.step for one in runs for point in client.get_metric_history(one.info.run_id, "train/loss"))
