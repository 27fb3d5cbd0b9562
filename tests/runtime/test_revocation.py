"""The list of revoked certificates: what it may contain, and what it does to real links."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from test_zenoh_transport import MARK, NONCE, eavesdrop, intruder

from support.transport_parties import (
    HUB,
    HUBS,
    NORTH,
    PEERS,
    SHOP,
    SHOP_NORTH,
    SOON,
    SOUTH,
    Parties,
    ZenohNetwork,
    take,
    tls_of,
)
from tdcd.runtime.certificates.check import facts_of, read_certificate, read_key
from tdcd.runtime.certificates.issue import issue, list_of, revoke, throwaway
from tdcd.runtime.certificates.revocation import LOOK_S, REVOKED, RevocationList, WatchedList
from tdcd.runtime.storage.status import is_alive, lock
from tdcd.runtime.transport import zenoh_transport
from tdcd.runtime.transport.processes import Process
from tdcd.runtime.transport.transport import Joined, Left, Mailbox, Received

NOW = datetime.now(UTC)


def wait_until(happens, *ends):
    """Give parties the time to look at the list; they do so when they receive."""
    deadline = time.monotonic() + SOON
    while not happens():
        assert time.monotonic() < deadline, "it never happened"
        for end in ends:
            assert end.receive(0.1) is None
        time.sleep(0.05)


@pytest.fixture
def certs(tmp_path):
    folder = tmp_path / "certs"
    throwaway(folder, {hub: ["127.0.0.1"] for hub in HUBS}, [NORTH, SOUTH, SHOP_NORTH])
    return folder


# The list


class TestList:
    def test_names_continue_where_they_were_revoked(self):
        revoked = RevocationList(3, {NORTH: "ab", f"{NORTH}~2": "cd", SOUTH: "ef"})
        assert [revoked.current_name(party) for party in (NORTH, SOUTH, HUB)] == [f"{NORTH}~3", f"{SOUTH}~2", HUB]
        assert revoked.next_names(SOUTH, 3) == [f"{SOUTH}~2", f"{SOUTH}~3", f"{SOUTH}~4"]

    def test_every_revocation_makes_a_longer_list(self, certs):
        assert revoke(certs, [NORTH]).number == 1
        both = revoke(certs, [SOUTH, HUB])
        assert (both.number, set(both.keys)) == (2, {NORTH, SOUTH, HUB})
        issue(certs, NORTH)
        assert facts_of(read_certificate(certs / f"{NORTH}.pem")).common_name == f"{NORTH}~2"
        assert facts_of(read_certificate(certs / f"{NORTH}.pem")).name == NORTH
        assert set(revoke(certs, [NORTH]).keys) == {NORTH, f"{NORTH}~2", SOUTH, HUB}

    def test_other_tools_can_read_it(self, certs):
        old = read_certificate(certs / f"{NORTH}.pem")
        revoke(certs, [NORTH], NOW)
        crl = x509.load_pem_x509_crl((certs / REVOKED).read_bytes())
        assert crl.is_signature_valid(read_certificate(certs / "ca.pem").public_key())
        assert crl.get_revoked_certificate_by_serial_number(old.serial_number) is not None
        assert crl.get_revoked_certificate_by_serial_number(1) is None
        assert not any(entry.critical for one in crl for entry in one.extensions)

    @pytest.mark.parametrize(
        ("party", "text"),
        [
            (
                "client.bank.west",
                r"client\.bank\.west\.pem: there is no such file; client\.bank\.west has no certificate",
            ),
            (
                NORTH,
                r"client\.bank\.north\.pem was revoked already \(list 1\); client\.bank\.north has no",
            ),
        ],
    )
    def test_no_party_is_revoked_twice_or_without_a_certificate(self, certs, party, text):
        revoke(certs, [NORTH])
        before = (certs / REVOKED).read_bytes()
        with pytest.raises(ValueError, match=text):
            revoke(certs, [SOUTH, party])
        assert (certs / REVOKED).read_bytes() == before

    def test_only_the_issuer_can_write_it(self, certs):
        (certs / "ca.key").unlink()
        with pytest.raises(ValueError, match=r"ca\.key: there is no such file; only its holder"):
            revoke(certs, [NORTH])

    def test_what_it_says_against_a_certificate(self, certs, tmp_path):
        old = shutil.copytree(certs, tmp_path / "old")
        revoke(certs, [NORTH])
        issue(certs, NORTH)
        revoked = list_of(certs)
        assert not revoked.problems(certs / f"{NORTH}.pem")
        (text,) = revoked.problems(old / f"{NORTH}.pem")
        assert text.startswith(f"{old}/{NORTH}.pem was revoked (list 1, {certs}/revoked.crl); ask for a new one")
        (text,) = list_of(old).problems(certs / f"{NORTH}.pem")
        assert f"is for '{NORTH}~2', and list 0 ({old}/revoked.crl) expects '{NORTH}'; copy the issuer's latest" in text


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class TestWatching:
    @pytest.fixture
    def watched(self, certs):
        """A list in force that revokes one client, and what is said about later ones."""
        revoke(certs, [NORTH])
        told, clock = [], Clock()
        return WatchedList(certs / REVOKED, certs / "ca.pem", told.append, clock), told, clock

    def test_it_looks_once_a_second(self, certs, watched):
        watched, _, clock = watched
        assert not watched.is_due()
        clock.now = LOOK_S
        assert watched.is_due()
        assert not watched.changed()
        assert not watched.is_due()

    def test_a_newer_list_is_in_force_at_once(self, certs, watched):
        watched, told, _ = watched
        revoke(certs, [SOUTH])
        assert watched.changed()
        assert set(watched.current.keys) == {NORTH, SOUTH}
        assert told == [f"{certs}/revoked.crl: list 2 is in force; newly revoked: {SOUTH}"]
        assert not watched.changed()

    def test_a_first_list_may_come_later(self, certs):
        told = []
        watched = WatchedList(certs / REVOKED, certs / "ca.pem", told.append)
        assert not watched.changed()
        revoke(certs, [NORTH])
        assert watched.changed()
        assert watched.current.number == 1

    @pytest.mark.parametrize(
        "wrong", ["cut off", "empty", "a certificate", "foreign", "forged", "older", "gone", "rival"]
    )
    def test_a_wrong_list_is_refused_and_the_last_good_one_stays(self, certs, watched, tmp_path, wrong):
        watched, told, _ = watched
        path, first = certs / REVOKED, (certs / REVOKED).read_bytes()
        backup = shutil.copytree(certs, tmp_path / "backup")
        revoke(certs, [SOUTH])
        assert watched.changed()
        second = path.read_bytes()
        told.clear()
        if wrong == "gone":
            path.unlink()
        else:
            path.write_bytes(wrong_list(wrong, certs, backup, first, second, tmp_path))
        assert not watched.changed()
        assert not watched.changed()
        assert set(watched.current.keys) == {NORTH, SOUTH}
        says = {
            "foreign": "was not signed by this federation's authority, 'tdcd federation CA",
            "forged": "was not signed by this federation's authority, 'tdcd federation CA",
            "older": "is list 1, and list 2 was there before; copy the issuer's latest list",
            "rival": "is list 2, and list 2 was there before; copy the issuer's latest list",
            "gone": "cannot be read any more; put it back",
        }.get(wrong, "is not a list that tdcd certs revoke wrote, or is damaged; copy the issuer's file again")
        (text,) = told
        assert text.startswith(f"{path} {says}")
        assert text.endswith("; list 2 stays in force")
        path.write_bytes(second)
        assert watched.changed() is True
        assert set(watched.current.keys) == {NORTH, SOUTH}

    def test_a_party_does_not_start_with_a_wrong_list(self, certs):
        (certs / REVOKED).write_bytes(b"nonsense")
        with pytest.raises(ValueError, match=r"revoked\.crl is not a list that tdcd certs revoke wrote, or is damaged"):
            WatchedList(certs / REVOKED, certs / "ca.pem", print)


def wrong_list(wrong, certs, backup, first, second, tmp_path):
    if wrong == "cut off":
        return second[: len(second) // 2]
    if wrong in ("foreign", "forged"):
        other = tmp_path / "other"
        throwaway(other, {}, [NORTH, SOUTH])
        if wrong == "forged":
            return forged(certs / "ca.pem", other / "ca.key")
        revoke(other, [NORTH])
        return (other / REVOKED).read_bytes()
    if wrong == "rival":
        revoke(backup, [SHOP_NORTH])
        return (backup / REVOKED).read_bytes()
    return {"empty": b"", "a certificate": (certs / "ca.pem").read_bytes(), "older": first}[wrong]


def forged(ca_path, key_path):
    """An empty list with a high number in the authority's name, by somebody who lacks its key."""
    ca = read_certificate(ca_path)
    builder = x509.CertificateRevocationListBuilder(ca.subject, NOW, NOW + timedelta(days=9))
    builder = builder.add_extension(x509.CRLNumber(99), critical=False)
    return builder.sign(read_key(key_path), hashes.SHA256()).public_bytes(Encoding.PEM)


def test_unread_messages_of_one_peer_can_be_thrown_away():
    mailbox = Mailbox(HUB, [NORTH, SOUTH], 100)
    mailbox.put(Joined(NORTH))
    for number in range(3):
        for party in (NORTH, SOUTH):
            mailbox.put(Received(party, bytes([number])))
    mailbox.put_piece(NORTH, b"half", is_last=False)
    mailbox.forget_messages(NORTH)
    assert mailbox.arriving[NORTH] == 0
    mailbox.put_piece(NORTH, b"new", is_last=True)
    received = [mailbox.get(0) for _ in range(5)]
    assert received == [Joined(NORTH), *(Received(SOUTH, bytes([n])) for n in range(3)), Received(NORTH, b"new")]
    assert mailbox.get(0) is None


# Links


@contextmanager
def watched_parties(certs, *names):
    """Linked parties, each with a copy of the issuer's folder and a watch over the list in it."""
    network = ZenohNetwork(certs)
    with Parties(network) as parties:
        for name in names:
            parties.ends[name] = joined(network, certs, name)
        for name in names:
            expected = {Joined(peer) for peer in PEERS[name] if peer in names}
            assert {parties.ends[name].receive(SOON) for _ in expected} == expected
        yield parties


def joined(network, certs, name):
    told = []
    end = network.join(name, PEERS[name], revocations=WatchedList(certs / REVOKED, certs / "ca.pem", told.append))
    end.told = told
    return end


def test_a_revoked_client_is_cut_off_and_its_replacement_let_in(certs, tmp_path):
    """All of it while the thief of the old key keeps trying, and the other parties notice nothing."""
    stolen = shutil.copytree(certs, tmp_path / "stolen")
    with watched_parties(certs, HUB, SHOP, SOUTH) as parties:
        hub, shop, south = (parties.ends[name] for name in (HUB, SHOP, SOUTH))
        parties.ends[NORTH] = north = parties.network.join(NORTH, [HUB])
        assert north.receive(SOON) == Joined(HUB)
        assert hub.receive(SOON) == Joined(NORTH)
        north.send(HUB, b"too late")
        wait_until(lambda: hub._mailbox._unread_events[NORTH] == 1)
        revoke(certs, [NORTH])
        time.sleep(LOOK_S)
        assert hub.receive(SOON) == Left(NORTH)
        assert hub.revoked == {NORTH}
        assert north.receive(SOON) == Left(HUB)
        north.close()
        with intruder(tls_of(stolen, NORTH), dial=parties.network.addresses[HUB]) as thief:
            heard = eavesdrop(thief)
            shout(thief)
            wait_until(lambda: links_of(hub, NORTH))
            first = links_of(hub, NORTH)
            wait_until(lambda: links_of(hub, NORTH).isdisjoint(first), hub)
            issue(certs, NORTH)
            parties.ends[NORTH] = back = joined(parties.network, certs, NORTH)
            assert back.receive(SOON) == Joined(HUB)
            assert hub.receive(SOON) == Joined(NORTH)
            assert hub.revoked == set()
            shout(thief)
            for one, other in ((back, hub), (hub, back), (south, hub), (hub, south), (shop, hub), (hub, shop)):
                one.send(other.party, b"good")
                assert other.receive(SOON) == Received(one.party, b"good")
            assert [end.receive(0.1) for end in (back, hub, south, shop)] == [None] * 4
            assert heard == []


def shout(session):
    """Speak as a party under its old name and the next one, and claim to be there."""
    for name in (NORTH, f"{NORTH}~2"):
        word = Process(nonce=NONCE, title=MARK).word
        for what in ("chosen", "last"):
            session.put(f"tdcd/1/{HUB}/{name}/message/*", b"forged", attachment=f"{what}/{NONCE}".encode())
        session.liveliness().declare_token(f"tdcd/1/{HUB}/{name}/alive/{word}.{MARK}")


def links_of(end, name):
    """The connections with holders of a certificate; who dials again has another one."""
    links = [link for link in end._session.info.links() if link.auth_identifier == name]
    return {(str(link.src), str(link.dst)) for link in links}


def test_where_a_link_cannot_be_closed_nothing_passes_on_it(certs, tmp_path, monkeypatch):
    monkeypatch.setattr(zenoh_transport, "OPEN_FILES", tmp_path / "none")
    with watched_parties(certs, HUB, SOUTH) as parties:
        hub, south = parties.ends[HUB], parties.ends[SOUTH]
        parties.ends[NORTH] = north = parties.network.join(NORTH, [HUB])
        assert [hub.receive(SOON), north.receive(SOON)] == [Joined(NORTH), Joined(HUB)]
        before = links_of(hub, NORTH)
        revoke(certs, [NORTH])
        assert hub.receive(SOON) == Left(NORTH)
        assert north.receive(SOON) == Left(HUB)
        shout(north._session)
        hub.send(NORTH, b"not for you")
        south.send(HUB, b"good")
        assert hub.receive(SOON) == Received(SOUTH, b"good")
        assert [hub.receive(0.2), north.receive(0.2)] == [None, None]
        assert links_of(hub, NORTH) == before


def test_closing_links_leaves_the_lock_of_a_folder(certs, tmp_path):
    """A second process is still refused, and one that asks still told that the first one lives."""
    held = lock(tmp_path)
    with Parties(ZenohNetwork(certs)) as parties:
        hub, _ = parties.linked(HUB, NORTH)
        assert zenoh_transport.cut(hub._session, {NORTH})
    code = (
        "import sys, pathlib; from tdcd.runtime.storage.status import is_alive, lock; path = pathlib.Path(sys.argv[1])"
    )
    asked = f"{code}; print(is_alive(path)); lock(path, pause=lambda seconds: None)"
    told = subprocess.run([sys.executable, "-c", asked, str(tmp_path)], capture_output=True, text=True, check=False)
    assert told.stdout == "True\n"
    assert f"{tmp_path} is in use by another process: stop that one first" in told.stderr
    # A copy of the descriptor that is closed changes nothing either.
    os.close(os.dup(held))
    assert is_alive(tmp_path)
    os.close(held)
    assert not is_alive(tmp_path)


def test_a_client_honours_the_list_for_its_hub(certs):
    with watched_parties(certs, HUB, NORTH) as parties:
        hub, north = parties.ends[HUB], parties.ends[NORTH]
        hub._revocations = None  # The hub has not heard of it, or does not want to.
        revoke(certs, [HUB])
        assert north.receive(SOON) == Left(HUB)
        hub.send(NORTH, b"give me everything")
        first = links_of(north, HUB)
        wait_until(lambda: links_of(north, HUB).isdisjoint(first), north)
        hub.close()
        issue(certs, HUB, ["127.0.0.1"])
        parties.ends[HUB] = joined(parties.network, certs, HUB)
        assert north.receive(SOON) == Joined(HUB)


def test_who_is_revoked_itself_stops(certs):
    with watched_parties(certs, HUB, NORTH) as parties:
        revoke(certs, [NORTH])
        with pytest.raises(
            ValueError, match=r"the certificate of client\.bank\.north was revoked \(list 1, .*revoked\.crl"
        ):
            take(parties.ends[NORTH], 99)


def test_a_party_that_is_revoked_again_and_again_needs_its_hub_restarted_at_last(certs):
    with watched_parties(certs, HUB) as parties:
        hub = parties.ends[HUB]
        for _ in range(4):
            revoke(certs, [NORTH])
            issue(certs, NORTH)
        wait_until(lambda: hub.told, hub)
        assert hub.told[-1] == f"{NORTH} was revoked often: restart {HUB} to let '{NORTH}~5' in"
        hub.send(NORTH, b"nobody is there")
        hub.close()
        parties.ends[HUB], parties.ends[NORTH] = (joined(parties.network, certs, name) for name in (HUB, NORTH))
        assert parties.ends[HUB].receive(SOON) == Joined(NORTH)
