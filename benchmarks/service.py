"""``tdcd serve``: the time of a request for one id, and of a million ids, from phi that two silos published.

``python -m benchmarks.service [--ids 1000000] [--requests 5000]`` signs, writes, reads and checks the files as real
parties do, starts the service as a process, and asks it over loopback on one connection that stays open: one id at a
time, and 10,000 at a time. The client is a process of its own, on the second core. In turns with the requests for one
id, a third process echoes as many bytes after 0.3 ms of processor time, without HTTP or our code: on a busy machine its
p99 says what sharing the cores with others costs anything that takes so long.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tdcd import Federation, Linear, Model, Objective, Settings, train
from tdcd.prediction.scores import SiloScores
from tdcd.runtime.certificates.agreement import Authority, Certified
from tdcd.runtime.certificates.check import read_secret
from tdcd.runtime.certificates.issue import SECRET, throwaway
from tdcd.runtime.process.predict import ModelOf
from tdcd.serving.address import listen
from tdcd.serving.publication import CommonIds, publish, read_publication
from tdcd.serving.scorer import KnownPhi, PartsScorer
from tdcd.serving.service import MOST_IDS, PredictionService, run
from tdcd.tables.dialect import DEFAULT

SILOS = ("bank", "bureau")
RUN = ModelOf("benchmark", "finished")
BUSY_S = 0.0003
HEADERS = {"Content-Type": "application/json"}


def prepare(folder: Path, count: int) -> None:
    """A model, certificates, the common ids, and what both silos publish."""
    draw = np.random.default_rng(0)
    frames = {silo: pd.DataFrame({"id": range(500), silo: draw.normal(size=500)}) for silo in SILOS}
    frames["bank"]["y"] = (frames["bank"]["bank"] + frames["bureau"]["bureau"] > 0).astype(int)
    federation = Federation.from_frames(frames, id="id", label="y")
    settings = Settings(local_steps=5, batch_size=64, step_size=0.05)
    train(federation, Linear(), Objective("logistic"), settings, rounds=5, verbose=0).model.save(folder / "model.tdcd")
    throwaway(folder / "certs", {f"hub.{silo}": ["127.0.0.1"] for silo in SILOS}, [])
    (folder / "common.txt").write_text("".join(f"{number}\n" for number in range(10**7, 10**7 + count)))
    common = _common(folder)
    for silo in SILOS:
        scores = SiloScores(common.ids, draw.normal(size=(count, 1)).astype(np.float32))
        signer = Certified(folder / "certs", f"hub.{silo}")
        publish(folder / f"{silo}.phi", silo, scores, common, RUN, "", 1.0, signer)


def _common(folder: Path) -> CommonIds:
    return CommonIds(folder / "common.txt", DEFAULT, read_secret(folder / "certs" / SECRET))


def serve(folder: Path, news: Connection) -> None:
    """The service, until it is ended."""
    model = Model.load(folder / "model.tdcd")

    def load() -> PartsScorer:
        common, authority = _common(folder), Authority(folder / "certs")
        read = [
            read_publication(folder / f"{silo}.phi", authority, common, RUN, model.phi_width, model.dtype)
            for silo in SILOS
        ]
        known = {part.statement.silo: KnownPhi(part.scores, part.statement.expires) for part in read}
        return PartsScorer(model, known)

    start = time.perf_counter()
    service = PredictionService(list, load, is_private=True)
    with listen("0") as bound:
        news.send((bound.getsockname()[1], time.perf_counter() - start, resident_mb()))
        run(service, bound)


def resident_mb() -> int:
    """The memory of this process."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmRSS"))
    return int(line.split()[1]) >> 10


def echo(news: Connection) -> None:
    """Sends back what it gets, after some processor time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        news.send(listener.getsockname()[1])
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := peer.recv(1 << 16):
                end = time.thread_time() + BUSY_S
                while time.thread_time() < end:
                    pass
                peer.sendall(data)


def cpu_s(process: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(link: http.client.HTTPConnection, ids: list[str]) -> Any:
    """One request."""
    link.request("POST", "/predict", json.dumps({"ids": ids}), HEADERS)
    answer = json.loads(link.getresponse().read())
    assert len(answer["scores"]) == len(ids)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=5_000)
    given = parser.parse_args()
    draw = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as text:
        prepare(Path(text), given.ids)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(Path(text), theirs), daemon=True)
        process.start()
        port, loading, memory = ours.recv()
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        ids = draw.integers(10**7, 10**7 + given.ids, given.requests).astype(str).tolist()
        here, there = context.Pipe()
        mirror = context.Process(target=echo, args=(there,), daemon=True)
        mirror.start()
        other, times, echoed = socket.create_connection(("127.0.0.1", here.recv())), [], []
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        spent = cpu_s(process.pid or 0)
        for sample in ids:
            start = time.perf_counter()
            ask(link, [sample])
            between = time.perf_counter()
            other.sendall(b"x" * 200)
            other.recv(1 << 16)
            times.append(1e3 * (between - start))
            echoed.append(1e3 * (time.perf_counter() - between))
        spent = 1e3 * (cpu_s(process.pid or 0) - spent) / given.requests
        other.close()
        everything = [str(number) for number in range(10**7, 10**7 + given.ids)]
        start, before, own = time.perf_counter(), cpu_s(process.pid or 0), time.process_time()
        for place in range(0, given.ids, MOST_IDS):
            ask(link, everything[place : place + MOST_IDS])
        whole = time.perf_counter() - start
        needed, own = cpu_s(process.pid or 0) - before, time.process_time() - own
        process.terminate()
        process.join()
        mirror.join()
    for name, figures in (("one id", times), ("the echo", echoed)):
        p50, p95, p99 = np.percentile(figures, [50, 95, 99])
        print(f"{name}: median {p50:.2f} ms, p95 {p95:.2f} ms, p99 {p99:.2f} ms, of {given.requests}")
    print(f"processor time of the service per request: {spent:.2f} ms; load of the machine {os.getloadavg()[0]:.1f}")
    print(f"{given.ids:,} ids, {MOST_IDS:,} per request: {whole:.1f} s, with the client's JSON;")
    print(f"processor time for these: service {needed:.1f} s, client {own:.1f} s")
    print(f"reading and checking both files: {loading:.1f} s; memory then: {memory} MB")


if __name__ == "__main__":
    main()
