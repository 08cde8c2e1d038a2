"""Score a mixture of generators from moments of each member, without drawing again.

Each class satisfies `cell.mixture.MixtureScorer`: moments of a member's pictures once, then the
score of any weights in a millisecond. Smaller is better. One thread makes scores the same
everywhere.

Both scores come out worse from few pictures than from many. Weights spread over all members use
the most pictures and so gain from it: take at least 1,000 of each member.

Shape legend: S members in `weights_S`; pictures are N×S×S×C, S their side, C channels; D
dimensions, R rank, V entries of a triangle, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import special

from manege import device
from manege.errors import ConfigError
from manege.metrics.estimate import Estimate, check_features, normal
from manege.metrics.frechet import frechet, jackknife_variance, moments, root
from manege.metrics.spaces import LITE0, Space

MOST_BY_LITE0 = 2_000
"""Pictures of a final mixture that Lite0 scores, which takes some ten times as long as others.
Members take turns, so that the first represent all."""

_BLOCKS = 20
"""Number of blocks of a jackknife."""

_OFF_ONE = 1e-9
"""Tolerance of the sum of weights around 1."""


class FrechetMixture:
    """The Fréchet distance in a space between a mixture and reference features.

    A member's moments are the count n, the mean m and the covariance C with divisor n - 1. The
    mixture has the mean m̄ = Σ wᵢmᵢ and the covariance
    (Σ wᵢ(1 - 1/nᵢ)Cᵢ + Σ wᵢ(mᵢ - m̄)(mᵢ - m̄)ᵀ) / (1 - Σ wᵢ²/nᵢ).
    The numerator is Σ wᵢSᵢ - m̄m̄ᵀ, S the second moment, written so that nothing cancels however
    far from 0 the features lie. The divisor is n - 1 for weighted rows: one member alone, and
    members weighted by their counts, score as :func:`frechet_distance` of all their rows.
    """

    def __init__(self, space: Space, reference_ND: np.ndarray) -> None:
        check_features(reference_ND, at_least=4)
        dimensions = space.dimensions
        if reference_ND.shape[1] != dimensions:
            raise ValueError(
                f"a reference of {reference_ND.shape[1]} dimensions; expected the {dimensions} of "
                f"{space.name}"
            )
        self.space = space
        self._most = MOST_BY_LITE0 if space.kind == LITE0 else None
        self._reference_ND = reference_ND
        with device.threads(1):
            reference = moments(reference_ND)
            self._root_DR = root(reference)
        self._mean_D = reference.mean_D
        self._trace = float(reference.covariance_DD.trace())
        self._triangle = np.triu_indices(dimensions)
        places_DD = np.empty((dimensions, dimensions), dtype=np.int64)
        places_DD[self._triangle] = places_DD.T[self._triangle] = np.arange(len(self._triangle[0]))
        self._places_DD = torch.from_numpy(places_DD)

    def moments(self, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Return count, mean and the covariance's upper triangle, of at least two pictures."""
        features_ND = self.space.features(pictures_NSSC)
        with device.threads(1):
            own = moments(features_ND)
        return np.concatenate([[own.count], own.mean_D, own.covariance_DD[self._triangle]])

    def score(self, weights_S: np.ndarray, moments: Sequence[np.ndarray]) -> float:
        """Return the mixture's distance to the reference, never negative."""
        dimensions = self.space.dimensions
        known = _stacked(weights_S, moments, 1 + dimensions + len(self._triangle[0]))
        count_S, mean_SD, triangle_SV = np.split(known, [1, 1 + dimensions], axis=1)
        if count_S.min() < 2:
            raise ValueError(f"moments of {count_S.min()} pictures; expected at least 2")
        return self._distance(weights_S, count_S[:, 0], mean_SD, triangle_SV)

    def measure(self, pictures_NSSC: np.ndarray) -> Estimate:
        """Return the distance of pictures that the mixture drew, in the order it drew them."""
        features_ND = self.space.features(pictures_NSSC[: self._most])
        check_features(features_ND, at_least=4)
        blocks = min(_BLOCKS, len(features_ND) // 2)
        with device.threads(1):
            return frechet(features_ND[_runs(len(features_ND), blocks)], self._reference_ND, blocks)

    def _distance(
        self,
        weights_S: np.ndarray,
        count_S: np.ndarray,
        mean_SD: np.ndarray,
        triangle_SV: np.ndarray,
    ) -> float:
        # Vectors by numpy, which is quicker with few numbers; matrices by torch, which keeps to
        # its one thread.
        rows_S = weights_S / count_S
        divisor = 1 - (weights_S * rows_S).sum()
        mean_D = (weights_S[:, None] * mean_SD).sum(axis=0)
        apart_SD = torch.from_numpy(np.sqrt(weights_S / divisor)[:, None] * (mean_SD - mean_D))
        within_S = torch.from_numpy((weights_S - rows_S) / divisor)
        with device.threads(1):
            within_V = within_S @ torch.from_numpy(triangle_SV)
            covariance_DD = torch.addmm(within_V.take(self._places_DD), apart_SD.T, apart_SD)
            # The eigenvalues of Σr Σ, real whatever the rounding.
            found_RR = self._root_DR.T @ covariance_DD @ self._root_DR
            values_R = torch.linalg.eigvalsh(found_RR).numpy()
        # Rounding makes of 0 what must not be taken the root of: see frechet.root.
        dust = np.abs(values_R).max(initial=0.0) * len(values_R) * np.finfo(np.float64).eps
        shared = np.sqrt(values_R[values_R > dust]).sum()
        apart = np.square(mean_D - self._mean_D).sum()
        traces = covariance_DD.numpy().trace() + self._trace
        return max(0.0, float(apart + traces - 2 * shared))


class InceptionMixture:
    """Minus the inception score (Salimans et al. 2016) of a mixture, by the space's classifier.

    With a member's mean label probabilities p̄ and mean entropy h it is
    exp(H(Σ wᵢp̄ᵢ) - Σ wᵢhᵢ), from 1 to the number of labels K, in nats inside.
    """

    def __init__(self, space: Space) -> None:
        if not space.labels:
            raise ConfigError(
                f"an inception score needs a classifier, and the feature network {space.name} "
                "knows no labels; use data with labels, or the Fréchet distance"
            )
        self.space = space

    def moments(self, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Return the mean probability of each label and the mean entropy; one picture is enough."""
        mean: np.ndarray = self._known(pictures_NSSC, at_least=1).mean(axis=0)
        return mean

    def score(self, weights_S: np.ndarray, moments: Sequence[np.ndarray]) -> float:
        """Return minus the mixture's inception score."""
        return self._value(weights_S @ _stacked(weights_S, moments, len(self.space.labels) + 1))

    def measure(self, pictures_NSSC: np.ndarray) -> Estimate:
        """Return minus the inception score of pictures the mixture drew, in the order it drew them.

        It is that of all pictures together, not the mean over parts, with a jackknife interval.
        """
        known = self._known(pictures_NSSC, at_least=4)
        parts = np.array_split(known, min(_BLOCKS, len(known) // 2))
        sums = np.stack([part.sum(axis=0) for part in parts])
        # The sum of the others: taking one from the whole could leave less than nothing.
        without_each = [
            self._value(np.delete(sums, block, axis=0).sum(axis=0) / (len(known) - len(part)))
            for block, part in enumerate(parts)
        ]
        return normal(
            self._value(sums.sum(axis=0) / len(known)),
            jackknife_variance(without_each),
            lowest=-float(len(self.space.labels)),
            highest=-1.0,
        )

    def _known(self, pictures_NSSC: np.ndarray, *, at_least: int) -> np.ndarray:
        """Return N×(K + 1): each picture's label probabilities and their entropy."""
        features_ND = self.space.features(pictures_NSSC)
        check_features(features_ND, at_least=at_least)
        with device.threads(1), torch.no_grad():
            logits_NK = self.space.network.logits(torch.from_numpy(features_ND))
            assert logits_NK is not None
            log_NK = logits_NK.double().log_softmax(1)
            probability_NK = log_NK.exp()
            entropy_N1 = -(probability_NK * log_NK).sum(1, keepdim=True)
            known: np.ndarray = torch.cat([probability_NK, entropy_N1], 1).numpy()
        return known

    def _value(self, mean: np.ndarray) -> float:
        """Return minus the score, from mean probabilities and mean entropy, within its range."""
        information = float(special.entr(torch.from_numpy(mean[:-1])).sum() - mean[-1])
        return -float(np.clip(np.exp(information), 1.0, len(self.space.labels)))


def _stacked(weights_S: np.ndarray, moments: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Return the members' moments as rows; raise ValueError for invalid weights or moments."""
    if weights_S.shape != (len(moments),) or weights_S.dtype != np.float64 or not moments:
        raise ValueError(
            f"weights of shape {weights_S.shape} and type {weights_S.dtype} for {len(moments)} "
            "members; expected a float64 for each, and one member at least"
        )
    # Written so that NaN fails too.
    if not (weights_S.min() >= 0 and abs(weights_S.sum() - 1) <= _OFF_ONE):
        raise ValueError(f"weights {weights_S}; expected none below 0, and a sum of 1")
    shapes = sorted({own.shape for own in moments})
    if shapes != [(width,)]:
        raise ValueError(f"moments of shapes {shapes}; expected {width} numbers of each member")
    known = np.stack(moments, dtype=np.float64)
    if not np.isfinite(known).all():
        raise ValueError("moments that are not finite; expected numbers")
    return known


def _runs(count: int, blocks: int) -> np.ndarray:
    """Return an order of rows in which the interleaved blocks of :func:`frechet` are runs of rows.

    A mixture's members take turns. Rows at equal steps may all be of one member, and leaving them
    out would leave out that member; in a run of rows every member has its share.
    """
    order = np.empty(count, dtype=np.int64)
    order[np.argsort(np.arange(count) % blocks, kind="stable")] = np.arange(count)
    return order
