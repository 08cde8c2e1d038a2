"""Figures of a run: curves with bands, small multiples, bars, family trees, time lines.

These functions take numbers and return a `Drawing`; they open no file and no run directory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manege.report.axes import (
    TICK,
    Scale,
    draw_ends,
    draw_rounds,
    draw_y,
    rounds_scale,
    scale_for,
    tick_text,
    told,
)
from manege.report.drawing import SERIES, Drawing, text_width
from manege.report.series import Quantiles

WIDE, HALF, THIRD = 1000.0, 490.0, 320.0
TOP = 50.0


@dataclass(frozen=True)
class Curve:
    """One line of a figure, with a band of its quantiles."""

    label: str
    values: Quantiles
    colour: str
    floor: float | None = None


@dataclass(frozen=True)
class Panel:
    """One of many small figures on shared axes."""

    label: str
    points: Sequence[tuple[float, float]]
    note: str = ""
    colour: str = "c0"
    interval: Sequence[tuple[float, float, float]] = ()
    """Triples of round, low and high."""


@dataclass(frozen=True)
class Whisker:
    """A number with its interval, drawn in a row of its own."""

    label: str
    value: float
    low: float | None
    high: float | None
    colour: str = "c0"
    floor: float | None = None
    """What real pictures score."""
    points: Sequence[float] = ()
    """The single numbers that `value` sums up."""


def head(drawing: Drawing, note: str) -> None:
    """Write the title and a note above `TOP`."""
    drawing.text((2, 17), drawing.title, size=15, bold=True)
    drawing.text((2, 35), note, size=12, colour="muted")


def curves(
    title: str,
    note: str,
    shown: Sequence[Curve],
    *,
    width: float = HALF,
    height: float = 260.0,
    log: bool = False,
    along: str = "round",
) -> Drawing:
    """Draw medians over the rounds, with the cells' middle half and middle four fifths."""
    ends = ", ".join(f"{one.label} ends at {told(float(one.values.median[-1]))}" for one in shown)
    drawing = Drawing(width, height, title, f"{note} Curves over the {along}s: {ends}.")
    head(drawing, note)
    labels = max(text_width(one.label, 12) for one in shown) if len(shown) > 1 else 0.0
    left, right, bottom = 56.0, width - (labels + 16 if labels else 10), height - 26
    every = [float(v) for one in shown for v in one.values.levels_QR[[0, 4]].ravel()]
    every += [one.floor for one in shown if one.floor is not None]
    y = scale_for(every, bottom, TOP, log=log)
    last = max(float(one.values.rounds[-1]) for one in shown)
    x = rounds_scale(math.ceil(last), left, right)
    draw_y(drawing, y, left, right)
    draw_rounds(drawing, x, bottom, along)
    for one in shown:
        _band(drawing, one, x, y)
    for one in shown:
        _middle(drawing, one, x, y, bare=len(shown) == 1)
    if len(shown) > 1:
        _end_labels(drawing, shown, y, right + 8, TOP, bottom)
    return drawing


def _band(drawing: Drawing, one: Curve, x: Scale, y: Scale) -> None:
    rounds, levels = one.values.rounds, one.values.levels_QR
    if one.values.cells < 2 or len(rounds) < 2:
        return
    for low, high, opacity in ((0, 4, 0.14), (1, 3, 0.22)):
        up = [(x(float(r)), y(float(v))) for r, v in zip(rounds, levels[high], strict=True)]
        down = [(x(float(r)), y(float(v))) for r, v in zip(rounds, levels[low], strict=True)]
        drawing.area(up + down[::-1], one.colour, opacity)


def _middle(drawing: Drawing, one: Curve, x: Scale, y: Scale, *, bare: bool) -> None:
    points = [
        (x(float(r)), y(float(v)))
        for r, v in zip(one.values.rounds, one.values.median, strict=True)
    ]
    if len(points) == 1:
        drawing.dot(points[0], 3.5, one.colour)
    drawing.line(points, one.colour, 2.0)
    if one.floor is not None:
        place = y(one.floor)
        drawing.line([(x.start, place), (x.end, place)], "muted", 1.2, dash=True)
        drawing.text((x.end, place - 5), "real pictures", size=TICK, colour="muted", anchor="end")
    if bare and points:
        drawing.dot(points[-1], 3.2, one.colour)


def _end_labels(
    drawing: Drawing, shown: Sequence[Curve], y: Scale, left: float, top: float, bottom: float
) -> None:
    """Write names beside the ends of their curves, moved apart where they would overlap."""
    wanted = sorted(
        ((y(float(one.values.median[-1])), one) for one in shown), key=lambda pair: pair[0]
    )
    places: list[float] = []
    for place, _ in wanted:
        places.append(max(place, places[-1] + 15) if places else max(place, top + 4))
    if places and places[-1] > bottom:
        shift = places[-1] - bottom
        places = [place - shift for place in places]
    for place, (_, one) in zip(places, wanted, strict=True):
        drawing.text((left, place + 4), one.label, size=12, colour=one.colour)


def multiples(title: str, note: str, panels: Sequence[Panel], *, log: bool = False) -> Drawing:
    """Draw many small figures on the same axes, so that one look compares them."""
    columns = _columns(len(panels))
    rows = math.ceil(len(panels) / columns)
    left, gap = 52.0, 18.0
    wide = (WIDE - left - gap * (columns - 1)) / columns
    high = 96.0 if len(panels) > 12 else 120.0
    step = high + 40
    height = TOP + rows * step + 12
    drawing = Drawing(WIDE, height, title, _multiples_told(note, panels))
    head(drawing, note)
    every = [v for one in panels for _, v in one.points]
    every += [v for one in panels for _, *both in one.interval for v in both]
    last = max(x for one in panels for x, _ in one.points)
    for number, one in enumerate(panels):
        row, column = divmod(number, columns)
        top, start = TOP + row * step + 20, left + column * (wide + gap)
        y = scale_for(every, top + high - 16, top + 4, log=log)
        x = rounds_scale(math.ceil(last), start, start + wide)
        _panel(drawing, one, x, y, top)
        if column == 0:
            ticks = y.ticks(3)
            for tick in ticks:
                text = f"{tick:g}" if y.log else tick_text(tick, ticks)
                place = (start - 6, y(tick) + 4)
                drawing.text(place, text, size=TICK, colour="muted", anchor="end")
        if number + columns >= len(panels):
            draw_ends(drawing, x, top + high - 16, "round")
    return drawing


def _columns(count: int) -> int:
    """Return the number of columns that leaves the fewest places empty."""
    if count <= 6:
        return max(3, count)
    return min((6, 5, 4), key=lambda columns: (-count % columns, -columns))


def _multiples_told(note: str, panels: Sequence[Panel]) -> str:
    ends = ", ".join(f"{one.label} {told(one.points[-1][1])}" for one in panels[:40])
    return f"{note} Last values: {ends}{' and more' if len(panels) > 40 else ''}."


def _panel(drawing: Drawing, one: Panel, x: Scale, y: Scale, top: float) -> None:
    for tick in y.ticks(3):
        drawing.line([(x.start, y(tick)), (x.end, y(tick))], "rule")
    drawing.text((x.start, top - 5), one.label, size=12, bold=True)
    if one.note and text_width(one.label, 12, bold=True) + text_width(one.note, 11) + 8 < (
        x.end - x.start
    ):
        drawing.text((x.end, top - 5), one.note, size=11, colour="muted", anchor="end")
    if len(one.interval) > 1:
        up = [(x(r), y(high)) for r, _, high in one.interval]
        down = [(x(r), y(low)) for r, low, _ in one.interval]
        drawing.area(up + down[::-1], one.colour, 0.2)
    drawing.line([(x(r), y(v)) for r, v in one.points], one.colour, 1.8)
    best = min(one.points, key=lambda point: point[1])
    drawing.dot((x(best[0]), y(best[1])), 2.8, one.colour, told=f"lowest: {told(best[1])}")


def bars(
    title: str,
    note: str,
    rows: Sequence[tuple[str, float, str]],
    *,
    width: float = HALF,
    colours: Sequence[str] | None = None,
) -> Drawing:
    """Draw a bar for each name, with words at its end."""
    high, gap = 20.0, 8.0
    height = TOP + len(rows) * (high + gap) + 6
    words = ", ".join(f"{name} {text}" for name, _, text in rows)
    drawing = Drawing(width, height, title, f"{note} {words}.")
    head(drawing, note)
    left = max(text_width(name, 12) for name, _, _ in rows) + 12
    room = width - left - max(text_width(text, 12) for _, _, text in rows) - 12
    most = max((value for _, value, _ in rows), default=0.0) or 1.0
    for number, (name, value, text) in enumerate(rows):
        top = TOP + number * (high + gap)
        colour = colours[number] if colours else "c0"
        drawing.text((left - 10, top + 14), name, size=12, anchor="end")
        long = max(1.0, room * max(0.0, value) / most)
        drawing.box(left, top, long, high, colour, radius=2)
        drawing.text((left + long + 8, top + 14), text, size=12, colour="muted")
    return drawing


def whiskers(
    title: str,
    note: str,
    rows: Sequence[Whisker],
    *,
    width: float = HALF,
    log: bool = False,
    zero: bool = False,
) -> Drawing:
    """Draw numbers with their intervals in rows; a dashed mark shows what real pictures score."""
    step = 26.0
    height = TOP + len(rows) * step + 30
    words = "; ".join(
        f"{one.label} {told(one.value)} from {told(one.low)} to {told(one.high)}" for one in rows
    )
    drawing = Drawing(width, height, title, f"{note} {words}.")
    head(drawing, note)
    left = min(width * 0.42, max(text_width(one.label, 12) for one in rows) + 20)
    room = max(text_width(told(one.value), 12) for one in rows) + 14
    ends = [v for one in rows for v in (one.value, one.low, one.high, one.floor) if v is not None]
    ends += [v for one in rows for v in one.points]
    bottom = TOP + len(rows) * step
    x = scale_for(ends, left, width - room, log=log, zero=zero)
    ticks = x.ticks(4)
    for tick in ticks:
        drawing.line([(x(tick), TOP - 4), (x(tick), bottom)], "rule")
        text = f"{tick:g}" if x.log else tick_text(tick, ticks)
        drawing.text((x(tick), bottom + 15), text, size=TICK, colour="muted", anchor="middle")
    for number, one in enumerate(rows):
        y = TOP + number * step + 11
        drawing.text((left - 12, y + 4), _fit(one.label, left - 12), size=12, anchor="end")
        if one.low is not None and one.high is not None:
            drawing.line([(x(one.low), y), (x(one.high), y)], one.colour, 2.4)
            for end in (one.low, one.high):
                drawing.line([(x(end), y - 4), (x(end), y + 4)], one.colour, 1.4)
        if one.floor is not None:
            place = x(one.floor)
            drawing.line([(place, y - 9), (place, y + 9)], "ink", 1.6, dash=True)
        for point in one.points:
            drawing.dot((x(point), y), 3.2, "paper", stroke=one.colour)
        drawing.dot((x(one.value), y), 4.2, one.colour)
        drawing.text((width - 2, y + 4), told(one.value), size=12, anchor="end", bold=True)
    return drawing


def _fit(text: str, room: float) -> str:
    """Keep the end of a text that is too long: names of runs differ there."""
    if text_width(text, 12) <= room:
        return text
    while len(text) > 1 and text_width(f"…{text}", 12) > room:
        text = text[1:]
    return f"…{text}"


def shares_over_time(
    title: str, note: str, rounds: Sequence[int], parts: Mapping[str, Sequence[float]]
) -> Drawing:
    """Draw the parts of a whole over the rounds, stacked."""
    width, height = HALF, 260.0
    ends = ", ".join(f"{name} {values[-1]:.0%}" for name, values in parts.items())
    drawing = Drawing(width, height, title, f"{note} At the end: {ends}.")
    head(drawing, note)
    left = 44.0
    labels = [f"{name}  {values[-1]:.0%}" for name, values in parts.items()]
    right, bottom = width - max(text_width(text, 12) for text in labels) - 16, height - 26
    x, y = rounds_scale(rounds[-1], left, right), Scale(0, 1, bottom, TOP)
    base = [0.0] * len(rounds)
    middles: list[tuple[float, str, str]] = []
    for number, (label, values) in enumerate(zip(labels, parts.values(), strict=True)):
        colour = SERIES[number % len(SERIES)]
        over = [low + value for low, value in zip(base, values, strict=True)]
        up = [(x(r), y(v)) for r, v in zip(rounds, over, strict=True)]
        down = [(x(r), y(v)) for r, v in zip(rounds, base, strict=True)]
        drawing.area(up + down[::-1], colour, 0.85)
        middles.append((y((base[-1] + over[-1]) / 2), label, colour))
        base = over
    for tick in (0.0, 0.5, 1.0):
        drawing.text(
            (left - 6, y(tick) + 4), f"{tick:.0%}", size=TICK, colour="muted", anchor="end"
        )
        drawing.line([(left, y(tick)), (right, y(tick))], "paper", 0.8, opacity=0.6)
    draw_rounds(drawing, x, bottom)
    last = bottom + 12
    for place, label, colour in middles:
        last = min(place + 4, last - 15)
        drawing.text((right + 8, last), label, size=12, colour=colour)
    return drawing


def tree(
    title: str,
    note: str,
    line: Sequence[tuple[str, int]],
    births: Sequence[tuple[tuple[str, int], tuple[str, int]]],
    cells: Sequence[str],
    last: int,
    objectives: Mapping[tuple[str, int], str],
) -> Drawing:
    """Draw where and when each generator was born, and the winner's line, the newest first."""
    step = 30.0 if len(cells) <= 12 else max(4.0, 320 / len(cells))
    height = TOP + 14 + len(cells) * step + 30
    words = " from ".join(f"{cell} in round {round_}" for cell, round_ in line[:20])
    drawing = Drawing(WIDE, height, title, f"{note} Born {words}.")
    head(drawing, note)
    left, bottom = 56.0, TOP + 14 + len(cells) * step
    x = Scale(0, max(1, last), left, WIDE - 20)
    row = {cell: TOP + 14 + (number + 0.5) * step for number, cell in enumerate(cells)}
    every = max(1, math.ceil(12 / step))
    for number, cell in enumerate(cells):
        if step >= 8:
            drawing.line([(left, row[cell]), (WIDE - 20, row[cell])], "rule")
        if number % every == 0:
            drawing.text((left - 8, row[cell] + 4), cell, size=TICK, colour="muted", anchor="end")
    for (cell, round_), (parent, born) in births:
        if cell in row and parent in row:
            ends = [(x(born), row[parent]), (x(round_), row[cell])]
            drawing.line(ends, "muted", 0.8, opacity=0.35)
    known = sorted(set(objectives.values()))
    points = [(x(round_), row[cell]) for cell, round_ in line if cell in row]
    drawing.line(points, "c1", 3.0)
    for place, one in zip(points, line, strict=False):
        kind = objectives.get(one)
        colour = SERIES[(known.index(kind) * 2) % len(SERIES)] if kind in known else "c1"
        words = f"{one[0]}, round {one[1]}" + (f", {kind}" if kind else "")
        drawing.dot(place, 5.0, colour, stroke="paper", told=words)
    if points:
        drawing.dot(points[0], 8.0, None, stroke="c1")
        drawing.text((points[0][0] - 12, points[0][1] - 9), "winner", size=12, anchor="end")
    draw_rounds(drawing, x, bottom + 2)
    at = WIDE - 20
    for number, name in reversed(list(enumerate(known))):
        drawing.text((at, 35), name, size=12, colour="muted", anchor="end")
        at -= text_width(name, 12) + 14
        drawing.dot((at + 4, 31), 5, SERIES[(number * 2) % len(SERIES)])
        at -= 16
    return drawing


def timeline(
    title: str, note: str, kinds_of: Sequence[tuple[str, str, Sequence[float]]], end_s: float
) -> Drawing:
    """Draw rows of marks along the run's time; each row has a name, a colour and its seconds."""
    step, left = 26.0, max(text_width(name, 12) for name, _, _ in kinds_of) + 60
    height = TOP + len(kinds_of) * step + 28
    words = ", ".join(f"{name}: {len(times)}" for name, _, times in kinds_of)
    drawing = Drawing(WIDE, height, title, f"{note} {words}.")
    head(drawing, note)
    unit, each = ("h", 3600.0) if end_s > 7200 else ("min", 60.0) if end_s > 180 else ("s", 1.0)
    x = Scale(0, max(end_s, 1.0) / each, left, WIDE - 16)
    bottom = TOP + len(kinds_of) * step
    ticks = x.ticks(8)
    for tick in ticks:
        drawing.line([(x(tick), TOP), (x(tick), bottom)], "rule")
        text = f"{tick_text(tick, ticks)} {unit}"
        drawing.text((x(tick), bottom + 16), text, size=TICK, colour="muted", anchor="middle")
    for number, (name, colour, times) in enumerate(kinds_of):
        y = TOP + (number + 0.5) * step
        drawing.text((left - 44, y + 4), name, size=12, anchor="end")
        drawing.text((left - 14, y + 4), f"{len(times)}", size=12, colour="muted", anchor="end")
        for t in times[:400]:
            drawing.dot((x(t / each), y), 4.0, colour)
    return drawing
