"""Read sample sheets: cut them into pictures, lay these out anew, and encode them for a page.

A sheet is what `manege.pictures.grid` made: pictures in rows with a gap of one pixel, enlarged.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, features

from manege.pictures import Picture, grid, viewing_scale

_GAP = 1
_LARGEST = 96
"""The largest side of a picture in a report: readers see no more detail."""


def load(path: Path) -> Picture | None:
    """Return the picture in a PNG file, H x W x C; None when there is none that can be read."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


def tiles(sheet: Picture, side: int) -> Picture | None:
    """Return a sheet's pictures, N x S x S x C, row by row; None if it has none of that side."""
    scale = viewing_scale(side)
    small = sheet[::scale, ::scale]
    if sheet.shape[0] % scale or sheet.shape[1] % scale:
        return None
    down, right = small.shape[0] - _GAP, small.shape[1] - _GAP
    if down <= 0 or right <= 0 or down % (side + _GAP) or right % (side + _GAP):
        return None
    cut = small[_GAP:, _GAP:].reshape(
        down // (side + _GAP), side + _GAP, right // (side + _GAP), side + _GAP, -1
    )
    cut = cut[:, :side, :, :side].transpose(0, 2, 1, 3, 4)
    return cut.reshape(-1, side, side, cut.shape[-1])


def strip(pictures: Picture, columns: int) -> Picture:
    """Lay pictures out in rows, large ones made small; none is enlarged: a page does it better."""
    factor = math.ceil(pictures.shape[1] / _LARGEST)
    if factor > 1:
        side = pictures.shape[1] // factor
        cut = pictures[:, : side * factor, : side * factor].astype(np.float32)
        cut = cut.reshape(len(cut), side, factor, side, factor, -1).mean(axis=(2, 4))
        pictures = np.rint(cut).astype(np.uint8)
    return grid(pictures, columns=columns, gap=_GAP)


def data_uri(picture: Picture) -> str:
    """Return a data URI: grey pictures as PNG, colour ones as WebP, a fifth of the size."""
    grey = picture.shape[2] == 1
    image = Image.fromarray(picture[:, :, 0] if grey else picture)
    buffer = io.BytesIO()
    if grey or not features.check("webp"):
        kind = "png"
        image.save(buffer, format="PNG", optimize=picture.size < 1 << 20)
    else:
        kind = "webp"
        image.save(buffer, format="WEBP", quality=95)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def spread_over(items: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the items, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    places = sorted({round(i * (len(items) - 1) / (count - 1)) for i in range(count)})
    return [items[place] for place in places]
