"""Sweeps: many settings of one configuration, batched where their shapes are the same."""

from tdcd.training.sweep.grid import Grid, Setting, expand, varied_keys
from tdcd.training.sweep.sweep import Outcome, Sweep, read_grid, read_outcomes, run_sweep

__all__ = ["Grid", "Outcome", "Setting", "Sweep", "expand", "read_grid", "read_outcomes", "run_sweep", "varied_keys"]
