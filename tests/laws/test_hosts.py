"""Several processes of which each has the rows of its own clients only give what one process gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from host_cases import FAMILY, LOSS, VARIANT, federation_config, train_ranges, write_tables

from support.ports import free_address
from support.problems import Problem
from tdcd.config import ConfigError, check_config
from tdcd.config.resolve import plan
from tdcd.federation.hosts import HostRows, Hosts
from tdcd.federation.placement import Held
from tdcd.federation.silos import Federation, Silo
from tdcd.training.run import resume
from tdcd.training.train import train_plan


def history(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_two_processes_give_what_one_gives(tmp_path, monkeypatch):
    simulation = Problem.draw(FAMILY, LOSS, 3, "shuffled").simulation(variant=VARIANT)
    blocks = simulation.advance(simulation.init(), 0, 4).blocks
    np.savez(tmp_path / "expected.npz", *(block["weight"] for block in blocks))
    # Of the bank's clients, the first two are at process 0.
    for name, clients in (("host0", (1, 2)), ("host1", (3,)), ("one", (1, 2, 3))):
        write_tables(tmp_path / name, clients)
    address = free_address()
    script = str(Path(__file__).parent / "host_process.py")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    together = [
        subprocess.Popen(
            [sys.executable, script, address, str(process), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(2)
    ]
    monkeypatch.chdir(tmp_path / "one")
    config = check_config(federation_config(rounds=6))
    train_plan(plan(config), tmp_path / "alone")
    outputs = [running.communicate(timeout=500)[0] for running in together]
    assert [running.returncode for running in together] == [0, 0], "\n".join(outputs)
    ours, theirs = history(tmp_path / "together"), history(tmp_path / "alone")
    assert [line["round"] for line in ours] == [0, 3, 6]
    for one, other in zip(ours, theirs, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-10)
        assert one["metrics"]["test"] == pytest.approx(other["metrics"]["test"], rel=1e-10)
    assert theirs[-1]["train_loss"] < theirs[0]["train_loss"]
    for name in ("prepared.json", "held-out.csv", "subsets.json"):
        files = [tmp_path / folder / name for folder in ("together", "alone")]
        assert all(file.is_file() == files[0].is_file() for file in files)
    # Labels and row numbers of mapped files are at no host whole; one process continues what several began.
    for rounds in (4, 8):
        train_ranges(tmp_path / f"ranges-one{rounds}", tmp_path / "ranges-alone", rounds, resume=rounds > 4)
    train_ranges(tmp_path / "ranges-again", tmp_path / "ranges-together", 8, resume=True)
    ours, theirs = history(tmp_path / "ranges-together"), history(tmp_path / "ranges-alone")
    assert [line["round"] for line in ours] == [0, 2, 4, 6, 8]
    for one, other in zip(ours, theirs, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-10)
        assert one["metrics"]["train"] == pytest.approx(other["metrics"]["train"], rel=1e-10)
    assert theirs[-1]["train_loss"] < theirs[0]["train_loss"]
    data = [json.loads((tmp_path / name / "federation.json").read_text()) for name in ("together", "alone")]
    assert data[0] == data[1]
    errors = [(tmp_path / f"error{process}").read_text() for process in range(2)]
    assert errors[0] == f"process 1: {errors[1]}"
    assert "c3.csv: there is no such file" in errors[1]
    # One process continues what several began: they know the data by the same digest.
    assert resume(tmp_path / "together", ["train.rounds=9"]).history[-1].round == 9


def hosts_of(line: tuple[int, ...], here: int) -> Hosts:
    return Hosts(line, here, lambda message: [message])


def test_every_client_is_at_one_host():
    for line in ((0, 1), (0, 0, 1, 1), (0, 1, 2)):
        for clients in (1, 2, 5, 7):
            has = [hosts_of(line, here).has(clients) for here in sorted(set(line))]
            assert (np.sum(has, axis=0) == 1).all()


def test_a_row_of_another_process_is_not_found():
    rows = HostRows.keep(np.arange(12.0).reshape(6, 2), Held.of([np.array([4, 1])]))
    assert rows.rows.tolist() == [[2, 3], [8, 9]]
    assert rows.held.numbers().tolist() == [1, 4]
    assert rows[np.array([4])].tolist() == [[8, 9]]
    with pytest.raises(IndexError, match="sample 2 is in another process"):
        rows[np.array([1, 2])]


def test_algorithms_that_gather_rows_are_refused():
    config = check_config({"data": {"source": "diabetes"}, "train": {"algorithm": "fedbcd"}})
    with pytest.raises(ConfigError, match="needs each silo's rows in one place"):
        plan(config, hosts=hosts_of((0, 1), 0))


def test_held_out_rows_are_with_clients():
    rows = (np.array([0, 2]), np.array([1, 3]))
    silo = Silo("bank", np.zeros((4, 2)), rows, test_features=np.zeros((3, 2)))
    assert [own.tolist() for own in silo.test_rows] == [[0, 1], [2]]
    assert Federation((silo,), np.zeros(4), np.zeros(3)).num_samples == 4
