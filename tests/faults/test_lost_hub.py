"""Real processes: a hub whose folder was damaged while it was down refuses with a sentence, and the others wait."""

import shutil
import signal

import pytest
from processes import Processes, reference

HUB = "hub.lab"
KEYS = {"rounds": 40, "evaluate": {"every": 4}}
WAY_ON = (
    "The other parties wait: restore the run folder from a newer backup and give the same command again; or start over "
    "everywhere, with a new folder for every hub"
)


def damaged_checkpoints(folder):
    for path in (folder / "checkpoint").iterdir():
        path.write_bytes(path.read_bytes()[:-1])


def damaged_history(folder):
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(["{}\n", *lines[1:]]))


def rewritten_about(content):
    return lambda folder: (folder / "hub.json").write_text(content)


DAMAGES = {
    "checkpoint/0.tdcd is not used: its content does not match its digest": damaged_checkpoints,
    "history.jsonl has 0 readable lines of the": damaged_history,
    "hub.json is damaged: its content does not match its digest": rewritten_about("5\n"),
    "hub.json is damaged: Expecting value": rewritten_about(""),
}


@pytest.mark.slow
def test_a_hub_that_lost_its_checkpoints_ends_alone_and_continues_from_a_backup(tmp_path):
    expected = reference(tmp_path / "quiet", **KEYS)
    with Processes(tmp_path / "run", **KEYS) as parties:
        folder, backup = parties.trial.folder / "silos" / "lab", tmp_path / "backup"
        processes, log = parties.trial.processes, parties.trial.folder / "logs" / f"{HUB}.log"
        parties.armed[HUB] = ["save.after:20"]
        parties.start_all()
        assert processes[HUB].wait(120) == -signal.SIGKILL
        shutil.copytree(folder, backup)
        for sentence, damage in DAMAGES.items():
            damage(folder)
            log.write_text("")
            parties.start(HUB)
            assert processes[HUB].wait(60) == 2
            words = log.read_text()
            assert sentence in words
            assert WAY_ON in words
            assert "Traceback" not in words
            assert [party for party in parties.parties if processes[party].poll() is not None] == [HUB]
            shutil.rmtree(folder)
            shutil.copytree(backup, folder)
        assert HUB in parties.statuses()["hub.clinic"]["missing"]
        parties.start(HUB)
        parties.until(lambda: parties.is_over, "the end")
        assert all(history == expected for history in parties.histories())
