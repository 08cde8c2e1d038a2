"""Data that are objects of a program: each kind, what is refused, and what the cache keeps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.helpers.samples import noise, write_class

from manege import plugins
from manege.config import DataConfig
from manege.data import Split, check, object_name, open_dataset, read_set, store, survey_measured
from manege.errors import ConfigError, DataError, MachineError

IMAGES = noise(0, 40, 16, 16)
LABELS = np.repeat([2, 10], 20)
COLOUR = noise(1, 40, 12, 16, 3)


def opened(source: str, **options: object):
    return open_dataset(DataConfig(source=source, **options))


def digest(source: str) -> str:
    return source.rpartition("-")[2]


def digests(source: str) -> list[str]:
    dataset = opened(source)
    return [dataset.digest(label, split) for label in dataset.labels for split in Split]


def files(cache: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (cache / "objects").iterdir()}


class Items(torch.utils.data.Dataset[Any]):
    """A dataset whose items a function makes."""

    def __init__(self, item: Callable[[int], Any], count: int = 40) -> None:
        self._item, self._count = item, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._item(index)


class Named(Items):
    classes = ("cat", "dog")


def hugging(**more: Any) -> datasets.Dataset:
    pictures = [Image.fromarray(picture) for picture in IMAGES]
    columns = {"pic": pictures, "kind": [0] * 20 + [1] * 20, "note": ["x"] * 40}
    features = {
        "pic": datasets.Image(),
        "kind": datasets.ClassLabel(names=["2", "10"]),
        "note": datasets.Value("string"),
    }
    return datasets.Dataset.from_dict(columns | more, features=datasets.Features(features))


def frame(folder: Path, images: np.ndarray = IMAGES) -> pd.DataFrame:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{place}.png" for place in range(len(images))]
    for path, picture in zip(paths, images, strict=True):
        Image.fromarray(picture).save(path)
    return pd.DataFrame({"file": [str(path) for path in paths], "label": LABELS, "age": 0.5})


def raising(index: int) -> Any:
    if index == 17:
        raise ValueError("no\nsuch file")
    return IMAGES[index], 0


# What is stored.


@pytest.mark.parametrize(
    "images",
    [
        IMAGES,
        IMAGES[..., None],
        IMAGES[:, None],
        torch.from_numpy(IMAGES),
        IMAGES / 255,
        (IMAGES / 255).astype(np.float32),
        torch.from_numpy(IMAGES)[:, None] / 127.5 - 1,
        torch.from_numpy(IMAGES / 255).requires_grad_(),
    ],
    ids=["N,H,W", "N,H,W,1", "N,1,H,W", "tensor", "float64", "float32", "-1 to 1", "grad"],
)
def test_arrays_of_every_layout_and_dtype_are_the_same_data(images: Any) -> None:
    source = store((images, LABELS))
    assert digest(source) == digest(store((IMAGES, LABELS)))
    dataset = opened(source)
    assert (dataset.name, dataset.labels, dataset.size) == ("arrays", ("2", "10"), 16)
    assert [(one.train, one.held_out) for one in dataset.classes] == [(18, 2), (18, 2)]
    name = dataset.names("10", Split.TRAIN)[0]
    picture = IMAGES[int(name.removeprefix("images/")), :, :, None]
    np.testing.assert_array_equal(dataset.pictures("10", Split.TRAIN)[0], picture)


@pytest.mark.parametrize(
    "labels",
    [
        torch.from_numpy(LABELS),
        LABELS.astype(np.uint8),
        LABELS.astype(str),
        LABELS.astype(bytes),
        LABELS.astype(str).astype(np.dtypes.StringDType()),
        LABELS.astype(object),
        LABELS.tolist(),
        [str(label) for label in LABELS],
        list(torch.from_numpy(LABELS)),
        pd.Series(LABELS),
        pd.Series(LABELS.astype(str)),
        pd.Categorical(LABELS),
    ],
)
def test_labels_of_every_type_are_the_same_labels(labels: Any) -> None:
    assert store((IMAGES, labels)) == store((IMAGES, LABELS))


def test_a_list_of_two_arrays_is_meant_as_a_pair() -> None:
    assert store([IMAGES, LABELS]) == store((IMAGES, LABELS))


def test_the_same_pictures_are_the_same_data_whatever_holds_them(tmp_path: Path) -> None:
    wanted = digest(store((IMAGES, LABELS)))
    pictures = [Image.fromarray(picture) for picture in IMAGES]
    pairs = list(zip(pictures, LABELS.tolist(), strict=True))
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    whole = hugging()
    held: dict[str, Any] = {
        "list": pairs,
        "tensors": tensors,
        "part": torch.utils.data.Subset(tensors, range(40)),
        "dicts": Items(lambda place: {"x": pictures[place], "y": str(LABELS[place]), "z": None}),
        "hugging": whole,
        "formatted": whole.with_format("torch"),
        "transformed": whole.with_transform(lambda rows: dict(rows)),
        "frame": frame(tmp_path / "pictures"),
    }
    assert {kind: digest(store(data)) for kind, data in held.items()} == dict.fromkeys(held, wanted)
    names = [object_name(store(data)) for data in held.values()]
    assert names[:4] == ["pictures", "TensorDataset", "TensorDataset", "Items"]
    assert names[-1] == "frame"


def test_arrays_are_held_out_and_decoded_as_an_equal_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=COLOUR, labels=LABELS)
    source = store((COLOUR, LABELS))
    assert opened(source).split_record() == opened(str(tmp_path / "a.npz")).split_record()
    assert digests(source) == digests(str(tmp_path / "a.npz"))
    sets = [read_set(Path(place), size=32) for place in (source, tmp_path / "a.npz")]
    assert sets[0].digest == sets[1].digest
    assert sets[0].name == "arrays"


def test_pictures_of_differing_sizes_are_brought_to_one_as_those_of_a_folder(
    tmp_path: Path,
) -> None:
    write_class(tmp_path / "zoo" / "cat", 10, shape=(20, 30, 3))
    write_class(tmp_path / "zoo" / "dog", 10, shape=(64, 40))
    paths = sorted((tmp_path / "zoo").rglob("*.png"))
    table = pd.DataFrame({"file": map(str, paths), "label": [path.parent.name for path in paths]})
    said: list[str] = []
    dataset = opened(store(table, say=said.append))
    folder = opened(str(tmp_path / "zoo"))
    assert (dataset.size, dataset.channels) == (folder.size, folder.channels) == (32, 3)
    mine, theirs = (
        sorted(picture.tobytes() for split in Split for picture in one.pictures("dog", split))
        for one in (dataset, folder)
    )
    assert mine == theirs
    assert said[1] == (
        "frame: 20 pictures of 30x20 colour to 40x64 grey, 2 classes (cat, dog); 43.6 kB written"
    )
    report = check(DataConfig(source=store(table)))
    assert (report.sides.smallest, report.sides.largest) == ((30, 20), (40, 64))
    assert report.problems == ()


def test_pictures_larger_than_any_network_makes_are_made_smaller() -> None:
    large = Image.fromarray(noise(0, 300, 400))
    dataset = survey_measured(DataConfig(source=store([(large, "a")])), None, None)
    assert dataset.size == 256


def test_floats_that_turn_negative_late_are_read_again_as_minus_1_to_1() -> None:
    scaled = IMAGES.astype(np.float32) / 127.5 - 1
    scaled[:3] = 0.5
    said: list[str] = []
    late = store(Items(lambda place: (scaled[place], int(LABELS[place]))), say=said.append)
    assert digest(late) == digest(store((scaled, LABELS)))
    assert said[1] == "Items: floats below 0 after the first picture; all taken as -1 to 1"


def test_labels_have_the_names_that_a_dataset_gives_them() -> None:
    named = Named(lambda place: (IMAGES[place], torch.tensor(place % 2)))
    assert opened(store(named)).labels == ("cat", "dog")
    part = torch.utils.data.Subset(torch.utils.data.Subset(named, range(30)), range(20))
    source = store(part)
    assert object_name(source) == "Named"
    assert opened(source).labels == ("cat", "dog")


def test_columns_may_be_named(tmp_path: Path) -> None:
    both = hugging().add_column("other", [1, 0] * 20)
    assert opened(store(both, label_column="other")).labels == ("0", "1")
    table = frame(tmp_path / "p").rename(columns={"label": "first"})
    table["second"] = ["a", "b"] * 20
    assert opened(store(table, label_column="second")).labels == ("a", "b")
    assert opened(store(table, image_column="file", label_column="first")).labels == ("2", "10")


# What is said.


def test_what_it_takes_is_said_before_it_is_written(cache: Path) -> None:
    said: list[tuple[str, bool]] = []
    store((COLOUR / 255, LABELS), say=lambda text: said.append((text, cache.exists())))
    assert said == [
        (
            "arrays: 40 pictures of 16x12 colour (float64 taken as 0 to 1), 2 classes (2, 10); "
            "23.0 kB in the cache, and 122.9 kB more there and in memory for training at 32x32",
            False,
        )
    ]


def test_a_dataset_is_described_by_its_first_picture() -> None:
    said: list[str] = []
    data = Items(lambda place: (IMAGES[place], int(LABELS[place])))
    store(data, say=said.append)
    assert said == [
        "Items: 40 pictures, the first 16x16 grey; if all are like it, 10.2 kB in the cache, and "
        "10.2 kB more there and in memory for training at 16x16",
        "Items: 40 pictures of 16x16 grey, 2 classes (2, 10); 10.2 kB written",
    ]
    store(data, say=said.append)
    assert said[-1] == "Items: found in the cache"


# What names it.


def test_a_source_is_no_reference_path_or_name() -> None:
    for name in (None, "abc", "my pets"):
        source = store((IMAGES, LABELS), name=name)
        assert object_name(source) == opened(source).name == (name or "arrays")
        assert re.fullmatch(r"object:.+-[0-9a-f]{40}", source)
        assert not plugins.is_reference(source)
    for other in ("digits", "object:abc", "my_parts:cats", "folder/object.npz"):
        assert object_name(other) is None


def test_the_digest_is_of_pixels_labels_and_their_order() -> None:
    order = np.random.default_rng(0).permutation(40)
    changed = IMAGES.copy()
    changed[5, 3, 3] ^= 1
    sources = [
        store((images, labels))
        for images, labels in (
            (IMAGES, LABELS),
            (changed, LABELS),
            (IMAGES, LABELS[::-1]),
            (IMAGES[order], LABELS[order]),
            (IMAGES.reshape(40, 8, 32), LABELS),
        )
    ]
    assert len(set(sources)) == 5
    # A run of today must find its data tomorrow.
    assert sources[0] == "object:arrays-57aa6df75cbe8d7dfa73f49addc7e11d67cab7ba"


def test_the_same_data_are_written_once(cache: Path) -> None:
    store((IMAGES, LABELS))
    before = files(cache)
    assert len(before) == 2
    store((IMAGES / 255, LABELS.tolist()), name="again")
    store(hugging())
    assert files(cache) == before


def test_another_process_opens_what_a_source_names() -> None:
    source = store((IMAGES, LABELS))
    code = (
        "import sys\n"
        "from manege.config import DataConfig\n"
        "from manege.data import Split, open_dataset\n"
        "dataset = open_dataset(DataConfig(source=sys.argv[1]))\n"
        "print([dataset.digest(l, s) for l in dataset.labels for s in Split])\n"
        "print(sorted({'torch', 'pandas', 'datasets'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, source], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{digests(source)}\n[]\n"


# What is wrong with the cache.


def test_data_that_are_gone_from_the_cache_are_one_line(cache: Path) -> None:
    source = store((IMAGES, LABELS))
    for path in (cache / "objects").iterdir():
        path.unlink()
    with pytest.raises(DataError) as found:
        opened(source)
    assert str(found.value) == (
        f"arrays: the data of digest {digest(source)} are not in the cache ({cache}/objects); call "
        "train again with the same data, which writes them there, or set MANEGE_CACHE to the "
        "folder that has them"
    )
    assert found.value.exit_code == 2
    assert store((IMAGES, LABELS)) == source
    assert opened(source).labels == ("2", "10")


def damage_pixels(array: Path, description: Path) -> None:
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)


def damage_labels(array: Path, description: Path) -> None:
    told = json.loads(description.read_text())
    told["targets"][0] ^= 1
    description.write_text(json.dumps(told))


def damage_description(array: Path, description: Path) -> None:
    description.write_text("[]")


def cut(array: Path, description: Path) -> None:
    array.write_bytes(array.read_bytes()[:-7])


@pytest.mark.parametrize("damage", [damage_pixels, damage_labels, damage_description, cut])
@pytest.mark.parametrize("kind", ["arrays", "items"])
def test_damaged_data_are_refused_and_mended_by_the_same_data(
    cache: Path, damage: Callable[[Path, Path], None], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = list(zip(IMAGES, LABELS.tolist(), strict=True))
    data = (IMAGES, LABELS) if kind == "arrays" else pairs
    source = store(data)
    damage(*(cache / "objects" / f"{digest(source)}{suffix}" for suffix in (".npy", ".json")))
    with pytest.raises(DataError, match=r"are damaged in the cache .*; call train again"):
        digests(source)
    assert store(data) == source
    assert len(digests(source)) == 4


def test_a_full_disk_is_one_line_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "objects").write_text("a file")
    with pytest.raises(MachineError, match="objects cannot be kept there"):
        store((IMAGES, LABELS))


# What is refused.


def test_an_item_that_raises_is_named_with_its_index_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(DataError) as found:
        store(Items(raising))
    assert re.fullmatch(
        r"Items: \S+:Items: item 17 raised ValueError at test_objects.py:\d+ \(no such file\); "
        "mend it, or leave it out",
        str(found.value),
    )
    assert list((cache / "objects").iterdir()) == []


HUGGING = hugging()
BIG = np.zeros((40, 16, 16))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (IMAGES, r"found ndarray of uint8 and shape \(40, 16, 16\), expected \(images, labels\)"),
        (torch.from_numpy(IMAGES), r"found Tensor of torch.uint8 and shape \(40, 16, 16\)"),
        ("digits", "found str, expected"),
        ({"images": IMAGES, "labels": LABELS}, "found dict of 2, expected"),
        ((IMAGES, LABELS, LABELS), "found tuple of 3, expected"),
        (None, "found NoneType"),
        (iter([1]), "found list_iterator"),
        (Items, "found the class Items, not an object of it"),
        ((list(IMAGES), LABELS), r"images are list of 40, expected an array.*numpy.stack"),
        ((IMAGES[:, 0], LABELS), r"images have shape \(40, 16\), expected \(N, H, W\)"),
        ((IMAGES[:0], LABELS[:0]), r"images have shape \(0, 16, 16\)"),
        ((IMAGES[:, :3], LABELS), r"shape \(40, 3, 16\), .* sides of at least 4"),
        ((noise(0, 40, 3, 9, 3), LABELS), r"\(40, 3, 9, 3\).*either end could be the channels"),
        ((noise(0, 40, 16, 16, 4), LABELS), r"\(40, 16, 16, 4\).*; take the transparency away"),
        ((noise(0, 40, 16, 16, 5), LABELS), r"\(40, 16, 16, 5\), expected"),
        ((IMAGES.astype(np.int64), LABELS), r"found int64 of shape .*\.astype\('uint8'\)"),
        ((IMAGES > 5, LABELS), r"found bool of shape \(40, 16, 16\), expected uint8, or floats"),
        ((IMAGES.astype(complex), LABELS), "found complex128"),
        ((IMAGES.astype(object), LABELS), "found object"),
        ((IMAGES * 1.0, LABELS), "float64 of shape .*, from 0 to 255, expected floats from 0 to 1"),
        ((BIG - 1.5, LABELS), "from -1.5 to -1.5, expected floats"),
        ((BIG * np.nan, LABELS), "NaN among them, expected floats"),
        ((BIG + np.inf, LABELS), "from inf to inf, expected floats"),
        ((torch.zeros(40, 16, 16, dtype=torch.bfloat16), LABELS), r"torch.bfloat16.*convert it"),
        ((torch.zeros(40, 16, 16, device="meta"), LABELS), "cannot be read as a numpy array"),
        ((IMAGES, LABELS[:39]), r"labels have shape \(39,\), expected \(40,\), one for each"),
        ((IMAGES, np.eye(40)), r"labels have shape \(40, 40\).*labels.argmax\(1\)"),
        ((IMAGES, LABELS > 5), r"found ndarray of bool and shape \(40,\).*'yes', 'no'"),
        ((IMAGES, LABELS * 1.0), r"found ndarray of float64 .*give whole numbers"),
        ((IMAGES, [True] * 40), "row 0: found bool, expected integers or text"),
        ((IMAGES, ["a"] * 39 + [None]), "row 39: found NoneType, expected integers or text"),
        ((IMAGES, ["a"] * 39 + [float("nan")]), "row 39: found float.*none that is missing"),
        ((IMAGES, [[1]] * 40), "row 0: found list of 1, expected integers or text"),
        ((IMAGES, "cat"), "labels are str, expected an array or a list of 40"),
        ((IMAGES, np.array(["a/b"] * 40)), "labels: 'a/b' cannot be a label"),
        ([], "pictures: no items, expected some"),
        ([1], r"item 0 is int, expected \(picture, label\) or a dict"),
        (list(IMAGES), "item 0 is ndarray of uint8 and shape"),
        ([(IMAGES[0], 1), (IMAGES[1],)], "item 1 is tuple of 1, expected"),
        ([(IMAGES[0], 1), ("x", 1)], "the picture of item 1 is str, expected a PIL image"),
        ([(IMAGES[0], 1), (IMAGES, 1)], r"the picture of item 1 has shape \(40, 16, 16\)"),
        ([(IMAGES[0], 1), (IMAGES[0] * 9.0, 1)], "item 1: float64 of shape .*, from 0 to"),
        ([(IMAGES[0], 1), (IMAGES[0], None)], "the label of item 1: found NoneType"),
        ([(IMAGES[0], 1), (IMAGES[0], 1.5)], "the label of item 1: found float"),
        ([(IMAGES[0], 1), (IMAGES[0], "a/b")], "'a/b' cannot be a label"),
        ([{"a": IMAGES[0], "b": 1}, {"a": IMAGES[0]}], "item 1 is dict of 1.*'a' and 'b'"),
        ([{"a": IMAGES[0], "b": IMAGES[0], "c": 1}], "a, b could all be the pictures; name one"),
        ([{"a": IMAGES[0]}], "none of a holds labels"),
        (Named(lambda place: (IMAGES[place], 2)), "item 0 has label 2, expected 0 to 1"),
        (hugging(kind=[-1] * 40), "item 0 has label -1, expected 0 to 1"),
        (
            datasets.DatasetDict(train=HUGGING),
            r"of train, expected one .*, such as data\['train'\]",
        ),
        (HUGGING.to_iterable_dataset(), "IterableDataset can only be iterated"),
        (HUGGING.remove_columns("pic"), "none of kind, note holds pictures; add such a column"),
        (
            HUGGING.add_column("two", HUGGING["kind"]).cast_column("two", HUGGING.features["kind"]),
            "kind, two could all be the labels",
        ),
        (torch.utils.data.DataLoader(HUGGING), "a DataLoader, expected its dataset"),
        (pd.DataFrame({"file": [], "label": []}), "frame: no rows"),
        (pd.DataFrame({"file": ["a.png"], "label": [1.5]}), "none of file, label holds labels"),
        (pd.DataFrame({"x": [1], "label": [1]}), "none of x, label holds pictures"),
        (
            pd.DataFrame({"file": ["a.png", "b.png"], "label": [1, 2]}),
            "column 'file', row 0: a.png is not there; 1 more are missing",
        ),
        (
            pd.DataFrame({"file": ["a.png", None], "label": [1, 2]}),
            "column 'file', row 1: found .*, expected the path of a file",
        ),
    ],
)
def test_what_is_wrong_is_one_line_without_what_arrays_hold(
    data: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message) as found:
        store(data)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((IMAGES, LABELS), {"image_column": "a"}, "image_column: .* no columns; leave it out"),
        ([(IMAGES[0], 1)], {"label_column": "a"}, "label_column: pictures, .* no columns"),
        (HUGGING, {"label_column": "cls"}, "label_column: dataset has no column 'cls'; choose"),
        ((IMAGES, LABELS), {"name": "a/b"}, "name: found 'a/b', expected printable text"),
        ((IMAGES, LABELS), {"name": "a" * 101}, "at most 100 characters"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    data: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        store(data, **options)


def test_a_broken_file_of_a_frame_is_named_with_its_row(tmp_path: Path) -> None:
    table = frame(tmp_path / "p")
    (tmp_path / "p" / "7.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"frame: row 7: .*7.png: not a PNG.*take the row away"):
        store(table)


PAGE = (Path(__file__).parents[3] / "docs/data.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_of_the_page_is_data(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_class(tmp_path / "pets" / "cat", 10)
    write_class(tmp_path / "pets" / "dog", 10)
    names: dict[str, Any] = {"__name__": "example"}
    exec(code, names)
    dataset = opened(store(names["data"]))
    assert (dataset.labels, dataset.size, dataset.channels) == (("cat", "dog"), 16, 3)
