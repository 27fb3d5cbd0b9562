"""What the page is told of run folders, whatever is in them."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from tdcd.core.ledger import Traffic
from tdcd.pages.live.folders import runs_in
from tdcd.pages.live.page import MANY_POINTS, SELDOM_S, Asked
from tdcd.pages.live.server import LOOK_S, Watcher
from tdcd.records.history import Record
from tdcd.runtime.storage.status import lock, write_status

pytestmark = pytest.mark.quick

CONFIG = "[train]\nrounds = 40\n[[silos]]\nname = 'lab'\nclients = ['north', 'south']\n"
FACTS = {
    "name": "patients",
    "num_samples": 30,
    "silos": [{"name": "lab", "feature_shape": [4], "columns": [], "clients": [10, 20], "parameters": 4}],
}
STATUS = {
    "party": "hub.lab",
    "phase": "stepping",
    "round": 9,
    "rounds": 40,
    "train_loss": 0.5,
    "test_loss": None,
    "connected": ["client.lab.south"],
    "missing": ["client.lab.north"],
    "missing_s": {"client.lab.north": 12.0},
    "left_out": [],
    "refused": {},
    "last_error": "",
    "status": "finished",
}


def line(number, loss=None, **fields):
    loss = 1.0 / (1 + number) if loss is None else loss
    sent = Traffic(100 * number, 80 * number, 60 * number)
    metrics = {"train": {"r2": 0.5}, "test": {"r2": 0.25}}
    record = Record(number, 10 * number, loss, 2 * loss, metrics, sent, sent, seconds=0.5 * number)
    return replace(record, **fields).to_json() + "\n"


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "run")


def make(path, lines=3):
    path.mkdir(parents=True)
    (path / "config.toml").write_text(CONFIG)
    (path / "federation.json").write_text(json.dumps(FACTS))
    (path / "history.jsonl").write_text("".join(line(number) for number in range(lines)))
    return path


class Page:
    """A page that asks now and then, and shows what it is sent."""

    def __init__(self, *folders):
        self.time = 0.0
        self.watcher, self.parts = Watcher(folders, lambda: self.time), {}

    def ask(self, **asked):
        """All runs, each with the rows of its curve; and how many letters of them were ``sent`` to the page."""
        self.time += LOOK_S
        found = self.watcher.facts()
        state = json.loads(self.watcher.state(Asked(have=frozenset(self.parts), **asked)))
        sent = {run["id"]: run["parts"] for run in state["runs"]}
        for run in found:
            if "curve" in run:
                run["rows"] = [[point.round, *point.last] for point in run["curve"].points]
            run["sent"] = [part["name"] for part in sent.get(run["id"], []) if "tree" in part]
            self.parts |= {part["digest"]: part["tree"] for part in sent.get(run["id"], []) if "tree" in part}
            run["shown"] = " ".join(
                text for part in sent.get(run["id"], []) for text in texts(self.parts[part["digest"]])
            )
        return found

    def one(self):
        (run,) = self.ask()
        return run


def texts(tree):
    """All texts, from the first to the last."""
    return [text for item in tree for text in ([item] if isinstance(item, str) else texts(item[2]))]


def append(folder, text):
    with (folder / "history.jsonl").open("a") as file:
        file.write(text)


def test_a_run_as_it_comes(folder):
    page = Page(folder)
    run = page.one()
    assert (run["name"], run["title"], run["kind"], run["state"]) == ("run", "patients", "simulation", "running")
    assert (run["round"], run["rounds"], run["left_s"]) == (2, 40, 19.0)
    assert run["curve"].columns == ["loss.train", "loss.test", "r2.train", "r2.test"]
    assert run["sent"] == ["head", "figures", "federation", "time", "bytes"]
    assert "round 2 of 40 time left 19 s training time 1 s training loss 0.3333 held-out loss 0.6667" in run["shown"]
    assert "held-out R² 0.2500" in run["shown"]
    assert "Federation" in run["shown"]
    assert page.one()["sent"] == []
    assert run["latest"]["bytes"] == {"client_to_hub": 200, "hub_to_client": 160, "hub_to_hub": 120}
    append(folder, line(3) + line(4))
    run = page.one()
    assert run["round"] == 4
    # Who takes part is as it was.
    assert run["sent"] == ["head", "figures", "bytes"]
    assert [row[0] for row in run["rows"]] == [0, 1, 2, 3, 4]


def test_a_line_that_is_half_written_waits_for_its_rest(folder):
    page, whole = Page(folder), line(3)
    append(folder, whole[:40])
    assert page.one()["round"] == 2
    append(folder, whole[40:])
    assert page.one()["round"] == 3


def test_a_history_that_is_replaced_is_read_anew(folder):
    page = Page(folder)
    page.one()
    # As a resumed run does: another file.
    (folder / "new").write_text(line(0) + line(1))
    (folder / "new").replace(folder / "history.jsonl")
    assert [row[0] for row in page.one()["rows"]] == [0, 1]
    # And in place, longer than before.
    (folder / "history.jsonl").write_text("".join(line(number, loss=9.0) for number in range(7)))
    assert [row[1] for row in page.one()["rows"]] == [9.0] * 7


def test_a_folder_that_is_deleted_is_shown_as_it_was_last(folder):
    page = Page(folder)
    page.one()
    shutil.rmtree(folder)
    run = page.one()
    assert (run["state"], run["round"], len(run["rows"])) == ("gone", 2, 3)
    assert run["words"] == f"The run in {folder} is no longer there; this is its last state."
    make(folder, lines=2)
    run = page.one()
    assert (run["state"], [row[0] for row in run["rows"]]) == ("running", [0, 1])


def test_a_folder_that_is_not_there_yet(tmp_path):
    page = Page(tmp_path / "later")
    assert page.one()["state"] == "empty"
    (tmp_path / "later").mkdir()
    assert page.one()["words"].startswith(f"There is no run in {tmp_path / 'later'} yet")
    shutil.rmtree(tmp_path / "later")
    make(tmp_path / "later", lines=0)
    run = page.one()
    assert (run["state"], run["words"]) == ("waiting", "It is starting: there is no figure yet.")
    append(tmp_path / "later", line(0))
    assert page.one()["state"] == "running"


@pytest.mark.parametrize("end", ["finished", "diverged", "stopped", "quiet"])
def test_how_a_simulation_ends(folder, end):
    if end == "finished":
        append(folder, line(40))
    elif end == "diverged":
        append(folder, line(3, float("nan")))
    elif end == "stopped":
        (folder / "report.html").write_text("")
    else:
        os.utime(folder / "history.jsonl", (1e9, 1e9))
    run = Page(folder).one()
    assert run["state"] == end
    assert (f"tdcd run --resume {folder}" in run["words"]) == (end in ("stopped", "quiet"))


@pytest.mark.parametrize("text", ["nonsense\n", "[]\n", '{"round": 3}\n', "x" * (1 << 21)])
def test_a_line_that_is_none_is_named_and_the_rest_stays(folder, text):
    page = Page(folder)
    page.one()
    append(folder, text)
    run = page.one()
    assert (run["state"], run["round"]) == ("damaged", 2)
    assert run["problems"][0].startswith(f"{folder / 'history.jsonl'}, line 4 is not a history record: ")


@pytest.mark.parametrize("file", ["config.toml", "federation.json", "status.json", "timeline.json"])
@pytest.mark.parametrize("content", [b"[", b"\xff", b"7", b"[]", b'{"silos": 5}', b'{"train": 5}'])
def test_a_damaged_file_leaves_the_other_runs_alone(folder, tmp_path, file, content):
    (folder / file).write_bytes(content)
    make(tmp_path / "good")
    damaged, good = Page(folder, tmp_path / "good").ask()
    assert (damaged["name"], good["state"], good["problems"]) == ("run", "running", [])
    if content in (b"[", b"\xff", b"7"):
        assert any(str(folder / file) in problem for problem in damaged["problems"])


def test_numbers_that_json_does_not_know(folder):
    status = {**STATUS, "status": None, "missing_s": {"client.lab.north": float("nan")}}
    (folder / "status.json").write_text(json.dumps(status))
    append(folder, line(3, metrics={"train": {"own": float("nan")}, "test": {"own": float("inf")}}))
    assert Page(folder).one()["state"] in ("stopped", "damaged")


def test_the_runs_of_a_sweep_and_of_a_folder_of_runs(tmp_path):
    make(tmp_path / "runs" / "one")
    sweep = tmp_path / "runs" / "sweep"
    make(sweep / "a=1")
    names = ["a=1", "a=2", "../one", "/etc", "..", "a/b"]
    (sweep / "sweep.json").write_text(json.dumps({"runs": [{"folder": name} for name in names]}))
    found = [(run["group"], run["name"], run["state"]) for run in Page(tmp_path / "runs").ask()]
    assert found == [
        ("runs", "one", "running"),
        ("runs/sweep", "a=1", "running"),
        ("runs/sweep", "a=2", "empty"),
    ]
    assert [run["name"] for run in Page(sweep, sweep / "a=1").ask()] == ["a=1", "a=2"]


def test_a_run_that_begins_later_in_a_folder_of_runs(tmp_path):
    page = Page(tmp_path)
    assert [run["state"] for run in page.ask()] == ["empty"]
    make(tmp_path / "first")
    assert [run["name"] for run in page.ask()] == ["first"]
    make(tmp_path / "second")
    assert [run["name"] for run in page.ask()] == ["first", "second"]


def test_a_long_history_is_read_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("tdcd.pages.live.history.BYTES_PER_LOOK", 1)
    monkeypatch.setattr("tdcd.pages.live.history.MOST_BYTES", 2000)
    make(tmp_path / "long", lines=30)
    make(tmp_path / "other", lines=2)
    page, states = Page(tmp_path), []
    while (runs := page.ask())[-1]["state"] != "running":
        states.append([run["state"] for run in runs])
    assert states[0] == ["reading", "reading"]
    # Facts and page are two looks.
    assert len(states) > 2
    assert [len(run["rows"]) for run in runs] == [30, 2]


def test_names_that_are_no_text(tmp_path):
    folder = make(tmp_path / "caf\udce9 \U0001f355")
    assert Page(folder).one()["state"] == "running"


def test_many_clients_are_counted_and_those_in_trouble_are_named(folder):
    names = [f"site{index}" for index in range(5000)]
    (folder / "config.toml").write_text(
        f"[train]\nrounds = 40\n[[silos]]\nname = 'lab'\nclients = {json.dumps(names)}\n"
    )
    (folder / "federation.json").write_text("{}")
    run = Page(folder).one()
    (silo,) = run["silos"]
    assert silo["num_clients"] == 5000
    assert len(silo["clients"]) < 100
    assert len(run["shown"]) < 2_000


def test_a_shared_file_alone_is_no_trial(tmp_path):
    """As ``tdcd init`` leaves it, beside folders of runs."""
    (tmp_path / "federation.toml").touch()
    make(tmp_path / "one")
    assert [(found.name, found.kind) for found in runs_in([tmp_path])] == [("one", "simulation")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "options.json").touch()
    assert [found.kind for found in runs_in([tmp_path])] == ["trial"]


def test_long_curves_are_drawn_now_and_then(tmp_path):
    page = Page(make(tmp_path / "long", lines=MANY_POINTS + 1))
    assert "figures" in page.one()["sent"]
    append(tmp_path / "long", line(MANY_POINTS + 1))
    assert page.one()["sent"] == ["head", "bytes"]
    page.time += SELDOM_S
    assert page.one()["sent"] == ["figures"]


def test_of_many_runs_the_first_that_runs_is_open_and_others_by_a_click(tmp_path):
    for name in "abcd":
        make(tmp_path / name)
    append(tmp_path / "a", line(40))
    page = Page(tmp_path)
    assert [bool(run["sent"]) for run in page.ask()] == [False, True, False, False]
    assert [bool(run["shown"]) for run in page.ask(opened=frozenset({3}), shut=frozenset({1}))] == [0, 0, 0, 1]
    state = json.loads(page.watcher.state(Asked(chosen="r2.test")))
    shown = " ".join(texts(state["together"]["tree"]))
    assert "Held-out R²" in shown
    assert "run state round training loss held-out loss time left sent a finished 40/40" in " ".join(shown.split())


def test_a_party_that_stands_by_shows_its_jobs_and_approvals_and_their_runs(tmp_path):
    home = tmp_path / "standing"
    make(home / "jobs" / "3fa9c0ffee11" / "run")
    (home / "log").mkdir()
    job = {"kind": "train", "proposer": "hub.bank", "proposed": 1_800_000_000}
    hostile = job | {"job": "3fa9c0ffee11", "purpose": "<b>risk</b>", "is_over": True, "state": "finished"}
    waiting = job | {"job": "77aa00bb11cc", "purpose": "risk", "is_over": False, "state": "hub.shop has not approved"}
    hostile["answers"] = {"hub.bank": "approved by person", "hub.shop": "approved by policy"}
    waiting["answers"] = {"hub.bank": "approved by person", "hub.shop": ""}
    status = {
        "party": "hub.bank",
        "phase": "standing by",
        "connected": ["client.bank.north"],
        "missing": ["hub.shop"],
        "refused": {"hub.shop": 3},
        "certificate_days": {"hub.bank": 12, "client.bank.north": 200},
        "queue": [hostile, waiting],
        "epsilon_left": {"epsilon_per_month": 1.5},
        "last_error": "",
        "status": None,
    }
    write_status(home, status)
    page, held = Page(home), lock(home)
    party, run = page.ask()
    assert (party["kind"], party["state"], run["name"], run["group"]) == (
        "party",
        "standing by",
        "job 3fa9c0ffee11",
        "standing",
    )
    for words in (
        "77aa00bb11cc train risk 2027-01-15 08:00 UTC by hub.bank approved by person – hub.shop has not approved",
        "3fa9c0ffee11 train <b>risk</b> 2027-01-15 08:00 UTC by hub.bank approved by person approved by policy",
        "connected client.bank.north not connected hub.shop certificate of hub.bank: 12 days left",
        "refused 3 messages of hub.shop epsilon left 1.5 of epsilon_per_month",
    ):
        assert words in " ".join(party["shown"].split())
    assert party["shown"].index("77aa") < party["shown"].index("3fa9")
    write_status(home, status | {"phase": "train of job 77aa00bb11cc, attempt 1"})
    assert (page.ask()[0]["state"], page.ask()[0]["words"]) == ("running", "train of job 77aa00bb11cc, attempt 1")
    os.close(held)
    assert page.ask()[0]["state"] == "stopped"
    for damaged in ("[]", '{"party": 1}', json.dumps(status | {"queue": [{"answers": 3}, 7], "certificate_days": []})):
        (home / "status.json").write_text(damaged)
        assert [run["kind"] for run in page.ask()] == ["party", "simulation"]
