"""The options of `--launch`; jobs that it starts: tests/recovery/test_mpi.py."""

from __future__ import annotations

import pytest

from manege.cli import launching
from manege.cli.launching import Job, Launcher
from manege.errors import ConfigError


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Job(None, 3, None, None), "-n: only with --launch mpiexec"),
        (Job(None, None, "a:2", None), "--hosts: only with --launch mpiexec"),
        (Job(None, None, None, 0), "--restarts: only with --launch mpiexec"),
        (Job(Launcher.MPIEXEC, None, None, None), "--launch mpiexec: say -n"),
    ],
)
def test_options_that_would_do_nothing_are_refused(job, words):
    with pytest.raises(ConfigError, match=words):
        job.check()


def test_restarts_without_a_known_run_directory_are_refused():
    with pytest.raises(ConfigError, match="--restarts: say --out too"):
        launching.run(Job(Launcher.MPIEXEC, 3, None, 2), again=None, path=None)


def test_ranks_get_all_arguments_but_the_launchers():
    args = ["train", "digits", "--launch=mpiexec", "-n", "3", "--seed", "3", "--restarts", "2"]
    assert launching._without_launch(args) == ["train", "digits", "--seed", "3"]


@pytest.mark.parametrize(("tasks", "ranks", "is_allotted"), [("3", 3, True), ("3", 4, False)])
def test_slurms_places_count_when_there_are_enough(tasks, ranks, is_allotted, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    assert launching._is_allotted(ranks) == is_allotted
    monkeypatch.delenv("SLURM_NTASKS")
    assert not launching._is_allotted(ranks)
