"""Runs come to the recorded bits in every runtime, and runs of earlier versions go on.

Bits rest on the processor: `modern, single` ends with means that differ by up to 15 % between the
two that are recorded. On another one the recorded bits are skipped, and every runtime must come to
the bits of one process all the same.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manege.failpoints import VARIABLE
from tests.golden.runs import OLD, RECORDED, RUNS, processor, result, unpack_old
from tests.helpers.command import run_here, run_process

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
KILLED = -9


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str], Path]:
    """Where a run in one process lies; trained once."""

    @functools.cache
    def train(name: str) -> Path:
        folder = tmp_path_factory.mktemp("inline")
        done = run_here("train", *RUNS[name], "--runtime", "inline", "--out", "run", cwd=folder)
        assert done.code == 0, done.err
        return folder / "run"

    return train


@pytest.fixture(scope="module")
def inline(trained) -> Callable[[str], str]:
    """What a run in one process comes to."""
    return lambda name: result(trained(name))


@pytest.fixture(scope="module")
def recorded(trained) -> Callable[[str], str]:
    """What a run is to come to on this processor."""

    def of(name: str) -> str:
        known, here = json.loads(RECORDED.read_text())[name], processor(trained("paper"))
        if here not in known:
            pytest.skip(f"nobody recorded what runs come to on {here}: python -m tests.golden.runs")
        return str(known[here])

    return of


@pytest.mark.parametrize("name", RUNS)
def test_a_run_in_one_process_comes_to_the_recorded_bits(inline, recorded, name):
    assert inline(name) == recorded(name)


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
@pytest.mark.parametrize("name", OLD)
def test_a_run_that_an_earlier_version_left_behind_goes_on_to_its_bits(
    recorded, tmp_path, name, runtime
):
    """`modern-before-colour-head` was killed under 41c5b20, the others under eadcd4d.

    All results are those of eadcd4d, which no longer learns biases under BatchNorm.
    """
    unpack_old(name, tmp_path)
    done = run_process("resume", name, *runtime, cwd=tmp_path)
    assert done.code == 0, done.err
    assert result(tmp_path / name) == recorded(f"old/{name}")
