"""The composition root of training: data, method and run directory bound together and driven.

Owns no mathematics (that is the method's) and no screen (watchers look on).
"""

from manege.trainer.binding import check_space
from manege.trainer.cell_run import check_scorer
from manege.trainer.driver import Outcome, Watcher, run

__all__ = ["Outcome", "Watcher", "check_scorer", "check_space", "run"]
