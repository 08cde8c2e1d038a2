"""The gate on real digits, and what comes out of it from a real model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.tiny import TINY

import manege
from manege.errors import DataError, MachineError
from manege.verdict.case import TrialData, VerdictOptions, open_case
from manege.verdict.copying import copies_of
from manege.verdict.gate import Gate, LabelClassifier, bounds_of, draw, gate_of, train_looker
from manege.verdict.look import TrainingProgress, VerdictObserver

LABELS = ("0", "1", "4")
pytestmark = pytest.mark.usefixtures("score_cache")

SMALL = TINY | {
    "data__classes": list(LABELS),
    "data__limits": {"4": 40},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return manege.train("digits", out=tmp_path_factory.mktemp("gate") / "run", **SMALL).path


@pytest.fixture(scope="module")
def case(trained: Path) -> TrialData:
    return open_case(trained, VerdictOptions())


@pytest.fixture(scope="module")
def looker(case: TrialData) -> LabelClassifier:
    return train_looker(case, TrainingProgress(VerdictObserver(), 1, 120))


@pytest.fixture(scope="module")
def gate(case: TrialData, looker: LabelClassifier) -> Gate:
    return gate_of(case, looker, bounds_of(case))


# The case.


def test_nobody_else_sees_the_test_pictures(case: TrialData) -> None:
    parts = {"train": case.train, "calibration": case.calibration, "test": case.test}
    seen = {
        name: {picture.tobytes() for part in pictures for picture in part}
        for name, pictures in parts.items()
    }
    assert not seen["test"] & (seen["train"] | seen["calibration"])
    assert case.counts == (160, 164, 40)
    held_out = [len(one) + len(two) for one, two in zip(case.calibration, case.test, strict=True)]
    assert held_out == [18, 18, 18]


def test_a_held_out_picture_that_training_has_is_no_test(tmp_path: Path) -> None:
    """An image folder may hold the same picture twice, one on either side of the split."""
    for label in ("cat", "dog"):
        (tmp_path / "animals" / label).mkdir(parents=True)
        for number in range(60):
            # Every picture of cats but the first ten is there twice.
            seed = number if label == "dog" or number < 10 else number // 2
            made = np.random.default_rng((label == "cat", seed)).integers(0, 256, (8, 8), np.uint8)
            Image.fromarray(made).save(tmp_path / "animals" / label / f"{number}.png")
    tiny = {name: value for name, value in TINY.items() if not name.startswith("data")}
    run = manege.train(str(tmp_path / "animals"), out=tmp_path / "run", **tiny).path
    found = open_case(run, VerdictOptions())
    assert found.duplicates > 0
    seen = {one.tobytes() for part in (*found.train, *found.calibration) for one in part}
    assert not seen & {one.tobytes() for part in found.test for one in part}


def test_digits_are_not_mirrored(case: TrialData) -> None:
    assert case.mirrored is False


# The gate.


def test_real_pictures_pass(case: TrialData, gate: Gate) -> None:
    passed = [
        gate.reasons(label, pictures) == ""
        for label, pictures in zip(LABELS, case.test, strict=True)
    ]
    # About a tenth is lost to the two bounds. Of a dozen pictures that may be a third by chance, of
    # all 36 hardly a quarter; and no class is shut out.
    assert np.concatenate(passed).mean() >= 0.75
    assert min(own.mean() for own in passed) >= 0.5


def test_copies_and_pictures_of_other_classes_do_not(case: TrialData, gate: Gate) -> None:
    copies = gate.reasons("0", case.train[0])
    assert (copies == "near-copy").all()
    others = gate.reasons("0", np.concatenate([case.test[1], case.test[2]]))
    assert (others == "implausible").mean() > 0.9


def test_noise_that_a_classifier_takes_for_a_class_is_left_out(case: TrialData, gate: Gate) -> None:
    """A classifier of three digits sees one of them in anything at all."""
    shape = (200, *case.train[0].shape[1:])
    made = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    shows = gate.looker.shares(made).argmax(1)
    label = LABELS[int(np.bincount(shows).argmax())]
    taken = made[shows == LABELS.index(label)]
    without = replace(gate, sight=None).reasons(label, taken)
    assert (without == "").any()
    assert (gate.reasons(label, taken) == "implausible").all()


def test_without_lite0_the_gate_says_so(
    case: TrialData, looker: LabelClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(file: object = None) -> None:
        raise MachineError("no weights")

    monkeypatch.setattr("manege.verdict.gate.feature_weights", none)
    monkeypatch.setattr("manege.verdict.gate.missing", lambda: "no weights")
    said: list[str] = []
    found = gate_of(case, looker, bounds_of(case), said.append)
    assert found.sight is None
    assert said == ["warning: the gate looks with a classifier of the data alone: no weights"]


@pytest.mark.full
def test_a_gate_that_does_not_see_the_data_is_marked(
    case: TrialData, looker: LabelClassifier, gate: Gate
) -> None:
    assert gate.sight is not None
    assert gate.sight.blind is None
    assert "blind" not in gate.description()["0"]
    rng = np.random.default_rng(0)
    noise = {
        part: tuple(rng.integers(0, 256, one.shape, dtype=np.uint8) for one in getattr(case, part))
        for part in ("train", "calibration")
    }
    said: list[str] = []
    found = gate_of(replace(case, **noise), looker, gate.bounds, said.append)
    (line,) = said
    assert line.startswith("warning: the gate lets through what it should not: lite0-64-")
    assert "uniform noise" in line
    assert found.description()["0"]["blind"] in line


def test_the_bounds_are_told(gate: Gate) -> None:
    told = gate.description()
    assert set(told) == set(LABELS)
    assert told["0"]["nearest_from"] == "160 training pictures"
    assert 0 < told["0"]["nearest"] < 1
    assert 0 <= told["0"]["probability"] <= 1


@pytest.mark.full
def test_no_bound_depends_on_a_test_picture(
    case: TrialData, looker: LabelClassifier, gate: Gate
) -> None:
    other = replace(case, test=tuple(255 - part for part in case.test))
    assert bounds_of(other) == gate.bounds
    assert gate_of(other, looker, gate.bounds).least == gate.least


def test_a_class_of_one_picture_over_and_over_has_no_bound(case: TrialData) -> None:
    same = replace(case, train=(case.train[0], case.train[1][:1].repeat(9, axis=0), case.train[2]))
    with pytest.raises(DataError, match="the 9 training pictures of class '1' are all the same"):
        bounds_of(same)


# Drawing through it.


def test_the_first_that_pass_are_kept_and_the_others_counted(case: TrialData) -> None:
    plain = draw(case.model, {"0": 30}, 5)["0"]
    assert (plain.drawn, plain.left_out, plain.indices.tolist()) == (30, {}, list(range(30)))
    every = case.model.pictures_of("0", 60, 5)
    assert (plain.pictures == every[:30]).all()
    first = {every[row].tobytes() for row in (0, 3)}
    second = {every[row].tobytes() for row in (1,)}

    def sieve(label: str, pictures: np.ndarray) -> np.ndarray:
        kinds = [
            "near-copy" if one.tobytes() in first else "implausible" if one.tobytes() in second
            else ""
            for one in pictures
        ]  # fmt: skip
        return np.array(kinds, dtype=object)

    seen: list[bytes] = []

    def counting(label: str, pictures: np.ndarray) -> np.ndarray:
        seen.extend(one.tobytes() for one in pictures)
        return sieve(label, pictures)

    found = draw(case.model, {"0": 30}, 5, sieve=counting)["0"]
    # No picture is drawn or looked at twice.
    assert seen == [one.tobytes() for one in every]
    assert found.indices.tolist() == [2, *range(4, 33)]
    assert (found.pictures == every[found.indices]).all()
    assert found.record() == {
        "kept": 30,
        "drawn": 33,
        "left_out": {"near-copy": 2, "implausible": 1},
    }


def test_what_lets_nothing_through_is_given_up(case: TrialData) -> None:
    def sieve(label: str, pictures: np.ndarray) -> np.ndarray:
        return np.full(len(pictures), "implausible", dtype=object)

    found = draw(case.model, {"0": 10, "1": 0}, 0, sieve=sieve)
    assert found["0"].record() == {"kept": 0, "drawn": 256, "left_out": {"implausible": 256}}
    assert found["1"].record() == {"kept": 0, "drawn": 0, "left_out": {}}
    found["1"].require("1", 0)
    with pytest.raises(DataError, match=r"class '0': 0 of 10 pictures .* 256 drawn \(256 implaus"):
        found["0"].require("0", 10)


@pytest.mark.full
def test_drawing_can_be_stopped_while_the_gate_looks(case: TrialData, gate: Gate) -> None:
    asked: list[int] = []

    def stop() -> str | None:
        asked.append(1)
        return "SIGINT" if len(asked) == 2 else None

    with pytest.raises(KeyboardInterrupt):
        draw(case.model, {"0": 2_000}, 0, sieve=gate.sieve(VerdictObserver(stop=stop)))


# Copies.


def test_a_model_that_memorises_is_found_out(case: TrialData) -> None:
    """It draws the training pictures again, a little darker."""
    again = [(part * np.float32(0.97)).astype(np.uint8) for part in case.train]
    found = copies_of(case, bounds_of(case), dict(zip(LABELS, again, strict=True)))
    assert found.pictures == 160 + 164 + 40
    assert found.share.value > 0.95
    assert found.copying
    assert found.copied == LABELS
    assert found.png().startswith(b"\x89PNG")
    part, picture, training = found.pairs[0]
    assert part < 1
    assert np.abs(picture.astype(int) - training).max() <= 8


def test_real_pictures_are_no_copies(case: TrialData) -> None:
    held_out = [np.concatenate(both) for both in zip(case.calibration, case.test, strict=True)]
    found = copies_of(case, bounds_of(case), dict(zip(LABELS, held_out, strict=True)))
    assert not found.copying
    assert found.copied == ()


def test_classes_that_nothing_is_drawn_of_are_not_looked_at(case: TrialData) -> None:
    none, some = case.test[0][:0], case.test[2]
    found = copies_of(case, bounds_of(case), {"0": none, "1": none, "4": some})
    assert (tuple(found.classes), found.pictures) == (("4",), len(some))
