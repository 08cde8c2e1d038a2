"""The MPI runtime: real ranks under a real mpiexec, and the bits of a run in one process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manege.failpoints import VARIABLE
from manege.runs import RunDir
from tests.helpers.command import run_here
from tests.helpers.forker import state_of

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'manege[mpi]'")
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec on the PATH")

PER_CLASS = (
    *("digits", "--preset", "paper-dc", "--networks", "mlp", "--classes", "3,7,8"),
    *("--limit-per-class", "40", "--batch", "20", "--sheet-every", "100", "--score", "none"),
    *("--set", "stability.every_rounds=5"),
    *("--set", "networks.hidden=32", "--set", "checkpoints.every_s=0.3", "--rounds", "15"),
)
GRID = (
    *("ring8", "--method", "cellular", "--grid", "2x2", "--batch", "50", "--rounds", "8"),
    *("--set", "training.batches_per_round=10", "--sheet-every", "6"),
    *("--set", "networks.hidden=32", "--set", "networks.latent=8"),
    *("--set", "cellular.fitness_samples=64", "--set", "cellular.mixture.samples=200"),
    *("--set", "cellular.mixture.final_samples=400"),
)
LAUNCH = ("--launch", "mpiexec", "-n", "3")
METHODS = {"per-class": PER_CLASS, "grid": GRID}
PIDS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
"""Where control groups that count processes are made: the old way, and the new."""


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        yield


@pytest.fixture
def wanted(undisturbed) -> Callable[[str], dict[str, str]]:
    """What a run in one process comes to."""
    return lambda method: undisturbed(*METHODS[method])


class Job:
    """Ranks under way."""

    def __init__(
        self,
        ranks: int | None,
        *args: object,
        options: tuple[str, ...] = (),
        then: tuple[str, ...] = (),
    ) -> None:
        """Under mpiexec with so many ranks, or by manege's own launcher; `then` is one more."""
        own = [*(["--allow-run-as-root"] if os.geteuid() == 0 else []), *options]
        head = [str(MPIEXEC), *own, "--oversubscribe", "-n", str(ranks)] if ranks else []
        self.process = subprocess.Popen(
            [
                *(*head, sys.executable, "-m", "manege", *map(str, args)),
                *([":", "-n", "1", *then] if then else []),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert "Traceback" not in err, err
        return self.process.returncode, out, err

    def family(self) -> list[int]:
        """All its processes but mpiexec."""
        found, look = [], [self.process.pid]
        while look:
            look = [child for pid in look for child in _children(pid)]
            found += look
        return found


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _trainers(job: Job) -> list[int]:
    """Of all ranks: forked from servers, which are children of ranks."""
    servers = [pid for pid in job.family() if _is_server(pid)]
    return [trainer for server in servers for trainer in _children(server)]


def _is_server(pid: int) -> bool:
    """Also of trainers, forked from one, which have no children."""
    try:
        return b"manege.runtime.worker.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _events(path: Path, kind: str) -> list[dict]:
    if not (path / "events.jsonl").exists():
        return []
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


def _until(look, what: str, timeout_s: float = 90.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {timeout_s} s")


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "ranks"),
    [
        ("per-class", 3),
        ("grid", 2),
        pytest.param("grid", 5, marks=pytest.mark.soak),
        pytest.param("per-class", 2, marks=pytest.mark.soak),
        pytest.param("per-class", 5, marks=pytest.mark.soak),
    ],
)
def test_any_number_of_ranks_gives_the_bits_of_one_process(method, ranks, wanted, tmp_path):
    path = tmp_path / "run"
    code, out, err = Job(ranks, "train", *METHODS[method], "--out", path).end()
    assert code == 0, err
    assert out.count("finished in") == 1, "one rank speaks"
    assert state_of(path) == wanted(method)
    assert not _events(path, "trainer_died")


def test_a_dead_trainers_and_a_lost_ranks_cells_go_to_others(wanted, tmp_path):
    """The latter only where MPI outlives it; the server that it had started goes on for others."""
    path = tmp_path / "run"
    job = Job(3, "train", *GRID, "--out", path, options=("--with-ft", "ulfm"))
    _until(lambda: len(_events(path, "commit")) > 4, "commits")
    os.kill(_until(lambda: _trainers(job), "trainers")[0], signal.SIGKILL)
    _until(lambda: _events(path, "trainer_died"), "death")
    known = len(_events(path, "commit"))
    _until(lambda: len(_events(path, "commit")) > known + 2, "commits after it")
    family = job.family()
    assert sum(map(_is_server, family)) == 3, "one server and two trainers"
    os.kill(_rank(job, 1), signal.SIGKILL)
    code, _, err = job.end()
    assert code == 0, err
    assert "rank 1 is lost; 1 worker ranks are left" in err
    deaths = [event["how"] for event in _events(path, "trainer_died")]
    assert deaths == ["killed by SIGKILL", "rank 1 was lost"]
    assert state_of(path) == wanted("grid")
    _until(lambda: not any(map(_lives, family)), "end of all processes", 10.0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_killed_or_hung_the_bits_are_the_same(seed, tmp_path):
    """Trainers, their server, worker ranks: six faults a run."""
    rng, path, args = random.Random(seed), tmp_path / "run", list(GRID)
    args[args.index("--rounds") + 1] = "60"
    done = run_here("train", *args, "--runtime", "inline", "--out", "wanted", cwd=tmp_path)
    assert done.code == 0, done.err
    job = Job(5, "train", *args, "--out", path, options=("--with-ft", "ulfm"))
    lost = rng.sample((1, 2, 3, 4), 2)
    faults = ["kill", "kill", "hang", "server", "rank", "rank"]
    rng.shuffle(faults)
    struck = []
    for fault in faults:
        known = len(_events(path, "round"))
        _until(lambda known=known: len(_events(path, "round")) > known + 3, "rounds")
        time.sleep(rng.random())
        pids = {
            "rank": lambda: [_rank(job, lost.pop())],
            "server": lambda: [pid for pid in _servers(job) if _children(pid)],
        }.get(fault, lambda: _of_servers(job))()
        if job.process.poll() is None and pids:
            struck.append(fault)
            os.kill(rng.choice(pids), signal.SIGSTOP if fault == "hang" else signal.SIGKILL)
    code, _, err = job.end()
    sys.stdout.write(f"{struck}\n")
    assert code == 0, err
    assert state_of(path) == state_of(tmp_path / "wanted")


def _servers(job: Job) -> list[int]:
    """Also one whose agent is lost, which is nobody's child any more."""
    ranks = {_key_of(pid) for pid in job.family()}
    return [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208
        if _is_server(pid) and _key_of(pid) in ranks
    ]


def _of_servers(job: Job) -> list[int]:
    return [trainer for server in _servers(job) for trainer in _children(server)]


def _key_of(pid: int) -> bytes | None:
    """What processes of one job have in common."""
    with contextlib.suppress(OSError):
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"PMIX_NAMESPACE="):
                return word
    return None


@pytest.mark.soak
def test_a_job_that_is_killed_or_stopped_is_resumed_by_any_runtime(wanted, tmp_path):
    path = tmp_path / "run"
    job = Job(3, "train", *GRID, "--out", path)
    _until(lambda: len(_events(path, "commit")) > 4, "commits")
    family = job.family()
    os.kill(_rank(job, 1), signal.SIGKILL)
    code, _, _ = job.end()
    assert code not in (0, 75)
    _until(lambda: not any(map(_lives, family)), "end of all processes", 10.0)

    known = len(_events(path, "commit"))
    job = Job(2, "resume", path)
    _until(lambda: len(_events(path, "commit")) > known, "commits")
    family = job.family()
    job.process.send_signal(signal.SIGUSR2)
    code, out, err = job.end()
    assert code == 75, err
    assert out.count("stopped and saved") == 1
    assert json.loads((path / "status.json").read_text())["state"] == "stopped"
    assert _events(path, "run_stopped")[-1]["reason"] == "SIGUSR2"
    _until(lambda: not any(map(_lives, family)), "end of all processes", 10.0)

    done = run_here("resume", str(path), "--runtime", "inline", cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(path) == wanted("grid")


def _rank(job: Job, rank: int) -> int:
    wanted = f"OMPI_COMM_WORLD_RANK={rank}".encode()
    ranks = [pid for parent in (job.process.pid, *job.family()) for pid in _children(parent)]
    found = (
        pid for pid in ranks if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    return next(found)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.full
def test_bad_input_is_one_line_of_the_first_rank_and_the_exit_code_of_all(tmp_path):
    job = Job(3, "train", "digits", "--classes", "99", "--out", tmp_path / "run")
    code, _, err = job.end()
    assert code == 2
    assert err.count("manege: ") == 1


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_launcher_of_another_library_is_refused(rank, monkeypatch, tmp_path):
    """Ranks that each see themselves alone would all train the whole run."""
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setenv("PMI_SIZE", "3")
    done = subprocess.run(
        [sys.executable, "-m", "manege", "train", *GRID, "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    said = "manege: the launcher started 3 ranks, but is not that of mpi4py's library (Open MPI"
    assert done.stderr.startswith(said) if rank == 0 else done.stderr == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_server_killed_before_training_ends_the_job_with_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "server:prepared")
    code, _, err = Job(2, "train", *PER_CLASS, "--out", tmp_path / "run").end()
    assert code == 3, err
    (said,) = [line for line in err.splitlines() if line.startswith("manege: ")]
    assert "the trainer server died while loading the run" in said


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that counts processes and threads; whoever is in it is bound by it."""
    parent = next((one for one in PIDS if (one / "cgroup.procs").exists()), None)
    if parent is None:
        pytest.skip("there is no hierarchy of control groups here")
    folder = parent / f"manege-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        if not (folder / "pids.max").exists():
            pytest.skip("control groups here do not count processes")
        yield folder
    finally:
        _until(lambda: not (folder / "cgroup.procs").read_text(), "end of its processes")
        folder.rmdir()


JOINS_AND_MAY_HAVE_NO_MORE = """
import sys
from pathlib import Path
from manege import job
from manege.cli import main

group, more = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
(group / "cgroup.procs").write_text("0")
job._join()
(group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + more))
main()
"""


@pytest.mark.full
@pytest.mark.parametrize("more", [0, 1])
def test_a_rank_that_can_start_no_process_ends_the_job_with_one_line(more, group, tmp_path):
    """It cannot start its server, or that a child."""
    args = ("train", *PER_CLASS, "--out", str(tmp_path / "run"))
    bound = (sys.executable, "-c", JOINS_AND_MAY_HAVE_NO_MORE, str(group), str(more), *args)
    code, _, err = Job(1, *args, then=bound).end()
    assert code == 3, err
    (said,) = [line for line in err.splitlines() if line.startswith("manege: ")]
    assert "no further process or thread can be started" in said


def test_ordinary_runs_and_help_do_not_load_mpi(tmp_path):
    look = (
        "import sys; sys.argv = ['manege', 'train', '--help']\n"
        "from manege.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit('mpi4py' in sys.modules or 'manege.runtime.mpi' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", look], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.full
def test_the_launcher_starts_a_job_again_and_turns_sigterm_into_a_commit(wanted, tmp_path):
    path = tmp_path / "run"
    job = Job(None, "train", *GRID, *LAUNCH, "--restarts", 1, "--out", path)
    _until(lambda: len(_events(path, "commit")) > 4, "commits")
    os.kill(_rank(job, 0), signal.SIGKILL)
    _until(lambda: len(_events(path, "run_started")) == 2, "second start")
    known = len(_events(path, "commit"))
    _until(lambda: len(_events(path, "commit")) > known, "commits after it")
    job.process.terminate()
    code, out, err = job.end()
    assert code == 75, err
    assert out.count("stopped and saved") == 1
    assert "the job died (exit code 70); started again, 0 times left" in err
    assert _events(path, "run_stopped")[-1]["reason"] == "SIGUSR2"
    done = run_here("resume", str(path), "--runtime", "inline", cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(path) == wanted("grid")
