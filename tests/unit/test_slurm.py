"""Batch scripts as text, and options before the queue; real jobs: tests/slurm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.command import run_here

from manege.cli.sbatch import BatchJob, Request, script

GRID = ("train", "ring8", "--method", "cellular", "--grid", "2x2", "--out", "run")
DIGITS = ("train", "digits", "--out", "run")
HOSTILE = "$(touch pwned)'\";`|&\\ \n#"


def _slurm(*args: str, cwd: Path):
    return run_here("slurm", *args, cwd=cwd)


def _checked(text: str) -> str:
    """The script, if bash can read it."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return text


def test_a_script_asks_for_what_was_said_and_is_all_that_is_printed(tmp_path):
    options = (
        *("--nodes", "2", "--tasks", "3", "--cpus-per-task", "2", "--memory", "3G"),
        *("--tmp", "10G", "--time", "1-02:03:04", "--partition", "long", "--account", "us"),
        *("--sbatch", "qos=high", "--sbatch", "exclusive"),
    )
    done = _slurm(*options, *GRID, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    lines = _checked(done.out).splitlines()
    assert lines[0] == "#!/bin/bash"
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
        *("--job-name=run", "--nodes=2", "--ntasks=3", "--cpus-per-task=2", "--mem-per-cpu=3G"),
        *("--tmp=10G", "--time=1-02:03:04", "--signal=B:USR2@90", "--open-mode=append"),
        *("--requeue", "--partition=long", "--account=us", "--qos=high", "--exclusive"),
    ]
    assert f"cd -- {tmp_path} || exit 3" in lines
    assert 'set -- "$@" --launch mpiexec -n "$SLURM_NTASKS"' in lines
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("train", "tasks"),
    [
        (GRID, 5),
        (DIGITS, 11),
        ((*DIGITS, "--classes", "3,7"), 3),
        ((*DIGITS, "--method", "single"), 2),
    ],
)
def test_there_is_a_rank_for_each_cell_and_one_that_coordinates(train, tasks, tmp_path):
    assert f"#SBATCH --ntasks={tasks}\n" in _slurm(*train, cwd=tmp_path).out


def test_a_job_goes_on_in_the_manner_in_which_it_began(tmp_path):
    train = (*GRID, "--workers", "1", "--restarts", "2", "--tensorboard", "--json", "--seed", "3")
    text = _checked(_slurm(*train, cwd=tmp_path).out)
    assert 'set -- resume "$run" --workers 1 --restarts 2 --tensorboard --json\n' in text


def test_the_tasks_of_an_array_share_the_classes(tmp_path):
    done = _slurm("--array", "3", *DIGITS, cwd=tmp_path)
    text = _checked(done.out)
    assert "#SBATCH --array=0-2\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\n" in text
    shares = """'data.classes=["0", "1", "2"]' 'data.classes=["3", "4", "5"]'"""
    assert f'shares=({shares} \'data.classes=["6", "7", "8", "9"]\')\n' in text
    assert "mpiexec" not in text


def test_whatever_a_user_names_stays_a_word(tmp_path):
    """The script's own commands are taken out, its words are left to be looked at."""
    request = Request("job", None, 2, 1, "1G", None, 600, ())
    named = (HOSTILE, "--out", HOSTILE)
    for shares in ((), (HOSTILE, "b")):
        work = BatchJob(tmp_path, ("show",), Path(HOSTILE), named, (HOSTILE,), shares)
        text = _checked(script(request, work)).replace("|| exit 3", "", 1)
        text = text.replace('"${manege[@]}" "$@" &', 'printf "<%s>" "$@" &')
        done = subprocess.run(
            ["bash"],
            input=text,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "0", "SLURM_NTASKS": "2"},
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        more = f"<--out><{HOSTILE}/000><--set><{HOSTILE}>" if shares else "<--launch><mpiexec>"
        assert f"<train><{HOSTILE}><--out><{HOSTILE}>{more}" in done.stdout
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("train", "digits"), "--out: say where the run is to be"),
        (("train", "digits", "--out", "run", "--grid", "2x2"), "only --method cellular has a grid"),
        (("train", "digits", "--out", "run", "--classes", "99"), "99"),
        (("train", "nowhere", "--out", "run"), "no dataset of that name"),
        ((*DIGITS, "--launch", "mpiexec", "-n", "3"), "--launch: not in a batch script"),
        ((*GRID, "--hosts", "a"), "--hosts: not in a batch script; Slurm chooses them"),
        ((*GRID, "--runtime", "inline"), "--runtime: not in a batch script"),
        ((*GRID, "--print-config"), "--print-config: not in a batch script"),
        (("--array", "2", *GRID), "--array: only for --method per-class, found cellular"),
        (("--array", "2", "--tasks", "3", *DIGITS), "--tasks: not with --array"),
        (("--array", "2", "--nodes", "1", *DIGITS), "--nodes: not with --array"),
        (("--array", "11", *DIGITS), "--array 11: there are 10 classes"),
        (("--array", "2", *DIGITS, "--workers", "3"), "--workers: not in a batch script; say"),
        (("--array", "2", *DIGITS, "--restarts", "3"), "--restarts: not in a batch script"),
        (("--tasks", "6", *GRID), "--tasks 6: 5 is the most"),
        (("--nodes", "6", *GRID), "--nodes 6: there are 5 tasks"),
        (("--time", "90", *GRID), "--time '90': expected 8h, 90m or 1-12:00:00"),
        (("--time", "nan", *GRID), "--time 'nan': expected 8h"),
        (("--time", "inf", *GRID), "--time 'inf': expected 8h"),
        (("train", "digits", "--nonsense"), "No such option"),
        (("train", "digits", "--out", "\udcff"), "not UTF-8"),
        (("--time", "4m", *GRID), "--time 4m: expected at least 5m"),
        (("--memory", "much", *GRID), "--memory 'much': expected a size"),
        (("--tmp", "0", *GRID), "--tmp '0': expected a size"),
        (("--partition", "a b", *GRID), "--partition 'a b': expected a name"),
        (("--sbatch", "time=3", *GRID), "--sbatch time=3: say --time instead"),
        (("--sbatch", "signal=3", *GRID), "--sbatch signal=3: the script sets it"),
        (("--sbatch", "qos=a\nb", *GRID), "--sbatch 'qos=a\\nb': expected an option of sbatch"),
        (("--json", *GRID), "--json: only with --submit"),
    ],
)
def test_a_mistake_is_found_before_the_queue(args, words, tmp_path):
    done = _slurm(*args, cwd=tmp_path)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_a_run_or_a_script_that_is_there_is_not_touched(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "run.sbatch").write_text("mine")
    done = _slurm("--submit", *GRID, cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith("manege: run.sbatch: already exists; send it again with sbatch")
    assert (tmp_path / "run.sbatch").read_text() == "mine"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    assert _slurm(*GRID, cwd=tmp_path).code == 2


def test_without_sbatch_nothing_is_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = _slurm("--submit", *GRID, cwd=tmp_path)
    assert done.code == 3
    assert done.err.startswith("manege: --submit: there is no sbatch here")
    assert not list(tmp_path.iterdir())


def test_data_that_were_fetched_are_found_by_jobs_with_a_cache_of_their_own(
    real_data, tmp_path, monkeypatch
):
    monkeypatch.setenv("MANEGE_DATA", str(real_data))
    mnist = real_data / "mnist"
    train = ("--tmp", "1G", "train", "mnist", "--out", "run")
    text = _checked(_slurm(*train, cwd=tmp_path).out)
    assert "MANEGE_CACHE=" in text
    assert "MANEGE_DATA=" not in text
    (tmp_path / "my cache" / "downloads").mkdir(parents=True)
    (tmp_path / "my cache" / "downloads" / "mnist").symlink_to(mnist)
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "my cache"))
    monkeypatch.delenv("MANEGE_DATA")
    text = _checked(_slurm(*train, cwd=tmp_path).out)
    assert f"export MANEGE_DATA='{tmp_path}/my cache/downloads'\n" in text


def test_a_script_is_made_without_torch(tmp_path):
    look = (
        "import sys; sys.argv = ['manege', 'slurm', *sys.argv[1:]]\n"
        "from manege.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look, *GRID], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
