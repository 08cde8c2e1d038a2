"""The composition root of training: data, method and run directory bound together and hosted.

Owns no mathematics (that is the method's), no decision about the run (the coordinator's) and no
screen (observers look on).
"""

from manege.trainer.inline import Inline
from manege.trainer.preparing import prepare_new, prepare_resume

__all__ = ["Inline", "prepare_new", "prepare_resume"]
