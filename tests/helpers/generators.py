"""Held by every test that says so: nothing draws from torch's or numpy's global generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def global_generators_left_alone() -> Iterator[None]:
    """What happens inside draws from neither."""
    torch_before, numpy_before = torch.get_rng_state(), _numpy_state()
    yield
    assert torch.equal(torch_before, torch.get_rng_state())
    assert np.array_equal(numpy_before, _numpy_state())


def _numpy_state() -> np.ndarray:
    return np.random.get_state()[1].copy()  # noqa: NPY002 - the legacy one is what must not move.
