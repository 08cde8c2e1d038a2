from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manege.config import DataConfig
from manege.data import ClassCount, Split, open_dataset
from manege.errors import DataError

from .samples import noise

LABELS = np.repeat([2, 10], 10)


def opened(path: Path, **options: object):
    return open_dataset(DataConfig(source=str(path), **options))


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((20, 16, 16), (16, 16, 1)),
        ((20, 16, 16, 1), (16, 16, 1)),
        ((20, 16, 16, 3), (16, 16, 3)),
        ((20, 1, 16, 16), (16, 16, 1)),
        ((20, 3, 16, 16), (16, 16, 3)),
    ],
)
def test_every_layout_is_read(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    images = noise(0, *shape)
    dataset = opened(saved(tmp_path / "my.npz", images=images, labels=LABELS))
    assert dataset.name == "my"
    assert dataset.labels == ("2", "10")
    assert dataset.classes == (ClassCount("2", 9, 1), ClassCount("10", 9, 1))
    pictures = dataset.pictures("10", Split.TRAIN)
    assert pictures.shape == (9, *expected)
    place = int(dataset.names("10", Split.TRAIN)[0].removeprefix("images/"))
    picture = images[place]
    if shape[1] in (1, 3):
        picture = picture.transpose(1, 2, 0)
    np.testing.assert_array_equal(pictures[0], picture.reshape(expected))


def test_an_official_split_and_labels_of_strings(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "a.npz",
        images=noise(0, 20, 8, 8),
        labels=np.repeat(["bee", "ant"], 10),
        test_images=noise(1, 2, 8, 8),
        test_labels=np.array([b"ant", b"bee"]),
    )
    dataset = opened(path)
    assert dataset.classes == (ClassCount("ant", 10, 1), ClassCount("bee", 10, 1))
    assert dataset.held_out_rule == "official test_images split"
    np.testing.assert_array_equal(
        dataset.pictures("bee", Split.HELD_OUT)[0, :, :, 0], noise(1, 2, 8, 8)[1]
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_between_0_and_1_are_scaled(tmp_path: Path, dtype: type) -> None:
    images = np.linspace(0, 1, 20 * 64).astype(dtype).reshape(20, 8, 8)
    dataset = opened(saved(tmp_path / "a.npz", images=images, labels=np.zeros(20, int)))
    every = [dataset.pictures("0", split) for split in Split]
    assert max(int(part.max()) for part in every) == 255
    assert min(int(part.min()) for part in every) == 0


def test_other_sizes_are_brought_to_32(tmp_path: Path) -> None:
    dataset = opened(saved(tmp_path / "a.npz", images=noise(0, 20, 10, 14), labels=LABELS))
    assert dataset.size == 32
    assert dataset.pictures("2", Split.TRAIN).shape == (9, 32, 32, 1)
    grey = opened(
        saved(tmp_path / "b.npz", images=noise(0, 20, 8, 8, 3), labels=LABELS), channels=1
    )
    assert grey.pictures("2", Split.TRAIN).shape == (9, 8, 8, 1)


GOOD = {"images": noise(0, 20, 8, 8), "labels": LABELS}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": None}, "no array 'images', found labels"),
        ({"labels": None}, "no array 'labels', found images"),
        ({"test_images": noise(0, 2, 8, 8)}, "'test_images' stands alone"),
        ({"labels": LABELS[:-1]}, r"labels has shape \(19,\), expected \(20,\)"),
        ({"labels": LABELS[:, None]}, r"labels has shape \(20, 1\), expected \(20,\)"),
        ({"labels": LABELS.astype(float)}, "labels has dtype float64, expected integers"),
        ({"labels": LABELS > 5}, "labels has dtype bool"),
        ({"labels": np.array(["a/b"] * 20)}, "'a/b' cannot be a label"),
        ({"labels": np.array(["", "x"] * 10)}, "'' cannot be a label"),
        ({"images": noise(0, 20, 8, 8).astype(np.int32)}, "images has dtype int32, expected uint8"),
        ({"images": noise(0, 20, 8)}, r"images has shape \(20, 8\), expected \(N, H, W\)"),
        ({"images": noise(0, 20, 8, 8, 4)}, r"images has shape \(20, 8, 8, 4\), expected"),
        ({"images": noise(0, 20, 8, 0)}, "images has shape"),
        ({"images": noise(0, 20, 1, 1, 2)}, r"images are points, \(N, 1, 1, 2\), expected"),
        ({"images": np.array([None] * 20)}, "images has dtype object"),
        ({"labels": np.array([None] * 20)}, "array 'labels' cannot be read .*Object arrays"),
        (
            {"test_images": noise(0, 2, 9, 9), "test_labels": np.array([2, 10])},
            r"images are \(8, 8, 1\) and test_images \(9, 9, 1\)",
        ),
    ],
)
def test_bad_arrays_are_refused_at_opening(tmp_path: Path, change: dict, message: str) -> None:
    arrays = {key: array for key, array in {**GOOD, **change}.items() if array is not None}
    path = saved(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        opened(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("worst", [1.5, -0.1, float("nan"), float("inf")])
def test_floats_outside_0_to_1_are_refused(tmp_path: Path, worst: float) -> None:
    images = np.zeros((20, 8, 8))
    images[3, 3, 3] = worst
    dataset = opened(saved(tmp_path / "a.npz", images=images, labels=LABELS))
    with pytest.raises(DataError, match="expected 0 to 1; scale them or save uint8"):
        dataset.pictures("2", Split.TRAIN)


def test_a_file_that_is_no_zip_and_one_cut_short_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"a\.npz: not a \.npz file"):
        opened(path)
    whole = saved(tmp_path / "b.npz", **GOOD).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.npz: not a \.npz file"):
        opened(path)


def test_damage_in_the_pictures_is_found_when_they_are_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=noise(0, 20, 64, 64), labels=LABELS)
    content = bytearray(path.read_bytes())
    content[50_000] ^= 0xFF
    path.write_bytes(content)
    dataset = opened(path)
    with pytest.raises(DataError, match=r"array 'images' cannot be read .*CRC"):
        dataset.pictures("2", Split.TRAIN)


def test_an_npz_without_a_picture_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=noise(0, 0, 8, 8), labels=np.zeros(0, int))
    with pytest.raises(DataError, match="no pictures"):
        opened(path)
