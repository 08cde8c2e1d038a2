"""What keeps a discriminator near Lipschitz: cut weights, spectral norms, penalised gradients.

Shape legend: B pictures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from manege.models.layers import SpectralLayer


def clippable(discriminator: nn.Module) -> list[Tensor]:
    """Return the parameters that clipping may touch: all but BatchNorm's.

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


def power_iteration_(discriminator: nn.Module) -> None:
    """Bring every spectral layer's estimate of its norm one power iteration nearer.

    The only place that changes those vectors: a forward pass, training or not, reads them.
    """
    for module in discriminator.modules():
        if isinstance(module, SpectralLayer):
            module.power_iteration_()


def squared_gradients(value_B: Tensor, pictures: Tensor) -> Tensor:
    """Return for each picture its value's squared gradient norm; it can be differentiated again."""
    (gradient,) = torch.autograd.grad(value_B.sum(), pictures, create_graph=True)
    return gradient.square().flatten(1).sum(1)


def gradient_penalty(squared_B: Tensor) -> Tensor:
    """Return WGAN-GP's penalty: the mean squared distance of the gradients' norms from 1."""
    # The root of 0 has no derivative; a gradient that small is as far from 1 as 0 is.
    return (squared_B.clamp_min(1e-12).sqrt() - 1).square().mean()
