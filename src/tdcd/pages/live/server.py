"""The web server behind ``tdcd watch``, and the runs that it shows, as of the last look.

It is Python's own ``http.server``: nothing to install, so it works wherever tdcd does. Of that module it uses the
parser of requests and a thread per connection, not the part that serves files. It answers GET and HEAD for a fixed
table of paths, closes every connection after one answer, takes only so many at a time, and gives up on slow ones. No
part of a request ever becomes the name of a file. A page asks once in a second: a framework with an event loop would
weigh more than all of this and be no faster.

Browsers let any web page send requests to this one. What is refused, so that no such page learns or does anything:

- a Host that is not this machine's: a foreign name whose address was changed to this machine (DNS rebinding);
- an Origin that is not this page's, and requests that the browser itself calls cross-site;
- everything but GET and HEAD. There is nothing to write anyway.
"""

import errno
import ipaddress
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from tdcd.pages.live.folders import runs_in
from tdcd.pages.live.history import Budget
from tdcd.pages.live.page import NOTHING_ASKED, Asked, Drawn, as_json, asked_in
from tdcd.pages.live.party import WatchedParty
from tdcd.pages.live.run import WatchedRun

Watched = WatchedRun | WatchedParty
LOOK_S = 0.5
"""However many pages ask, the folders are read no more often."""
MOST_RUNS = 100
"""Further ones are counted."""


class Watcher:
    """Reads the folders when a page asks, and else does nothing."""

    def __init__(self, folders: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        """Watch the runs in ``folders``, which need not be there yet."""
        self._folders, self._clock = [*folders], clock
        self._runs: dict[Path, Watched] = {}
        self._lock, self._looked_at = threading.Lock(), -LOOK_S
        self._begun = self._hidden = 0
        # Pages that knew another server have parts of other runs.
        self._nonce = secrets.token_hex(8)
        self._drawn = Drawn(clock)

    def state(self, asked: Asked = NOTHING_ASKED) -> str:
        """What a page shows as JSON, without the parts that it has."""
        with self._lock:
            runs = self._facts()
            is_reading = any(run["state"] == "reading" for run in runs)
            return as_json(runs, self._hidden, self._drawn, asked, server=self._nonce, is_reading=is_reading)

    def facts(self) -> list[dict[str, Any]]:
        """What there is to show of every run."""
        with self._lock:
            return self._facts()

    def _facts(self) -> list[dict[str, Any]]:
        if self._clock() - self._looked_at >= LOOK_S or any(run.is_behind for run in self._runs.values()):
            self._look()
            self._looked_at = self._clock()
        return [*map(_facts_of, self._runs.values())]

    def _look(self) -> None:
        by_path = {run.path: run for run in runs_in(self._folders)}
        self._hidden = max(0, len(by_path) - MOST_RUNS)
        for path in [*by_path][:MOST_RUNS]:
            kind = WatchedParty if by_path[path].kind == "party" else WatchedRun
            if not isinstance(self._runs.get(path), kind):
                self._runs[path] = kind(by_path[path], self._begun)
                self._begun += 1
        budget = Budget()
        for path, run in [*self._runs.items()]:
            try:
                run.look(by_path.get(path), budget)
            except Exception as error:
                # Of any kind: one folder must not keep the others from being shown.
                run.problem = f"{error!r:.200}"
            # A place where no run has begun is only worth a line while it is asked for.
            if path not in by_path and not run.has_begun:
                del self._runs[path]


def _facts_of(run: Watched) -> dict[str, Any]:
    """One run. What no file of a run should say must not keep the others from being shown."""
    if run.problem:
        return run.as_damaged(run.problem)
    try:
        return run.facts()
    except Exception as error:
        return run.as_damaged(f"{error!r:.200}")


LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 32
PATIENCE_S = 10.0
"""How long a connection may say nothing."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class WatchServer(ThreadingHTTPServer):
    """Serves the page and what it shows."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, watcher: Watcher, host: str = LOOPBACK, port: int = 0) -> None:
        """Listen at ``host`` and ``port``; 0 takes any free port."""
        self.watcher, self.host = watcher, host
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise OSError(f"--host {host} is not an address of this machine: {error}") from None
        self.address_family = family
        try:
            super().__init__(address[:2], _PageHandler)  # type: ignore[arg-type]
        except OSError as error:
            way_on = "--port takes another, 0 any free one" if error.errno == errno.EADDRINUSE else "try another --host"
            words = f"cannot listen at {host}, port {port}: {error.strerror}; {way_on}"
            raise OSError(words) from None

    def server_bind(self) -> None:
        """Bind the socket, without asking the network for this machine's name as ``HTTPServer`` does."""
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """The address of the page."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    @cached_property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(str(self.server_address[0]).partition("%")[0]).is_loopback

    def knows_host(self, header: str) -> bool:
        """Whether a Host header can be that of a browser which was given this page's address.

        An address as numbers cannot be made to lead elsewhere, a foreign name can. The port is not compared: it is
        another one at the other end of a tunnel.
        """
        match = _HOST.fullmatch(header.lower())
        name = match[1].strip("[]") if match else ""
        if name and name in ("localhost", self.host.lower()):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self.is_loopback

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; a connection too many is closed at once."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that leaves in the middle of an answer is no error."""


def _page_files() -> dict[str, tuple[str, bytes]]:
    """The files of the page by path: their content type and content."""
    contents = {}
    for file in (*files("tdcd.pages.kit").iterdir(), *files("tdcd.pages.live").joinpath("browser").iterdir()):
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            contents[path] = f"{kind}; charset=utf-8", file.read_bytes()
    return contents


class _PageHandler(BaseHTTPRequestHandler):
    """One request."""

    server: WatchServer
    timeout = PATIENCE_S
    files: ClassVar[dict[str, tuple[str, bytes]]] = _page_files()

    def do_GET(self) -> None:
        """Answer with a file of the page, or with the state of all runs."""
        refusal = self._refusal()
        if refusal:
            self.send_error(HTTPStatus.FORBIDDEN, refusal)
            return
        path, _, query = self.path.partition("?")
        if path == "/state":
            try:
                asked = asked_in(query)
            except ValueError as error:
                self.send_error(HTTPStatus.BAD_REQUEST, str(error))
                return
            self._answer(HTTPStatus.OK, "application/json", self.server.watcher.state(asked).encode())
        elif path in self.files:
            self._answer(HTTPStatus.OK, *self.files[path])
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such page here")

    do_HEAD = do_GET  # noqa: N815

    def _refuse_method(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "this page only answers GET and HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method  # noqa: N815

    def _refusal(self) -> str:
        """Why the request is not one of this page or of its user; nothing if it is."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.knows_host(hosts[0]):
            return "the request is for another host than this machine: open the page at the address that tdcd printed"
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{hosts[0]}":
            return "the request comes from another page"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "the request comes from another page: type the address, or paste it"
        return ""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with an error as plain text."""
        words = f"{int(code)} {message or HTTPStatus(code).phrase}\n"
        self._answer(code, "text/plain; charset=utf-8", words.encode("utf-8", "replace"))

    def _answer(self, code: int, kind: str, content: bytes) -> None:
        self.close_connection = True
        self.send_response(code)
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def version_string(self) -> str:
        """The server's name in answers, without the version of Python."""
        return "tdcd"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""
