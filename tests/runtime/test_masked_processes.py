"""Masks and encrypted slopes between real processes over mutual TLS: the simulation's history, and no key is left."""

import pytest

from support.simulated import RIDGE, simulated
from tdcd.config import check_config
from tdcd.records.history import read_history
from tdcd.records.run_folder import toml_text
from tdcd.runtime.process.trial import Trial

pytestmark = pytest.mark.slow
CASES = {
    "between hubs": {
        "silos": [{"name": name, "clients": 1} for name in ("clinic", "lab", "shop")],
        "exchange": {"protect": "mask"},
    },
    "encrypted slopes": {
        "silos": [{"name": name, "clients": 1} for name in ("clinic", "lab")],
        "federation": {"labels": "clinic", "protect_labels": "encrypt"},
        "train": {**RIDGE["train"], "local_steps": 1},
    },
    "inside a silo": {"silos": [{"name": "clinic", "clients": 3}], "exchange": {"protect_blocks": True}},
}


@pytest.mark.parametrize("name", CASES)
def test_real_parties_mask_what_the_simulation_adds_up(tmp_path, name):
    if name == "encrypted slopes":
        pytest.importorskip("tenseal")
    keys = {**RIDGE, **CASES[name]}
    (tmp_path / "shared.toml").write_text(toml_text(keys))
    trial = Trial.prepare(tmp_path / "shared.toml", [], tmp_path / "trial")
    outcome = trial.run(lambda: None, lambda: False)
    assert outcome.status == "finished", outcome
    expected = simulated(check_config(keys))[1].history
    for silo in CASES[name]["silos"]:
        home = tmp_path / "trial" / "silos" / silo["name"]
        for ours, theirs in zip(read_history(home / "history.jsonl"), expected, strict=True):
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-9)
            assert ours.bytes == theirs.bytes
        assert not (home / "mask.key").exists()
    # Nor what hid clients' answers: next to certificates are those of parties alone.
    keys_left = [path.name for path in (tmp_path / "trial" / "certs").glob("client.*.key")]
    assert all(len(name.split(".")) == 4 for name in keys_left)
    assert len(keys_left) == sum(silo["clients"] for silo in CASES[name]["silos"])
