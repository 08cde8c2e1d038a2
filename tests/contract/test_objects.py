"""Runs on data that were objects of a program: the same bits as from a file, in any process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manege
from manege.api import start_run
from manege.config import resolve
from manege.data import store
from manege.errors import DataError
from manege.observer import Observer
from manege.runs import RunDir
from manege.sampler import run_config
from tests.helpers.material import noise
from tests.helpers.tiny import TINY

IMAGES = noise(0, 80, 16, 16)
LABELS = np.repeat(["cat", "dog"], 40)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MANEGE_DATA", raising=False)


def started(source: str, out: Path | None, **changes: Any):
    given = {**TINY, **changes}
    preset, runtime = given.pop("preset"), given.pop("runtime")
    flags = {key.replace("__", "."): value for key, value in given.items()}
    config = resolve(preset=preset, flags={"data.source": source, **flags})
    return start_run(config, out=out, observer=Observer(), command="test", runtime=runtime)


def tensors(path: Path) -> dict[str, bytes]:
    """Everything in every cell's last commit."""
    rundir = RunDir.open(path)
    identity = run_config(rundir).identity()
    found: dict[str, bytes] = {}
    for cell in rundir.cells():
        kept = rundir.load(cell, identity=identity)
        assert kept is not None
        found |= {f"{cell}/{name}": tensor.tobytes() for name, tensor in kept.tensors.items()}
    return found


def test_arrays_train_to_the_bits_of_an_equal_npz_and_go_on_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "pets.npz", images=IMAGES, labels=LABELS)
    whole = started(str(tmp_path / "pets.npz"), tmp_path / "whole", rounds=2)
    monkeypatch.chdir(tmp_path)
    first = started(store((IMAGES, LABELS), name="pets"), None, rounds=1)
    assert first.path.name == "0001-pets-per-class"
    code = "import sys, manege\nmanege.resume(sys.argv[1], rounds=2)\n"
    (tmp_path / "elsewhere").mkdir()
    subprocess.run(
        [sys.executable, "-c", code, first.path.resolve()], check=True, cwd=tmp_path / "elsewhere"
    )
    assert tensors(first.path) == tensors(whole.path) != {}
    found = manege.evaluate(
        first.path, store((IMAGES, LABELS)), samples=20, metrics=["kid"], features="random"
    )
    assert found.scores[0].name.startswith("kid")


def test_a_run_whose_data_are_gone_says_how_to_bring_them_back(tmp_path: Path) -> None:
    run = started(store((IMAGES, LABELS)), tmp_path / "run")
    for path in (tmp_path / "cache" / "objects").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"are not in the cache .*; call train again"):
        manege.resume(run.path, rounds=2)
    store((IMAGES, LABELS))
    assert manege.resume(run.path, rounds=2).outcome.state == "finished"
