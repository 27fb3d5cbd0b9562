"""A hub that comes back after the end of its run waits for those alone who have not confirmed it."""

from lab import Lab, prepared

HUB, SOUTH = "hub.lab", "client.lab.south"


def test_a_hub_that_comes_back_waits_for_those_who_have_not_confirmed(tmp_path):
    lab = Lab(*prepared(), tmp_path, seed=0).begin()
    hub = lab.drivers[HUB]
    lab.until(lambda: hub.hub.round == 1)
    lab.until(lambda: hub.hub.shutdown is not None)
    # One client is gone before it hears of the end.
    lab.crash(SOUTH)
    lab.down.clear()
    lab.until(lambda: [*hub.hub.missing()] == [SOUTH])
    # It crashes right after the last confirmation that it got.
    lab.crash(HUB)
    lab.down.clear()
    lab.start(HUB)
    assert [*lab.drivers[HUB].hub.missing()] == [SOUTH]
    lab.start(SOUTH)
    lab.until_over()
    assert set(lab.outcomes.values()) == {"finished"}
