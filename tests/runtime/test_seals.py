"""What goes between two processes, before whoever has another certificate in the name of one of them, or of both."""

import shutil
import threading
from contextlib import ExitStack, contextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from test_companies import COMPANY, Companies
from test_zenoh_transport import BLOCK, intruder

from support.party_processes import wait_until
from support.ports import free_address
from support.transport_parties import HUB, MILL, NORTH, SHOP, SOON
from tdcd.runtime.certificates.agreement import Certified, ForgedCardError
from tdcd.runtime.certificates.issue import create_authority, issue
from tdcd.runtime.process.endpoint import Endpoint
from tdcd.runtime.transport.seals import Seals
from tdcd.runtime.transport.transport import Joined, Left, Received
from tdcd.runtime.transport.zenoh_settings import PIECE_BYTES, Tls
from tdcd.runtime.transport.zenoh_transport import ZenohTransport

SECRET = b"for the client alone " * 3


@pytest.fixture(scope="module")
def federations(tmp_path_factory):
    """Two federations of one authority, with the same names of parties: a folder of certificates for each."""
    folders = {name: tmp_path_factory.mktemp("federations") / name for name in ("health", "trade")}
    create_authority(folders["health"])
    folders["trade"].mkdir()
    for file in ("ca.pem", "ca.key", "federation.secret"):
        shutil.copy(folders["health"] / file, folders["trade"])
    for name, folder in folders.items():
        for hub in (HUB, SHOP, MILL):
            issue(folder, hub, ["127.0.0.1"], federation=name)
        issue(folder, NORTH, federation=name)
    return folders


@pytest.fixture(scope="module")
def companies(tmp_path_factory):
    """A company, one of whose clients has a second certificate: the issuer deceives."""
    companies = Companies(tmp_path_factory.mktemp("companies"))
    (companies.issuer / f"{COMPANY}.pem").unlink()
    issue(companies.issuer, NORTH)
    return companies


def joined(party, home, peers, addresses, **options):
    return ZenohTransport(
        party, peers, addresses=addresses, listen=addresses.get(party), tls=Tls.of(home, party), **options
    )


@contextmanager
def overhearing(session, receiver, sender):
    """The messages from one party to another that a session gets to see: each key, attachment and content."""
    seen = []

    def note(sample):
        attached = b"" if sample.attachment is None else sample.attachment.to_bytes()
        seen.append((str(sample.key_expr), attached, sample.payload.to_bytes()))

    with session.declare_subscriber(f"tdcd/1/{receiver}/{sender}/message/*", note):
        yield seen


@pytest.mark.parametrize("second", ["of another federation", "of an issuer that deceives"])
def test_a_second_certificate_in_a_partys_name_neither_reads_nor_writes_in_it(federations, companies, second):
    """TLS lets its holder onto the links of that party. It sees ciphertexts there, and nothing that it sends opens."""
    if second == "of another federation":
        homes, thief, options = {HUB: federations["health"], NORTH: federations["health"]}, federations["trade"], {}
        options["federation"] = "health"
    else:
        homes, thief, options = companies.homes, companies.issuer, {}
    addresses = {HUB: free_address()}
    with (
        joined(HUB, homes[HUB], [NORTH], addresses, **options) as hub,
        joined(NORTH, homes[NORTH], [HUB], addresses, **options) as north,
        intruder(Tls.of(thief, NORTH), dial=addresses[HUB]) as session,
        overhearing(session, NORTH, HUB) as seen,
    ):
        assert (hub.receive(SOON), north.receive(SOON)) == (Joined(NORTH), Joined(HUB))

        def is_overheard():
            hub.send(NORTH, SECRET)
            return seen and north.receive(SOON) == Received(HUB, SECRET)

        wait_until(is_overheard)
        assert not any(SECRET in content for _, _, content in seen)
        # It says that it is the process that has the link, to the one that this has it with.
        to, by = (end._process.nonce for end in (hub, north))
        key, hubs = f"tdcd/1/{HUB}/{NORTH}/message/{to}", [content for _, _, content in seen]
        forged = [b"believe me", b"", bytes(23), bytes(24), hubs[0], bytes(PIECE_BYTES), bytes(PIECE_BYTES + 25)]
        for what in ("last", "more"):
            for data in forged:
                session.put(key, data, attachment=f"{what}/{by}".encode(), congestion_control=BLOCK)
        wait_until(lambda: hub.unsealed[NORTH] == 2 * len(forged))
        assert hub.receive(0) is None
        # It is counted, and said.
        end = Endpoint(hub)
        end.look()
        assert end.refused == {NORTH: 2 * len(forged)}
        assert end.last_refusal.startswith(f"{NORTH}: it is not of the process that has the link, or comes again")
        north.send(HUB, b"large" * PIECE_BYTES)
        assert hub.receive(SOON) == Received(NORTH, b"large" * PIECE_BYTES)


class Relay:
    """Passes on everything that a hub and a client send each other, with certificates in both names."""

    def __init__(self, folder, hub, address, alter):
        self.alter = alter
        self._stack = ExitStack()
        self._tokens = {}
        self.seen = []
        server = self._stack.enter_context(intruder(Tls.of(folder, HUB), listen=address))
        caller = self._stack.enter_context(intruder(Tls.of(folder, NORTH), dial=hub))
        for source, target, receiver, sender in ((caller, server, NORTH, HUB), (server, caller, HUB, NORTH)):
            self._stack.enter_context(self._passed_on(source, target, receiver, sender))

    @contextmanager
    def _passed_on(self, source, target, receiver, sender):
        def message(sample):
            attached, data = sample.attachment.to_bytes(), sample.payload.to_bytes()
            self.seen.append(data)
            for copy in self.alter(attached.partition(b"/")[0], data):
                target.put(str(sample.key_expr), copy, attachment=attached, congestion_control=BLOCK)

        def presence(sample):
            key = str(sample.key_expr)
            if str(sample.kind).endswith("PUT"):
                self._tokens[key] = target.liveliness().declare_token(key)
            elif key in self._tokens:
                self._tokens.pop(key).undeclare()

        key = f"tdcd/1/{receiver}/{sender}"
        with (
            source.declare_subscriber(f"{key}/message/*", message),
            source.liveliness().declare_subscriber(f"{key}/alive/*", presence, history=True),
        ):
            yield

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()


def altered(mark, data):
    """Each piece with a bit changed, then as it is, then once more."""
    if mark not in (b"last", b"more"):
        return [data]
    return [data[:-1] + bytes([data[-1] ^ 1]), data, data]


def test_whoever_has_certificates_in_both_names_passes_on_ciphertexts_and_changes_none(federations):
    """The proofs are good, since they are the true ones; they are worth nothing without the keys."""
    home, addresses, relay = federations["health"], {HUB: free_address()}, free_address()
    with (
        joined(HUB, home, [NORTH], addresses, federation="health") as hub,
        Relay(federations["trade"], addresses[HUB], relay, altered) as between,
        joined(NORTH, home, [HUB], {HUB: relay}, federation="health") as north,
    ):
        assert (hub.receive(SOON), north.receive(SOON)) == (Joined(NORTH), Joined(HUB))
        for number in range(5):
            for end, other in ((hub, north), (north, hub)):
                content = SECRET + bytes([number])
                end.send(other.party, content)
                assert other.receive(SOON) == Received(end.party, content)
        wait_until(lambda: (hub.unsealed, north.unsealed) == ({NORTH: 10}, {HUB: 10}))
        assert (hub.receive(0), north.receive(0)) == (None, None)
        assert not any(SECRET in data for data in between.seen)
    assert hub.dropped == north.dropped == {}


def test_a_proof_with_a_key_of_another_is_refused(federations):
    """Whoever passes proofs on cannot put a key of its own into one."""
    home, addresses, relay = federations["health"], {HUB: free_address()}, free_address()

    def exchanged(mark, data):
        if mark != b"chosen":
            return [data]
        own = X25519PrivateKey.generate().public_key().public_bytes_raw()
        place = data.index(b"public") + len(b"public\xc4\x20")
        return [data[:place] + own + data[place + 32 :]]

    with (
        joined(HUB, home, [NORTH], addresses, federation="health") as hub,
        Relay(federations["trade"], addresses[HUB], relay, exchanged),
        joined(NORTH, home, [HUB], {HUB: relay}, federation="health") as north,
    ):
        wait_until(lambda: hub.unfit and north.unfit)
        # Of its own check, or of the other's, which says so.
        assert all(
            "is not signed with its certificate's key" in why for end in (hub, north) for why in end.unfit.values()
        )
        assert (hub.receive(0), north.receive(0)) == (None, None)


# What is sealed


@pytest.fixture
def pair(federations):
    """The seals of a hub's process and of a client's, which have proved who they are."""
    hub, north = (Seals(Certified(federations["health"], party, "health"), party, party[:3]) for party in (HUB, NORTH))
    hub.agree(NORTH, "cli", north.proof(HUB, "hub"))
    north.agree(HUB, "hub", hub.proof(NORTH, "cli"))
    return hub, north


def test_pieces_open_once_in_order_at_the_other_end_alone(pair):
    hub, north = pair
    first, second, third = (hub.seal(NORTH, "cli", piece, b"last") for piece in (b"one", b"", b"three"))
    assert b"one" not in first
    # Not as another piece of a message, not by the one who made it, and not cut.
    for sealed, mark in ((first, b"more"), (first[:-1], b"last"), (first[:8], b"last"), (b"", b"last")):
        assert north.open(HUB, "hub", sealed, mark) is None
    assert hub.open(NORTH, "cli", first, b"last") is None
    assert north.open(HUB, "another", first, b"last") is None
    assert north.open(HUB, "hub", first, b"last") == b"one"
    assert north.open(HUB, "hub", first, b"last") is None
    # What is lost is lost, and what comes after it opens.
    assert north.open(HUB, "hub", third, b"last") == b"three"
    assert north.open(HUB, "hub", second, b"last") is None


def test_a_link_that_opens_again_repeats_no_number_and_opens_nothing_old(pair):
    """The same two processes: their keys are the same, and the proofs may be ones that somebody kept."""
    hub, north = pair
    before = hub.seal(NORTH, "cli", b"before", b"last")
    assert north.open(HUB, "hub", before, b"last") == b"before"
    hub.agree(NORTH, "cli", north.proof(HUB, "hub"))
    north.agree(HUB, "hub", hub.proof(NORTH, "cli"))
    assert north.open(HUB, "hub", before, b"last") is None
    after = hub.seal(NORTH, "cli", b"before", b"last")
    assert after[:8] > before[:8]
    assert north.open(HUB, "hub", after, b"last") == b"before"


def test_other_processes_have_other_keys(federations, pair):
    """So one that was restarted, or has a new certificate, is sent nothing that an earlier one could read."""
    hub, _ = pair
    sealed = hub.seal(NORTH, "cli", b"for this one", b"last")
    certified = Certified(federations["health"], NORTH, "health")
    again = Seals(certified, NORTH, "cli")
    again.agree(HUB, "hub", hub.proof(NORTH, "cli"))
    assert again.open(HUB, "hub", sealed, b"last") is None
    assert hub.seal(NORTH, "another", b"to a process without proof", b"last") is None


@pytest.mark.parametrize("change", ["another receiver", "another nonce", "another sender", "garbage", "a weak key"])
def test_proofs_are_for_two_processes(federations, change):
    hub, north, shop = (
        Seals(Certified(federations["health"], party, "health"), party, party[-4:]) for party in (HUB, NORTH, SHOP)
    )
    proof = {
        "another receiver": lambda: north.proof(SHOP, "bank"),
        "another nonce": lambda: north.proof(HUB, "shop"),
        "another sender": lambda: shop.proof(HUB, "bank"),
        "garbage": lambda: b"\xc1" * 99,
        "a weak key": lambda: weak(north),
    }[change]()
    with pytest.raises(ForgedCardError):
        hub.agree(NORTH, "orth", proof)
    assert hub.seal(NORTH, "orth", b"secret", b"last") is None


def weak(seals):
    """A proof with a key by which every secret is the same."""
    seals._public = bytes(32)
    return seals.proof(HUB, "bank")


def test_hubs_that_leave_and_return_go_on(federations):
    """The nonces of sealed pieces go on where a link of the same two processes was down."""
    home, addresses = federations["health"], {hub: free_address() for hub in (HUB, MILL)}
    with joined(HUB, home, [MILL], addresses, federation="health") as hub:
        for _ in range(2):
            with joined(MILL, home, [HUB], addresses, federation="health") as mill:
                assert (hub.receive(SOON), mill.receive(SOON)) == (Joined(MILL), Joined(HUB))
                thread = threading.Thread(target=hub.send, args=(MILL, bytes(3 * PIECE_BYTES)))
                thread.start()
                assert mill.receive(SOON) == Received(HUB, bytes(3 * PIECE_BYTES))
                thread.join()
            assert hub.receive(SOON) == Left(MILL)
    assert hub.unsealed == {}
