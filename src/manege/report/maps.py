"""Figures of a grid with each cell in its place: heat maps and maps of kinds.

These functions take numbers and return a `Drawing`; they open no file and no run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from manege.report.axes import TICK, told
from manege.report.charts import HALF, TOP, head
from manege.report.drawing import SERIES, Drawing, text_width

_VIRIDIS = (
    (68, 1, 84),
    (71, 45, 123),
    (59, 82, 139),
    (44, 114, 142),
    (33, 145, 140),
    (40, 174, 128),
    (94, 201, 98),
    (173, 220, 48),
    (253, 231, 37),
)


def heat(
    title: str,
    note: str,
    shape: tuple[int, int],
    values: Mapping[tuple[int, int], float],
    *,
    marked: tuple[int, int] | None = None,
    width: float = HALF,
    lower_is_better: bool = True,
) -> Drawing:
    """Draw a grid's cells in their places, brighter where better; the marked one has a frame."""
    rows, columns = shape
    side, left, top = _cell_side(shape, width)
    low, high = min(values.values()), max(values.values())
    height = top + rows * side + 44
    best = (min if lower_is_better else max)(values, key=lambda place: values[place])
    words = (
        f"{note} A grid of {rows} by {columns} cells from {told(low)} to {told(high)}; "
        f"best is cell {best[0]}-{best[1]}."
    )
    drawing = Drawing(width, height, title, words)
    head(drawing, note)
    for row, column in ((r, c) for r in range(rows) for c in range(columns)):
        value = values.get((row, column))
        place = (left + column * side, top + row * side)
        _heat_cell(drawing, place, side, (row, column), value, (low, high), lower_is_better)
    if marked is not None:
        _frame(drawing, left + marked[1] * side, top + marked[0] * side, side)
    _colour_bar(drawing, left, top + rows * side + 12, low, high, lower_is_better)
    return drawing


def _cell_side(shape: tuple[int, int], width: float) -> tuple[float, float, float]:
    rows, columns = shape
    side = min((width - 20) / columns, 330 / rows, 96.0)
    return side, 2.0, TOP


def _heat_cell(
    drawing: Drawing,
    place: tuple[float, float],
    side: float,
    cell: tuple[int, int],
    value: float | None,
    ends: tuple[float, float],
    lower_is_better: bool,  # noqa: FBT001
) -> None:
    gap = 2.0 if side > 14 else 0.5
    words = f"cell {cell[0]}-{cell[1]}: {told(value)}"
    if value is None:
        drawing.box(*place, side - gap, side - gap, "soft", stroke="rule", told=words)
        return
    part = 0.5 if ends[1] == ends[0] else (value - ends[0]) / (ends[1] - ends[0])
    colour = shade(1 - part if lower_is_better else part)
    drawing.box(*place, side - gap, side - gap, colour, radius=3 if side > 20 else 0, told=words)
    text = told(value)
    if text_width(text, 12) < side - 8 and side > 24:
        middle = (place[0] + (side - gap) / 2, place[1] + (side - gap) / 2 + 4)
        drawing.text(middle, text, size=12, colour=_on(colour), anchor="middle", bold=True)
        if side > 52:
            name = f"{cell[0]}-{cell[1]}"
            at = (place[0] + 6, place[1] + 14)
            drawing.text(at, name, size=10, colour=_on(colour))


def _frame(drawing: Drawing, left: float, top: float, side: float) -> None:
    edge = side - (2.0 if side > 14 else 0.5)
    corners = [(0.0, 0.0), (edge, 0.0), (edge, edge), (0.0, edge), (0.0, 0.0)]
    drawing.line([(left + x, top + y) for x, y in corners], "ink", 3.0)


def _colour_bar(
    drawing: Drawing,
    left: float,
    top: float,
    low: float,
    high: float,
    lower_is_better: bool,  # noqa: FBT001
) -> None:
    steps, wide = 24, 5.0
    for step in range(steps):
        part = step / (steps - 1)
        colour = shade(1 - part if lower_is_better else part)
        drawing.box(left + step * wide, top, wide + 0.5, 10, colour)
    drawing.text((left, top + 24), told(low), size=TICK, colour="muted")
    end = left + steps * wide
    drawing.text((end, top + 24), told(high), size=TICK, colour="muted", anchor="end")
    words = "lower is better" if lower_is_better else ""
    drawing.text((end + 10, top + 10), words, size=TICK, colour="muted")


def kinds(
    title: str,
    note: str,
    shape: tuple[int, int],
    values: Mapping[tuple[int, int], str],
    *,
    width: float = HALF,
) -> Drawing:
    """Draw a grid's cells in their places, each in the colour and with the letter of its kind."""
    rows, _ = shape
    side, left, top = _cell_side(shape, width)
    names = sorted(set(values.values()))
    counts = {name: sum(value == name for value in values.values()) for name in names}
    words = ", ".join(f"{name} in {counts[name]} cells" for name in names)
    texts = [f"{name} ({counts[name]})" for name in names]
    places = _legend(texts, left, top + rows * side + 22, width)
    drawing = Drawing(width, places[-1][1] + 20, title, f"{note} {words}.")
    head(drawing, note)
    for (row, column), name in values.items():
        colour = SERIES[names.index(name) % len(SERIES)]
        place, gap = (left + column * side, top + row * side), 2.0 if side > 14 else 0.5
        drawing.box(
            *place,
            side - gap,
            side - gap,
            colour,
            radius=3 if side > 20 else 0,
            told=f"cell {row}-{column}: {name}",
        )
        if side > 16:
            middle = (place[0] + (side - gap) / 2, place[1] + (side - gap) / 2 + 4)
            drawing.text(
                middle, name[:1].upper(), size=12, colour="paper", bold=True, anchor="middle"
            )
    for number, (name, (x, y)) in enumerate(zip(names, places, strict=True)):
        drawing.box(x, y - 10, 12, 12, SERIES[number % len(SERIES)], radius=2)
        drawing.text((x + 17, y), f"{name} ({counts[name]})", size=12)
    return drawing


def _legend(
    texts: Sequence[str], left: float, top: float, width: float
) -> list[tuple[float, float]]:
    """Return where the entries of a legend begin, in as many rows as they need."""
    places, x, y = [], left, top
    for text in texts:
        wide = text_width(text, 12) + 34
        if x > left and x + wide > width:
            x, y = left, y + 20
        places.append((x, y))
        x += wide
    return places


def shade(part: float) -> str:
    """Return a colour from dark blue (0) to bright yellow (1), whose lightness rises as well."""
    place = min(max(part, 0.0), 1.0) * (len(_VIRIDIS) - 1)
    index = min(int(place), len(_VIRIDIS) - 2)
    share = place - index
    pairs = zip(_VIRIDIS[index], _VIRIDIS[index + 1], strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _on(colour: str) -> str:
    """Return black or white, whichever can be read on the colour."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#14181f"
