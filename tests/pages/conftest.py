"""Run folders of known content, written to disk as a run would."""

import json
from pathlib import Path

import pytest
from run_folders import CONFIG, falling, silo


@pytest.fixture
def make_run(tmp_path):
    """Write a run folder: its name, data set's name, silos and history lines may be chosen."""

    def make(name="digits", silos=None, history=None, folder="run") -> Path:
        path = tmp_path / folder
        path.mkdir()
        (path / "config.toml").write_text(CONFIG)
        silos = silos or [silo("silo1", [8, 4], [288] * 3 + [287] * 2), silo("silo2", [8, 4], [900, 538])]
        described = {"name": name, "num_samples": 1438, "num_test": 359, "silos": silos}
        (path / "federation.json").write_text(json.dumps(described))
        lines = falling() if history is None else history
        (path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return make
