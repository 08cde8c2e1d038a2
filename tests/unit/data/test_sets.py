from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.samples import noise, write_class

from manege.config import DataConfig
from manege.data import PictureSet, Split, cache_folder, read_set, set_of, survey
from manege.errors import ConfigError, DataError


def opened(root: Path, **options: object):
    return survey(DataConfig(source=str(root), **options))


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def as_rows(pictures: np.ndarray) -> list[bytes]:
    return sorted(picture.tobytes() for picture in pictures)


def files_of(folder: Path, pattern: str = "**/*.png") -> list[bytes]:
    found = []
    for path in folder.glob(pattern):
        with Image.open(path) as image:
            found.append(np.asarray(image).tobytes())
    return sorted(found)


# Parts of datasets.


@pytest.mark.parametrize("split", Split)
def test_a_set_is_a_dataset_s_part_class_after_class(image_folder: Path, split: Split) -> None:
    dataset = opened(image_folder)
    drawn = set_of(dataset, split)
    each = len(drawn) // 2
    assert (drawn.name, drawn.split, drawn.size, drawn.channels) == ("animals", split, 16, 3)
    assert drawn.labels == ("cat",) * each + ("dog",) * each
    both = [dataset.pictures(label, split) for label in ("cat", "dog")]
    np.testing.assert_array_equal(drawn.pictures, np.concatenate(both))


def test_a_set_is_in_memory_and_may_be_written_to(image_folder: Path) -> None:
    drawn = set_of(opened(image_folder), Split.TRAIN)
    assert not isinstance(drawn.pictures, np.memmap)
    drawn.pictures[:] = 0
    assert set_of(opened(image_folder), Split.TRAIN).pictures.any()


def test_a_limit_is_shared_in_proportion_and_takes_each_class_s_first(tmp_path: Path) -> None:
    for label, count in (("a", 50), ("b", 30), ("c", 9), ("d", 8)):
        write_class(tmp_path / "d" / label, count, shape=(8, 8))
    dataset = opened(tmp_path / "d")  # 45, 27, 8 and 8 to train on.
    drawn = set_of(dataset, Split.TRAIN, limit=10)
    assert drawn.labels is not None
    # 5.11, 3.07, 0.91, 0.91: the two missing go to the largest remainders.
    assert [drawn.labels.count(label) for label in "abcd"] == [5, 3, 1, 1]
    np.testing.assert_array_equal(drawn.pictures[:5], dataset.pictures("a", Split.TRAIN)[:5])
    np.testing.assert_array_equal(drawn.pictures[5:8], dataset.pictures("b", Split.TRAIN)[:3])


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 35, 36, 37, 1000])
def test_a_limit_is_kept_exactly_until_there_are_no_more(image_folder: Path, limit: int) -> None:
    drawn = set_of(opened(image_folder), Split.TRAIN, limit)
    assert len(drawn) == min(limit, 36)
    assert drawn.labels is not None
    assert abs(drawn.labels.count("cat") - drawn.labels.count("dog")) <= 1


def test_a_class_that_gives_nothing_is_not_decoded(image_folder: Path, cache: Path) -> None:
    set_of(opened(image_folder), Split.TRAIN, limit=1)
    assert len(list((cache / "pictures").glob("*.npy"))) == 1


def test_an_empty_part_is_an_empty_set(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "a", 8)
    drawn = set_of(opened(tmp_path / "d"), Split.HELD_OUT)
    assert len(drawn) == 0
    assert (drawn.labels, drawn.size, drawn.channels) == ((), 16, 3)
    assert set_of(opened(tmp_path / "d"), Split.HELD_OUT, limit=5) == drawn


def test_the_digest_follows_pictures_labels_and_nothing_else(
    image_folder: Path, tmp_path: Path
) -> None:
    dataset = opened(image_folder)
    whole = set_of(dataset, Split.TRAIN)
    assert len(whole.digest) == 64
    assert set_of(dataset, Split.TRAIN, limit=36).digest == whole.digest
    others = {
        set_of(dataset, Split.HELD_OUT).digest,
        set_of(dataset, Split.TRAIN, limit=35).digest,
        set_of(opened(image_folder, size=8), Split.TRAIN).digest,
        set_of(opened(image_folder, classes=("cat",)), Split.TRAIN).digest,
    }
    assert len(others | {whole.digest}) == 5
    image_folder.rename(tmp_path / "moved")
    assert set_of(opened(tmp_path / "moved"), Split.TRAIN).digest == whole.digest
    (tmp_path / "moved" / "dog").rename(tmp_path / "moved" / "eel")
    assert set_of(opened(tmp_path / "moved"), Split.TRAIN).digest != whole.digest


def test_a_limited_set_s_digest_is_that_of_the_same_pictures_alone(image_folder: Path) -> None:
    limited = set_of(opened(image_folder), Split.TRAIN, limit=16)
    alone = set_of(opened(image_folder, limit_per_class=8), Split.TRAIN)
    np.testing.assert_array_equal(limited.pictures, alone.pictures)
    assert limited == alone


# Whatever a folder or a file holds.


def test_a_folder_of_classes_is_read_whole(image_folder: Path) -> None:
    (image_folder / "manifest.json").write_text("{}")
    read = read_set(image_folder)
    assert isinstance(read, PictureSet)
    assert (read.name, read.split, read.size, read.channels) == ("animals", "all", 16, 3)
    assert read.labels == ("cat",) * 20 + ("dog",) * 20
    assert as_rows(read.pictures[:20]) == files_of(image_folder / "cat")
    assert as_rows(read.pictures[20:]) == files_of(image_folder / "dog")


def test_a_dataset_s_pictures_are_not_decoded_again(image_folder: Path, cache: Path) -> None:
    dataset = opened(image_folder)
    for split in Split:
        set_of(dataset, split)
    before = sorted((cache / "pictures").iterdir())
    read_set(image_folder)
    assert sorted((cache / "pictures").iterdir()) == before
    assert cache_folder() == cache


def test_train_and_test_are_joined(tmp_path: Path) -> None:
    for part, label, count in (("train", "a", 4), ("train", "b", 2), ("test", "a", 3)):
        write_class(tmp_path / "d" / part / label, count)
    read = read_set(tmp_path / "d")
    assert read.labels == ("a",) * 7 + ("b",) * 2
    assert as_rows(read.pictures) == files_of(tmp_path / "d")


@pytest.mark.parametrize("beside", ["nothing", "empty folder", "hidden folder", "notes"])
def test_a_folder_of_pictures_alone_has_no_labels(tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "drawn"
    write_class(folder, 12, shape=(18, 18))
    if beside == "empty folder":
        (folder / "later").mkdir()
    elif beside == "hidden folder":
        write_class(folder / ".thumbnails", 3)
    elif beside == "notes":
        (folder / "notes.txt").write_text("x")
    read = read_set(folder)
    assert (read.name, read.labels, read.size, read.channels) == ("drawn", None, 18, 1)
    assert as_rows(read.pictures) == files_of(folder, "*.png")


def test_a_set_from_here_and_from_elsewhere_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_class(tmp_path / "drawn", 12)
    expected = read_set(tmp_path / "drawn")
    monkeypatch.chdir(tmp_path / "drawn")
    for spelled in (".", "../drawn", "../drawn/../drawn"):
        assert read_set(Path(spelled)) == expected
    (tmp_path / "link").symlink_to(tmp_path / "drawn")
    assert read_set(tmp_path / "link") == expected
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_set(Path("~/drawn")) == expected


def test_a_folder_whose_name_is_not_unicode_is_read(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    write_class(folder, 3)
    assert len(read_set(folder)) == 3


def test_an_npz_with_labels_is_read_whole(tmp_path: Path) -> None:
    images, more = noise(0, 10, 9, 9, 3), noise(1, 4, 9, 9, 3)
    labels, more_labels = np.repeat(["x", "y"], 5), np.repeat(["y", "z"], 2)
    alone = read_set(saved(tmp_path / "a.npz", images=images, labels=labels))
    assert (alone.name, alone.size, alone.channels) == ("a", 9, 3)
    assert alone.labels == ("x",) * 5 + ("y",) * 5
    both = {"test_images": more, "test_labels": more_labels}
    read = read_set(saved(tmp_path / "b.npz", images=images, labels=labels, **both))
    assert read.labels == ("x",) * 5 + ("y",) * 7 + ("z",) * 2
    assert as_rows(read.pictures) == as_rows(np.concatenate([images, more]))


def test_an_npz_of_pictures_alone_has_no_labels(tmp_path: Path) -> None:
    images, more = noise(0, 10, 8, 8), noise(1, 4, 8, 8)
    read = read_set(saved(tmp_path / "a.npz", images=images))
    assert (read.labels, read.size, read.channels) == (None, 8, 1)
    assert as_rows(read.pictures) == as_rows(images)
    joined = read_set(saved(tmp_path / "b.npz", images=images, test_images=more))
    assert joined.labels is None
    assert as_rows(joined.pictures) == as_rows(np.concatenate([images, more]))


def test_labels_change_the_digest_and_their_lack_too(tmp_path: Path) -> None:
    images = noise(0, 10, 8, 8)
    digests = {
        read_set(saved(tmp_path / "a.npz", images=images)).digest,
        read_set(saved(tmp_path / "b.npz", images=images, labels=np.zeros(10, int))).digest,
        read_set(saved(tmp_path / "c.npz", images=images, labels=np.ones(10, int))).digest,
    }
    assert len(digests) == 3
    again = read_set(saved(tmp_path / "d.npz", images=images))
    assert again.digest in digests


def test_points_are_read_as_points(tmp_path: Path) -> None:
    points = noise(0, 20, 1, 1, 2)
    path = saved(tmp_path / "a.npz", images=points, labels=np.zeros(20, int))
    for asked in ({}, {"size": 1}, {"size": 1, "channels": 2}):
        read = read_set(path, **asked)
        assert (read.size, read.channels) == (1, 2)
        assert as_rows(read.pictures) == as_rows(points)
    with pytest.raises(DataError, match=r"a\.npz: holds points, expected pictures"):
        read_set(path, size=8)
    pictures = saved(tmp_path / "b.npz", images=noise(0, 20, 8, 8))
    with pytest.raises(DataError, match=r"b\.npz: holds pictures, expected points"):
        read_set(pictures, size=1, channels=2)


@pytest.mark.parametrize("side", [4, 5, 299, 1024])
def test_sides_that_no_network_makes_are_read(tmp_path: Path, side: int) -> None:
    read = read_set(saved(tmp_path / "a.npz", images=noise(0, 2, side, side)))
    assert read.pictures.shape == (2, side, side, 1)


def test_another_size_and_colour_are_brought_about_as_in_datasets(image_folder: Path) -> None:
    read = read_set(image_folder, size=8, channels=1)
    assert read.pictures.shape == (40, 8, 8, 1)
    dataset = opened(image_folder, size=8, channels=1)
    both = [dataset.pictures("cat", split) for split in (Split.HELD_OUT, Split.TRAIN)]
    np.testing.assert_array_equal(read.pictures[:20], np.concatenate(both))
    assert read_set(image_folder, size=50).pictures.shape == (40, 50, 50, 3)
    assert read_set(image_folder, channels=1).pictures.shape == (40, 16, 16, 1)


def test_one_colour_picture_makes_all_of_them_colour(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "a", 9, shape=(16, 16))
    assert read_set(tmp_path / "d").channels == 1
    Image.fromarray(noise(0, 16, 16, 3)).save(tmp_path / "d" / "a" / "8.png")
    assert read_set(tmp_path / "d").channels == 3


def test_differing_sizes_are_named_with_their_numbers(tmp_path: Path) -> None:
    write_class(tmp_path / "d", 7, shape=(16, 16))
    Image.fromarray(noise(0, 20, 12)).save(tmp_path / "d" / "odd.png")
    expected = r"d: pictures of differing sizes, 7 are 16x16 and 1 are 12x20; .* give size"
    with pytest.raises(DataError, match=expected):
        read_set(tmp_path / "d")
    assert read_set(tmp_path / "d", size=16).pictures.shape == (8, 16, 16, 1)


@pytest.mark.parametrize("shape", [(10, 14), (3, 3), (1025, 1025)])
def test_other_than_squares_of_a_usual_side_need_a_size(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    path = saved(tmp_path / "a.npz", images=noise(0, 2, *shape))
    with pytest.raises(DataError, match=f"pictures of {shape[1]}x{shape[0]}, expected squares"):
        read_set(path)
    assert read_set(path, size=16).pictures.shape == (2, 16, 16, 1)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"size": 3}, "size 3: expected 4 to 1024"),
        ({"size": 1}, "size 1: expected 4 to 1024"),
        ({"size": 1025}, "size 1025: expected 4 to 1024"),
        ({"channels": 2}, r"channels 2: expected 1 \(grey\) or 3 \(colour\)"),
    ],
)
def test_forms_nobody_has_are_refused(image_folder: Path, asked: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_set(image_folder, **asked)


def _nothing(path: Path) -> None:
    path.mkdir()


def _no_pictures(path: Path) -> None:
    (path / "a").mkdir(parents=True)
    (path / "a" / "notes.txt").write_text("x")
    (path / "more.txt").write_text("x")


def _broken(path: Path) -> None:
    write_class(path, 3)
    (path / "1.png").write_bytes(b"junk")


def _broken_inside(path: Path) -> None:
    write_class(path / "a", 3)
    whole = (path / "a" / "1.png").read_bytes()
    (path / "a" / "1.png").write_bytes(whole[: len(whole) // 2])


def _loose(path: Path) -> None:
    write_class(path / "cat", 3)
    write_class(path, 2)


def _three_parts(path: Path) -> None:
    for part in ("train", "test", "val"):
        write_class(path / part / "cat", 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "thing: no such file or folder; expected a folder of pictures or an"),
        (lambda path: path.write_text("x"), r"thing: a file, but no \.npz; expected a folder"),
        (os.mkfifo, r"thing: a file, but no \.npz; expected"),
        (_nothing, "thing: no file; expected PNG, JPEG, BMP or WebP pictures, or a subfolder"),
        (_no_pictures, "thing: 2 files, none a picture; expected PNG"),
        (_broken, r"1\.png: not a PNG, JPEG, BMP or WebP picture; mend or remove it"),
        (_broken_inside, r"1\.png: .*truncated.* 0 more of class 'a' are broken"),
        (_loose, r"thing: 2 pictures are in no class folder, 0\.png for one; move them away"),
        (_three_parts, "thing: 3 pictures are in no class folder, val/cat/0.png for one"),
    ],
)
def test_what_is_no_set_is_refused_in_one_line(tmp_path: Path, make, message: str) -> None:
    make(tmp_path / "thing")
    with pytest.raises(DataError, match=message) as caught:
        read_set(tmp_path / "thing")
    assert "\n" not in str(caught.value)


GOOD = {"images": noise(0, 20, 8, 8), "labels": np.repeat([2, 10], 10)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"no array 'images', found none; save it with numpy\.savez\(file, images=\.\.\.\)"),
        ({"arr_0": GOOD["images"]}, "no array 'images', found arr_0"),
        ({"labels": GOOD["labels"]}, "no array 'images', found labels"),
        (GOOD | {"test_images": GOOD["images"]}, "'labels' without 'test_labels'; expected both"),
        (
            {
                "images": GOOD["images"],
                "test_images": GOOD["images"],
                "test_labels": GOOD["labels"],
            },
            "'test_labels' without 'labels'; expected both or neither",
        ),
        ({"images": noise(0, 20, 8)}, r"images has shape \(20, 8\), expected \(N, H, W\)"),
        ({"images": noise(0, 20, 2)}, r"images has shape \(20, 2\)"),
        ({"images": noise(0, 20, 1, 2, 2)}, "pictures of 2x2, expected squares with a side of 4"),
        ({"images": noise(0, 20, 8, 8, 2)}, r"images has shape \(20, 8, 8, 2\)"),
        ({"images": noise(0, 0, 8, 8)}, "no pictures in images, expected some"),
        ({"images": GOOD["images"] + 2.0}, "images are floats from"),
        (
            {"images": GOOD["images"], "test_images": noise(0, 2, 9, 9)},
            r"images are \(8, 8, 1\) and test_images \(9, 9, 1\)",
        ),
    ],
)
def test_bad_arrays_are_refused_in_one_line(tmp_path: Path, arrays: dict, message: str) -> None:
    path = saved(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        read_set(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
