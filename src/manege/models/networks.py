"""The networks: the convolutional pair of the W-CGAN papers, the perceptrons of the cellular one.

Tensors in, tensors out. Nothing here draws a random number: weights are set by `initialise` from
a stream it is given, and a discriminator's dropout factors are an argument of its forward pass.

Shape legend: B batch, Z latent, C channels, S side, W dropout factors of one picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, log2, sqrt
from typing import assert_never

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manege.config import (
    Activation,
    DcganNetworks,
    MlpNetworks,
    OwnNetworks,
    PyramidNetworks,
    ResnetNetworks,
)
from manege.models.chain import ManualMLP, manual_mlp
from manege.models.layers import (
    BatchNorm2d,
    Conv,
    ConvPool,
    Dense,
    Embed,
    LastConv,
    SpectralLayer,
    UpsampleConv,
    activate,
    scale_channels,
    tanh_,
)

EMBEDDED = 32
"""How many numbers a label's row puts beside the latent."""
_POWER_ITERATIONS = 20
"""Power iterations on fresh weights; training adds one at each update."""

Spec = DcganNetworks | ResnetNetworks | PyramidNetworks | MlpNetworks | OwnNetworks


@dataclass(frozen=True)
class PictureShape:
    """Square pictures of 1 or 3 channels; 1 x 1 with 2 channels are points in the plane."""

    size: int
    channels: int


class Generator(nn.Module):
    """Latents to pictures in [-1, 1]: `forward(z_BZ, labels_B=None) → x_BCSS`.

    A conditional one is told the label by a learnt row beside the latent.
    """

    latent: int
    own: bool = False
    """Whether it comes from outside the package."""
    embed: Embed | None

    def condition(self, num_labels: int, deviation: float = 1.0) -> int:
        """Give it rows for so many labels; return the width of what its first layer sees."""
        self.embed = Embed(num_labels, EMBEDDED, deviation) if num_labels else None
        return self.latent + (EMBEDDED if num_labels else 0)

    def inputs(self, z_BZ: Tensor, labels_B: Tensor | None) -> Tensor:
        """Return the latents, with their labels' rows where there are such."""
        if self.embed is None:
            return z_BZ
        assert labels_B is not None, "a conditional generator needs labels"
        return torch.cat([z_BZ, self.embed(labels_B)], dim=1)

    @cached_property
    def chain(self) -> ManualMLP | None:
        """Its passes written out, from latents to flat pictures, where it has such."""
        return None


class Discriminator(nn.Module):
    """Pictures to logits: `forward(x_BCSS, factors_BW=None, labels_B=None) → B`.

    No sigmoid here: losses take logits, and a Wasserstein critic's values are such. Dropout
    happens exactly when its factors are given. A conditional one projects the picture's features
    on a learnt row of the label (Miyato & Koyama 2018).
    """

    dropout: float = 0.0
    dropout_width: int = 0
    """How many dropout factors a picture takes when training; 0 when there is no dropout."""
    mixes: bool = False
    """Whether what it makes of a picture depends on the rest of its batch."""
    sees_features: bool = False
    """Whether `observe` is more than the pictures themselves."""
    own: bool = False
    """Whether it comes from outside the package."""
    embed: Embed | None
    linear: Dense

    def observe(self, x_BCSS: Tensor) -> Tensor:
        """Return what `forward` takes: the pictures, or what a frozen network sees of them."""
        return x_BCSS

    def condition(self, num_labels: int, width: int, *, spectral: bool) -> None:
        """Give it a last layer for `width` features, and rows for so many labels."""
        self.linear = Dense(width, 1, spectral=spectral)
        self.embed = Embed(num_labels, width, spectral=spectral) if num_labels else None

    def judge(self, features_BW: Tensor, labels_B: Tensor | None) -> Tensor:
        """Return B values, from what the last layer sees."""
        values: Tensor = self.linear(features_BW).squeeze(1)
        if self.embed is None:
            return values
        assert labels_B is not None, "a conditional discriminator needs labels"
        projected: Tensor = (self.embed(labels_B) * features_BW).sum(1)
        return values + projected

    @cached_property
    def chain(self) -> ManualMLP | None:
        """Its passes written out, from flat pictures to logits, where it has such."""
        return None


def build_generator(spec: Spec, shape: PictureShape, num_labels: int = 0) -> Generator:
    """Build a generator on torch's meta device, without storage: `initialise` or a record fills it.

    With `num_labels` it is a conditional one. One of somebody else's has storage already.
    """
    if isinstance(spec, OwnNetworks):
        from manege.models.own import OwnGenerator

        return OwnGenerator(spec, shape)
    with torch.device("meta"):
        match spec:
            case DcganNetworks():
                return DcganGenerator(spec, shape, num_labels)
            case ResnetNetworks():
                return ResnetGenerator(spec, shape, num_labels)
            case PyramidNetworks():
                return PyramidGenerator(spec, shape, num_labels)
            case MlpNetworks():
                return MlpGenerator(spec, shape, num_labels)
            case _:
                assert_never(spec)


def build_discriminator(
    spec: Spec, shape: PictureShape, num_labels: int = 0, *, spectral: bool = False
) -> Discriminator:
    """Build a discriminator without storage, as `build_generator`; maybe with spectral norms."""
    if isinstance(spec, OwnNetworks):
        from manege.models.own import OwnDiscriminator

        return OwnDiscriminator(spec, shape)
    with torch.device("meta"):
        match spec:
            case DcganNetworks():
                return DcganDiscriminator(spec, shape, num_labels, spectral=spectral)
            case ResnetNetworks():
                return ResnetDiscriminator(spec, shape, num_labels, spectral=spectral)
            case PyramidNetworks():
                return PyramidDiscriminator(spec, shape, num_labels, spectral=spectral)
            case MlpNetworks():
                return MlpDiscriminator(spec, shape, num_labels, spectral=spectral)
            case _:
                assert_never(spec)


class MapGenerator(Generator):
    """A generator whose first layer gives a small map, which blocks enlarge to the picture."""

    def begin(
        self,
        spec: DcganNetworks | ResnetNetworks | PyramidNetworks,
        start: int,
        num_labels: int,
        deviation: float = 1.0,
    ) -> None:
        """Give it a first layer to a map of side `start`."""
        self.latent, self.activation = spec.latent, spec.activation
        self.width, self.start = spec.generator_width, start
        inputs = self.condition(num_labels, deviation)
        self.linear = nn.Linear(inputs, self.width * start**2)

    def as_map(self, x_BI: Tensor) -> Tensor:
        """Return what the first layer gave as a map, channels last in memory."""
        x = x_BI.view(-1, self.width, self.start, self.start)
        return x.contiguous(memory_format=torch.channels_last)


class DcganGenerator(MapGenerator):
    """Table 1 of the W-CGAN paper: two doublings to side 32, one more for each further doubling."""

    def __init__(self, spec: DcganNetworks, shape: PictureShape, num_labels: int) -> None:
        super().__init__()
        doublings = _doublings(shape)
        self.begin(spec, shape.size >> doublings, num_labels)
        self.norm = BatchNorm2d(self.width, eps=1e-5)
        widths = [self.width] * doublings + [self.width // 2]
        self.blocks = nn.ModuleList(
            UpBlock(inputs, outputs, spec) for inputs, outputs in pairwise(widths)
        )
        self.out = LastConv(widths[-1], shape.channels)

    def forward(self, z_BZ: Tensor, labels_B: Tensor | None = None) -> Tensor:
        """Draw B×C×S×S pictures, channels last in memory."""
        x = activate(self.linear(self.inputs(z_BZ, labels_B)), self.activation)
        x = self.norm(self.as_map(x))
        for block in self.blocks:
            x = block(x)
        return tanh_(self.out(x))


def _doublings(shape: PictureShape) -> int:
    """Return how often a generator doubles its first map."""
    return 2 + max(0, ceil(log2(shape.size / 32)))


class UpBlock(nn.Module):
    """Doubling, convolution, BatchNorm, activation."""

    def __init__(self, inputs: int, outputs: int, spec: DcganNetworks) -> None:
        super().__init__()
        self.activation = spec.activation
        self.conv = UpsampleConv(inputs, outputs)
        self.norm = BatchNorm2d(outputs, eps=spec.batchnorm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps, twice as large."""
        return activate(self.norm(self.conv(x)), self.activation)


class DcganDiscriminator(Discriminator):
    """Table 2 of the W-CGAN paper; a fifth block from side 128 up."""

    def __init__(
        self, spec: DcganNetworks, shape: PictureShape, num_labels: int, *, spectral: bool
    ) -> None:
        super().__init__()
        first = spec.discriminator_width
        widths = [first << k for k in range(5 if shape.size >= 128 else 4)]
        self.mixes = spec.discriminator_batchnorm
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
        self.condition(num_labels, inputs * side * side, spectral=spectral)

    def forward(
        self, x_BCSS: Tensor, factors_BW: Tensor | None = None, labels_B: Tensor | None = None
    ) -> Tensor:
        """Return B values."""
        factors = factors_BW.split(self.widths, dim=1) if factors_BW is not None else None
        x = x_BCSS
        for index, block in enumerate(self.blocks):
            x = block(x, factors[index] if factors else None)
        return self.judge(x.flatten(1), labels_B)


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
        """Return the maps, half as large."""
        x = activate(self.conv(x), self.activation)
        if factors_BC is not None:
            x = scale_channels(x, factors_BC)
        return self.norm(x) if self.norm is not None else x


class ResnetGenerator(MapGenerator):
    """Residual blocks from a small map to the picture, doublings as in the convolutional pair."""

    def __init__(self, spec: ResnetNetworks, shape: PictureShape, num_labels: int) -> None:
        super().__init__()
        doublings = _doublings(shape)
        self.begin(spec, shape.size >> doublings, num_labels)
        self.blocks = nn.ModuleList(UpResidual(spec) for _ in range(doublings))
        self.norm = BatchNorm2d(self.width, eps=1e-5)
        self.out = LastConv(self.width, shape.channels)

    def forward(self, z_BZ: Tensor, labels_B: Tensor | None = None) -> Tensor:
        """Draw B×C×S×S pictures, channels last in memory."""
        x = self.as_map(self.linear(self.inputs(z_BZ, labels_B)))
        for block in self.blocks:
            x = block(x)
        return tanh_(self.out(activate(self.norm(x), self.activation)))


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
        """Return the maps, twice as large."""
        y: Tensor = self.up(activate(self.norms[0](x), self.activation))
        y = self.conv(activate(self.norms[1](y), self.activation))
        y += F.interpolate(x, scale_factor=2, mode="nearest")
        return y


class ResnetDiscriminator(Discriminator):
    """Residual blocks down to a small map, summed up; no BatchNorm, no dropout."""

    def __init__(
        self, spec: ResnetNetworks, shape: PictureShape, num_labels: int, *, spectral: bool
    ) -> None:
        super().__init__()
        self.activation = spec.activation
        first = spec.discriminator_width
        widths = [shape.channels, *(first << k for k in range(_doublings(shape) + 1))]
        self.blocks = nn.ModuleList(
            DownResidual(inputs, outputs, spec, first=number == 0, spectral=spectral)
            for number, (inputs, outputs) in enumerate(pairwise(widths))
        )
        self.condition(num_labels, widths[-1], spectral=spectral)

    def forward(
        self, x_BCSS: Tensor, factors_BW: Tensor | None = None, labels_B: Tensor | None = None
    ) -> Tensor:
        """Return B values."""
        x = x_BCSS
        for block in self.blocks:
            x = block(x)
        return self.judge(activate(x, self.activation).sum((2, 3)), labels_B)


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
        """Return the maps, half as large."""
        # A picture's own values are no features yet: the first block does not bend them.
        y: Tensor = x if self.first else activate(x.clone(), self.activation)
        y = self.pool(activate(self.conv(y), self.activation))
        # Averaging before the 1×1 convolution gives the same as after it, at a quarter of the cost.
        y += self.skip(F.avg_pool2d(x, 2))
        return y


class PyramidGenerator(MapGenerator):
    """From the smallest map up, half the channels and twice the side with each block."""

    def __init__(self, spec: PyramidNetworks, shape: PictureShape, num_labels: int) -> None:
        super().__init__()
        start, doublings = _smallest(shape.size)
        # Rows of deviation 1 beside the latent drown it: a label gave one picture at first.
        self.begin(spec, start, num_labels, deviation=0.1)
        self.norm = BatchNorm2d(self.width, eps=1e-5)
        least = min(self.width, spec.least_width)
        widths = [max(least, self.width >> k) for k in range(doublings + 1)]
        self.convs = nn.ModuleList(
            UpsampleConv(*both, normalised=True) for both in pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm2d(width, eps=1e-5) for width in widths[1:])
        self.out = LastConv(widths[-1], shape.channels)

    def forward(self, z_BZ: Tensor, labels_B: Tensor | None = None) -> Tensor:
        """Draw B×C×S×S pictures, channels last in memory."""
        x = self.as_map(self.linear(self.inputs(z_BZ, labels_B)))
        x = activate(self.norm(x), self.activation)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = activate(norm(conv(x)), self.activation)
        return tanh_(self.out(x))


def _smallest(side: int) -> tuple[int, int]:
    """Return the side that a picture's can be halved to, 4 or a little more, and how often."""
    halvings = 0
    while side % 2 == 0 and side >= 8:
        side, halvings = side // 2, halvings + 1
    return side, halvings


class PyramidDiscriminator(Discriminator):
    """From the picture down, twice the channels and half the side with each block."""

    def __init__(
        self, spec: PyramidNetworks, shape: PictureShape, num_labels: int, *, spectral: bool
    ) -> None:
        super().__init__()
        side, halvings = _smallest(shape.size)
        first = spec.discriminator_width
        widths = [shape.channels, *(first << k for k in range(max(1, halvings)))]
        self.convs = nn.ModuleList(
            Conv(inputs, outputs, stride=2 if halvings else 1, spectral=spectral)
            for inputs, outputs in pairwise(widths)
        )
        self.condition(num_labels, widths[-1] * side * side, spectral=spectral)

    def forward(
        self, x_BCSS: Tensor, factors_BW: Tensor | None = None, labels_B: Tensor | None = None
    ) -> Tensor:
        """Return B values."""
        x = x_BCSS
        for conv in self.convs:
            x = activate(conv(x), Activation.LEAKY_RELU)
        return self.judge(x.flatten(1), labels_B)


class MlpGenerator(Generator):
    """Table I of the cellular paper: two hidden layers, tanh at the end."""

    def __init__(self, spec: MlpNetworks, shape: PictureShape, num_labels: int) -> None:
        super().__init__()
        self.latent = spec.latent
        self.shape = shape
        pixels, hidden = shape.channels * shape.size**2, spec.hidden
        self.body = Perceptron([self.condition(num_labels), hidden, hidden, pixels], spec)

    def forward(self, z_BZ: Tensor, labels_B: Tensor | None = None) -> Tensor:
        """Draw B×C×S×S pictures."""
        x = tanh_(self.body(self.inputs(z_BZ, labels_B)))
        return x.view(-1, self.shape.channels, self.shape.size, self.shape.size)

    @cached_property
    def chain(self) -> ManualMLP | None:
        """Its passes written out; None where it is told labels."""
        if self.embed is not None:
            return None
        layers = self.body.dense()
        hidden = [self.body.activation] * (len(layers) - 1)
        return manual_mlp(layers, [*hidden, Activation.TANH])


class MlpDiscriminator(Discriminator):
    """Table I of the cellular paper: two hidden layers and a value."""

    def __init__(
        self, spec: MlpNetworks, shape: PictureShape, num_labels: int, *, spectral: bool
    ) -> None:
        super().__init__()
        self.activation = spec.activation
        widths = [shape.channels * shape.size**2, spec.hidden, spec.hidden]
        self.body = Perceptron(widths, spec, spectral=spectral)
        self.condition(num_labels, spec.hidden, spectral=spectral)

    def forward(
        self, x_BCSS: Tensor, factors_BW: Tensor | None = None, labels_B: Tensor | None = None
    ) -> Tensor:
        """Return B values."""
        features_BW = activate(self.body(x_BCSS.flatten(1)), self.activation)
        return self.judge(features_BW, labels_B)

    @cached_property
    def chain(self) -> ManualMLP | None:
        """Its passes written out; None where it is told labels or has spectral norms."""
        if self.embed is not None:
            return None
        hidden = self.body.dense()
        activations = [self.activation] * len(hidden)
        return manual_mlp([*hidden, self.linear], [*activations, None])


class Perceptron(nn.Module):
    """Linear layers of these widths, with the activation between them."""

    def __init__(self, widths: list[int], spec: MlpNetworks, *, spectral: bool = False) -> None:
        super().__init__()
        self.activation = spec.activation
        self.layers = nn.ModuleList(
            Dense(before, after, spectral=spectral) for before, after in pairwise(widths)
        )

    def dense(self) -> list[Dense]:
        """Return the layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, Dense)]

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer gives."""
        *hidden, last = self.layers
        for layer in hidden:
            x = activate(layer(x), self.activation)
        y: Tensor = last(x)
        return y


def with_label(tensors: Mapping[str, Tensor], label: int) -> dict[str, Tensor]:
    """Return a conditional generator's tensors with one label built in: an ordinary generator's.

    The label's row meets the first layer as a constant, so it is a part of that layer's bias.
    """
    baked = dict(tensors)
    row = baked.pop("embed.weight")[label]
    first = "linear" if "linear.weight" in baked else "body.layers.0"
    weight = baked[f"{first}.weight"]
    latent = weight.shape[1] - len(row)
    baked[f"{first}.weight"] = weight[:, :latent].contiguous()
    baked[f"{first}.bias"] = baked[f"{first}.bias"] + weight[:, latent:] @ row
    return baked


@torch.no_grad()
def initialise(network: nn.Module, rng: np.random.Generator) -> None:
    """Fill every parameter and buffer, by torch's own default distributions, from a stream.

    Somebody else's network is filled as its author does it.
    """
    if isinstance(network, Generator | Discriminator) and network.own:
        from manege.models.own import OwnDiscriminator, OwnGenerator, initialise_own

        assert isinstance(network, OwnGenerator | OwnDiscriminator)
        initialise_own(network, rng)
        return
    for module in network.modules():
        if isinstance(module, BatchNorm2d):
            module.weight.fill_(1)
            module.bias.zero_()
            module.running_mean.zero_()
            module.running_var.fill_(1)
        elif isinstance(module, Embed):
            drawn = rng.standard_normal(tuple(module.weight.shape), dtype=np.float32)
            module.weight.copy_(torch.from_numpy(drawn * np.float32(module.deviation)))
        elif isinstance(module, nn.Linear | nn.Conv2d | UpsampleConv):
            bound = 1 / sqrt(module.weight[0].numel())
            for parameter in (module.weight, module.bias):
                if parameter is not None:
                    drawn = rng.random(tuple(parameter.shape), dtype=np.float32)
                    parameter.copy_(torch.from_numpy((2 * drawn - 1) * np.float32(bound)))
        if isinstance(module, SpectralLayer) and module.u is not None:
            drawn = rng.standard_normal(len(module.u), dtype=np.float32)
            module.u.copy_(torch.from_numpy(drawn / np.linalg.norm(drawn)))
            for _ in range(_POWER_ITERATIONS):
                module.power_iteration_()
