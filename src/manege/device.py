"""The one place that knows about devices, threads and the process's memory.

Owns what torch is told about the machine; everything else takes a `torch.device`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from manege.errors import MachineError

_KEEP_BYTES = 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def resolve(name: str) -> torch.device:
    """The device of `auto | cpu | cuda | cuda:N`; auto is the first GPU where there is one."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MachineError(
            f"--device {name}: torch {torch.__version__} sees no CUDA device here; "
            "use --device cpu, or install a CUDA build of torch"
        )
    device = torch.device("cuda" if name == "auto" else name)
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise MachineError(
            f"--device {name}: found {count} CUDA device(s), numbered from 0; "
            f"use one of cuda:0 … cuda:{count - 1}"
        )
    return device


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch computes with `count` threads inside; the caller's number is given back after."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Let freed memory stay with the process, where the C library can be told so (glibc).

    A step frees and asks again for the same tens of megabytes. Given back to the kernel each
    time they cost thousands of page faults a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
