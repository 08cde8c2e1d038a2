from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.samples import noise

from manege.config import DataConfig
from manege.data import ClassCount, Split, open_dataset, read_set
from manege.errors import DataError

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
        (
            {"labels": np.array([None] * 20)},
            "labels has dtype object, expected integers, or strings",
        ),
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


def zipped(path: Path, method: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    """A .npz of these bytes."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def member(path: Path, name: str) -> bytes:
    """An array's bytes in a .npz."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(f"{name}.npy")


def patched(path: Path, offset: int, value: int) -> Path:
    """Both headers of every member changed, at the place that is the offset in its own."""
    content = bytearray(path.read_bytes())
    for mark, further in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        place = content.find(mark)
        while place >= 0:
            struct.pack_into("<H", content, place + offset + further, value)
            place = content.find(mark, place + 1)
    path.write_bytes(content)
    return path


def with_header(text: str, version: bytes = b"\1\0") -> bytes:
    """An array's bytes with that header before the pictures."""
    size = "<H" if version == b"\1\0" else "<I"
    head = text.encode("utf-8", "surrogatepass")
    return b"\x93NUMPY" + version + struct.pack(size, len(head)) + head + bytes(1280)


TOLD = "{'descr': '|u1', 'fortran_order': False, 'shape': (20, 8, 8), }"
HEADERS = {
    "nothing": "",
    "no dict": "[]",
    "a word": "pictures",
    "a null byte": TOLD + "\0",
    "half": TOLD[:40],
    "no text": "\ud800",
    "nested": "-" * 9_000 + "1",
    "added up": "1+" * 4_000 + "1",
    "5,000 digits": TOLD.replace("20", "9" * 5_000),
    "4,000 digits twice": TOLD.replace("20", "9" * 4_000).replace("8", "9" * 4_000, 1),
    "negative": TOLD.replace("20", "-20"),
    "keys of two kinds": "{1: 2, 'shape': (20, 8, 8)}",
    "no hash": "{[]: 1}",
    "no type": TOLD.replace("|u1", "nonsense"),
    "type of types": TOLD.replace("'|u1'", "[(1, 2)]"),
    "type of many": TOLD.replace("'|u1'", "('|u1', (10**9,))"),
    "type of a size": TOLD.replace("'|u1'", "('|u1', (1000000000, 1000000000, 1000000000))"),
    "a warning": TOLD.replace("'|u1'", "'\\q'"),
    "an L": TOLD.replace("20", "20L").replace("8)", "9L)"),
}


def test_numpys_own_header_is_read(tmp_path: Path) -> None:
    """So what follows is refused for what it says."""
    labels = member(saved(tmp_path / "good.npz", **GOOD), "labels")
    for version in (b"\1\0", b"\2\0", b"\3\0"):
        path = zipped(tmp_path / "a.npz", images=with_header(TOLD, version), labels=labels)
        assert opened(path).labels == ("2", "10")


ODD: dict[str, Callable[[Path], Path]] = {
    "encrypted": lambda path: patched(saved(path, **GOOD), 6, 1),
    "unknown method": lambda path: patched(saved(path, **GOOD), 8, 99),
    "deflate64": lambda path: patched(saved(path, **GOOD), 8, 9),
    "newer zip": lambda path: patched(saved(path, **GOOD), 4, 99),
    "empty members": lambda path: zipped(path, images=b"", labels=b""),
    "labels without a byte": lambda path: zipped(
        path, images=member(saved(path, **GOOD), "images"), labels=b""
    ),
    "labels that are text": lambda path: zipped(
        path, images=member(saved(path, **GOOD), "images"), labels=b"cat,dog"
    ),
    "version 9": lambda path: zipped(
        path, images=with_header(TOLD, b"\x09\x09"), labels=member(saved(path, **GOOD), "labels")
    ),
    "labels of 5,000 digits": lambda path: saved(
        path, images=GOOD["images"], labels=np.array(["9" * 5_000] * 20)
    ),
    "labels of 5,000 bytes": lambda path: saved(
        path, images=GOOD["images"], labels=np.array([b"9" * 5_000] * 20)
    ),
    **{
        f"labels beyond Unicode, {letters:#x}": lambda path, letters=letters: saved(
            path, images=GOOD["images"], labels=np.full(20, letters, np.uint32).view("<U1")
        )
        for letters in (0x7FFFFFFF, 0x110000)
    },
    "labels beyond Unicode beside others": lambda path: saved(
        path, images=GOOD["images"], labels=np.tile(np.uint32([97, 0x61000000]), 20).view("<U2")
    ),
    **{
        f"packed by {method}": lambda path, method=method: zipped(
            path,
            method,
            images=member(saved(path, **GOOD), "images"),
            labels=member(path, "labels"),
        )
        for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    },
    **{
        f"header: {name}": lambda path, text=text: zipped(
            path, images=with_header(text), labels=member(saved(path, **GOOD), "labels")
        )
        for name, text in HEADERS.items()
    },
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_is_refused_in_a_line(tmp_path: Path, odd: str) -> None:
    path = ODD[odd](tmp_path / "a.npz")
    for read in (opened, read_set):
        with pytest.raises(DataError) as caught:
            read(path)
        said = str(caught.value)
        assert said.startswith(f"{path}: ")
        assert len(said.splitlines()) == 1
        assert len(said) < len(str(path)) + 500


def test_no_mutant_of_a_file_is_a_traceback(tmp_path: Path) -> None:
    """Each is read in full or refused in a line."""
    rng = np.random.default_rng(0)
    path = tmp_path / "a.npz"
    whole = {}
    for method in (np.savez, np.savez_compressed):
        method(path, **GOOD, test_images=noise(1, 4, 8, 8), test_labels=np.array([2, 10, 2, 10]))
        whole[method] = path.read_bytes()
    read, refused = 0, []
    for number in range(500):
        content = bytearray(whole[np.savez if number % 2 else np.savez_compressed])
        heads = [place for place in range(len(content) - 2) if content[place : place + 2] == b"PK"]
        for _ in range(int(rng.integers(1, 4))):
            # Half of them in the zip's own headers and what follows them, the arrays'.
            start = int(rng.choice(heads)) if rng.random() < 0.5 else 0
            place = start + int(rng.integers(0, 160 if start else len(content)))
            content[place % len(content)] = int(rng.integers(0, 256))
        if rng.random() < 0.1:
            del content[int(rng.integers(0, len(content))) :]
        path.write_bytes(content)
        for look in (_trained_on, read_set):
            try:
                look(path)
                read += 1
            except DataError as error:
                refused.append(str(error))
    assert min(read, len(refused)) > 50
    assert [said for said in refused if len(said.splitlines()) > 1] == []
    assert all(said.startswith(f"{path}: ") for said in refused)


def _trained_on(path: Path) -> None:
    dataset = opened(path)
    for split in Split:
        dataset.pictures(dataset.labels[0], split)
