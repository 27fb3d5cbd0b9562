"""A short rough day of real processes; ``campaign.py`` and ``scenarios.py`` are the long ones."""

import json

import pytest
import scenarios
from processes import Processes, reference

from support.command import tdcd

KEYS = {"rounds": 500, "evaluate": {"every": 10}}


def status_of(folder, *options):
    return tdcd("status", *options, folder, cwd=folder)


@pytest.mark.slow
def test_a_rough_day_ends_with_the_history_of_a_quiet_one(tmp_path):
    expected = reference(tmp_path / "quiet", **KEYS)
    with Processes(tmp_path / "rough", link=scenarios.LINK, **KEYS) as parties:
        parties.proxy.delay_s = 0.03
        parties.start_all()
        parties.until(lambda: min(parties.rounds()) >= 1, "the first round")
        scenarios.stopped_client(parties, 4)
        scenarios.cut_link(parties, 1)
        scenarios.corrupted_link(parties)
        scenarios.failpoint(parties, "hub.lab", "save.half:5")
        scenarios.failpoint(parties, "client.clinic.c1", "send.block.before:2")
        scenarios.killed(parties, "hub.clinic", "client.lab.south")
        scenarios.terminated(parties, "hub.lab")
        assert not parties.is_over
        parties.check(expected)
        status = status_of(parties.trial.folder)
        assert status.exit_code == 0
        assert "hub.lab: " in status.stdout
        assert "alive" in status.stdout
        parties.proxy.delay_s = 0.0
        parties.until(lambda: parties.is_over, "the end")
        assert all(history == expected for history in parties.histories())
        facts = [json.loads(line) for line in status_of(parties.trial.folder, "--json").stdout.splitlines()]
        assert [(fact["status"], fact["alive"], fact["round"]) for fact in facts] == [("finished", False, 500)] * 2


def test_status_of_what_is_no_hub_folder(tmp_path):
    found = status_of(tmp_path)
    assert found.exit_code == 2
    assert f"{tmp_path} has no status.json: give the run folder of a hub" in found.stderr


@pytest.mark.parametrize("content", ["", "5", "null", "[]", "{}", '{"party": "hub.lab"}', '{"party": '])
def test_status_of_a_damaged_file(tmp_path, content):
    (tmp_path / "status.json").write_text(content)
    found = status_of(tmp_path)
    assert found.exit_code == 2
    assert f"{tmp_path / 'status.json'} is damaged" in found.stderr.replace("\n", "")
