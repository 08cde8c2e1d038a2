from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.samples import noise

from manege.config import DataConfig
from manege.data import Split, open_dataset
from manege.data import cache as store
from manege.errors import DataError, MachineError

LOAD = (
    "import sys\n"
    "from manege.config import DataConfig\n"
    "from manege.data import Split, open_dataset\n"
    "from manege.errors import ManegeError\n"
    "try: dataset = open_dataset(DataConfig(source=sys.argv[1]))\n"
    "except ManegeError as error: sys.exit(f'{type(error).__name__}: {error}')\n"
    "try: print(dataset.digest('cat'), dataset.pictures('cat', Split.TRAIN).sum())\n"
    "except ManegeError as error: sys.exit(f'{type(error).__name__}: {error}')\n"
)


def opened(root: Path):
    return open_dataset(DataConfig(source=str(root)))


def flipped(content: bytes, *places: int, bit: int = 0) -> bytes:
    changed = bytearray(content)
    for place in places:
        changed[place] ^= 1 << bit
    return bytes(changed)


def loaded_with_small_files(image_folder: Path) -> subprocess.CompletedProcess[str]:
    """What LOAD comes to where no file may have more than 5,000 bytes."""
    return subprocess.run(
        [sys.executable, "-B", "-c", LOAD, image_folder],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000)),
        capture_output=True,
        text=True,
    )


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "pictures").iterdir())


def test_an_entry_reads_back_what_was_stored() -> None:
    array = noise(0, 5, 4, 4, 1)
    entry = store.store(store.key("x"), array.shape, list("abcde"), [array[:3], array[3:]])
    assert entry == store.find(store.key("x"))
    np.testing.assert_array_equal(entry.open(), array)
    assert entry.sha256 == hashlib.sha256(array.tobytes()).hexdigest()


def test_a_kind_of_entry_has_a_folder_of_its_own_and_may_hold_floats(cache: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    blocks = [rows[:2].view(np.uint8), rows[2:].view(np.uint8)]
    entry = store.store(store.key("x"), (5, 12), (), blocks, kind="features")
    assert entry.path.parent == cache / "features"
    assert entry.sha256 == hashlib.sha256(rows.tobytes()).hexdigest()
    found = store.find(store.key("x"), kind="features")
    assert found == entry
    np.testing.assert_array_equal(found.open().view(np.float32), rows)
    assert store.find(store.key("x")) is None


def test_writing_to_the_pictures_changes_no_entry() -> None:
    array = noise(0, 5, 4, 4, 1)
    entry = store.store(store.key("x"), array.shape, list("abcde"), [array])
    mapped = entry.open()
    assert isinstance(mapped, np.memmap)
    assert mapped.flags.writeable
    mapped[:] = 0
    np.testing.assert_array_equal(entry.open(), array)


def test_the_cache_lies_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MANEGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.cache_folder() == tmp_path / "xdg" / "manege"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert store.cache_folder() == tmp_path / "home" / ".cache" / "manege"


def test_a_cached_class_is_not_decoded_again(image_folder: Path) -> None:
    before = opened(image_folder).pictures("cat", Split.TRAIN).copy()
    for path in (image_folder / "cat").iterdir():
        # The same size and time, but nothing left to decode.
        state = path.stat()
        path.write_bytes(b"x" * state.st_size)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    start = time.perf_counter()
    after = open_dataset(DataConfig(source=str(image_folder), size=16, channels=3))
    np.testing.assert_array_equal(after.pictures("cat", Split.TRAIN), before)
    assert time.perf_counter() - start < 1
    with pytest.raises(DataError):
        after.pictures("cat", Split.HELD_OUT)


@pytest.mark.parametrize("change", ["time", "size", "content", "more"])
def test_a_changed_file_makes_a_new_entry(image_folder: Path, cache: Path, change: str) -> None:
    dataset = opened(image_folder)
    before = dataset.digest("cat")
    path = image_folder / "cat" / dataset.names("cat", Split.TRAIN)[0]
    other = image_folder / "dog" / "0.png"
    if change == "time":
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    elif change == "size":
        with path.open("ab") as file:
            file.write(b"trailing bytes change nothing of the picture")
    elif change == "content":
        path.write_bytes(other.read_bytes())
    else:
        (path.parent / "new.png").write_bytes(other.read_bytes())
    after = opened(image_folder).digest("cat")
    assert len([name for name in entries(cache) if name.endswith(".npy")]) == 2
    assert (after == before) == (change in ("time", "size"))


def test_size_and_channels_have_their_own_entries(image_folder: Path) -> None:
    for size, channels in ((16, 3), (16, 1), (8, 3)):
        config = DataConfig(source=str(image_folder), size=size, channels=channels)
        shape = open_dataset(config).pictures("cat", Split.TRAIN).shape
        assert shape == (18, size, size, channels)


def test_an_archive_is_read_once_for_all_classes(tiny_mnist: Path, cache: Path) -> None:
    dataset = open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))
    dataset.pictures("3", Split.TRAIN)
    assert len(entries(cache)) == 20
    path = tiny_mnist / "train-images-idx3-ubyte"
    state = path.stat()
    path.write_bytes(b"\0\0\x08\x03" + path.read_bytes()[4:16] + bytes(state.st_size - 16))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    for label in dataset.labels:
        assert dataset.pictures(label, Split.TRAIN).any()
    with path.open("ab") as file:
        file.write(b"x")
    again = open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))
    with pytest.raises(DataError, match="more than"):
        again.pictures("3", Split.TRAIN)


def test_an_archive_that_changes_between_opening_and_reading_is_refused(tiny_mnist: Path) -> None:
    dataset = open_dataset(DataConfig(source="mnist", root=str(tiny_mnist)))
    os.utime(tiny_mnist / "train-labels-idx1-ubyte", ns=(0, 1))
    with pytest.raises(DataError, match="labels-idx1-ubyte: changed while it was in use"):
        dataset.pictures("3", Split.TRAIN)


def test_only_the_chosen_classes_of_an_archive_are_kept(tiny_mnist: Path, cache: Path) -> None:
    config = DataConfig(source="mnist", root=str(tiny_mnist), classes=("1", "2"))
    open_dataset(config).pictures("1", Split.TRAIN)
    assert len(entries(cache)) == 4


def test_the_description_tells_names_count_and_digest(image_folder: Path, cache: Path) -> None:
    dataset = opened(image_folder)
    digest = dataset.digest("cat")
    description = next((cache / "pictures").glob("*.json"))
    told = json.loads(description.read_bytes())
    assert told["names"] == list(dataset.names("cat", Split.TRAIN))
    assert told["count"] == 18
    assert told["sha256"] == digest
    assert digest == hashlib.sha256(dataset.pictures("cat", Split.TRAIN).tobytes()).hexdigest()


@pytest.mark.parametrize(
    "damage",
    [
        *("no json", "no npy", "short npy", "bad json", "odd json", "deep json", "header"),
        *("two bits", "header bit", "digest bit", "shape"),
    ],
)
def test_a_damaged_entry_is_made_again(
    image_folder: Path, cache: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = opened(image_folder).digest("cat")
    pictures = opened(image_folder).pictures("cat", Split.TRAIN).copy()
    array = next((cache / "pictures").glob("*.npy"))
    description = array.with_suffix(".json")
    content = array.read_bytes()
    if damage == "no json":
        description.unlink()
    elif damage == "no npy":
        array.unlink()
    elif damage == "short npy":
        array.write_bytes(content[:-1])
    elif damage == "bad json":
        description.write_bytes(b"{")
    elif damage == "odd json":
        description.write_bytes(b"[]")
    elif damage == "deep json":
        description.write_bytes(b"[" * 100_000)
    elif damage == "two bits":
        array.write_bytes(flipped(content, len(content) - 1000, len(content) - 1))
    elif damage == "header bit":
        array.write_bytes(flipped(content, content.index(b"fortran")))
    elif damage == "digest bit":
        told = description.read_bytes()
        description.write_bytes(flipped(told, told.index(b"sha256") + 12))
    elif damage == "shape":
        told = description.read_bytes()
        description.write_bytes(told.replace(b"[18, 16, 16, 3]", b"[18, 16, 8, 6]"))
    else:
        array.write_bytes(b"x" * len(content))
    again = opened(image_folder)
    np.testing.assert_array_equal(again.pictures("cat", Split.TRAIN), pictures)
    assert again.digest("cat") == before
    assert array.read_bytes() == content
    assert len(entries(cache)) == 2
    said = capsys.readouterr().err
    if damage in ("no json", "no npy"):
        assert not said
    else:
        assert re.fullmatch(rf"warning: {array}: .*; made again\n", said)


def test_no_flipped_bit_of_an_entry_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    array = noise(0, 5, 4, 4, 1)
    entry = store.store(store.key("x"), array.shape, list("abcde"), [array])
    content = entry.path.read_bytes()
    refused = 0
    for bit in range(8 * len(content)):
        entry.path.write_bytes(flipped(content, bit // 8, bit=bit % 8))
        found = store.find(store.key("x"))
        if found is None:
            refused += 1
        else:
            # In the header, which may say the same in other words.
            assert bit // 8 < len(content) - array.size
            np.testing.assert_array_equal(found.open(), array)
    assert refused > 8 * array.size
    assert len(capsys.readouterr().err.splitlines()) == refused


def test_content_is_hashed_once_and_again_when_the_file_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hashed = []
    real = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, name: hashed.append(file.name) or real(file, name)
    )
    array = noise(0, 5, 4, 4, 1)
    entry = store.store(store.key("x"), array.shape, list("abcde"), [array])
    for _ in range(3):
        assert store.find(store.key("x")) == entry
    assert hashed == [str(entry.path)]
    state = entry.path.stat()
    entry.path.write_bytes(flipped(entry.path.read_bytes(), -1))
    # Whoever turns the clock back is noticed too.
    os.utime(entry.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert store.find(store.key("x")) is None
    assert len(hashed) == 2


def test_one_damaged_class_of_an_archive_is_told_of_once_and_alone_made_again(
    tiny_mnist: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = DataConfig(source="mnist", root=str(tiny_mnist))
    open_dataset(config).pictures("3", Split.TRAIN)
    entry = open_dataset(config).entry("3", Split.TRAIN)
    others = {path: path.stat().st_ino for path in entry.path.parent.glob("*.npy")}
    content = entry.path.read_bytes()
    entry.path.write_bytes(flipped(content, -1))
    assert open_dataset(config).entry("3", Split.TRAIN) == entry
    assert entry.path.read_bytes() == content
    assert len(capsys.readouterr().err.splitlines()) == 1
    changed = {path for path, inode in others.items() if path.stat().st_ino != inode}
    assert changed == {entry.path}


@pytest.mark.full
def test_two_processes_may_mend_the_same_entry_at_once(image_folder: Path, cache: Path) -> None:
    digest = opened(image_folder).digest("cat")
    array = next((cache / "pictures").glob("*.npy"))
    content = array.read_bytes()
    array.write_bytes(flipped(content, -1))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, image_folder], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith(digest)
    assert array.read_bytes() == content
    assert len(entries(cache)) == 2


def test_a_damaged_entry_that_cannot_be_made_again_is_a_fault_of_the_machine(
    image_folder: Path, cache: Path
) -> None:
    opened(image_folder).digest("cat")
    array = next((cache / "pictures").glob("*.npy"))
    array.write_bytes(flipped(array.read_bytes(), -1))
    done = loaded_with_small_files(image_folder)
    damaged, fault = done.stderr.splitlines()
    assert damaged.startswith(f"warning: {array}: ")
    assert fault.startswith(f"MachineError: {cache}: decoded pictures cannot be kept there")


def test_the_kept_digits_are_verified_too(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = open_dataset(DataConfig(source="digits")).split_record()
    (array,) = (cache / "pictures").glob("*.npy")
    # The label of the last digit.
    array.write_bytes(flipped(array.read_bytes(), -1))
    assert open_dataset(DataConfig(source="digits")).split_record() == before
    assert f"warning: {array}: " in capsys.readouterr().err


def test_two_processes_may_build_the_same_entry_at_once(image_folder: Path, cache: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, image_folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0] == outputs[1]
    assert len(entries(cache)) == 2


def test_a_full_disk_is_a_fault_of_the_machine_and_leaves_no_half_entry(
    image_folder: Path, cache: Path
) -> None:
    done = loaded_with_small_files(image_folder)
    assert done.stderr.startswith(f"MachineError: {cache}: decoded pictures cannot be kept there")
    assert "File too large" in done.stderr
    assert "MANEGE_CACHE" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert entries(cache) == []


def test_an_unwritable_cache_is_a_fault_of_the_machine(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "file" / "deeper"))
    with pytest.raises(MachineError, match=r"deeper: .* \(Not a directory\); free some space"):
        opened(image_folder).pictures("cat", Split.TRAIN)


def test_faults_and_short_entries_name_the_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="1 features were made where 2 were promised"):
        store.store("x", (2, 4), (), [noise(0, 1, 4)], kind="features")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(MachineError, match="file: features cannot be kept there"):
        store.store("x", (2, 4), (), [noise(0, 2, 4)], kind="features")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_cache_is_a_fault_of_the_machine(image_folder: Path, cache: Path) -> None:
    cache.mkdir(mode=0o500)
    with pytest.raises(MachineError, match="Permission denied"):
        opened(image_folder).pictures("cat", Split.TRAIN)


def test_a_broken_picture_leaves_no_half_entry(image_folder: Path, cache: Path) -> None:
    dataset = opened(image_folder)
    (image_folder / "cat" / dataset.names("cat", Split.TRAIN)[-1]).write_bytes(b"junk")
    with pytest.raises(DataError):
        dataset.pictures("cat", Split.TRAIN)
    assert entries(cache) == []


def test_what_killed_writers_left_is_swept_after_a_day(image_folder: Path, cache: Path) -> None:
    folder = cache / "pictures"
    folder.mkdir(parents=True)
    for name, age_s in ((".tmp-old", 100_000), (".tmp-new", 60)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    opened(image_folder).pictures("cat", Split.TRAIN)
    assert ".tmp-old" not in entries(cache)
    assert ".tmp-new" in entries(cache)


def test_fewer_blocks_than_promised_are_no_entry() -> None:
    with pytest.raises(ValueError, match="3 pictures were made where 5 were promised"):
        store.store(store.key("x"), (5, 2, 2, 1), list("abcde"), [noise(0, 3, 2, 2, 1)])
    assert store.find(store.key("x")) is None


def test_pictures_become_tensors_without_a_warning(image_folder: Path) -> None:
    torch = pytest.importorskip("torch")
    pictures = opened(image_folder).pictures("cat", Split.TRAIN)
    assert torch.from_numpy(pictures).shape == (18, 16, 16, 3)


def test_the_layer_imports_neither_torch_nor_what_it_needs_seldom() -> None:
    code = (
        "import sys, manege.data, manege.pictures\n"
        "sys.exit(bool({'torch', 'sklearn', 'pooch', 'requests'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
