"""TDCD beside its baselines: the same data and as many local steps, at what price in rounds, bytes and time."""

from tdcd.compare.comparison import Comparison, Contender, compare, network_of, plan_all
from tdcd.compare.running import num_runs

__all__ = ["Comparison", "Contender", "compare", "network_of", "num_runs", "plan_all"]
