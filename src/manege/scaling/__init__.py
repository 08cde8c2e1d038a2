"""`manege bench scaling`: the papers' tables on this machine.

Owns the plan, the measured processes, the tables and the plot; what is measured is the real
command. No torch.
"""

from manege.scaling.plan import MeasuredUnit, Settings, plan_of
from manege.scaling.runs import MeasuredRun, ScalingProgress, measure_all
from manege.scaling.surroundings import surroundings
from manege.scaling.tables import results_of
from manege.scaling.traffic import Traffic, check_files
from manege.scaling.writing import write_results

__all__ = [
    "MeasuredRun",
    "MeasuredUnit",
    "ScalingProgress",
    "Settings",
    "Traffic",
    "check_files",
    "measure_all",
    "plan_of",
    "results_of",
    "surroundings",
    "write_results",
]
