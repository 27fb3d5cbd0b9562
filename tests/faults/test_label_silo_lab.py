"""Crashes, bad links and lies in the laboratory where one silo alone has labels."""

import json
import re
from dataclasses import replace

import pytest
from lab import LABELS, ROUGH, Lab, in_mode, prepared, reference_of
from test_left_out import NORTH, Leaving

from tdcd.runtime.messages.structure import Array
from tdcd.runtime.messages.wire import decode, encode

HUBS = ["hub.clinic", "hub.lab", "hub.bank"]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Config, rows, the history to which nothing happened, and the failpoints on its way."""
    config, data = prepared(**in_mode(LABELS))
    return config, data, *reference_of(config, data, tmp_path_factory.mktemp("quiet") / "run")


@pytest.mark.parametrize("seed", range(4))
def test_crashes_and_bad_links(quiet, tmp_path, seed):
    config, data, reference, _ = quiet
    lab = Lab(config, data, tmp_path, seed, ROUGH).run(reference)
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.counts["crash of a hub"] + lab.counts["crash of a client"] > 0


def test_a_crash_at_every_failpoint_of_hubs_parts_and_files(quiet, tmp_path):
    """Those of what hubs tell each other, and of what they write; scenarios.py has all."""
    config, data, reference, failpoints = quiet
    sent = tuple(f"hub send.{flow}." for flow in ("phi", "slope", "scores", "figures"))
    found = {place: hits for place, hits in failpoints.items() if place.startswith(sent)}
    found |= {place: hits for place, hits in failpoints.items() if place.startswith(("hub save", "hub append"))}
    assert {"hub send.slope.before", "hub send.figures.after", "hub send.phi.before"} <= {*found}
    for place, hits in sorted(found.items()):
        lab = Lab(config, data, tmp_path / place, 0)
        lab.crash_at = place, (hits + 1) // 2
        lab.run(reference)
        assert set(lab.outcomes.values()) == {"finished"}, place
        assert sum(lab.counts.values()) == 1, place


@pytest.mark.parametrize("seed", range(2))
def test_the_same_divergence_after_crashes(tmp_path, seed):
    config, data = prepared(**in_mode(LABELS, train={"step_size": 1e30}, evaluate={"every": 1}))
    reference, _ = reference_of(config, data, tmp_path / "reference")
    assert json.loads(reference[-1])["diverged"]
    lab = Lab(config, data, tmp_path / "run", seed, replace(ROUGH, crashed=0.03)).run(reference)
    assert set(lab.outcomes.values()) == {"diverged"}


def test_a_shared_model_after_crashes(tmp_path):
    config, data = prepared(**in_mode(LABELS, federation={"labels": "lab", "share_model": True}))
    reference, _ = reference_of(config, data, tmp_path / "reference")
    Lab(config, data, tmp_path / "run", 1, ROUGH).run(reference)
    models = [{p.name: p.read_bytes() for p in (tmp_path / "run" / hub / "model").iterdir()} for hub in HUBS]
    assert models[0] == models[1] == models[2]
    assert len(models[0]) == 3


@pytest.mark.parametrize(("holder", "seed"), [("lab", 0), ("clinic", 1), ("bank", 2)])
def test_crashes_bad_links_and_short_patience(tmp_path, holder, seed):
    """Clients with labels, and clients without, are left out again and again."""
    federation = {"labels": holder, "client_grace_s": 1.5}
    config, data = prepared(**in_mode(LABELS, federation=federation, train={"rounds": 24}))
    lab = Leaving(config, data, tmp_path, seed, replace(ROUGH, crashed=0.007))
    history = lab.run()
    assert any(record.absent for record in history)
    assert lab.history("hub.bank") == lab.history("hub.lab")


def test_a_run_continues_without_a_client_and_with_it_again(tmp_path):
    federation = {"labels": "clinic", "client_grace_s": 3.0}
    config, data = prepared(**in_mode(LABELS, federation=federation, train={"rounds": 16}))
    lab = Leaving(config, data, tmp_path, 0)
    lab.returns_after = 7.0
    history = lab.run()
    absent = [one for record in history for one in record.absent.get(NORTH, [])]
    assert absent[0] == 4
    assert absent == [*range(absent[0], absent[-1] + 1)]


class Liar(Lab):
    """The hub with the labels tells two others slopes of one round that differ by a little."""

    def post(self, sender, receiver, data):
        if (sender, receiver) == ("hub.lab", "hub.bank"):
            message = decode(data, sender=sender, receiver=receiver)
            if message.kind == "slope" and message.round == 2:
                slope = message.arrays["slope"].values
                data = encode(message.replace(arrays={"slope": Array.of(slope + slope.dtype.type(1e-3))}))
        super().post(sender, receiver, data)


def test_a_hub_that_sends_two_others_different_slopes_is_named(quiet, tmp_path):
    config, data, *_ = quiet
    lab = Liar(config, data, tmp_path, 0).begin()
    lab.until_over()
    assert set(lab.outcomes.values()) == {"refused"}
    for hub in lab.job.hubs:
        reason = json.loads((tmp_path / hub / "status.json").read_text())["last_error"]
        assert re.search(r"hub\.lab sent hub\.\w+ and hub\.\w+ different things", reason), reason
        assert "hub.bank" in reason
