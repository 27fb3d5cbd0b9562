"""Messages between organisations: Eclipse zenoh links under mutual TLS, without a broker.

Hubs are zenoh peers without discovery: a hub listens, and dials the hubs whose names sort before its
own; a client dials its hub and has no port. Who dials never gives up. The common name on a certificate fixes which
keys its holder may use: RECEIVER and SENDER are common names. Messages go from one process to one other: TO and BY are
their nonces, see :mod:`tdcd.runtime.transport.processes`. TLS compares names, and whether an authority is trusted; so
each process proves, before its first message, that its certificate is one of this federation, and was issued by whoever
may issue it, and seals its messages for the other process: see :mod:`tdcd.runtime.transport.seals`. A large message
goes in pieces, all but the last one marked by an attachment: zenoh closes a link that has not taken what it was given
within a fixed time.

==============================================  ============================================================
``tdcd/1/RECEIVER/SENDER/message/TO/BY``        messages
``tdcd/1/RECEIVER/SENDER/alive/PROCESS``        a liveliness token, there while the process is that it names
==============================================  ============================================================
"""

import ipaddress
import json
import math
import os
import secrets
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any, NamedTuple, Self

import zenoh
from zenoh.handlers import Callback

from tdcd.core.words import one_line
from tdcd.runtime.certificates.agreement import Certified, ForgedCardError
from tdcd.runtime.certificates.check import facts_of, read_certificate
from tdcd.runtime.certificates.revocation import LOOK_S, RevocationList, WatchedList
from tdcd.runtime.transport.guard import Guard, loopback_port
from tdcd.runtime.transport.processes import CHOSEN, REFUSED, TAKEN, PeerProcesses, Process, is_nonce
from tdcd.runtime.transport.seals import SEAL_BYTES, Seals
from tdcd.runtime.transport.transport import MAX_MESSAGE_BYTES, Event, Left, Mailbox
from tdcd.runtime.transport.zenoh_settings import (
    HANDSHAKE_LEASES,
    LEASE_S,
    PIECE_BYTES,
    THREADS,
    Tls,
    alive_key,
    message_key,
    zenoh_settings,
)

OPEN_FILES = Path("/dev/fd")
"""The numbers of this process's open files, on Linux and macOS."""


def cut(session: zenoh.Session, names: Collection[str]) -> int:
    """Close every link whose other end has shown a certificate with one of these common names; how many there were.

    The connection is shut down below zenoh, which takes it for a peer that went away.
    """
    doomed = [link for link in session.info.links() if link.auth_identifier in names]
    return sum(_shut_down(_port(str(link.src)), locator_address(str(link.dst))) for link in doomed)


def _shut_down(port: int, other: tuple[str, int]) -> bool:
    """Shut down this process's connection between a port of its own and a remote address, if it can be found."""
    for number in _open_files():
        with suppress(OSError), _copied(number) as own:
            if own.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            host, far_port = own.getpeername()[:2]
            if own.getsockname()[1] == port and (_plain(host), far_port) == other:
                own.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _open_files() -> list[int]:
    # Some containers do not show them. The link then stays, but nothing passes on it.
    with suppress(OSError):
        return [int(entry.name) for entry in OPEN_FILES.iterdir()]
    return []


def _copied(number: int) -> socket.socket:
    """A copy of an open file that is a socket. The original may be closed at any moment, and its number used again."""
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError(f"file {number} is no socket")
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _port(locator: str) -> int:
    return locator_address(locator)[1]


def locator_address(locator: str) -> tuple[str, int]:
    """The host and port of a zenoh locator.

    >>> locator_address("tls/127.0.0.1:7447"), locator_address("tls/[::1]:7447?key=value")
    (('127.0.0.1', 7447), ('::1', 7447))
    """
    host, _, port = locator.partition("/")[2].partition("?")[0].rpartition(":")
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    """An address in one form: also an IPv4 address that a socket of IPv6 has."""
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


CLOSING_S = 10.0
"""How long a thread may take to notice that the session is closed."""
DIALLING_S = (0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 2.0)
"""How long a client waits after each time that its hub could not be reached; the last one from then on."""
MOST_PORTS = 5
"""How many ports a hub tries behind its guard."""
LAST, MORE = b"last", b"more"
"""What a piece is: the last of its message, or not."""
MOST_ATTACHED_BYTES = 80
"""The size of an attachment: what a piece is, and the nonce of the process that sends it."""
MOST_WORD_BYTES = 1000
"""What a process may say of itself, and more."""
NAMES_AHEAD = 4
"""How many common names of a peer are in the access rules, which are fixed when the session opens: its current one, and
those that it would have after further revocations."""


class _Link(NamedTuple):
    """What is declared for one peer, under its current common name."""

    messages: zenoh.Subscriber[None]
    presence: zenoh.Subscriber[None]
    token: zenoh.LivelinessToken

    def undeclare(self) -> None:
        """Send and receive nothing any more."""
        for declared in self:
            declared.undeclare()  # type: ignore[no-untyped-call]


class ZenohTransport:
    """The :class:`~tdcd.runtime.transport.transport.Transport` of a party in a process of its own.

    Opening returns at once; peers join when they can be reached, in whatever order the parties start.

    Args:
        party: Who this is; the common name of its certificate.
        peers: Who may talk to it.
        addresses: ``HOST:PORT`` at which each hub among the peers listens.
        dialled: The hubs among the peers that it dials, and that do not dial it; by default those before it in the
            alphabet, and of a client its hub.
        listen: ``HOST:PORT`` of a hub's own port; None for a client.
        tls: The party's files. None sends clear text and trusts everybody: for loopback addresses only.
        max_message_bytes: Larger messages are refused, incoming ones before they are put together.
        lease_s: How long a link may be silent; longer than any round trip.
        federation: The one that the others' certificates have to name; by default any, or none.
        revocations: Whose certificates are not honoured any more; None to honour all.
        process: What this process does, and which protocol it speaks; the rest of it is filled in here.
        report: Called with what the operator of a hub should know of its port.

    Raises:
        ValueError: Something in the arguments or the files is wrong; the text says what.
        OSError: The hub cannot listen.
    """

    def __init__(
        self,
        party: str,
        peers: Iterable[str],
        *,
        addresses: Mapping[str, str],
        dialled: Collection[str] | None = None,
        listen: str | None = None,
        tls: Tls | None,
        federation: str | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        lease_s: float = LEASE_S,
        revocations: WatchedList | None = None,
        process: Process = Process(),  # noqa: B008
        report: Callable[[str], None] = lambda news: None,
    ) -> None:
        self._mailbox = Mailbox(party, peers, max_message_bytes)
        self.party = party
        self.sent_bytes: Counter[str] = Counter()
        self.dropped = self._mailbox.dropped
        self.arriving = self._mailbox.arriving
        self.unsealed: Counter[str] = Counter()
        self._lock = Lock()
        self._revocations = revocations
        ordered = sorted(self._mailbox.peers)
        honoured = RevocationList() if revocations is None else revocations.current
        self.revoked = {peer for peer in ordered if honoured.is_revoked(peer)}
        self._allowed = {peer: honoured.next_names(peer, NAMES_AHEAD) for peer in ordered}
        facts = None if tls is None else facts_of(read_certificate(tls.certificate))
        self._own_name = party if facts is None else facts.common_name
        self._process = process._replace(
            nonce=secrets.token_hex(16),
            since=int(time.time()),
            expires=0 if facts is None else int(facts.not_after.timestamp()),
        )
        self._attached = _attached(LAST, self._process), _attached(MORE, self._process)
        self._processes = {peer: PeerProcesses(self._process, party, peer) for peer in ordered}
        self._expiries = {party: self._process.expires} if self._process.expires else {}
        self._with_unsent: SimpleQueue[str | None] = SimpleQueue()
        self._names = {peer: names[0] for peer, names in self._allowed.items()}
        names = {party: [self._own_name], **self._allowed}
        self._guard, inner = None, None
        if listen is not None and tls is not None:
            self._guard, inner = _guarded(party, listen, len(ordered), HANDSHAKE_LEASES * lease_s, report)
        behind = listen if inner is None else f"127.0.0.1:{inner}"
        try:
            settings = zenoh_settings(
                party, ordered, addresses, behind, tls, max_message_bytes, lease_s, names, dialled
            )
            # After the settings, whose errors say more.
            self._seals = None
            if tls is not None:
                self._seals = Seals(Certified(tls.authority.parent, party, federation), party, self._process.nonce)
        except BaseException:
            if self._guard is not None:
                self._guard.close()
            raise
        self._session: zenoh.Session | None = None
        self._keys: dict[str, tuple[str, zenoh.KeyExpr]] = {}
        """Of messages to the process of each peer that has this nonce."""
        self._links: dict[str, _Link] = {}
        self._linking = Lock()
        """Held while links are declared or given up, and never by what zenoh calls."""
        self._is_closing = Flag()
        self._chooser = Thread(target=self._send_choices, name="choices", daemon=True)
        self._dialler = Thread(target=self._dial, args=(settings,), name="dialler", daemon=True)
        if listen is None:
            self._chooser.start()
            self._dialler.start()
            return
        try:
            session, inner = _open_hub(party, settings, inner)
        except BaseException:
            if self._guard is not None:
                self._guard.close()
            raise
        # Before any client can be linked: of what a hub declares meanwhile, zenoh clients do not always hear.
        self._begin(session)
        if self._guard is not None and inner is not None:
            # Direct, since an indirect one is called by a thread that waits inside zenoh until Python ends, see close.
            on_link = Callback(partial(_admit, self._guard, inner), indirect=False)
            self._link_events = session.info.declare_link_events_listener(on_link, history=True)
            self._guard.serve(inner)
        self._chooser.start()

    @property
    def unfit(self) -> dict[str, str]:
        """See :class:`Transport <tdcd.runtime.transport.transport.Transport>`."""
        with self._lock:
            return {peer: processes.unfit for peer, processes in self._processes.items() if processes.unfit}

    @property
    def expiries(self) -> dict[str, int]:
        """See :class:`Transport <tdcd.runtime.transport.transport.Transport>`."""
        with self._lock:
            return dict(self._expiries)

    def send(self, receiver: str, data: bytes) -> None:
        """See :meth:`Transport.send <tdcd.runtime.transport.transport.Transport.send>`."""
        self._mailbox.check(receiver, data)
        processes, chosen = self._processes[receiver], self._processes[receiver].chosen
        if chosen is None or not processes.is_up:
            return
        assert self._session is not None
        put = partial(
            self._session.put,
            self._key(self._session, receiver, chosen),
            # By default zenoh throws messages away when a link is busy.
            congestion_control=zenoh.CongestionControl.BLOCK,
            express=True,
        )
        last, more = self._attached
        for piece, is_last in pieces(data, PIECE_BYTES):
            mark = LAST if is_last else MORE
            sealed = piece if self._seals is None else self._seals.seal(receiver, chosen.nonce, piece, mark)
            # Who is away, or came back in the meantime, could not put the pieces together.
            if sealed is None or self._processes[receiver] is not processes or not processes.accepts(chosen.nonce):
                return
            put(sealed, attachment=last if is_last else more)
        self.sent_bytes[receiver] += len(data)

    def _dial(self, settings: Mapping[str, Any]) -> None:
        """Open a client's session, in a thread of its own: zenoh does so only once the hub answers."""
        for pause in chain(DIALLING_S, repeat(DIALLING_S[-1])):
            with suppress(OSError):
                session = _open(self.party, settings)
                break
            if self._is_closing.wait(pause):
                return
        if self._is_closing.is_set():
            session.close()  # type: ignore[no-untyped-call]
        else:
            self._begin(session)

    def _begin(self, session: zenoh.Session) -> None:
        """Be there for every peer that may come."""
        with self._linking:
            self._session = session
            for peer, name in self._names.items():
                if name in self._allowed[peer]:
                    self._links[peer] = self._link(session, peer)

    def _key(self, session: zenoh.Session, receiver: str, process: Process) -> zenoh.KeyExpr:
        """The declared key of messages to a process of a peer; the one to a former process is given up.

        A publisher would do, but a client that declares one asks its hub something. The hub's only thread would answer,
        and wait for ever for room on a full link that it is to empty itself.
        """
        nonce, key = self._keys.get(receiver, ("", None))
        if key is None or nonce != process.nonce:
            self._forget_key(session, receiver)
            key = session.declare_keyexpr(message_key(self._names[receiver], self._own_name, process.nonce))
            self._keys[receiver] = process.nonce, key
        return key

    def _forget_key(self, session: zenoh.Session, receiver: str) -> None:
        if receiver in self._keys:
            session.undeclare(self._keys.pop(receiver)[1])

    def _send_choices(self) -> None:
        """Say to processes of peers whether they are chosen, in a thread of its own: those that read never wait."""
        while (peer := self._with_unsent.get()) is not None:
            with self._lock:
                processes, name = self._processes[peer], self._names[peer]
                unsent, processes.unsent = processes.unsent, {}
            for nonce, (what, word) in unsent.items():
                key = message_key(name, self._own_name, nonce)
                content = word if what != CHOSEN or self._seals is None else self._seals.proof(peer, nonce)
                # No party waits for one that is not chosen and does not read.
                waits = zenoh.CongestionControl.BLOCK if what == CHOSEN else zenoh.CongestionControl.DROP
                with suppress(zenoh.ZError):
                    assert self._session is not None
                    self._session.put(
                        key, content, congestion_control=waits, express=True, attachment=_attached(what, self._process)
                    )
                with self._lock:
                    if what == CHOSEN and self._processes[peer] is processes:
                        self._note(peer, processes.announced(nonce))

    def receive(self, timeout: float | None) -> Event | None:
        """See :meth:`Transport.receive <tdcd.runtime.transport.transport.Transport.receive>`."""
        ends = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._honour_revocations()
            event = self._mailbox.get(max(0.0, min(ends - time.monotonic(), LOOK_S)))
            if event is not None or time.monotonic() >= ends:
                return event

    def close(self) -> None:
        """See :meth:`Transport.close <tdcd.runtime.transport.transport.Transport.close>`."""
        if not self._mailbox.closed:
            self._mailbox.close()
            self._with_unsent.put(None)
            self._is_closing.set()
            if self._dialler.ident:
                self._dialler.join(CLOSING_S)
            if self._guard is not None:
                with suppress(zenoh.ZError):
                    self._link_events.undeclare()  # type: ignore[no-untyped-call]
            # Zenoh gives up closing after ten seconds: some connection is still being opened, to a party that is away.
            if self._session is not None:
                with suppress(zenoh.ZError):
                    self._session.close()  # type: ignore[no-untyped-call]
            # A thread that is still inside zenoh when Python ends would end the process by SIGABRT.
            self._chooser.join(CLOSING_S)
            if self._guard is not None:
                self._guard.close()

    def __enter__(self) -> Self:
        """The transport itself, to be closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def _honour_revocations(self) -> None:
        """Look whether the list has changed, now and then, and close links of those who are on it."""
        if self._revocations is None or not self._revocations.is_due():
            return
        if self._revocations.changed():
            honoured = self._revocations.current
            if self._own_name in honoured.keys:
                raise ValueError(
                    f"the certificate of {self.party} was revoked (list {honoured.number}, {honoured.source}): "
                    "ask for a new one with a new key, tdcd certs request --new-key, and start again"
                )
            for peer, name in self._names.items():
                if name in honoured.keys:
                    self._shut_out(peer, honoured.current_name(peer))
        if self._session is not None and (revoked := self._revocations.current.keys):
            cut(self._session, revoked)

    def _shut_out(self, peer: str, name: str) -> None:
        """Have nothing to do with a peer from now on, until it comes with a certificate of its next name."""
        with self._lock:
            self._names[peer] = name
            self.revoked.add(peer)
            self._mailbox.forget_messages(peer)
            if self._processes[peer].is_up:
                self._mailbox.put(Left(peer))
            self._processes[peer] = PeerProcesses(self._process, self.party, peer)
        with self._linking:
            if peer in self._links:
                self._links.pop(peer).undeclare()
            if self._session is not None:
                self._forget_key(self._session, peer)
                if name in self._allowed[peer]:
                    self._links[peer] = self._link(self._session, peer)
        if name not in self._allowed[peer]:
            assert self._revocations is not None
            self._revocations.report(f"{peer} was revoked often: restart {self.party} to let '{name}' in")

    def _link(self, session: zenoh.Session, peer: str) -> _Link:
        """Receive a peer's messages, notice when it connects and leaves, and be visible to it."""
        own, name = self._own_name, self._names[peer]
        # Direct callbacks run on the one thread that reads the link, so that events keep their order.
        on_message = Callback(partial(self._on_message, peer, name), indirect=False)
        on_presence = Callback(partial(self._on_presence, peer, name), indirect=False)
        messages = session.declare_subscriber(message_key(own, name, self._process.nonce), on_message)
        presence = session.liveliness().declare_subscriber(alive_key(own, name), on_presence, history=True)
        # The token comes last: who sees it can rely on the subscriptions above.
        token = session.liveliness().declare_token(alive_key(name, own, self._process.word))
        return _Link(messages, presence, token)

    def _on_message(self, sender: str, name: str, sample: zenoh.Sample) -> None:
        attached = b"" if sample.attachment is None else sample.attachment.to_bytes()
        mark, _, by = attached[:MOST_ATTACHED_BYTES].partition(b"/")
        nonce = by.decode(errors="replace")
        with self._lock:
            if name != self._names[sender] or not is_nonce(nonce):
                return
            if mark in (CHOSEN, TAKEN, REFUSED):
                self._note(sender, self._received_choice(sender, nonce, mark, sample.payload.to_bytes()))
            elif mark in (LAST, MORE):
                self._note(sender, self._processes[sender].received_message(nonce))
                if self._processes[sender].accepts(nonce):
                    self._take_piece(sender, nonce, mark, sample)

    def _take_piece(self, sender: str, nonce: str, mark: bytes, sample: zenoh.Sample) -> None:
        """Put a piece of a message to the others, if the process that has the link has sealed it."""
        if self._seals is None:
            piece: bytes | None = sample.payload.to_bytes()
        elif len(sample.payload) > PIECE_BYTES + SEAL_BYTES:
            piece = None
        else:
            piece = self._seals.open(sender, nonce, sample.payload.to_bytes(), mark)
        if piece is None:
            self.unsealed[sender] += 1
        else:
            self._mailbox.put_piece(sender, piece, is_last=mark == LAST)

    def _received_choice(self, sender: str, nonce: str, what: bytes, content: bytes) -> list[Event]:
        """A process says whom it has chosen; if that is this one, it has to prove whose it is."""
        processes = self._processes[sender]
        if what == CHOSEN and self._seals is not None:
            try:
                self._seals.agree(sender, nonce, content)
            except ForgedCardError as error:
                return processes.doubted(nonce, str(error))
        word = "" if what == CHOSEN else one_line(content[:MOST_WORD_BYTES].decode(errors="replace"))
        return processes.received_choice(nonce, what, word)

    def _on_presence(self, peer: str, name: str, sample: zenoh.Sample) -> None:
        word = str(sample.key_expr).rpartition("/")[2]
        with self._lock:
            if name != self._names[peer]:
                return
            if sample.kind == zenoh.SampleKind.PUT:
                self.revoked.discard(peer)
                self._note(peer, self._processes[peer].came(word))
            else:
                self._note(peer, self._processes[peer].went(word))

    def _note(self, peer: str, events: list[Event]) -> None:
        """Pass events on, and remember until when those who have joined may stay."""
        processes = self._processes[peer]
        for event in events:
            self._mailbox.put(event)
        if processes.is_up and processes.chosen is not None and processes.chosen.expires:
            self._expiries[peer] = processes.chosen.expires
        if processes.unsent:
            self._with_unsent.put(peer)


def _attached(what: bytes, process: Process) -> bytes:
    """The attachment of something that a process sends."""
    return what + b"/" + process.nonce.encode()


def _guarded(
    party: str, listen: str, num_peers: int, patience_s: float, report: Callable[[str], None]
) -> tuple[Guard | None, int | None]:
    """A guard at ``listen`` and a port for zenoh behind it; nothing where the two could not reach each other."""
    try:
        # First, since the port behind it may else be the very one that is meant for the guard.
        guard = Guard(listen, num_peers, patience_s, report)
    except OSError as error:
        raise OSError(f"{party} cannot listen on {listen}: {error}") from error
    try:
        return guard, loopback_port()
    except OSError as error:
        guard.close()
        report(f"127.0.0.1 cannot be used here: {error}. Nothing limits connections of strangers: ip link set lo up")
        return None, None


def _admit(guard: Guard, inner: int, event: zenoh.LinkEvent) -> None:
    """Report a dialled link to the guard; those that zenoh dials itself have another port."""
    link = event.link
    if event.kind == zenoh.SampleKind.PUT and locator_address(str(link.src))[1] == inner:
        guard.admit(locator_address(str(link.dst))[1], link.auth_identifier or "")


def pieces(data: bytes, size: int) -> Iterator[tuple[bytes, bool]]:
    """Cut a message; each piece, and whether it is the last.

    >>> [*pieces(b"message", 3)], [*pieces(b"", 3)]
    ([(b'mes', False), (b'sag', False), (b'e', True)], [(b'', True)])
    """
    for start in range(0, max(len(data), 1), size):
        yield data[start : start + size], start + size >= len(data)


def _open_hub(party: str, settings: Mapping[str, Any], inner: int | None) -> tuple[zenoh.Session, int | None]:
    """A hub's session and its port behind a guard: another one, where any process has taken the port meanwhile."""
    for _ in range(MOST_PORTS - 1):
        try:
            return _open(party, settings), inner
        except OSError:
            if inner is None:
                raise
            inner = loopback_port()
            settings["listen"]["endpoints"][:] = [f"tls/127.0.0.1:{inner}"]
    return _open(party, settings), inner


def _open(party: str, settings: Mapping[str, Any]) -> zenoh.Session:
    # Zenoh writes to standard output, and repeats itself while a peer is away: only for those who set RUST_LOG.
    zenoh.init_log_from_env_or("off")
    # Zenoh asks the environment alone, once in a process; whatever was set there is overruled.
    os.environ.update(THREADS)
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
    except zenoh.ZError as error:
        reason = str(error).partition(" at /")[0]
        raise OSError(f"{party} cannot open {settings['listen']['endpoints'] or 'its links'}: {reason}") from error
