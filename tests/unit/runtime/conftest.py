"""No test of the runtime leaves a file open: descriptors pass between processes here."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest


def open_files() -> set[str]:
    """What each open descriptor leads to, inode and all."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")  # noqa: PTH115
        except OSError:  # The listing's own.
            continue
    return found


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect() -> Iterator[None]:
    """Nobody looks through torch and all tests again before each of these."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_file_is_left_open() -> Iterator[None]:
    gc.collect()  # What earlier tests left to the collector goes now, not meanwhile.
    before = open_files()
    yield
    assert open_files() - before == set()
