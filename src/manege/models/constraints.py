"""What keeps a discriminator near Lipschitz."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def clippable(discriminator: nn.Module) -> list[Tensor]:
    """The parameters that clipping may touch: all but BatchNorm's.

    Cutting BatchNorm's scales to ±0.01 as well multiplies the generator's gradient by about 0.01
    in every block; nothing learns.
    """
    return [
        parameter
        for module in discriminator.modules()
        if not isinstance(module, nn.BatchNorm2d)
        for parameter in module.parameters(recurse=False)
    ]


@torch.no_grad()
def clip_(parameters: list[Tensor], bound: float) -> None:
    """Cut every value to [-bound, bound], in place."""
    for parameter in parameters:
        parameter.clamp_(-bound, bound)
