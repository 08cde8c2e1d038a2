from __future__ import annotations

import pytest

from manege.runtime.launch import RankInfo, rank_info


@pytest.mark.parametrize(
    ("environ", "is_open_mpi"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "1"}, True),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, False),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3"}, False),
    ],
)
def test_launchers_say_which_rank_this_is(environ, is_open_mpi):
    assert rank_info(environ) == RankInfo(1, 3, is_open_mpi)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "x", "PMI_SIZE": "3"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # A batch script, outside of any step.
    ],
)
def test_one_process_alone_has_no_rank_info(environ):
    assert rank_info(environ) is None
