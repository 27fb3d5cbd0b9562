"""Every file that a hub's restart reads, damaged while the hub is down: the history is exact, or a sentence says why.

In the laboratory a hub is killed in the middle of a run, or at its end. A file of its folder is then truncated,
emptied, changed, removed, or swapped with that of another run or another hub. Whatever happens, the other parties wait,
and with a backup of the folder the run ends with the history of the run to which nothing happened.
"""

import json
import re
import shutil

import pytest
from lab import CONFIG, Lab, prepared, reference_of

from tdcd.records.history import Record
from tdcd.runtime.job import Job
from tdcd.runtime.machine.instructions import Absence
from tdcd.runtime.storage.hub_folder import HubFolder

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
        path.write_bytes(
            content[:place] + (b"8" if content[place : place + 1] != b"8" else b"9") + content[place + 1 :]
        )


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
    "timeline.json",
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
    return lab.drivers[HUB].hub.round == 7 and lab.drivers[HUB].hub.phase == "stepping"


def at_the_end(lab):
    return lab.drivers[HUB].hub.shutdown is not None


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
    # A torn line of the history is played again, and all hubs and runs of these settings have the same history.
    is_needed = file in ("hub.json", "every checkpoint") or (
        file == "history.jsonl" and how in (emptied, changed, removed)
    )
    assert (sentence is not None) == is_needed, sentence
    if sentence is not None:
        assert WAY_ON in sentence or (file, how) == ("hub.json", of_another_hub)


def line_missing(lines):
    return [lines[0], *lines[2:]]


def last_line_torn(lines):
    return [*lines[:-1], lines[-1][:-9]]


def last_line_missing(lines):
    return lines[:-1]


def number_changed(lines):
    return [re.sub(rb'("train_loss": 0[.]\d)\d', rb"\g<1>7", lines[0]), *lines[1:]]


def two_lines_swapped(lines):
    return [lines[1], lines[0], *lines[2:]]


def line_twice(lines):
    return [lines[0], *lines]


def not_a_record(line):
    return lambda lines: [line, *lines[1:]]


HISTORIES = {
    "a line missing": (line_missing, "has 2 readable lines of the 3 that were written"),
    "the last line torn": (last_line_torn, None),
    "the last line missing": (last_line_missing, None),
    "a number changed": (number_changed, "is not as it was written: its first 3 lines differ"),
    "two lines swapped": (two_lines_swapped, "its first 2 lines differ"),
    "a line twice": (line_twice, "its first 3 lines differ"),
    "no object": (not_a_record(b"5\n"), "has 0 readable lines of the 3"),
    "no fields": (not_a_record(b"{}\n"), "has 0 readable lines of the 3"),
    "null": (not_a_record(b"null\n"), "has 0 readable lines of the 3"),
    "no text": (not_a_record(b"\xff\xfe\n"), "has 0 readable lines of the 3"),
    "fields of the wrong kind": (not_a_record(b'{"bytes": 5, "messages": {}, "train_loss": "x"}\n'), "has 0 readable"),
    "of other settings": (
        lambda lines: [line.replace(b'"train_loss": 0.', b'"train_loss": 1.') for line in lines],
        "differ",
    ),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_a_history_that_is_not_what_was_written(quiet, tmp_path, case):
    how, expected = HISTORIES[case]
    lab = kill(Lab(*quiet[:2], tmp_path, 0).begin(quiet[2]), in_round_7)
    path = tmp_path / HUB / "history.jsonl"
    path.write_bytes(b"".join(how(path.read_bytes().splitlines(keepends=True))))
    sentence = exact_or_refused(lab, quiet[2])
    if expected is None:
        assert sentence is None
    else:
        assert f"{path} " in sentence
        assert expected in sentence
        assert "Copy history.jsonl from another hub's run folder" in sentence


def test_the_history_of_another_hub_repairs_that_of_a_damaged_one(quiet, tmp_path):
    lab = kill(Lab(*quiet[:2], tmp_path, 0).begin(quiet[2]), in_round_7)
    path = tmp_path / HUB / "history.jsonl"
    path.write_bytes(b"")
    assert "Copy history.jsonl" in refusal(lab)
    shutil.copy(tmp_path / OTHER / "history.jsonl", path)
    assert exact_or_refused(lab, quiet[2]) is None


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("file", ["history.jsonl", "hub.json", "shutdown.tdcd", "checkpoint/0.tdcd"])
def test_a_file_damaged_after_the_end_of_the_run(quiet, another, tmp_path, file, how):
    lab = kill(Lab(*quiet[:2], tmp_path, 0).begin(quiet[2]), at_the_end)
    if how is of_another_hub:
        # It comes to its end too, and waits for this one's good-bye.
        lab.until((tmp_path / OTHER / "shutdown.tdcd").exists)
    damage(lab, file, how, another[1])
    sentence = exact_or_refused(lab, quiet[2])
    is_needed = file in ("hub.json", "shutdown.tdcd") or (
        file == "history.jsonl" and how in (truncated, emptied, changed, removed)
    )
    assert (sentence is not None) == is_needed, sentence
    if sentence is not None and (file, how) != ("hub.json", of_another_hub):
        assert "The other parties wait" not in sentence
        assert "The run has ended, and parties that do not know it yet wait: " in sentence
        assert "start over" not in sentence


@pytest.mark.parametrize("how", [truncated, emptied, changed, removed], ids=lambda how: how.__name__)
def test_a_folder_that_holds_the_whole_run_is_not_called_whole_when_its_history_is_not(quiet, tmp_path, how):
    lab = Lab(*quiet[:2], tmp_path, 0).run(quiet[2])
    how(tmp_path / HUB / "history.jsonl", ())
    with pytest.raises(
        ValueError,
        match=r"history\.jsonl (has|is not as it was written).* The run has ended, and no party waits: copy history",
    ):
        lab.start(HUB)
    shutil.copy(tmp_path / OTHER / "history.jsonl", tmp_path / HUB)
    lab.start(HUB)
    assert lab.outcomes[HUB] == "finished"


@pytest.mark.parametrize("content", ["5", "null", "[]", '"hub"', "{}", '{"hub": "hub.lab"}', "", "{"])
def test_a_hub_json_that_is_none(quiet, tmp_path, content):
    HubFolder(tmp_path / "run", Job(quiet[0]), 1).close()
    path = tmp_path / "run" / "hub.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{path} is damaged: .*{WAY_ON}"):
        HubFolder(tmp_path / "run", Job(quiet[0]), 1)


def test_a_hub_that_lost_its_checkpoints_early_says_how_far_behind_it_is_and_the_others_wait(tmp_path):
    """Its history does not tell how far it was, so it learns it from the others."""
    config, data = prepared(**{**KEYS, "evaluate": {"every": 9}})
    reference, _ = reference_of(config, data, tmp_path / "reference")
    lab = kill(Lab(config, data, tmp_path / "run", 0).begin(reference), in_round_7)
    shutil.rmtree(lab.folder / HUB / "checkpoint")
    sentence = exact_or_refused(lab, reference)
    assert re.search(f"{HUB} was restored to round 0, and {OTHER} is at round [78] and no longer has", sentence)
    assert WAY_ON in sentence


@pytest.mark.parametrize("saved_in", [3, 5])
def test_a_backup_of_two_rounds_before_will_do_and_an_older_one_is_refused(quiet, tmp_path, saved_in):
    lab = Lab(*quiet[:2], tmp_path, 0).begin(quiet[2])
    lab.until(lambda: lab.drivers[HUB].hub.round == saved_in and lab.drivers[HUB].hub.phase == "stepping")
    shutil.copytree(tmp_path / HUB, tmp_path / "older")
    kill(lab, in_round_7)
    shutil.rmtree(tmp_path / HUB)
    shutil.copytree(tmp_path / "older", tmp_path / HUB)
    sentence = exact_or_refused(lab, quiet[2])
    if saved_in == 5:
        assert sentence is None
    else:
        assert re.search(f"{HUB} was restored to round 3, and {OTHER} is at round [78] and no longer has", sentence)
        assert WAY_ON in sentence


def test_a_hub_that_comes_back_with_another_secret_leaves_alone(quiet, tmp_path):
    lab = kill(Lab(*quiet[:2], tmp_path, 0).begin(quiet[2]), in_round_7)
    right, lab.secret = lab.secret, bytes(32)
    sentence = refusal(lab)
    assert "have different secrets: give both the same federation.secret" in sentence
    assert [*lab.outcomes] == [HUB]
    lab.secret = right
    lab.outcomes.clear()
    assert exact_or_refused(lab, quiet[2]) is None


# Clients that were left out


GRACE = {"federation": {"client_grace_s": 5.0}, "train": {**CONFIG["train"], "rounds": 12}, "evaluate": {"every": 3}}


def absent_for_a_while(folder, seed=0):
    """A run that goes on without a client from round 4 on; its hub is killed two rounds later."""
    config, data = prepared(**GRACE)
    lab = Lab(config, data, folder, seed).begin()
    lab.until(lambda: lab.drivers[HUB].hub.round == 4)
    lab.crash(NORTH)
    lab.down[NORTH] = lab.now + 30
    return kill(lab, lambda lab: lab.drivers[HUB].hub.round == 7 and lab.drivers[HUB].hub.left_out() == [NORTH])


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__)
def test_absences_damaged_while_the_hub_is_down(tmp_path, how):
    lab = absent_for_a_while(tmp_path / "run")
    foreign = absent_for_a_while(tmp_path / "another", 1).folder / HUB
    other_hub = tmp_path / "other hub"
    other_hub.mkdir()
    folder = HubFolder(other_hub / "made", Job(lab.job.config), 0)
    folder.note_absence(Absence("client.clinic.c1", 4, "block"))
    folder.close()
    how(tmp_path / "run" / HUB / "absences.jsonl", (foreign, other_hub / "made"))
    sentence = refusal(lab)
    assert "absences.jsonl" in sentence
    assert WAY_ON in sentence
    restore(lab)
    assert refusal(lab) is None
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.history(HUB) == lab.history(OTHER)
    assert any(NORTH in Record.from_json(line).absent for line in lab.history(HUB))


def test_an_absence_after_the_last_checkpoint_is_guarded_too(tmp_path):
    job = Job(prepared(**GRACE)[0])
    folder = HubFolder(tmp_path / "run", job, 1)
    for absence in (Absence(NORTH, 4, "block"), Absence(NORTH, 6, None)):
        folder.note_absence(absence)
    folder.close()
    path = tmp_path / "run" / "absences.jsonl"
    path.write_text(path.read_text().replace('"round": 6', '"round": 7'))
    with pytest.raises(ValueError, match=f"{path}, line 2 is not as it was written"):
        HubFolder(tmp_path / "run", job, 1)
