"""``python -m tdcd`` is the ``tdcd`` command."""

from tdcd.cli import main

main()
