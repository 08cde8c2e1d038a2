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

from manege.config import DcganNetworks, MlpNetworks, ResnetNetworks
from manege.models.layers import (
    BatchNorm2d,
    Conv,
    ConvPool,
    Dense,
    LastConv,
    SpectralLayer,
    UpsampleConv,
    activate,
    scale_channels,
)

_SHARPENINGS = 20
"""Power iterations on fresh weights; training adds one at each update."""

Spec = DcganNetworks | ResnetNetworks | MlpNetworks


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
            case ResnetNetworks():
                return ResnetGenerator(spec, shape)
            case MlpNetworks():
                return MlpGenerator(spec, shape)
            case _:
                assert_never(spec)


def build_discriminator(
    spec: Spec, shape: PictureShape, *, spectral: bool = False
) -> Discriminator:
    """A discriminator without storage, as `build_generator`; maybe with spectral norms."""
    with torch.device("meta"):
        match spec:
            case DcganNetworks():
                return DcganDiscriminator(spec, shape, spectral=spectral)
            case ResnetNetworks():
                return ResnetDiscriminator(spec, shape, spectral=spectral)
            case MlpNetworks():
                return MlpDiscriminator(spec, shape, spectral=spectral)
            case _:
                assert_never(spec)


class DcganGenerator(Generator):
    """Table 1; two doublings up to side 32, one more for each further doubling."""

    def __init__(self, spec: DcganNetworks, shape: PictureShape) -> None:
        super().__init__()
        self.latent = spec.latent
        self.activation = spec.activation
        self.width = spec.generator_width
        doublings = _doublings(shape)
        self.start = shape.size >> doublings
        self.linear = nn.Linear(spec.latent, self.width * self.start**2)
        self.norm = BatchNorm2d(self.width, eps=1e-5)
        widths = [self.width] * doublings + [self.width // 2]
        self.blocks = nn.ModuleList(
            UpBlock(inputs, outputs, spec) for inputs, outputs in pairwise(widths)
        )
        self.out = LastConv(widths[-1], shape.channels)

    def forward(self, z_BZ: Tensor) -> Tensor:
        """B×C×S×S pictures, channels last in memory."""
        x = activate(self.linear(z_BZ), self.activation)
        x = x.view(-1, self.width, self.start, self.start)
        x = self.norm(x.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return torch.tanh_(self.out(x))


def _doublings(shape: PictureShape) -> int:
    return 2 + max(0, ceil(log2(shape.size / 32)))


class UpBlock(nn.Module):
    """Doubling, convolution, BatchNorm, activation."""

    def __init__(self, inputs: int, outputs: int, spec: DcganNetworks) -> None:
        super().__init__()
        self.activation = spec.activation
        self.conv = UpsampleConv(inputs, outputs)
        self.norm = BatchNorm2d(outputs, eps=spec.batchnorm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Twice as large."""
        return activate(self.norm(self.conv(x)), self.activation)


class DcganDiscriminator(Discriminator):
    """Table 2; a fifth block from side 128 up."""

    def __init__(self, spec: DcganNetworks, shape: PictureShape, *, spectral: bool) -> None:
        super().__init__()
        first = spec.discriminator_width
        widths = [first << k for k in range(5 if shape.size >= 128 else 4)]
        self.dropout = spec.dropout
        self.dropout_width = sum(widths) if spec.dropout else 0
        side, inputs = shape.size, shape.channels
        blocks: list[DownBlock] = []
        for outputs in widths:
            norm = bool(blocks) and spec.discriminator_batchnorm
            blocks.append(DownBlock(inputs, outputs, spec, norm=norm, spectral=spectral))
            inputs, side = outputs, (side + 1) // 2
        self.blocks = nn.ModuleList(blocks)
        self.widths = widths
        self.linear = Dense(inputs * side * side, 1, spectral=spectral)

    def forward(self, x_BCSS: Tensor, factors_BW: Tensor | None = None) -> Tensor:
        """B values."""
        factors = factors_BW.split(self.widths, dim=1) if factors_BW is not None else None
        x = x_BCSS
        for index, block in enumerate(self.blocks):
            x = block(x, factors[index] if factors else None)
        values: Tensor = self.linear(x.flatten(1))
        return values.squeeze(1)


class DownBlock(nn.Module):
    """Convolution of stride 2, activation, dropout by channel, BatchNorm (not in the first)."""

    def __init__(
        self, inputs: int, outputs: int, spec: DcganNetworks, *, norm: bool, spectral: bool
    ) -> None:
        super().__init__()
        self.activation = spec.activation
        self.conv = Conv(inputs, outputs, stride=2, spectral=spectral)
        self.norm = BatchNorm2d(outputs, eps=spec.batchnorm_eps) if norm else None

    def forward(self, x: Tensor, factors_BC: Tensor | None) -> Tensor:
        """Half as large."""
        x = activate(self.conv(x), self.activation)
        if factors_BC is not None:
            x = scale_channels(x, factors_BC)
        return self.norm(x) if self.norm is not None else x


class ResnetGenerator(Generator):
    """Residual blocks from a small map to the picture, doublings as in the convolutional pair."""

    def __init__(self, spec: ResnetNetworks, shape: PictureShape) -> None:
        super().__init__()
        self.latent = spec.latent
        self.activation = spec.activation
        self.width = spec.generator_width
        doublings = _doublings(shape)
        self.start = shape.size >> doublings
        self.linear = nn.Linear(spec.latent, self.width * self.start**2)
        self.blocks = nn.ModuleList(UpResidual(spec) for _ in range(doublings))
        self.norm = BatchNorm2d(self.width, eps=1e-5)
        self.out = LastConv(self.width, shape.channels)

    def forward(self, z_BZ: Tensor) -> Tensor:
        """B×C×S×S pictures, channels last in memory."""
        x = self.linear(z_BZ).view(-1, self.width, self.start, self.start)
        x = x.contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x)
        return torch.tanh_(self.out(activate(self.norm(x), self.activation)))


class UpResidual(nn.Module):
    """BatchNorm, activation, doubling and convolution, and once more; beside the doubled input."""

    def __init__(self, spec: ResnetNetworks) -> None:
        super().__init__()
        self.activation = spec.activation
        width = spec.generator_width
        self.norms = nn.ModuleList(BatchNorm2d(width, eps=1e-5) for _ in range(2))
        self.up = UpsampleConv(width, width)
        self.conv = Conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Twice as large."""
        y: Tensor = self.up(activate(self.norms[0](x), self.activation))
        y = self.conv(activate(self.norms[1](y), self.activation))
        y += F.interpolate(x, scale_factor=2, mode="nearest")
        return y


class ResnetDiscriminator(Discriminator):
    """Residual blocks down to a small map, summed up; no BatchNorm, no dropout."""

    def __init__(self, spec: ResnetNetworks, shape: PictureShape, *, spectral: bool) -> None:
        super().__init__()
        self.activation = spec.activation
        first = spec.discriminator_width
        widths = [shape.channels, *(first << k for k in range(_doublings(shape) + 1))]
        self.blocks = nn.ModuleList(
            DownResidual(inputs, outputs, spec, first=number == 0, spectral=spectral)
            for number, (inputs, outputs) in enumerate(pairwise(widths))
        )
        self.linear = Dense(widths[-1], 1, spectral=spectral)

    def forward(self, x_BCSS: Tensor, factors_BW: Tensor | None = None) -> Tensor:
        """B values."""
        x = x_BCSS
        for block in self.blocks:
            x = block(x)
        values: Tensor = self.linear(activate(x, self.activation).sum((2, 3)))
        return values.squeeze(1)


class DownResidual(nn.Module):
    """Activation and convolution twice, halved; beside the halved input."""

    def __init__(
        self, inputs: int, outputs: int, spec: ResnetNetworks, *, first: bool, spectral: bool
    ) -> None:
        super().__init__()
        self.activation = spec.activation
        self.first = first
        self.conv = Conv(inputs, outputs, spectral=spectral)
        self.pool = ConvPool(outputs, outputs, spectral=spectral)
        self.skip = Conv(inputs, outputs, kernel=1, spectral=spectral)

    def forward(self, x: Tensor) -> Tensor:
        """Half as large."""
        # A picture's own values are no features yet: the first block does not bend them.
        y: Tensor = x if self.first else activate(x.clone(), self.activation)
        y = self.pool(activate(self.conv(y), self.activation))
        # Averaging before the 1×1 convolution gives the same as after it, at a quarter of the cost.
        y += self.skip(F.avg_pool2d(x, 2))
        return y


class MlpGenerator(Generator):
    """Table I of the cellular paper: two hidden layers, tanh at the end."""

    def __init__(self, spec: MlpNetworks, shape: PictureShape) -> None:
        super().__init__()
        self.latent = spec.latent
        self.shape = shape
        pixels = shape.channels * shape.size**2
        self.body = Perceptron(spec, spec.latent, pixels, spectral=False)

    def forward(self, z_BZ: Tensor) -> Tensor:
        """B×C×S×S pictures."""
        x: Tensor = torch.tanh_(self.body(z_BZ))
        return x.view(-1, self.shape.channels, self.shape.size, self.shape.size)


class MlpDiscriminator(Discriminator):
    """Table I of the cellular paper."""

    def __init__(self, spec: MlpNetworks, shape: PictureShape, *, spectral: bool) -> None:
        super().__init__()
        self.body = Perceptron(spec, shape.channels * shape.size**2, 1, spectral=spectral)

    def forward(self, x_BCSS: Tensor, factors_BW: Tensor | None = None) -> Tensor:
        """B values."""
        values: Tensor = self.body(x_BCSS.flatten(1))
        return values.squeeze(1)


class Perceptron(nn.Module):
    """Three linear layers."""

    def __init__(self, spec: MlpNetworks, inputs: int, outputs: int, *, spectral: bool) -> None:
        super().__init__()
        self.activation = spec.activation
        widths = [inputs, spec.hidden, spec.hidden, outputs]
        self.layers = nn.ModuleList(
            Dense(before, after, spectral=spectral) for before, after in pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        """B×outputs."""
        *hidden, last = self.layers
        for layer in hidden:
            x = activate(layer(x), self.activation)
        y: Tensor = last(x)
        return y


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
        if isinstance(module, SpectralLayer) and module.u is not None:
            drawn = rng.standard_normal(len(module.u), dtype=np.float32)
            module.u.copy_(torch.from_numpy(drawn / np.linalg.norm(drawn)))
            for _ in range(_SHARPENINGS):
                module.sharpen_()
