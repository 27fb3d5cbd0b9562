"""The server over real sockets: what it answers, and what it refuses."""

import http.client
import json
import socket
import threading
import urllib.request

import pytest
from test_watched_runs import make

from support.command import tdcd
from tdcd.pages.live.server import MOST_CONNECTIONS, Watcher, WatchServer, _page_files


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    secret = tmp_path_factory.mktemp("home") / "secret.txt"
    secret.write_text("not for the page")
    with WatchServer(Watcher([make(secret.parent / "run")])) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server, path="/", method="GET", **headers):
    """Status, headers and content; a header is left out if it is None."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **headers}.items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def raw(server, text):
    """The answer to these very bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as link:
        link.sendall(text)
        link.shutdown(socket.SHUT_WR)
        parts = []
        while part := link.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_the_page_and_its_files(server):
    kinds = {"/": "html", "/main.js": "javascript", "/page.js": "javascript", "/live.css": "css", "/style.css": "css"}
    kinds = {path: f"text/{kind}" for path, kind in kinds.items()} | {"/icon.svg": "image/svg+xml"}
    for path, kind in kinds.items():
        status, headers, content = ask(server, path)
        assert (status, headers["Content-Type"], len(content) > 100) == (200, f"{kind}; charset=utf-8", True)
    status, headers, content = ask(server, "/state")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(content)["runs"][0]["round"] == 2


def test_only_what_a_page_lacks_is_sent(server):
    parts = json.loads(ask(server, "/state")[2])["runs"][0]["parts"]
    assert all("tree" in part for part in parts)
    have = ",".join(part["digest"] for part in parts[1:])
    again = json.loads(ask(server, f"/state?have={have}")[2])["runs"][0]["parts"]
    assert [part["digest"] for part in again] == [part["digest"] for part in parts]
    assert [part["name"] for part in again if "tree" in part] == ["head"]


def test_it_listens_on_loopback_unless_asked(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.is_loopback
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_every_answer_has_the_headers_that_keep_others_out(server):
    answers = [
        ask(server, "/"),
        ask(server, "/state"),
        ask(server, "/none"),
        ask(server, "/", "POST"),
        ask(server, Host="a.b"),
    ]
    assert [status for status, _, _ in answers] == [200, 200, 404, 405, 403]
    for _, headers, _ in answers:
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
        assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert (headers["X-Frame-Options"], headers["Cache-Control"]) == ("DENY", "no-store")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Server"] == "tdcd"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8640", "LOCALHOST"])
def test_hosts_of_this_machine(server, host):
    # Another port is that of the other end of a tunnel.
    assert ask(server, Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8640", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.7", "0.0.0.0",
     "", "[", "localhost@evil.example", "evil.example#localhost", "127.0.0.1/evil", "[::1", None],
)  # fmt: skip
def test_forged_hosts_are_refused(server, host):
    # A foreign page whose name was made to lead here (DNS rebinding) sends its own name as Host.
    for path in ("/", "/state"):
        status, _, content = ask(server, path, Host=host)
        assert status == 403
        assert b"patients" not in content


def test_two_hosts_are_refused(server):
    answer = raw(server, b"GET /state HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 403 ")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
    ],
)
def test_requests_of_other_pages_are_refused(server, headers):
    assert ask(server, "/state", **headers)[0] == 403


def test_requests_of_the_page_itself(server):
    own = f"http://127.0.0.1:{server.server_port}"
    assert ask(server, "/state", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200
    assert ask(server, "/", Sec_Fetch_Site="none")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "//etc/passwd", "/etc/passwd", "/browser/main.js",
     "/main.js/", "/main.js%00.css", "/./main.js", "/run/config.toml", "/__init__.py", "/server.py",
     "/\\..\\secret.txt", "/state/", "/STATE", "*", "http://127.0.0.1/state", "/index.html"],
)  # fmt: skip
def test_other_paths_lead_nowhere(server, path):
    status, _, content = ask(server, path)
    assert status == 404
    assert content == b"404 there is no such page here\n"


@pytest.mark.parametrize(
    "query",
    ["have=", "have=1", "have=a.b.c", "have=" + "A" * 16, "x=1", "open=" + "9" * 50, "open=١", "shut=-1", "open=a",
     "open=1&open=2&shut=3&have=&figure=a"],
)  # fmt: skip
def test_odd_questions_are_refused(server, query):
    path = f"/state?{query}".encode().decode("latin-1")
    status = int(raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1")).split()[1])
    assert status == (200 if query == "have=" else 400)


def test_what_is_not_there_is_no_harm(server):
    for query in (f"have={'0' * 16}", "open=7", "shut=999999999", "figure=none", "figure=%3Cb%3E"):
        assert json.loads(ask(server, f"/state?{query}")[2])["runs"][0]["round"] == 2


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_can_be_written(server, method):
    status, headers, _ = ask(server, "/state", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_what_is_no_request_gets_an_error_and_no_more(server):
    for text in (
        b"\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"BREW / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET " + b"/" * 70_000,
    ):
        answer = raw(server, text)
        assert answer.startswith((b"HTTP/1.0 4", b"HTTP/1.0 5", b"400 ")) or not answer
        assert b"patients" not in answer
    # Nothing after a request's end is taken for another one.
    both = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nGET /state HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    assert raw(server, both).count(b"HTTP/1.0 200") == 1


def test_head_has_the_headers_only(server):
    status, headers, content = ask(server, "/live.css", "HEAD")
    assert (status, content) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


def test_silent_connections_do_not_take_all_memory(server):
    """There are only so many at a time; when they are gone, the page is there again."""
    silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(MOST_CONNECTIONS + 8)]
    try:
        for link in silent[MOST_CONNECTIONS:]:
            link.settimeout(60)
            assert link.recv(1) == b""
    finally:
        for link in silent:
            link.close()
    while True:
        try:
            assert ask(server)[0] == 200
            break
        except (ConnectionError, http.client.BadStatusLine):
            continue


def test_the_page_fetches_nothing_and_reads_no_markup():
    pages = {path: content.decode() for path, (_, content) in _page_files().items()}
    for path, text in pages.items():
        foreign = text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in foreign, path
        assert "//" not in foreign.replace("// ", ""), path
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, (path, word)
    assert "style=" not in pages["/"]
    assert pages["/"].count("<script") == pages["/"].count('<script type="module" src="main.js"></script>') == 1


def test_another_address_is_only_taken_when_asked(tmp_path):
    with WatchServer(Watcher([tmp_path]), "0.0.0.0") as server:
        assert not server.is_loopback
        assert server.url == f"http://127.0.0.1:{server.server_port}/"
        # An address as numbers cannot be made to lead here by another's name server.
        assert server.knows_host("192.168.1.7:8640")
        assert not server.knows_host("evil.example")


def test_a_port_that_is_taken(server, tmp_path):
    done = tdcd("watch", tmp_path, "--port", server.server_port, "--no-browser", cwd=tmp_path)
    assert done.exit_code == 2
    assert f"cannot listen at 127.0.0.1, port {server.server_port}: Address already in use" in " ".join(
        done.stderr.split()
    )


def test_a_command_shows_its_run_until_it_ends(tmp_path, monkeypatch):
    seen = []

    def browser(url):
        with urllib.request.urlopen(f"{url}state", timeout=60) as answer:
            seen.append((url, json.load(answer)["runs"][0]))

    monkeypatch.setenv("BROWSER", "ours")
    monkeypatch.setattr("webbrowser.open", browser)
    # What is resumed is not there: the page is, for as long as the command runs.
    done = tdcd("run", "--watch", "--resume", "out", cwd=tmp_path)
    assert done.exit_code == 2, done.output
    ((url, run),) = seen
    assert url.startswith("http://127.0.0.1:")
    assert f"Watch at {url}" in done.stdout
    assert (run["name"], run["state"]) == ("out", "empty")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])))
