"""Batch scripts in a real Slurm: the bits of a run in one process, whatever becomes of the job."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manege.runs import RunDir
from manege.sampler import open_model
from tests.helpers.command import run_here, run_process
from tests.helpers.forker import state_of

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("slurm")]

GRID = (
    *("ring8", "--method", "cellular", "--grid", "2x2", "--batch", "50"),
    *("--set", "training.batches_per_round=10", "--sheet-every", "6"),
    *("--set", "networks.hidden=32", "--set", "networks.latent=8"),
    *("--set", "cellular.fitness_samples=64", "--set", "cellular.mixture.samples=200"),
    *("--set", "cellular.mixture.final_samples=400"),
)
ROUNDS = 16
CLASSES = ("plain", "two, words", "$(touch pwned)'\";`|& ünd #1")
PER_CLASS = (
    *("--preset", "paper-dc", "--networks", "mlp", "--batch", "16", "--rounds", "400"),
    *("--score", "none", "--sheet-every", "1000", "--set", "networks.hidden=16", "--size", "16"),
    *("--checkpoint-every", "20"),
)
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        patch.delenv("TMPDIR", raising=False)
        yield


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> Callable[[int], dict[str, str]]:
    """What a grid comes to in one process."""

    @functools.cache
    def found(rounds: int) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("inline")
        order = ("train", *GRID, "--rounds", str(rounds), "--runtime", "inline", "--out", "run")
        done = run_here(*order, cwd=folder)
        assert done.code == 0, done.err
        return state_of(folder / "run")

    return found


@pytest.fixture
def mpi() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'manege[mpi]'")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if shutil.which("mpiexec", path=path) is None:
        pytest.skip("there is no mpiexec on the PATH")


def _send(*args: object, cwd: Path) -> int:
    done = run_process("slurm", "--submit", "--json", *map(str, args), cwd=cwd)
    assert done.code == 0, done.err
    return int(done.json["job"])


def _job(job: int | str) -> dict[str, str]:
    """What Slurm says of it."""
    told = subprocess.run(
        ["scontrol", "show", "job", "-o", str(job)], capture_output=True, text=True, check=True
    )
    return dict(part.split("=", 1) for part in told.stdout.split() if "=" in part)


def _until(look, what: str, cwd: Path, timeout_s: float = 90.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    logs = "\n".join(path.read_text() for path in cwd.glob("slurm-*.out"))
    raise AssertionError(f"no {what} within {timeout_s} s\n{logs}")


def _end(job: int | str, cwd: Path) -> dict[str, str]:
    return _until(lambda: (told := _job(job))["JobState"] in ENDED and told, "end of the job", cwd)


def _events(path: Path, kind: str) -> list[dict]:
    if not (path / "events.jsonl").exists():
        return []
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


def _until_commits(run: Path) -> None:
    known = len(_events(run, "commit"))
    _until(lambda: len(_events(run, "commit")) > known + 3, "commits", run.parent)


def _begin_again(job: int | str, times: int, cwd: Path) -> None:
    """Slurm lets a job that was requeued wait for two minutes: more than is needed here."""
    _until(
        lambda: (told := _job(job))["JobState"] == "PENDING" and told["Restarts"] == str(times),
        "requeue",
        cwd,
    )
    # Within the same second a node refuses it, for it has just been told to end that job.
    time.sleep(2.5)
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)


@pytest.mark.usefixtures("mpi")
@pytest.mark.soak
def test_a_grid_on_two_nodes_has_the_bits_of_one_process(wanted, tmp_path):
    options = ("--nodes", 2, "--tasks", 3, "--memory", "200M", "--tmp", "1G", "--time", "10m")
    job = _send(*options, "train", *GRID, "--rounds", 4, "--out", "run", cwd=tmp_path)
    told = _end(job, tmp_path)
    log = (tmp_path / f"slurm-{job}.out").read_text()
    assert told["JobState"] == "COMPLETED", log
    assert (told["NumNodes"], told["NumTasks"], told["TimeLimit"]) == ("2", "3", "00:10:00")
    assert told["MinTmpDiskNode"] == "1G"
    assert "mpiexec --bind-to none (Slurm has chosen the cores)" in log
    assert state_of(tmp_path / "run") == wanted(4)
    assert not Path(f"/tmp/manege-{job}").exists()


@pytest.mark.usefixtures("mpi")
def test_a_job_goes_on_after_a_requeue_and_requeues_itself_before_its_time_is_up(wanted, tmp_path):
    run = tmp_path / "run"
    job = _send("--tasks", 3, "train", *GRID, "--rounds", ROUNDS, "--out", "run", cwd=tmp_path)
    _until_commits(run)
    subprocess.run(["scontrol", "requeue", str(job)], check=True)
    _begin_again(job, 1, tmp_path)
    _until(lambda: len(_events(run, "run_started")) == 2, "second start", tmp_path)
    _until_commits(run)
    # As Slurm does 90 s before the end.
    subprocess.run(["scancel", "--signal=USR2", "--batch", str(job)], check=True)
    _begin_again(job, 2, tmp_path)
    told = _end(job, tmp_path)
    assert told["JobState"] == "COMPLETED", (tmp_path / f"slurm-{job}.out").read_text()
    assert len(_events(run, "run_started")) == 3
    assert _events(run, "run_stopped")[-1]["reason"] == "SIGUSR2"
    assert state_of(run) == wanted(ROUNDS)


@pytest.mark.usefixtures("mpi")
@pytest.mark.soak
def test_a_job_that_is_stopped_or_cancelled_stays_so_until_it_is_sent_again(wanted, tmp_path):
    run = tmp_path / "run"
    job = _send("--tasks", 2, "train", *GRID, "--rounds", ROUNDS, "--out", "run", cwd=tmp_path)
    _until_commits(run)
    subprocess.run(["scancel", "--signal=TERM", "--batch", str(job)], check=True)
    told = _end(job, tmp_path)
    assert (told["JobState"], told["ExitCode"], told["Restarts"]) == ("FAILED", "75:0", "0")
    assert json.loads((run / "status.json").read_text())["state"] == "stopped"

    job = _again(tmp_path)
    _until(lambda: len(_events(run, "run_started")) == 2, "second start", tmp_path)
    _until_commits(run)
    subprocess.run(["scancel", str(job)], check=True)
    told = _end(job, tmp_path)
    assert (told["JobState"], told["Restarts"]) == ("CANCELLED", "0")

    job = _again(tmp_path)
    assert _end(job, tmp_path)["JobState"] == "COMPLETED"
    assert state_of(run) == wanted(ROUNDS)


def _again(cwd: Path) -> int:
    sent = subprocess.run(
        ["sbatch", "--parsable", "run.sbatch"], cwd=cwd, capture_output=True, text=True, check=True
    )
    return int(sent.stdout)


@pytest.mark.soak
def test_the_tasks_of_an_array_make_the_model_of_one_run(tmp_path):
    draw = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(24):
            pixels = draw.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{k}.png")
    train = ("train", "photos", *PER_CLASS, "--out")
    whole = run_here(*train, "whole", "--runtime", "inline", cwd=tmp_path)
    assert whole.code == 0, whole.err
    job = _send("--array", 2, "--cpus-per-task", 2, "--tmp", "1G", *train, "run", cwd=tmp_path)
    run = tmp_path / "run" / "000"
    _until(lambda: _events(run, "commit"), "commits", tmp_path)
    local = Path(f"/tmp/manege-{_job(f'{job}_0')['JobId']}")
    assert (local / "pictures").is_dir()
    subprocess.run(["scancel", "--signal=USR2", "--batch", f"{job}_0"], check=True)
    _begin_again(f"{job}_0", 1, tmp_path)
    for task in (0, 1):
        told = _end(f"{job}_{task}", tmp_path)
        assert told["JobState"] == "COMPLETED", (tmp_path / f"slurm-{job}_{task}.out").read_text()
    assert open_model(tmp_path / "run" / "model").labels == open_model(tmp_path / "whole").labels
    assert open_model(tmp_path / "run" / "model").digest == open_model(tmp_path / "whole").digest
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["000", "001", "model"]
    assert [event["reason"] for event in _events(run, "run_stopped")] == ["SIGUSR2"]
    assert not _events(tmp_path / "run" / "001", "run_stopped")
    assert not local.exists()
    assert not list(tmp_path.rglob("pwned"))


def test_what_slurm_refuses_is_told_in_one_line_and_leaves_nothing(tmp_path):
    order = ("--partition", "nowhere", "--submit", "train", "digits", "--out", "run")
    done = run_process("slurm", *order, cwd=tmp_path)
    assert done.code == 3
    assert done.err.startswith("manege: --submit: sbatch refused the script (sbatch: error:")
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.soak
@pytest.mark.usefixtures("mpi")
def test_slurm_itself_tells_a_job_that_its_time_is_nearly_up(tmp_path):
    """Two minutes, the last ninety seconds of which are to save: signalled in the first one."""
    run = tmp_path / "run"
    train = ("train", *GRID, "--rounds", 1500, "--out", "run")
    done = run_process("slurm", "--tasks", "3", "--time", "5m", *map(str, train), cwd=tmp_path)
    assert done.code == 0, done.err
    (tmp_path / "run.sbatch").write_text(done.out.replace("--time=00:05:00", "--time=00:02:00"))
    job = _again(tmp_path)
    _begin_again(job, 1, tmp_path)
    assert [event["reason"] for event in _events(run, "run_stopped")] == ["SIGUSR2"]
    _until_commits(run)
    subprocess.run(["scancel", str(job)], check=True)
    _end(job, tmp_path)
