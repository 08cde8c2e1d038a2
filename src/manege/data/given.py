"""Reads pictures and labels that a Python program holds: arrays, datasets, frames of paths.

Owns how such objects are recognised, which of their columns are meant, and how their values become
bytes and labels. Imports none of the libraries they are from: an object's library is imported
already. A message names an array by its type and shape and never shows what it holds.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from manege import plugins
from manege.config import SIZES
from manege.data import decode
from manege.data.decode import SUFFIXES, Broken, Form
from manege.data.labels import check_label, listed, printable
from manege.errors import ConfigError, DataError, ManegeError, field
from manege.files import user_path
from manege.labels import is_label, shown

LARGEST = max(SIZES)
"""The largest side that networks make; larger pictures of datasets and frames are brought to it."""

ACCEPTED = (
    "(images, labels) arrays, a torch Dataset, a Hugging Face Dataset, or a pandas DataFrame of "
    "paths and labels"
)

_SHAPES = "(N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W) with sides of at least 4"
_SHAPE = "(H, W), (H, W, 1 or 3) or (1 or 3, H, W) with sides of at least 4"
_DTYPES = "uint8, or floats from 0 to 1 or from -1 to 1"
_SMALLEST = 4
"""Sides below this are taken for channels, so that no shape can be read in two ways."""
_BLOCK_BYTES = 1 << 24
_LONGEST_NAME = 100
_DEEPEST = 8
"""How often a part of a part of a dataset is followed to the whole."""
_COLUMNS = {
    "image_column": ("pictures", ("image", "images", "img", "picture", "file", "path")),
    "label_column": ("labels (integers or text)", ("label", "labels", "class", "target")),
}
"""What a column holds, and which of several is meant without a word, by the field that names it."""

Block = tuple[npt.NDArray[np.uint8], list[str]]
"""Pictures of one size, N x H x W x C, and their labels."""


class Signed(Exception):
    """Raised when floats that were taken as 0 to 1 reach below 0 after all."""


@dataclass(frozen=True)
class Given:
    """Pictures and labels of an object, to be read in their order."""

    name: str
    count: int
    first: tuple[int, int, int]
    """Height, width and channels of the first picture."""
    alike: bool
    """Whether all pictures are known to have the size of the first."""
    labels: tuple[str, ...] | None
    """The labels that may occur, where they are known before reading."""
    floats: str
    """What floats are taken as, for people; empty without floats."""
    blocks: Callable[[int], Iterator[Block]]
    """Reads everything; floats as from its argument, 0 or -1, to 1."""
    lowest: int
    """The argument that the first picture asks for."""


def look_at(
    data: Any,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    name: str | None = None,
) -> Given:
    """Return what an object holds, after a look at its first picture; refuse what cannot be read.

    Args:
        data: what :data:`ACCEPTED` lists.
        image_column: the column of pictures, of what has columns; found when None.
        label_column: the column of labels, likewise.
        name: what to call it; what its kind is called when None.
    """
    if name is not None and not (is_label(name) and len(name) <= _LONGEST_NAME):
        raise ConfigError(
            f"{field('name')}: found {shown(name)}, expected printable text without slashes, at "
            f"most {_LONGEST_NAME} characters"
        )
    columns = (image_column, label_column)
    torch, hugging = _torch_data(), sys.modules.get("datasets")
    # A list of two arrays can only be meant so: items would be pairs.
    of_two = isinstance(data, tuple | list) and len(data) == 2
    if of_two and (isinstance(data, tuple) or hasattr(data[0], "__array__")):
        _refuse_columns(columns, "(images, labels)")
        return _look_at_arrays(data[0], data[1], name or "arrays")
    if _is(data, sys.modules.get("pandas"), "DataFrame"):
        return _look_at_frame(data, columns, name or "frame")
    if _is(data, hugging, "DatasetDict") or _is(data, hugging, "IterableDatasetDict"):
        splits = [str(split) for split in data]
        first = f", such as data[{splits[0]!r}]" if splits else ""
        raise DataError(
            f"data: a {type(data).__name__} of {listed(splits) or 'nothing'}, expected one split; "
            f"give one of them{first}"
        )
    if _is(data, hugging, "Dataset") and hasattr(data, "select_columns"):
        return _look_at_hugging(data, columns, name)
    if _is(data, hugging, "IterableDataset") or _is(data, torch, "IterableDataset"):
        raise DataError(
            f"data: {type(data).__name__} can only be iterated, expected a dataset with a length "
            "and items by index; give one of the map style, or a list of (picture, label)"
        )
    if _is(data, torch, "DataLoader"):
        raise DataError(
            "data: a DataLoader, expected its dataset; give loader.dataset, batches are made anew"
        )
    if hasattr(data, "__array__") or isinstance(data, Mapping | str | os.PathLike | bytes | tuple):
        raise DataError(f"data: found {told(data)}, expected {ACCEPTED}")
    has_items = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, type) or not has_items:
        raise DataError(f"data: found {told(data)}, expected {ACCEPTED}")
    return _look_at_items(data, columns, name or _called(data))


def told(value: object) -> str:
    """Return what a value is, its type or dtype and its shape or length, but not what it holds."""
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}, not an object of it"
    if isinstance(value, Image.Image):
        return f"a picture of mode {value.mode}"
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        return f"{kind} of {printable(dtype)} and shape {tuple(shape)}"
    if isinstance(value, tuple | list | Mapping):
        return f"{kind} of {len(value)}"
    return kind


# Arrays.


def _look_at_arrays(images: object, labels: object, name: str) -> Given:
    if not hasattr(images, "__array__"):
        hint = "; stack pictures with numpy.stack" if isinstance(images, list | tuple) else ""
        raise DataError(f"{name}: images are {told(images)}, expected an array {_SHAPES}{hint}")
    pictures = _as_array(images, f"{name}: images")
    shape = pictures.shape
    layout = _layout(shape[1:])
    if layout is None or not len(pictures):
        raise DataError(f"{name}: images have shape {shape}, expected {_SHAPES}{_hint(shape[1:])}")
    _require_dtype(pictures, f"{name}: images")
    lowest = _lowest(pictures, f"{name}: images")
    column = _column(labels, len(pictures), f"{name}: labels")
    found = tuple(dict.fromkeys(column))
    for label in found:
        check_label(label, f"{name}: labels")
    return Given(
        name=name,
        count=len(pictures),
        first=_sizes(shape[1:], layout),
        alike=True,
        labels=found,
        floats=_assumed(pictures.dtype, lowest),
        blocks=partial(_blocks, pictures, layout, column),
        lowest=lowest,
    )


def _blocks(
    pictures: npt.NDArray[Any], layout: str, column: list[str], lowest: int
) -> Iterator[Block]:
    rows = max(1, _BLOCK_BYTES // max(1, pictures[:1].size * 8))
    for start in range(0, len(pictures), rows):
        block = pictures[start : start + rows]
        if layout == "first":
            block = np.moveaxis(block, 1, 3)
        elif layout == "grey":
            block = block[..., np.newaxis]
        yield _bytes(block, lowest), column[start : start + rows]


def _column(labels: object, count: int, where: str) -> list[str]:
    """Return one label for each picture."""
    if isinstance(labels, list | tuple):
        column = np.empty(len(labels), dtype=object)
        for row, label in enumerate(labels):  # All at once, numpy would look into each.
            column[row] = label
    elif hasattr(labels, "__array__"):
        column = _as_array(labels, where)
    else:
        raise DataError(f"{where} are {told(labels)}, expected an array or a list of {count}")
    if column.shape != (count,):
        hint = "; give their positions, labels.argmax(1)" if column.ndim == 2 else ""
        raise DataError(
            f"{where} have shape {column.shape}, expected ({count},), one for each picture{hint}"
        )
    if column.dtype.kind in "OT":
        texts = [label_text(value) for value in column.tolist()]
        for row, text in enumerate(texts):
            if text is None:
                raise _no_label(f"{where}, row {row}", column[row])
        return [str(text) for text in texts]
    if column.dtype.kind not in "iuUS":
        raise _no_label(where, column)
    distinct, places = np.unique(column, return_inverse=True)
    words = [str(label_text(value)) for value in distinct.tolist()]
    return [words[place] for place in places.tolist()]


# Items.


@dataclass(frozen=True)
class _Items:
    """A dataset of items by index: how one becomes a picture and a label."""

    data: Any
    name: str
    image: str | None
    """The key of the picture in a dict; None where items are pairs."""
    label: str | None
    names: tuple[str, ...] | None
    """The names of labels that are numbers, if the dataset has any."""

    def blocks(self, count: int, lowest: int) -> Iterator[Block]:
        for index in range(count):
            picture, label = self.split(self.item(index), index)
            yield _small(self.picture(picture, index, lowest))[np.newaxis], [label]

    def item(self, index: int) -> Any:
        try:
            return self.data[index]
        except ManegeError:
            raise
        except Exception as error:
            kind = type(self.data)
            said = plugins.told(error, f"{kind.__module__}:{kind.__qualname__}", f"item {index}")
            raise DataError(f"{self.name}: {printable(said)}; mend it, or leave it out") from error

    def split(self, item: Any, index: int) -> tuple[Any, str]:
        """Return an item's picture and the text of its label."""
        if self.image is not None:
            try:
                picture, label = item[self.image], item[self.label]
            except Exception as error:
                raise DataError(
                    f"{self.name}: item {index} is {told(item)}, expected a dict with "
                    f"{self.image!r} and {self.label!r}"
                ) from error
        elif isinstance(item, tuple | list) and len(item) == 2:
            picture, label = item
        else:
            raise DataError(
                f"{self.name}: item {index} is {told(item)}, expected (picture, label) or a dict"
            )
        return picture, self.label_of(label, index)

    def label_of(self, value: object, index: int) -> str:
        text = label_text(value)
        if text is None:
            raise _no_label(f"{self.name}: the label of item {index}", value)
        if self.names is None or isinstance(value, str | bytes):
            return text
        if not 0 <= int(text) < len(self.names):
            raise DataError(
                f"{self.name}: item {index} has label {text}, expected 0 to {len(self.names) - 1}, "
                f"a place among its {len(self.names)} names; leave out what has no label"
            )
        return self.names[int(text)]

    def picture(self, value: object, index: int, lowest: int) -> npt.NDArray[np.uint8]:
        where = f"{self.name}: the picture of item {index}"
        if isinstance(value, Image.Image):
            try:
                return decode.pixels_of(value)
            except Broken as error:
                raise DataError(f"{where} is broken ({printable(error)}); mend it") from error
        if not hasattr(value, "__array__"):
            raise DataError(f"{where} is {told(value)}, expected a PIL image, an array or a tensor")
        array = _as_array(value, where)
        layout = _layout(array.shape)
        if layout is None:
            raise DataError(
                f"{where} has shape {array.shape}, expected {_SHAPE}{_hint(array.shape)}"
            )
        _require_dtype(array, where)
        if _lowest(array, where) < lowest:
            raise Signed
        if layout == "first":
            array = np.moveaxis(array, 0, 2)
        elif layout == "grey":
            array = array[..., np.newaxis]
        return _bytes(array, lowest)


def _look_at_items(data: Any, columns: tuple[str | None, str | None], name: str) -> Given:
    names = _class_names(data)
    items = _Items(data, name, None, None, names)
    count = _length(data, name)
    first = items.item(0)
    if isinstance(first, Mapping):
        keys = [str(key) for key in first]
        pictures = [key for key in keys if _may_be_picture(first[key])]
        image = _pick("image_column", columns[0], pictures, keys, name)
        labels = [key for key in keys if key != image and label_text(first[key]) is not None]
        label = _pick("label_column", columns[1], labels, keys, name)
        items = _Items(data, name, image, label, names)
    else:
        _refuse_columns(columns, f"{name}, whose items are {told(first)},")
    return _given(items, count, first)


def _look_at_hugging(data: Any, columns: tuple[str | None, str | None], name: str | None) -> Given:
    called = getattr(getattr(data, "info", None), "dataset_name", None)
    name = name or (called if is_label(called) else "dataset")
    features = {str(key): feature for key, feature in data.features.items()}
    kinds = {key: type(feature).__name__ for key, feature in features.items()}
    pictures = [key for key, kind in kinds.items() if kind == "Image"]
    image = _pick("image_column", columns[0], pictures, list(features), name)
    labels = [key for key, kind in kinds.items() if kind == "ClassLabel"] or [
        key
        for key, feature in features.items()
        if kinds[key] == "Value" and str(feature.dtype).startswith(("int", "uint", "string"))
    ]
    label = _pick("label_column", columns[1], labels, list(features), name)
    names = getattr(features[label], "names", None)
    # No other column is decoded, unless a function of the user's may want it.
    if data.format["type"] != "custom":
        data = data.select_columns([image, label])
    items = _Items(data, name, image, label, None if names is None else tuple(map(str, names)))
    count = _length(data, name)
    return _given(items, count, items.item(0))


def _given(items: _Items, count: int, item: Any) -> Given:
    picture, _ = items.split(item, 0)
    lowest = 0
    try:
        first = items.picture(picture, 0, lowest)
    except Signed:
        lowest = -1
        first = items.picture(picture, 0, lowest)
    floats = ""
    if hasattr(picture, "__array__") and not isinstance(picture, Image.Image):
        floats = _assumed(_as_array(picture, items.name).dtype, lowest)
    return Given(
        name=items.name,
        count=count,
        first=_shape(_small(first)),
        alike=False,
        labels=items.names,
        floats=floats,
        blocks=partial(items.blocks, count),
        lowest=lowest,
    )


def _class_names(data: Any) -> tuple[str, ...] | None:
    """Return the names that a dataset, or the one it is a part of, has for its labels."""
    names = getattr(_whole(data), "classes", None)
    if not isinstance(names, list | tuple) or not names:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def _length(data: Any, name: str) -> int:
    try:
        count = len(data)
    except Exception as error:
        said = plugins.told(error, f"{type(data).__module__}:{type(data).__qualname__}", "its len")
        raise DataError(f"{name}: {printable(said)}; a dataset needs a length") from error
    if count == 0:
        raise DataError(f"{name}: no items, expected some")
    return count


def _whole(data: Any) -> Any:
    """Return the dataset that another is a part of (torch's Subset), else the dataset itself."""
    for _ in range(_DEEPEST):
        if hasattr(data, "classes"):
            break
        data = getattr(data, "dataset", data)
    return data


def _called(data: object) -> str:
    """Return what a dataset is called by its class, that of the whole if it is a part of one."""
    kind = type(_whole(data)).__name__
    return "pictures" if kind == "list" or not is_label(kind) else kind


# Frames.


def _look_at_frame(data: Any, columns: tuple[str | None, str | None], name: str) -> Given:
    if not len(data):
        raise DataError(f"{name}: no rows, expected some")
    keys = [str(key) for key in data.columns]
    if repeated := [key for key in keys if keys.count(key) > 1]:
        raise DataError(f"{name}: {repeated[0]!r} names two columns; rename one")
    values = {key: data.iloc[:, place].tolist() for place, key in enumerate(keys)}
    paths = [key for key in keys if _may_be_path(values[key][0])]
    image = _pick("image_column", columns[0], paths, keys, name)
    labels = [key for key in keys if key != image and label_text(values[key][0]) is not None]
    label = _pick("label_column", columns[1], labels, keys, name)
    files = _files(values[image], f"{name}: column {image!r}")
    column = _column(values[label], len(files), f"{name}: column {label!r}")
    found = tuple(dict.fromkeys(column))
    for text in found:
        check_label(text, f"{name}: column {label!r}")
    return Given(
        name=name,
        count=len(files),
        first=_shape(_file_pixels(files[0], f"{name}: row 0")),
        alike=False,
        labels=found,
        floats="",
        blocks=lambda _: (
            (_file_pixels(file, f"{name}: row {row}")[np.newaxis], [column[row]])
            for row, file in enumerate(files)
        ),
        lowest=0,
    )


def _files(values: Sequence[Any], where: str) -> list[Path]:
    """Return the paths of a column; refuse what is none, and files that are not there."""
    for row, value in enumerate(values):
        if not isinstance(value, str | os.PathLike):
            raise DataError(f"{where}, row {row}: found {told(value)}, expected the path of a file")
    files = [user_path(value) for value in values]
    missing = [row for row, file in enumerate(files) if not _is_file(file)]
    if missing:
        raise DataError(
            f"{where}, row {missing[0]}: {printable(files[missing[0]])} is not there; "
            f"{len(missing) - 1} more are missing; paths are relative to {printable(Path.cwd())}; "
            "bring the files or take the rows away"
        )
    return files


def _file_pixels(file: Path, where: str) -> npt.NDArray[np.uint8]:
    try:
        return _small(decode.read_pixels(file))
    except Broken as error:
        raise DataError(
            f"{where}: {printable(file)}: {printable(error)}; mend the file or take the row away"
        ) from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _may_be_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and Path(value).suffix.lower() in SUFFIXES


# Columns.


def _pick(
    key: str, given: str | None, candidates: Sequence[str], every: Sequence[str], name: str
) -> str:
    """Return the column that was named, or the only one that can be meant."""
    what, usual = _COLUMNS[key]
    if given is not None:
        if given not in every:
            raise ConfigError(
                f"{field(key)}: {name} has no column {shown(given)}; choose among {listed(every)}"
            )
        return given
    called = [column for column in candidates if column.lower() in usual]
    for found in (candidates, called):
        if len(found) == 1:
            return found[0]
    if candidates:
        raise DataError(
            f"{name}: {listed(candidates)} could all be the {what}; name one with {field(key)}"
        )
    raise DataError(
        f"{name}: none of {listed(every)} holds {what}; add such a column, or name it with "
        f"{field(key)}"
    )


def _refuse_columns(columns: tuple[str | None, str | None], what: str) -> None:
    for key, given in zip(("image_column", "label_column"), columns, strict=True):
        if given is not None:
            raise ConfigError(f"{field(key)}: {what} has no columns; leave it out")


# Values.


def label_text(value: object) -> str | None:
    """Return the label that a value spells; None for what is neither an integer nor text."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, int | np.integer):
        return str(int(value))
    # An array or a tensor of one number.
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        found = value.item()
        return None if hasattr(found, "shape") else label_text(found)
    return None


def _no_label(where: str, value: object) -> DataError:
    hint = ""
    kind = str(getattr(value, "dtype", type(value).__name__))
    if "bool" in kind:
        hint = "; give each a name, numpy.where(labels, 'yes', 'no')"
    elif "float" in kind:
        hint = "; give whole numbers, and none that is missing"
    return DataError(f"{where}: found {told(value)}, expected integers or text{hint}")


def _as_array(value: Any, where: str) -> npt.NDArray[Any]:
    torch = sys.modules.get("torch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if torch is not None and isinstance(value, torch.Tensor):
                value = value.detach().cpu()
            return np.asarray(value)
    except Exception as error:
        reason = printable(" ".join(str(error).split()))[:100] or type(error).__name__
        raise DataError(
            f"{where}: {told(value)} cannot be read as a numpy array ({reason}); convert it first"
        ) from error


def _layout(shape: tuple[int, ...]) -> str | None:
    """Return where a picture's channels lie: ``grey`` (none), ``last``, ``first``; else None."""
    if len(shape) == 2 and min(shape) >= _SMALLEST:
        return "grey"
    if len(shape) == 3 and shape[2] in (1, 3) and min(shape[:2]) >= _SMALLEST:
        return "last"
    if len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST:
        return "first"
    return None


def _hint(shape: tuple[int, ...]) -> str:
    """Return what else to say about a picture's shape that is refused."""
    if len(shape) == 3 and shape[0] in (1, 3) and shape[2] in (1, 3):
        return "; either end could be the channels"
    if len(shape) == 3 and 4 in (shape[0], shape[2]):
        return "; take the transparency away"
    return ""


def _may_be_picture(value: object) -> bool:
    if isinstance(value, Image.Image):
        return True
    shape = getattr(value, "shape", None)
    return hasattr(value, "__array__") and isinstance(shape, tuple) and _layout(shape) is not None


def _sizes(shape: tuple[int, ...], layout: str) -> tuple[int, int, int]:
    """Return height, width and channels of a picture."""
    if layout == "grey":
        return shape[0], shape[1], 1
    return (shape[1], shape[2], shape[0]) if layout == "first" else (shape[0], shape[1], shape[2])


def _require_dtype(array: npt.NDArray[Any], where: str) -> None:
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        hint = "; convert them with .astype('uint8')" if array.dtype.kind in "iu" else ""
        raise DataError(
            f"{where}: found {printable(array.dtype)} of shape {array.shape}, expected "
            f"{_DTYPES}{hint}"
        )


def _lowest(array: npt.NDArray[Any], where: str) -> int:
    """Return -1 if there are floats below 0, else 0; refuse those that lie beyond -1 or 1."""
    if array.dtype.kind != "f":
        return 0
    low, high = float(array.min()), float(array.max())
    # Written so that NaN fails too.
    if not (low >= -1 and high <= 1):
        found = "NaN among them" if np.isnan(low) or np.isnan(high) else f"from {low:g} to {high:g}"
        raise DataError(
            f"{where}: {array.dtype} of shape {array.shape}, {found}, expected floats from 0 to 1 "
            "or from -1 to 1; scale them, or give uint8"
        )
    return -1 if low < 0 else 0


def _assumed(dtype: np.dtype[Any], lowest: int) -> str:
    return f"{dtype} taken as {lowest} to 1" if dtype.kind == "f" else ""


def _bytes(values: npt.NDArray[Any], lowest: int) -> npt.NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return values
    return np.rint((values.astype(np.float64) - lowest) * (255 / (1 - lowest))).astype(np.uint8)


def _small(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return a picture that no network could use whole in the largest form that one can."""
    if min(pixels.shape[:2]) <= LARGEST:
        return pixels
    return decode.array_to_form(pixels, Form(LARGEST, pixels.shape[2]))


def _shape(pixels: npt.NDArray[np.uint8]) -> tuple[int, int, int]:
    return pixels.shape[0], pixels.shape[1], pixels.shape[2]


# Libraries.


def _torch_data() -> Any:
    return sys.modules.get("torch.utils.data")


def _is(value: object, library: Any, name: str) -> bool:
    """Return whether a value is an instance of a class of a library; no if it is not imported."""
    kind = getattr(library, name, None)
    return isinstance(kind, type) and isinstance(value, kind)
