"""``tdcd publish`` and ``tdcd serve`` after a real training: the numbers of ``tdcd predict``, for its own machine."""

import asyncio
import dataclasses
import http.client
import json
import os
import shutil
import socket
import time
from contextlib import closing, suppress

import numpy as np
import pyarrow.csv as pcsv
import pytest
from safetensors.numpy import load

from support.command import tdcd
from support.party_processes import events, free_ports, processes, up, wait_until, written
from tdcd.cli.serving import _loader
from tdcd.config import read_config
from tdcd.prediction.model import Model
from tdcd.runtime.certificates.agreement import Certified
from tdcd.runtime.certificates.check import read_secret
from tdcd.runtime.certificates.issue import SECRET, issue, revoke
from tdcd.runtime.process.predict import model_of
from tdcd.runtime.storage.account import Account
from tdcd.serving.gathered import read_gathered, write_gathered
from tdcd.serving.publication import CommonIds
from tdcd.serving.publication import publish as publish_scores
from tdcd.serving.scorer import KnownPhi, PartsScorer, Refusal
from tdcd.tables.dialect import DEFAULT

pytest.importorskip("starlette", reason="serving needs the extra tdcd[serve]")
pytest.importorskip("uvicorn", reason="serving needs the extra tdcd[serve]")
from tdcd.serving.service import PredictionService

JSON = {"Content-Type": "application/json"}


def table(path, head, rows):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A federation that has been trained, new rows of both silos, and the list of those that both have."""
    folder = tmp_path_factory.mktemp("serving")
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, 80)).round(3)
    table(
        folder / "bank.csv", "id,age,good", [(n, a, int(a + b > 0)) for n, (a, b) in enumerate(zip(x, y, strict=True))]
    )
    table(folder / "shop.csv", "id,debt", enumerate(y))
    table(folder / "bank_new.csv", "id,age", [(n, n / 10 - 20) for n in range(200, 212)])
    table(folder / "shop_new.csv", "id,debt", [(n, 20 - n / 10) for n in range(204, 216)])
    table(folder / "shop_a.csv", "id,debt", [(n, 20 - n / 10) for n in range(204, 207)])
    table(folder / "shop_b.csv", "id,debt", [(n, 20 - n / 10) for n in range(207, 216)])
    (folder / "common.txt").write_text("".join(f"{n}\n" for n in range(204, 213)))
    ports = free_ports(2)
    silos = [
        {"name": "bank", "hub": f"127.0.0.1:{ports[0]}", "table": "bank.csv", "features": ["age"], "label": "good"},
        {
            "name": "shop",
            "hub": f"127.0.0.1:{ports[1]}",
            "table": "shop.csv",
            "features": ["debt"],
            "clients": ["a", "b"],
        },
    ]
    keys = {
        "data": {"source": "files", "folder": str(folder)},
        "silos": silos,
        "federation": {"labels": "bank"},
        "model": {"block": "linear", "loss": "logistic", "l2": 0.01},
        "train": {"rounds": 2, "step_size": 0.3, "local_steps": 2, "batch_size": 16},
    }
    path = written(folder, keys)
    code, output = up(path, folder / "up")
    assert code == 0, output
    return folder


def publish(folder, out, *options, data="shop_new.csv"):
    given = () if data is None else ("--data", data)
    known = ("--silo", "shop", "--ids", "common.txt", "--certs", "up/certs", "--run", "up/silos/shop")
    return tdcd("publish", "up/federation.toml", *known, *given, "--out", out, *options, cwd=folder)


@pytest.fixture(scope="module")
def published(trained):
    done = publish(trained, "shop.phi", "--account", "account.jsonl")
    assert done.exit_code == 0, done.output
    (line,) = Account(trained / "account.jsonl").read()
    assert (line.what, line.to, line.rows) == ("predicted", ["bank"], 9)
    assert "phi of 9 of 9 common ids, until 20" in done.stdout
    assert "It is for silo 'bank', which alone has labels, and for no other." in done.stdout
    return trained / "shop.phi"


def serve(folder, *options):
    known = ("--data", f"bank={folder}/bank_new.csv", "--ids", folder / "common.txt", "--certs", folder / "up/certs")
    return "serve", folder / "up/silos/bank", *known, *options


class Client:
    """Asks a service, over a new connection each time."""

    def __init__(self, address):
        self.address = address

    def __call__(self, method, path, body=None, headers=JSON):
        link = http.client.HTTPConnection("127.0.0.1", timeout=60)
        if self.address.startswith("http:"):
            link.port = int(self.address.rpartition(":")[2])
        else:
            link.sock = socket.socket(socket.AF_UNIX)
            link.sock.connect(self.address)
        with closing(link):
            link.request(method, path, body, headers)
            answer = link.getresponse()
            return answer.status, json.loads(answer.read())

    def predict(self, *ids):
        return self("POST", "/predict", json.dumps({"ids": ids}))


@pytest.fixture(scope="module")
def service(trained, published):
    """A service of a hub on a Unix socket; and one of both silos on a port, which goes without what a silo lacks."""
    with processes(trained) as start:
        one = start("socket", *serve(trained, "--phi", published, "--listen", trained / "p.sock"))
        # All blocks in one place, and no phi that was published: as of a simulation.
        tables = [option for silo in ("bank", "shop") for option in ("--data", f"{silo}={trained}/{silo}_new.csv")]
        two = start("port", "serve", trained / "up", *tables, "--listen", "0", "--allow-missing")
        ready = lambda name: [line for line in events(trained / f"{name}.log") if line["event"] == "serving"]  # noqa: E731
        wait_until(lambda: ready("socket") and ready("port"), one, two)
        yield trained, str(trained / "p.sock"), ready("port")[0]["address"]
        os.kill(one.pid, 15)
        assert one.wait(60) == 0
        assert events(trained / "socket.log")[-1]["event"] == "stopped"
        assert not (trained / "p.sock").exists()


def test_the_numbers_are_those_of_predict_and_say_what_each_silo_added(service):
    folder, address, _ = service
    out = folder / "predicted.csv"
    data = ("--data", "bank=bank_new.csv", "--data", "shop=shop_new.csv")
    assert tdcd("predict", "up", *data, "--common", "--out", out, cwd=folder).exit_code == 0
    wanted = pcsv.read_csv(out).to_pydict()
    ids = [*map(str, reversed(wanted["id"]))]
    code, answer = Client(address).predict(*ids)
    assert code == 200
    assert answer["predictions"]["probability_1"] == wanted["probability_1"][::-1]
    assert answer["predictions"]["prediction"] == [*map(str, wanted["prediction"][::-1])]
    assert answer["missing"] == {}
    model = Model.load(folder / "up")
    for silo in ("bank", "shop"):
        scores = model.silo_scores(silo, folder / f"{silo}_new.csv")
        phi = dict(zip(scores.ids, scores.phi[:, 0].tolist(), strict=True))
        assert answer["added"][silo] == [phi[sample] for sample in ids]
    np.testing.assert_allclose(np.sum([*answer["added"].values()], axis=0), answer["scores"], rtol=1e-6)


def test_ids_that_a_silo_lacks_are_refused_or_marked(service):
    _, strict, lenient = service
    assert Client(strict).predict("204", "200", "212") == (404, {"error": "silo 'bank' lacks 1 id of 3: '212'"})
    assert Client(strict).predict("204", "200") == (404, {"error": "silo 'shop' lacks 1 id of 2: '200'"})
    for address in (strict, lenient):
        assert Client(address).predict("x", "204") == (404, {"error": "no silo has 1 id of 2: 'x'"})
    code, answer = Client(lenient).predict("200", "204", "212")
    assert (code, answer["missing"]) == (200, {"bank": ["212"], "shop": ["200"]})
    stand_in = Model.load(service[0] / "up" / "silos" / "bank").stand_ins.of("shop", "float32").tolist()
    assert answer["added"]["shop"][0] == stand_in[0]


HOSTILE = [
    (400, b"", JSON, "the body is not"),
    (400, b"{", JSON, "the body is not"),
    (400, b"\xff\xff", JSON, "the body is not"),
    (400, b"[" * 200_000, JSON, "the body is not"),
    (400, b'{"ids": []}', JSON, "Expected `array` of length >= 1"),
    (400, b'{"ids": [204]}', JSON, "Expected `str`, got `int` - at `$.ids[0]`"),
    (400, b'{"ids": ["204"], "columns": 1}', JSON, "unknown field `columns`"),
    (400, json.dumps({"ids": ["x" * 257]}).encode(), JSON, "length <= 256"),
    (400, json.dumps({"ids": ["1"] * 10_001}).encode(), JSON, "length <= 10000"),
    (413, b"{}", JSON | {"Content-Length": str(10**12)}, "a request has at most 4194304 bytes"),
    (415, b'{"ids": ["204"]}', {"Content-Type": "text/plain"}, "Content-Type: application/json"),
    (403, b'{"ids": ["204"]}', JSON | {"Origin": "http://evil.example"}, "not for web pages"),
    (403, b'{"ids": ["204"]}', JSON | {"Sec-Fetch-Site": "cross-site"}, "not for web pages"),
    (421, b'{"ids": ["204"]}', JSON | {"Host": "evil.example"}, "this machine's own address"),
]


def test_bad_requests_are_refused_and_the_next_one_is_answered(service):
    folder, _, address = service
    for code, body, headers, why in HOSTILE:
        status, answer = Client(address)("POST", "/predict", body, headers)
        assert (status, why in answer["error"]) == (code, True), (code, answer)
    endless = (b" " * 65536 for _ in range(100))
    with suppress(ConnectionError):  # It may be cut off while it is still sending.
        assert Client(address)("POST", "/predict", endless, JSON)[0] == 413
    assert Client(address)("GET", "/predict")[0] == 405
    assert Client(address)("GET", "/docs")[0] == 404
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as raw:
        raw.sendall(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n")
        assert b" 400 " in raw.recv(100)
    assert Client(address).predict("204")[0] == 200
    log = folder / "port.log"
    wait_until(lambda: any(line["event"] == "server" for line in events(log)))
    assert len(events(log)) == len(log.read_text().splitlines())


def test_health_and_schema(service):
    folder, address, other = service
    code, facts = Client(address)("GET", "/healthz")
    assert (code, facts["status"], facts["ids"]) == (200, "up", 13)
    others = Client(other)("GET", "/healthz")[1]["silos"]
    assert others == {silo: {"ids": 12, "expires_in_s": None} for silo in ("bank", "shop")}
    assert facts["silos"]["bank"] == {"ids": 12, "expires_in_s": None}
    assert 6.9 * 24 * 3600 < facts["silos"]["shop"]["expires_in_s"] <= 7 * 24 * 3600
    _, schema = Client(address)("GET", "/openapi.json")
    assert schema["components"]["schemas"]["Question"]["properties"]["ids"]["maxItems"] == 10_000
    assert {*schema["paths"]} == {"/predict", "/healthz"}
    assert (folder / "p.sock").stat().st_mode & 0o777 == 0o600


def test_a_replaced_file_is_read_and_a_bad_one_changes_nothing(service, trained):
    folder, _, _ = service
    assert publish(folder, "moving.phi").exit_code == 0
    with processes(folder) as start:
        moving = start("moving", *serve(folder, "--phi", folder / "moving.phi", "--listen", folder / "m.sock"))
        log = folder / "moving.log"
        wait_until(lambda: any(line["event"] == "serving" for line in events(log)), moving)
        ask = Client(str(folder / "m.sock"))
        assert ask.predict("204")[0] == 200
        good = (folder / "moving.phi").read_bytes()
        (folder / "moving.phi").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        wait_until(lambda: any(line["event"] == "files refused" for line in events(log)), moving)
        assert "was altered after it was signed" in events(log)[-1]["why"]
        assert ask.predict("204")[0] == 200
        assert publish(folder, "moving.phi", "--force", "--days", "0.002", data="shop_a.csv").exit_code == 0
        wait_until(lambda: ask.predict("208")[0] == 404, moving)
        assert ask.predict("204")[0] == 200


async def health(app):
    """What ``GET /healthz`` answers, without a server."""
    sent = []

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [(b"host", b"localhost")]}
    await app(scope, receive, send)
    return json.loads(sent[1]["body"])


@pytest.mark.quick
def test_the_watcher_outlives_any_error(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tdcd.serving.service.LOOK_S", 0.01)
    file = tmp_path / "scale"
    file.write_text("1")

    def load():
        # Other than ValueError and OSError.
        assert 1 / int(file.read_text()) > 0
        return PartsScorer(None, {})

    async def watched():
        app = PredictionService(lambda: [file], load, is_private=True).app()
        async with app.router.lifespan_context(app), asyncio.timeout(60):
            assert (await health(app))["files_refused"] is None
            file.write_text("00")
            while (refused := (await health(app))["files_refused"]) is None:
                await asyncio.sleep(0.01)
            assert refused["why"] == "ZeroDivisionError('division by zero'); the former ones stay in use"
            assert refused["time"].startswith("20")
            file.write_text("002")
            while (await health(app))["files_refused"] is not None:
                await asyncio.sleep(0.01)

    with caplog.at_level("INFO", "tdcd"):
        asyncio.run(watched())
    assert [record.getMessage() for record in caplog.records] == ["files refused", "files read"]


def test_expired_phi_is_not_used(trained):
    model = Model.load(trained / "up")
    parts = {silo: model.silo_scores(silo, trained / f"{silo}_new.csv") for silo in model.silos}
    known = {"bank": KnownPhi(parts["bank"]), "shop": KnownPhi(parts["shop"], expires=1000)}
    before = PartsScorer(model, known).answer(["204", "205"], 999.9)
    with pytest.raises(Refusal, match="the phi of silo 'shop' expired at 1970-01-01 00:16 UTC: it has to publish it"):
        PartsScorer(model, known).answer(["204", "205"], 1000)
    after = PartsScorer(model, known, allow_missing=True).answer(["204", "205"], 1000)
    assert after["added"]["bank"] == before["added"]["bank"]
    assert after["missing"] == {"shop": ["204", "205"]}
    absent = PartsScorer(model, {"bank": known["bank"]}, without=["shop"]).answer(["204", "205"], time.time())
    assert absent == after


@pytest.fixture
def loading(trained, tmp_path):
    """What reads the files of a service of the bank, and publishes for the shop; all of them are this test's own."""
    certs, run, path = tmp_path / "certs", trained / "up/silos/bank", tmp_path / "shop.phi"
    shutil.copytree(trained / "up/certs", certs)
    shutil.copy(trained / "bank_new.csv", tmp_path / "bank.csv")
    scores = Model.load(trained / "up").silo_scores("shop", trained / "shop_new.csv")
    common = CommonIds(trained / "common.txt", DEFAULT, read_secret(certs / SECRET))

    def renew(days=1.0):
        return publish_scores(path, "shop", scores, common, model_of(run), "d", days, Certified(certs, "hub.shop"))

    renew()
    load, _ = _loader(run, [f"bank={tmp_path}/bank.csv"], [path], common.path, certs, [], True, False)
    return load, renew, tmp_path


def test_what_a_prediction_gathered_is_answered_from_also_if_only_a_sum_is_known(trained, tmp_path):
    model, path = Model.load(trained / "up"), tmp_path / "phi.safetensors"
    parts = {silo: model.silo_scores(silo, trained / f"{silo}_new.csv") for silo in model.silos}
    ids = [sample for sample in parts["bank"].ids if sample in parts["shop"].ids]
    wanted = PartsScorer(model, {silo: KnownPhi(part) for silo, part in parts.items()}).answer(ids, 0)
    write_gathered(path, parts)
    assert path.stat().st_mode & 0o777 == 0o600
    known = {name: KnownPhi(part) for name, part in read_gathered(path, model).items()}
    assert PartsScorer(model, known).answer(ids, 0) == wanted
    # As with masks: one silo's entry has the sum of all others, and those of the others are zero.
    model = dataclasses.replace(model, silos=(*model.silos, "port"))
    masked = parts | {"port": parts["shop"]._replace(phi=np.zeros_like(parts["shop"].phi))}
    write_gathered(path, masked, sums="bank")
    known = {name: KnownPhi(part) for name, part in read_gathered(path, model).items()}
    answer = PartsScorer(model, known, summands=[*known]).answer(ids, 0)
    assert answer == wanted | {"added": dict(zip(("bank", "shop + port"), wanted["added"].values(), strict=True))}
    with pytest.raises(ValueError, match="is of other silos than the model"):
        read_gathered(path, Model.load(trained / "up"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"is damaged: .*propose the prediction again"):
        read_gathered(path, model)


def test_a_file_that_has_expired_keeps_no_other_from_being_read(loading):
    load, renew, folder = loading
    renew(days=0.0)
    table(folder / "bank.csv", "id,age", [(204, 1.0)])
    scorer = load()
    assert len(scorer.known["bank"].scores.ids) == 1
    assert "expired at 20" in scorer.unused(time.time())["shop"]
    assert scorer.answer(["204"], time.time())["missing"] == {"shop": ["204"]}
    renew()
    assert load().answer(["204"], time.time())["missing"] == {}


def test_revoked_phi_is_dropped_even_if_another_file_is_bad(loading):
    load, _, folder = loading
    before = load()
    assert before.answer(["204"], time.time())["missing"] == {}
    revoke(folder / "certs", ["hub.shop"])
    good = (folder / "bank.csv").read_text()
    (folder / "bank.csv").write_text("id\n")
    with pytest.raises(ValueError, match="bank"):
        load()
    why = {"shop": "the phi of silo 'shop' comes with a certificate that was revoked"}
    assert before.unused(0) == why
    assert before.answer(["204"], 0)["missing"] == {"shop": ["204"]}
    (folder / "bank.csv").write_text(good)
    assert load().unused(0) == why
    before.allow_missing = False
    with pytest.raises(Refusal, match="comes with a certificate that was revoked"):
        before.answer(["204"], 0)


def test_a_revoked_file_does_not_replace_a_good_one(loading, monkeypatch):
    load, renew, folder = loading
    ahead = time.time() + 1000
    with monkeypatch.context() as clock:  # Of whoever has the key that is revoked later.
        clock.setattr("time.time", lambda: ahead)
        renew()
    assert load().unused(0) == {}
    old = (folder / "shop.phi").read_bytes()
    revoke(folder / "certs", ["hub.shop"])
    assert [*load().unused(0)] == ["shop"]
    issue(folder / "certs", "hub.shop", ["127.0.0.1"], days=1)
    renew()
    assert load().unused(0) == {}
    (folder / "shop.phi").write_bytes(old)
    with pytest.raises(ValueError, match=r"--phi .*shop.phi: the phi of silo 'shop' comes with a certificate that was"):
        load()


def test_an_older_file_does_not_replace_a_newer_one(loading):
    load, renew, folder = loading
    published = renew().statement.published
    old = (folder / "shop.phi").read_bytes()
    wait_until(lambda: time.time() >= published + 1)
    renew()
    new = load()
    (folder / "shop.phi").write_bytes(old)
    why = r"--phi .*shop.phi: phi of silo 'shop' was published \d+ seconds? before what is in use: get the file"
    with pytest.raises(ValueError, match=why):
        load()
    assert new.unused(time.time()) == {}
    renew()
    assert load().unused(time.time()) == load().unused(time.time()) == {}


def test_rows_at_clients_are_published_by_their_hub(trained, published):
    with processes(trained) as start:
        for name in ("a", "b"):
            own = ("--silo", "shop", "--client", name, "--data", trained / f"shop_{name}.csv")
            start(f"client-{name}", "predict", trained / "up/federation.toml", *own, "--certs", trained / "up/certs")
        done = publish(trained, "of_clients.phi", data=None)
    assert done.exit_code == 0, done.output
    ours, theirs = (load((trained / name).read_bytes()) for name in ("of_clients.phi", "shop.phi"))
    assert ours["places"].tolist() == theirs["places"].tolist()
    np.testing.assert_allclose(ours["phi"], theirs["phi"], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--phi", "shop.phi", "--listen", "0.0.0.0:8400"), "give a port of this machine's own address"),
        (("--phi", "shop.phi", "--listen", "99999"), "give a port of this machine's own address"),
        (("--phi", "shop.phi", "--listen", "./common.txt"), "there is something else than a socket"),
        (("--phi", "shop.phi", "--phi", "shop.phi"), "it is of silo 'shop', which is given twice, or also otherwise"),
        (("--phi", "shop.phi", "--without", "shop"), "it is of silo 'shop', which is given twice, or also otherwise"),
        ((), "--phi and --ids go together"),
        (("--phi", "common.txt"), "common.txt is not phi that a silo published"),
        (("--phi", "none.phi"), "none.phi"),
    ],
)
def test_what_cannot_be_served_is_refused(trained, published, options, why):
    done = tdcd(*serve(trained, *options), cwd=trained)
    assert done.exit_code == 2
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["event"], last["level"]) == ("failed", "error")
    assert why in last["why"]


def test_what_must_not_be_published_is_refused(trained):
    done = publish(trained, "shop.phi")
    assert "shop.phi is there already" in done.stderr
    done = publish(trained, "new.phi", "--run", "up")
    assert "up is no run folder of a hub whose training has finished" in done.stderr.replace("\n", " ")
    keys = read_config(trained / "federation.toml")
    keys["silos"].append({"name": "port", "hub": "127.0.0.1:9", "features": ["x"]})
    masked = written(trained / "masked", keys | {"exchange": {"protect": "mask"}})
    known = ("--silo", "shop", "--ids", "common.txt", "--certs", "up/certs", "--run", "up/silos/shop")
    done = tdcd("publish", masked, *known, "--data", "shop_new.csv", "--out", "n.phi", cwd=trained)
    assert "exchange.protect = 'mask': published phi would show this silo's part" in done.stderr.replace("\n", " ")
