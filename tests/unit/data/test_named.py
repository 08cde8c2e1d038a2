from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.samples import idx_bytes, noise

from manege.config import DataConfig
from manege.data import KNOWN, ClassCount, Split, list_datasets, open_dataset
from manege.data.published import FASHION, FILES, MNIST, download, locate
from manege.errors import DataError, MachineError

TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_digits_are_there_without_a_download() -> None:
    dataset = open_dataset(DataConfig(source="digits"))
    assert (dataset.name, dataset.size, dataset.channels) == ("digits", 8, 1)
    assert dataset.labels == tuple("0123456789")
    assert sum(count.train + count.held_out for count in dataset.classes) == 1797
    assert dataset.held_out_rule.startswith("10 %")
    pictures = dataset.pictures("0", Split.TRAIN)
    assert pictures.shape == (160, 8, 8, 1)
    assert pictures.max() == 255
    names = {*dataset.names("0", Split.TRAIN), *dataset.names("0", Split.HELD_OUT)}
    assert "digits/0000" in names


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    dataset = open_dataset(DataConfig(source="digits"))
    for split in Split:
        for name, picture in zip(
            dataset.names("7", split), dataset.pictures("7", split), strict=True
        ):
            place = int(name.removeprefix("digits/"))
            assert bunch.target[place] == 7
            expected = np.array([round(value * 255 / 16) for value in bunch.data[place]])
            np.testing.assert_array_equal(picture.ravel(), expected)


@pytest.mark.parametrize("place", ["root", "root/mnist", "env", "env/mnist"])
def test_idx_files_are_found_where_they_may_lie(
    tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tiny_mnist if place in ("root", "env") else tiny_mnist.parent
    if place.startswith("env"):
        monkeypatch.setenv("MANEGE_DATA", str(folder))
    config = DataConfig(source="mnist", root=None if place.startswith("env") else str(folder))
    dataset = open_dataset(config)
    assert dataset.classes[3] == ClassCount("3", 10, 3)
    assert (dataset.size, dataset.channels) == (28, 1)
    assert dataset.held_out_rule == "official test split"


def test_root_goes_before_the_variable(
    tiny_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANEGE_DATA", str(tmp_path))
    found = locate(MNIST, str(tiny_mnist))
    assert found is not None
    assert found[FILES[0]].parent == tiny_mnist
    with pytest.raises(DataError, match=r"data_root /no/where: no such folder"):
        locate(MNIST, "/no/where")


def test_gzipped_and_plain_files_give_the_same(tiny_mnist: Path) -> None:
    config = DataConfig(source="mnist", root=str(tiny_mnist))
    plain = open_dataset(config).digest("4")
    for name in FILES:
        path = tiny_mnist / name
        (tiny_mnist / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert open_dataset(config).digest("4") == plain


def test_pictures_are_those_of_the_file(tiny_mnist: Path) -> None:
    dataset = open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))
    images = noise(1, 100, 28, 28)
    for name, picture in zip(
        dataset.names("4", Split.TRAIN), dataset.pictures("4", Split.TRAIN), strict=True
    ):
        place = int(name.removeprefix("train/"))
        assert place % 10 == 4
        np.testing.assert_array_equal(picture[:, :, 0], images[place])
    assert all(name.startswith("test/") for name in dataset.names("4", Split.HELD_OUT))


def test_another_size_and_colour_are_resampled(tiny_mnist: Path) -> None:
    config = DataConfig(source="mnist", root=str(tiny_mnist), size=32, channels=3)
    assert open_dataset(config).pictures("0", Split.TRAIN).shape == (10, 32, 32, 3)


def test_fashion_has_its_official_names_in_the_official_order(tiny_mnist: Path) -> None:
    tiny_mnist.rename(tiny_mnist.parent / "fashion-mnist")
    dataset = open_dataset(DataConfig(source="fashion-mnist", root=str(tiny_mnist.parent)))
    assert dataset.labels[0] == "t-shirt"
    assert dataset.labels[-1] == "ankle-boot"
    with pytest.raises(DataError, match="nearest is 'sneaker'"):
        open_dataset(
            DataConfig(
                source="fashion-mnist", root=str(tiny_mnist.parent), classes=("sneakers", "bag")
            )
        )


def test_a_place_with_some_of_the_files_is_named(tiny_mnist: Path) -> None:
    (tiny_mnist / FILES[3]).unlink()
    with pytest.raises(DataError, match=r"mnist in .*: t10k-labels-idx1-ubyte not found .* four"):
        open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))


IMAGES, LABELS = FILES[0], FILES[1]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (IMAGES, b"", "too few bytes, expected 2051"),
        (IMAGES, b"\0\0\x08\x03\0\0", "header ends after 6 bytes, expected 16"),
        (IMAGES, idx_bytes(noise(0, 5)), "magic number 2049, expected 2051"),
        (LABELS, idx_bytes(noise(0, 5, 28, 28)), "magic number 2051, expected 2049"),
        (IMAGES, idx_bytes(noise(0, 0, 28, 28)), "0x28x28 pictures, expected some"),
        (LABELS, idx_bytes(np.zeros(99)), "99 labels, expected 100, one for each picture"),
        (LABELS, idx_bytes(np.zeros(100))[:-1], "only 99 bytes after the header, expected 100"),
        (LABELS, idx_bytes(np.zeros(100)) + b"x", "more than 100 bytes after the header"),
        (LABELS, idx_bytes(np.full(100, 10)), "label 10 at place 0, expected 0 to 9"),
        (LABELS, gzip.compress(idx_bytes(np.zeros(100)), mtime=0)[:-9], "damaged gzip file"),
        (LABELS, b"\x1f\x8b\x00garbage", "damaged gzip file"),
        (IMAGES, idx_bytes(noise(0, 100, 20, 20)), r"expected \(20, 20\) as in"),
    ],
)
def test_bad_idx_files_are_refused_at_opening(
    tiny_mnist: Path, file: str, content: bytes, message: str
) -> None:
    (tiny_mnist / file).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))
    assert str(tiny_mnist) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("change", "message"), [(-7, "only 78393 bytes"), (1, "more than 78400 bytes")]
)
def test_the_length_of_the_pictures_is_checked_when_they_are_read(
    tiny_mnist: Path, change: int, message: str, zipped: bool
) -> None:
    path = tiny_mnist / IMAGES
    content = path.read_bytes()
    content = content[:change] if change < 0 else content + b"x" * change
    path.write_bytes(gzip.compress(content) if zipped else content)
    dataset = open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))
    with pytest.raises(DataError, match=message):
        dataset.pictures("0", Split.TRAIN)


def test_a_header_that_promises_terabytes_allocates_none(tiny_mnist: Path) -> None:
    head = b"\0\0\x08\x01" + (2**32 - 1).to_bytes(4, "big")
    (tiny_mnist / LABELS).write_bytes(head + b"xyz")
    said = "the header promises 4294967295 labels, more than 11 bytes can hold"
    with pytest.raises(DataError, match=said):
        open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))


def test_mnist_has_its_known_counts_and_content(real_data: Path) -> None:
    dataset = open_dataset(DataConfig(source="mnist", root=str(real_data)))
    assert [count.train for count in dataset.classes] == TRAIN_COUNTS
    assert [count.held_out for count in dataset.classes] == TEST_COUNTS
    assert sum(TRAIN_COUNTS) == 60_000
    assert sum(TEST_COUNTS) == 10_000
    pictures = dataset.pictures("0", Split.TRAIN)
    assert pictures.shape == (5923, 28, 28, 1)
    assert dataset.digest("0") == hashlib.sha256(pictures.tobytes()).hexdigest()
    assert dataset.digest("0") == (
        "b83f9b2ef6476ad8a178b2f34d714cf7aab74cc2619495130cb96b55ce29bb97"
    )


def test_mnist_is_not_taken_for_fashion(real_data: Path) -> None:
    with pytest.raises(DataError, match="these are the labels of mnist, expected fashion-mnist"):
        open_dataset(DataConfig(source="fashion-mnist", root=str(real_data / "mnist")))


@pytest.mark.skipif(
    FASHION.system is None or not FASHION.system.is_dir(), reason="dataset-fashion-mnist"
)
def test_debians_fashion_mnist_is_found() -> None:
    dataset = open_dataset(DataConfig(source="fashion-mnist"))
    assert {(count.train, count.held_out) for count in dataset.classes} == {(6000, 1000)}


@pytest.fixture
def server(tiny_mnist: Path, tmp_path: Path) -> Iterator[str]:
    """An HTTP server with the four .gz files of the tiny dataset."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name in FILES:
        zipped = gzip.compress((tiny_mnist / name).read_bytes(), mtime=0)
        (folder / f"{name}.gz").write_bytes(zipped)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def hashes(folder: Path) -> tuple[str, ...]:
    return tuple(
        "sha256:" + hashlib.sha256((folder / f"{name}.gz").read_bytes()).hexdigest()
        for name in FILES
    )


def test_a_download_is_checked_kept_and_found_again(
    server: str, tmp_path: Path, cache: Path
) -> None:
    dataset = replace(MNIST, url=server, hashes=hashes(tmp_path / "served"))
    files = download(dataset)
    assert files[IMAGES].parent == cache / "downloads" / "mnist"
    assert locate(dataset, None) == files
    assert open_dataset(DataConfig(source="mnist")).classes[0] == ClassCount("0", 10, 3)


def test_a_download_shows_its_progress_on_a_terminal(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    download(replace(MNIST, url=server, hashes=hashes(tmp_path / "served")))
    lines = terminal.getvalue().splitlines()
    assert f"mnist {IMAGES}: 100 % of 0.1 MB" in lines
    assert sum("100 %" in line for line in lines) >= 4


def test_half_a_download_is_completed(server: str, tmp_path: Path) -> None:
    dataset = replace(MNIST, url=server, hashes=hashes(tmp_path / "served"))
    download(dataset)[LABELS].unlink()
    assert locate(dataset, None) is None
    assert download(dataset)[LABELS].is_file()


def test_a_download_that_is_not_the_published_file_is_refused(server: str, cache: Path) -> None:
    with pytest.raises(DataError, match="what the server gave is not the published file"):
        download(replace(MNIST, url=server))
    assert list((cache / "downloads" / "mnist").iterdir()) == []


def test_a_file_the_server_does_not_have_is_said(server: str, tmp_path: Path) -> None:
    (tmp_path / "served" / f"{IMAGES}.gz").unlink()
    with pytest.raises(DataError, match="the server said 404"):
        download(replace(MNIST, url=server))


def test_without_a_network_the_message_says_which_files_go_where(cache: Path) -> None:
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        download(replace(MNIST, url="http://127.0.0.1:9/"))
    assert time.monotonic() - start < 10
    message = str(caught.value)
    assert "no connection" in message
    assert f"into {cache / 'downloads' / 'mnist'}" in message
    assert all(f"{name}.gz" in message for name in FILES)
    assert "\n" not in message


def test_a_download_into_a_place_that_cannot_be_written_is_a_machine_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(MachineError, match=r"mnist cannot be kept there \(Not a directory\)"):
        download(MNIST)


def test_the_list_says_where_each_dataset_is(tiny_mnist: Path) -> None:
    rows = {row["name"]: row for row in list_datasets(str(tiny_mnist.parent))}
    assert set(KNOWN) <= set(rows)
    assert rows["mnist"]["where"] == str(tiny_mnist)
    assert rows["mnist"]["pictures"] == 70_000
    assert {"FOLDER", "FILE.npz"} <= set(rows)
    if FASHION.system is None or not FASHION.system.is_dir():
        assert "would be downloaded from http" in rows["fashion-mnist"]["where"]


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data mnits: no dataset .* no such path; did you mean mn"):
        open_dataset(DataConfig(source="mnits"))
    with pytest.raises(DataError, match="known are digits, mnist, fashion-mnist"):
        open_dataset(DataConfig(source=str(tmp_path / "nowhere")))
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.zip: a file, but no \.npz"):
        open_dataset(DataConfig(source=str(tmp_path / "a.zip")))
