"""Small files that claim, or unzip to, much: refused in a line before memory is taken."""

from __future__ import annotations

import gzip
import io
import re
import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.samples import idx_bytes

MB = 1_000_000
MOST = 100 * MB
"""What refusing may take, beyond what the interpreter has."""

OPEN = (
    "import sys\n"
    "from pathlib import Path\n"
    "from manege.config import DataConfig\n"
    "from manege.data import Split, open_dataset, read_set\n"
    "from manege.errors import ManegeError\n"
    # Not ru_maxrss, which a process inherits from the one that started it.
    "def peak():\n"
    "    lines = Path('/proc/self/status').read_text().splitlines()\n"
    "    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) * 1024\n"
    "source, root = sys.argv[1:]\n"
    "before = peak()\n"
    "try:\n"
    "    if root == 'measured':\n"
    "        read_set(Path(source))\n"
    "    else:\n"
    "        dataset = open_dataset(DataConfig(source=source, root=root or None))\n"
    "        dataset.pictures(dataset.labels[0], Split.TRAIN)\n"
    "    said = 'taken'\n"
    "except ManegeError as error: said = f'{type(error).__name__}: {error}'\n"
    "print(peak() - before)\n"
    "print(said)\n"
)


def opened(source: str | Path, root: str | Path = "") -> tuple[int, str]:
    """Bytes that opening and decoding took at most, and what came of it."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, source, root],
        # So that a failure costs the machine no more.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4000 * MB, 4000 * MB)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    took, said = done.stdout.splitlines()
    return int(took), said


def header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    """What begins an array's file."""
    file = io.BytesIO()
    told = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, told)
    return file.getvalue()


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def relabelled_size(path: Path, member: str, size: int) -> Path:
    """The zip's directory and the member's own header claim that size."""
    content = bytearray(path.read_bytes())
    name = f"{member}.npy".encode()
    for mark, sizes, names in ((b"PK\3\4", 22, 30), (b"PK\1\2", 24, 46)):
        place = content.find(mark)
        while content[place + names : place + names + len(name)] != name:
            place = content.find(mark, place + 1)
        struct.pack_into("<I", content, place + sizes, size)
    path.write_bytes(content)
    return path


MANY = 60_000_000
FEW = {"images": header((20, 8, 8)) + bytes(1280), "labels": header((20,)) + bytes(20)}

BOMBS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "pictures that are not there": (
        lambda path: zipped(path, images=header((10**9, 28, 28)), labels=header((10**9,))),
        "array 'images' claims 1000000000x28x28 of uint8",
    ),
    "pictures that the directory claims too": (
        lambda path: relabelled_size(
            zipped(path, **(FEW | {"images": header((4_000_000, 32, 32))})), "images", 4096 * MB
        ),
        "array 'images' claims",
    ),
    "labels of pictures that are not there": (
        lambda path: zipped(
            path, images=header((MANY, 28, 28)), labels=header((MANY,)) + bytes(MANY)
        ),
        "array 'images' claims 60000000x28x28 of uint8",
    ),
    "labels without pictures": (
        lambda path: zipped(path, **(FEW | {"labels": header((200 * MB,)) + bytes(200 * MB)})),
        r"labels has shape \(200000000,\), expected \(20,\), one for each picture",
    ),
    "pictures of one pixel": (
        lambda path: zipped(
            path, images=header((MANY, 1, 1)) + bytes(MANY), labels=header((MANY,)) + bytes(MANY)
        ),
        "60,000,000 pictures in 1[0-9]{2},[0-9]{3} bytes, expected at most",
    ),
    "labels of ten million letters": (
        lambda path: zipped(
            path, **(FEW | {"labels": header((20,), "|S10000000") + b"\xff" * 200 * MB})
        ),
        r"labels has dtype \|S10000000, expected integers, or strings of at most",
    ),
    "labels without a letter": (
        lambda path: zipped(path, images=FEW["images"], labels=header((10**9,), "|S0")),
        r"labels has shape \(1000000000,\), expected \(20,\)",
    ),
    "a header of half a gigabyte": (
        lambda path: zipped(
            path,
            images=b"\x93NUMPY\2\0" + struct.pack("<I", 500 * MB) + b" " * 500 * MB,
            labels=FEW["labels"],
        ),
        "array 'images' cannot be read",
    ),
}


# Much has to be packed first.
LONG = {
    "labels of pictures that are not there",
    "pictures of one pixel",
    "labels without pictures",
    "labels of ten million letters",
    "a header of half a gigabyte",
}


@pytest.mark.parametrize(
    "bomb", [pytest.param(one, marks=pytest.mark.full) if one in LONG else one for one in BOMBS]
)
def test_a_small_npz_takes_little(tmp_path: Path, bomb: str) -> None:
    write, message = BOMBS[bomb]
    path = write(tmp_path / "a.npz")
    assert path.stat().st_size < MB
    for root in ("", "measured"):
        took, said = opened(path, root)
        assert said.startswith(f"DataError: {path}: "), said
        assert re.search(message, said), said
        assert took < MOST


@pytest.mark.full
@pytest.mark.parametrize("shape", [(40_001, 100, 100), (39_999, 100, 100), (2**31, 2**31, 1)])
def test_a_small_idx_takes_little(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    """It unzips to 40,000 pictures."""
    path = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">4I", 0x803, *shape))
        for _ in range(400):
            file.write(bytes(MB))
    assert path.stat().st_size < MB
    for name, array in (
        ("train-labels-idx1-ubyte", np.arange(min(shape[0], 50_000)) % 10),
        ("t10k-images-idx3-ubyte", np.zeros((10, 100, 100))),
        ("t10k-labels-idx1-ubyte", np.zeros(10)),
    ):
        (tmp_path / name).write_bytes(idx_bytes(array))
    took, said = opened("mnist", tmp_path)
    assert said.startswith(f"DataError: {path}: "), said
    assert took < MOST


@pytest.mark.full
def test_a_small_idx_of_labels_takes_little(tmp_path: Path) -> None:
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">2I", 0x801, 400 * MB))
        for _ in range(400):
            file.write(bytes(MB))
    for name, array in (
        ("train-images-idx3-ubyte", np.zeros((10, 100, 100))),
        ("t10k-images-idx3-ubyte", np.zeros((10, 100, 100))),
        ("t10k-labels-idx1-ubyte", np.zeros(10)),
    ):
        (tmp_path / name).write_bytes(idx_bytes(array))
    took, said = opened("mnist", tmp_path)
    assert said.startswith(f"DataError: {path}: 400000000 labels, expected 10, "), said
    assert took < MOST


def test_blank_pictures_are_taken_however_small_their_file(tmp_path: Path) -> None:
    """Nothing honest is refused: this much do zeros shrink."""
    path = tmp_path / "blank.npz"
    np.savez_compressed(
        path, images=np.zeros((20_000, 28, 28), np.uint8), labels=np.zeros(20_000, np.uint8)
    )
    assert path.stat().st_size < 20_000
    assert opened(path)[1] == "taken"
