"""Pictures of noise, as networks take them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def noise(count: int, side: int, channels: int = 3, seed: int = 0) -> Tensor:
    """In [-1, 1], channels last in memory."""
    drawn = np.random.default_rng(seed).random((count, side, side, channels), dtype=np.float32)
    return torch.from_numpy(drawn * 2 - 1).permute(0, 3, 1, 2)
