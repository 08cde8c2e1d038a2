from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.samples import noise, write_class

from manege.config import DataConfig
from manege.data import Split, check, open_dataset, sheet
from manege.errors import DataError
from manege.pictures import BACKGROUND


def checked(root: Path, **options: object):
    return check(DataConfig(source=str(root), **options))


def test_a_sound_folder_has_nothing_to_report(image_folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = check(
        DataConfig(source=str(image_folder)), lambda done, total: calls.append((done, total))
    )
    assert report.problems == ()
    assert report.broken == report.ignored == report.duplicates == report.small == ()
    assert (report.size, report.channels) == (16, 3)
    assert report.modes == {"RGB": 40}
    assert report.sides.commonest == ((16, 16, 40),)
    assert report.memory_bytes == 40 * 16 * 16 * 3
    assert calls == [(place, 40) for place in range(1, 41)]


def test_everything_wrong_is_collected_not_only_the_first(image_folder: Path) -> None:
    dataset = open_dataset(DataConfig(source=str(image_folder)))
    cat, dog = image_folder / "cat", image_folder / "dog"
    train, held_out = (dataset.names("cat", split) for split in Split)
    shutil.copy(cat / train[0], cat / held_out[0])
    shutil.copy(cat / train[1], dog / dataset.names("dog", Split.TRAIN)[0])
    shutil.copy(cat / train[2], cat / train[3])
    (cat / train[4]).write_bytes(b"")
    (dog / dataset.names("dog", Split.HELD_OUT)[0]).write_bytes(b"junk")
    (cat / "notes.txt").write_text("x")
    (image_folder / "LICENSE").write_text("x")
    write_class(image_folder / "emu", 5, shape=(20, 10))
    (image_folder / "fox").mkdir()
    report = checked(image_folder)
    assert {(bad.label, bad.name, bad.reason) for bad in report.broken} == {
        ("cat", train[4], "an empty file"),
        (
            "dog",
            dataset.names("dog", Split.HELD_OUT)[0],
            "not a PNG, JPEG, BMP or WebP picture",
        ),
    }
    assert set(report.ignored) == {"cat/notes.txt", "LICENSE"}
    assert report.small == ("emu", "fox")
    flags = [(pair.across_splits, pair.across_classes) for pair in report.duplicates]
    assert sorted(flags[:2]) == [(False, True), (True, False)]  # The harmful ones first.
    assert flags[2:] == [(False, False)]
    assert {place.name for place in report.duplicates[2].pictures} == {train[2], train[3]}
    assert report.sides.smallest == (10, 20)
    assert report.sides.largest == report.sides.median == (16, 16)
    assert report.modes == {"RGB": 38, "L": 5}
    told = " | ".join(report.problems)
    for part in ("2 broken", "emu, fox", "both trained on and held out", "more than one class"):
        assert part in told
    assert json.loads(json.dumps(report.as_dict()))["problems"] == list(report.problems)


def test_a_class_that_breakage_makes_too_small_is_told(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "a", 8)
    (tmp_path / "d" / "a" / "3.png").write_bytes(b"junk")
    assert checked(tmp_path / "d").small == ("a",)


def test_the_same_picture_in_another_format_is_a_duplicate(image_folder: Path) -> None:
    with Image.open(image_folder / "cat" / "0.png") as image:
        image.save(image_folder / "dog" / "same.bmp")
    (pair,) = checked(image_folder).duplicates
    assert pair.across_classes
    assert {place.name for place in pair.pictures} == {"0.png", "same.bmp"}


def test_a_limit_counts_for_the_memory_alone(image_folder: Path) -> None:
    report = checked(image_folder, limit_per_class=8, size=8, channels=1)
    assert report.memory_bytes == (2 * 8 + 2 * 2) * 64
    assert sum(report.modes.values()) == 40


def test_only_the_chosen_classes_are_looked_at(image_folder: Path) -> None:
    (image_folder / "dog" / "0.png").write_bytes(b"junk")
    assert checked(image_folder, classes=("cat",)).broken == ()


def test_an_official_split_is_compared_with_training(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "train" / "a", 8)
    write_class(tmp_path / "d" / "test" / "a", 2)
    (tmp_path / "d" / "test" / "readme.md").write_text("x")
    shutil.copy(tmp_path / "d" / "train" / "a" / "0.png", tmp_path / "d" / "test" / "a" / "1.png")
    report = checked(tmp_path / "d")
    (pair,) = report.duplicates
    assert pair.across_splits
    assert report.ignored == ("test/readme.md",)


def test_arrays_are_checked_too(tmp_path: Path, tiny_mnist: Path) -> None:
    images = noise(0, 20, 8, 8)
    images[19] = images[0]
    np.savez(tmp_path / "a.npz", images=images, labels=np.repeat(["x", "y"], 10))
    (pair,) = checked(tmp_path / "a.npz").duplicates
    assert pair.across_classes
    report = check(DataConfig(source="mnist", root=str(tiny_mnist)))
    assert report.problems == ()
    assert report.sides.smallest == (28, 28)
    path = tiny_mnist / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    report = check(DataConfig(source="mnist", root=str(tiny_mnist)))
    assert "t10k-images-idx3-ubyte: only" in report.broken[0].reason
    assert report.modes == {"L": 100}


def test_digits_have_no_problem() -> None:
    report = check(DataConfig(source="digits"))
    assert report.problems == ()
    assert report.modes == {"L": 1797}


def test_a_folder_where_nothing_decodes_still_gives_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "d" / "a"
    folder.mkdir(parents=True)
    for place in range(9):
        (folder / f"{place}.jpg").write_bytes(b"junk")
    report = checked(tmp_path / "d")
    assert len(report.broken) == 9
    assert report.sides.smallest is report.sides.median is report.sides.largest is None
    assert (report.size, report.channels) == (32, 3)


def test_what_cannot_be_opened_at_all_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such path"):
        checked(tmp_path / "none")


def test_a_sheet_has_a_row_for_each_class(image_folder: Path) -> None:
    dataset = open_dataset(DataConfig(source=str(image_folder)))
    picture = sheet(dataset, per_class=20)
    assert picture.shape == (2 * 17 + 1, 20 * 17 + 1, 3)
    np.testing.assert_array_equal(picture[1:17, 1:17], dataset.pictures("cat", Split.TRAIN)[0])
    np.testing.assert_array_equal(picture[18:34, 1:17], dataset.pictures("dog", Split.TRAIN)[0])
    assert (picture[1:17, -16:] == BACKGROUND).all()  # There are only 18 to show.
