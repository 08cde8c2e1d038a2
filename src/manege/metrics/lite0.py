"""EfficientNet-Lite0 for scores: map pictures of any side, at one input size, to 128 numbers.

A discriminator may be trained on this network too (`critic: {kind: features}`). It uses maps
of the middle stages at the pictures' own size; scores use what comes after the last stage, at
another size. A run does not keep the published weights, only a description.

Shape legend: B pictures, C channels, S side, F pooled features, D dimensions.
"""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor
from torch.nn import functional as F

from manege.config import stream
from manege.metrics.lite0_weights import FeatureWeights
from manege.models.lite0 import DIMENSIONS as POOLED

SIDE = 64
"""The side that pictures are resized to."""
DIMENSIONS = 128
"""The length that the 1280 pooled features are projected to: covariances of 1280 can neither be
estimated from some hundred pictures nor be kept round by round."""
REVISION = 1
"""Change it whenever the arithmetic below changes: it is part of the digest."""


class Lite0Features:
    """The network: it returns projected features of the last layer, and logits of 1000 classes."""

    CHUNK = 64
    """Pictures in a batch, the same everywhere: the bits of a matrix product depend on it."""
    dimensions = DIMENSIONS

    def __init__(self, weights: FeatureWeights) -> None:
        self._lite0 = weights.network
        self.weights_sha256 = weights.sha256
        drawn_FD = stream(0, cell="", purpose="lite0 projection").standard_normal(
            (POOLED, DIMENSIONS)
        )
        # Columns of length 1 at right angles: lengths shrink by √(D/F) on average, and by as much
        # the kernel's x·y, which is divided by D instead of F.
        projection_FD, _ = torch.linalg.qr(torch.from_numpy(drawn_FD))
        self._projection_FD: Tensor = projection_FD.float()

    @property
    def sha256(self) -> str:
        """Return a digest of all that determines the features."""
        told = [self.weights_sha256, SIDE, DIMENSIONS, REVISION]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def features(self, x_BCSS: Tensor) -> Tensor:
        """Return the projected features B×D."""
        return torch.mm(self._pooled(x_BCSS), self._projection_FD)

    def logits(self, features_BD: Tensor) -> Tensor | None:
        """Return None: projected features tell no classes; see `both`."""
        return None

    def both(self, x_BCSS: Tensor) -> Tensor:
        """Return B×(D + 1000): the features, and the logits of ImageNet's classes."""
        pooled_BF = self._pooled(x_BCSS)
        return torch.cat([pooled_BF @ self._projection_FD, self._lite0.logits(pooled_BF)], 1)

    def _pooled(self, x_BCSS: Tensor) -> Tensor:
        """Return the pooled features B×F of the resized pictures."""
        if x_BCSS.shape[-1] != SIDE:
            # Averaged over where pixels are left out: else what lies between them would not count.
            x_BCSS = F.interpolate(
                x_BCSS, (SIDE, SIDE), mode="bilinear", antialias=x_BCSS.shape[-1] > SIDE
            )
        return self._lite0.features(x_BCSS)
