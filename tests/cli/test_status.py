"""``tdcd status``: a hub's time as a bar, and the age of the phi that it uses."""

import json

import pytest
from typer.testing import CliRunner

from tdcd.cli.app import app
from tdcd.cli.federation import CELLS
from tdcd.records.timeline import Timeline

pytestmark = pytest.mark.quick

FACTS = {
    "party": "hub.lab",
    "phase": "exchanging",
    "round": 9,
    "rounds": 20,
    "train_loss": 0.5,
    "test_loss": None,
    "connected": ["hub.clinic"],
    "refused": {},
    "last_error": "",
    "status": "finished",
    "pid": 1,
}


@pytest.fixture
def hub(tmp_path):
    (tmp_path / "status.json").write_text(json.dumps(FACTS))
    return tmp_path


def lines_of(folder, *options):
    done = CliRunner().invoke(app, ["status", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def time_of(folder):
    (line,) = [line for line in lines_of(folder) if line.startswith("  time ")]
    return line.removeprefix("  time        ")


def half_waiting(*parties):
    """All work in the first half of the time, and none in the second."""
    timeline = Timeline("hub.lab", "nonce")
    for number in range(4):
        timeline.add(number, 1000.0 + number, 1001.0 + number)
    for number in range(4):
        timeline.add(4 + number, 1004.0 + number, 1005.0 + number, [parties[number % len(parties)]])
    return timeline


def test_the_bar_is_high_where_the_hub_worked(hub):
    (hub / "timeline.json").write_bytes(half_waiting("hub.clinic").to_json())
    assert time_of(hub) == "█" * (CELLS // 2) + " " * (CELLS // 2) + "  worked 50 %, waited 50 %, for hub.clinic"


def test_it_names_the_party_that_it_waited_for_most(hub):
    (hub / "timeline.json").write_bytes(half_waiting("hub.bank", "hub.clinic", "hub.clinic").to_json())
    assert time_of(hub).endswith("  worked 50 %, waited 50 %, most of it for hub.bank")


def test_a_little_waiting_shows_below_the_top(hub):
    timeline = Timeline("hub.lab", "nonce")
    timeline.add(0, 1000.0, 1000.97)
    timeline.add(0, 1000.97, 1001.0, ["hub.clinic"])
    (hub / "timeline.json").write_bytes(timeline.to_json())
    assert time_of(hub).startswith("▇" * CELLS)


def test_a_hub_that_did_not_run_leaves_dots(hub):
    timeline = half_waiting("hub.clinic")
    timeline.add(7, 1024.0, 1032.0)
    (hub / "timeline.json").write_bytes(timeline.to_json())
    assert time_of(hub).startswith("███   " + "·" * 12 + "██████")


def test_the_seconds_are_in_the_json(hub):
    (hub / "timeline.json").write_bytes(half_waiting("hub.clinic").to_json())
    facts = json.loads(lines_of(hub, "--json")[0])
    assert (facts["worked_s"], facts["waited_s"]) == (4.0, {"hub.clinic": 4.0})


def test_before_the_first_round_there_is_no_bar(hub):
    assert not any("time" in line for line in lines_of(hub))
    (hub / "timeline.json").write_bytes(Timeline("hub.lab", "nonce").to_json())
    assert not any("time" in line for line in lines_of(hub))


def test_a_damaged_timeline_gets_a_sentence(hub):
    (hub / "timeline.json").write_text("[]")
    assert time_of(hub).startswith(f"{hub / 'timeline.json'} is damaged and is not used: ")
    assert "worked_s" not in json.loads(lines_of(hub, "--json")[0])


def test_the_age_of_phi(hub):
    (hub / "status.json").write_text(json.dumps({**FACTS, "phi_age": {"clinic": 1, "bank": 3}}))
    assert "  uses phi    of clinic: 1 round old; of bank: 3 rounds old" in lines_of(hub)


def test_a_finished_hub_says_why_it_ended_and_what_is_proven_of_its_model(hub):
    words = "converged after round 9: the training loss changes by less than 0.01 % in 10 rounds"
    (hub / "status.json").write_text(json.dumps({**FACTS, "gap": 0.000312, "gradient_norm": None, "reason": words}))
    lines = lines_of(hub)
    assert "  model       at most 0.00032 above the best possible training loss" in lines
    assert f"  ended       {words}" in lines
    assert json.loads(lines_of(hub, "--json")[0])["gap"] == 0.000312
    (hub / "status.json").write_text(json.dumps({**FACTS, "gap": "0.1 or so"}))
    done = CliRunner().invoke(app, ["status", str(hub)])
    assert done.exit_code == 2
    assert "status.json is damaged: could not convert string to float: '0.1 or so'" in done.stderr


def test_a_client_that_is_gone_in_the_middle_of_a_run_fails_its_probe(tmp_path):
    facts = {name: value for name, value in FACTS.items() if not name.endswith("_loss")}
    facts |= {"party": "client.lab.east", "phase": "training", "connected": ["hub.lab"], "status": None}
    (tmp_path / "status.json").write_text(json.dumps(facts))
    done = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "client.lab.east: training, its process is gone: give the same command again",
        "  round       9 of 20",
        "  connected   hub.lab",
    ]
    nothing = CliRunner().invoke(app, ["status", str(tmp_path / "other")])
    assert nothing.exit_code == 2
    assert "other has no status.json: give the run folder of a hub (--out of tdcd hub), or --out of tdcd client" in (
        nothing.stderr
    )


def test_certificates_of_a_trial_are_not_to_be_renewed(tmp_path):
    """They are for a day; a real hub's last day is another matter."""
    for hub in (tmp_path / "real", tmp_path / "trial" / "silos" / "lab"):
        hub.mkdir(parents=True)
        (hub / "status.json").write_text(json.dumps({**FACTS, "certificate_days": {"hub.lab": 0.9}}))
    assert "  certificate of hub.lab expires in 0 days: renew it" in lines_of(tmp_path / "real")
    for folder in (tmp_path / "trial", tmp_path / "trial" / "silos" / "lab"):
        assert "hub.lab: finished, ended" in lines_of(folder)
        assert not [line for line in lines_of(folder) if "renew" in line]
    (facts,) = lines_of(tmp_path / "trial", "--json")
    assert json.loads(facts)["certificate_days"] == {"hub.lab": 0.9}
