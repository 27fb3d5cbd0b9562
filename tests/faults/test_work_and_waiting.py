"""What hubs measure of their time, in the laboratory: its clock moves by a known amount."""

import pytest
from lab import CONFIG, Lab, prepared

from tdcd.records.timeline import Timeline

HUB, OTHER, NORTH = "hub.lab", "hub.clinic", "client.lab.north"
AWAY = 100.0
"""Seconds, much more than everything else takes."""


@pytest.fixture(scope="module")
def federation():
    return prepared(train={**CONFIG["train"], "rounds": 8})


def away(lab, party):
    """A party dies in the middle of the run, and comes back after a long time; the timelines at the end."""
    lab.begin().until(lambda: lab.drivers[HUB].hub.round == 4 and lab.drivers[HUB].hub.phase == "stepping")
    lab.crash(party)
    lab.down[party] = lab.now + AWAY
    lab.until_over()
    return timelines(lab)


def timelines(lab):
    return {hub: Timeline.read(lab.folder / hub / "timeline.json") for hub in lab.job.hubs}


def length(timeline):
    return timeline.end - timeline.spans[0].start


def total(timeline):
    return timeline.worked + sum(timeline.waited.values())


def test_work_and_waiting_are_all_of_the_time(federation, tmp_path):
    lab = Lab(*federation, tmp_path, seed=0).begin()
    began = {}
    while len(lab.outcomes) < len(lab.parties):
        lab.step()
        for hub in lab.job.hubs:
            driver = lab.drivers.get(hub)
            if driver is not None and driver.hub.rounds is not None and driver.hub.rounds.phase:
                began.setdefault(hub, lab.now)
                ended = lab.now
    for hub, timeline in timelines(lab).items():
        assert total(timeline) == pytest.approx(length(timeline), abs=1e-5)
        # The hubs end their last round within the last few events.
        assert length(timeline) == pytest.approx(ended - began[hub], abs=0.01)
        assert [span.first for span in timeline.spans] == [*range(9)]
        assert timeline.worked > 0
        assert set(timeline.waited) <= {HUB, OTHER} - {hub}


def test_waiting_for_another_hub_is_no_work(federation, tmp_path):
    found = away(Lab(*federation, tmp_path, seed=1), OTHER)
    assert AWAY - 5 < found[HUB].waited[OTHER] < AWAY + 30
    assert found[HUB].worked < 5
    # The hub that was away measured nothing meanwhile, and went on with what it had measured before.
    assert total(found[OTHER]) < 30
    # What it measured in its last second it had not written.
    rounds = [span.first for span in found[OTHER].spans]
    assert rounds[0] == 0
    assert rounds[-5:] == [4, 5, 6, 7, 8]


def test_a_client_that_is_not_connected_is_waited_for(federation, tmp_path):
    found = away(Lab(*federation, tmp_path, seed=2), NORTH)
    assert AWAY - 5 < found[HUB].waited[NORTH] < AWAY + 30
    assert AWAY - 5 < found[OTHER].waited[HUB] < AWAY + 30
    assert found[HUB].worked < 5
    assert found[OTHER].worked < 5


def test_a_damaged_timeline_gets_a_sentence_and_begins_anew(federation, tmp_path, caplog):
    lab = Lab(*federation, tmp_path, seed=3).begin()
    lab.until(lambda: lab.drivers[HUB].hub.round == 4)
    lab.crash(HUB)
    path = tmp_path / HUB / "timeline.json"
    path.write_text('{"hub": 5')
    with caplog.at_level("WARNING", logger="tdcd"):
        lab.until_over()
    assert set(lab.outcomes.values()) == {"finished"}
    (why,) = (record.facts["why"] for record in caplog.records if record.message == "timeline")
    assert why.startswith(f"{path} is damaged and is not used: ")
    found = Timeline.read(path)
    assert found.spans[0].first >= 3
    assert found.spans[-1].last == 8


def test_what_another_hub_measured_is_not_used(federation, tmp_path):
    lab = Lab(*federation, tmp_path, seed=4).begin()
    lab.until(lambda: lab.drivers[HUB].hub.round == 4)
    lab.crash(HUB)
    (tmp_path / HUB / "timeline.json").write_bytes((tmp_path / OTHER / "timeline.json").read_bytes())
    lab.until_over()
    assert Timeline.read(tmp_path / HUB / "timeline.json").hub == HUB
