"""``held-out.csv`` of hubs whose clients have ready arrays: that of the simulation of the same file."""

import csv

import pytest

from support.in_process import InProcess
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.storage.hub_folder import HubFolder
from tdcd.training.train import train_plan

SILOS = [{"name": "a", "hub": "127.0.0.1:7001", "clients": 2}, {"name": "b", "hub": "127.0.0.1:7002", "clients": 1}]


def rows_in(folder):
    with (folder / "held-out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("source", ["diabetes", "digits", "breast_cancer"])
def test_hubs_write_what_the_simulation_writes(source, tmp_path):
    keys = {
        "data": {"source": source, "rows": 60},
        "model": {"block": "linear"},
        "train": {"step_size": 0.05, "rounds": 2, "batch_size": 8, "local_steps": 2},
        "silos": SILOS,
    }
    config = check_config(keys)
    planned = plan(config)
    train_plan(planned, tmp_path / "run")
    wanted = rows_in(tmp_path / "run")
    assert len(wanted) == 12
    office = InProcess(config, shards(planned)).run()
    for hub, machine in office.hubs.items():
        folder = HubFolder(tmp_path / hub, machine.job, machine.handshake.silo)
        folder.save_held_out(machine.handshake, office.test_scores[hub])
        folder.close()
        found = rows_in(tmp_path / hub)
        for ours, theirs in zip(wanted, found, strict=True):
            assert [*ours] == [*theirs]
            assert (ours["sample"], ours["label"]) == (theirs["sample"], theirs["label"])
            numbers = [name for name in ours if source == "diabetes" or name.startswith("probability")]
            assert [float(ours[name]) for name in numbers] == pytest.approx(
                [float(theirs[name]) for name in numbers], rel=1e-4, abs=1e-6
            )
