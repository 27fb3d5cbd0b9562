"""``python -m tdcd.cli.forked SOCKET``: imports what every party needs, and waits to be copied.

A copy is the ``tdcd`` command with other arguments; see :func:`~tdcd.runtime.process.forking.start_party`.
"""

# ruff: noqa: PLC0415

import socket
import sys

from tdcd.cli.app import keep_compiled, silence_alarms
from tdcd.cli.app import main as command


def main() -> None:
    """Wait; returns when a copy has done what it was asked for."""
    # JAX reads this when it is imported.
    silence_alarms()
    keep_compiled()
    import tdcd.runtime.process.party  # noqa: F401
    from tdcd.runtime.process.forking import serve

    serve(socket.socket(fileno=int(sys.argv.pop())))
    command()


if __name__ == "__main__":
    main()
