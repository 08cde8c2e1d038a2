"""The composition root of training: data, method and run directory bound together and hosted.

Owns no mathematics (that is the method's), no decision about the run (the coordinator's) and no
screen (watchers look on).
"""

from manege.trainer.inline import run
from manege.trainer.preparing import Look, prepare_new, prepare_resume

__all__ = ["Look", "prepare_new", "prepare_resume", "run"]
