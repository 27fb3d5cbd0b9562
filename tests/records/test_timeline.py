"""Time worked and waited: nothing is lost when spans become one, and a long run stays small."""

import json
from itertools import pairwise

import pytest

from tdcd.records.timeline import MOST_SPANS, Timeline

pytestmark = pytest.mark.quick


def played(rounds, work=0.7, wait=0.3):
    """Every round: some work, then waiting for the clinic."""
    timeline, now = Timeline("hub.lab", "nonce"), 1000.0
    for round_index in range(rounds):
        timeline.add(round_index, now, now + work)
        timeline.add(round_index, now + work, now + work + wait, ["hub.clinic"])
        now += work + wait
    return timeline


def test_a_round_has_what_was_added():
    timeline = Timeline("hub.lab", "nonce")
    timeline.add(0, 10.0, 12.0)
    timeline.add(0, 12.0, 13.0, ["hub.a", "hub.b"])
    timeline.add(1, 13.0, 17.0, ["hub.b"])
    first, second = timeline.spans
    assert (first.first, first.last, first.start, first.end, first.worked) == (0, 0, 10.0, 13.0, 2.0)
    assert first.waited == {"hub.a": 0.5, "hub.b": 0.5}
    assert (second.first, second.start, second.end, second.worked, second.waited) == (1, 13.0, 17.0, 0, {"hub.b": 4.0})
    assert (timeline.worked, timeline.waited) == (2.0, {"hub.b": 4.5, "hub.a": 0.5})


def test_a_hundred_thousand_rounds_stay_small_and_whole():
    timeline = played(100_000)
    assert MOST_SPANS / 2 <= len(timeline.spans) <= MOST_SPANS
    assert len(timeline.to_json()) < 50_000
    assert timeline.worked == pytest.approx(70_000)
    assert timeline.waited == pytest.approx({"hub.clinic": 30_000})
    places = [(span.first, span.last) for span in timeline.spans]
    assert places[0][0] == 0
    assert places[-1][1] == 99_999
    assert all(after[0] == before[1] + 1 for before, after in pairwise(places))
    assert all(span.end - span.start == pytest.approx(span.last - span.first + 1) for span in timeline.spans)


def test_a_hub_that_was_away_leaves_a_gap_and_plays_a_round_again():
    timeline = Timeline("hub.lab", "nonce")
    timeline.add(6, 0.0, 1.0)
    timeline.add(7, 1.0, 2.0)
    timeline.add(6, 50.0, 51.0)
    timeline.add(6, 51.0, 52.0)
    assert [(span.first, span.start, span.end) for span in timeline.spans] == [(6, 0, 1), (7, 1, 2), (6, 50, 52)]
    shares = timeline.shares(52)
    assert shares[:2] == [(1.0, 0.0)] * 2
    assert shares[2:50] == [(0.0, 0.0)] * 48


@pytest.mark.parametrize("rounds", [1, 7, 300])
@pytest.mark.parametrize("cells", [1, 24, 100])
def test_cells_of_equal_time_have_all_of_it(rounds, cells):
    timeline = played(rounds)
    shares, width = timeline.shares(cells), rounds / cells
    assert len(shares) == cells
    assert sum(worked * width for worked, _ in shares) == pytest.approx(timeline.worked)
    assert sum(waited * width for _, waited in shares) == pytest.approx(sum(timeline.waited.values()))


def test_nothing_yet_has_no_cells():
    assert Timeline("hub.lab", "nonce").shares(24) == []


def test_a_file_gives_back_what_was_written(tmp_path):
    timeline = played(1000)
    (tmp_path / "timeline.json").write_bytes(timeline.to_json())
    assert Timeline.read(tmp_path / "timeline.json") == timeline


WHOLE = json.loads(played(3).to_json())


def with_span(**keys):
    return json.dumps({**WHOLE, "spans": [WHOLE["spans"][0] | keys, *WHOLE["spans"][1:]]})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Input data was truncated"),
        ("null", "Expected `object`, got `null`"),
        (json.dumps(WHOLE)[:-9], "truncated"),
        (with_span(worked=-1.0), r"Expected `float` >= 0.0 - at `\$.spans\[0\].worked`"),
        (with_span(end=1e300), r"`\$.spans\[0\].end`"),
        (with_span(waited={"hub.clinic": "long"}), r"Expected `float`, got `str`"),
        (with_span(start=2000.0), r"spans\[0\] ends before it begins"),
        (with_span(end=1001.5), r"spans\[1\] ends before it begins, or begins before the one before ends"),
        (json.dumps({**WHOLE, "rounds_per_span": 0}), "rounds_per_span"),
    ],
)
def test_a_damaged_file_gets_a_sentence(tmp_path, content, reason):
    path = tmp_path / "timeline.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=reason) as caught:
        Timeline.read(path)
    assert str(caught.value).startswith(f"{path} is damaged and is not used: ")
    assert str(caught.value).endswith("; the run itself is not affected")
