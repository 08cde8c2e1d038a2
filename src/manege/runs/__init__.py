"""The run directory on disk: configuration, events, status, atomic checkpoints; no torch."""

from __future__ import annotations

from manege.runs.checkpoints import COMMIT_POINTS, Checkpoint
from manege.runs.creation import check_run
from manege.runs.lock import is_held
from manege.runs.manifest import Commit, Pending
from manege.runs.names import cell_folder
from manege.runs.run import STATES, RunDir

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
