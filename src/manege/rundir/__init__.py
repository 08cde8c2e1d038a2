"""The run directory on disk: configuration, events, status, atomic checkpoints; no torch."""

from __future__ import annotations

from manege.rundir.checkpoints import COMMIT_POINTS, Checkpoint
from manege.rundir.creation import check_run
from manege.rundir.lock import is_held
from manege.rundir.manifest import Commit, Pending
from manege.rundir.names import cell_folder
from manege.rundir.run import STATES, RunDir

__all__ = [
    "COMMIT_POINTS",
    "STATES",
    "Checkpoint",
    "Commit",
    "Pending",
    "RunDir",
    "cell_folder",
    "check_run",
    "is_held",
]
