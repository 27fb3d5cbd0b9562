"""Theorem 1 of the paper: its constants, its step sizes and its bound, beside what a run measures."""

from tdcd.theory.measure import Measured, bound_figure, gradient_norms
from tdcd.theory.noise import Noise, sigmas
from tdcd.theory.progress import Progress
from tdcd.theory.smoothness import Constants, constants
from tdcd.theory.theorem import Bound, bound, caveats, effective_clients, initial_gap, max_step_size

__all__ = [
    "Bound",
    "Constants",
    "Measured",
    "Noise",
    "Progress",
    "bound",
    "bound_figure",
    "caveats",
    "constants",
    "effective_clients",
    "gradient_norms",
    "initial_gap",
    "max_step_size",
    "sigmas",
]
