"""``python -m tdcd`` is the ``tdcd`` command."""

from tdcd.cli.main import main

main()
