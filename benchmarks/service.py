"""``tdcd serve``: the time of a request for one id, and of a million ids, from phi that two silos published.

``python -m benchmarks.service [--ids 1000000] [--requests 5000]`` signs, writes, reads and checks the files as real
parties do, starts the service as a process, and asks it over loopback on one connection that stays open: one id at a
time, and 10,000 at a time. The client is a process of its own, on the second core.
"""

import argparse
import http.client
import json
import multiprocessing
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
from tdcd.serving.publication import CommonIds, publish, read_publication
from tdcd.serving.scorer import KnownPhi, PartsScorer
from tdcd.serving.service import MOST_IDS, PredictionService, listen, run
from tdcd.tables.dialect import DEFAULT

SILOS = ("bank", "bureau")
RUN = ModelOf("benchmark", "finished")
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
    service = PredictionService([], load, is_private=True)
    with listen("0") as bound:
        news.send((bound.getsockname()[1], time.perf_counter() - start, resident_mb()))
        run(service, bound)


def resident_mb() -> int:
    """The memory of this process."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmRSS"))
    return int(line.split()[1]) >> 10


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
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(Path(text), theirs), daemon=True)
        process.start()
        port, loading, memory = ours.recv()
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        ids = draw.integers(10**7, 10**7 + given.ids, given.requests).astype(str).tolist()
        times = []
        for sample in ids:
            start = time.perf_counter()
            ask(link, [sample])
            times.append(1e3 * (time.perf_counter() - start))
        everything = [str(number) for number in range(10**7, 10**7 + given.ids)]
        start = time.perf_counter()
        for place in range(0, given.ids, MOST_IDS):
            ask(link, everything[place : place + MOST_IDS])
        whole = time.perf_counter() - start
        process.terminate()
        process.join()
    p50, p99 = np.percentile(times, [50, 99])
    print(f"one id: median {p50:.2f} ms, p99 {p99:.2f} ms, of {given.requests} requests")
    print(f"{given.ids:,} ids, {MOST_IDS:,} per request: {whole:.1f} s, with the client's JSON")
    print(f"reading and checking both files: {loading:.1f} s; memory then: {memory} MB")


if __name__ == "__main__":
    main()
