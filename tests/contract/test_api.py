"""The verbs as functions: Ctrl-C, watchers that break, and arguments that make no sense."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manege
from manege.api import start_run
from manege.config import resolve
from manege.errors import ConfigError, DataError
from manege.observer import Observer
from manege.runs import RunDir
from tests.helpers.tiny import TINY

SMALL = {**TINY, "data__classes": ["3"], "data__limit_per_class": 40}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_DATA", raising=False)
        yield


# Ctrl-C.

SCRIPT = """
import json, signal, sys
import manege

before = signal.signal(signal.SIGINT, signal.default_int_handler)
verb, path, more = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
run = manege.train("digits", out=path, **more) if verb == "train" else manege.resume(path, **more)
same = signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(json.dumps([run.outcome.state, run.outcome.rounds, same]))
"""


def interrupted(verb: str, path: Path, **more: Any) -> list[Any]:
    """What a script got from a verb that SIGINT reached in the middle of its training."""
    known = _count(path)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, verb, str(path), json.dumps(more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(6000):
        if _count(path) > known or process.poll() is not None:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    told: list[Any] = json.loads(out)
    return told


def _count(path: Path) -> int:
    """Rounds in the events so far."""
    events = path / "events.jsonl"
    return events.read_text().count('"event":"round"') if events.exists() else 0


@pytest.mark.full
def test_ctrl_c_saves_and_returns_a_stopped_run(tmp_path):
    path, many = tmp_path / "run", {**SMALL, "rounds": 100_000}
    state, rounds, restored = interrupted("train", path, **many)
    assert (state, restored) == ("stopped", True)
    assert rounds["3"] >= 1
    rundir = RunDir.open(path)
    assert rundir.status()["state"] == "stopped"
    assert rundir.commits("3")[0].round_ == rounds["3"]
    state, more, restored = interrupted("resume", path)
    assert (state, restored) == ("stopped", True)
    assert more["3"] > rounds["3"]
    assert RunDir.open(path).commits("3")[0].round_ == more["3"]


def test_a_run_in_another_thread_trains_and_leaves_signals_alone(tmp_path):
    found = []
    before = signal.getsignal(signal.SIGINT)

    def train() -> None:
        found.append(manege.train("digits", out=tmp_path / "run", **SMALL).outcome.state)
        found.append(manege.resume(tmp_path / "run", rounds=2).outcome.state)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == ["finished", "finished"]
    assert signal.getsignal(signal.SIGINT) is before


# Whoever looks on.


class Breaking(Observer):
    """An observer of which one part breaks whenever it is called."""

    def __init__(self, part: str) -> None:
        self._part = part
        self.calls = 0

    def _called(self, part: str) -> None:
        if part == self._part:
            self.calls += 1
            raise ZeroDivisionError("of my own\nmaking")

    def event(self, event: dict[str, Any]) -> None:
        self._called("event")

    def step(self, cell: str, place: object, fraction: float) -> None:
        self._called("step")

    def opened(self, path: Path) -> None:
        self._called("opened")

    def workers(self, count: int, silent_s: float, *, paused: bool) -> None:
        self._called("workers")

    def requests(self) -> list[str]:
        self._called("requests")
        return ["a pony"] if self._part == "nonsense" else []


@pytest.mark.parametrize("part", ["event", "step", "opened", "workers", "requests", "nonsense"])
def test_an_observer_that_breaks_is_left_out_and_the_run_goes_on(part, tmp_path, capsys):
    observer = Breaking(part)
    flags = {
        key.replace("__", "."): value
        for key, value in SMALL.items()
        if key not in ("preset", "runtime")
    }
    config = resolve(preset="paper", flags={"data.source": "digits", **flags, "rounds": 2})
    run = start_run(config, out=tmp_path / "run", observer=observer)
    assert run.outcome.state == "finished"
    assert RunDir.open(run.path).status()["state"] == "finished"
    assert observer.calls == (0 if part == "nonsense" else 1)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "Breaking" in line]
    why = (
        "ValueError: .*'a pony'.*" if part == "nonsense" else "ZeroDivisionError: of my own making"
    )
    assert re.fullmatch(rf"warning: Breaking broke and is left out \({why}\)", said)


# Arguments.


class Frame:
    """Like a table of pandas: long to show, and not to be compared."""

    shape = (3, 2)

    def __repr__(self) -> str:
        return "a row\n" * 1000

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


class Odd:
    def __repr__(self) -> str:
        return "odd" * 1000


PICTURES = np.zeros((100, 8, 8), np.uint8)
ODD = {
    "ndarray of shape (100, 8, 8)": PICTURES,
    "tuple of 2": (PICTURES, PICTURES),
    "list of 3000": [1.5] * 3000,
    "Frame of shape (3, 2)": Frame(),
    "Odd": Odd(),
}
VERBS: dict[str, Callable[[Any, Path], object]] = {
    "out": lambda odd, tmp: manege.train("digits", out=odd, rounds=1),
    "config": lambda odd, tmp: manege.train("digits", config=odd, out=tmp / "run", rounds=1),
    "preset": lambda odd, tmp: manege.train("digits", preset=odd, out=tmp / "run", rounds=1),
    "method": lambda odd, tmp: manege.train("digits", method=odd, out=tmp / "run", rounds=1),
    "rounds": lambda odd, tmp: manege.train("digits", rounds=odd, out=tmp / "run"),
    "budget_s": lambda odd, tmp: manege.train("digits", budget_s=odd, out=tmp / "run"),
    "run": lambda odd, tmp: manege.resume(odd),
    "path": lambda odd, tmp: manege.load_model(odd),
    "model": lambda odd, tmp: manege.sample(odd, 4),
}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("what", ODD)
def test_what_makes_no_sense_is_refused_by_its_type_alone(name, what, tmp_path):
    with pytest.raises(ConfigError) as refused:
        VERBS[name](ODD[what], tmp_path)
    text = str(refused.value)
    assert f"{name}: found {what}, expected " in text
    assert len(text) < 250
    assert "\n" not in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_data_is_refused_without_being_shown(what, tmp_path):
    with pytest.raises(DataError) as refused:
        manege.train(ODD[what], out=tmp_path / "run", rounds=1)
    assert len(str(refused.value)) < 250
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_short_plain_values_are_shown_as_they_are(tmp_path):
    for value, shown in (("x", "'x'"), (["a", 1], "['a', 1]"), (2.5, "2.5"), (Path("x"), "Posix")):
        with pytest.raises(ConfigError, match=re.escape(f"rounds: found {shown}")):
            manege.train("digits", out=tmp_path / "run", rounds=value)
    with pytest.raises(ConfigError, match=r"found 'aaaaa.*… \(5000 characters\), expected") as long:
        manege.train("digits", out=tmp_path / "run", rounds="a" * 5000)
    assert len(str(long.value)) < 250
