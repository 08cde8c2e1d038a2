"""One thread, as in training: two change a convolution's bits, and race with other tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: processes that share the files out then end at about the same time."""
    items.sort(key=lambda item: {"contract", "recovery", "slurm"}.isdisjoint(item.path.parts))
