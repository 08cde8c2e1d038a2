"""Small files for the tests of this folder."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_class(folder: Path, count: int, *, shape: tuple[int, ...] = (16, 16, 3)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Not hash(): Python salts it anew in every process.
    seed = sum(os.fsencode(folder.name)) * 1000 + len(folder.parent.name)
    for place in range(count):
        Image.fromarray(noise(seed + place, *shape)).save(folder / f"{place}.png")


def idx_bytes(array: np.ndarray) -> bytes:
    head = struct.pack(">I", 0x800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()
