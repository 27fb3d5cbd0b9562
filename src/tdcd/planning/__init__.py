"""Before a run: how many local steps to take. After it: the bound of Theorem 1 beside what was measured."""

from tdcd.planning.forecast import Forecast
from tdcd.planning.local_steps import CANDIDATES, Recommendation, recommend_local_steps
from tdcd.planning.measured_bound import MeasuredBound, measure_bound
from tdcd.planning.page import write_page

__all__ = [
    "CANDIDATES",
    "Forecast",
    "MeasuredBound",
    "Recommendation",
    "measure_bound",
    "recommend_local_steps",
    "write_page",
]
