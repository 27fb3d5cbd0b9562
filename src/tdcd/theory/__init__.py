"""Theorem 1 of the paper: its constants, its step sizes and its bound, beside what a run measures."""

from tdcd.theory.few_bits import bits_caveats
from tdcd.theory.measure import Measured, bound_figure, gradient_norms
from tdcd.theory.noise import FEWEST_DRAWS, Noise, sigmas
from tdcd.theory.progress import Progress
from tdcd.theory.smoothness import Constants, UnfinishedError, constants
from tdcd.theory.stability import RoundMap
from tdcd.theory.step_size import largest_overlap, max_step_size
from tdcd.theory.theorem import Bound, bound, caveats, effective_clients, epsilon_caveats, initial_gap

__all__ = [
    "FEWEST_DRAWS",
    "Bound",
    "Constants",
    "Measured",
    "Noise",
    "Progress",
    "RoundMap",
    "UnfinishedError",
    "bits_caveats",
    "bound",
    "bound_figure",
    "caveats",
    "constants",
    "effective_clients",
    "epsilon_caveats",
    "gradient_norms",
    "initial_gap",
    "largest_overlap",
    "max_step_size",
    "sigmas",
]
