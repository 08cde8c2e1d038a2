from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.samples import write_class

from manege.config import DataConfig
from manege.config.schema import TOY_NAMES
from manege.data import (
    KNOWN,
    TOYS,
    ClassCount,
    Split,
    check,
    list_datasets,
    open_dataset,
    set_of,
    sheet,
    toy_of,
)
from manege.data.toys import open_toy
from manege.errors import DataError
from manege.pictures import scatter

SPACING = 2 / 255
PINNED = {
    ("ring8", "train"): "0f43b1782ddbad2c5959384bbe83767cae3f6e40bb451bb175dd1f9d0f3b9b11",
    ("ring8", "held-out"): "8416e0d32031d2f9c3798e6e3ec48d2253ee06fc060772ac0359c96375297a6f",
    ("grid25", "train"): "cea2ef7b7c49788954d2165e076a3d1ce43fa192b89b5b6a6dd3d966eaca1016",
    ("grid25", "held-out"): "f205ea989418965aa700cc843e20fed6faf9d5df22f99b7c140edf587193a4d4",
}


def coordinates(points: np.ndarray) -> np.ndarray:
    return points.reshape(-1, 2) / 127.5 - 1


@pytest.mark.parametrize(("name", "split"), PINNED)
def test_the_points_never_change(name: str, split: str) -> None:
    points = open_toy(name).parts[Split(split)].pictures()
    assert hashlib.sha256(points.tobytes()).hexdigest() == PINNED[name, split]


@pytest.mark.parametrize(
    ("name", "modes", "train", "held_out"), [("ring8", 8, 1000, 250), ("grid25", 25, 400, 100)]
)
def test_a_toy_is_a_dataset_with_a_class_a_mode(
    name: str, modes: int, train: int, held_out: int
) -> None:
    dataset = open_dataset(DataConfig(source=name))
    assert (dataset.name, dataset.size, dataset.channels) == (name, 1, 2)
    assert dataset.classes == tuple(ClassCount(str(mode), train, held_out) for mode in range(modes))
    assert dataset.held_out_rule == "official test split"
    assert dataset.pictures("3", Split.TRAIN).shape == (train, 1, 1, 2)
    held = set_of(dataset, Split.HELD_OUT)
    assert (len(held), held.size, held.channels) == (modes * held_out, 1, 2)
    settled = open_dataset(DataConfig(source=name, size=1, channels=2))
    assert settled.digest("3") == dataset.digest("3")


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("split", Split)
def test_every_mode_has_its_mean_and_deviation(name: str, split: Split) -> None:
    dataset, toy = open_dataset(DataConfig(source=name)), TOYS[name]
    for label, centre in zip(dataset.labels, toy.centres, strict=True):
        drawn = coordinates(dataset.pictures(label, split))
        count = len(drawn)
        error = toy.deviation / np.sqrt(count)
        np.testing.assert_allclose(drawn.mean(axis=0), centre, atol=4.5 * error)
        spread = 4.5 * error / np.sqrt(2)
        np.testing.assert_allclose(drawn.std(axis=0), toy.deviation, atol=spread)
        # Both coordinates are independent, and no point strays where another mode is.
        assert abs(np.corrcoef(drawn.T)[0, 1]) < 4.5 / np.sqrt(count)
        assert np.linalg.norm(drawn - centre, axis=1).max() < 6 * toy.deviation


def test_the_centres_are_where_they_should_be() -> None:
    ring, lattice = TOYS["ring8"].centres, TOYS["grid25"].centres
    np.testing.assert_allclose(np.linalg.norm(ring, axis=1), 0.75)
    np.testing.assert_allclose(ring[:3], [[0.75, 0], [0.75 / 2**0.5] * 2, [0, 0.75]], atol=1e-12)
    assert lattice.shape == (25, 2)
    assert not lattice.flags.writeable
    assert lattice[[0, 1, 5, 12, 24]].tolist() == [
        [-0.8, -0.8],
        [-0.8, -0.4],
        [-0.4, -0.8],
        [0, 0],
        [0.8, 0.8],
    ]


def test_rounding_to_bytes_adds_less_than_a_percent_of_variance() -> None:
    for toy in TOYS.values():
        assert SPACING**2 / 12 / toy.deviation**2 == pytest.approx(0.0057, abs=5e-5)
    # The claim itself, measured; spread centres, so that no phase of the rounding is special.
    rng = np.random.default_rng(0)
    exact = rng.uniform(-0.5, 0.5, 1_000_000) + rng.normal(0, 0.03, 1_000_000)
    rounded = np.rint((exact + 1) * 127.5) / 127.5 - 1
    assert (rounded - exact).var() == pytest.approx(SPACING**2 / 12, rel=0.01)
    assert abs(np.cov(exact, rounded - exact)[0, 1]) < 1e-6


def test_toys_are_known_by_name_and_computed() -> None:
    assert tuple(TOYS) == TOY_NAMES
    assert set(TOYS) < set(KNOWN)
    rows = {row["name"]: row for row in list_datasets(None)}
    for name, count in (("ring8", 10_000), ("grid25", 12_500)):
        assert (rows[name]["where"], rows[name]["pictures"]) == ("computed", count)
        assert "points" in rows[name]["description"]
        assert toy_of(name) is TOYS[name]
    assert toy_of("digits") is None
    with pytest.raises(DataError, match=r"did you mean ring8\?"):
        open_dataset(DataConfig(source="ring9"))


def test_checking_a_toy_finds_nothing_wrong() -> None:
    report = check(DataConfig(source="ring8"))
    assert report.form == "points in the plane"
    assert report.problems == ()
    # Many points are equal, which is no mistake.
    assert report.duplicates == ()
    assert report.modes == {"XY": 10_000}
    assert report.memory_bytes == 20_000


def test_the_sheet_of_a_toy_is_a_drawing_of_its_training_points() -> None:
    dataset = open_dataset(DataConfig(source="grid25"))
    drawn = sheet(dataset)
    np.testing.assert_array_equal(drawn, scatter(set_of(dataset, Split.TRAIN).pictures))
    assert drawn.shape == (160, 160, 1)


def test_a_folder_called_like_a_toy_is_a_folder(tmp_path: Path) -> None:
    write_class(tmp_path / "ring8" / "a", 9)
    dataset = open_dataset(DataConfig(source=str(tmp_path / "ring8")))
    assert (dataset.name, dataset.size, dataset.channels) == ("ring8", 16, 3)
    assert sheet(dataset).shape[2] == 3
    assert check(DataConfig(source=str(tmp_path / "ring8"))).form == "16x16 colour"


def test_a_toy_s_limit_and_classes_are_as_of_any_dataset() -> None:
    dataset = open_dataset(DataConfig(source="ring8", classes=("1", "5"), limit_per_class=9))
    assert dataset.labels == ("1", "5")
    assert len(dataset.pictures("5", Split.TRAIN)) == 9
