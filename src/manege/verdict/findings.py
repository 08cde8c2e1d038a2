"""Turn the classifiers' answers into one tree: every arm's numbers, scores and the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from manege.metrics.estimate import Estimate
from manege.verdict.arms import WITH, Arm, PicturePool
from manege.verdict.case import TrialData
from manege.verdict.copying import Copies
from manege.verdict.judging import (
    Recommendation,
    Resampled,
    TrialResults,
    answered,
    balanced_sentence,
    chosen_arm,
    compare,
    decide,
)
from manege.verdict.kept import Answers

MOST_LOOKED_AT = 1_000
"""Synthetic pictures of a class that a classifier of real ones labels, or that are checked for
copies where none would be added."""


def targets_of(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the number of each picture's label, class after class."""
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def reversed_of(case: TrialData, pool: PicturePool) -> tuple[np.ndarray, np.ndarray]:
    """Return synthetic pictures for a classifier of real ones, and their labels' numbers."""
    each = min(case.largest, MOST_LOOKED_AT)
    start = sum(pool.real)
    rows = []
    for count in pool.synthetic:
        # A class that the gate left short is shown again from its start.
        rows.append(start + np.arange(each) % count)
        start += count
    return pool.pictures[np.concatenate(rows)], np.repeat(np.arange(len(rows)), each)


def counts_of(case: TrialData, arm: Arm) -> dict[str, int]:
    """Return, for each part, how many answers a training of the arm gives."""
    counts = {
        "test": sum(len(part) for part in case.test),
        "calibration": sum(len(part) for part in case.calibration),
    }
    if arm is Arm.REAL:
        counts["synthetic"] = len(case.labels) * min(case.largest, MOST_LOOKED_AT)
    return counts


def findings_of(
    case: TrialData, pool: PicturePool, answers: Mapping[Arm, list[Answers]], copies: Copies
) -> dict[str, Any]:
    """Return the outcome, the sentence, and the numbers behind them."""
    targets = targets_of(case.test)
    right = {
        arm: np.stack([one["test"] == targets for one in found]) for arm, found in answers.items()
    }
    trial = TrialResults(right, targets, case.labels)
    share_K = np.bincount(targets) / len(targets)
    scores = {
        "arms": {arm.value: _arm(trial.recall(arm), case.labels, share_K, arm) for arm in answers},
        "cas": _cas(case, pool, trial, answers, share_K),
        "memorisation": copies.record(),
    }
    if Arm.ADDED not in answers:
        return {
            "outcome": Recommendation.BALANCED.value,
            "classes": [],
            "sentence": balanced_sentence(min(case.counts), case.largest),
            **scores,
            "comparison": None,
        }
    calibrated = _calibrated(case, answers)
    finding = compare(trial, chosen_arm(calibrated), case.short)
    outcome, classes, sentence = decide(finding, copies)
    return {
        "outcome": outcome.value,
        "classes": list(classes),
        "sentence": sentence,
        **scores,
        "comparison": {
            "arm": finding.arm.value,
            "over": finding.over.value,
            "mean_recall": vars(finding.gain),
            "recall": {label: vars(one) for label, one in finding.gains.items()},
            "helped": list(finding.helped),
            "candidates": list(case.short),
            "calibration": {arm.value: value for arm, value in calibrated.items()},
        },
    }


def _arm(found: Resampled, labels: Sequence[str], share_K: np.ndarray, arm: Arm) -> dict[str, Any]:
    return {
        "title": arm.words,
        "accuracy": _possible(found.weighted(share_K)),
        "mean_recall": _possible(found.mean),
        "recall": {label: _possible(found.of_class(number)) for number, label in enumerate(labels)},
    }


def _possible(estimate: Estimate) -> dict[str, float]:
    """Return the estimate of a share for JSON, its interval clipped to 0 and 1."""
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return {"value": estimate.value, "low": low, "high": high}


def _calibrated(case: TrialData, answers: Mapping[Arm, list[Answers]]) -> dict[Arm, float]:
    """Return the mean recall of the arms with synthetic pictures, on the calibration pictures."""
    targets = targets_of(case.calibration)
    known = [number for number, part in enumerate(case.calibration) if len(part)]
    found = {}
    for arm in WITH:
        right = np.stack([one["calibration"] == targets for one in answers[arm]]).mean(0)
        recalls = [right[targets == number].mean() for number in known]
        found[arm] = float(np.mean(recalls)) if recalls else 0.0
    return found


def _cas(
    case: TrialData,
    pool: PicturePool,
    trial: TrialResults,
    answers: Mapping[Arm, list[Answers]],
    share_K: np.ndarray,
) -> dict[str, Any]:
    """Return accuracy of classifiers trained on synthetic and tested on real, and the reverse."""
    forward = _possible(trial.recall(Arm.SYNTHETIC).weighted(share_K))
    if case.model.unlabelled:
        # A classifier gave these pictures their labels: another one agrees with it, no more.
        return {"synthetic_to_real": forward, "real_to_synthetic": None}
    _, targets = reversed_of(case, pool)
    right = np.stack([one["synthetic"] == targets for one in answers[Arm.REAL]])
    found = answered(right, targets, len(case.labels))
    return {"synthetic_to_real": forward, "real_to_synthetic": _possible(found.mean)}
