"""A machine that lets us have no more processes or threads: it is named, and no class is blamed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from manege.runs import RunDir
from tests.helpers.command import Done, run_here
from tests.helpers.forker import state_of

SETPRIV = shutil.which("setpriv")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or SETPRIV is None,
        reason="root is not bound by the limit; becoming a user with no other process takes root",
    ),
]

RUN = (
    *("digits", "--preset", "paper-dc", "--networks", "mlp", "--classes", "3,7,8"),
    *("--limit-per-class", "40", "--batch", "20", "--sheet-every", "100", "--score", "none"),
    *("--set", "networks.hidden=32", "--set", "checkpoints.every_s=0.1", "--rounds", "40"),
)
FILES = "+dac_override,+dac_read_search"
"""What of root's rights a user needs whom no file here belongs to."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Libraries start none of their own, so that every process and thread is one of ours."""
ROOM = 100


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MANEGE_RUNTIME", "local")
        yield


def _as_user() -> list[str]:
    """Before a command: the user is nobody else's, and no other process of theirs is counted."""
    user = 100_000 + os.getpid()
    whom = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [str(SETPRIV), *whom, f"--inh-caps={FILES}", f"--ambient-caps={FILES}"]


def _start(limit: int, *args: object, env: dict[str, str]) -> subprocess.Popen[str]:
    """The command as a user of its own, who may have so many processes and threads."""
    return subprocess.Popen(
        [*_as_user(), sys.executable, "-m", "manege", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit)),
    )


def _end(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


def _blames_the_machine(done: Done) -> None:
    assert done.code == 3, done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("manege: no further process or thread can be started"), done.err
    assert "ulimit -u" in last


def _until(look: Callable[[], object], what: str) -> None:
    for _ in range(3000):
        if look():
            return
        time.sleep(0.02)
    raise AssertionError(f"no {what}")


def _events(path: Path, kind: str) -> list[dict]:
    if not (path / "events.jsonl").exists():
        return []
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


# The command and the server; a child of the server that prepares; then two trainers, each with a
# thread that tells that it lives.
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_whatever_cannot_be_started_the_limit_is_named(limit, tmp_path):
    path = tmp_path / "run"
    args = ("train", *RUN, "--workers", 2, "--out", path)
    _blames_the_machine(_end(_start(limit, *args, env=ONE_THREAD)))
    assert not _events(path, "cell_failed")


def test_a_run_that_has_what_it_needs_trains(tmp_path):
    args = ("train", *RUN, "--workers", 2, "--out", tmp_path / "run")
    done = _end(_start(6, *args, env=ONE_THREAD))
    assert done.code == 0, done.err


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_library_that_cannot_start_its_threads_is_no_interruption(limit, tmp_path):
    """OpenBLAS interrupts its own process then: the command, or the server."""
    args = ("train", *RUN, "--workers", 2, "--out", tmp_path / "run")
    _blames_the_machine(_end(_start(limit, *args, env={})))


def test_threads_of_a_step_that_cannot_be_started_blame_no_class(tmp_path):
    """OpenMP would end the trainer without a word to us."""
    path = tmp_path / "run"
    args = ("train", *RUN, "--workers", 1, "--set", "threads_per_cell=4", "--out", path)
    _blames_the_machine(_end(_start(5, *args, env=ONE_THREAD)))
    assert not _events(path, "cell_failed")
    inline = ("train", *RUN, "--runtime", "inline", "--set", "threads_per_cell=4")
    _blames_the_machine(_end(_start(2, *inline, "--out", tmp_path / "inline", env=ONE_THREAD)))


def test_a_limit_met_on_the_way_leaves_what_is_committed(tmp_path):
    path, longer = tmp_path / "run", (*RUN, "--rounds", 120)
    process = _start(ROOM, "train", *longer, "--workers", 2, "--out", path, env=ONE_THREAD)
    _until(lambda: _events(path, "commit"), "commit")
    try:
        (server,) = _children(process.pid)
        subprocess.run([*_as_user(), "prlimit", "--nproc=1:1", f"--pid={server}"], check=True)
        os.kill(_children(server)[0], signal.SIGKILL)
        _blames_the_machine(_end(process))
    finally:
        process.kill()
    committed = {event["cell"] for event in _events(path, "commit")}
    assert committed <= set(RunDir.open(path).cells())
    assert not _events(path, "cell_failed")
    again = run_here("resume", str(path), "--runtime", "inline", cwd=tmp_path)
    assert again.code == 0, again.err
    whole = tmp_path / "whole"
    done = run_here("train", *longer, "--runtime", "inline", "--out", whole, cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(path) == state_of(whole)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
