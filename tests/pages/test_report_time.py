"""Work and waiting on the page: what is drawn where, what is said, and when there is nothing to say."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from run_folders import CONFIG, silo

from support.well_formed import Page
from tdcd.pages.report import write_report
from tdcd.pages.timeline import MOST_BARS, Lane, timeline_svg
from tdcd.records.timeline import Timeline

pytestmark = pytest.mark.quick

SILOS = [silo("clinic", [4], [100]), silo("lab", [6], [60, 40])]


def played(hub, rounds, work, waits, begin=1_000_000.0, gap_after=None):
    """Every round: some work, then waiting for each of ``waits``."""
    timeline, now = Timeline(hub, "nonce"), begin
    for round_index in range(rounds):
        for seconds, parties in [(work, ()), *((seconds, (party,)) for party, seconds in waits.items())]:
            timeline.add(round_index, now, now + seconds, parties)
            now += seconds
        now += rounds * (work + sum(waits.values())) if round_index == gap_after else 0.0
    return timeline


def drawn(*lanes):
    return ET.fromstring(timeline_svg(lanes))


def areas(svg, kind):
    """Left edge, width and height of every bar of a kind."""
    found = []
    for element in svg.iter("path"):
        if element.get("class") == kind:
            x, _, width, height, _ = (float(number) for number in re.findall(r"-?[\d.]+", element.get("d")))
            found.append((x, width, -height))
    return found


def texts(svg):
    return ["".join(element.itertext()) for element in svg.iter("text")]


def test_areas_are_times():
    svg = drawn(Lane("lab", played("hub.lab", 10, 0.6, {"hub.clinic": 0.2})))
    work, wait = areas(svg, "work"), areas(svg, "wait")
    assert len(work) == len(wait) == 10
    assert sum(w * h for _, w, h in work) == pytest.approx(3 * sum(w * h for _, w, h in wait), rel=1e-2)
    for (left, width, _), (following, _, _) in pairwise(work):
        assert following <= left + width < following + 0.5
    assert "worked 75 %" in texts(svg)
    titles = [title.text for title in svg.iter("title")]
    assert titles[0] == "lab worked 75 % of the time and waited 25 % for clinic"
    assert titles[1] == "lab, round 0: worked 0.6 s, waited 0.2 s for clinic"


def test_lanes_have_one_time_axis():
    early, late = played("hub.a", 5, 1.0, {}), played("hub.b", 5, 1.0, {}, begin=1_000_005.0)
    svg = drawn(Lane("a", early), Lane("b", late))
    work = areas(svg, "work")
    assert work[4][0] + work[4][1] == pytest.approx(work[5][0], abs=0.5)
    assert {"0 s", "2 s", "10 s", "time"} <= set(texts(svg))


def test_a_hub_that_did_not_run_leaves_a_blank():
    whole = drawn(Lane("lab", played("hub.lab", 10, 1.0, {})))
    assert "not running" not in texts(whole)
    broken = drawn(Lane("lab", played("hub.lab", 10, 1.0, {}, gap_after=4)))
    assert "not running" in texts(broken)
    work = areas(broken, "work")
    assert work[5][0] - (work[4][0] + work[4][1]) == pytest.approx(10 * work[0][1], rel=0.02)


@pytest.mark.parametrize("rounds", [1, 2, 7, 128, 129, 1000, 100_000])
def test_every_length_is_drawn_inside_and_stays_small(rounds):
    lanes = [Lane(name, played(f"hub.{name}", rounds, 0.3, {"hub.x": 0.1})) for name in ("a", "b")]
    svg = timeline_svg(lanes)
    assert len(svg) < 120_000
    drawing = ET.fromstring(svg)
    width, _ = (float(number) for number in drawing.get("viewBox").split()[2:])
    bars = areas(drawing, "work")
    assert len(bars) <= 2 * MOST_BARS
    assert all(x >= 0 and x + w <= width for x, w, _ in bars)
    marks = [element for element in drawing.iter("text") if "mark" in element.get("class", "")]
    assert marks[0].text == "round 0"
    assert 2 <= len(marks) <= 30
    places = [float(mark.get("x")) for mark in marks[: len(marks) // 2]]
    assert all(after - before >= 35 for before, after in pairwise(places))


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ({}, "lab worked all of the time"),
        ({"hub.clinic": 1.0}, "lab worked 50 % of the time and waited 50 % for clinic"),
        ({"client.lab.north": 1.0}, "lab worked 50 % of the time and waited 50 % for its own client north"),
        (
            {"hub.bank": 0.5, "hub.clinic": 2.5},
            "lab worked 25 % of the time and waited 75 %, most of it for clinic (clinic 62 %, bank 12 %)",
        ),
    ],
)
def test_totals_in_words(waits, words):
    assert Lane("lab", played("hub.lab", 4, 1.0, waits)).in_words() == words


def test_names_are_text_and_long_ones_are_cut():
    svg = drawn(Lane("<b>" + "x" * 50, played("hub.x", 3, 1.0, {})))
    (name,) = [element for element in svg.iter("text") if element.get("class") == "name"]
    assert name.text.startswith("<b>xx")
    assert name.text.endswith("…")


# The page.


def page_of(folder):
    return " | ".join(Page(write_report(folder).read_text(encoding="utf-8")).texts)


def with_timing(folder, overlap, *periods):
    silos = "".join(f'[[silos]]\nname = "{name}"\nperiod = {m}\n' for name, m in zip("ab", periods, strict=False))
    (folder / "config.toml").write_text(CONFIG + f"overlap = {overlap}\n" + silos)


def test_algorithm_1_in_simulation_has_nothing_to_say(make_run):
    text = page_of(make_run())
    assert "Work and waiting" not in text
    assert "Age of phi" not in text


def test_a_hub_s_page_has_its_own_lane(make_run):
    folder = make_run(silos=SILOS)
    (folder / "timeline.json").write_bytes(played("hub.lab", 20, 0.7, {"hub.clinic": 0.3}).to_json())
    text = page_of(folder)
    assert "Work and waiting | lab worked 70 % of the time and waited 30 % for clinic." in text
    assert "The hubs of the other silos have their own." in text
    assert "Age of phi" not in text


def test_a_trial_s_page_has_a_lane_for_every_silo(make_run):
    folder = make_run(silos=SILOS)
    for name, work, waits in (("clinic", 0.25, {"hub.lab": 0.75}), ("lab", 1.0, {})):
        (folder / "silos" / name).mkdir(parents=True)
        path = folder / "silos" / name / "timeline.json"
        path.write_bytes(played(f"hub.{name}", 20, work, waits).to_json())
    text = page_of(folder)
    words = "clinic worked 25 % of the time and waited 75 % for lab. lab worked all of the time."
    assert f"Work and waiting | {words}" in text
    assert "have their own" not in text
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


def test_a_damaged_timeline_is_left_out_with_a_sentence(make_run):
    folder = make_run(silos=SILOS)
    (folder / "timeline.json").write_text("{")
    text = page_of(folder)
    assert f"Work and waiting | {folder / 'timeline.json'} is damaged and is not used: " in text


def test_nothing_is_drawn_before_the_first_round(make_run):
    folder = make_run(silos=SILOS)
    (folder / "timeline.json").write_bytes(Timeline("hub.lab", "nonce").to_json())
    assert "Work and waiting" not in page_of(folder)


def test_ages_of_phi_with_overlapped_rounds(make_run):
    folder = make_run(silos=SILOS)
    with_timing(folder, 2)
    text = page_of(folder)
    assert "Age of phi | Rounds overlap by 2: a silo waits only for one that is further behind." in text
    ages = f"2 rounds old | 0 | 1 | {'2 | ' * 14}"
    assert f"phi of clinic: 2 rounds old | clinic | {ages}phi of lab: 2 rounds old | lab | {ages}" in text
    assert "is slow" not in text


def test_ages_of_phi_with_a_slow_silo(make_run):
    folder = make_run(silos=SILOS)
    with_timing(folder, 1, 1, 4)
    text = page_of(folder)
    assert "lab is slow: its block moves every 4 rounds." in text
    # What the doctest of Overlap says, as ages.
    assert "lab | 1 to 4 rounds old | 0 | 1 | 2 | 3 | 4 | 1 | 2 | 3 | 4 | 1 |" in text
    assert f"clinic | 1 round old | 0 | {'1 | ' * 15}" in text
    with_timing(folder, 0, 1, 4)
    text = page_of(folder)
    assert f"clinic | of the same round | {'0 | ' * 16}" in text
    assert f"lab | 0 to 3 rounds old | {'0 | 1 | 2 | 3 | ' * 4}" in text
    assert "Rounds overlap" not in text


def test_a_lane_says_how_old_the_phi_is_that_it_uses(make_run):
    folder = make_run(silos=SILOS)
    with_timing(folder, 1, 1, 4)
    (folder / "timeline.json").write_bytes(played("hub.clinic", 20, 0.7, {"hub.lab": 0.3}).to_json())
    assert "clinic | worked 70 % | uses phi 1 to 4 rounds old" in page_of(folder)
