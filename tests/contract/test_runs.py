"""What a run looks like from outside, whoever carries it: one process, several, ranks."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manege.failpoints import TRAINER, VARIABLE
from manege.runs import RunDir
from tests.helpers.command import run_here
from tests.helpers.forker import state_of
from tests.helpers.libraries import library

PER_CLASS = (
    *("digits", "--preset", "paper-dc", "--networks", "mlp", "--classes", "3,7,8"),
    *("--limit-per-class", "40", "--batch", "20", "--sheet-every", "100", "--score", "none"),
    *("--set", "stability.every_rounds=5"),
    *("--set", "networks.hidden=32", "--set", "checkpoints.every_s=0.3", "--rounds", "40"),
)
GRID = (
    *("ring8", "--method", "cellular", "--grid", "2x2", "--batch", "50", "--rounds", "16"),
    *("--set", "training.batches_per_round=10", "--sheet-every", "6"),
    *("--set", "networks.hidden=32", "--set", "networks.latent=8"),
    *("--set", "cellular.fitness_samples=64", "--set", "cellular.mixture.samples=200"),
    *("--set", "cellular.mixture.final_samples=400"),
)
METHODS = {"per-class": PER_CLASS, "grid": GRID}
RUNTIMES = ("inline", "local", "openmpi", "mpich")


class Command:
    """`manege …` under way, by one of the runtimes."""

    def __init__(self, runtime: str, *args: object, **env: str) -> None:
        own = [sys.executable, "-m", "manege", *map(str, args)]
        self._stop_by = "SIGTERM"
        if runtime in ("openmpi", "mpich"):
            chosen = library(runtime)
            own = [chosen.mpiexec, *chosen.options, "-n", "3", *own]
            env |= chosen.env
            self._stop_by = chosen.stop_signal
        else:
            own += ["--runtime", runtime]
        self.process = subprocess.Popen(
            own,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> None:
        self.process.send_signal(signal.Signals[self._stop_by])

    def end(self) -> tuple[int, str]:
        try:
            _, err = self.process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert "Traceback" not in err, err
        return self.process.returncode, err


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        yield


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> Callable[[str], dict[str, str]]:
    """What an undisturbed run in one process comes to."""

    @functools.cache
    def found(method: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp(method)
        order = ("train", *METHODS[method], "--runtime", "inline", "--out", "run")
        done = run_here(*order, cwd=folder)
        assert done.code == 0, done.err
        return state_of(folder / "run")

    return found


def _events(path: Path, kind: str) -> list[dict[str, Any]]:
    if not (path / "events.jsonl").exists():
        return []
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "relay"),
    [
        ("grid", ("local", "openmpi", "inline")),
        # MPICH's mpiexec now and then tells 9, having killed a rank that was about to end.
        pytest.param(*("grid", ("local", "mpich", "openmpi", "inline")), marks=pytest.mark.soak),
        pytest.param(
            *("per-class", ("inline", "openmpi", "local", "mpich")), marks=pytest.mark.soak
        ),
    ],
)
def test_a_run_moves_from_one_to_the_next(method, relay, wanted, tmp_path):
    """Stopped with every one of them and gone on with by the next: the same bits at the end."""
    path, last = tmp_path / "run", relay[-1]
    for runtime in relay:
        begun = path.exists()
        head = ("resume", path) if begun else ("train", *METHODS[method], "--out", path)
        known = len(_events(path, "round")) if begun else 0
        command = Command(runtime, *head)
        if runtime != last:
            while len(_events(path, "round")) <= known and command.process.poll() is None:
                time.sleep(0.02)
            command.stop()
        code, err = command.end()
        assert code == (0 if runtime == last else 75), f"{runtime}: {err}"
    assert len(_events(path, "run_started")) == len(relay)
    assert state_of(path) == wanted(method)
    _check_told_once(path)


def _check_told_once(path: Path) -> None:
    """Of every cell all rounds, in their order, none twice: none was lost between two commits."""
    for cell in RunDir.open(path).cells():
        rounds = [event["round"] for event in _events(path, "round") if event["cell"] == cell]
        assert rounds == sorted(set(rounds))
        assert rounds[0] == 1


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["openmpi", pytest.param("mpich", marks=pytest.mark.soak)])
def test_what_fails_fails_alone(runtime, tmp_path):
    """As on one machine (tests/recovery/test_local.py): one class is lost, and no other."""
    path = tmp_path / "run"
    args = list(PER_CLASS)
    args[args.index("--limit-per-class") + 1] = "1000"
    args[args.index("--rounds") + 1] = "1"
    args[args.index("checkpoints.every_s=0.3")] = "checkpoints.every_s=60"
    # Of digits 3, 7 and 8 only the first has so many pictures.
    head = ("train", *args, "--batch", 4, "--workers", 1, "--out", path)
    code, err = Command(runtime, *head, **{VARIABLE: "step@42!", TRAINER: "any"}).end()
    assert code == 4, err
    assert [event["cell"] for event in _events(path, "cell_failed")] == ["3"]
    assert sorted(event["cell"] for event in _events(path, "cell_finished")) == ["7", "8"]


@pytest.mark.soak
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_bad_input_is_one_line(runtime, tmp_path):
    code, err = Command(
        runtime, "train", "digits", "--classes", "99", "--out", tmp_path / "run"
    ).end()
    assert code == 2
    assert err.count("manege: ") == 1
    assert not (tmp_path / "run").exists()
