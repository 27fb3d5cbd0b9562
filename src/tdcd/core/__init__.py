"""Algorithm 1 and its family, as pure functions. Nothing here does I/O or looks at a clock."""
