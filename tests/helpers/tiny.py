"""The smallest run that trains, and what the tests of a session share."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TINY = {
    "runtime": "inline",
    "preset": "paper",
    "rounds": 1,
    "networks__kind": "mlp",
    "networks__hidden": 16,
    "training__batch": 40,
    "sheets__pictures": 4,
}
"""For `manege.train("digits", ...)`; the classes, and how many pictures of each, come beside."""


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session's own folder; pytest-xdist's processes have it in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """One folder for the session: the digits' feature networks are trained once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(session_folder(tmp_path_factory) / "score-cache"))
        patch.delenv("MANEGE_DATA", raising=False)
        yield patch


def made_once(
    name: str, make: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A copy of a folder that one of the session's processes made, and the others waited for."""
    first = session_folder(tmp_path_factory) / f"made-once-{name}"
    with Path(f"{first}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not first.exists():
            half = Path(f"{first}.half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            make(half)
            half.rename(first)
    return Path(shutil.copytree(first, tmp_path_factory.mktemp(name), dirs_exist_ok=True))
