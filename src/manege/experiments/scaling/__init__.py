"""`manege bench scaling`: reproduce the papers' tables on this machine.

Owns the plan, the measured processes, the tables and the plot; what is measured is the real
command. No torch.
"""

from manege.experiments.scaling.plan import MeasuredUnit, Settings, plan_of
from manege.experiments.scaling.runs import MeasuredRun, measure_all
from manege.experiments.scaling.surroundings import surroundings
from manege.experiments.scaling.tables import results_of
from manege.experiments.scaling.traffic import Traffic, check_files
from manege.experiments.scaling.writing import write_results

__all__ = [
    "MeasuredRun",
    "MeasuredUnit",
    "Settings",
    "Traffic",
    "check_files",
    "measure_all",
    "plan_of",
    "results_of",
    "surroundings",
    "write_results",
]
