"""Small real datasets for the tests of the command line."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from manege.metrics.networks import MnistLogits

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_class(folder: Path, count: int, *, side: int = 8) -> None:
    """Grey pictures, no two alike."""
    folder.mkdir(parents=True)
    seed = zlib.crc32(folder.name.encode())
    for place in range(count):
        Image.fromarray(noise(seed + place, side, side)).save(folder / f"{place:03d}.png")


def write_colour(folder: Path, count: int, *, side: int = 8) -> None:
    """Colour pictures, no two alike."""
    folder.mkdir(parents=True)
    for place in range(count):
        Image.fromarray(noise(place, side, side, 3)).save(folder / f"{place:03d}.png")


def write_logits(path: Path, *, value: float | None = None) -> None:
    """A file like that of Lipizzaner's MNIST classifier; all weights the value, if there is one."""
    rng = np.random.default_rng(0)
    tensors = {
        name: torch.from_numpy(rng.normal(0, 0.1, tuple(tensor.shape)).astype(np.float32))
        for name, tensor in MnistLogits().state_dict().items()
    }
    if value is not None:
        tensors = {name: torch.full_like(tensor, value) for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, path)


def write_idx(folder: Path) -> Path:
    """The four files of a tiny MNIST: ten pictures of each digit to train on, one to test."""
    folder.mkdir(parents=True)
    for images, labels, each in ((IDX[0], IDX[1], 10), (IDX[2], IDX[3], 1)):
        targets = np.tile(np.arange(10, dtype=np.uint8), each)
        (folder / images).write_bytes(idx_bytes(noise(each, len(targets), 28, 28)))
        (folder / labels).write_bytes(idx_bytes(targets))
    return folder


def idx_bytes(array: np.ndarray) -> bytes:
    """Return an array as the bytes of an idx file."""
    head = struct.pack(">I", 0x800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()
