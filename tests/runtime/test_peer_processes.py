"""Which process of a peer a process is linked with, event by event."""

import pytest

from tdcd.runtime.transport.processes import CHOSEN, MOST_PROCESSES, REFUSED, TAKEN, PeerProcesses, Process
from tdcd.runtime.transport.transport import Joined, Left

pytestmark = pytest.mark.quick

OWN, PEER = (Process("align", protocol=10, since=since, nonce=f"{since:016x}") for since in (1, 2))


def processes():
    return PeerProcesses(OWN, "hub.bank", "hub.shop")


def test_a_link_is_up_when_each_has_chosen_the_other_and_was_informed():
    link = processes()
    assert link.came(PEER.word) == []
    assert link.received_choice(PEER.nonce, CHOSEN, "") == []
    assert link.announced(PEER.nonce) == [Joined("hub.shop")]


def test_a_message_that_comes_before_the_own_choice_is_known_to_be_sent_is_received():
    """Otherwise it is lost: its sender has seen the link come up, and sends it once."""
    link = processes()
    link.came(PEER.word)
    link.received_choice(PEER.nonce, CHOSEN, "")
    assert link.received_message(PEER.nonce) == [Joined("hub.shop")]
    assert link.accepts(PEER.nonce)
    assert link.announced(PEER.nonce) == []


@pytest.mark.parametrize("choice", [None, TAKEN])
def test_a_message_of_a_process_that_has_not_chosen_this_one_is_not(choice):
    link = processes()
    link.came(PEER.word)
    if choice is not None:
        link.received_choice(PEER.nonce, choice, OWN._replace(nonce="f" * 16).word)
    assert link.received_message(PEER.nonce) == []
    assert not link.accepts(PEER.nonce)
    assert link.received_message("e" * 16) == []


def test_a_process_that_does_not_prove_who_it_is_has_no_link_until_it_does():
    link = processes()
    link.came(PEER.word)
    link.received_choice(PEER.nonce, CHOSEN, "")
    link.announced(PEER.nonce)
    assert link.doubted(PEER.nonce, "no proof") == [Left("hub.shop")]
    assert (link.unfit, link.unsent[PEER.nonce]) == ("no proof", (REFUSED, b"no proof"))
    assert link.received_message(PEER.nonce) == []
    # However many come, few are remembered, and few are answered.
    for number in range(2 * MOST_PROCESSES):
        link.doubted(f"{number:032x}", "no proof")
    assert len(link.unsent) <= MOST_PROCESSES + 1
    link.received_choice(PEER.nonce, CHOSEN, "")
    assert link.announced(PEER.nonce) == [Joined("hub.shop")]
