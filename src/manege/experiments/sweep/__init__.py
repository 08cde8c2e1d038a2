"""`manege sweep`: recipes × seeds × classes at equal cost, measured alike.

Owns the plan, the processes and the table; `manege.api` does the training and the scoring.
"""

from manege.experiments.sweep.plan import Plan, keep_plan, load_plan, replaced_presets
from manege.experiments.sweep.runs import run_all
from manege.experiments.sweep.table import RecipeRow, Stage, measure_all, write_table

__all__ = [
    "Plan",
    "RecipeRow",
    "Stage",
    "keep_plan",
    "load_plan",
    "measure_all",
    "replaced_presets",
    "run_all",
    "write_table",
]
