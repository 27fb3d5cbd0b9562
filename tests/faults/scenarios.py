"""``python tests/faults/scenarios.py [--every-failpoint | --corrupted 1000] [--mode labels]``: real processes, timed.

One federation of 2 silos x 2 clients, with a third silo in the mode "labels" and a proxy on the link between two hubs,
goes through all of it, and must end with the history of the run to which nothing happened. With ``--corrupted`` all
links have proxies that flip bits.
"""

import argparse
import signal
import tempfile
import time
from pathlib import Path

from lab import IN_STEP, LABELS, MODES, in_mode
from processes import PATIENCE_S, Processes, reference

LINK = ("hub.clinic", "hub.lab")
"""Of two hubs the one whose name comes later dials."""
KEYS = {"rounds": 2500, "evaluate": {"every": 4}}
SLOWER_S = 0.03
"""What the proxy adds to every message between the hubs, so that the run does not end too soon."""
CORRUPTION = 0.05
"""The share of chunks with a flipped bit."""


def sent(*kinds):
    """The failpoints around what is sent in every round."""
    return [f"send.{kind}.{when}:4" for kind in kinds for when in ("before", "after")]


HUB_FAILPOINTS = [
    *(f"send.{kind}.{when}" for kind in ("who", "welcome", "hello", "opening", "want") for when in ("before", "after")),
    *sent("block", "received", "evaluated"),
    *(f"save.{place}:2" for place in ("before", "half", "written", "after")),
    *(f"append.{place}:2" for place in ("before", "after")),
]
CLIENT_FAILPOINTS = [
    *(f"send.{kind}.{when}" for kind in ("enrol", "ready") for when in ("before", "after")),
    *(f"send.{kind}.{when}:3" for kind in ("phi", "block", "scores") for when in ("before", "after")),
]
PART_FAILPOINTS = {"hub.lab": sent("phi", "scores")}
LABEL_PART_FAILPOINTS = {
    "hub.lab": sent("slope", "figures"),
    "hub.clinic": [*sent("phi", "scores"), "send.want.before"],
}
"""Those of what hubs send each other: everywhere, and where the lab alone has labels."""
LAST_FAILPOINTS = {
    "hub.lab": ["finish.before", "rename.shutdown.tdcd", "rename.hub.json", "finish.after", "send.stop.before"],
    "client.lab.north": ["send.bye.before"],
}
"""Those of the end of a run, one after the other."""


def stopped_client(parties, seconds):
    """SIGSTOP a client: how long until its hub names it, and how long after SIGCONT until the next round."""
    party = "client.lab.north"
    parties.kill(party, signal.SIGSTOP)

    def is_named():
        status = parties.statuses()["hub.lab"]
        return party in status["missing_s"] and party not in status["connected"]

    named = parties.until(is_named, "the stopped client is named")
    parties.until(lambda: parties.statuses()["hub.lab"]["missing_s"][party] > seconds, "the hub counts the seconds")
    parties.kill(party, signal.SIGCONT)
    return named, parties.until(parties.moved(), "a round after the client went on")


def cut_link(parties, seconds, how="cut"):
    """Cut or stall the link between the hubs, heal it: how long until the next round."""
    proxy = parties.proxy
    getattr(proxy, how)()
    parties.until(lambda: all(status["missing_s"] for status in parties.statuses().values()), "the cut is noticed")
    time.sleep(seconds)
    proxy.heal()
    return parties.until(parties.moved(), "a round after the link was healed")


def corrupted_link(parties):
    """Flip a bit on the link between the hubs: how long until the next round."""
    parties.proxy.corrupt()
    time.sleep(0.2)
    return parties.until(parties.moved(), "a round after a corrupted byte")


def corrupted_links(parties, chunks):
    """Flip bits on all links until ``chunks`` were corrupted: how long that took, and then until the next round."""
    for proxy in parties.proxies:
        proxy.corruption = CORRUPTION

    def is_enough():
        return parties.is_over or sum(proxy.corrupted for proxy in parties.proxies) >= chunks

    took = parties.until(is_enough, f"{chunks} corrupted chunks")
    assert not parties.is_over
    for proxy in parties.proxies:
        proxy.heal()
    return took, parties.until(parties.moved(), "a round after the last corrupted byte")


def killed(parties, *victims):
    """SIGKILL parties at once: how long until the next round."""
    for victim in victims:
        parties.kill(victim)
    moved = parties.moved()
    return parties.until(moved, f"a round after {victims} were killed")


def failpoint(parties, party, place):
    """Start a party that dies at a failpoint, and again: how long from that death until the next round."""
    before = sum(parties.kills.values())
    parties.armed[party] = [place]
    parties.kill(party)
    parties.until(lambda: sum(parties.kills.values()) >= before + 2, f"{party} dies at {place}")
    return parties.until(parties.moved(), f"a round after {party} died at {place}")


def terminated(parties, party):
    """SIGTERM: a party leaves by itself with status 130, and its command goes on from there."""
    parties.kill(party, signal.SIGTERM)
    assert parties.trial.processes[party].wait(PATIENCE_S) == 130
    parties.start(party)
    return parties.until(parties.moved(), f"a round after {party} was terminated")


def one_after_the_other(parties):
    """Everything that can befall a client, a hub or the link between hubs."""
    named, back = stopped_client(parties, 20)
    print(f"client stopped for 20 s: named after {named:.1f} s, next round {back:.1f} s after it went on")
    for how in ("cut", "stall"):
        print(f"link between hubs, {how} 10 s: next round {cut_link(parties, 10, how):.1f} s after healing")
    print(f"a corrupted byte between hubs: next round after {corrupted_link(parties):.1f} s")
    for victims in (["client.lab.north"], ["hub.lab"], parties.trial.job.hubs, parties.parties):
        print(f"killed {len(victims)} ({victims[0]}, ...): next round after {killed(parties, *victims):.1f} s")
    print(f"hub terminated: next round after {terminated(parties, 'hub.lab'):.1f} s")


def every_failpoint(parties, parts):
    """Each failpoint of hubs and a client in turn; those of the end of a run stay armed."""
    for party, places in (("hub.lab", HUB_FAILPOINTS), *parts.items(), ("client.lab.north", CLIENT_FAILPOINTS)):
        for place in places:
            print(f"{party} at {place}: {failpoint(parties, party, place):.1f} s", flush=True)
    parties.armed |= {party: [*places] for party, places in LAST_FAILPOINTS.items()}
    print(f"killed {len(LAST_FAILPOINTS)}: next round after {killed(parties, *LAST_FAILPOINTS):.1f} s")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--every-failpoint", action="store_true")
    options.add_argument("--corrupted", type=int, metavar="CHUNKS")
    options.add_argument("--mode", choices=MODES, default=IN_STEP, help="which member of the family")
    given = options.parse_args()
    keys = {**KEYS, **in_mode(given.mode, **{key: value for key, value in KEYS.items() if isinstance(value, dict)})}
    with tempfile.TemporaryDirectory(prefix="tdcd-scenarios-") as home:
        expected = reference(Path(home) / "reference", **keys)
        where = {"link": LINK} if given.corrupted is None else {"everywhere": True}
        with Processes(Path(home) / "run", **where, **keys) as parties:
            if given.corrupted is None:
                parties.proxy.delay_s = SLOWER_S
            parties.start_all()
            parties.until(lambda: min(parties.rounds()) >= 1, "the first round")
            if given.corrupted is not None:
                took, back = corrupted_links(parties, given.corrupted)
                print(f"{given.corrupted} corrupted chunks: {took:.1f} s; next round after {back:.1f} s")
            elif given.every_failpoint:
                every_failpoint(parties, LABEL_PART_FAILPOINTS if given.mode == LABELS else PART_FAILPOINTS)
            else:
                one_after_the_other(parties)
            parties.check(expected)
            assert not parties.is_over
            for proxy in parties.proxies:
                proxy.delay_s = 0.0
            parties.until(lambda: parties.is_over, "the end")
            assert all(history == expected for history in parties.histories())
            assert not any(parties.armed.values())
            print(f"SIGKILLs: {dict(parties.kills)}")
    print("the history is bit-identical")


if __name__ == "__main__":
    main()
