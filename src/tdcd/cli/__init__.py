"""The command line: one module per group of commands. Commands import what they need when they run."""

from tdcd.cli.app import main

__all__ = ["main"]
