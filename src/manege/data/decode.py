"""Decodes one picture file (PNG, JPEG, BMP or WebP) to one array: upright, 8-bit, square.

Raises :class:`Broken`, with the reason, for a file that cannot be decoded. Pillow's warnings are
kept in: a picture either decodes or does not. Which files to decode is not decided here.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

RESIZE_RULE = "centre crop, lanczos"
"""The name of the resizing in every cache key: change it whenever the arithmetic below changes."""

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp"})
MAX_PIXELS = 40_000_000

_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition that makes a picture upright, by its EXIF orientation."""
_WHITE = (255, 255, 255, 255)


class Broken(Exception):
    """Raised for a file that is no picture we can decode; the message is the reason, in a line."""


@dataclass(frozen=True)
class Form:
    """The side and channels that every picture of a dataset is brought to."""

    size: int
    channels: int


@dataclass(frozen=True)
class PictureHeader:
    """The size, mode and colours of a picture before it was brought to a form."""

    width: int
    height: int
    mode: str
    """Pillow's mode: L grey, RGB colour, P palette, ...; XY for points."""
    grey: bool
    digest: bytes = b""
    """The digest of its pixels; empty if only the header was read."""


def read_header(path: Path) -> PictureHeader:
    """Return size and mode, without decoding a pixel."""
    with _opened(path) as image:
        return _seen(image)


def inspect(path: Path) -> PictureHeader:
    """Return the header, with a digest of the upright pixels: equal for equal pictures."""
    with _opened(path) as image:
        seen = _seen(image)
        picture = _flat(image)
        return PictureHeader(
            seen.width, seen.height, seen.mode, seen.grey, pixel_digest(np.asarray(picture))
        )


def decode(path: Path, form: Form) -> npt.NDArray[np.uint8]:
    """Return the picture in that form, size x size x channels."""
    with _opened(path) as image:
        _seen(image)
        return to_form(_flat(image), form)


def read_pixels(path: Path) -> npt.NDArray[np.uint8]:
    """Return the whole picture upright, height x width x 1 if it is grey, else x 3."""
    with _opened(path) as image:
        return _whole(image)


def pixels_of(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Return an opened picture as :func:`read_pixels` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _whole(image)
        except (Broken, MemoryError):
            raise
        except Exception as error:
            raise Broken(_line(error)) from error


def to_form(picture: Image.Image, form: Form) -> npt.NDArray[np.uint8]:
    """Return the grey or colour picture, cropped about its centre and resampled if needed."""
    mode = "L" if form.channels == 1 else "RGB"
    if picture.mode != mode:
        picture = picture.convert(mode)
    side = (form.size, form.size)
    if picture.size != side:
        picture = ImageOps.fit(picture, side, method=Image.Resampling.LANCZOS)
    return np.asarray(picture, dtype=np.uint8).reshape(form.size, form.size, form.channels)


def array_to_form(picture: npt.NDArray[np.uint8], form: Form) -> npt.NDArray[np.uint8]:
    """Return the array, height x width x channels, as :func:`to_form` returns a picture."""
    return to_form(Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture), form)


def pixel_digest(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a digest of the pixels and their shape."""
    spelled = repr(pixels.shape).encode("ascii") + pixels.tobytes()
    return hashlib.blake2b(spelled, digest_size=16).digest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open the file lazily; turn anything Pillow raises while it is in use into Broken."""
    with warnings.catch_warnings():
        # Broken EXIF, odd palettes, large pictures: the first two decode well, the third is ours.
        warnings.simplefilter("ignore")
        try:
            with Image.open(path, formats=_FORMATS) as image:
                yield image
        except (Broken, MemoryError):
            raise
        except UnidentifiedImageError as error:
            empty = path.stat().st_size == 0
            reason = "an empty file" if empty else "not a PNG, JPEG, BMP or WebP picture"
            raise Broken(reason) from error
        except Image.DecompressionBombError as error:
            raise Broken(_too_large("it")) from error
        except OSError as error:
            raise Broken(error.strerror or _line(error)) from error
        # The decoders throw whatever their parsing meets: struct.error, SyntaxError, IndexError...
        except Exception as error:
            raise Broken(_line(error)) from error


def _seen(image: Image.Image) -> PictureHeader:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Broken(_too_large(f"{width}x{height}"))
    return PictureHeader(width, height, image.mode, _is_grey(image))


def _whole(image: Image.Image) -> npt.NDArray[np.uint8]:
    grey = _seen(image).grey
    picture = _flat(image)
    pixels = np.asarray(picture.convert("L") if grey else picture, dtype=np.uint8)
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]


def _too_large(found: str) -> str:
    return f"{found} is over {MAX_PIXELS // 1_000_000} megapixels; make it smaller"


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_grey(image: Image.Image) -> bool:
    if image.mode == "P" and image.palette is not None:
        # Not getpalette(): that would decode the picture. The layout is RGB, BGR or BGRX.
        layout, colours = image.palette.getdata()
        width = len(layout)
        entries = np.frombuffer(bytes(colours), dtype=np.uint8)
        entries = entries[: len(entries) // width * width].reshape(-1, width)[:, :3]
        return bool((entries == entries[:, :1]).all())
    return image.mode in ("1", "L", "LA") or image.mode.startswith("I")


def _flat(image: Image.Image) -> Image.Image:
    """Return the decoded picture, upright, as L or RGB without transparency."""
    image.load()
    picture = _upright(image)
    if picture.mode.startswith("I"):
        return _eight_bit(picture)
    if picture.has_transparency_data:
        grey = picture.mode in ("1", "L", "LA")
        over = picture.convert("RGBA")
        paper = Image.new("RGBA", over.size, _WHITE)
        return Image.alpha_composite(paper, over).convert("L" if grey else "RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def _upright(image: Image.Image) -> Image.Image:
    # Not ImageOps.exif_transpose: it writes the EXIF block anew, and fails on a malformed one.
    turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    return image if turn is None else image.transpose(turn)


def _eight_bit(picture: Image.Image) -> Image.Image:
    """Return 16-bit grey scaled so that 65535 is white; Pillow's conversion would clip at 255."""
    deep = np.asarray(picture).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8))
