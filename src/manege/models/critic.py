"""A discriminator that sees features: small heads on the maps of a frozen network.

Projected GAN (Sauer et al. 2021). What the frozen network makes of a picture can be kept, and
serves every discriminator there is: only heads differ and only heads learn.

Shape legend: B pictures, C channels, S side, F floats that are seen of a picture, H heads.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manege.config import Activation, stream
from manege.models.layers import Conv, Dense, Embed, activate
from manege.models.lite0 import Lite0, sides
from manege.models.networks import Discriminator, PictureShape

SMALLEST_FED = 24
"""Smaller pictures are enlarged by a whole factor to at least this side before they are seen."""
_LAST_SIDE = 4
"""Heads halve maps until they are this small."""
COLOUR_SIDE = 4
"""The side that pictures are averaged to for the head that sees their colours alone."""
_COLOURS = 0
"""Stands for the colours where a stage is named."""


def fed_side(side: int) -> int:
    """Return the side at which pictures go into the frozen network: a multiple of their own."""
    return side * max(1, -(-SMALLEST_FED // side))


class FrozenFeatures:
    """The maps of some stages of a frozen network, and colours, as a row of numbers a picture."""

    def __init__(
        self,
        network: Lite0,
        stages: tuple[int, ...],
        shape: PictureShape,
        width: int,
        colour: float = 0.0,
        colour_head: float = 0.0,
    ) -> None:
        """Take from pictures of a shape the maps of these stages, each mixed into few channels.

        Args:
            network: the frozen one.
            stages: which maps, named by their numbers of channels.
            shape: of the pictures.
            width: channels that each map is mixed into.
            colour: the pictures themselves, averaged to the first map's side and times this, are
                further channels of that map; 0 leaves them out.
            colour_head: the pictures themselves, averaged to 4×4 and times this, are one more map;
                0 leaves it out.
        """
        self.network, self.stages, self.shape, self.width = network, stages, shape, width
        self.colour, self.colour_head = colour, colour_head
        self._side = fed_side(shape.size)
        self.sides = tuple(sides(self._side)[stage] for stage in stages)
        channels = dict(zip(stages, stages, strict=True))
        channels[stages[0]] += shape.channels if colour else 0
        if colour_head:
            # A map of their own: mixed in with many others, a tint went unnoticed for too long.
            channels[_COLOURS] = shape.channels
            self.sides = (*self.sides, COLOUR_SIDE)
        self._floats = [
            one * side**2 for one, side in zip(channels.values(), self.sides, strict=True)
        ]
        self._mixing_CW = [
            mixing(stage, one, width).to(network.device) for stage, one in channels.items()
        ]

    @property
    def floats(self) -> int:
        """How many numbers are seen of a picture."""
        return sum(self._floats)

    def to(self, device: torch.device) -> FrozenFeatures:
        """Return the same features on another device; itself where it is there already."""
        if device == self.network.device:
            return self
        network = self.network.to(device)
        seen = self.stages, self.shape, self.width, self.colour, self.colour_head
        return FrozenFeatures(network, *seen)

    def of(self, x_BCSS: Tensor) -> Tensor:
        """Return what is seen of pictures, B×F; it can be differentiated once."""
        shown = x_BCSS
        if self._side != self.shape.size:
            shown = F.interpolate(x_BCSS, size=(self._side, self._side), mode="nearest")
        maps = [*self.network.maps(shown, self.stages)]
        if self.colour:
            colours = F.adaptive_avg_pool2d(shown, self.sides[0]) * self.colour
            maps[0] = torch.cat([maps[0], colours], 1)
        if self.colour_head:
            maps.append(F.adaptive_avg_pool2d(shown, COLOUR_SIDE) * self.colour_head)
        return torch.cat([one.permute(0, 2, 3, 1).flatten(1) for one in maps], 1)

    def maps(self, seen_BF: Tensor) -> list[Tensor]:
        """Return each map with its channels mixed, channels last in memory."""
        parts = zip(seen_BF.split(self._floats, 1), self.sides, self._mixing_CW, strict=True)
        return [
            (part.reshape(-1, len(mixing_CW)) @ mixing_CW)
            .view(-1, side, side, self.width)
            .permute(0, 3, 1, 2)
            for part, side, mixing_CW in parts
        ]


def mixing(stage: int, channels: int, width: int) -> Tensor:
    """Return the fixed random weights that mix a map's channels, the same in every run.

    So no head can go by a few channels that happen to tell real pictures from generated ones.
    """
    rng = stream(0, cell="", purpose="feature mixing", step=stage)
    drawn = rng.standard_normal((channels, width), dtype=np.float32)
    return torch.from_numpy(drawn / np.float32(sqrt(channels)))


def build_feature_discriminator(
    features: FrozenFeatures, num_labels: int = 0, *, spectral: bool = False
) -> FeatureDiscriminator:
    """Build a discriminator without storage, with heads on these features."""
    with torch.device("meta"):
        return FeatureDiscriminator(features, num_labels, spectral=spectral)


class FeatureDiscriminator(Discriminator):
    """A head for each map; all their values together are its logits, B×H."""

    sees_features = True

    def __init__(self, features: FrozenFeatures, num_labels: int, *, spectral: bool) -> None:
        super().__init__()
        self.features = features  # No module: nothing of it is in the record.
        self.heads = nn.ModuleList(
            FeatureHead(features.width, side, num_labels, spectral=spectral)
            for side in features.sides
        )

    def observe(self, x_BCSS: Tensor) -> Tensor:
        """Return what the frozen network makes of the pictures, B×F."""
        return self.features.of(x_BCSS)

    def forward(
        self, seen_BF: Tensor, factors_BW: Tensor | None = None, labels_B: Tensor | None = None
    ) -> Tensor:
        """Return a value of each head for each picture, B×H."""
        maps = self.features.maps(seen_BF)
        values = [head(one, labels_B) for head, one in zip(self.heads, maps, strict=True)]
        return torch.stack(values, 1)


class FeatureHead(nn.Module):
    """Convolutions from one map to a value for each picture."""

    def __init__(self, width: int, side: int, num_labels: int, *, spectral: bool) -> None:
        super().__init__()
        convs = []
        while side > _LAST_SIDE:
            convs.append(Conv(width, width, stride=2, spectral=spectral))
            side = (side + 1) // 2
        convs.append(Conv(width, width, spectral=spectral))
        self.convs = nn.ModuleList(convs)
        self.linear = Dense(width * side * side, 1, spectral=spectral)
        # Rows that begin at 0, without a norm: a normalised row is a whole step from the start,
        # and every latent of a label then gave the same picture.
        self.embed = Embed(num_labels, width, deviation=0.0) if num_labels else None

    def forward(self, x_BCSS: Tensor, labels_B: Tensor | None) -> Tensor:
        """Return B values."""
        x = x_BCSS
        for conv in self.convs:
            x = activate(conv(x), Activation.LEAKY_RELU)
        value_B: Tensor = self.linear(x.permute(0, 2, 3, 1).flatten(1)).squeeze(1)
        if self.embed is None:
            return value_B
        assert labels_B is not None, "a conditional discriminator needs labels"
        projected_B: Tensor = (self.embed(labels_B) * x.mean((2, 3))).sum(1)
        return value_B + projected_B
