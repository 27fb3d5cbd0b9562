import json
import math

import pytest

from tdcd.core.ledger import Traffic
from tdcd.records.history import Record, read_history

pytestmark = pytest.mark.quick


def record(**changes):
    fields = {"round": 5, "iteration": 50, "train_loss": 0.1, "test_loss": None, "metrics": {"train": {"auc": None}}}
    return Record(**fields | {"bytes": Traffic(1, 2, 3), "messages": Traffic(4, 5, 6), "seconds": 0.5} | changes)


def test_a_line_is_json_and_comes_back_exactly():
    line = record(train_loss=1 / 3).to_json()
    assert json.loads(line)["bytes"] == {"client_to_hub": 1, "hub_to_client": 2, "hub_to_hub": 3}
    assert Record.from_json(line) == record(train_loss=1 / 3)


def test_evaluations_are_counted_apart_and_a_line_without_them_stays_as_it_is():
    """An older run's mark is of its lines as they were written."""
    older = record().to_json()
    assert Record.from_json(older).evaluation_bytes is None
    assert Record.from_json(older).to_json() == older
    counted = record(evaluation_bytes=Traffic(7, 8, 9), evaluation_messages=Traffic(1, 1, 2))
    assert json.loads(counted.to_json())["evaluation_bytes"]["hub_to_hub"] == 9
    assert Record.from_json(counted.to_json()) == counted


def test_absences_are_sent_only_if_there_are_any():
    assert not {"absent", "unscored"} & set(json.loads(record().to_json()))
    gone = record(absent={"client.a.c2": [3, 4]}, unscored=["client.a.c2"])
    assert json.loads(gone.to_json())["absent"] == {"client.a.c2": [3, 4]}
    assert Record.from_json(gone.to_json()) == gone != record()


def test_a_diverged_record_is_null_in_json():
    line = record(train_loss=math.inf, test_loss=math.nan).to_json()
    assert json.loads(line, parse_constant=pytest.fail)["train_loss"] is None
    assert Record.from_json(line).diverged


def test_only_seconds_may_differ_between_equal_records():
    assert record(seconds=1.0) == record(seconds=2.0)
    assert record(round=1) != record(round=2)


@pytest.mark.parametrize("line", ["{", "{}", '{"round": 1, "bytes": {}}', "[1]"])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_text(record().to_json() + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"history\.jsonl, line 2 is not a history record"):
        read_history(path)
