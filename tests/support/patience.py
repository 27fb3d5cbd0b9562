"""How long tests wait for what should take a few seconds."""

SOON = 300.0
"""Only a guard against waiting for ever: a machine that runs tests may have ten times the work that it can do."""
