"""The options of `--launch`; jobs that it starts: tests/recovery/test_mpi.py."""

from __future__ import annotations

import pytest

from manege import launching
from manege.cli.flags import FLAGS
from manege.cli.launching import Launcher, _without_launch
from manege.config import resolve
from manege.errors import ConfigError, fields_named
from manege.launching import Job


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
    with fields_named(FLAGS), pytest.raises(ConfigError, match=words):
        job.check()


def test_a_run_directory_is_known_before_and_not_left_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolve(flags={"data.source": "some/folder.npz", "method": "single"})
    with launching.directory(config, None) as path, launching.directory(config, None) as other:
        assert str(path) == "runs/0001-folder-single"
        assert str(other) == "runs/0002-folder-single"
        (path / "config.yaml").touch()
    assert path.exists()
    assert not other.exists()
    with launching.directory(config, tmp_path / "mine") as given:
        assert given == tmp_path / "mine"


def test_ranks_get_all_arguments_but_the_launchers():
    args = [
        "train",
        "digits",
        "--launch=mpiexec",
        "-n",
        "3",
        "--seed",
        "3",
        "--restarts",
        "2",
        "-n3",
    ]
    assert _without_launch(args) == ["train", "digits", "--seed", "3"]


@pytest.mark.parametrize(("tasks", "ranks", "is_allotted"), [("3", 3, True), ("3", 4, False)])
def test_slurms_places_count_when_there_are_enough(tasks, ranks, is_allotted, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    assert launching._is_allotted(ranks) == is_allotted
    monkeypatch.delenv("SLURM_NTASKS")
    assert not launching._is_allotted(ranks)
