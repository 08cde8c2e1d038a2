"""The manege command as the tests call it: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from manege import cli

TINY = ("--preset", "paper", "--networks", "mlp", "--set", "networks.hidden=16", "--batch", "32")


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@functools.cache
def _command() -> Any:
    """What Typer makes of the application, which it would make anew for every call."""
    from manege.cli.app import app

    return typer.main.get_command(app)


def run_here(*args: str | Path, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """The real command without a process of its own: importing torch would cost two seconds."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["manege", *map(str, args)])
        patch.setattr(cli, "_app", _command)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        code = cli._run()
    return Done(code, out.getvalue(), err.getvalue())


def run_process(
    *args: str | Path,
    cwd: Path,
    env: dict[str, str] | None = None,
    before: Sequence[str] = (),
    **options: Any,
) -> Done:
    """``python -m manege`` in a process of its own, or in those that what stands before starts."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "manege", *map(str, args)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        **{"capture_output": True, "text": True, "timeout": 120, **options},
    )
    return Done(done.returncode, done.stdout or "", done.stderr or "")
