"""Datasets in one .npz file: ``images`` and ``labels``, maybe ``test_images``, ``test_labels``.

Opening reads the labels and the header of the pictures; nothing is ever unpickled. Labels may be
missing, and pictures be points, only where nothing is to be trained.
"""

from __future__ import annotations

import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from manege.data.arrays import POINT, ArraySource, Part, stamp, unreadable
from manege.data.labels import check_label, natural
from manege.data.split import Split
from manege.errors import DataError

_KEYS = {Split.TRAIN: ("images", "labels"), Split.HELD_OUT: ("test_images", "test_labels")}
_SHAPES = "(N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W)"
_NO_LABEL = "all"


def open_npz(path: Path) -> ArraySource:
    """The dataset in that file."""
    present = _members(path)
    _require(path, present, "images", "labels")
    half = [key for key in _KEYS[Split.HELD_OUT] if key in present]
    if len(half) == 1:
        raise DataError(
            f"{path}: {half[0]!r} stands alone; expected test_images and test_labels, or neither"
        )
    source = _open(path, tuple(Split) if half else (Split.TRAIN,), labelled=True)
    if source.shape == POINT:
        raise DataError(f"{path}: images are points, (N, 1, 1, 2), expected {_SHAPES}")
    return source


def open_pictures(path: Path) -> tuple[ArraySource, bool]:
    """The pictures or points in that file, and whether it has their labels."""
    present = _members(path)
    _require(path, present, "images")
    splits = tuple(split for split in Split if _KEYS[split][0] in present)
    labels = [_KEYS[split][1] for split in splits]
    labelled = [key for key in labels if key in present]
    if labelled and labelled != labels:
        missing = next(key for key in labels if key not in present)
        raise DataError(f"{path}: {labelled[0]!r} without {missing!r}; expected both or neither")
    return _open(path, splits, labelled=bool(labelled)), bool(labelled)


def _require(path: Path, present: set[str], *keys: str) -> None:
    for key in keys:
        if key not in present:
            wanted = ", ".join(f"{one}=..." for one in keys)
            raise DataError(
                f"{path}: no array {key!r}, found {', '.join(sorted(present)) or 'none'}; "
                f"save it with numpy.savez(file, {wanted})"
            )


def _open(path: Path, splits: tuple[Split, ...], *, labelled: bool) -> ArraySource:
    """Those parts of the file; one class of everything when it has no labels."""
    shapes = {split: _header(path, _KEYS[split][0]) for split in splits}
    names = {
        split: _read_labels(path, _KEYS[split][1], shapes[split][0])
        if labelled
        else [_NO_LABEL] * shapes[split][0]
        for split in splits
    }
    if len({shape[1:] for shape in shapes.values()}) > 1:
        raise DataError(
            f"{path}: images are {shapes[Split.TRAIN][1:]} and test_images "
            f"{shapes[Split.HELD_OUT][1:]} (height, width, channels); expected the same"
        )
    if shapes[Split.TRAIN][0] == 0:
        raise DataError(f"{path}: no pictures in images, expected some")
    found = {label for column in names.values() for label in column}
    for label in sorted(found):
        check_label(label, f"{path}: labels")
    labels = natural(found)
    places = {label: place for place, label in enumerate(labels)}
    parts = {
        split: Part(
            prefix=_KEYS[split][0],
            targets=np.array([places[label] for label in names[split]], dtype=np.int64),
            pictures=partial(_read_pictures, path, _KEYS[split][0]),
            stamps=(stamp(path), _KEYS[split][0]),
        )
        for split in splits
    }
    return ArraySource(
        name=path.stem,
        labels=labels,
        parts=parts,
        shape=shapes[Split.TRAIN][1:],
        official="test_images" if Split.HELD_OUT in splits else None,
    )


def _members(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: not a .npz file ({error}); save it with numpy.savez") from error
    except OSError as error:
        raise unreadable(path, error) from error
    return {name.removesuffix(".npy") for name in names if name.endswith(".npy")}


def _header(path: Path, key: str) -> tuple[int, int, int, int]:
    """Count, height, width and channels of the pictures, from the array's header alone."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
            version = np.lib.format.read_magic(file)
            reader = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = reader(file)
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise _damaged(path, key, error) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if dtype != np.uint8 and dtype.kind != "f":
        raise DataError(
            f"{path}: {key} has dtype {dtype}, expected uint8, or floats between 0 and 1"
        )
    if len(shape) == 3:
        shape = (*shape, 1)
    elif len(shape) == 4 and _channels_first(shape):
        shape = (shape[0], shape[2], shape[3], shape[1])
    channels_last = len(shape) == 4 and (shape[3] in (1, 3) or shape[1:] == POINT)
    if len(shape) != 4 or not channels_last or 0 in shape[1:]:
        raise DataError(f"{path}: {key} has shape {shape}, expected {_SHAPES}")
    return shape


def _channels_first(shape: tuple[int, ...]) -> bool:
    # Points could be taken for grey pictures of 1 x 2, which nobody has.
    return shape[3] not in (1, 3) and shape[1] in (1, 3) and shape[1:] != POINT


def _read_labels(path: Path, key: str, count: int) -> list[str]:
    column = _load(path, key)
    if column.shape != (count,):
        raise DataError(
            f"{path}: {key} has shape {column.shape}, expected ({count},), one for each picture"
        )
    if column.dtype.kind not in "iuUS":
        raise DataError(f"{path}: {key} has dtype {column.dtype}, expected integers or strings")
    if column.dtype.kind == "S":
        return [value.decode("utf-8", "backslashreplace") for value in column.tolist()]
    return [str(value) for value in column.tolist()]


def _read_pictures(path: Path, key: str) -> npt.NDArray[np.uint8]:
    pictures = _load(path, key)
    if pictures.ndim == 3:
        pictures = pictures[..., np.newaxis]
    elif _channels_first(pictures.shape):
        pictures = pictures.transpose(0, 2, 3, 1)
    if pictures.dtype == np.uint8:
        return pictures.astype(np.uint8, copy=False)
    low, high = (float(pictures.min()), float(pictures.max())) if pictures.size else (0.0, 0.0)
    # Written so that NaN fails too.
    if not (low >= 0 and high <= 1):
        raise DataError(
            f"{path}: {key} are floats from {low:g} to {high:g}, expected 0 to 1; "
            "scale them or save uint8"
        )
    return np.rint(pictures.astype(np.float64) * 255).astype(np.uint8)


def _load(path: Path, key: str) -> npt.NDArray[np.generic]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            array: npt.NDArray[np.generic] = archive[key]
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise _damaged(path, key, error) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return array


def _damaged(path: Path, key: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split())
    return DataError(
        f"{path}: array {key!r} cannot be read ({reason}); save it again as plain data"
    )
