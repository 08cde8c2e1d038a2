"""Between pictures as people store them (bytes, channels last) and as networks see them.

Shape legend: B pictures, S side, C channels.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from manege.models.networks import Generator


def to_floats(bytes_BSSC: Tensor) -> Tensor:
    """Return bytes as B×C×S×S floats in [-1, 1], channels last in memory."""
    return bytes_BSSC.to(torch.float32).mul_(2 / 255).sub_(1).permute(0, 3, 1, 2)


def to_bytes(floats_BCSS: Tensor) -> np.ndarray:
    """Return floats in [-1, 1] as B×S×S×C bytes, rounded."""
    scaled = floats_BCSS.add(1).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).contiguous().cpu().numpy()


@torch.no_grad()
def generate(
    generator: Generator, z_BZ: np.ndarray, labels_B: np.ndarray | None = None
) -> np.ndarray:
    """Draw the generator's pictures at some latents, as bytes; the generator stays as it is."""
    device = next(generator.parameters()).device
    training = generator.training
    generator.eval()  # Or BatchNorm would mix the pictures of a batch and learn from them.
    try:
        labels = None if labels_B is None else torch.from_numpy(labels_B).to(device)
        return to_bytes(generator(torch.from_numpy(z_BZ).to(device), labels))
    finally:
        generator.train(training)
