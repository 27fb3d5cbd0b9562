"""``tdcd watch``, and ``--watch`` of the commands that train: a page in the browser that follows runs live."""
# ruff: noqa: PLC0415 - see tdcd.cli.app

import os
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from tdcd.cli.terminal import reported, screen, stoppable

if TYPE_CHECKING:
    from tdcd.pages.live.server import WatchServer

LOOPBACK = "127.0.0.1"
PORT = 8640

Folders = Annotated[
    list[Path],
    typer.Argument(
        help="Run folders, sweeps, folders of `tdcd up`, of hubs or of parties that wait for jobs, or a folder with "
        "several of them, such as runs.",
        metavar="FOLDER",
    ),
]


def watch(
    folders: Folders,
    port: Annotated[
        int | None,
        typer.Option(help=f"Where to listen; 0 takes any free port [default: {PORT} if it is free].", min=0, max=65535),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at. At another than this, others on the network see the page.")
    ] = LOOPBACK,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the page's address.")] = False,
) -> None:
    """Follow runs live on a page in the browser: figures, time left, who is connected and who is waited for.

    `tdcd watch runs` shows all runs in that folder side by side, also those that begin later. It reads files and
    writes none: start and stop it at any time, on a run that trains, was interrupted or is over. `tdcd run --watch`
    and `tdcd up --watch` show the run that they start.

    The page is for this machine alone. To see it on another one: `ssh -L 8640:localhost:8640 MACHINE`, and open
    http://localhost:8640/ there.

    Ctrl-C ends it. Exit status: 0, or 2 for bad input.
    """
    with reported():
        server = _server(folders, host, port)
    _announce(server, folders)
    if not no_browser:
        _open(server.url)
    # The server's loop is what a signal interrupts: another thread has to ask it to end.
    with server, stoppable(lambda: threading.Thread(target=server.shutdown, daemon=True).start()):
        server.serve_forever()


class LivePage:
    """The page of a run that this process trains, in a thread: up to the end, and on a terminal until Ctrl-C after it.

    The thread reads what is new when a page asks, a millisecond or two in a second.
    """

    def __init__(self) -> None:
        """There is no page before :meth:`show`."""
        self._server: WatchServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Wait for :meth:`show`."""
        return self

    def show(self, folder: Path) -> None:
        """Open the page of the run in ``folder``, which need not be there yet."""
        self._server = _server([folder], LOOPBACK, None)
        self._thread = threading.Thread(target=self._server.serve_forever, name="watch", daemon=True)
        self._thread.start()
        _announce(self._server, [])
        _open(self._server.url)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the page; after a run that came to its end, when the user says so."""
        if self._server is None or self._thread is None:
            return
        if kind is None and sys.stdin.isatty() and screen.is_terminal:
            screen.print(f"The page stays at {self._server.url} until Ctrl-C.", soft_wrap=True, highlight=False)
            with suppress(KeyboardInterrupt):
                self._thread.join()
        self._server.shutdown()
        self._server.server_close()


def _server(folders: Sequence[Path], host: str, port: int | None) -> "WatchServer":
    """At the given port; else at the usual one or, if that is taken, at any other."""
    from tdcd.pages.live.server import Watcher, WatchServer

    watcher = Watcher(folders)
    if port is not None:
        return WatchServer(watcher, host, port)
    try:
        return WatchServer(watcher, host, PORT)
    except OSError:
        return WatchServer(watcher, host, 0)


def _announce(server: "WatchServer", folders: Sequence[Path]) -> None:
    lines = [f"Watch at {server.url}"]
    if not server.is_loopback:
        lines.append("Everyone who can reach this address sees the page.")
    lines += [f"{folder} is not there yet; the page waits for it." for folder in folders if not folder.is_dir()]
    for line in lines:
        screen.print(line, soft_wrap=True, highlight=False, markup=False)


def _open(url: str) -> None:
    """Open the page, where there is a screen for it: without one, Python would start a browser in the terminal."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        with suppress(webbrowser.Error):
            webbrowser.open(url)
