"""Hub and client as state machines: messages in, instructions out. Nothing here does I/O or looks at a clock."""
