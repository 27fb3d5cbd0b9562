"""Crashes and bad links in the laboratory where slopes are encrypted."""

from collections import defaultdict

import pytest
from lab import ENCRYPT, ROUGH, Lab, in_mode, prepared, reference_of

from tdcd.runtime.messages.messages import Part
from tdcd.runtime.messages.wire import RejectedMessage, decode, digest

pytest.importorskip("tenseal")
ENCRYPTED = ("slope", "sealed", "share", "masked", "sums")
WHEN = ("before", "after")


class Watched(Lab):
    """It keeps a digest of every encrypted part that any party ever sends, damaged ones on the way left out."""

    def post(self, sender, receiver, data):
        message = self.read(data, sender, receiver)
        if isinstance(message, Part) and message.flow in ENCRYPTED:
            # Whether the key comes along depends on what the client has.
            arrays = {name: one for name, one in message.arrays.items() if not name.startswith("zero")}
            same = message.replace(arrays=arrays, digests={})
            self.sent[sender, receiver, message.flow, message.round].append(digest(same))
        super().post(sender, receiver, data)

    def read(self, data, sender, receiver):
        try:
            return decode(data, sender=sender, receiver=receiver)
        except RejectedMessage:
            return None

    def run(self, reference=None):
        self.sent = defaultdict(list)
        return super().run(reference)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Config, rows, the history to which nothing happened, and the failpoints on its way."""
    config, data = prepared(**in_mode(ENCRYPT))
    return config, data, *reference_of(config, data, tmp_path_factory.mktemp("quiet") / "run")


@pytest.mark.parametrize("seed", range(3))
def test_crashes_and_bad_links(quiet, tmp_path, seed):
    """The history stays, and nothing is ever encrypted or masked in two ways: a repeat is the same, byte for byte."""
    config, data, reference, _ = quiet
    lab = Watched(config, data, tmp_path, seed, ROUGH).run(reference)
    assert set(lab.outcomes.values()) == {"finished"}
    assert lab.counts["crash of a hub"] + lab.counts["crash of a client"] > 0
    assert {flow for _, _, flow, _ in lab.sent} == {*ENCRYPTED}
    assert any(len(digests) > 1 for digests in lab.sent.values())
    for key, digests in lab.sent.items():
        assert len({*digests}) == 1, key


def test_a_crash_at_every_failpoint_of_what_is_encrypted(quiet, tmp_path):
    config, data, reference, failpoints = quiet
    places = {f"{role} send.{flow}.{when}" for role in ("hub", "client") for flow in ENCRYPTED for when in WHEN}
    found = {place: hits for place, hits in failpoints.items() if place in places}
    assert len(found) == len(WHEN) * len(ENCRYPTED)
    for place, hits in sorted(found.items()):
        lab = Watched(config, data, tmp_path / place, 0)
        lab.crash_at = place, (hits + 1) // 2
        lab.run(reference)
        assert set(lab.outcomes.values()) == {"finished"}, place
        assert all(len({*digests}) == 1 for digests in lab.sent.values()), place
