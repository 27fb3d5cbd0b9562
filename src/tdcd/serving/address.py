"""Where a prediction service listens: for programs of this machine alone."""

import ipaddress
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

MOST_CONNECTIONS = 256
MOST_SOCKET_LETTERS = 107
"""What Linux takes as the path of a Unix socket."""


def is_own(host: str) -> bool:
    """Whether a request's host, with or without a port, is this machine's loopback address.

    >>> [is_own(host) for host in ("127.0.0.1:80", "localhost", "[::1]:8000", "tdcd.example:80", "")]
    [True, True, True, False, False]
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def is_socket(address: str) -> bool:
    """Whether it is the path of a Unix socket."""
    return "/" in address


def host_and_port(address: str, key: str) -> tuple[str, int]:
    """Of ``HOST:PORT``, or ``PORT`` of 127.0.0.1, where the host is this machine's own."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535 or not is_own(f"[{host}]" if ":" in host else host):
        raise ValueError(
            f"{key} {address}: give a port of this machine's own address, such as 8400 or 127.0.0.1:8400, or "
            "the path of a Unix socket, such as /run/tdcd/predict.sock: the service asks no one for a password"
        )
    return host, int(port)


def check_address(address: str, key: str) -> None:
    """Refuse what is no address of this machine alone.

    Args:
        key: what a person has set it by.
    """
    if not is_socket(address):
        host_and_port(address, key)
    elif len(os.fsencode(address)) > MOST_SOCKET_LETTERS:
        raise ValueError(f"{key} {address}: the path of a socket has at most {MOST_SOCKET_LETTERS} letters")


def listen(address: str, key: str = "--listen") -> socket.socket:
    """A socket at ``HOST:PORT`` or ``PORT`` of loopback, or at the path of a Unix socket, which has a slash in it.

    A Unix socket is for this user alone. One that a killed service left is replaced.
    """
    check_address(address, key)
    where: str | tuple[str, int]
    if is_socket(address):
        path = Path(address)
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise ValueError(f"{key} {address}: there is something else than a socket")
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(address) == 0:
                    raise ValueError(f"{key} {address}: another process listens there")
            path.unlink()
        family, where, protocol = socket.AF_UNIX, address, 0
    else:
        host, port = host_and_port(address, key)
        family, where = socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port)
        # With its protocol named, asyncio sends the two parts of an answer without waiting for an acknowledgement.
        protocol = socket.IPPROTO_TCP
    made = socket.socket(family, socket.SOCK_STREAM, protocol)
    if family != socket.AF_UNIX:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    before = os.umask(0o177)  # A Unix socket is made with it.
    try:
        made.bind(where)
        made.listen(MOST_CONNECTIONS)
    except OSError as error:
        made.close()
        raise OSError(f"{key} {address}: cannot listen there: {error}") from None
    finally:
        os.umask(before)
    return made
