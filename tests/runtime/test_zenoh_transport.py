"""What the real transport withstands, by real sockets: dying processes, wrong certificates, forged keys, garbage."""

import itertools
import json
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import zenoh
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from support.ports import free_address
from support.transport_parties import (
    HUB,
    HUBS,
    MAX_BYTES,
    MILL,
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
from tdcd.runtime.certificates.agreement import Certified
from tdcd.runtime.certificates.check import read_key
from tdcd.runtime.certificates.issue import issue, throwaway
from tdcd.runtime.transport.processes import Process
from tdcd.runtime.transport.seals import Seals
from tdcd.runtime.transport.transport import Joined, Left, Received
from tdcd.runtime.transport.zenoh_settings import LEASE_S, PIECE_BYTES, Tls, zenoh_settings
from tdcd.runtime.transport.zenoh_transport import LAST, MORE, ZenohTransport, _open_hub, pieces

NOW = datetime.now(UTC)
MARK = "intruder"
NONCE = "ab" * 16
BLOCK = zenoh.CongestionControl.BLOCK
REFUSED = 0.4
"""Seconds in which a link that is not refused would be up many times over."""

ECHO = """
import sys
from pathlib import Path
from tdcd.runtime.transport.transport import Received
from tdcd.runtime.transport.zenoh_transport import Tls, ZenohTransport
party, address, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
tls = Tls(folder / "ca.pem", folder / f"{party}.pem", folder / f"{party}.key")
with ZenohTransport(party, ["hub.bank"], addresses={"hub.bank": address}, tls=tls) as end:
    while True:
        event = end.receive(None)
        if isinstance(event, Received):
            end.send(event.sender, event.data)
"""


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "certs"
    throwaway(folder, {hub: ["127.0.0.1"] for hub in HUBS}, [NORTH, SOUTH, SHOP_NORTH])
    return folder


@pytest.fixture(scope="module")
def bank(certs):
    """Two hubs and a client, all good, under attack by every test below."""
    with Parties(ZenohNetwork(certs)) as parties:
        parties.linked(HUB, SHOP, NORTH)
        yield parties


@contextmanager
def process(parties, party):
    network = parties.network
    child = subprocess.Popen([sys.executable, "-c", ECHO, party, network.addresses[HUB], str(network.certs)])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def copied_authority(certs, folder):
    folder.mkdir()
    for name in ("ca.pem", "ca.key", "federation.secret"):
        (folder / name).write_bytes((certs / name).read_bytes())
    return folder


@contextmanager
def intruder(tls, *, dial=None, listen=None):
    """A zenoh session of somebody who keeps no rules; ``tls`` holds whatever they have got."""
    scheme = "tls" if tls else "tcp"
    config = {
        "mode": "client" if dial else "peer",
        "connect": {"endpoints": [f"{scheme}/{dial}"] if dial else []},
        "listen": {"endpoints": [f"{scheme}/{listen}"] if listen else []},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
    }
    if tls:
        settings = {"root_ca_certificate": str(tls.authority), "verify_name_on_connect": False}
        if tls.certificate:
            settings["enable_mtls"] = True
            for role in ("listen", "connect"):
                settings |= {f"{role}_certificate": str(tls.certificate), f"{role}_private_key": str(tls.key)}
        config["transport"] = {"link": {"tls": settings}}
    with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as session:
        yield session


def attached(what):
    """What goes with a message of the process that intruders claim to be."""
    return f"{what}/{NONCE}".encode()


def claim_everything(session):
    """Come, speak and go as everybody to everybody, by exact keys and by patterns."""
    for receiver, sender in [*itertools.product(PEERS, PEERS), (HUB, "*"), ("*", "*")]:
        key = f"tdcd/1/{receiver}/{sender}"
        for process in ("*", NONCE, f"*/{NONCE}"):
            for attachment in (None, b"other", *(attached(what) for what in ("last", "more", "chosen", "taken"))):
                session.put(f"{key}/message/{process}", b"forged", attachment=attachment, congestion_control=BLOCK)
            session.delete(f"{key}/message/{process}")
        for process in (MARK, f"{NONCE}.x.{MARK}", f"{NONCE}.9.train.99999999999.0.{'ff' * 60}.{MARK}"):
            session.liveliness().declare_token(f"{key}/alive/{process}").undeclare()
    session.put("tdcd/**", b"forged")


def eavesdrop(session):
    """The keys of all that can be heard of others, by exact keys and by patterns."""
    heard = []

    def note(sample):
        key = str(sample.key_expr)
        if not key.endswith(MARK):
            heard.append(re.sub(r"/(alive|message)/.*", r"/\1", key))

    for receiver, sender in [*itertools.product(PEERS, PEERS), ("*", "*")]:
        for key in (f"tdcd/1/{receiver}/{sender}/message/*", f"tdcd/1/{receiver}/{sender}/**"):
            session.declare_subscriber(key, note, allowed_origin=zenoh.Locality.REMOTE)
        session.liveliness().declare_subscriber(f"tdcd/1/{receiver}/{sender}/alive/*", note, history=True)
    session.declare_subscriber("**", note, allowed_origin=zenoh.Locality.REMOTE)
    return heard


@contextmanager
def as_process(session, party, hub, certs):
    """Be a process of a party that keeps the rules until it has a link to a hub; how messages are then sent."""
    nonce = hub._process.nonce
    seals, chosen = Seals(Certified(certs, party), party, NONCE), threading.Event()

    def note(sample):
        if not chosen.is_set() and sample.attachment.to_bytes().startswith(b"chosen"):
            seals.agree(hub.party, nonce, sample.payload.to_bytes())
            chosen.set()

    def put(data, what):
        key = f"tdcd/1/{hub.party}/{party}/message/{nonce}"
        session.put(key, data, attachment=attached(what.decode()), congestion_control=BLOCK)

    def send(data, size=PIECE_BYTES):
        for piece, is_last in pieces(data, size):
            mark = LAST if is_last else MORE
            put(seals.seal(hub.party, nonce, piece, mark), mark)

    own, token = (f"tdcd/1/{party}/{hub.party}/message/{NONCE}", Process(nonce=NONCE).word)
    with (
        session.declare_subscriber(own, note),
        session.liveliness().declare_token(f"tdcd/1/{hub.party}/{party}/alive/{token}.{MARK}"),
    ):
        # A proof that is refused before the hub has said whom it chose keeps it from saying so.
        assert chosen.wait(SOON)
        put(seals.proof(hub.party, nonce), b"chosen")
        yield send


def assert_unharmed(bank):
    """The good parties hear each other, and have heard nothing else."""
    time.sleep(0.2)
    for sender, receiver in ((NORTH, HUB), (HUB, NORTH), (HUB, SHOP), (SHOP, HUB)):
        bank.ends[sender].send(receiver, b"good")
        assert bank.ends[receiver].receive(SOON) == Received(sender, b"good")
    assert [end.receive(0) for end in bank.ends.values()] == [None] * 3


def test_messages_have_keys_without_wildcards(certs):
    """Zenoh matches a wildcard for every message, which takes as long as all the rest of receiving it."""
    with Parties(ZenohNetwork(certs)) as parties:
        hub, north = parties.linked(HUB, NORTH)
        north.send(HUB, b"hello")
        assert hub.receive(SOON) == Received(NORTH, b"hello")
        keys = [str(link.messages.key_expr) for end in (hub, north) for link in end._links.values()]
        keys += [str(key) for _, key in north._keys.values()]
        assert len(keys) == len(PEERS[HUB]) + len(PEERS[NORTH]) + 1
        assert not any("*" in key for key in keys)


# Processes


def test_a_killed_process_has_left_before_one_that_stalled_earlier(certs):
    """Death closes the link, which is news at once; of the other one the hub only knows that its lease runs out."""
    with Parties(ZenohNetwork(certs)) as parties:
        (hub,) = parties.join(HUB)
        with process(parties, NORTH) as stalled, process(parties, SOUTH) as killed:
            assert set(take(hub, 2)) == {Joined(NORTH), Joined(SOUTH)}
            stalled.send_signal(signal.SIGSTOP)
            killed.kill()
            assert take(hub, 2) == [Left(SOUTH), Left(NORTH)]


LARGE = [bytes([number]) * 1_000_000 for number in range(20)]


def test_a_process_that_stalls_for_a_short_time_loses_nothing(certs):
    with Parties(ZenohNetwork(certs)) as parties, process(parties, SOUTH) as child:
        (hub,) = parties.join(HUB)
        assert hub.receive(SOON) == Joined(SOUTH)
        child.send_signal(signal.SIGSTOP)
        continued = threading.Event()

        def resume():
            continued.set()
            child.send_signal(signal.SIGCONT)

        threading.Timer(1, resume).start()
        for data in LARGE:
            hub.send(SOUTH, data)
        assert continued.is_set(), "sending did not wait for the process that stalled"
        assert take(hub, 20) == [Received(SOUTH, data) for data in LARGE]


def test_a_client_that_starts_anew_while_its_hub_is_away_is_there_when_the_hub_is_back(certs):
    """A client's session opens only once its hub answers; until then it waits, and can be closed."""
    with Parties(ZenohNetwork(certs)) as parties:
        first = parties.join(NORTH)[0]
        assert first.receive(0.5) is None
        first.close()
        parties.join(NORTH)
        hub = parties.linked(HUB)[0]
        assert hub.receive(SOON) == Joined(NORTH)
        hub.close()
        assert take(parties.ends[NORTH], 2) == [Joined(HUB), Left(HUB)]
        parties.ends[NORTH].close()
        north = parties.join(NORTH)[0]
        hub = parties.linked(HUB)[0]
        assert hub.receive(SOON) == Joined(NORTH)
        assert north.receive(SOON) == Joined(HUB)
        north.send(HUB, b"hello")
        assert hub.receive(SOON) == Received(NORTH, b"hello")


SHORT_S = 2.0
"""A lease that ends soon: each end says for how long it may be silent, and decides for how long it waits to send."""


@pytest.mark.parametrize("unsent", [[], LARGE], ids=["idle", "busy"])
def test_a_process_that_stalls_for_long_has_left(certs, unsent):
    """It has left while it still stalls, so the hub's own patience ended, and it is back when it continues."""
    with Parties(ZenohNetwork(certs)) as parties, process(parties, SOUTH) as child:
        hub = parties.ends[HUB] = parties.network.join(HUB, PEERS[HUB], lease_s=SHORT_S)
        assert hub.receive(SOON) == Joined(SOUTH)
        child.send_signal(signal.SIGSTOP)
        for data in unsent:
            hub.send(SOUTH, data)
        assert hub.receive(SOON) == Left(SOUTH)
        child.send_signal(signal.SIGCONT)
        assert hub.receive(SOON) == Joined(SOUTH)
        hub.send(SOUTH, b"there?")
        # Before the answer may come those to messages that reached the process before it stalled.
        assert Received(SOUTH, b"there?") in iter(lambda: hub.receive(SOON), None)


def test_a_second_process_of_a_party_waits_until_the_first_is_gone(certs):
    """However often it comes and goes, the first one keeps its link, and each of the three is told of the others."""
    with Parties(ZenohNetwork(certs)) as parties:
        hub, first = parties.linked(HUB, NORTH)
        for _ in range(3):
            with parties.network.join(NORTH, PEERS[NORTH]) as second:
                until(lambda: second.unfit)
                assert re.fullmatch(
                    r"hub\.bank has a link with another process of client\.bank\.north, which is training since "
                    r"20\d\d-\d\d-\d\d \d\d:\d\d UTC: this one waits until that one is gone",
                    second.unfit[HUB],
                )
                assert "; another process of client.bank.north waits until that one is gone" in hub.unfit[NORTH]
                second.send(HUB, b"not heard")
                hub.send(NORTH, b"for the first")
                assert first.receive(SOON) == Received(HUB, b"for the first")
            until(lambda: not hub.unfit)
        with process(parties, NORTH):
            until(lambda: hub.unfit)
            first.send(HUB, b"still there")
            assert hub.receive(SOON) == Received(NORTH, b"still there")
            first.close()
            assert take(hub, 2) == [Left(NORTH), Joined(NORTH)]
            hub.send(NORTH, b"new one")
            assert hub.receive(SOON) == Received(NORTH, b"new one")
        assert hub.receive(SOON) == Left(NORTH)


def until(happens):
    deadline = time.monotonic() + SOON
    while not happens():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_processes_that_do_something_else_are_named_and_leave_the_link_alone(certs):
    """A process that aligns, or speaks another protocol, is told so, and so is the other end."""
    with Parties(ZenohNetwork(certs)) as parties:
        network, training = parties.network, Process("train", "m2", 6)
        hub = parties.ends[HUB] = network.join(HUB, PEERS[HUB], process=training)
        north = parties.ends[NORTH] = network.join(NORTH, PEERS[NORTH], process=training)
        assert (hub.receive(SOON), north.receive(SOON)) == (Joined(NORTH), Joined(HUB))
        with network.join(NORTH, PEERS[NORTH], process=Process("align", "m2", 6)) as other:
            until(lambda: other.unfit and hub.unfit)
            assert re.fullmatch(
                r"hub\.bank is training run m2 since .* UTC; client\.bank\.north is aligning ids, and has no link with "
                "that process",
                other.unfit[HUB],
            )
            assert hub.unfit[NORTH].startswith("client.bank.north is aligning ids since ")
        until(lambda: not hub.unfit)
        with network.join(SOUTH, PEERS[SOUTH], process=Process("train", "m2", 7)) as other:
            until(lambda: other.unfit and hub.unfit)
            text = "client.bank.south speaks protocol 7 and hub.bank 6: upgrade the older one"
            assert hub.unfit == {SOUTH: text}
            assert other.unfit[HUB] == "hub.bank speaks protocol 6 and client.bank.south 7: upgrade the older one"
        # What versions before protocol 6 said of themselves.
        with (
            intruder(tls_of(certs, SOUTH), dial=network.addresses[HUB]) as session,
            session.liveliness().declare_token(f"tdcd/1/{HUB}/{SOUTH}/alive/f00d"),
        ):
            until(lambda: "does not say which protocol it speaks" in hub.unfit.get(SOUTH, ""))
        north.send(HUB, b"undisturbed")
        assert hub.receive(SOON) == Received(NORTH, b"undisturbed")


def test_a_link_ends_when_a_certificate_expires(certs, tmp_path):
    """A busy machine may not connect before a certificate expires: then with one that is good for longer."""
    with Parties(ZenohNetwork(certs)) as parties:
        (hub,) = parties.join(HUB)
        for seconds in (3, 12, 48):
            folder = copied_authority(certs, tmp_path / f"good for {seconds} s")
            issue(folder, SOUTH, days=1, now=datetime.now(UTC) - timedelta(days=1, seconds=-seconds))
            with ZenohTransport(SOUTH, [HUB], addresses=parties.network.addresses, tls=tls_of(folder, SOUTH)):
                joined = hub.receive(seconds + 1)
                if joined is not None:
                    break
        assert [joined, *take(hub, 1)] == [Joined(SOUTH), Left(SOUTH)]
        assert hub.receive(1) is None


# Intruders


@pytest.fixture(scope="module")
def odd(certs, tmp_path_factory):
    """Wrong certificates by what is wrong with them."""
    folder = tmp_path_factory.mktemp("odd")
    ours = {
        name: copied_authority(certs, folder / name) for name in ("expired", "early", "stranger", "self-signed", "host")
    }
    throwaway(folder / "foreign", {HUB: ["127.0.0.1"]}, [SOUTH])
    for party, hosts in ((SOUTH, []), (HUB, ["127.0.0.1"])):
        issue(ours["expired"], party, hosts, days=30, now=NOW - timedelta(days=31))
        issue(ours["early"], party, hosts, now=NOW + timedelta(hours=12))
        issue(ours["self-signed"], party, hosts)
        sign_by_itself(ours["self-signed"], party)
    issue(ours["stranger"], "client.bank.west")
    issue(ours["host"], HUB, ["bank.example"])
    for name in ("self-signed", "foreign"):
        (folder / name / "ca.pem").write_bytes((certs / "ca.pem").read_bytes())
    return folder


def sign_by_itself(folder, party):
    path, key = folder / f"{party}.pem", read_key(folder / f"{party}.key")
    old = x509.load_pem_x509_certificate(path.read_bytes())
    builder = x509.CertificateBuilder(old.subject, old.subject, old.public_key(), old.serial_number)
    builder = builder.not_valid_before(old.not_valid_before_utc).not_valid_after(old.not_valid_after_utc)
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


@pytest.mark.parametrize("wrong", ["foreign", "expired", "early", "self-signed", "none", "clear text"])
def test_a_caller_without_a_good_certificate_gets_no_link(bank, certs, odd, wrong):
    tls = {"none": Tls(certs / "ca.pem", None, None), "clear text": None}.get(wrong, tls_of(odd / wrong, SOUTH))
    with pytest.raises(zenoh.ZError, match="Unable to connect"), intruder(tls, dial=bank.network.addresses[HUB]):
        pass
    assert_unharmed(bank)


@pytest.mark.parametrize("party", ["client.bank.west", SHOP_NORTH])
def test_a_caller_that_is_no_peer_sends_and_receives_nothing(bank, certs, odd, party):
    folder = certs if party == SHOP_NORTH else odd / "stranger"
    with intruder(tls_of(folder, party), dial=bank.network.addresses[HUB]) as session:
        heard = eavesdrop(session)
        claim_everything(session)
        assert_unharmed(bank)
        assert heard == []


@pytest.mark.parametrize("party", [SOUTH, MILL])
def test_a_peer_can_speak_and_listen_for_itself_only(bank, certs, party):
    hub = bank.ends[HUB]
    with intruder(tls_of(certs, party), dial=bank.network.addresses[HUB]) as session:
        heard = eavesdrop(session)
        claim_everything(session)
        assert_unharmed(bank)
        with as_process(session, party, hub, certs):
            assert hub.receive(SOON) == Joined(party)
            hub.send(party, b"for you")
        assert hub.receive(SOON) == Left(party)
        assert_unharmed(bank)
        assert set(heard) == {f"tdcd/1/{party}/{HUB}/alive", f"tdcd/1/{party}/{HUB}/message"}


@pytest.mark.parametrize(
    "wrong", ["foreign", "expired", "early", "self-signed", "host", "client", "hub.shop", "clear text"]
)
def test_a_client_does_not_talk_to_another_party_at_its_hubs_address(certs, odd, wrong):
    tls = {"client": tls_of(certs, SOUTH), "hub.shop": tls_of(certs, SHOP), "clear text": None}
    address = free_address()
    with (
        intruder(tls.get(wrong, tls_of(odd / wrong, HUB)), listen=address) as session,
        ZenohTransport(NORTH, [HUB], addresses={HUB: address}, tls=tls_of(certs, NORTH)) as north,
    ):
        heard = eavesdrop(session)
        deadline = time.monotonic() + REFUSED
        while time.monotonic() < deadline:
            claim_everything(session)
            time.sleep(0.1)
        north.send(HUB, b"secret")
        assert north.receive(0.1) is None
        assert bool(session.info.links()) == (wrong == "hub.shop")
        assert heard == []


def test_messages_over_the_limit_are_thrown_away(bank, certs):
    hub = bank.ends[HUB]
    with intruder(tls_of(certs, SOUTH), dial=bank.network.addresses[HUB]) as session:
        with as_process(session, SOUTH, hub, certs) as send:
            assert hub.receive(SOON) == Joined(SOUTH)
            for size in (MAX_BYTES + 1, 3 * MAX_BYTES, MAX_BYTES):
                send(bytes(size))
            assert hub.receive(SOON) == Received(SOUTH, bytes(MAX_BYTES))
            # No larger piece is looked at.
            send(bytes(PIECE_BYTES + 1), PIECE_BYTES + 1)
            send(b"and on")
            assert hub.receive(SOON) == Received(SOUTH, b"and on")
        assert hub.receive(SOON) == Left(SOUTH)
    assert (hub.dropped, hub.unsealed) == ({SOUTH: 2}, {SOUTH: 1})
    assert_unharmed(bank)


def test_garbage_and_silence_on_the_port_stop_no_party(bank):
    host, port = bank.network.addresses[HUB].split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(150)]
    for number, connection in enumerate(idle[:50]):
        connection.sendall(
            random.Random(number).randbytes(1000) if number % 2 else b"\x16\x03\x01\x40\x00\x01" + bytes(99)
        )
    assert_unharmed(bank)
    (south,) = bank.join(SOUTH)
    assert south.receive(SOON) == Joined(HUB)
    assert bank.ends[HUB].receive(SOON) == Joined(SOUTH)
    south.close()
    assert bank.ends[HUB].receive(SOON) == Left(SOUTH)
    del bank.ends[SOUTH]
    for connection in idle:
        connection.close()
    assert_unharmed(bank)


# Errors of one's own


def test_what_is_wrong_with_ones_own_files_and_addresses_is_reported(certs, odd):
    def join(party=NORTH, *, addresses=None, listen=None, tls=None):
        ZenohTransport(
            party, [HUB], addresses={HUB: "127.0.0.1:1"} if addresses is None else addresses, listen=listen, tls=tls
        )

    with pytest.raises(ValueError, match=r"client\.bank\.south\.pem expired on"):
        join(SOUTH, tls=tls_of(odd / "expired", SOUTH))
    with pytest.raises(ValueError, match=r"is the certificate of 'client\.bank\.south', not of 'client\.bank\.north'"):
        join(tls=tls_of(certs, SOUTH))
    with pytest.raises(
        ValueError, match=r"^client\.bank\.north has no address of hub\.bank: give HOST:PORT of every hub$"
    ):
        join(addresses={})
    with pytest.raises(ValueError, match=r"^client\.bank\.north listens on 127\.0\.0\.1:9: .* a client has none$"):
        join(listen="127.0.0.1:9")
    with pytest.raises(ValueError, match=r"^hub\.shop listens on None: a hub needs an address to listen on"):
        join(SHOP)
    for address in ("10.0.0.1:7447", "0.0.0.0:7447", "[2001:db8::1]:7447", "bank.example:7447"):
        with pytest.raises(ValueError, match=f"^{re.escape(address)} is not a loopback address: without TLS, use 127"):
            join(addresses={HUB: address})
        with pytest.raises(ValueError, match="is not a loopback address"):
            join(SHOP, listen=address)


def test_a_port_in_use_is_an_error(bank, certs):
    with pytest.raises(OSError, match=r"^hub\.shop cannot listen on 127\.0\.0\.1:\d+: .*Address already in use"):
        ZenohTransport(SHOP, [], addresses={}, listen=bank.network.addresses[HUB], tls=tls_of(certs, SHOP))


def test_whoever_reaches_a_hubs_port_is_shown_its_certificate_and_nothing_older_than_tls_13(tmp_path):
    """As docs/privacy.md says: an outsider learns the silo's name; a client that dials says the host name only."""
    throwaway(tmp_path, {"hub.bank": ["127.0.0.1", "localhost"]}, ["client.bank.c1"])
    address = free_address()
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    probe.check_hostname, probe.verify_mode = False, ssl.CERT_NONE
    host, port = address.rpartition(":")[::2]
    certified = tls_of(tmp_path, "hub.bank")
    with ZenohTransport("hub.bank", ["client.bank.c1"], addresses={}, listen=address, tls=certified):
        with socket.create_connection((host, int(port))) as raw, probe.wrap_socket(raw) as link:
            shown = x509.load_der_x509_certificate(link.getpeercert(binary_form=True))
            assert (link.version(), shown.subject.rfc4514_string()) == ("TLSv1.3", "CN=hub.bank")
        probe.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection((host, int(port))) as raw,
            pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
        ):
            probe.wrap_socket(raw)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SOON)
        dialled = {"hub.bank": f"localhost:{listener.getsockname()[1]}"}
        certified = tls_of(tmp_path, "client.bank.c1")
        client = ZenohTransport("client.bank.c1", ["hub.bank"], addresses=dialled, tls=certified)
        with client, listener.accept()[0] as link:
            first = link.recv(4096)
    assert b"localhost" in first
    assert b"bank" not in first


def test_a_hub_whose_port_behind_the_guard_was_taken_meanwhile_takes_another(certs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        names = {party: [party] for party in (HUB, NORTH)}
        settings = zenoh_settings(HUB, [NORTH], {}, f"127.0.0.1:{port}", tls_of(certs, HUB), MAX_BYTES, LEASE_S, names)
        session, inner = _open_hub(HUB, settings, port)
        with session:
            assert inner not in (port, None)
            socket.create_connection(("127.0.0.1", inner)).close()
