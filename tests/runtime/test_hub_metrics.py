"""A hub's figures for Prometheus: the text, who may read it, a real hub, and the dashboard that shows them."""

import http.client
import json
import logging
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from support.command import start_tdcd, tdcd
from support.party_processes import end
from support.patience import SOON
from support.ports import free_address
from support.simulated import RIDGE
from tdcd.config import check_config
from tdcd.config.resolve import plan
from tdcd.records.run_folder import toml_text
from tdcd.runtime.compute.client_data import shards
from tdcd.runtime.process.metrics import CONTENT_TYPE, METRICS, PATIENCE_S, READERS, Metrics, Snapshot, exposition

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "tdcd.json"
RULES = DASHBOARD.parents[1] / "prometheus" / "tdcd.rules.yml"
ODD = 'hub."<lab>"\\\n'
FACTS = {
    "party": "hub.shop",
    "phase": "stepping",
    "status": None,
    "round": 7,
    "rounds": 40,
    "train_loss": 0.5,
    "test_loss": None,
    "metrics": {"train": {"accuracy": 0.75, "auc": None}},
    "connected": [ODD],
    "missing_s": {ODD: 1.5},
    "left_out": ["client.shop.north"],
    "refused": {ODD: 3},
    "dropped": {},
}
LINE = re.compile(r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\})? (NaN|[+-]Inf|[-+.e0-9]+)')


def samples(text):
    """The values by name and labels; whatever is not in the format is refused."""
    found, announced = {}, {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            announced.setdefault(name, {})[what] = rest
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        assert announced[name]["TYPE"] == ("counter" if name.endswith("_total") else "gauge")
        assert announced[name]["HELP"]
        found[name + (labels or "")] = float(value)
    return found


def test_figures_are_in_the_text_format_and_labels_are_escaped():
    partners = (ODD, "client.shop.north")
    found = samples(exposition(Snapshot(FACTS, partners, worked_s=2.5, waited_s={ODD: 0.25}, sent={ODD: 10})))
    odd = r"hub.\"<lab>\"\\\n"
    expected = {
        "tdcd_round": 7,
        "tdcd_rounds": 40,
        "tdcd_train_loss": 0.5,
        "tdcd_working_seconds_total": 2.5,
        "tdcd_left_out_clients": 1,
        'tdcd_phase{phase="stepping"}': 1,
        'tdcd_figure{samples="train",figure="accuracy"}': 0.75,
        f'tdcd_waiting_seconds_total{{on="{odd}"}}': 0.25,
        f'tdcd_rejected_messages_total{{sender="{odd}"}}': 3,
        f'tdcd_sent_bytes_total{{receiver="{odd}"}}': 10,
        f'tdcd_connected{{party="{odd}"}}': 1,
        'tdcd_connected{party="client.shop.north"}': 0,
    }
    assert {name: found.get(name) for name in expected} == expected
    # What there is not yet is left out.
    assert not {"tdcd_held_out_loss", "tdcd_checkpoint_age_seconds"} & {*found}


@pytest.fixture
def served(tmp_path):
    metrics = Metrics(tmp_path, (ODD,))
    metrics.snapshot = Snapshot(FACTS, (ODD,))
    with metrics.served("0") as address:
        yield address


def ask(address, path="/metrics", method="GET", **headers):
    link = http.client.HTTPConnection(address, timeout=SOON)
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    content = answer.read().decode()
    link.close()
    return answer, content


def test_only_get_of_metrics_is_answered(served):
    answer, content = ask(served)
    assert (answer.status, answer.getheader("Content-Type")) == (200, CONTENT_TYPE)
    assert "Python" not in answer.getheader("Server")
    assert samples(content)["tdcd_round"] == 7
    for path in (
        "/",
        "/metrics/",
        "/metrics?x",
        "/metrics/../metrics",
        "/%2e%2e/etc/passwd",
        "/status.json",
    ):
        assert ask(served, path)[0].status == 404, path
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"):
        assert ask(served, method=method)[0].status == 405, method


def test_a_page_of_another_name_cannot_read_it(served):
    port = served.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost"):
        assert ask(served, Host=host)[0].status == 200, host
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", f"127.0.0.1.evil.example:{port}"):
        assert ask(served, Host=host)[0].status == 421, host


def test_requests_of_web_pages_are_refused(served):
    """Prometheus sends none of these headers, and every browser does."""
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{served}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer, content = ask(served, **headers)
        assert answer.status == 403, headers
        assert "tdcd_round" not in content
    # Typed into a browser's address line.
    answer, _ = ask(served, **{"Sec-Fetch-Site": "none"})
    assert (answer.status, answer.getheader("X-Content-Type-Options")) == (200, "nosniff")
    assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_odd_requests_get_an_error_and_no_more(served):
    host, port = served.split(":")
    for text, status in (
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost:\r\n\r\n", 421),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n", 421),
        (b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /metrics%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET \xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /metrics/..%2f..%2fstatus.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
    ):
        with socket.create_connection((host, int(port)), timeout=SOON) as link:
            link.sendall(text)
            link.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda link=link: link.recv(65536), b""))
        assert b" %d " % status in answer.splitlines()[0] or b"Error code: %d" % status in answer, text[:60]
        assert b"tdcd_round" not in answer


@pytest.mark.parametrize("beginning", [b"", b"GET /metrics HT", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"])
def test_half_sent_requests_stop_no_reader(served, beginning):
    """More than the server has places for, and nobody waits until their time is over."""
    host, port = served.split(":")
    halves = []
    for _ in range(3 * READERS):
        halves.append(socket.create_connection((host, int(port)), timeout=SOON))
        halves[-1].sendall(beginning)
    before = time.monotonic()
    for _ in range(3):
        assert ask(served)[0].status == 200
    assert time.monotonic() - before < PATIENCE_S
    assert threading.active_count() < 3 * READERS
    for half in halves:
        half.close()


def test_a_machine_that_others_reach_answers_to_its_own_names_only(tmp_path):
    """A web page can make its own name stand for any address; not an address, and no name without a dot."""
    metrics = Metrics(tmp_path, (ODD,))
    metrics.snapshot = Snapshot(FACTS, (ODD,))
    with metrics.served("0.0.0.0:0", ["hub.bank.example"]) as address:
        port = address.rpartition(":")[2]
        here = f"127.0.0.1:{port}"
        names = ["hub.bank.example", "HUB.bank.example", socket.gethostname(), "hub-bank", "localhost"]
        names += ["10.1.2.3", "[2001:db8::1]"]
        for name in (*names, *(f"{name}:{port}" for name in names)):
            assert ask(here, Host=name)[0].status == 200, name
        for name in ("evil.example", f"evil.example:{port}", "hub.bank.example.evil.example", "10.1.2.3.evil.example"):
            answer, content = ask(here, Host=name)
            assert (answer.status, "tdcd_round" in content) == (421, False), name


def test_a_port_that_was_read_a_moment_ago_is_taken_again(tmp_path):
    """The server closes first, so that the system remembers the connection for a while."""
    metrics = Metrics(tmp_path, (ODD,))
    metrics.snapshot = Snapshot(FACTS, (ODD,))
    with metrics.served("0") as address:
        assert ask(address)[0].status == 200
    until(lambda: not is_open(address))
    with metrics.served(address) as again:
        assert again == address
        assert ask(address)[0].status == 200


def is_open(address):
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize("where", ["taken", "99999", "192.0.2.1:9464"])
def test_a_port_that_cannot_be_had_is_a_warning(served, caplog, monkeypatch, where):
    address = served if where == "taken" else where
    monkeypatch.setattr(logging.getLogger("tdcd"), "handlers", [caplog.handler])
    with Metrics(Path(), ()).served(address) as found:
        assert found is None
    said = caplog.records[-1]
    assert said.levelno == logging.WARNING
    assert said.facts["why"].startswith(f"--metrics {address}: cannot listen there: ")


def test_it_listens_on_loopback_unless_asked(served):
    assert served.startswith("127.0.0.1:")


def test_an_address_that_is_none_is_refused(tmp_path):
    (tmp_path / "shared.toml").write_text(toml_text(RIDGE))
    done = tdcd("hub", "shared.toml", "--silo", "lab", "--metrics", "everywhere", cwd=tmp_path)
    assert done.exit_code == 2
    assert "metrics" in done.stderr
    assert "everywhere" in done.stderr


def test_the_dashboard_asks_for_figures_that_exist():
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in board["templating"]["list"]]
    names, labels = {metric.name for metric in METRICS}, {"instance", "job", "on", "party", "receiver", "sender"}
    used = {name for query in asked for name in re.findall(r"\btdcd_\w+", query)}
    assert used <= names
    assert names - used == {"tdcd_phase", "tdcd_evaluated_round", "tdcd_epsilon_spent"}
    legends = " ".join(target["legendFormat"] for panel in board["panels"] for target in panel["targets"])
    assert {*re.findall(r"\{\{(\w+)\}\}", legends)} <= {*labels, "figure", "limit", "samples", "waits_for"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_health_says_for_whom_a_hub_waits_and_how_long(served, tmp_path):
    # These figures are of 1970: the hub has done nothing since.
    answer, content = ask(served, "/healthz")
    assert (answer.status, answer.getheader("Content-Type")) == (503, "application/json")
    assert json.loads(content)["up"] is False
    metrics = Metrics(tmp_path, (ODD,))
    with metrics.served("0") as address:
        assert ask(address, "/healthz")[0].status == 503  # It has not begun.
        metrics.snapshot = Snapshot(FACTS, (ODD,), taken_at=time.time())
        answer, content = ask(address, "/healthz")
        assert ask(address, "/healthz", Origin="null")[0].status == 403
    facts = json.loads(content)
    assert facts.pop("age_s") < SOON
    assert (answer.status, facts) == (
        200,
        {"up": True, "party": "hub.shop", "phase": "stepping", "round": 7, "waiting_s": {ODD: 1.5}},
    )


COMPARED = re.compile(r'(?:increase\()?(\w+)(?:\{job="tdcd"\})?(\[10m\]\))? (==|<|>) ([\d.]+)')


def firing(rules, now, before):
    """The alerts whose condition holds for a sample: what Prometheus makes of expressions of this one form."""
    fired = set()
    for rule in rules:
        name, grows, sign, limit = COMPARED.fullmatch(rule["expr"]).groups()
        for sample, value in now.items():
            figure = value - before.get(sample, 0) if grows else value
            holds = {"==": figure == float(limit), "<": figure < float(limit), ">": figure > float(limit)}[sign]
            if sample.partition("{")[0] == name and holds:
                fired.add(rule["alert"])
    return fired


def test_alert_rules_fire_when_they_should_and_are_silent_otherwise():
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules, now = group["rules"], time.time()
    used = {name for rule in rules for name in re.findall(r"\btdcd_\w+", rule["expr"])}
    assert used <= {metric.name for metric in METRICS}
    for rule in rules:
        labels = {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
        assert labels <= {"instance", "limit", "party", "sender"}
        assert {*rule} - {"for"} == {"alert", "expr", "labels", "annotations"}

    def figures(up=1, age=0.0, **facts):
        text = exposition(Snapshot(FACTS | {"missing_s": {}} | facts, (ODD,), taken_at=now - age))
        return samples(text) | {'up{job="tdcd"}': up}

    well = figures(certificate_days={"hub.shop": 31.0})
    assert firing(rules, well, well) == set()
    alerts = {
        "TdcdHubDown": {"up": 0},
        "TdcdHubStuck": {"age": 130.0},
        "TdcdPartyDown": {"connected": []},
        "TdcdWaiting": {"missing_s": {ODD: 601.0}},
        "TdcdCertificateExpires": {"certificate_days": {"hub.shop": 29.0}},
        "TdcdMessagesRejected": {"refused": {ODD: 14}},
        "TdcdMessagesDropped": {"dropped": {ODD: 1}},
        "TdcdEpsilonLow": {"epsilon_left_ratio": {"epsilon_per_month": 0.1}},
    }
    assert {*alerts} == {rule["alert"] for rule in rules}
    for alert, facts in alerts.items():
        assert firing(rules, figures(**facts), well) == {alert}, alert


@pytest.mark.slow
def test_a_real_hub_is_read_while_it_trains(tmp_path):
    silo = {"name": "a", "clients": 1, "hub": free_address()}
    keys = RIDGE | {"silos": [silo], "train": {**RIDGE["train"], "rounds": 100_000}}
    shards(plan(check_config(keys)))["client.a.c1"].save(tmp_path / "rows.safetensors")
    (tmp_path / "shared.toml").write_text(toml_text(keys))
    (tmp_path / "party.toml").write_text('metrics = "0"\ninsecure = true\n')
    own, log = ("--silo", "a", "--party", "party.toml"), tmp_path / "hub.log"
    started = [start_tdcd("hub", "shared.toml", *own, cwd=tmp_path, log=log)]
    try:
        until(lambda: '"event": "metrics"' in log.read_text())
        address = re.search(r'"http://(127.0.0.1:\d+)/metrics"', log.read_text()).group(1)
        until(lambda: ask(address)[0].status == 200)
        before = samples(ask(address)[1])
        assert (before["tdcd_round"], before['tdcd_phase{phase="gathering"}']) == (0, 1)
        assert before['tdcd_connected{party="client.a.c1"}'] == 0
        rows = ("--client", "c1", "--data", "rows.safetensors")
        (tmp_path / "client.toml").write_text("insecure = true\n")
        started.append(
            start_tdcd(
                "client",
                "shared.toml",
                "--silo",
                "a",
                "--party",
                "client.toml",
                *rows,
                cwd=tmp_path,
                log=tmp_path / "c",
            )
        )
        until(lambda: samples(ask(address)[1])["tdcd_round"] >= 3)
        now = samples(ask(address)[1])
    finally:
        end(started, tmp_path)
    assert now['tdcd_connected{party="client.a.c1"}'] == now["tdcd_connected_parties"] == 1
    for name in ('tdcd_sent_bytes_total{receiver="client.a.c1"}', 'tdcd_received_bytes_total{sender="client.a.c1"}'):
        assert now[name] > before[name] == 0
    assert now["tdcd_working_seconds_total"] > 0
    assert now["tdcd_train_loss"] > 0
    assert now["tdcd_checkpoint_age_seconds"] >= 0
    assert now["tdcd_evaluation_age_seconds"] >= 0


def until(happens):
    deadline = time.monotonic() + SOON
    while not happens():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
