"""Write pictures as files and sheets: PNG with its recipe inside, grids, enlargement.

Pictures are uint8 arrays, height x width x channels (1 grey, 3 colour). A pixel of two channels
is a point in the plane, and many of them are one drawing. Owns no dataset and no network: what a
picture shows is the caller's business.
"""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile, PngInfo

from manege.errors import DataError, MachineError
from manege.files import write_atomic

BACKGROUND = 232
"""The grey between a sheet's pictures: light, yet not the white of a picture's own paper."""

_SEEN = 56
"""Pixels that a picture on a sheet should have on a side."""

_SCATTER_SIDE = 160
_LEFT_OVER = 0.6
"""The part of the light that one point of a drawing lets through."""

_CAPTION = 22
_BETWEEN = 12
"""Pixels above, and between, sheets that stand side by side."""

Picture = npt.NDArray[np.uint8]


def grid(pictures: Picture, columns: int | None = None, gap: int = 1) -> Picture:
    """Return one sheet of many pictures (N x H x W x C), row by row, with a gap round each.

    Points (N x 1 x 1 x 2) make a :func:`scatter` instead.

    Args:
        pictures: at least one; places left over in the last row stay background.
        columns: pictures in a row; as square as may be when None.
        gap: background pixels between pictures and at the edge.
    """
    count, height, width, channels = pictures.shape
    if count == 0:
        raise ValueError("a sheet needs at least one picture")
    if is_points(pictures):
        return scatter(pictures)
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


def cut_up(path: Path, side: int, gap: int = 1) -> Picture:
    """Return the pictures of a sheet made by :func:`grid` and :func:`png_bytes`, empty places too.

    Raises DataError when it is no sheet of pictures of that side.
    """
    scale = viewing_scale(side)
    try:
        with Image.open(path, formats=["PNG"]) as image:
            pixels = np.asarray(image)[::scale, ::scale]
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a sheet of pictures ({error})") from None
    sheet = pixels[..., np.newaxis] if pixels.ndim == 2 else pixels
    rows, columns = ((length - gap) // (side + gap) for length in sheet.shape[:2])
    if min(rows, columns) < 1 or any((n - gap) % (side + gap) for n in sheet.shape[:2]):
        height, width = sheet.shape[:2]
        raise DataError(f"{path}: a sheet of {height}x{width} pixels, not of pictures of {side}")
    edges = sheet[gap : gap + rows * (side + gap), gap : gap + columns * (side + gap)]
    apart = edges.reshape(rows, side + gap, columns, side + gap, -1)[:, :side, :, :side]
    return np.ascontiguousarray(apart.swapaxes(1, 2)).reshape(-1, side, side, sheet.shape[2])


def is_points(pictures: Picture) -> bool:
    """Return whether they are points in the plane: one pixel, whose two channels are x and y."""
    return pictures.shape[1:] == (1, 1, 2)


def scatter(points: Picture) -> Picture:
    """Return a grey drawing of points (N x 1 x 1 x 2), darker where many fall; x right, y up.

    Both axes go from -1 (byte 0) to 1 (byte 255); a point is a square of three pixels.
    """
    columns_rows = np.rint(points.reshape(-1, 2) * ((_SCATTER_SIDE - 1) / 255)).astype(np.int64)
    counts = np.zeros((_SCATTER_SIDE + 2, _SCATTER_SIDE + 2), dtype=np.int64)
    for down, right in np.ndindex(3, 3):
        place = (_SCATTER_SIDE - 1 - columns_rows[:, 1] + down, columns_rows[:, 0] + right)
        np.add.at(counts, place, 1)
    light = 255 * np.power(_LEFT_OVER, counts[1:-1, 1:-1, np.newaxis])
    drawing: Picture = np.rint(light).astype(np.uint8)
    return drawing


def side_by_side(captions: Sequence[str], sheets: Sequence[Picture]) -> Picture:
    """Return one colour picture of several sheets in a row, each with its caption above it."""
    height = max(sheet.shape[0] for sheet in sheets) + _CAPTION
    width = sum(sheet.shape[1] for sheet in sheets) + _BETWEEN * (len(sheets) - 1)
    joined = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
    left = 0
    for sheet in sheets:
        rows, columns = sheet.shape[:2]
        joined[_CAPTION : _CAPTION + rows, left : left + columns] = sheet  # Grey spreads to all.
        left += columns + _BETWEEN
    image = Image.fromarray(joined)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(_CAPTION - 8)
    left = 0
    for caption, sheet in zip(captions, sheets, strict=True):
        draw.text((left + 2, 3), _cut(caption, sheet.shape[1] - 4, font), fill=0, font=font)
        left += sheet.shape[1] + _BETWEEN
    return np.asarray(image)


def _cut(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Keep the end of a text that is too long: names of runs differ there."""
    if font.getlength(text) <= width:
        return text
    while len(text) > 1 and font.getlength(f"…{text}") > width:
        text = text[1:]
    return f"…{text}"


def viewing_scale(side: int) -> int:
    """Return how far to enlarge pictures of that side so that people see them on a sheet."""
    # The drawing of points, whose side is 1, is large enough as it is.
    return 1 if side == 1 else max(1, round(_SEEN / side))


def enlarge(picture: Picture, factor: int) -> Picture:
    """Return the picture with every pixel a square of ``factor`` x ``factor``."""
    return np.repeat(np.repeat(picture, factor, axis=0), factor, axis=1)


def png_bytes(picture: Picture, text: Mapping[str, str], scale: int = 1) -> bytes:
    """Return the picture as a PNG file with ``text`` in its text chunks; equal inputs, equal bytes.

    Args:
        picture: H x W x 1 is saved as grey, H x W x 3 as colour.
        text: the recipe; keys are 1 to 79 Latin-1 characters.
        scale: enlargement for pictures too small to look at.
    """
    pixels = enlarge(picture, scale)
    image = _image(pixels)
    info = PngInfo()
    for key in sorted(text):
        # Not every file name is Unicode, and a recipe may hold one.
        info.add_text(key, text[key].encode("utf-8", "backslashreplace").decode("utf-8"))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", pnginfo=info, compress_level=6)
    return buffer.getvalue()


def gif_bytes(pictures: Picture, milliseconds: int = 80) -> bytes:
    """Return pictures (N x H x W x C) as a GIF that goes there and back, again and again."""
    scale = viewing_scale(pictures.shape[1])
    shown = [scatter(one[np.newaxis]) if is_points(pictures[:1]) else one for one in pictures]
    frames = [_image(enlarge(one, scale)) for one in [*shown, *shown[-2:0:-1]]]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0
    )
    return buffer.getvalue()


def _image(pixels: Picture) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def save_png(path: str | Path, picture: Picture, text: Mapping[str, str], scale: int = 1) -> None:
    """Write what :func:`png_bytes` makes; the file appears whole or not at all."""
    write_atomic(Path(path), png_bytes(picture, text, scale))


def read_text(path: str | Path) -> dict[str, str]:
    """Return the text chunks of a PNG file, as :func:`save_png` wrote them."""
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
