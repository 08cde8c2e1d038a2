"""Drawings and charts: sound SVG, a PNG of the right size, numbers people can read."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from tests.helpers.synthetic_run import grid_events, per_class_events, sheet

from manege.report import charts, maps, sheets
from manege.report.axes import Scale, nice, scale_for, tick_text, told, whole_ticks
from manege.report.charts import Curve, Panel, Whisker
from manege.report.drawing import Drawing
from manege.report.history import History
from manege.report.series import MOST_POINTS, quantiles, thinned


def _history(events) -> History:
    history = History()
    history.see_all(events)
    return history


def _figures() -> list[Drawing]:
    history = _history(grid_events(2, 3, 6))
    curve = Curve("generator", quantiles(history, "generator"), "c0")
    other = Curve("discriminator", quantiles(history, "discriminator"), "c1", floor=1.0)
    places = {(row, column): float(row + column) for row in range(2) for column in range(3)}
    panels = [Panel(f"<{n}>", [(1.0, 2.0), (2.0, n + 0.5)], "note") for n in range(7)]
    return [
        charts.curves("Losses", "a note", [curve, other]),
        charts.curves("One", "a note", [curve], log=True),
        charts.multiples("Each", "a note", panels),
        maps.heat("Fitness", "a note", (2, 3), places, marked=(1, 1)),
        maps.heat("Half of it", "a note", (2, 3), {(0, 0): 1.0}),
        maps.kinds("Loss", "a note", (2, 3), {place: "minimax" for place in places}),
        charts.bars("Bars", "a note", [("a", 1.0, "one"), ("b", 0.0, "none")]),
        charts.whiskers("Whiskers", "a note", [Whisker("a", 1.0, 0.5, 2.0, floor=0.1)]),
        charts.shares_over_time("Shares", "a note", [1, 2], {"a": [0.2, 0.5], "b": [0.8, 0.5]}),
        charts.tree("Tree", "note", [("0-0", 3), ("0-1", 0)], [], ["0-0", "0-1"], 3, {}),
        charts.timeline("Faults", "a note", [("warnings", "c6", [1.0, 100.0])], 200.0),
    ]


@pytest.mark.parametrize("figure", _figures(), ids=lambda figure: figure.title)
def test_every_figure_is_sound_svg_with_words_for_those_who_do_not_see_it(figure):
    tree = ElementTree.fromstring(figure.svg("name", alone=True))
    words = {child.tag.split("}")[1]: child.text for child in list(tree)[:2]}
    assert words["title"] == figure.title
    assert len(words["desc"]) > 10
    assert tree.get("role") == "img"
    numbers = [float(part) for part in tree.get("viewBox").split()]
    assert numbers[2:] == [figure.width, pytest.approx(figure.height, abs=0.1)]
    assert "nan" not in figure.svg("name")


def test_a_figure_in_a_page_takes_the_pages_colours():
    figure = _figures()[0]
    assert "prefers-color-scheme" in figure.svg("a", alone=True)
    assert "prefers-color-scheme" not in figure.svg("a")
    assert "var(--c0)" in figure.svg("a")


def test_a_figure_as_png_is_twice_its_size_and_not_empty():
    figure = _figures()[0]
    with Image.open(io.BytesIO(figure.png())) as image:
        assert image.size == (2 * figure.width, 2 * figure.height)
        assert len(image.convert("L").getcolors(1 << 20)) > 20


def test_quantiles_are_thinned_to_what_a_figure_shows():
    history = _history(per_class_events(["a", "b", "c"], 1000))
    found = quantiles(history, "generator")
    assert len(found.rounds) <= MOST_POINTS
    assert found.rounds[-1] == 1000
    assert (np.diff(found.levels_QR, axis=0) >= 0).all()
    assert len(thinned([(n, float(n)) for n in range(5000)], 80)) == 80


def test_quantiles_of_what_nobody_has_are_none():
    assert quantiles(_history(per_class_events(["a"], 3)), "diversity") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.12345, "0.123"), (-1.5, "−1.50"), (1234.5, "1,234"), (1e-6, "1e-6")],
)
def test_numbers_are_told_with_three_digits(value, text):
    assert told(value) == text


def test_ticks_are_round_and_inside():
    for low, high in ((0.0, 1.0), (-3.0, 7.7), (0.013, 0.0171), (5, 5000)):
        ticks = nice(low, high, 5)
        assert ticks
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
        assert len({tick_text(tick, ticks) for tick in ticks}) == len(ticks)
    assert whole_ticks(1, 4, 8) == [1, 2, 3, 4]


def test_a_scale_of_equal_numbers_is_no_division_by_zero():
    scale = scale_for([2.0, 2.0], 0, 100)
    assert scale(2.0) == pytest.approx(50)
    assert Scale(1, 100, 0, 10, log=True)(10) == pytest.approx(5)


def test_pictures_are_cut_out_of_a_sheet(tmp_path):
    sheet(tmp_path / "sheet.png", 16, 3)
    cut = sheets.tiles(sheets.load(tmp_path / "sheet.png"), 8)
    expected = np.random.default_rng(3).integers(0, 256, (16, 8, 8, 1), dtype=np.uint8)
    assert (cut == expected).all()


def test_a_sheet_of_another_side_or_no_picture_is_none(tmp_path):
    sheet(tmp_path / "sheet.png", 16, 3)
    assert sheets.tiles(sheets.load(tmp_path / "sheet.png"), 28) is None
    (tmp_path / "bad.png").write_bytes(b"\x89PNG nothing")
    assert sheets.load(tmp_path / "bad.png") is None
    assert sheets.load(tmp_path / "none.png") is None


def test_some_of_many_keep_the_first_and_the_last():
    assert sheets.spread_over([1, 2, 3], 5) == [1, 2, 3]
    assert sheets.spread_over(list(range(100)), 4) == [0, 33, 66, 99]
