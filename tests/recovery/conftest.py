"""Shared by tests with victims: one process that imports torch for all, and undisturbed runs."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import run_here
from tests.helpers.forker import state_of

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600

Forker = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """What `manege train` with such arguments comes to in one process; trained once."""

    @functools.cache
    def found(*args: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("undisturbed")
        done = run_here("train", *args, "--runtime", "inline", "--out", "run", cwd=folder)
        assert done.code == 0, done.err
        return state_of(folder / "run")

    return found


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    """Carries a plan out; what became of its victims."""
    folder = tmp_path_factory.mktemp("forker")
    with (
        (folder / "stderr").open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.forker"],
            cwd=ROOT,
            env=os.environ | {"MANEGE_CACHE": str(folder / "cache")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def carry_out(plan: dict[str, Any]) -> dict[str, Any]:
            asked.write(json.dumps(plan) + "\n")
            asked.flush()
            ready, _, _ = select.select([answers], [], [], TIMEOUT_S)
            answer = answers.readline() if ready else ""
            assert answer, (folder / "stderr").read_text()[-3000:]
            told = json.loads(answer)
            assert isinstance(told, dict)
            assert "error" not in told, told["error"]
            return told

        yield carry_out
        asked.close()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
