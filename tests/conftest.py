"""One thread, as in training: two change a convolution's bits, and race with other tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.helpers.tiny import shared_cache

# On a busy machine an example takes long: its time says nothing about manege.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Read before any test hides the variable.
_REAL = os.environ.get("MANEGE_DATA")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real datasets."""
    if _REAL is None:
        pytest.skip("MANEGE_DATA names no folder with real datasets")
    return Path(_REAL)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def score_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set module by module: other tests must not see it."""
    with shared_cache(tmp_path_factory):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: processes that share the files out then end at about the same time."""
    long = {"contract", "recovery", "slurm", "test_instructions.py"}
    items.sort(key=lambda item: long.isdisjoint(item.path.parts))
