"""Before a run: how many local steps to take, with which overlap, periods and bits. After it: the bound of Theorem 1
next to what was measured.
"""

from tdcd.planning.automatic_run import AutomaticRun, forecast_automatic_run
from tdcd.planning.common_samples import MoreSamples, more_samples
from tdcd.planning.forecast import Forecast
from tdcd.planning.local_steps import CANDIDATES, Recommendation, recommend_local_steps
from tdcd.planning.measured_bound import MeasuredBound, measure_bound
from tdcd.planning.noise import NoisePlan, plan_noise
from tdcd.planning.scaled_steps import ScaledBound, scaled_bound
from tdcd.planning.variants import Ranking, RunPlan, plan_run, rank_variants

__all__ = [
    "CANDIDATES",
    "AutomaticRun",
    "Forecast",
    "MeasuredBound",
    "MoreSamples",
    "NoisePlan",
    "Ranking",
    "Recommendation",
    "RunPlan",
    "ScaledBound",
    "forecast_automatic_run",
    "measure_bound",
    "more_samples",
    "plan_noise",
    "plan_run",
    "rank_variants",
    "recommend_local_steps",
    "scaled_bound",
]
