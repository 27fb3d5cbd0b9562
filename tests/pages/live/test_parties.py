"""How parties stand, as their hubs say."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import num_examples
from tdcd.pages.live.run import of_hubs, silos_of, time_of
from tdcd.records.outcome import Stopping
from tdcd.records.timeline import Timeline
from tdcd.runtime.storage.status import is_alive, lock

pytestmark = pytest.mark.quick

CONFIG = {"silos": [{"name": "lab", "clients": ["north", "south"]}, {"name": "clinic", "clients": 1}]}
ALIVE = {
    "party": "hub.lab",
    "status": None,
    "alive": True,
    "connected": ["client.lab.north", "client.lab.south", "hub.clinic"],
    "missing_s": {},
    "last_error": "",
}
ENDING = Stopping(40)


def states(*statuses):
    """Of all parties, by name."""
    found = {}
    for silo in silos_of({}, CONFIG, {status["party"]: status for status in statuses}):
        found[silo["name"]] = silo["hub"]["state"]
        found |= {f"{silo['name']}.{client['name']}": client["state"] for client in silo["clients"]}
    return found


def test_a_simulation_waits_for_no_party():
    assert set(states().values()) == {"simulated"}


def test_a_hub_knows_its_clients_and_the_other_hubs():
    assert states(ALIVE) == {
        "lab": "connected",
        "lab.north": "connected",
        "lab.south": "connected",
        "clinic": "connected",
        "clinic.c1": "unknown",
    }


@pytest.mark.parametrize(
    ("news", "state"),
    [
        # Every round waits for every client for a moment.
        ({"missing_s": {"client.lab.north": 0.4}}, "connected"),
        ({"missing_s": {"client.lab.north": 30.0}}, "waited for"),
        ({"missing_s": {"client.lab.north": 0.4}, "connected": ["client.lab.south"]}, "waited for"),
        ({"connected": ["client.lab.south"]}, "away"),
        ({"left_out": ["client.lab.north"], "connected": ["client.lab.south"]}, "left out"),
        ({"revoked": ["client.lab.north"], "connected": ["client.lab.south"]}, "revoked"),
        ({"alive": False}, "unknown"),
        ({"status": "finished", "alive": False}, "ended"),
    ],
)
def test_a_client(news, state):
    assert states({**ALIVE, **news})["lab.north"] == state


def test_a_hub_whose_process_is_gone():
    clinic = {**ALIVE, "party": "hub.clinic", "alive": False}
    lab = {**ALIVE, "connected": [], "missing_s": {"hub.clinic": 9.0}}
    assert states(lab, clinic)["clinic"] == "away"
    standing = of_hubs([lab, clinic], ENDING, None, 7, "")
    assert standing == ("stopped", "The process of hub.clinic is gone: give the same command again, and it continues.")


def test_a_hub_that_waits_for_its_own_client_is_not_to_blame():
    lab = {**ALIVE, "missing_s": {"client.lab.north": 9.0}}
    clinic = {**ALIVE, "party": "hub.clinic", "connected": ["hub.lab"], "missing_s": {"hub.lab": 8.0}}
    found = states(lab, clinic)
    assert (found["lab"], found["lab.north"]) == ("connected", "waited for")
    assert of_hubs([lab, clinic], ENDING, None, 7, "").words == "Waits for client.lab.north (9 s)."
    alone = {**lab, "missing_s": {"hub.clinic": 9.0}}
    assert states(alone, clinic)["lab"] == "waited for"


@pytest.mark.parametrize(
    ("news", "state", "words"),
    [
        ({}, "running", ""),
        ({"missing_s": {"client.lab.north": 2.0}}, "running", ""),
        (
            {"missing_s": {"client.lab.north": 9.0}, "connected": []},
            "waiting",
            "Waits for client.lab.north (9 s, not connected).",
        ),
        ({"status": "refused", "last_error": "labels differ"}, "refused", "hub.lab: labels differ"),
        ({"status": "diverged"}, "diverged", "hub.lab: diverged"),
        ({"status": "finished"}, "finished", ""),
    ],
)
def test_a_run_in_words(news, state, words):
    assert of_hubs([{**ALIVE, **news}], ENDING, None, 40, "") == (state, words)


def test_many_who_are_missing_are_counted():
    names = [f"client.lab.c{index}" for index in range(9)]
    standing = of_hubs([{**ALIVE, "missing_s": dict.fromkeys(names, 5.0)}], ENDING, None, 3, "")
    assert standing.words.endswith("client.lab.c4 (5 s, not connected) and 4 more.")


def test_work_and_waiting():
    timeline = Timeline("hub.lab", "nonce")
    timeline.add(0, 100.0, 103.0)
    timeline.add(0, 103.0, 104.0, ["hub.clinic"])
    assert time_of([timeline, Timeline("hub.clinic", "nonce")]) == [
        {"party": "hub.lab", "worked": 3.0, "waited": [["hub.clinic", 1.0]], "waited_in_all": 1.0}
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 10**15) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["silos", "name", "clients", "client", "feature_shape"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@num_examples(50)
@given(st.dictionaries(st.just("silos"), JSON), st.dictionaries(st.just("silos"), JSON))
def test_whatever_the_files_say(facts, config):
    for statuses in ({}, {"hub.lab": ALIVE}):
        json.dumps(silos_of(facts, config, statuses), allow_nan=False)


HOLD = """
import fcntl, sys
with open(sys.argv[1] + "/hub.lock", "rb") as file:
    fcntl.flock(file, fcntl.LOCK_SH)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_who_looks_whether_a_hub_lives_does_not_keep_it_from_starting(tmp_path):
    (tmp_path / "hub.lock").touch()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as looking:
        looking.stdout.readline()
        os.close(lock(tmp_path, pause=lambda _: looking.communicate()))
    assert not is_alive(tmp_path)
