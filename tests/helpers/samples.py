"""Small picture files, as the tests of `data` want them."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from tests.helpers.material import idx_bytes, noise

__all__ = ["idx_bytes", "noise", "write_class"]


def write_class(folder: Path, count: int, *, shape: tuple[int, ...] = (16, 16, 3)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Not hash(): Python salts it anew in every process.
    seed = sum(os.fsencode(folder.name)) * 1000 + len(folder.parent.name)
    for place in range(count):
        Image.fromarray(noise(seed + place, *shape)).save(folder / f"{place}.png")
