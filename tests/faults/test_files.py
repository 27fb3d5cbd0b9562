"""Every file that a hub's restart reads, damaged while the hub is down: the history stays exact, or a sentence says why not.

In the laboratory a hub is killed in the middle of a run, or at its end. A file of its folder is then truncated,
emptied, changed, removed, or swapped with that of another run or another hub. Whatever happens, the other parties wait,
and with a backup of the folder the run ends with the history of the run to which nothing happened.
"""

import json
import re
import shutil

import pytest
from lab import CONFIG, Lab, prepared, reference_of

from tdcd.history import Record
from tdcd.runtime.hub_folder import HubFolder
from tdcd.runtime.instructions import Absence
from tdcd.runtime.job import Job

HUB, OTHER, NORTH = "hub.lab", "hub.clinic", "client.lab.north"
KEYS = {"train": {**CONFIG["train"], "rounds": 9}, "evaluate": {"every": 3}}
WAY_ON = "The other parties wait: restore"


def truncated(path, runs):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def emptied(path, runs):
    path.write_bytes(b"")


def changed(path, runs):
    content = path.read_bytes()
    if path.suffix == ".tdcd":
        place = len(content) // 2
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    else:
        place = next((match.start() for match in re.finditer(rb"\d", content)), 0)
        path.write_bytes(content[:place] + (b"8" if content[place : place + 1] != b"8" else b"9") + content[place + 1 :])


def removed(path, runs):
    path.unlink()


def of_another_run(path, runs):
    shutil.copy(runs[0] / path.name if path.parent.name != "checkpoint" else runs[0] / "checkpoint" / path.name, path)


def of_another_hub(path, runs):
    shutil.copy(runs[1] / path.name if path.parent.name != "checkpoint" else runs[1] / "checkpoint" / path.name, path)


DAMAGES = [truncated, emptied, changed, removed, of_another_run, of_another_hub]
FILES = [
    "history.jsonl",
    "hub.json",
    "config.toml",
    "federation.json",
    "status.json",
    "hub.lock",
    "checkpoint/0.tdcd",
    "checkpoint/1.tdcd",
    "checkpoint/2.tdcd",
    "every checkpoint",
]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Config, rows and the history to which nothing happened."""
    config, data = prepared(**KEYS)
    return config, data, reference_of(config, data, tmp_path_factory.mktemp("quiet") / "run")[0]


@pytest.fixture(scope="module")
def another(quiet, tmp_path_factory):
    """The hub's folder of another run of the same settings, stopped at the same place, and one that has ended."""
    home = tmp_path_factory.mktemp("another")
    for name, is_there in (("stopped", in_round_7), ("ended", at_the_end)):
        kill(Lab(*quiet[:2], home / name, 1).begin(), is_there)
    return home / "stopped" / HUB, home / "ended" / HUB


def in_round_7(lab):
    return lab.drivers[HUB].hub.round == 7 and lab.drivers[HUB].hub.phase == "exchanging"


def at_the_end(lab):
    return lab.drivers[HUB].hub.farewell is not None


def kill(lab, is_there):
    """SIGKILL the hub when it is there, and make a backup of its folder."""
    lab.until(lambda: is_there(lab))
    lab.crash(HUB)
    lab.down.pop(HUB)
    shutil.copytree(lab.folder / HUB, lab.folder / "backup")
    return lab


def damage(lab, file, how, another):
    """Damage one file of the hub's folder, or all its checkpoints."""
    home = lab.folder / HUB
    for path in sorted((home / "checkpoint").iterdir()) if file == "every checkpoint" else [home / file]:
        how(path, (another, lab.folder / OTHER))


def refusal(lab):
    """Start the hub and play on: the sentence with which it refuses, None if the run comes to its end."""
    try:
        lab.start(HUB)
    except (ValueError, OSError) as error:
        return str(error)
    lab.until(lambda: lab.outcomes.get(HUB) == "refused" or len(lab.outcomes) == len(lab.parties))
    if lab.outcomes[HUB] != "refused":
        return None
    return json.loads((lab.folder / HUB / "status.json").read_text())["last_error"]


def restore(lab):
    shutil.rmtree(lab.folder / HUB)
    shutil.copytree(lab.folder / "backup", lab.folder / HUB)


def exact_or_refused(lab, reference):
    """The hub's sentence, if it refuses; then the others wait, and with the backup the end is exact too."""
    sentence = refusal(lab)
    if sentence is not None:
        lab.outcomes.pop(HUB, None)
        restore(lab)
        assert refusal(lab) is None
    assert set(lab.outcomes.values()) == {"finished"}
    assert [lab.history(hub) for hub in lab.job.hubs] == [reference, reference]
    return sentence


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("file", FILES)
def test_a_file_damaged_while_the_hub_is_down(quiet, another, tmp_path, file, how):
    lab = kill(Lab(*quiet[:2], tmp_path, 0).begin(quiet[2]), in_round_7)
    damage(lab, file, how, another[0])
    sentence = exact_or_refused(lab, quiet[2])
    is_needed = file in ("hub.json", "every checkpoint") or (
        file == "history.jsonl" and how not in (of_another_run, of_another_hub)
    )
    assert (sentence is not None) == is_needed, sentence
    if sentence is not None:
        assert WAY_ON in sentence or (file, how) == ("hub.json", of_another_hub)
