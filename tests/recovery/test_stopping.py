"""Signals, locks, full disks, damaged files: real processes and real limits.

A command that nobody signals and no limit holds back runs in the test's own process: it need not
import torch again, and its bits must be those of the others all the same.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from manege.failpoints import VARIABLE
from manege.runs import RunDir
from manege.sampler import run_config
from tests.helpers.command import Done, run_here
from tests.helpers.forker import state_of

TINY = [
    *("--preset", "paper"),
    *("--classes", "3,7", "--limit-per-class", "40", "--batch", "20", "--sheet-every", "1000"),
    *("--set", "networks.generator_width=16", "--set", "networks.discriminator_width=8"),
]
ROUNDS = 60
"""Long enough for a signal to come in time."""


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MANEGE_RUNTIME", "inline")  # The other one: test_local.py.
        yield


def _start(*args: object, **more) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "manege", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def _finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode, out, err


def _run(*args: object) -> Done:
    """The command in this process."""
    done = run_here(*map(str, args), cwd=Path("/"))
    assert "Traceback" not in done.err
    return done


def _wait_for(path: Path, event: str, after: int = 0) -> None:
    """Until there are more of that event than `after`."""
    events = path / "events.jsonl"
    for _ in range(3000):
        if events.exists() and events.read_text().count(f'"event":"{event}"') > after:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {event} in {path}")


def _events(path: Path, kind: str) -> list[dict]:
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An undisturbed run in a process of its own; nobody writes there."""
    path = tmp_path_factory.mktemp("undisturbed") / "reference"
    assert _finish(_start("train", "digits", *TINY, "--rounds", ROUNDS, "--out", path))[0] == 0
    return path


@pytest.mark.full
def test_signals_save_and_stop_and_resume_goes_on_bit_for_bit(tmp_path, reference):
    path = tmp_path / "run"
    begin = ("train", "digits", *TINY, "--rounds", ROUNDS, "--out", path, "--json")
    for times, (number, command) in enumerate(
        {signal.SIGINT: begin, signal.SIGTERM: ("resume", path, "--json")}.items()
    ):
        before = len(_events(path, "round")) if times else 0
        process = _start(*command)
        _wait_for(path, "round", after=before)
        process.send_signal(number)
        sent = time.monotonic()
        code, out, err = _finish(process)
        assert time.monotonic() - sent < 5
        assert code == 75
        assert json.loads(out)["state"] == "stopped"
        assert f"stopping on {number.name}" in err
        stopped = _events(path, "run_stopped")
        assert len(stopped) == times + 1
        assert stopped[-1]["reason"] == number.name
        cell = _events(path, "cell_started")[-1]["cell"]
        saved = RunDir.open(path).commits(cell)[0]
        told = _events(path, "commit")[-1]
        assert (saved.round_, saved.step) == (told["round"], told["step"]) != (0, 0)
    assert _run("resume", path).code == 0
    assert state_of(path) == state_of(reference)


@pytest.mark.full
def test_a_longer_total_gives_what_an_undivided_run_would(tmp_path, reference):
    path = tmp_path / "in-parts"
    assert _run("train", "digits", *TINY, "--rounds", 11, "--out", path).code == 0
    assert _run("resume", path, "--rounds", ROUNDS).code == 0
    ours, theirs = state_of(path), state_of(reference)
    extra = "samples/{}/round-000011.png"  # The sheet at the first end.
    assert {k: v for k, v in ours.items() if k not in (extra.format(3), extra.format(7))} == theirs


@pytest.mark.full
def test_a_second_process_on_the_same_run_is_refused(tmp_path):
    path = tmp_path / "run"
    first = _start("train", "digits", *TINY, "--rounds", 2000, "--out", path)
    _wait_for(path, "round")
    refused = _run("resume", path)
    assert (refused.code, refused.out) == (2, "")
    assert str(first.pid) in refused.err
    assert len(refused.err.splitlines()) == 1
    first.send_signal(signal.SIGTERM)
    assert _finish(first)[0] == 75


@pytest.mark.full
def test_a_damaged_newest_checkpoint_falls_back_and_says_so(tmp_path, reference):
    path = tmp_path / "run"
    saving = ["--checkpoint-every", "7"]
    assert _run("train", "digits", *TINY, *saving, "--rounds", 30, "--out", path).code == 0
    newest = path / "checkpoints/3" / RunDir.open(path).commits("3")[0].file
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    done = _run("resume", path, "--rounds", ROUNDS)
    assert done.code == 0
    assert "warning" in done.err
    assert newest.name in done.err
    (warning,) = _events(path, "warning")
    assert warning["cell"] == "3"
    ours = state_of(path)
    assert {k: v for k, v in ours.items() if "round-000030" not in k} == state_of(reference)


def test_a_full_disk_is_one_line_and_resume_works_after_space_is_made(tmp_path, reference):
    path = tmp_path / "run"
    saving = ["--checkpoint-every", "10"]
    args = ("train", "digits", *TINY, *saving, "--rounds", ROUNDS, "--out", path)
    less = RunDir.open(reference).commits("3")[0].bytes // 4

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (less, less))

    # Warm the cache outside the limit: it is the run that meets the full disk.
    code, out, err = _finish(_start(*args, preexec_fn=small_files))
    assert (code, out) == (3, "")
    assert "checkpoints" in err.splitlines()[-1]
    assert RunDir.open(path).status()["state"] == "interrupted"
    assert _run("resume", path).code == 0
    assert state_of(path) == state_of(reference)


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_small_file_system_keeps_the_earlier_generation(
    workers, tmp_path, reference, monkeypatch
):
    if workers:
        monkeypatch.setenv("MANEGE_RUNTIME", "local")
    disk = tmp_path / "disk"
    disk.mkdir()
    # Two generations, and not a third.
    size = RunDir.open(reference).commits("3")[0].bytes * 27 // 10
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    try:
        path = disk / "run"
        saving = ["--checkpoint-every", "10"]
        done = _run("train", "digits", *TINY, *saving, "--rounds", ROUNDS, "--out", path)
        assert (done.code, done.out) == (3, "")
        assert "no space left" in done.err.splitlines()[-1]
        kept = RunDir.open(path)
        begun = kept.cells()
        assert begun
        for cell in begun:
            assert kept.load(cell, identity=run_config(kept).identity()) is not None
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        assert _run("resume", path).code == 0
        assert state_of(path) == state_of(reference)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.full
def test_a_class_that_turns_nan_fails_alone(tmp_path, reference):
    path = tmp_path / "run"
    assert _run("train", "digits", *TINY, "--rounds", 11, "--out", path).code == 0
    rundir = RunDir.open(path)
    identity = run_config(rundir).identity()
    found = rundir.load("7", identity=identity)
    found.tensors["generator"][5] = np.nan
    rundir.commit(
        "7",
        identity=identity,
        round_=found.round_,
        step=found.step,
        tensors=found.tensors,
        meta=found.meta,
    )
    code, out, err = _finish(_start("resume", path, "--rounds", ROUNDS, "--json"))
    assert code == 4
    told = json.loads(out)
    assert told["state"] == "failed"
    assert list(told["failed"]) == ["7"]
    assert "class '7' failed" in err
    ours, theirs = state_of(path), state_of(reference)
    assert ours["3.safetensors"] == theirs["3.safetensors"]
    assert "7.safetensors" not in ours
    done = _run("sample", path, "--label", 7, "-o", tmp_path / "a.png")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "missing from this model (failed: " in done.err
    done = _run("sample", path, "-n", 8, "-o", tmp_path / "b.png", "--json")
    assert done.code == 0
    assert done.json["labels"] == {"3": 8}
    assert "missing from this model: '7' (failed: " in done.err


@pytest.mark.full
def test_adding_a_class_changes_no_other(tmp_path, reference):
    path = tmp_path / "run"
    more = ["0,3,7" if word == "3,7" else word for word in TINY]
    assert more != TINY
    assert _run("train", "digits", *more, "--rounds", ROUNDS, "--out", path).code == 0
    ours, theirs = state_of(path), state_of(reference)
    for label in ("3", "7"):
        assert ours[f"{label}.safetensors"] == theirs[f"{label}.safetensors"]


@pytest.mark.full
def test_a_budget_is_shared_out_evenly_and_survives_a_stop(tmp_path):
    path = tmp_path / "run"
    process = _start("train", "digits", *TINY, "--budget", "4s", "--out", path)
    _wait_for(path, "round")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert _finish(process)[0] == 75
    assert _run("resume", path).code == 0
    spent = {event["cell"]: event for event in _events(path, "cell_finished")}
    assert {event["reason"] for event in spent.values()} == {"budget"}
    for event in spent.values():
        assert event["spent_s"] == pytest.approx(2, abs=0.4)


@pytest.mark.full
def test_somebody_elses_checkpoint_is_refused(tmp_path, reference):
    other = tmp_path / "other"
    args = ("train", "digits", *TINY, "--rounds", 2, "--seed", 9, "--out", other)
    assert _run(*args).code == 0
    shutil.rmtree(other / "checkpoints/3")
    shutil.copytree(reference / "checkpoints/3", other / "checkpoints/3")
    done = _run("resume", other, "--rounds", 4)
    assert (done.code, done.out) == (2, "")
    assert "belongs to another run" in done.err


@pytest.mark.full
def test_a_checkpoint_of_other_pictures_is_refused(tmp_path, reference):
    other = tmp_path / "other"
    fewer = ["30" if word == "40" else word for word in TINY]
    assert fewer != TINY
    assert _run("train", "digits", *fewer, "--rounds", 2, "--out", other).code == 0
    shutil.rmtree(other / "checkpoints/3")
    shutil.copytree(reference / "checkpoints/3", other / "checkpoints/3")
    done = _run("resume", other, "--rounds", 60)
    assert (done.code, done.out) == (2, "")
    assert "class '3': its training pictures are not the ones" in done.err


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_death_before_the_sheet_of_training_pictures_costs_nothing(runtime, tmp_path, reference):
    path = tmp_path / "run"
    args = ("train", "digits", *TINY, "--rounds", 2, "--runtime", runtime, "--out", path)
    code, _, err = _finish(_start(*args, env={**os.environ, VARIABLE: "real-sheet"}))
    assert code == (-signal.SIGKILL if runtime == "inline" else 3), err
    assert not (path / "samples" / "real.png").exists()
    assert _run("resume", path).code == 0
    sheets = [one / "samples" / "real.png" for one in (path, reference)]
    assert sheets[0].read_bytes() == sheets[1].read_bytes()


def test_nothing_but_the_run_is_left_behind(reference):
    files = {str(p.relative_to(reference)) for p in reference.rglob("*") if p.is_file()}
    assert not [name for name in files if name.endswith(".tmp") or ".aside" in name]
    assert {
        "config.yaml",
        "command.txt",
        "environment.json",
        "status.json",
        "events.jsonl",
    } <= files
    assert {"data.json", "model/model.json", "samples/model.png"} <= files
