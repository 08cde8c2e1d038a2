"""Small CIFARs in the official formats: Python 2's pickles, plain records, archives."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.helpers.samples import noise

KINDS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FINE = tuple(f"fine_{place:02d}" for place in range(100))
COARSE = tuple(f"coarse_{place:02d}" for place in range(20))

DTYPE = (
    b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
"""What makes numpy's uint8."""
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
"""What makes an array before it has a state."""


@dataclass(frozen=True)
class Part:
    """Pictures as rows of planes, and their labels by kind."""

    pixels: np.ndarray
    labels: Mapping[str, Sequence[int]]


def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return (
        b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)
    )


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    if len(raw) < 256:
        return b"U" + bytes([len(raw)]) + raw
    return b"T" + struct.pack("<i", len(raw)) + raw


def array(pixels: np.ndarray, *, shape: bytes | None = None, dtype: bytes = DTYPE) -> bytes:
    """An array as numpy pickled it; the shape as it is told may be a lie."""
    told = shape or integer(pixels.shape[0]) + integer(pixels.shape[1]) + b"\x86"
    return EMPTY + b"(K\x01" + told + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"


def many(values: Sequence[int | str]) -> bytes:
    told = [integer(value) if isinstance(value, int) else text(value) for value in values]
    return b"](" + b"".join(told) + b"e"


def pickled(values: Mapping[str, bytes]) -> bytes:
    """A dict of values that are instructions already, as Python 2 wrote it."""
    told = b"".join(text(key) + value for key, value in values.items())
    return b"\x80\x02}q\x01(" + told + b"u."


def batch(part: Part) -> bytes:
    names = many([f"picture_{place}.png" for place in range(len(part.pixels))])
    labels = {key: many([int(one) for one in column]) for key, column in part.labels.items()}
    return pickled(
        {"batch_label": text("one of one"), **labels, "data": array(part.pixels)}
        | {"filenames": names}
    )


def records(part: Part) -> bytes:
    """Coarse before fine, as the official records have them."""
    columns = [np.asarray(part.labels[key], np.uint8) for key in sorted(part.labels)]
    return np.column_stack([*columns, part.pixels]).tobytes()


def cifar10_part(seed: int, each: int = 2) -> Part:
    labels = np.random.default_rng(seed).permutation(np.tile(np.arange(10), each)).tolist()
    return Part(noise(seed, len(labels), 3072), {"labels": labels})


def cifar100_part(seed: int, each: int) -> Part:
    fine = np.random.default_rng(seed).permutation(np.tile(np.arange(100), each)).tolist()
    coarse = [(7 * label + 3) % 20 for label in fine]
    return Part(noise(seed, len(fine), 3072), {"coarse_labels": coarse, "fine_labels": fine})


def write_cifar10(root: Path) -> Path:
    """Both layouts, ten training pictures and two test pictures of every kind."""
    python, binary = root / "cifar-10-batches-py", root / "cifar-10-batches-bin"
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for folder in (python, binary):
        folder.mkdir(parents=True)
    for seed, name in enumerate(names):
        part = cifar10_part(seed)
        (python / name).write_bytes(batch(part))
        (binary / f"{name}.bin").write_bytes(records(part))
    (python / "batches.meta").write_bytes(
        pickled({"num_cases_per_batch": integer(20), "label_names": many(KINDS)})
    )
    # The official file ends with an empty line.
    (binary / "batches.meta.txt").write_text("\n".join(KINDS) + "\n\n")
    return root


def write_cifar100(root: Path) -> Path:
    """Both layouts, nine training pictures and one test picture of every fine label."""
    python, binary = root / "cifar-100-python", root / "cifar-100-binary"
    for folder in (python, binary):
        folder.mkdir(parents=True)
    for name, each in (("train", 9), ("test", 1)):
        part = cifar100_part(each, each)
        (python / name).write_bytes(batch(part))
        (binary / f"{name}.bin").write_bytes(records(part))
    (python / "meta").write_bytes(
        pickled({"fine_label_names": many(FINE), "coarse_label_names": many(COARSE)})
    )
    (binary / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    (binary / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    return root


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def write_tar(path: Path, members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", format=tarfile.USTAR_FORMAT, compresslevel=1) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def pack(folder: Path, archive: Path) -> Path:
    """An archive of the folder as the official ones are, with more in it than needed."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    (folder / "readme.html").write_text("<html>")
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, folder.name)
    (folder / "readme.html").unlink()
    return archive
