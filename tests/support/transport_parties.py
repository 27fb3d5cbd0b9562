"""Parties on loopback for the tests of transports."""

from support.patience import SOON
from support.ports import free_address
from tdcd.runtime.transport.transport import Joined
from tdcd.runtime.transport.zenoh_settings import Tls
from tdcd.runtime.transport.zenoh_transport import ZenohTransport

HUB, NORTH, SOUTH = "hub.bank", "client.bank.north", "client.bank.south"
SHOP, SHOP_NORTH, MILL = "hub.shop", "client.shop.north", "hub.mill"
PEERS = {
    HUB: [NORTH, SOUTH, SHOP, MILL],
    NORTH: [HUB],
    SOUTH: [HUB],
    SHOP: [HUB, MILL, SHOP_NORTH],
    SHOP_NORTH: [SHOP],
    MILL: [HUB, SHOP],
}
HUBS = [HUB, SHOP, MILL]
MAX_BYTES = 6_000_000


def tls_of(folder, party):
    return Tls(folder / "ca.pem", folder / f"{party}.pem", folder / f"{party}.key")


class ZenohNetwork:
    """Joins parties by real sockets, every hub at a port of its own; without TLS where ``certs`` is None."""

    def __init__(self, certs):
        self.certs = certs
        self.addresses = {hub: free_address() for hub in HUBS}

    def join(self, party, peers, **options):
        tls = tls_of(self.certs, party) if self.certs else None
        listen = self.addresses.get(party)
        return ZenohTransport(party, peers, addresses=self.addresses, listen=listen, tls=tls, **options)


class Parties:
    """The parties of a test by name, all closed at its end."""

    def __init__(self, network):
        self.network = network
        self.ends = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for end in self.ends.values():
            end.close()

    def join(self, *names):
        for name in names:
            self.ends[name] = self.network.join(name, PEERS[name], max_message_bytes=MAX_BYTES)
        return [self.ends[name] for name in names]

    def linked(self, *names):
        """Join and read the news of it: all links are up."""
        ends = self.join(*names)
        for end in ends:
            expected = {Joined(peer) for peer in PEERS[end.party] if peer in names}
            assert {end.receive(SOON) for _ in expected} == expected
        return ends


def take(end, count):
    """The next events, fewer where they do not come soon."""
    events = []
    while len(events) < count and (event := end.receive(SOON)) is not None:
        events.append(event)
    return events
