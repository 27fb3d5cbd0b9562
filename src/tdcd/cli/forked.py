"""``python -m tdcd.cli.forked SOCKET``: imports what every party needs, and waits to be copied.

A copy is the ``tdcd`` command with other arguments; see :func:`~tdcd.runtime.process.forking.start_party`.
"""

import socket
import sys

import tdcd.runtime.process.party  # noqa: F401
from tdcd.cli.app import main
from tdcd.runtime.process.forking import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv.pop())))
    main()
