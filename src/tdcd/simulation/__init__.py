"""The simulation: a whole federation in one process, or in a few that work as one."""
