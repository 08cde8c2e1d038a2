"""Turn right and wrong answers into intervals and one plain sentence.

Two things vary: the seed of a training, and which pictures happened to be held out. Both are in
every interval: pictures are resampled within each class, and seeds, which are few, enter by
Student's distribution of the mean. Arms are compared seed by seed and picture by picture.

Shape legend: S seeds, N test pictures, K classes, R draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from manege.config import stream
from manege.metrics.estimate import Estimate
from manege.verdict.arms import WITH, WITHOUT, Arm
from manege.verdict.copying import Copies

DRAWS = 10_000

_LEVEL = 0.05

_ANSWERS = {0.0: 1.0, 1.0: 1.0}
_PAIRS = {-1.0: 0.5, 0.0: 1.0, 1.0: 0.5}
"""Half a picture of every pair of answers two arms may give, for one arm and for their difference:
twelve pictures that were all right do not prove that the next one will be (Agresti & Min 2005)."""


class Recommendation(StrEnum):
    """The outcome of a trial in a word."""

    USE = "use"
    USE_FOR = "use-for-classes"
    DONT = "dont"
    COPIES = "copies"
    BALANCED = "nothing-to-balance"


@dataclass(frozen=True)
class Resampled:
    """Each class's mean over pictures and seeds, and draws of how it might have come out."""

    value_K: np.ndarray
    draws_RK: np.ndarray

    @property
    def mean(self) -> Estimate:
        """Return the mean over classes, each with equal weight."""
        return interval(float(self.value_K.mean()), self.draws_RK.mean(1))

    def weighted(self, share_K: np.ndarray) -> Estimate:
        """Return the mean over classes weighted by these shares."""
        return interval(float(self.value_K @ share_K), self.draws_RK @ share_K)

    def of_class(self, number: int) -> Estimate:
        """Return the mean of one class."""
        return interval(float(self.value_K[number]), self.draws_RK[:, number])

    def chance(self, number: int) -> float:
        """Return the two-sided p-value of a class's mean being 0, for one that lies above 0."""
        at_most_0 = int((self.draws_RK[:, number] <= 0).sum())
        return min(1.0, 2 * (1 + at_most_0) / (1 + len(self.draws_RK)))


def answered(right_SN: np.ndarray, targets_N: np.ndarray, num_labels: int) -> Resampled:
    """Resample the answers of one arm, 1 where they are right."""
    return resampled(right_SN.astype(float), targets_N, num_labels, _ANSWERS)


def resampled(
    values_SN: np.ndarray,
    targets_N: np.ndarray,
    num_labels: int,
    beside: Mapping[float, float] = _PAIRS,
) -> Resampled:
    """Draw each class's mean anew; S must be at least 2, and every class needs a picture.

    The share of a seed in a draw is Student's, scaled by the seeds' own spread; the pictures' is
    the bootstrap of their means over seeds, `beside` thrown in as so many pictures of a value.
    """
    seeds = len(values_SN)
    rng = stream(0, cell="", purpose="verdict interval")
    normal_RS = rng.standard_normal((DRAWS, seeds))
    normal_RS *= np.sqrt((seeds - 1) / rng.chisquare(seeds - 1, (DRAWS, 1)))
    value_K = np.empty(num_labels)
    draws_RK = np.empty((DRAWS, num_labels))
    for label in range(num_labels):
        own_SN = values_SN[:, targets_N == label]
        by_seed_S = own_SN.mean(1)
        value_K[label] = by_seed_S.mean()
        # Few seeds make few different means: counting them is the same as drawing pictures.
        means, counts = np.unique(own_SN.mean(0).round(9), return_counts=True)
        means = np.concatenate([means, list(beside)])
        share = np.concatenate([counts, list(beside.values())])
        share /= share.sum()
        drawn_RG = rng.multinomial(counts.sum(), share, DRAWS)
        by_pictures_R = drawn_RG @ means / counts.sum() - share @ means
        spread_S = (by_seed_S - by_seed_S.mean()) / np.sqrt(seeds * (seeds - 1))
        draws_RK[:, label] = value_K[label] + by_pictures_R + normal_RS @ spread_S
    return Resampled(value_K, draws_RK)


def interval(value: float, draws_R: np.ndarray) -> Estimate:
    """Return the value with the middle 95 % of its draws, widened to the value."""
    low, high = np.quantile(draws_R, (0.025, 0.975))
    return Estimate(value, min(value, float(low)), max(value, float(high)))


def holm(chances: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names that are significant at 5 % when all are tested together (Holm 1979)."""
    found: list[str] = []
    for rank, name in enumerate(sorted(chances, key=lambda one: chances[one])):
        if chances[name] * (len(chances) - rank) >= _LEVEL:
            break
        found.append(name)
    return tuple(name for name in chances if name in found)


@dataclass(frozen=True)
class TrialResults:
    """The right (1) and wrong (0) answers of every arm on the test pictures, S×N."""

    right: Mapping[Arm, np.ndarray]
    targets: np.ndarray
    labels: tuple[str, ...]

    def recall(self, arm: Arm) -> Resampled:
        """Return the recall of one arm in each class."""
        return answered(self.right[arm], self.targets, len(self.labels))

    def difference(self, arm: Arm, other: Arm) -> Resampled:
        """Return how much more one arm gets right than another, in each class."""
        gap_SN = self.right[arm].astype(float) - self.right[other]
        return resampled(gap_SN, self.targets, len(self.labels))

    def best_without(self) -> Arm:
        """Return the arm without synthetic pictures that does best in this very test."""
        return max(WITHOUT, key=lambda arm: float(self.recall(arm).value_K.mean()))


@dataclass(frozen=True)
class Finding:
    """The result of comparing an arm with the arms without synthetic pictures."""

    arm: Arm
    over: Arm
    gain: Estimate
    gains: Mapping[str, Estimate]
    """For each class, the gain over the arm without synthetic pictures that is best at it."""
    helped: tuple[str, ...]
    """Classes whose gain is significant, all tested together."""


def compare(trial: TrialResults, arm: Arm, candidates: Sequence[str]) -> Finding:
    """Compare an arm with synthetic pictures with the best of those without.

    Args:
        trial: all answers.
        arm: chosen without a look at the test.
        candidates: the classes that synthetic pictures were added to.
    """
    over = trial.best_without()
    against = {other: trial.difference(arm, other) for other in WITHOUT}
    gains, chances = {}, {}
    for number, label in enumerate(trial.labels):
        # It must win against each of them: the hardest counts.
        hardest = min(WITHOUT, key=lambda other: float(against[other].value_K[number]))
        gains[label] = against[hardest].of_class(number)
        if label in candidates:
            chances[label] = max(one.chance(number) for one in against.values())
    return Finding(arm, over, against[over].mean, gains, holm(chances))


def chosen_arm(calibrated: Mapping[Arm, float]) -> Arm:
    """Choose the arm with synthetic pictures to test: by mean recall on calibration pictures."""
    # Where both are alike, or nothing calibrates, the augmented one.
    return max(reversed(WITH), key=lambda arm: calibrated.get(arm, 0.0))


def decide(finding: Finding, copies: Copies) -> tuple[Recommendation, tuple[str, ...], str]:
    """Return the outcome, the classes it holds for, and the sentence that says it."""
    if copies.copying:
        return Recommendation.COPIES, (), _copies_sentence(copies.share)
    gain = (
        f"{_points(finding.gain)} of mean recall over the best arm without synthetic pictures "
        f"({finding.over.words})"
    )
    what = f"with synthetic pictures ({finding.arm.words}) the classifier gains {gain}"
    gains, copied = finding.gain.low > 0, ", ".join(copies.copied)
    if gains and not copied:
        return Recommendation.USE, (), f"Use it: {what}."
    helped = tuple(label for label in finding.helped if label not in copies.copied)
    if helped and finding.gain.high >= 0:
        told = "; ".join(f"{label} {_points(finding.gains[label])}" for label in helped)
        parts = [f"it copies {copied}"] if copied else []
        parts += [] if gains else [f"over all classes it is not shown to help, {gain}"]
        return (
            Recommendation.USE_FOR,
            helped,
            f"Use it for {', '.join(helped)}: there recall rises over every arm without synthetic "
            f"pictures ({told}); {'; '.join(parts)}.",
        )
    if gains:
        # Nobody can say what would be left of the gain without the copies.
        return (
            Recommendation.COPIES,
            (),
            f"Don't: it copies {copied}, and no other class is shown to gain; {what}.",
        )
    shown = "it does harm" if finding.gain.high < 0 else "it is not shown to help"
    return Recommendation.DONT, (), f"Don't: {shown}; {what}."


def balanced_sentence(smallest: int, largest: int) -> str:
    """Return the sentence for data that are balanced already."""
    return (
        f"There is nothing to balance: the smallest class has {smallest:,} training pictures, the "
        f"largest {largest:,}."
    )


def _copies_sentence(share: Estimate) -> str:
    return (
        f"Don't: it copies; {share.value:.0%} [{share.low:.0%}, {share.high:.0%}] of its pictures "
        "are nearer to a training picture than 95 % of held-out pictures are."
    )


def _points(gain: Estimate) -> str:
    """Return the gain and its interval as text, in percentage points."""
    return f"{100 * gain.value:+.1f} points [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
