"""Critics on frozen features: the same bits in every runtime, killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manege.runs import RunDir
from tests.helpers.command import run_here
from tests.helpers.forker import state_of
from tests.helpers.material import write_colour

COMMON = (
    *("--critic", "features", "--batch", "8", "--rounds", "4", "--sheet-every", "100"),
    *("--set", "networks.generator_width=16", "--set", "critic.width=16"),
    *("--set", "stability.every_rounds=2"),
)
PER_CLASS = ("--score", "none", "--flip", "--set", "training.augment.kind=none")
GRID = (
    *("--method", "cellular", "--preset", "cellular-modern", "--grid", "1x2"),
    *("--networks", "pyramid", "--constraint", "spectral", "--loss", "bce"),
    *("--set", "training.batches_per_round=4", "--set", "cellular.fitness_samples=16"),
    *("--set", "cellular.mixture.samples=100", "--set", "cellular.mixture.final_samples=200"),
)
METHODS = {
    "per-class": PER_CLASS,
    "few pictures, changed": ("--score", "none", "--flip"),
    "conditional": ("--method", "conditional", *PER_CLASS),
    "grid": GRID,
    "grid, drawn opponents": (*GRID, "--set", "cellular.opponents=neighbourhood"),
}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "pictures"
    for label in ("a", "b"):
        write_colour(root / label, 40, side=16)
    return root


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_two_trainers_come_to_the_bits_of_one_process(method, folder, undisturbed, tmp_path):
    args = (str(folder), *COMMON, *METHODS[method])
    done = run_here("train", *args, "--workers", "2", "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(tmp_path / "run") == undisturbed(*args)


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_same_bits(folder, undisturbed, tmp_path):
    args = (str(folder), *COMMON, *PER_CLASS, "--set", "checkpoints.every_rounds=1")
    command = [sys.executable, "-m", "manege", "train", *args, "--workers", "1", "--out", "run"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    )
    path = tmp_path / "run"
    deadline = time.monotonic() + 120
    while not any((path / "checkpoints").rglob("*.safetensors")):
        assert time.monotonic() < deadline
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # Its trainers die with it, and let go of the run.
    assert RunDir.open(path).status()["state"] == "interrupted"
    done = run_here("resume", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(path) == undisturbed(*args)
