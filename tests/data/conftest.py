"""A mirror on this machine, one that is down, and folders that cannot be written."""

import os
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@dataclass
class Mirror:
    """An HTTP server: what it has, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    missing_bytes: int = 0
    """How many bytes more than it sends it promises."""
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def mirror():
    state = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            state.requests.append(name)
            if name not in state.files:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.files[name]) + state.missing_bytes))
            self.end_headers()
            self.wfile.write(state.files[name])

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.address = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        server.shutdown()
        thread.join()


@pytest.fixture
def down():
    """An address where nothing listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    return f"http://127.0.0.1:{port}/"


@pytest.fixture
def shelf():
    """A folder that any user may read, for ``read_only``; pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def read_only():
    return _read_only


@contextmanager
def _read_only(folder: Path):
    """Nothing in ``folder`` can be written, even by the superuser, who steps down meanwhile."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    superuser = os.geteuid() == 0
    if superuser:
        os.seteuid(65534)
    try:
        yield
    finally:
        if superuser:
            os.seteuid(0)
        for path in folders:
            path.chmod(0o755)
