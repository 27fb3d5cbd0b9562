"""``tdcd audit`` as a user runs it, on a configuration and on a run folder."""

import json

import pytest

from support import command
from tdcd.config import check_config, read_config
from tdcd.training.run import run

SETTINGS = (
    '[data]\nsource = "diabetes"\n[federation]\nclients = 2\n[model]\nblock = "linear"\n'
    "[train]\nrounds = 4\nlocal_steps = 2\nbatch_size = 64\n"
)


@pytest.fixture
def tdcd(tmp_path):
    (tmp_path / "small.toml").write_text(SETTINGS)

    def call(*arguments):
        return command.tdcd(*arguments, cwd=tmp_path)

    return call


def words(text):
    """The output without its line breaks."""
    return " ".join(text.split())


def test_a_configuration_and_its_run_give_the_same_audit(tdcd, tmp_path):
    run(check_config(read_config(tmp_path / "small.toml")), tmp_path / "r")
    of_run, of_file = tdcd("audit", "r", "--rounds", "3"), tdcd("audit", "small.toml", "--rounds", "3")
    for done, page in ((of_run, "r/audit.html"), (of_file, "runs/audit-small/audit.html")):
        assert done.exit_code == 0, done.stderr
        shown = words(done.stdout)
        for expected in ("labels everywhere", "labels at silo1", "own hub", "has them", f"Page: {page}"):
            assert expected in shown
        assert (tmp_path / page).read_text().startswith("<!DOCTYPE html>")
    numbers = [json.loads((tmp_path / at / "audit.json").read_text()) for at in ("r", "runs/audit-small")]
    assert numbers[0] == numbers[1]
    assert numbers[0]["rounds"] == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["small.toml", "--set", "federation.silos=1"],
            "there is one silo, and no other party that could see anything",
        ),
        (["small.toml", "--rounds", "1"], "rounds = 1: an audit needs 2 rounds or more"),
        (["."], ". is not a run folder: it has no config.toml"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_bad_input_is_status_2(tdcd, arguments, sentence):
    failed = tdcd("audit", *arguments)
    assert failed.exit_code == 2
    assert sentence in words(failed.stderr)
    assert "Traceback" not in failed.stderr
