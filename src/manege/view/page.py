"""Compose the terminal page: lines of styled words, fit for a width and a height.

Pure: it takes a `Scene` and returns lines. How styles look is up to `terminal`.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from manege.progress import duration
from manege.report.history import History, place_of
from manege.report.records import CellRecord
from manege.view.scene import Scene

Span = tuple[str, str]
"""Words, and their style: a state's name, `strong`, `dim` or nothing."""
Line = list[Span]

WORDS = {
    "waiting": "waiting",
    "running": "training",
    "again": "again",
    "finished": "done",
    "failed": "failed",
    "stopped": "stopped",
}
_WORST = ("failed", "again", "running", "stopped", "waiting", "finished")
"""States, the most urgent first: a block of cells shows its most urgent one."""


_SHARE_AFTER_S = 10.0
"""Seconds before which the part of the time that the view took means nothing."""


class Signs(NamedTuple):
    """The characters to draw with."""

    states: dict[str, str]
    sparks: str
    full: str
    empty: str
    bar: str
    dot: str
    dash: str


UNICODE = Signs(
    {
        "waiting": "·",
        "running": "▸",
        "again": "↻",
        "finished": "✓",
        "failed": "✗",
        "stopped": "■",
    },
    "▁▂▃▄▅▆▇█",
    "━",
    "─",
    "▇",
    "·",
    "–",
)
ASCII = Signs(
    {
        "waiting": ".",
        "running": ">",
        "again": "~",
        "finished": "v",
        "failed": "x",
        "stopped": "=",
    },
    "_.-~=+*#",
    "#",
    "-",
    "#",
    "|",
    "-",
)


def compose(scene: Scene, width: int, height: int, signs: Signs = UNICODE) -> list[Line]:
    """Return the lines of the page, within that width and height."""
    top = _top(scene, width, signs)
    bottom = _bottom(scene, width, max(1, min(4, height - len(top) - 12)))
    room = max(1, height - len(top) - len(bottom))
    body = _body(scene, width, room, signs)
    return [_cut(line, width) for line in (*top, *body[:room], *bottom)][:height]


def text_of(lines: Sequence[Line]) -> str:
    """Return the page without styles."""
    return "\n".join("".join(words for words, _ in line).rstrip() for line in lines)


def state_of(cell: CellRecord) -> str:
    """Return a cell's state, which is `again` while it repeats a round after a rollback."""
    again = cell.state == "running" and cell.rolled_back == cell.last + 1
    return "again" if again else cell.state


def short(value: float | None, dash: str = "–") -> str:
    """Format a number in at most six characters."""
    if value is None:
        return dash
    size = abs(value)
    if size >= 99_999:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.01 or size == 0:
        return f"{value:.3f}" if size < 1 else f"{value:.2f}"
    return f"{value:.0e}".replace("e-0", "e-") if size < 0.001 else f"{value:.4f}"


def spark(values: Sequence[float], width: int, signs: Signs = UNICODE) -> str:
    """Draw values as a line of small bars, thinned to the width; the newest is at the right."""
    if width < 1 or len(values) < 2:
        return ""
    thin = list(values)
    if len(thin) > width:
        thin = [thin[((n + 1) * len(thin) - 1) // width] for n in range(width)]
    low, high = min(thin), max(thin)
    most = len(signs.sparks) - 1
    if high == low:
        return signs.sparks[most // 2] * len(thin)
    return "".join(signs.sparks[round((one - low) / (high - low) * most)] for one in thin)


# The parts of the page.


def _top(scene: Scene, width: int, signs: Signs) -> list[Line]:
    history = scene.history
    return [
        _title(scene, width, signs),
        _progress(scene, width, signs),
        _health(scene, signs),
        _best(scene, signs),
        _profile(history, width, signs),
        _counts(scene, width, signs),
        [],
    ]


def _title(scene: Scene, width: int, signs: Signs) -> Line:
    history = scene.history
    shape = history.shape()
    grid = f" {shape[0]}x{shape[1]}" if shape else ""
    what = f"{scene.data}{signs.dot:^3}{history.method or '?'}{grid}"
    if history.preset:
        what += f"{signs.dot:^3}{history.preset}"
    words = {"running": "training", "new": "not begun", "failed": "ended, with failures"}
    state = words.get(scene.state, scene.state)
    styles = {"finished": "finished", "failed": "failed", "running": "running"}
    room = width - len(what) - len(state) - 6
    name = scene.name if len(scene.name) <= room else "…" + scene.name[-max(1, room - 1) :]
    left: Line = [(name, "strong"), (f"  {what}", "")]
    gap = max(2, width - sum(len(text) for text, _ in left) - len(state))
    return [*left, (" " * gap, ""), (state, styles.get(scene.state, "stopped"))]


def _progress(scene: Scene, width: int, signs: Signs) -> Line:
    history, now = scene.history, scene.now
    part = now.overall(history)
    if scene.state in ("finished", "failed"):
        part = 1.0
    words = []
    lasts = [cell.last for cell in history.cells.values()]
    if lasts:
        least = f"{min(lasts)}" if min(lasts) == max(lasts) else f"{min(lasts)}-{max(lasts)}"
        words.append(f"round {least}" + (f" of {history.rounds}" if history.rounds else ""))
    if history.starts:
        end = scene.t if scene.state in ("running", "paused") else history.last_t or scene.t
        words.append(f"{duration(max(0.0, end - history.starts[-1]))} gone")
    if scene.state in ("running", "paused"):
        words.append(_left(scene))
    text = "  ".join(word for word in words if word)
    room = max(8, min(46, width - len(text) - 9))
    done = round(room * (part or 0.0))
    shown = "   ? %" if part is None else f"{part:>4.0%}".replace("%", " %")
    return [
        (signs.full * done, "running"),
        (signs.empty * (room - done), "dim"),
        (f" {shown}  ", "strong"),
        (text, ""),
    ]


def _left(scene: Scene) -> str:
    left = scene.now.left
    if left is None:
        return "time left ?"
    if left.low is None:
        return f"about {duration(left.seconds)} left"
    high = duration(left.high) if left.high is not None else "?"
    return f"{duration(left.seconds)} left ({duration(left.low)} to {high})"


def _health(scene: Scene, signs: Signs) -> Line:
    now, history = scene.now, scene.history
    words = []
    if now.trainers is not None and scene.state in ("running", "paused"):
        plural = "" if now.trainers == 1 else "s"
        beat = "" if now.heartbeat_s is None else f", oldest heartbeat {now.heartbeat_s:.1f} s"
        words.append(f"{now.trainers} trainer{plural}{beat}")
    if history.last_commit is not None:
        t, cell = history.last_commit
        ago = f"{duration(max(0.0, scene.t - t))} ago"
        words.append(f"last commit {ago} ({cell}), {history.commits:,} in all")
    else:
        words.append("no commit yet")
    deaths = sum(fault.kind == "trainer_died" for fault in history.faults)
    line: Line = [(f"{signs.dot:^3}".join(words), "")]
    if deaths:
        line.append((f"{signs.dot:^3}{deaths} trainers died", "failed"))
    return line


def _best(scene: Scene, signs: Signs) -> Line:
    history = scene.history
    found = history.best_cell(scene.measure)
    line: Line
    if found is None:
        line = [("best: not judged yet", "dim")]
    else:
        cell, value, round_ = found
        when = f", round {round_}" if round_ is not None else ""
        line = [("best ", ""), (cell.key, "strong"), (f"  {scene.metric} {short(value)}{when}", "")]
        line.append((f"{signs.dot:^3}lower is better", "dim"))
    return line


def _profile(history: History, width: int, signs: Signs) -> Line:
    found = history.routines()
    total = sum(found.values())
    if not total:
        return [("time: no round has ended yet", "dim")]
    line: Line = [("time ", "dim")]
    used = 5
    for name, seconds in sorted(found.items(), key=lambda pair: -pair[1]):
        share = seconds / total
        text = f"{name} {share:.0%} ".replace("%", " %")
        bar = signs.bar * round(12 * share)
        if used + len(text) + len(bar) + 2 > width:
            break
        line += [(text, ""), (bar, "running"), ("  ", "")]
        used += len(text) + len(bar) + 2
    return line


def _counts(scene: Scene, width: int, signs: Signs) -> Line:
    counts = Counter(state_of(cell) for cell in scene.history.cells.values())
    line: Line = [
        (f"{len(scene.history.cells)} {'cells' if scene.history.on_grid else 'classes'}  ", "dim")
    ]
    if scene.history.method in ("single", "conditional"):
        line = [("one pair  ", "dim")]
    for state, words in WORDS.items():
        if counts[state]:
            line.append((f"{signs.states[state]} {counts[state]} {words}  ", state))
    if scene.now.wall_s > _SHARE_AFTER_S:
        share = scene.now.view_s / scene.now.wall_s
        text = f"this view {share:.2%} of a core".replace("%", " %")
        gap = width - sum(len(words) for words, _ in line) - len(text)
        if gap > 0:
            line += [(" " * gap, ""), (text, "dim")]
    return line


def _bottom(scene: Scene, width: int, most: int) -> list[Line]:
    lines: list[Line] = [[]]
    for message in scene.messages[-most:]:
        whole = _wide(message) <= width
        lines.append([(message if whole else f"{message[: width - 1]}…", "")])
    if scene.keys:
        lines.append([(scene.keys, "dim")])
    return lines


def _body(scene: Scene, width: int, room: int, signs: Signs) -> list[Line]:
    if not scene.history.cells:
        return [[("no cell has begun", "dim")]]
    shape = scene.history.shape()
    if shape is not None:
        return _grid(scene, shape, width, room, signs)
    return _list(scene, width, room, signs)


def _grid(scene: Scene, shape: tuple[int, int], width: int, room: int, signs: Signs) -> list[Line]:
    history, (rows, columns) = scene.history, shape
    at = {place_of(cell.key): cell for cell in history.cells.values()}
    each = min(width // columns, 40)
    if each < 1 or rows > room:
        return _blocks(at, shape, width, room, signs)
    tall = each >= 14 and rows * 3 - 1 <= room
    lines: list[Line] = []
    for row in range(rows):
        cells = [at.get((row, column)) for column in range(columns)]
        if tall:
            heads = [_cell_head(scene, cell, each, signs) for cell in cells]
            tails = [_cell_spark(scene, cell, each, signs) for cell in cells]
            lines += [_joined(heads), _joined(tails)]
            if row + 1 < rows:
                lines.append([])
        else:
            lines.append(_joined([_cell_short(scene, cell, each, signs) for cell in cells]))
    return lines


def _joined(parts: Sequence[Line]) -> Line:
    return [span for part in parts for span in part]


def _value(scene: Scene, cell: CellRecord) -> float | None:
    return scene.history.latest(cell, scene.measure)


def _trend(scene: Scene, cell: CellRecord, width: int, signs: Signs) -> str:
    history = scene.history
    # Only as far back as the bars reach: a long run must not cost more than a short one.
    kept = list(cell.scored if scene.measure == "score" else cell.rounds)[-4 * max(1, width) :]
    part = CellRecord(
        cell.key,
        rounds={n: cell.rounds[n] for n in kept if n in cell.rounds},
        scored={n: cell.scored[n] for n in kept if n in cell.scored},
    )
    return spark([value for _, value in history.series(part, scene.measure)], width, signs)


def _cell_head(scene: Scene, cell: CellRecord | None, width: int, signs: Signs) -> Line:
    if cell is None:
        return [(" " * width, "")]
    state = state_of(cell)
    number = short(_value(scene, cell), signs.dash)
    name = cell.key[: max(1, width - len(number) - 6)]
    text = f" {name}".ljust(max(1, width - len(number) - 4))
    return [(signs.states[state], state), (text, ""), (number, "strong"), ("   ", "")]


def _cell_spark(scene: Scene, cell: CellRecord | None, width: int, signs: Signs) -> Line:
    if cell is None:
        return [(" " * width, "")]
    place = scene.now.places.get(cell.key)
    step = f"{place[1] / max(1, place[2]):.0%}" if place and cell.state == "running" else ""
    bars = _trend(scene, cell, width - 6 - len(step), signs)
    gap = width - 5 - len(bars) - len(step)
    return [("  ", ""), (bars, "running"), (" " * gap, ""), (step, "dim"), ("   ", "")]


def _cell_short(scene: Scene, cell: CellRecord | None, width: int, signs: Signs) -> Line:
    """Return a cell's sign, number and bars, as much of it as fits."""
    if cell is None:
        return [(" " * width, "")]
    state = state_of(cell)
    if width < 8:
        return [(signs.states[state] + " " * (width - 1), state)]
    number = short(_value(scene, cell), signs.dash)[: width - 2]
    bars = _trend(scene, cell, min(16, width - 10), signs) if width >= 13 else ""
    gap = width - 2 - max(6, len(number)) - len(bars) - (1 if bars else 0)
    return [
        (signs.states[state], state),
        (f" {number:<6}", ""),
        (f" {bars}" if bars else "", "running"),
        (" " * max(0, gap), ""),
    ]


def _blocks(
    at: dict[tuple[int, int] | None, CellRecord],
    shape: tuple[int, int],
    width: int,
    room: int,
    signs: Signs,
) -> list[Line]:
    """Return a sign for each block of cells: the worst state in it."""
    rows, columns = shape
    side = max(math.ceil(rows / max(1, room - 1)), math.ceil(columns / width))
    lines: list[Line] = []
    for top in range(0, rows, side):
        line: Line = []
        for left in range(0, columns, side):
            states = {
                state_of(cell)
                for row in range(top, min(rows, top + side))
                for column in range(left, min(columns, left + side))
                if (cell := at.get((row, column))) is not None
            }
            worst = next((state for state in _WORST if state in states), "waiting")
            line.append((signs.states[worst], worst))
        lines.append(line)
    if side > 1:
        lines.append([(f"one sign for {side}x{side} cells: the state to look at first", "dim")])
    return lines


_ORDER = {
    state: number
    for number, state in enumerate(("failed", "again", "running", "finished", "stopped", "waiting"))
}
"""The order of a list that is too long for the page: cells that need attention come first."""


def _list(scene: Scene, width: int, room: int, signs: Signs) -> list[Line]:
    cells = list(scene.history.cells.values())
    longest = max(_wide(cell.key) for cell in cells)
    for each in (38, 26, 20):
        columns = max(1, width // each)
        if columns * room >= len(cells):
            break
    if columns * room < len(cells):
        cells.sort(key=lambda cell: _ORDER[state_of(cell)])
    shown = cells if columns * room >= len(cells) else cells[: columns * (room - 1)]
    down = math.ceil(len(shown) / columns)
    lines: list[Line] = []
    for row in range(down):
        some = shown[row::down] if down else []
        lines.append(
            _joined([_entry(scene, cell, width // columns, longest, signs) for cell in some])
        )
    if len(shown) < len(cells):
        rest = Counter(state_of(cell) for cell in cells[len(shown) :])
        words = ", ".join(f"{count} {WORDS[state]}" for state, count in rest.items())
        lines.append([(f"and {len(cells) - len(shown)} more: {words}", "dim")])
    return lines


def _entry(scene: Scene, cell: CellRecord, width: int, longest: int, signs: Signs) -> Line:
    state = state_of(cell)
    number = short(_value(scene, cell), signs.dash)
    name_room = max(3, min(longest, width - 11))
    line: Line = [
        (signs.states[state], state),
        (f" {_fit(cell.key, name_room)} ", ""),
        (f"{number:>6}", "strong"),
    ]
    used = 3 + name_room + 6
    if width - used >= 14:
        text = f" r{cell.last}"
        line.append((f"{text:<6}", "dim"))
        used += max(6, len(text))
    bars = _trend(scene, cell, min(20, width - used - 3), signs) if width - used > 7 else ""
    line.append((f" {bars}" if bars else "", "running"))
    used += len(bars) + 1 if bars else 0
    line.append((" " * max(0, width - used), ""))
    return line


def _wide(text: str) -> int:
    """Return how many columns a text takes: some signs take two."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def _fit(text: str, width: int) -> str:
    """Fit a text to exactly that many columns, cut in its middle: names differ at their ends."""
    if _wide(text) > width:
        tail = text[-(width // 3) :] if width >= 6 else ""
        while text and _wide(text) + _wide(tail) > width - 1:
            text = text[:-1]
        text += f"…{tail}"
    return text + " " * (width - _wide(text))


def _cut(line: Line, width: int) -> Line:
    """Cut a line to the width, without control characters: names come from anywhere."""
    out: Line = []
    left = width
    for words, style in line:
        clean = "".join(one if one.isprintable() else "?" for one in words)
        while clean and _wide(clean) > left:
            clean = clean[: max(0, min(len(clean) - 1, left))]
        if clean:
            out.append((clean, style))
            left -= _wide(clean)
    return out
