"""Crashes and bad links where what hubs send is masked: a hub that comes back makes the same masks again."""

from dataclasses import replace

import pytest
from lab import CONFIG, ROUGH, Lab, in_mode, prepared, reference_of
from test_left_out import Leaving

MASKED = ["mask", "mask, overlap 1, period 4", "mask, protect blocks", "noise on blocks"]
"""All modes: see campaign.py."""


@pytest.fixture(scope="module", params=MASKED)
def masked(request, tmp_path_factory):
    """Config, rows, and the history to which nothing happened."""
    config, data = prepared(**in_mode(request.param))
    return config, data, reference_of(config, data, tmp_path_factory.mktemp("masked") / "run")[0]


@pytest.mark.parametrize("seed", range(2))
def test_crashes_and_bad_links(masked, tmp_path, seed):
    config, data, reference = masked
    lab = Lab(config, data, tmp_path, seed, ROUGH).run(reference)
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.counts["crash of a hub"] > 0
    assert not [*tmp_path.rglob("mask.key*")]
    files = [path for path in (tmp_path / "hub.lab").rglob("*") if path.is_file() and path.name != "hub.lock"]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}


@pytest.mark.parametrize("masked", MASKED[:1], indirect=True)
def test_a_hub_that_lost_its_key_cannot_continue(masked, tmp_path):
    """Its masks would no longer cancel: to the others it has begun another run. Put right, the same commands go on."""
    config, data, reference = masked
    lab = Lab(config, data, tmp_path, 0).begin()
    lab.until(lambda: lab.drivers["hub.lab"].hub.round == 2)
    lab.crash("hub.lab")
    key = tmp_path / "hub.lab" / "mask.key"
    kept = key.read_text()
    assert key.stat().st_mode & 0o777 == 0o600
    key.write_text("5" * 64)
    lab.until(lambda: "hub.lab" in lab.outcomes)
    assert lab.outcomes["hub.lab"] == "refused"
    assert "came with another key for masks" in (tmp_path / "hub.lab" / "status.json").read_text()
    assert "hub.clinic" not in lab.outcomes
    for party in [*lab.drivers]:
        lab.crash(party)
    key.write_text(kept)
    assert set(Lab(config, data, tmp_path, 1).run(reference).outcomes.values()) == {"finished"}


GONE = {
    "silos": [{"name": "clinic", "clients": 3}, {"name": "lab", "clients": ["north", "south", "west"]}],
    "exchange": {"protect_blocks": True},
}


@pytest.mark.parametrize("seed", range(3))
def test_sums_without_clients_that_are_gone(tmp_path, seed):
    """A grace period so short that clients are left out again and again, also in the middle of a sum; and crashes."""
    train = {**CONFIG["train"], "rounds": 16}
    config, data = prepared(**GONE, federation={"client_grace_s": 1.5}, train=train)
    lab = Leaving(config, data, tmp_path, seed, replace(ROUGH, crashed=0.007))
    history = lab.run()
    assert lab.counts["crash of a hub"] + lab.counts["crash of a client"] > 3
    assert any(record.absent for record in history)
