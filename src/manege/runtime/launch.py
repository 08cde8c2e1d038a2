"""Tells from the environment whether an MPI launcher started this process as one of several.

It does not ask MPI, which ordinary runs never load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_RANKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # Not SLURM_NTASKS, which a batch script sees too, outside of any step.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class RankInfo(NamedTuple):
    """A rank and the number of ranks, as the launcher says."""

    rank: int
    size: int
    is_open_mpi: bool
    """Whether the launcher is Open MPI's."""


def rank_info(environ: Mapping[str, str]) -> RankInfo | None:
    """Return this process's place among several; None if it is alone."""
    for rank, size in _RANKS:
        values = environ.get(rank, ""), environ.get(size, "")
        if all(value.isdecimal() for value in values):
            found = RankInfo(int(values[0]), int(values[1]), rank.startswith("OMPI_"))
            return found if found.size > 1 else None
    return None
