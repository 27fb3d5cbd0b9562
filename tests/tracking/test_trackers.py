"""``tdcd track``: what MLflow's store and TensorBoard's event files say, read back."""

import builtins
import json
import os
import shutil
import socket
import struct
import threading
from pathlib import Path

import pytest

from support.command import tdcd
from tdcd.core.ledger import Traffic
from tdcd.prediction.model import Model
from tdcd.records.history import Record, read_history
from tdcd.records.manifest import Manifest
from tdcd.records.run_folder import RunFolder
from tdcd.tracking.tracker import HistoryLines, track

LINEAR = ["--set", "data.source=diabetes", "--set", "model.block=linear", "--set", "train.batch_size=32"]
KEPT = {"config.toml", "federation.json", "history.jsonl", "labels.json", "manifest.json", "model", "preparation"}

# What these packages warn of at import is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked") / "run"
    settings = ["--set", "train.rounds=6", "--set", "evaluate.every=3", "--out", folder]
    done = tdcd("run", *LINEAR, *settings, cwd=folder.parent)
    assert done.exit_code == 0, done.output
    return folder


def events_in(folder):
    """Every event of TensorBoard's files: length, checksum, message, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in folder.glob("events.out.tfevents.*"):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def test_tensorboard_has_every_figure_of_every_round(run, tmp_path):
    pytest.importorskip("tensorboardX", reason='needs the extra: pip install "tdcd[tensorboard]"')
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    done = tdcd("track", run, "--to", "tensorboard", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    assert "tensorboard --logdir tensorboard/run" in done.stdout
    scalars, texts = {}, {}
    for event in events_in(tmp_path / "tensorboard" / "run"):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars[value.tag, event.step] = value.simple_value
            else:
                texts[value.tag.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()
    history = read_history(run / "history.jsonl")
    for record in history:
        assert scalars["train/loss", record.round] == pytest.approx(record.train_loss)
        assert scalars["test/r2", record.round] == pytest.approx(record.metrics["test"]["r2"])
        assert scalars["bytes/total", record.round] == record.bytes.total
    assert {step for _, step in scalars} == {0, 3, 6}
    assert "| train.rounds | 6 |" in texts["settings"]
    assert '"sessions"' in texts["manifest.json"]
    again = tdcd("track", run, "--to", "tensorboard", cwd=tmp_path)
    assert again.exit_code == 2
    assert "tensorboard/run is there already and is not an empty folder: choose another --at" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.fixture
def store(tmp_path, monkeypatch):
    """MLflow's own store in a local folder."""
    pytest.importorskip("mlflow", reason='needs the extra: pip install "tdcd[mlflow]"')
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    return (tmp_path / "mlruns").as_uri()


def test_mlflow_has_settings_figures_model_and_manifest(run, store, tmp_path, monkeypatch):
    done = tdcd("track", run, "--to", "mlflow", "--at", store, "--experiment", "credit", cwd=tmp_path)
    assert done.exit_code == 0, done.output
    from mlflow import MlflowClient

    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(store)
    (found,) = client.search_runs([client.get_experiment_by_name("credit").experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["train.rounds"] == "6"
    losses = client.get_metric_history(found.info.run_id, "train/loss")
    history = read_history(run / "history.jsonl")
    assert [(one.step, one.value) for one in losses] == [(one.round, one.train_loss) for one in history]
    kept = Path(client.download_artifacts(found.info.run_id, "", str(tmp_path)))
    names = {path.name for path in kept.iterdir()} - {"mlruns"}
    assert names == KEPT | {"report.html", "subsets.json"}
    assert json.loads((kept / "manifest.json").read_text()) == json.loads((run / "manifest.json").read_text())
    assert Model.load(kept).label_encoding == Model.load(run).label_encoding


@pytest.mark.usefixtures("store")
def test_a_refusal_of_mlflow_is_a_sentence_with_the_ways_that_work(run, tmp_path):
    done = tdcd("track", run, "--to", "mlflow", "--at", "moon://base", cwd=tmp_path)
    assert done.exit_code == 2
    assert "Error: MLflow at moon://base refuses the run: " in done.stderr
    assert (
        "; as installed, tdcd[mlflow] takes --at http://HOST:PORT, a server's address, and --at FOLDER;" in done.stderr
    )


def test_a_server_that_is_not_there_is_soon_named(run, store, tmp_path):
    """MLflow by itself asks again and again for four minutes, which is for a server that is away for a while."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        calls, address = [], f"http://127.0.0.1:{listening.getsockname()[1]}"

        def hang_up():
            while True:
                try:
                    calls.append(listening.accept()[0].close())
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        done = tdcd("track", run, "--to", "mlflow", "--at", address, cwd=tmp_path)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert done.exit_code == 2
    assert f"Error: MLflow at {address} refuses the run: " in done.stderr
    assert 1 < len(calls) < 6


def test_a_store_that_fails_in_between_is_a_sentence(run, store, tmp_path):
    from tdcd.tracking.mlflow_tracker import MlflowTracker

    tracker = MlflowTracker("run", store, "credit")
    shutil.rmtree(next((tmp_path / "mlruns").glob("*/*/meta.yaml")).parent)
    with pytest.raises(ValueError, match=r"^MLflow at file:.*/mlruns does not take the run any more: Run .* not found"):
        track(RunFolder.open(run), tracker)


@pytest.mark.parametrize("extra", ["mlflow", "tensorboard"])
def test_a_missing_extra_is_named(run, tmp_path, monkeypatch, extra):
    found = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] in ("mlflow", "tensorboardX"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    done = tdcd("track", run, "--to", extra, cwd=tmp_path)
    assert done.exit_code == 2
    assert f'--to {extra} needs a package that is not installed: pip install "tdcd[{extra}]"' in done.stderr


class Listed:
    """A tracker that keeps what it is told, and says when a round has come."""

    where = "a list"

    def __init__(self):
        self.rounds, self.files, self.given = [], [], {}
        self.news = threading.Condition()

    def settings(self, settings):
        self.given = settings

    def points(self, points):
        with self.news:
            self.rounds += [point.round for point in points]
            self.news.notify_all()

    def file(self, path, folder):
        self.files.append((folder, path.name))

    def end(self, ending):
        self.ending = ending

    def wait_for(self, index):
        with self.news:
            assert self.news.wait_for(lambda: index in self.rounds, timeout=120)


def record(index):
    return Record(index, index, 1.0, None, {"train": {"r2": None}}, Traffic(), Traffic(), 0.0)


def test_a_run_is_followed_until_it_ends(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"train": {"rounds": 4}, "silos": [{"name": "a"}]}, {})
    manifest, tracker = Manifest(run), Listed()
    manifest.begin("simulation")
    run.append(record(0))
    thread = threading.Thread(target=track, args=(run, tracker), kwargs={"live": True})
    thread.start()
    tracker.wait_for(0)
    run.append(record(2))
    tracker.wait_for(2)
    run.append(record(4))
    run.write_report("<p>")
    manifest.seal()
    thread.join(120)
    assert tracker.rounds == [0, 2, 4]
    assert tracker.ending == "finished"
    assert tracker.given == {"train.rounds": "4", "silos": '[{"name": "a"}]'}
    assert ("", "report.html") in tracker.files


def test_lines_that_are_written_again_are_not_reported_twice(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"train": {"rounds": 4}}, {})
    lines = HistoryLines(run.history_file)
    for index in (0, 2, 3):
        run.append(record(index))
    assert [one.round for one in lines.new()] == [0, 2, 3]
    run.rewrite_history([record(0), record(2)])
    assert [*lines.new()] == []
    whole = record(4).to_json() + "\n"
    for part, told in ((whole[:20], []), (whole[20:], [4])):
        with run.history_file.open("a") as file:
            file.write(part)
        assert [one.round for one in lines.new()] == told
    # Dropped, and longer than before at the next look: the reader is in the middle of a line.
    run.rewrite_history([record(0), *(record(10 + index) for index in range(9))])
    assert [one.round for _ in range(2) for one in lines.new()] == [*range(10, 19)]
    with run.history_file.open("a") as file:
        file.write("no record\n")
    with pytest.raises(ValueError, match=r"history.jsonl has a line that is not a history record"):
        [*HistoryLines(run.history_file).new()]


class Kept:
    """A tracker that only remembers."""

    where = "here"

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *values: self.told.append((name, *values))


@pytest.mark.parametrize("name", ["config.toml", "history.jsonl", "report.html", "model/silo1.safetensors", "model"])
def test_links_in_a_run_folder_are_refused_before_anything_is_sent(run, tmp_path, name):
    shutil.copytree(run, tmp_path / "run")
    linked = tmp_path / "run" / name
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    tracker = Kept()
    with pytest.raises(ValueError, match=r"is a link, or is in a linked folder, and is not copied") as refused:
        track(RunFolder.open(tmp_path / "run"), tracker)
    assert str(linked) in str(refused.value)
    assert not tracker.told


def test_the_run_folder_itself_may_be_a_link(run, tmp_path):
    (tmp_path / "latest").symlink_to(run)
    tracker = Kept()
    assert track(RunFolder.open(tmp_path / "latest"), tracker) == "finished"
    assert tmp_path / "latest" / "report.html" in [told[1] for told in tracker.told if told[0] == "file"]
