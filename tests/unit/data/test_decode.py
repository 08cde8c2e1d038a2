from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.helpers.samples import noise

from manege.data.decode import Broken, Form, decode, inspect, read_header

GREY, COLOUR = Form(8, 1), Form(8, 3)


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp"])
def test_lossless_formats_come_back_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    pixels = noise(0, 8, 8, 3)
    options = {"lossless": True} if suffix == ".webp" else {}
    path = saved(tmp_path / f"a{suffix}", Image.fromarray(pixels), **options)
    np.testing.assert_array_equal(decode(path, COLOUR), pixels)


def test_the_content_decides_not_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(noise(0, 8, 8, 3)).save(path, format="JPEG")
    assert decode(path, COLOUR).shape == (8, 8, 3)


def test_grey_becomes_colour_and_colour_grey(tmp_path: Path) -> None:
    pixels = noise(0, 8, 8)
    path = saved(tmp_path / "a.png", Image.fromarray(pixels))
    np.testing.assert_array_equal(decode(path, GREY)[:, :, 0], pixels)
    np.testing.assert_array_equal(decode(path, COLOUR), np.repeat(pixels[:, :, None], 3, 2))
    red = saved(tmp_path / "r.png", Image.new("RGB", (8, 8), (255, 0, 0)))
    assert set(decode(red, GREY).ravel().tolist()) == {76}


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    deep = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    path = saved(tmp_path / "a.png", Image.fromarray(deep))
    got = decode(path, GREY)[:, :, 0]
    np.testing.assert_array_equal(got, np.rint(deep / 257).astype(np.uint8))
    assert got[-1, -1] == 255
    assert read_header(path).grey


def test_sixteen_bit_colour_keeps_its_high_bytes(tmp_path: Path) -> None:
    row = b"\0" + struct.pack(">3H", 0xFFFF, 0x8000, 0) * 8
    chunks = [
        (b"IHDR", struct.pack(">2I5B", 8, 8, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * 8)),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [*chunks, (b"IEND", b"")]
    )
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    assert decode(tmp_path / "a.png", COLOUR)[0, 0].tolist() == [255, 128, 0]


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.fromarray(np.eye(8, dtype=bool)))
    np.testing.assert_array_equal(decode(path, GREY)[:, :, 0], np.eye(8, dtype=np.uint8) * 255)


def test_alpha_lies_over_white(tmp_path: Path) -> None:
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[:, :4, 3] = 255
    half = saved(tmp_path / "a.png", Image.fromarray(rgba))
    assert decode(half, COLOUR)[0, 0].tolist() == [0, 0, 0]
    assert decode(half, COLOUR)[0, 7].tolist() == [255, 255, 255]
    grey = saved(tmp_path / "la.png", Image.fromarray(rgba).convert("LA"))
    assert decode(grey, GREY)[0, [0, 7], 0].tolist() == [0, 255]
    assert read_header(grey).grey
    webp = saved(tmp_path / "a.webp", Image.fromarray(rgba), lossless=True)
    assert decode(webp, COLOUR)[0, 7].tolist() == [255, 255, 255]


def test_a_palette_without_transparency_shows_its_colours(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    path = saved(tmp_path / "a.png", image)
    assert decode(path, COLOUR)[0, 0].tolist() == [10, 20, 30]
    assert not read_header(path).grey


@pytest.mark.parametrize("transparency", [1, bytes([255, 0])])
def test_a_transparent_palette_entry_becomes_white(
    tmp_path: Path, transparency: int | bytes
) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpixel((0, 0), 0)
    image.putpalette([0, 0, 0, 10, 20, 30])
    path = saved(tmp_path / "a.png", image, transparency=transparency)
    got = decode(path, COLOUR)
    assert got[0, 0].tolist() == [0, 0, 0]
    assert got[7, 7].tolist() == [255, 255, 255]


def test_a_transparent_colour_of_a_grey_picture_becomes_white(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.new("L", (8, 8), 7), transparency=7)
    assert set(decode(path, GREY).ravel().tolist()) == {255}


def test_a_palette_of_greys_counts_as_grey(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 99, 99, 99])
    assert read_header(saved(tmp_path / "a.png", image)).grey
    colour = Image.new("P", (8, 8), 1)
    colour.putpalette([0, 0, 0, 99, 0, 99])
    assert not read_header(saved(tmp_path / "a.bmp", colour)).grey


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=95)
    red, green, blue = decode(path, COLOUR)[0, 0].tolist()
    assert red > 200
    assert max(green, blue) < 60


@pytest.mark.parametrize("orientation", range(1, 10))
def test_exif_rotation_is_undone_as_pillow_does_it(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / "a.png", Image.fromarray(noise(0, 8, 8, 3)), exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(decode(path, COLOUR), expected)


def test_a_malformed_exif_block_breaks_no_picture_and_warns_nobody(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E], exif[0x011A] = 6, "a description", 72.0
    whole, rng = exif.tobytes(), np.random.default_rng(0)
    for _ in range(300):
        content = bytearray(whole)
        for place in rng.integers(6, len(content), 3):
            content[place] = rng.integers(0, 256)
        path = saved(tmp_path / "a.jpg", Image.new("L", (8, 8), 9), exif=bytes(content))
        assert set(decode(path, GREY).ravel().tolist()) == {9}


def test_other_sizes_are_cropped_about_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 200  # The middle square.
    path = saved(tmp_path / "a.png", Image.fromarray(wide))
    assert decode(path, COLOUR).min() > 180  # Lanczos looks a little beyond the crop.
    assert decode(path, Form(64, 1)).shape == (64, 64, 1)
    thin = saved(tmp_path / "b.png", Image.new("L", (1, 3000), 9))
    assert set(decode(thin, GREY).ravel().tolist()) == {9}


def huge_png(path: Path, side: int) -> Path:
    buffer = io.BytesIO()
    Image.new("1", (8, 8)).save(buffer, format="PNG")
    content = bytearray(buffer.getvalue())
    content[16:24] = struct.pack(">2I", side, side)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("side", [6_400, 10_000, 60_000])
def test_a_picture_over_forty_megapixels_is_refused_from_its_header(
    tmp_path: Path, side: int
) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    with pytest.raises(Broken, match="over 40 megapixels"):
        decode(huge_png(tmp_path / "a.png", side), COLOUR)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_every_kind_of_broken_file_has_its_reason(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.png", Image.fromarray(noise(0, 64, 64, 3))).read_bytes()
    jpeg = saved(tmp_path / "whole.jpg", Image.fromarray(noise(0, 64, 64, 3))).read_bytes()
    gif = io.BytesIO()
    Image.new("L", (8, 8)).save(gif, format="GIF")
    flipped = bytearray(whole)
    flipped[50] ^= 0xFF
    for content, reason in [
        (b"", "an empty file"),
        (b"hello", "not a PNG, JPEG, BMP or WebP picture"),
        (gif.getvalue(), "not a PNG, JPEG, BMP or WebP picture"),
        (whole[: len(whole) // 2], "truncated"),
        (jpeg[: len(jpeg) // 2], "truncated"),
        (bytes(flipped), "."),
    ]:
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(Broken, match=reason) as caught:
            decode(tmp_path / "a.png", COLOUR)
        assert "\n" not in str(caught.value)
    with pytest.raises(Broken, match="No such file"):
        decode(tmp_path / "none.png", COLOUR)


def test_damage_anywhere_either_decodes_or_is_broken_but_never_escapes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for suffix in (".png", ".jpg", ".bmp", ".webp"):
        path = saved(tmp_path / f"a{suffix}", Image.fromarray(noise(1, 16, 16, 3)))
        whole = path.read_bytes()
        for _ in range(150):
            content = bytearray(whole)
            for place in rng.integers(0, len(content), 4):
                content[place] = rng.integers(0, 256)
            path.write_bytes(content)
            with contextlib.suppress(Broken):
                assert decode(path, COLOUR).shape == (8, 8, 3)


def test_equal_pixels_have_equal_digests_whatever_the_file(tmp_path: Path) -> None:
    pixels = Image.fromarray(noise(0, 8, 8, 3))
    first = inspect(saved(tmp_path / "a.png", pixels))
    second = inspect(saved(tmp_path / "b.bmp", pixels))
    other = inspect(saved(tmp_path / "c.png", Image.fromarray(noise(1, 8, 8, 3))))
    assert first.digest == second.digest != other.digest
    assert (first.width, first.height, first.mode) == (8, 8, "RGB")
