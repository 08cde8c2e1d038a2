"""The networks that scores use: they map pictures in [-1, 1] to feature rows.

Each has `features(x_BCSS) → B×D` and `logits(features_BD) → B×K`, or None where it knows no labels.

Shape legend: B pictures, C channels, S side, D dimensions, K labels.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manege.models import PictureShape, initialise
from manege.models.layers import BatchNorm2d

LARGEST_SIDE = 32
"""Larger pictures are averaged down to this side first: the cost stays that of small ones."""


def _width(channels: int) -> int:
    return 16 if channels == 1 else 32


def feature_dimensions(channels: int) -> int:
    """Return the length of a :class:`FeatureNetwork`'s feature rows."""
    return 4 * _width(channels)


class FeatureNetwork(nn.Module):
    """A network of four 3×3 convolutions with BatchNorm, pooled between, averaged at the end."""

    def __init__(self, channels: int, num_labels: int) -> None:
        super().__init__()
        width = _width(channels)
        widths = [channels, width, 2 * width, 4 * width, 4 * width]
        self.dimensions = feature_dimensions(channels)
        self.convs = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            for inputs, outputs in pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm2d(outputs, eps=1e-5) for outputs in widths[1:])
        self.head = nn.Linear(self.dimensions, num_labels) if num_labels else None

    def features(self, x_BCSS: Tensor) -> Tensor:
        """Return the features B×D."""
        x = x_BCSS
        if x.shape[-1] > LARGEST_SIDE:
            x = F.adaptive_avg_pool2d(x, LARGEST_SIDE)
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            if number and x.shape[-1] > 1:
                x = F.max_pool2d(x, 2)
            x = F.relu_(norm(conv(x)))
        return x.mean((2, 3))

    def logits(self, features_BD: Tensor) -> Tensor | None:
        """Return the labels' logits B×K, or None where the network knows no labels."""
        return None if self.head is None else self.head(features_BD)


class MnistLogits(nn.Module):
    """The MNIST classifier of Lipizzaner; its ten logits are the features."""

    SHAPE = PictureShape(size=28, channels=1)
    dimensions = 10

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def features(self, x_BCSS: Tensor) -> Tensor:
        """Return the ten logits B×10."""
        x = F.relu_(F.max_pool2d(self.conv1(x_BCSS), 2))
        x = F.relu_(F.max_pool2d(self.conv2(x), 2))
        logits: Tensor = self.fc2(F.relu_(self.fc1(x.flatten(1))))
        return logits

    def logits(self, features_BD: Tensor) -> Tensor | None:
        """Return the features, which are logits."""
        return features_BD


class Points(nn.Module):
    """The network of the toys: it returns points as they are."""

    SHAPE = PictureShape(size=1, channels=2)
    dimensions = 2

    def features(self, x_BCSS: Tensor) -> Tensor:
        """Return the coordinates B×2."""
        return x_BCSS.flatten(1)

    def logits(self, features_BD: Tensor) -> Tensor | None:
        """Return None: a point's mode is told by its distance."""
        return None


Network = FeatureNetwork | MnistLogits | Points
Built = TypeVar("Built", FeatureNetwork, MnistLogits)


def bare(kind: type[Built], *arguments: int) -> Built:
    """Build a network with uninitialised tensors; torch's own way would draw numbers for them."""
    with torch.device("meta"):
        network = kind(*arguments)
    return network.to_empty(device="cpu")


@torch.no_grad()
def initialise_random(network: FeatureNetwork, rng: np.random.Generator) -> None:
    """Draw weights for a network that stays untrained, so that no layer shrinks its input."""
    initialise(network, rng)
    for conv in network.convs:
        assert isinstance(conv, nn.Conv2d)
        drawn = rng.standard_normal(tuple(conv.weight.shape), dtype=np.float32)
        scale = sqrt(2 / conv.weight[0].numel())
        conv.weight.copy_(torch.from_numpy(drawn * np.float32(scale)))
