"""The networks: the convolutional pair of the W-CGAN papers, the perceptrons of the cellular one.

Tensors in, tensors out. Nothing here draws a random number: weights are set by `initialise` from
a stream it is given, and a discriminator's dropout factors are an argument of its forward pass.

Shape legend: B batch, Z latent, C channels, S side, W dropout factors of one picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2, sqrt
from typing import assert_never

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manege.config import Activation, DcganNetworks, MlpNetworks
from manege.models.layers import SLOPE, BatchNorm2d, LastConv, UpsampleConv, scale_channels

Spec = DcganNetworks | MlpNetworks


@dataclass(frozen=True)
class PictureShape:
    """Square pictures of 1 or 3 channels; 1 x 1 with 2 channels are points in the plane."""

    size: int
    channels: int


class Generator(nn.Module):
    """Latents to pictures in [-1, 1]: `forward(z_BZ) → x_BCSS`."""

    latent: int


class Discriminator(nn.Module):
    """Pictures to logits, or to a critic's values: `forward(x_BCSS, factors_BW=None) → B`.

    No sigmoid here: losses take logits. Dropout happens exactly when its factors are given.
    """

    dropout: float = 0.0
    dropout_width: int = 0
    """How many dropout factors a picture takes when training; 0 when there is no dropout."""


def build_generator(spec: Spec, shape: PictureShape) -> Generator:
    """A generator without storage (on torch's meta device): `initialise` or a record fills it."""
    with torch.device("meta"):
        match spec:
            case DcganNetworks():
                return DcganGenerator(spec, shape)
            case MlpNetworks():
                return MlpGenerator(spec, shape)
            case _:
                assert_never(spec)


def build_discriminator(spec: Spec, shape: PictureShape) -> Discriminator:
    """A discriminator without storage, as `build_generator`."""
    with torch.device("meta"):
        match spec:
            case DcganNetworks():
                return DcganDiscriminator(spec, shape)
            case MlpNetworks():
                return MlpDiscriminator(spec, shape)
            case _:
                assert_never(spec)


class DcganGenerator(Generator):
    """Table 1; two doublings up to side 32, one more for each further doubling."""

    def __init__(self, spec: DcganNetworks, shape: PictureShape) -> None:
        super().__init__()
        self.latent = spec.latent
        doublings = 2 + max(0, ceil(log2(shape.size / 32)))
        self.start = shape.size >> doublings
        self.linear = nn.Linear(spec.latent, 128 * self.start**2)
        self.norm = BatchNorm2d(128, eps=1e-5)
        widths = [128] * doublings + [64]
        self.blocks = nn.ModuleList(
            UpBlock(inputs, outputs, eps=spec.batchnorm_eps) for inputs, outputs in pairwise(widths)
        )
        self.out = LastConv(64, shape.channels)

    def forward(self, z_BZ: Tensor) -> Tensor:
        """B×C×S×S pictures, channels last in memory."""
        x = F.leaky_relu_(self.linear(z_BZ), SLOPE).view(-1, 128, self.start, self.start)
        x = self.norm(x.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return torch.tanh_(self.out(x))


class UpBlock(nn.Module):
    """Doubling, convolution, BatchNorm, LeakyReLU."""

    def __init__(self, inputs: int, outputs: int, *, eps: float) -> None:
        super().__init__()
        self.conv = UpsampleConv(inputs, outputs)
        self.norm = BatchNorm2d(outputs, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Twice as large."""
        return F.leaky_relu_(self.norm(self.conv(x)), SLOPE)


class DcganDiscriminator(Discriminator):
    """Table 2; a fifth block from side 128 up."""

    def __init__(self, spec: DcganNetworks, shape: PictureShape) -> None:
        super().__init__()
        widths = [16, 32, 64, 128] + [256] * (shape.size >= 128)
        self.dropout = spec.dropout
        self.dropout_width = sum(widths) if spec.dropout else 0
        side, inputs = shape.size, shape.channels
        blocks: list[DownBlock] = []
        for outputs in widths:
            eps = spec.batchnorm_eps if blocks else None
            blocks.append(DownBlock(inputs, outputs, eps=eps))
            inputs, side = outputs, (side + 1) // 2
        self.blocks = nn.ModuleList(blocks)
        self.widths = widths
        self.linear = nn.Linear(inputs * side * side, 1)

    def forward(self, x_BCSS: Tensor, factors_BW: Tensor | None = None) -> Tensor:
        """B values."""
        factors = factors_BW.split(self.widths, dim=1) if factors_BW is not None else None
        x = x_BCSS
        for index, block in enumerate(self.blocks):
            x = block(x, factors[index] if factors else None)
        values: Tensor = self.linear(x.flatten(1))
        return values.squeeze(1)


class DownBlock(nn.Module):
    """Convolution of stride 2, LeakyReLU, dropout by channel, BatchNorm (not in the first)."""

    def __init__(self, inputs: int, outputs: int, *, eps: float | None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        self.norm = BatchNorm2d(outputs, eps=eps) if eps is not None else None

    def forward(self, x: Tensor, factors_BC: Tensor | None) -> Tensor:
        """Half as large."""
        x = F.leaky_relu_(self.conv(x), SLOPE)
        if factors_BC is not None:
            x = scale_channels(x, factors_BC)
        return self.norm(x) if self.norm is not None else x


class MlpGenerator(Generator):
    """Table I of the cellular paper: two hidden layers, tanh at the end."""

    def __init__(self, spec: MlpNetworks, shape: PictureShape) -> None:
        super().__init__()
        self.latent = spec.latent
        self.shape = shape
        self.body = _perceptron(spec, spec.latent, shape.channels * shape.size**2)

    def forward(self, z_BZ: Tensor) -> Tensor:
        """B×C×S×S pictures."""
        x: Tensor = torch.tanh_(self.body(z_BZ))
        return x.view(-1, self.shape.channels, self.shape.size, self.shape.size)


class MlpDiscriminator(Discriminator):
    """Table I of the cellular paper."""

    def __init__(self, spec: MlpNetworks, shape: PictureShape) -> None:
        super().__init__()
        self.body = _perceptron(spec, shape.channels * shape.size**2, 1)

    def forward(self, x_BCSS: Tensor, factors_BW: Tensor | None = None) -> Tensor:
        """B values."""
        values: Tensor = self.body(x_BCSS.flatten(1))
        return values.squeeze(1)


def _perceptron(spec: MlpNetworks, inputs: int, outputs: int) -> nn.Sequential:
    def activation() -> nn.Module:
        return nn.Tanh() if spec.activation is Activation.TANH else nn.LeakyReLU(SLOPE)

    return nn.Sequential(
        nn.Linear(inputs, spec.hidden),
        activation(),
        nn.Linear(spec.hidden, spec.hidden),
        activation(),
        nn.Linear(spec.hidden, outputs),
    )


@torch.no_grad()
def initialise(network: nn.Module, rng: np.random.Generator) -> None:
    """Fill every parameter and buffer: torch's own default distributions, from our stream."""
    for module in network.modules():
        if isinstance(module, BatchNorm2d):
            module.weight.fill_(1)
            module.bias.zero_()
            module.running_mean.zero_()
            module.running_var.fill_(1)
        elif isinstance(module, nn.Linear | nn.Conv2d | UpsampleConv):
            bound = 1 / sqrt(module.weight[0].numel())
            for parameter in (module.weight, module.bias):
                if parameter is not None:
                    drawn = rng.random(tuple(parameter.shape), dtype=np.float32)
                    parameter.copy_(torch.from_numpy((2 * drawn - 1) * np.float32(bound)))
