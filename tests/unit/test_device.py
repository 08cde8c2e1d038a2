"""Devices and threads."""

from __future__ import annotations

import pytest
import torch

from manege import device
from manege.errors import MachineError


def test_auto_is_the_cpu_where_there_is_no_gpu():
    assert device.resolve("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        assert device.resolve("auto") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_the_machines_fault(name):
    with pytest.raises(MachineError, match=rf"--device {name}: .* use --device cpu"):
        device.resolve(name)


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with device.threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_keeping_memory_may_be_asked_for_at_any_time():
    device.keep_memory()
    assert torch.ones(3).sum() == 3
