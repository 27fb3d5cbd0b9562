"""Before a run: how many local steps to take. After it: what Theorem 1 had promised."""

from tdcd.planning.check import Check, check_run
from tdcd.planning.page import write_page
from tdcd.planning.plan import CANDIDATES, PlanTable, plan_local_steps
from tdcd.planning.row import Row

__all__ = ["CANDIDATES", "Check", "PlanTable", "Row", "check_run", "plan_local_steps", "write_page"]
