"""Masks against a hub that deviates: it sends other numbers than its own to hubs that were restarted, or to some."""

import numpy as np
import pytest

from support.in_process import InProcess
from support.parts import between_hubs
from support.simulated import RIDGE, with_keys
from tdcd.config.resolve import plan
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.messages.structure import Array, Message

MASK = {"silos": [*RIDGE["silos"], {"name": "shop", "clients": 3}], "exchange": {"protect": "mask"}}
OTHERS = ("hub.clinic", "hub.shop")
ROUND = 2


class Deviating(InProcess):
    """The hub of the lab adds one to what it sends some hubs in one round: slopes, or phi if all have labels.

    Nonces, keys and run are those of an honest run, as if all others were restarted and were sent other numbers.
    """

    def __init__(self, config, data, victims):
        super().__init__(config, data, seed=1)
        self.victims, self.flow = victims, "slope" if config.federation.labels else "phi"

    def act(self, party, instructions):
        super().act(party, [self._sent(one) if isinstance(one, Message) else one for one in instructions])

    def _sent(self, message):
        is_theirs = message.sender == "hub.lab" and message.receiver in self.victims
        if not is_theirs or not between_hubs(message, self.flow) or message.round != ROUND:
            return message
        arrays = {name: Array.of(one.values + one.values.dtype.type(1)) for name, one in message.arrays.items()}
        return message.replace(arrays=arrays)


@pytest.fixture(scope="module", params=["lab", None], ids=["labels at one silo", "labels everywhere"])
def parties(request):
    config = with_keys(RIDGE, **MASK, federation={"labels": request.param} if request.param else {})
    return config, shards(plan(config)), InProcess(config, shards(plan(config)), seed=1).run()


def phi_of(office, hub, round_index):
    """What a hub sent of its masked phi of a round."""
    sent = (message for message in office.sent if between_hubs(message, "phi"))
    return next(m.arrays["phi"].values for m in sent if (m.sender, m.round) == (hub, round_index))


def assert_noise(numbers):
    """All bits are even."""
    bits = np.unpackbits(np.ascontiguousarray(numbers).view(np.uint8)).reshape(-1, 32)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))


def test_what_follows_from_other_numbers_has_other_masks(parties):
    """With the same stream for both, the difference of two messages would be that of two phi."""
    config, data, honest = parties
    again = Deviating(config, data, OTHERS).run()
    for hub in OTHERS:
        assert (phi_of(honest, hub, ROUND) == phi_of(again, hub, ROUND)).all()
        assert_noise(phi_of(honest, hub, ROUND + 1) - phi_of(again, hub, ROUND + 1))


def test_masks_do_not_cancel_where_hubs_were_sent_different_things(parties):
    """The hub that sent them gets a sum that is noise, even if it alone carries digests between the others."""
    config, data, honest = parties
    split = Deviating(config, data, OTHERS[:1]).run()
    sums = [sum(phi_of(office, hub, ROUND + 1) for hub in OTHERS) for office in (honest, split)]
    assert_noise(sums[0] - sums[1])
