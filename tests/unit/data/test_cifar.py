from __future__ import annotations

import functools
import hashlib
import http.server
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.cifar_files import (
    COARSE,
    FINE,
    KINDS,
    Part,
    array,
    batch,
    cifar10_part,
    integer,
    many,
    pack,
    pickled,
    records,
    text,
    write_cifar10,
    write_cifar100,
)
from tests.helpers.samples import noise

from manege.config import DataConfig
from manege.data import KNOWN, ClassCount, Dataset, Split, check, list_datasets, open_dataset
from manege.data.cifar import CIFAR10, CIFAR100, CIFAR100_COARSE, CIFAR_DATASETS, download, locate
from manege.data.cifar_files import read_pickled_batch
from manege.data.dataset import survey
from manege.data.unpickling import read_pickle
from manege.errors import DataError, MachineError

PYTHON, BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"
NAMES = ("cifar10", "cifar100", "cifar100-coarse")


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """A small CIFAR-10, in both layouts."""
    return write_cifar10(tmp_path / "data")


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """A small CIFAR-100, in both layouts."""
    return write_cifar100(tmp_path / "data")


def opened(root: Path, name: str = "cifar10", **options: object) -> Dataset:
    return open_dataset(DataConfig(source=name, root=str(root), **options))


def only(root: Path, folder: str) -> Path:
    """The root with nothing but that folder."""
    for path in root.iterdir():
        if path.name != folder:
            shutil.rmtree(path)
    return root


def content_of(dataset: Dataset) -> dict[tuple[str, Split], tuple[tuple[str, ...], str]]:
    return {
        (label, split): (dataset.names(label, split), dataset.digest(label, split))
        for label in dataset.labels
        for split in Split
    }


# What is in the files.


@pytest.mark.parametrize("folder", [PYTHON, BINARY])
def test_cifar10_has_its_labels_names_and_pictures(ten: Path, folder: str) -> None:
    dataset = opened(only(ten, folder))
    assert (dataset.name, dataset.size, dataset.channels) == ("cifar10", 32, 3)
    assert dataset.labels == KINDS
    assert set(dataset.classes) == {ClassCount(label, 10, 2) for label in KINDS}
    assert dataset.held_out_rule == "official test split"
    parts = [cifar10_part(seed) for seed in range(6)]
    pixels = np.concatenate([part.pixels for part in parts])
    labels = [label for part in parts for label in part.labels["labels"]]
    for split, prefix, start in ((Split.TRAIN, "train", 0), (Split.HELD_OUT, "test", 100)):
        names, pictures = dataset.names("cat", split), dataset.pictures("cat", split)
        for name, picture in zip(names, pictures, strict=True):
            place = start + int(name.removeprefix(f"{prefix}/"))
            assert labels[place] == KINDS.index("cat")
            # A row is the red plane, the green one and the blue one, each row by row.
            row = pixels[place]
            for y, x in ((0, 0), (0, 31), (5, 7), (31, 31)):
                assert (
                    picture[y, x].tolist()
                    == row[[y * 32 + x + 1024 * c for c in range(3)]].tolist()
                )


@pytest.mark.parametrize("folder", ["cifar-100-python", "cifar-100-binary"])
def test_cifar100_goes_by_fine_or_by_coarse_labels(hundred: Path, folder: str) -> None:
    only(hundred, folder)
    fine, coarse = (opened(hundred, name) for name in ("cifar100", "cifar100-coarse"))
    assert (fine.labels, coarse.labels) == (FINE, COARSE)
    assert (fine.name, coarse.name) == ("cifar100", "cifar100-coarse")
    assert set(fine.classes) == {ClassCount(label, 9, 1) for label in FINE}
    assert sum(count.train for count in coarse.classes) == 900
    inside = {label for label in range(100) if (7 * label + 3) % 20 == 4}
    names = {name for label in inside for name in fine.names(FINE[label], Split.TRAIN)}
    assert set(coarse.names("coarse_04", Split.TRAIN)) == names


@pytest.mark.parametrize("name", NAMES)
def test_both_layouts_and_their_archives_give_the_same(tmp_path: Path, name: str) -> None:
    root = (
        write_cifar10(tmp_path / "data") if name == "cifar10" else write_cifar100(tmp_path / "data")
    )
    # Not all of the hundred: every class is a file or two in the cache.
    classes = opened(root, name).labels[:7]
    expected = None
    for layout in CIFAR_DATASETS[name].layouts:
        alone = tmp_path / layout.folder / layout.folder
        shutil.copytree(root / layout.folder, alone)
        archive = pack(alone, tmp_path / f"{layout.folder}-packed" / layout.archive)
        for place in (alone.parent, archive.parent):
            found = content_of(opened(place, name, classes=classes))
            assert expected in (None, found)
            expected = found


def test_the_number_of_pictures_is_the_files_own(ten: Path) -> None:
    for seed, name in enumerate(("data_batch_1", "data_batch_4")):
        (ten / PYTHON / name).write_bytes(batch(cifar10_part(seed, each=3)))
    assert opened(ten).classes[0] == ClassCount("airplane", 12, 2)


def test_labels_are_read_from_the_pictures_files_once(
    ten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opened(ten).classes
    read: list[Path] = []

    def noted(path: Path, *args: object) -> object:
        read.append(path)
        return read_pickled_batch(path, *args)

    layout = replace(CIFAR10.layouts[0], read_batch=noted)
    dataset = replace(CIFAR10, layouts=(layout, CIFAR10.layouts[1]))
    monkeypatch.setitem(CIFAR_DATASETS, "cifar10", dataset)
    assert opened(ten).classes == before
    assert read == []
    (ten / PYTHON / "test_batch").write_bytes(batch(cifar10_part(9, each=3)))
    assert opened(ten).classes[0] == ClassCount("airplane", 10, 3)
    assert read == [ten / PYTHON / "test_batch"]


def test_damaged_labels_in_the_cache_are_read_again(
    ten: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = opened(ten).classes
    for entry in (cache / "labels").glob("*.npy"):
        content = entry.read_bytes()
        entry.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert opened(ten).classes == before
    assert capsys.readouterr().err.count("; made again") == 2


def test_a_file_that_changes_after_opening_is_refused(ten: Path) -> None:
    dataset = opened(ten)
    time.sleep(0.01)
    (ten / PYTHON / "data_batch_2").write_bytes(batch(cifar10_part(9)))
    with pytest.raises(DataError, match="data_batch_2: changed while it was in use"):
        dataset.pictures("cat", Split.TRAIN)


def test_another_size_and_grey_are_resampled_and_the_check_is_content(ten: Path) -> None:
    pictures = opened(ten, size=16, channels=1).pictures("dog", Split.TRAIN)
    assert pictures.shape == (10, 16, 16, 1)
    report = check(DataConfig(source="cifar10", root=str(ten), classes=("cat", "dog")))
    assert report.problems == ()
    assert report.modes == {"RGB": 24}
    assert report.sides.commonest == ((32, 32, 24),)


# Where they lie.


@pytest.mark.parametrize("inside", ["", "cifar10"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("where", ["root", "env", "cache"])
def test_files_and_archives_are_found_where_they_may_lie(
    ten: Path,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    packed: bool,
    inside: str,
) -> None:
    place = cache / "downloads" / "cifar10" if where == "cache" else tmp_path / "p" / inside
    place.mkdir(parents=True)
    if packed:
        expected = pack(ten / BINARY, place / "cifar-10-binary.tar.gz")
    else:
        expected = Path(shutil.copytree(ten / PYTHON, place / PYTHON))
    if where == "env":
        monkeypatch.setenv("MANEGE_DATA", str(tmp_path / "p"))
    root = str(tmp_path / "p") if where == "root" else None
    found = locate(CIFAR10, root)
    assert found is not None
    assert found.path == expected
    assert open_dataset(DataConfig(source="cifar10", root=root)).labels == KINDS
    rows = {row["name"]: row for row in list_datasets(root)}
    assert rows["cifar10"]["where"] == str(expected)
    assert rows["cifar10"]["pictures"] == 60_000


def test_a_folder_goes_before_an_archive_and_may_be_named_itself(ten: Path) -> None:
    pack(ten / PYTHON, ten / "cifar-10-python.tar.gz")
    for root, expected in ((ten, PYTHON), (ten / BINARY, BINARY), (ten / PYTHON, PYTHON)):
        found = locate(CIFAR10, str(root))
        assert found is not None
        assert found.path == ten / expected
    shutil.rmtree(ten / PYTHON)
    found = locate(CIFAR10, str(ten))
    assert found is not None
    assert found.path == ten / BINARY


def test_fine_and_coarse_share_a_place(hundred: Path, tmp_path: Path) -> None:
    hundred.rename(tmp_path / "cifar100")
    for dataset in (CIFAR100, CIFAR100_COARSE):
        found = locate(dataset, str(tmp_path))
        assert found is not None
        assert found.path == tmp_path / "cifar100" / "cifar-100-python"
    assert locate(CIFAR10, str(tmp_path)) is None


def test_an_archive_is_unpacked_once_and_stays_where_it_is(ten: Path, cache: Path) -> None:
    archive = pack(ten / PYTHON, ten / "cifar-10-python.tar.gz")
    for name in (PYTHON, BINARY):
        shutil.rmtree(ten / name)
    opened(ten)
    (unpacked,) = (cache / "unpacked").iterdir()
    files = sorted(path.name for path in (unpacked / PYTHON).iterdir())
    assert files == sorted(CIFAR10.layouts[0].caps)
    before = [path.stat().st_mtime_ns for path in sorted((unpacked / PYTHON).iterdir())]
    opened(ten)
    assert [path.stat().st_mtime_ns for path in sorted((unpacked / PYTHON).iterdir())] == before
    assert [path.name for path in ten.iterdir()] == [archive.name]


def test_a_place_with_some_of_the_files_is_named(ten: Path) -> None:
    only(ten, PYTHON)
    for name in ("data_batch_3", "batches.meta"):
        (ten / PYTHON / name).unlink()
    with pytest.raises(
        DataError,
        match=rf"cifar10 in {ten / PYTHON}: data_batch_3, batches.meta not found; put all 7 files "
        r"there, or cifar-10-python\.tar\.gz beside",
    ):
        opened(ten)
    # An unpacking that somebody broke off does not hide the archive beside it.
    write_cifar10(ten / "whole")
    pack(ten / "whole" / PYTHON, ten / "cifar-10-python.tar.gz")
    assert opened(ten).labels == KINDS


def test_what_is_half_there_in_the_cache_is_no_fault_of_the_users(ten: Path, cache: Path) -> None:
    place = cache / "downloads" / "cifar10"
    shutil.copytree(ten / PYTHON, place / PYTHON)
    (place / PYTHON / "test_batch").unlink()
    assert locate(CIFAR10, None) is None


# Bad files.

GOOD = cifar10_part(0)
TOO_MANY = many([*GOOD.labels["labels"], 3])


def with_labels(labels: bytes) -> bytes:
    return pickled({"labels": labels, "data": array(GOOD.pixels)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickled({"labels": many([1])}), "no data, expected a ndarray; it holds labels;"),
        (pickled({"data": array(GOOD.pixels)}), "no labels, expected a list; it holds data;"),
        (
            pickled({"fine_labels": many([1] * 20), "data": array(GOOD.pixels)}),
            "no labels, expected a list; it holds data, fine_labels",
        ),
        (pickled({"data": text("x"), "labels": many([1])}), "a bytes as data, expected a ndarray"),
        (with_labels(array(GOOD.pixels)), "a ndarray as labels, expected a list"),
        (with_labels(integer(3)), "a int as labels, expected a list"),
        (with_labels(TOO_MANY), "21 labels, expected 20, one for each picture"),
        (with_labels(many([1] * 19)), "19 labels, expected 20"),
        (with_labels(many([1] * 18 + [10, 1])), "label 10 at place 18, expected 0 to 9"),
        (with_labels(many([-1] + [1] * 19)), "label -1 at place 0, expected 0 to 9"),
        (with_labels(many([1] * 19 + ["cat"])), "label a bytes at place 19"),
        (with_labels(b"](" + b"\x89" * 20 + b"e"), "label False at place 0"),
        (
            pickled({"labels": many([1] * 20), "data": array(noise(0, 20, 784))}),
            "data has rows of 784 bytes, expected 3072",
        ),
        (b"\x80\x02cos\nsystem\nU\x04true\x85R.", "not a CIFAR file: it asks for os.system"),
        (batch(GOOD)[:1000], r"damaged, or not a CIFAR file \(.*\)"),
        (b"", "damaged, or not a CIFAR file"),
        (b"<html>404</html>", "not a CIFAR file"),
    ],
)
def test_bad_pickles_are_refused_at_opening(ten: Path, content: bytes, message: str) -> None:
    path = ten / PYTHON / "data_batch_2"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        opened(ten)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("; get the file again")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, expected a multiple of 3073"),
        (records(GOOD)[:-1], "61459 bytes, expected a multiple of 3073"),
        (records(Part(GOOD.pixels, {"labels": [1] * 7 + [10] * 13})), "label 10 at place 7"),
    ],
)
def test_bad_records_are_refused_at_opening(ten: Path, content: bytes, message: str) -> None:
    path = only(ten, BINARY) / BINARY / "data_batch_2.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        opened(ten)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (KINDS[:9], "9 names of classes, expected 10"),
        ((*KINDS, "more"), "11 names of classes, expected 10"),
        ((*KINDS[:9], "cat"), "9 names of classes, expected 10"),
        ((*KINDS[:9], "a/b"), "'a/b' cannot be a label"),
        ((*KINDS[:9], ".."), r"'\.\.' cannot be a label"),
    ],
)
def test_bad_names_are_refused_in_either_layout(ten: Path, names: tuple, message: str) -> None:
    (ten / PYTHON / "batches.meta").write_bytes(pickled({"label_names": many(names)}))
    (ten / BINARY / "batches.meta.txt").write_text("\n".join(names))
    for folder in (PYTHON, BINARY):
        with pytest.raises(DataError, match=message):
            opened(ten / folder)


@pytest.mark.parametrize(
    "content",
    [
        pickled({"labels": many(KINDS)}),
        pickled({"label_names": text("cat")}),
        pickled({"label_names": many([1] * 10)}),
        b"\xff\xfe",
        b"",
    ],
)
def test_a_file_of_names_without_names_is_refused(ten: Path, content: bytes) -> None:
    (ten / PYTHON / "batches.meta").write_bytes(content)
    with pytest.raises(DataError, match=r"batches\.meta: .*get the file again"):
        opened(ten)


def test_a_damaged_archive_is_refused_by_its_name(ten: Path, tmp_path: Path) -> None:
    archive = pack(ten / PYTHON, tmp_path / "p" / "cifar-10-python.tar.gz")
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: (damaged|the archive)"):
        opened(tmp_path / "p")


# Names and downloads.


def test_the_names_are_known_and_proposed(tmp_path: Path) -> None:
    assert set(NAMES) <= set(KNOWN)
    for wrong, right in (
        ("cifar-10", "cifar10"),
        ("CIFAR100", "cifar100"),
        ("cifar100_coarse", NAMES[2]),
    ):
        with pytest.raises(DataError, match=f"did you mean {right}\\?"):
            survey(DataConfig(source=wrong))
    with pytest.raises(DataError, match=r"known are .* cifar10, cifar100, cifar100-coarse"):
        survey(DataConfig(source=str(tmp_path / "nowhere")))
    rows = {row["name"]: row for row in list_datasets(None)}
    for name in NAMES:
        assert rows[name]["where"].endswith(
            "would be downloaded from https://www.cs.toronto.edu/~kriz/"
        )
    order = [row["name"] for row in list_datasets(None)]
    assert order[:6] == ["digits", "mnist", "fashion-mnist", *NAMES]


def test_the_published_hashes_are_those_of_the_page() -> None:
    told = {
        layout.archive: layout.md5
        for dataset in CIFAR_DATASETS.values()
        for layout in dataset.layouts
    }
    assert told == {
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    }


@pytest.mark.parametrize("dataset", CIFAR_DATASETS.values(), ids=lambda dataset: dataset.name)
def test_without_a_network_the_message_says_which_files_go_where(dataset, cache: Path) -> None:
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        download(replace(dataset, url="http://127.0.0.1:9/"))
    assert time.monotonic() - start < 10
    python, binary = dataset.layouts
    message = str(caught.value)
    assert message.startswith(
        f"{dataset.name}: {binary.archive} is not on this machine and could not"
    )
    assert "no connection" in message
    assert (
        f"put {python.archive} or {binary.archive} into {cache / 'downloads' / dataset.home}"
        in message
    )
    assert f"or into a folder {dataset.home}/ below data_root or MANEGE_DATA" in message
    assert "\n" not in message


@pytest.fixture
def server(ten: Path, tmp_path: Path) -> Iterator[str]:
    """An HTTP server with the binary archive of the small CIFAR-10."""
    pack(ten / BINARY, tmp_path / "served" / "cifar-10-binary.tar.gz")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_download_is_checked_kept_and_found_again(
    server: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = (tmp_path / "served" / "cifar-10-binary.tar.gz").read_bytes()
    binary = replace(CIFAR10.layouts[1], md5=hashlib.md5(served).hexdigest())
    dataset = replace(CIFAR10, url=server, layouts=(CIFAR10.layouts[0], binary))
    monkeypatch.setitem(CIFAR_DATASETS, "cifar10", dataset)
    assert open_dataset(DataConfig(source="cifar10")).classes[0] == ClassCount("airplane", 10, 2)
    found = locate(dataset, None)
    assert found is not None
    assert found.path == cache / "downloads" / "cifar10" / "cifar-10-binary.tar.gz"
    (tmp_path / "served" / "cifar-10-binary.tar.gz").unlink()
    assert open_dataset(DataConfig(source="cifar10")).labels == KINDS


def test_a_download_that_is_not_the_published_file_is_refused(server: str, cache: Path) -> None:
    with pytest.raises(DataError, match="what the server gave is not the published file"):
        download(replace(CIFAR10, url=server))
    assert list((cache / "downloads" / "cifar10").iterdir()) == []
    with pytest.raises(DataError, match="the server said 404"):
        download(replace(CIFAR100, url=server))


def test_a_download_into_a_place_that_cannot_be_written_is_a_machine_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(MachineError, match=r"cifar10 cannot be kept there \(Not a directory\)"):
        download(CIFAR10)


# The real ones.


def write_records(python: Path, binary: Path, *keys: bytes) -> None:
    """The binary layout's pictures, from the python layout."""
    binary.mkdir()
    for path in python.iterdir():
        if path.name.startswith(("data", "test", "train")):
            told = read_pickle(path, 256 << 20)
            columns = [np.array(told[key], np.uint8) for key in keys]
            content = np.column_stack([*columns, told[b"data"]])
            (binary / f"{path.name}.bin").write_bytes(content.tobytes())


@pytest.mark.full
def test_cifar10_has_its_known_counts_and_content(real_data: Path, tmp_path: Path) -> None:
    dataset = opened(real_data)
    assert dataset.labels == KINDS
    assert {(count.train, count.held_out) for count in dataset.classes} == {(5000, 1000)}
    label_of = {name: label for label in KINDS for name in dataset.names(label, Split.HELD_OUT)}
    assert [KINDS.index(label_of[f"test/{place}"]) for place in range(5)] == [3, 8, 8, 0, 6]
    few = {"classes": ("cat", "ship", "truck"), "limit_per_class": 50}
    dataset = opened(real_data, **few)
    pictures = dataset.pictures("cat", Split.HELD_OUT)
    assert pictures.shape == (1000, 32, 32, 3)
    # The very first picture, a cat: its first pixels.
    first = pictures[dataset.names("cat", Split.HELD_OUT).index("test/0")]
    assert first[0, :3].tolist() == [[158, 112, 49], [159, 111, 47], [165, 116, 51]]
    digest = hashlib.sha256(pictures.tobytes()).hexdigest()
    assert digest == dataset.digest("cat", Split.HELD_OUT)
    assert digest == "9ea06c82049b95c5088b288d8efe6381b7500b4846eed9fd834625113d776bc9"
    assert (
        dataset.digest("ship", Split.HELD_OUT)
        == "ba1c5e7becd29f21656358030d84e26a43acfaf45a0e2f49f5acfab6f41d3a72"
    )
    assert (
        dataset.digest("truck")
        == "a3601d6eb9615d4b5bf0523e33e7825b85cfda1eb8b883c5f7fe76a45d7d9378"
    )
    write_records(real_data / PYTHON, tmp_path / BINARY, b"labels")
    (tmp_path / BINARY / "batches.meta.txt").write_text("\n".join(KINDS) + "\n\n")
    assert content_of(opened(tmp_path, **few)) == content_of(dataset)


@pytest.mark.full
def test_cifar100_has_its_known_counts_and_content(real_data: Path, tmp_path: Path) -> None:
    fine, coarse = (opened(real_data, name) for name in NAMES[1:])
    assert {count.held_out for count in fine.classes} == {100}
    assert {count.held_out for count in coarse.classes} == {500}
    assert (fine.labels[0], fine.labels[-1], len(fine.labels)) == ("apple", "worm", 100)
    assert (coarse.labels[0], coarse.labels[-1]) == ("aquatic_mammals", "vehicles_2")
    members = ("beaver", "dolphin", "otter", "seal", "whale")
    names = {name for label in members for name in fine.names(label, Split.HELD_OUT)}
    assert set(coarse.names("aquatic_mammals", Split.HELD_OUT)) == names
    binary = tmp_path / "cifar-100-binary"
    keys = (b"coarse_labels", b"fine_labels")
    write_records(real_data / "cifar-100-python", binary, *keys)
    for dataset, kind in ((fine, "fine"), (coarse, "coarse")):
        (binary / f"{kind}_label_names.txt").write_text("\n".join(dataset.labels) + "\n")
    for name, classes in (("cifar100", members), ("cifar100-coarse", ("people", "vehicles_2"))):
        both = [content_of(opened(root, name, classes=classes)) for root in (real_data, tmp_path)]
        assert both[0] == both[1]
