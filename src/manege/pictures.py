"""Pictures as files and sheets: PNG with its recipe inside, grids, enlargement.

Pictures are uint8 arrays, height x width x channels (1 grey, 3 colour). Owns no dataset and no
network: what a picture shows is the caller's business.
"""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile, PngInfo

from manege.errors import DataError, MachineError
from manege.files import write_atomic

BACKGROUND = 232
"""The grey between a sheet's pictures: light, yet not the white of a picture's own paper."""

_SEEN = 56
"""Pixels a picture on a sheet should have."""

Picture = npt.NDArray[np.uint8]


def grid(pictures: Picture, columns: int | None = None, gap: int = 1) -> Picture:
    """One sheet of many pictures (N x H x W x C), row by row, a gap round each.

    Args:
        pictures: at least one; places left over in the last row stay background.
        columns: pictures in a row; as square as may be when None.
        gap: background pixels between pictures and at the edge.
    """
    count, height, width, channels = pictures.shape
    if count == 0:
        raise ValueError("a sheet needs at least one picture")
    columns = math.ceil(math.sqrt(count)) if columns is None else columns
    rows = math.ceil(count / columns)
    sheet = np.full(
        (rows * (height + gap) + gap, columns * (width + gap) + gap, channels),
        BACKGROUND,
        dtype=np.uint8,
    )
    for index, picture in enumerate(pictures):
        row, column = divmod(index, columns)
        top, left = gap + row * (height + gap), gap + column * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    return sheet


def viewing_scale(side: int) -> int:
    """How far to enlarge pictures of that side so that people can see them on a sheet."""
    return max(1, round(_SEEN / side))


def enlarge(picture: Picture, factor: int) -> Picture:
    """The picture with every pixel a square of ``factor`` x ``factor``."""
    return np.repeat(np.repeat(picture, factor, axis=0), factor, axis=1)


def png_bytes(picture: Picture, text: Mapping[str, str], scale: int = 1) -> bytes:
    """The picture as a PNG file with ``text`` in its text chunks; equal inputs, equal bytes.

    Args:
        picture: H x W x 1 is saved as grey, H x W x 3 as colour.
        text: the recipe; keys are 1 to 79 Latin-1 characters.
        scale: enlargement for pictures too small to look at.
    """
    pixels = enlarge(picture, scale)
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    info = PngInfo()
    for key in sorted(text):
        # Not every file name is Unicode, and a recipe may hold one.
        info.add_text(key, text[key].encode("utf-8", "backslashreplace").decode("utf-8"))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", pnginfo=info, compress_level=6)
    return buffer.getvalue()


def save_png(path: str | Path, picture: Picture, text: Mapping[str, str], scale: int = 1) -> None:
    """Write what :func:`png_bytes` makes; the file appears whole or not at all."""
    write_atomic(Path(path), png_bytes(picture, text, scale))


def read_text(path: str | Path) -> dict[str, str]:
    """The text chunks of a PNG file, as :func:`save_png` wrote them."""
    path = Path(path)
    try:
        with Image.open(path, formats=["PNG"]) as image:
            image.load()  # Text may follow the pixels.
            return {
                str(key): str(value)
                for key, value in (image.text if isinstance(image, PngImageFile) else {}).items()
            }
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: not a PNG picture; expected one that manege wrote") from error
    except (OSError, SyntaxError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        if number in (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            raise DataError(f"{path}: cannot be read as a PNG picture ({reason})") from error
        raise MachineError(f"{path}: cannot be read ({reason}); check its permissions") from error
