"""The classification accuracy score from answers whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from manege.metrics.copies import CopyBound
from manege.runs import RunDir
from manege.verdict.arms import Arm, PicturePool, pool_of
from manege.verdict.case import TrialData
from manege.verdict.copying import ClassCopies, Copies
from manege.verdict.findings import counts_of, findings_of, reversed_of, targets_of

LABELS = ("cat", "dog")


def blank(count: int) -> np.ndarray:
    return np.zeros((count, 8, 8, 1), np.uint8)


@pytest.fixture
def case(tmp_path: Path) -> TrialData:
    """Balanced data of two classes, and a model that is told what to draw."""
    return TrialData(
        rundir=cast(RunDir, None),
        model=cast(Any, SimpleNamespace(unlabelled=False)),
        labels=LABELS,
        train=(blank(40), blank(38)),
        calibration=(blank(4), blank(4)),
        test=(blank(30), blank(10)),
        mirrored=False,
        duplicates=0,
        name="animals",
        rule="",
    )


@pytest.fixture
def pool(case: TrialData) -> PicturePool:
    return pool_of(case.train, [blank(40), blank(40)])


def wrong(targets: np.ndarray, *places: slice) -> np.ndarray:
    answers = targets.copy()
    for place in places:
        answers[place] = 1 - answers[place]
    return answers


def found(case: TrialData, pool: PicturePool) -> dict[str, Any]:
    test, calibration = targets_of(case.test), targets_of(case.calibration)
    _, drawn = reversed_of(case, pool)
    # Of the dogs arm f takes four in ten for cats, of the cats none.
    told = {"test": wrong(test, slice(30, 34)), "calibration": calibration}
    # A classifier of real pictures takes ten of forty drawn cats, and twenty dogs, for the other.
    real = {
        "test": test,
        "calibration": calibration,
        "synthetic": wrong(drawn, slice(10), slice(40, 60)),
    }
    assert {part: len(one) for part, one in real.items()} == counts_of(case, Arm.REAL)
    answers = {Arm.REAL: [real, real], Arm.SYNTHETIC: [told, told]}
    near = ClassCopies(40, 2, CopyBound(0.1, 300, left_out=False))
    return findings_of(case, pool, answers, Copies(dict.fromkeys(LABELS, near), ()))


def test_the_score_counts_pictures_and_its_reverse_counts_classes_alike(
    case: TrialData, pool: PicturePool
) -> None:
    cas = found(case, pool)["cas"]
    assert cas["synthetic_to_real"]["value"] == pytest.approx(36 / 40)
    assert cas["real_to_synthetic"]["value"] == pytest.approx((30 / 40 + 20 / 40) / 2)
    for one in cas.values():
        assert one["low"] < one["value"] < one["high"]


def test_a_model_without_labels_has_no_reverse(case: TrialData, pool: PicturePool) -> None:
    """A classifier named its pictures; that another one agrees says nothing of them."""
    unlabelled = replace(case, model=cast(Any, SimpleNamespace(unlabelled=True)))
    cas = found(unlabelled, pool)["cas"]
    assert cas["real_to_synthetic"] is None
    assert cas["synthetic_to_real"]["value"] == pytest.approx(36 / 40)
