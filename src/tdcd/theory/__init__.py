"""Theorem 1 of the paper: its constants, its step sizes and its bound, and what a run measures of it."""

from tdcd.theory.noise import FEWEST_DRAWS, Noise, bits_caveats, sigmas
from tdcd.theory.progress import EstimateProgress
from tdcd.theory.reused import ReusedConstants, ReusedNoise, reused_constants, reused_noise
from tdcd.theory.smoothness import Constants, UnfinishedError, constants
from tdcd.theory.stability import RoundMap
from tdcd.theory.step_size import largest_overlap, max_step_size
from tdcd.theory.theorem import (
    Bound,
    GradientNorms,
    bound,
    bound_figure,
    caveats,
    effective_clients,
    epsilon_caveats,
    gradient_norms,
    initial_gap,
)

__all__ = [
    "FEWEST_DRAWS",
    "Bound",
    "Constants",
    "EstimateProgress",
    "GradientNorms",
    "Noise",
    "ReusedConstants",
    "ReusedNoise",
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
    "reused_constants",
    "reused_noise",
    "sigmas",
]
