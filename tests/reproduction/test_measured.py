"""Times of real processes on the page, from the benchmark's file."""

import json
import math

import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.pages.reproduction import write_page
from tdcd.reproduction.results import MeasuredTimes, read_measured

pytestmark = pytest.mark.quick

IN_STEP = {"label": "in step", "rounds": [0, 5, 10], "losses": [1.0, 0.5, 0.4]}
FOUND = {
    "about": "2 silos & more",
    "curves": [
        IN_STEP | {"seconds": [0.0, 2.0, 4.0], "predicted": [0.0, 1.8, 3.6]},
        IN_STEP
        | {"label": "both", "losses": [1.0, 0.4, 0.3], "seconds": [0.0, 1.0, 2.0], "predicted": [0.0, 0.9, 1.8]},
        IN_STEP | {"label": "bad", "losses": [1.0, 0.9, 0.9], "seconds": [0.0, 1.0, 2.0], "predicted": [0.0, 0.9, 1.8]},
    ],
    "overlap_gain": 1.8,
}


def test_predicted_and_measured_time_side_by_side(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"stragglers": FOUND}))
    section = write_page(tmp_path, {}, measured=read_measured(path)).read_text(encoding="utf-8")
    assert section.count("<svg") == 2
    assert "predicted seconds" in section
    assert "measured seconds" in section
    assert "2 silos &amp; more" in section
    assert "400 ms" in section
    assert "never" in section


def test_when_the_loss_of_another_run_is_reached():
    plain, both, bad = MeasuredTimes.model_validate(FOUND).curves
    assert both.until(plain.losses[-1], both.seconds) == 1.0
    assert both.until(0.7, both.seconds) == pytest.approx(0.5)
    assert both.until(2.0, both.seconds) == 0.0
    assert bad.until(plain.losses[-1], bad.predicted) == math.inf


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"stragglers": {"about": "", "curves": 3}}'])
def test_another_file_is_refused_with_the_command_that_writes_one(tmp_path, text):
    (tmp_path / "figures.json").write_text(text)
    with pytest.raises(ValueError, match=r"figures\.json has no measured times: .* benchmarks stragglers --json"):
        read_measured(tmp_path / "figures.json")


@pytest.mark.slow  # the command imports scipy.stats, which takes longer than all tests of this module
def test_a_file_that_is_not_there_ends_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["reproduce", "stragglers", "--measured", "none.json"])
    assert told.exit_code == 2
    assert "none.json cannot be read: No such file or directory" in told.output
    assert [*tmp_path.iterdir()] == []
