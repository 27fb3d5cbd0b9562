"""A hub's port: how long a stranger may stay, and how many files all connections together take.

Zenoh accepts everybody. It gives a stranger ten seconds, pauses for a tenth of a second after each that fails, and when
no file is left for the next one it does not return to those that it has. So a guard stands before it. The port is the
guard's own, zenoh listens on a port of the loopback interface, and bytes pass between the two unchanged: TLS is between
the two zenohs, and the guard cannot read it. What the guard does:

- A connection is passed on to zenoh with its first bytes, if they can be the beginning of TLS.
- It is closed unless zenoh makes a link of it within a time limit, and for that zenoh wants a certificate.
- Connections that are not links have a limited number of places. When all are taken, the address that has the most
  loses its oldest one: a newcomer always gets in, and whoever floods crowds out themselves first.
- A party has a few links at a time, so that not even the holder of a certificate can take all files.
- Connections leave :data:`RESERVE` of the files that the process may open to the hub itself.
"""

import contextlib
import errno
import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock, Thread

RESERVE = 64
"""Files that are not for connections: checkpoints, history, model, report, and what libraries open."""

PLACES = 32
"""For connections that are not links, in addition to one for each peer."""

HANDSHAKES = 8
"""How many of them may be with zenoh at a time, in addition to one for each peer."""

LINKS = 3
"""The most links of a party at a time: its own, an earlier one that is not yet known to be dead, another command's."""

_FILES = 3
"""The files that a link takes: both ends of the guard, and zenoh's."""
_FEWEST = 12
"""Files for those who are not linked, without which a hub does not start."""
_USUAL = 32
"""Files that a process has open, where the system does not show them."""
_TLS_BEGINS = b"\x16"
_CHUNK_BYTES = 2**18
_LOOPBACK_BYTES = 2**17
"""What the way to zenoh may hold: those who send must notice a slow link."""
_DRAIN_S = 5.0
"""How long the last bytes may take when the guard closes."""
_PAUSE_S = 0.1
"""Without new connections, when the whole machine has no file left."""


class _Connection:
    """An incoming connection, and the one to zenoh once there is one."""

    def __init__(self, outer: socket.socket, address: str, since: float) -> None:
        self.outer, self.address, self.since = outer, address, since
        self.inner: socket.socket | None = None
        self.has_spoken = False
        self.name: str | None = None
        """The common name on the certificate, once zenoh has made it a link."""
        self.port = 0
        """By which zenoh knows it."""
        self.unsent: dict[socket.socket, memoryview] = {}
        """What is still to be sent to an end, which has no room."""
        self.ended: set[socket.socket] = set()
        """The ends that have nothing more to say."""


class Guard:
    """The port of a hub, from now until :meth:`close`; those who dial are let in from :meth:`serve` on.

    Args:
        listen: ``HOST:PORT``, where everybody dials.
        num_peers: How many parties may be linked.
        patience_s: How long a connection may stay without being a link.
        report: Called, more and more rarely, with how many connections were turned away.

    Raises:
        OSError: The port cannot be had, or the process may not open enough files.
    """

    def __init__(self, listen: str, num_peers: int, patience_s: float, report: Callable[[str], None]) -> None:
        self._inner, self._patience, self._report = 0, patience_s, report
        self._num_places, self._num_handshakes = PLACES + num_peers, HANDSHAKES + num_peers
        self._most_files = files_for_connections(num_peers, self._num_places + 2 * self._num_handshakes)
        self._listener = _listen(listen)
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        """All whose outer end is open."""
        self._strangers: dict[_Connection, None] = {}
        """The connections that are not links, the oldest first."""
        self._with_zenoh: dict[int, _Connection] = {}
        """Connections with an inner end, by its port; after the outer one is closed too, until zenoh has noticed."""
        self._opening: dict[_Connection, None] = {}
        """The connections among these that are not links."""
        self._leaving: dict[_Connection, None] = {}
        """Links that one end has closed, and the other has not."""
        self._num_closed = 0
        self._deaf_until = 0.0
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))
        self._news: list[tuple[int, str]] = []
        self._is_closing, self._lock = False, Lock()
        self._ear, self._bell = socket.socketpair()
        for end in (self._listener, self._ear, self._bell):
            end.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._thread = Thread(target=self._run, name="guard", daemon=True)

    def serve(self, inner: int) -> None:
        """Let in whoever dials; ``inner`` is zenoh's port on 127.0.0.1."""
        self._inner = inner
        self._thread.start()

    def admit(self, port: int, name: str) -> None:
        """Zenoh has made a link of the connection that it knows by ``port``; any thread may say so."""
        with self._lock:
            self._news.append((port, name))
        self._ring()

    def close(self) -> None:
        """Close the port, and every connection as soon as what zenoh has sent is on its way."""
        self._is_closing = True
        if not self._thread.ident:
            self._run()  # No connection was accepted: there is only the port to close.
            return
        self._ring()
        self._thread.join(2 * _DRAIN_S)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # It rings already, or the thread is gone.
            self._bell.send(b"\0")

    def _run(self) -> None:
        while not self._is_closing:
            self._act(self._next_look())
        self._shut(self._listener)
        for stranger in [*self._strangers]:
            self._close(stranger)
        ends_at = time.monotonic() + _DRAIN_S
        while self._connections and time.monotonic() < ends_at:
            self._act(ends_at - time.monotonic())
        for connection in {*self._connections, *self._with_zenoh.values()}:
            self._forget(connection)
        for end in (self._selector, self._ear, self._bell):
            end.close()

    def _act(self, timeout: float | None) -> None:
        """Do what there is to do, or wait for it."""
        for key, events in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._ear:
                self._take_calls()
            else:
                self._serve(key.data, key.fileobj, events)  # type: ignore[arg-type]
        if self._strangers or self._opening or self._leaving:
            now = time.monotonic()
            for late in [connection for connection in self._timed() if now - connection.since > self._patience]:
                self._turn_away(late)
            self._pass_on_to_zenoh()
        if self._deaf_until and time.monotonic() > self._deaf_until and not self._is_closing:
            self._deaf_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _next_look(self) -> float | None:
        """Seconds until the next connection's time is up."""
        if not (self._strangers or self._opening or self._leaving or self._deaf_until):
            return None  # As almost always: there are only links.
        ends = [connection.since + self._patience for connection in self._timed()]
        ends += [self._deaf_until] if self._deaf_until else []
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _timed(self) -> list[_Connection]:
        return [*self._strangers, *self._opening, *self._leaving]

    def _take_calls(self) -> None:
        """Note which connections have become links."""
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)
        with self._lock:
            news, self._news = self._news, []
        for port, name in news:
            connection = self._with_zenoh.get(port)
            if connection is None or connection not in self._strangers:
                continue
            links = sum(connection.name == name for connection in self._with_zenoh.values())
            connection.name = name
            del self._strangers[connection], self._opening[connection]
            if links >= LINKS:
                self._turn_away(connection)

    def _accept(self) -> None:
        """Let those in who wait at the door."""
        for _ in range(self._num_places):
            try:
                outer, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._deaf_until = time.monotonic() + _PAUSE_S
                    self._selector.unregister(self._listener)
                    return
                continue
            outer.setblocking(False)
            outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            newcomer = _Connection(outer, str(address[0]), time.monotonic())
            self._connections.add(newcomer)
            self._strangers[newcomer] = None
            while len(self._strangers) > self._num_places or self._num_files > self._most_files:
                self._turn_away(_least_welcome(self._strangers))
                if newcomer not in self._strangers:
                    break
            else:
                self._watch(newcomer)

    @property
    def _num_files(self) -> int:
        """The files that all connections take, zenoh's ends included."""
        return len(self._connections) + 2 * len(self._with_zenoh)

    def _serve(self, connection: _Connection, end: socket.socket, events: int) -> None:
        """Something came from one end of a connection, or it has room again."""
        if end.fileno() < 0:
            return  # It was closed since it was ready.
        try:
            if connection.inner is None:
                # What is no TLS needs no zenoh to be refused; an end before the beginning is refused, too.
                connection.has_spoken = end.recv(1, socket.MSG_PEEK) == _TLS_BEGINS
                if not connection.has_spoken:
                    self._turn_away(connection)
                    return
            else:
                other = connection.inner if end is connection.outer else connection.outer
                if events & selectors.EVENT_WRITE:
                    self._send(connection, end, connection.unsent.pop(end))
                is_all = bool(events & selectors.EVENT_READ) and self._relay(connection, end, other)
                if is_all and not events & selectors.EVENT_WRITE:
                    return  # As almost always: what to wait for has not changed.
                if len(connection.ended) == 2 and not connection.unsent:
                    self._forget(connection)
                    return
        except BlockingIOError:
            pass
        except OSError:
            (self._forget if end is connection.inner else self._close)(connection)
            return
        if connection in self._connections:
            self._watch(connection)

    def _relay(self, connection: _Connection, source: socket.socket, target: socket.socket) -> bool:
        """Pass on what one end says; whether that was all there is to do."""
        size = source.recv_into(self._buffer)
        if size and target not in connection.ended:
            return self._send(connection, target, self._buffer[:size])
        if size == 0 and connection.name is None:
            (self._forget if source is connection.inner else self._close)(connection)
        elif size == 0:
            connection.ended.add(source)
            connection.since = time.monotonic()
            self._leaving[connection] = None
            if target not in connection.unsent:
                target.shutdown(socket.SHUT_WR)
        return False

    def _send(self, connection: _Connection, target: socket.socket, data: memoryview) -> bool:
        """Send, or keep what there is no room for; whether all is sent and there is more to come."""
        try:
            sent = target.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            connection.unsent[target] = memoryview(bytes(data[sent:]))
            return False
        if len(connection.ended) == 1 and target not in connection.ended:
            target.shutdown(socket.SHUT_WR)
        return not connection.ended

    def _watch(self, connection: _Connection) -> None:
        """Wait for what an end says while the other one has room for it, and for room where there is none."""
        ends = [(connection.outer, connection.inner), (connection.inner, connection.outer)]
        for end, other in ends:
            if end is None or end.fileno() < 0:
                continue
            reads = end not in connection.ended and other not in connection.unsent
            if other is None:
                reads = not connection.has_spoken
            wanted = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * (end in connection.unsent)
            key = self._selector.get_map().get(end)
            if key is None and wanted:
                self._selector.register(end, wanted, connection)
            elif key is not None and not wanted:
                self._selector.unregister(end)
            elif key is not None and key.events != wanted:
                self._selector.modify(end, wanted, connection)

    def _pass_on_to_zenoh(self) -> None:
        """Give those who have spoken a place with zenoh; who floods loses theirs."""
        waiting = [stranger for stranger in self._strangers if stranger.has_spoken and stranger.inner is None]
        while waiting:
            if len(self._opening) < self._num_handshakes and self._num_files + 2 <= self._most_files:
                taken = Counter(connection.address for connection in self._opening)
                chosen = min(waiting, key=lambda stranger: (taken[stranger.address], stranger.since))
                waiting.remove(chosen)
                self._dial_zenoh(chosen)
                continue
            leaving = [connection for connection in self._opening if connection not in self._strangers]
            staying = [connection for connection in self._opening if connection in self._strangers]
            if len(leaving) >= len(waiting) or not staying:
                return  # There is room when zenoh has noticed.
            self._turn_away(_least_welcome(staying))

    def _dial_zenoh(self, connection: _Connection) -> None:
        inner = socket.socket()
        inner.setblocking(False)
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOOPBACK_BYTES)
        inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        inner.connect_ex(("127.0.0.1", self._inner))  # Whatever comes of it shows when something is sent.
        connection.inner, connection.port = inner, inner.getsockname()[1]
        self._with_zenoh[connection.port] = connection
        self._opening[connection] = None
        self._watch(connection)

    def _turn_away(self, connection: _Connection) -> None:
        """Close a connection that may not stay."""
        if connection in self._connections and connection not in self._leaving:
            self._num_closed += 1
            if self._num_closed & (self._num_closed - 1) == 0:  # 1, 2, 4, 8, ...
                self._report(
                    f"{self._num_closed} connections were turned away so far, the last one of {connection.address}: "
                    f"they were not TLS, were no links after {self._patience:.0f} s, or were too many"
                )
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        """Close a connection; one that zenoh has not made a link yet counts until zenoh has noticed."""
        if connection.inner is None or connection.name is not None or connection not in self._strangers:
            self._forget(connection)
            return
        self._shut(connection.outer)
        self._connections.discard(connection)
        del self._strangers[connection]
        connection.unsent.clear()
        connection.ended.add(connection.outer)
        connection.since = time.monotonic()
        with contextlib.suppress(OSError):
            connection.inner.shutdown(socket.SHUT_WR)
        self._watch(connection)

    def _forget(self, connection: _Connection) -> None:
        """Close both ends, and keep nothing."""
        self._shut(connection.outer)
        if connection.inner is not None:
            self._shut(connection.inner)
            self._with_zenoh.pop(connection.port, None)
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        self._opening.pop(connection, None)
        self._leaving.pop(connection, None)

    def _shut(self, end: socket.socket) -> None:
        if end.fileno() >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            end.close()


def _least_welcome(connections: Collection[_Connection]) -> _Connection:
    """The oldest of the address that has the most."""
    counts = Counter(connection.address for connection in connections)
    return min(connections, key=lambda connection: (-counts[connection.address], connection.since))


def files_for_connections(num_peers: int, for_strangers: int) -> int:
    """How many files all connections together may take; raises the process's own limit where that is allowed."""
    try:
        in_use = sum(1 for _ in Path("/dev/fd").iterdir())
    except OSError:
        in_use = _USUAL
    base = in_use + RESERVE
    wanted, needed = base + _FILES * LINKS * num_peers + for_strangers, base + _FILES * num_peers + _FEWEST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    if soft != infinite and soft < wanted:
        raised = wanted if hard == infinite else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft != infinite and soft < needed:
        raise OSError(
            f"this process may open {soft} files at a time, and with {num_peers} peers a hub needs {needed}: "
            f"raise the limit (ulimit -n {wanted}, or LimitNOFILE={wanted} in a unit of systemd)"
        )
    return (wanted if soft == infinite else min(soft, wanted)) - base


def _listen(address: str) -> socket.socket:
    """A socket that listens at ``HOST:PORT``; on ``[::]`` it takes IPv4 as well, if the system can."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    addresses = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, where = addresses[0][0], addresses[0][4]
    is_dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(where, family=family, backlog=1024, dualstack_ipv6=is_dual)


def loopback_port() -> int:
    """A free port of the loopback interface.

    Raises:
        OSError: This machine, or the namespace that the process is in, has no loopback interface that is up.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port), timeout=_DRAIN_S):
            return port
