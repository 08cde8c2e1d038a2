"""Axes of a figure: map numbers to places, choose ticks, and format numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from manege.report.drawing import Drawing, text_width

TICK = 11.0


@dataclass(frozen=True)
class Scale:
    """A range of numbers laid along a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a number; one outside the range is put at the edge."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Return round numbers inside the range."""
        return _log_ticks(self.low, self.high) if self.log else nice(self.low, self.high, count)


def scale_for(
    values: Sequence[float], start: float, end: float, *, zero: bool = False, log: bool = False
) -> Scale:
    """Return a scale that holds the values, with some air; logarithmic only where that can be."""
    low, high = min(values), max(values)
    if log and low > 0 and high / low > 20:
        return Scale(low / 1.08, high * 1.08, start, end, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-12 * max(1.0, abs(high)):
        air = abs(high) * 0.1 or 1.0
        return Scale(low - air, high + air, start, end)
    air = (high - low) * 0.05
    return Scale(
        low if zero and low == 0 else low - air,
        high if zero and high == 0 else high + air,
        start,
        end,
    )


def rounds_scale(last: int, start: float, end: float) -> Scale:
    """Return a scale from the first round to the last."""
    return Scale(1, max(2, last), start, end)


def nice(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between two numbers."""
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def whole_ticks(low: int, high: int, count: int) -> list[int]:
    """Return whole numbers between two, `low` always among them and none crowded beside it."""
    if high - low <= count:
        return list(range(low, high + 1))
    inner = [round(one) for one in nice(low, high, count) if one == round(one)]
    return sorted({low, *(one for one in inner if one - low > (high - low) / (2 * count))})


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    subs = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [sub * 10.0**power for power in range(first, last + 1) for sub in subs]
    return [tick for tick in ticks if low <= tick <= high]


def told(value: float | None, digits: int = 3) -> str:
    """Format a number for people with three significant digits; None is a dash."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10_000 or size < 0.0005:
        text = f"{value:.{digits - 1}e}"
        mantissa, _, power = text.partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
        return text.replace("-", "−", 1) if value < 0 else text
    if size >= 100:
        return f"{value:,.0f}" if size >= 1000 else f"{value:.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(size)))}f}".replace("-", "−", 1)


def tick_text(value: float, ticks: Sequence[float]) -> str:
    """Format a tick's number with as many places as its neighbours need."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000 or max(map(abs, ticks)) < 0.001:
        return f"{value:.0e}".replace("e-0", "e−").replace("e+0", "e").replace("-", "−")
    steps = [abs(b - a) for a, b in pairwise(ticks)] or [abs(value)]
    places = max(0, -math.floor(math.log10(min(steps)) + 1e-9))
    if abs(min(steps) * 10**places - round(min(steps) * 10**places)) > 1e-6:
        places += 1
    return f"{value:,.{places}f}".replace("-", "−")


def draw_y(drawing: Drawing, scale: Scale, left: float, right: float) -> None:
    """Draw horizontal rules with their numbers at the left."""
    ticks = scale.ticks()
    for tick in ticks:
        y = scale(tick)
        drawing.line([(left, y), (right, y)], "rule")
        text = f"{tick:g}" if scale.log else tick_text(tick, ticks)
        drawing.text((left - 6, y + 4), text, size=TICK, colour="muted", anchor="end")


def draw_ends(drawing: Drawing, scale: Scale, bottom: float, label: str) -> None:
    """Write the first and the last round below a small figure."""
    for x in (scale.start, scale.end):
        drawing.line([(x, bottom), (x, bottom + 4)], "muted")
    first, last = f"{round(scale.low):,}", f"{label} {round(scale.high):,}".strip()
    drawing.text((scale.start, bottom + 16), first, size=TICK, colour="muted")
    drawing.text((scale.end, bottom + 16), last, size=TICK, colour="muted", anchor="end")


def draw_rounds(drawing: Drawing, scale: Scale, bottom: float, label: str = "round") -> None:
    """Write the numbers of rounds (or of `label`) below a figure; the word stands with the last."""
    last = round(scale.high)
    room = abs(scale.end - scale.start)
    end = scale.end - text_width(f"{label} {last:,}", TICK) - 8
    for tick in whole_ticks(round(scale.low), last, max(2, int(room / 70))):
        x, text = scale(tick), f"{tick:,}"
        if tick == last or x + text_width(text, TICK) / 2 <= end:
            drawing.line([(x, bottom), (x, bottom + 4)], "muted")
        if tick != last and x + text_width(text, TICK) / 2 <= end:
            drawing.text((x, bottom + 16), text, size=TICK, colour="muted", anchor="middle")
    drawing.line([(scale.end, bottom), (scale.end, bottom + 4)], "muted")
    place = (scale.end + 3, bottom + 16)
    drawing.text(place, f"{label} {last:,}", size=TICK, colour="muted", anchor="end")
