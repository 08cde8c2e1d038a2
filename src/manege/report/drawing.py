"""A drawing of lines, areas, boxes, dots and words, written as SVG for a page or as PNG.

Colours are roles (`ink`, `c0`, …) that a page may show light or dark, or plain `#rrggbb`. Knows
no data and no axes.
"""

from __future__ import annotations

import functools
import html
import io
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1c2430",
    "muted": "#5b6675",
    "rule": "#e1e5ea",
    "soft": "#f3f5f8",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#00886a",
    "c3": "#b06fa0",
    "c4": "#b58000",
    "c5": "#3a9bd9",
    "c6": "#7a7a7a",
    "c7": "#6a4fa3",
}
DARK = {
    "paper": "#151a21",
    "ink": "#e8ecf1",
    "muted": "#a0abb9",
    "rule": "#303844",
    "soft": "#1e252e",
    "c0": "#4fb0ec",
    "c1": "#ff8f52",
    "c2": "#36c9a3",
    "c3": "#e7a3cd",
    "c4": "#f0bd4a",
    "c5": "#93d3fb",
    "c6": "#b5b5b5",
    "c7": "#b7a1f0",
}
SERIES = ("c0", "c1", "c2", "c3", "c4", "c5", "c7", "c6")
"""Colours that colour-blind people can tell apart; what is drawn in them is labelled as well."""

FAMILY = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

Point = tuple[float, float]
_ENLARGED = 2

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class _Shape(NamedTuple):
    kind: str
    points: tuple[Point, ...]
    fill: str | None = None
    stroke: str | None = None
    width: float = 1.0
    opacity: float = 1.0
    dash: bool = False
    radius: float = 0.0
    text: str = ""
    size: float = 12.0
    bold: bool = False
    anchor: str = "start"
    told: str = ""


class Drawing:
    """A figure as a list of shapes, in units that are pixels at its natural size."""

    def __init__(self, width: float, height: float, title: str, told: str) -> None:
        """Begin with an empty drawing.

        Args:
            width: in pixels.
            height: in pixels.
            title: the name of the figure.
            told: what the figure shows, in words, for those who do not see it.
        """
        self.width, self.height = width, height
        self.title, self.told = title, told
        self._shapes: list[_Shape] = []

    def line(
        self,
        points: Iterable[Point],
        colour: str,
        width: float = 1.0,
        *,
        opacity: float = 1.0,
        dash: bool = False,
    ) -> None:
        """Draw a line through the points."""
        shape = _Shape("line", tuple(points), None, colour, width, opacity, dash)
        if len(shape.points) > 1:
            self._shapes.append(shape)

    def area(self, points: Iterable[Point], colour: str, opacity: float = 1.0) -> None:
        """Fill the polygon whose corners are the points."""
        self._shapes.append(_Shape("area", tuple(points), colour, None, 0.0, opacity))

    def box(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        colour: str | None,
        *,
        stroke: str | None = None,
        radius: float = 0.0,
        told: str = "",
    ) -> None:
        """Draw a rectangle."""
        corners = ((left, top), (left + width, top + height))
        self._shapes.append(_Shape("box", corners, colour, stroke, radius=radius, told=told))

    def dot(
        self,
        at: Point,
        radius: float,
        colour: str | None,
        *,
        stroke: str | None = None,
        told: str = "",
    ) -> None:
        """Draw a circle."""
        self._shapes.append(_Shape("dot", (at,), colour, stroke, 1.6, radius=radius, told=told))

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: float = 12.0,
        colour: str = "ink",
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """Write words on a base line; anchor is start, middle or end."""
        self._shapes.append(
            _Shape("text", (at,), colour, text=text, size=size, bold=bold, anchor=anchor)
        )

    def svg(self, name: str, *, alone: bool = False) -> str:
        """Return SVG that takes the colours of its page, or has its own if it stands alone."""
        wide, high = _short(self.width), _short(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
            f'aria-labelledby="{name}-t {name}-d" font-family="{FAMILY}"'
            + (f' width="{wide}" height="{high}">' if alone else ">")
            + f'<title id="{name}-t">{escape(self.title)}</title>'
            f'<desc id="{name}-d">{escape(self.told)}</desc>'
        )
        if alone:
            head += (
                f"<style>svg{{{variables(LIGHT)}}}@media(prefers-color-scheme:dark)"
                f"{{svg{{{variables(DARK)}}}}}</style>"
                f'<rect width="{wide}" height="{high}" style="fill:var(--paper)"/>'
            )
        return head + "".join(map(_svg, self._shapes)) + "</svg>"

    def png(self) -> bytes:
        """Return an enlarged PNG in the light colours."""
        buffer = io.BytesIO()
        self._image().save(buffer, format="PNG", compress_level=4)
        return buffer.getvalue()

    def _image(self) -> Image.Image:
        fine = 2 * _ENLARGED  # Drawn larger and made smaller, for smooth edges.
        size = (round(self.width * fine), round(self.height * fine))
        image = Image.new("RGB", size, LIGHT["paper"])
        draw = ImageDraw.Draw(image, "RGBA")
        for shape in self._shapes:
            _paint(draw, shape, fine)
        return image.reduce(2)


def png_of(drawings: Sequence[Drawing]) -> bytes:
    """Return an enlarged PNG of the drawings, one below the other, in the light colours."""
    images = [drawing._image() for drawing in drawings]
    size = max(image.width for image in images), sum(image.height for image in images)
    sheet = Image.new("RGB", size, LIGHT["paper"])
    top = 0
    for image in images:
        sheet.paste(image, (0, top))
        top += image.height
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()


def escape(text: object) -> str:
    """Escape text for HTML; control characters become replacement characters."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def variables(palette: dict[str, str]) -> str:
    """Return the CSS that gives the roles their colours."""
    return "".join(f"--{role}:{colour};" for role, colour in palette.items())


@functools.lru_cache(maxsize=20_000)
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return about how wide words will be."""
    return float(_font(100, bold).getlength(text)) * size / 100


def _short(number: float) -> str:
    return f"{number:.1f}".rstrip("0").rstrip(".")


def _css(colour: str) -> str:
    return colour if colour.startswith("#") else f"var(--{colour})"


def _light(colour: str, opacity: float) -> tuple[int, int, int, int]:
    text = colour if colour.startswith("#") else LIGHT[colour]
    red, green, blue = (int(text[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue, round(255 * opacity)


def _style(shape: _Shape) -> str:
    parts = [f"fill:{_css(shape.fill)}" if shape.fill else "fill:none"]
    if shape.stroke:
        parts.append(f"stroke:{_css(shape.stroke)};stroke-width:{_short(shape.width)}")
        if shape.kind == "line":
            parts.append("stroke-linejoin:round;stroke-linecap:round")
    if shape.dash:
        parts.append("stroke-dasharray:4 3")
    if shape.opacity < 1:
        parts.append(f"opacity:{shape.opacity:g}")
    return ";".join(parts)


def _svg(shape: _Shape) -> str:
    style = _style(shape)
    inside = f"<title>{escape(shape.told)}</title>" if shape.told else ""
    (x, y), *_ = shape.points
    match shape.kind:
        case "line" | "area":
            name = "polyline" if shape.kind == "line" else "polygon"
            path = " ".join(f"{_short(a)},{_short(b)}" for a, b in shape.points)
            return f'<{name} points="{path}" style="{style}">{inside}</{name}>'
        case "box":
            right, bottom = shape.points[1]
            round_ = f' rx="{_short(shape.radius)}"' if shape.radius else ""
            return (
                f'<rect x="{_short(x)}" y="{_short(y)}" width="{_short(right - x)}" '
                f'height="{_short(bottom - y)}"{round_} style="{style}">{inside}</rect>'
            )
        case "dot":
            return (
                f'<circle cx="{_short(x)}" cy="{_short(y)}" r="{_short(shape.radius)}" '
                f'style="{style}">{inside}</circle>'
            )
        case _:
            weight = ' font-weight="600"' if shape.bold else ""
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            return (
                f'<text x="{_short(x)}" y="{_short(y)}" font-size="{_short(shape.size)}"'
                f'{weight}{anchor} style="{style}">{escape(shape.text)}</text>'
            )


def _paint(draw: ImageDraw.ImageDraw, shape: _Shape, fine: float) -> None:
    points = [(x * fine, y * fine) for x, y in shape.points]
    fill = _light(shape.fill, shape.opacity) if shape.fill else None
    stroke = _light(shape.stroke, shape.opacity) if shape.stroke else None
    width = max(1, round(shape.width * fine))
    match shape.kind:
        case "line":
            for part in _dashes(points, 4 * fine, 3 * fine) if shape.dash else [points]:
                draw.line(part, fill=stroke, width=width, joint="curve")
        case "area":
            draw.polygon(points, fill=fill)
        case "box":
            left_top, right_bottom = points
            if right_bottom[0] > left_top[0] and right_bottom[1] > left_top[1]:
                draw.rounded_rectangle(
                    (*left_top, *right_bottom),
                    shape.radius * fine,
                    fill=fill,
                    outline=stroke,
                    width=width if stroke else 0,
                )
        case "dot":
            ((x, y),), far = points, shape.radius * fine
            draw.ellipse(
                (x - far, y - far, x + far, y + far),
                fill=fill,
                outline=stroke,
                width=width if stroke else 0,
            )
        case _:
            anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
            font = _font(round(shape.size * fine), shape.bold)
            draw.text(points[0], shape.text, fill=fill, font=font, anchor=anchor)


def _dashes(points: Sequence[Point], on: float, off: float) -> list[list[Point]]:
    """Cut a line into dashes."""
    pieces: list[list[Point]] = []
    left, drawing = on, True
    for (x, y), (u, v) in pairwise(points):
        length = ((u - x) ** 2 + (v - y) ** 2) ** 0.5
        done = 0.0
        while length - done > 1e-9:
            step = min(left, length - done)
            if drawing:
                a, b = done / length, (done + step) / length
                pieces.append([(x + (u - x) * t, y + (v - y) * t) for t in (a, b)])
            done, left = done + step, left - step
            if left <= 1e-9:
                drawing = not drawing
                left = on if drawing else off
    return pieces


@functools.cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:  # noqa: FBT001
    """Return the font DejaVu, which has every sign we use."""
    file = Path(__file__).parent / "fonts" / f"DejaVuSans{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(str(file), size)
