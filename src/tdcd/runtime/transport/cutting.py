"""Closing the links of a zenoh session to holders of certain certificates. Zenoh itself closes all links or none."""

import ipaddress
import os
import socket
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import zenoh

OPEN_FILES = Path("/dev/fd")
"""The numbers of this process's open files, on Linux and macOS."""


def cut(session: zenoh.Session, names: Collection[str]) -> int:
    """Close every link whose other end has shown a certificate with one of these common names; how many there were.

    The connection is shut down below zenoh, which takes it for a peer that went away.
    """
    doomed = [link for link in session.info.links() if link.auth_identifier in names]
    return sum(_shut_down(_port(str(link.src)), locator_address(str(link.dst))) for link in doomed)


def _shut_down(port: int, other: tuple[str, int]) -> bool:
    """Shut down this process's connection between a port of its own and somebody's address, if it can be found."""
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
