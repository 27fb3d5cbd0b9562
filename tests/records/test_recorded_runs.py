"""What an earlier version has written is read, continued and used: docs/compatibility.md promises it.

``recorded`` has a run folder and a model file of every version that changed what is in them; none is ever written anew.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from support.command import tdcd
from tdcd import Model
from tdcd.records.history import read_history

RECORDED = Path(__file__).with_name("recorded")
VERSIONS = sorted(path.name.removeprefix("run_of_") for path in RECORDED.glob("run_of_*"))
LOSS_OF_ROUND_8 = {"0_1": 0.26951076993422957}
"""As the version itself goes on."""


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def run(version, tmp_path):
    return Path(shutil.copytree(RECORDED / f"run_of_{version}", tmp_path / "run"))


def test_it_is_read_and_as_its_manifest_says(run):
    done = tdcd("verify", "run", cwd=run.parent)
    assert done.exit_code == 0, done.output
    assert "run: as manifest.json says (SHA-256 " in done.stdout
    (run / "report.html").unlink()
    done = tdcd("report", "run", cwd=run.parent)
    assert done.exit_code == 0, done.output
    assert "recorded" in (run / "report.html").read_text()


def test_it_is_continued_as_its_own_version_would(run, version):
    before = [record.without_seconds() for record in read_history(run / "history.jsonl")]
    done = tdcd("run", "--resume", "run", "--set", "train.rounds=8", cwd=run.parent)
    assert done.exit_code == 0, done.output
    after = read_history(run / "history.jsonl")
    assert [record.without_seconds() for record in after[:3]] == before
    assert [record.round for record in after] == [0, 2, 4, 6, 8]
    assert after[-1].train_loss == pytest.approx(LOSS_OF_ROUND_8[version], rel=1e-9)


def test_its_model_predicts_from_folder_and_file(run, version):
    of_folder, of_file = Model.load(run), Model.load(RECORDED / f"model_of_{version}.tdcd")
    rng = np.random.default_rng(0)
    tables = {name: rng.normal(size=(4, len(part.preparation.columns))) for name, part in of_folder.parts.items()}
    scores = of_folder.scores(tables)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(of_file.scores(tables), scores)
