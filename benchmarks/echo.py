"""One party of a federation that only echoes: messages of a round's sizes over the real transport, and no work.

``python -m benchmarks.echo PARTY FOLDER SIZES``; the hubs print the seconds of a round.
"""

import json
import sys
import time
from pathlib import Path

from tdcd.config import check_config, read_config
from tdcd.runtime.job import Job
from tdcd.runtime.process.party import PartySection, open_transport
from tdcd.runtime.transport.transport import Joined, Received, Transport

WARM, TIMED = 100, 500


def collect(transport: Transport, senders: set[str], waiting: dict[str, list[bytes]]) -> None:
    """One message of each sender; what others send early waits for its turn."""
    missing = {sender for sender in senders if not waiting.get(sender)}
    while missing:
        news = transport.receive(30)
        if isinstance(news, Received):
            waiting.setdefault(news.sender, []).append(news.data)
            missing.discard(news.sender)
        elif news is None:
            raise SystemExit(f"{transport.party} waits in vain for {missing}")
    for sender in senders:
        waiting[sender].pop(0)


def hub(transport: Transport, clients: set[str], peers: set[str], sizes: dict[str, int]) -> None:
    """Lead the clients through rounds of empty talk."""
    everybody, waiting = set(clients | peers), {}
    while everybody:
        news = transport.receive(30)
        if isinstance(news, Joined):
            everybody.discard(news.party)
        elif isinstance(news, Received):
            waiting.setdefault(news.sender, []).append(news.data)
    began = 0.0
    for number in range(WARM + TIMED):
        if number == WARM:
            began = time.perf_counter()
        for kind, receivers in (("block", clients), ("exchange", peers), ("phi", clients)):
            for receiver in receivers:
                transport.send(receiver, bytes(sizes[kind]))
            collect(transport, receivers, waiting)
    print((time.perf_counter() - began) / TIMED, flush=True)
    for client in clients:
        transport.send(client, b"")
    time.sleep(0.5)


def client(transport: Transport, own_hub: str, sizes: dict[str, int]) -> None:
    """Answer a block with a phi, and a phi with a block."""
    while True:
        news = transport.receive(30)
        if isinstance(news, Received):
            if not news.data:
                return
            answer = sizes["phi"] if len(news.data) == sizes["block"] else sizes["block"]
            transport.send(own_hub, bytes(answer))


def main() -> None:
    """Be one party."""
    party, folder, sizes = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    job = Job(check_config(read_config(folder / "federation.toml")))
    own = PartySection(certs=str(folder / "certs"))
    silo = next(i for i, name in enumerate(job.hubs) if party == name or party in job.clients(i))
    if party == job.hubs[silo]:
        peers = [*job.clients(silo), *job.peers(silo)]
        with open_transport(job, party, peers, own, "train") as transport:
            hub(transport, set(job.clients(silo)), set(job.peers(silo)), sizes)
    else:
        with open_transport(job, party, [job.hubs[silo]], own, "train") as transport:
            client(transport, job.hubs[silo], sizes)


if __name__ == "__main__":
    main()
