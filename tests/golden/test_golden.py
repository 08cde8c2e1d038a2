"""Runs come to the recorded bits in every runtime, and runs of earlier versions go on.

On a processor that nobody recorded, the models' means must come close to the recorded ones, and
every runtime must come to the bits of one process.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manege.failpoints import VARIABLE
from tests.golden.runs import RECORDED, RUNS, processor, result
from tests.helpers.command import run_here, run_process

OLD = Path(__file__).with_name("old")
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
KILLED = -9


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        yield


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """What a run in one process comes to; trained once."""

    @functools.cache
    def trained(name: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("inline")
        done = run_here("train", *RUNS[name], "--runtime", "inline", "--out", "run", cwd=folder)
        assert done.code == 0, done.err
        return result(folder / "run")

    return trained


def is_as_recorded(name: str, found: dict[str, Any]) -> None:
    row = json.loads(RECORDED.read_text())[name]
    key = processor(found["rest_on"])
    if key in row["sha256"]:
        assert found["sha256"] == row["sha256"][key]
    else:
        assert found["means"] == pytest.approx(row["means"], rel=0.02, abs=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_in_one_process_comes_to_the_recorded_bits(inline, name):
    is_as_recorded(name, inline(name))


@pytest.mark.parametrize("name", ["modern", "cellular-mustangs"])
def test_two_workers_come_to_the_bits_of_one_process(inline, tmp_path, name):
    done = run_process("train", *RUNS[name], "--workers", "2", "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    assert result(tmp_path / "run") == inline(name)


@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec on the PATH")
@pytest.mark.parametrize("name", ["paper-dc", "cellular-mustangs"])
def test_three_ranks_come_to_the_bits_of_one_process(inline, tmp_path, name):
    launch = ("--launch", "mpiexec", "-n", "3")
    done = run_process("train", *RUNS[name], *launch, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    assert result(tmp_path / "run") == inline(name)


@pytest.mark.parametrize(
    "name", [pytest.param("modern", marks=pytest.mark.full), "cellular-mustangs"]
)
def test_a_run_killed_and_resumed_comes_to_the_bits_of_one_that_was_not(inline, tmp_path, name):
    args = ("train", *RUNS[name], "--runtime", "inline", "--out", "run")
    killed = run_process(*args, cwd=tmp_path, env={VARIABLE: "step@9"})
    assert killed.code == KILLED, killed.err
    done = run_here("resume", "run", "--runtime", "inline", cwd=tmp_path)
    assert done.code == 0, done.err
    assert result(tmp_path / "run") == inline(name)


@pytest.mark.full
@pytest.mark.parametrize("runtime", [("--runtime", "inline"), ("--workers", "2")])
@pytest.mark.parametrize("name", ["paper-dc", "grid", "modern-before-colour-head"])
def test_a_run_that_an_earlier_version_left_behind_goes_on_to_its_bits(tmp_path, name, runtime):
    """`modern-before-colour-head` was killed under 41c5b20, the others under eadcd4d.

    All results are those of eadcd4d, which no longer learns biases under BatchNorm.
    """
    with tarfile.open(OLD / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    done = run_process("resume", name, *runtime, cwd=tmp_path)
    assert done.code == 0, done.err
    found = result(tmp_path / name)
    is_as_recorded(f"old/{name}", found)
