"""The terminal page: everything on it, at every size, for every run."""

from __future__ import annotations

import json
import re

import pytest
from tests.helpers.synthetic_run import T0, grid_events, per_class_events

from manege.report.history import History
from manege.view.pace import Left, Pace
from manege.view.page import ASCII, compose, short, spark, text_of
from manege.view.scene import Now, Pulse, Scene, read_live
from manege.view.terminal import painted

SIZES = [(80, 24), (200, 50), (40, 10)]


def _scene(events, *, state="running", now=None, **more) -> Scene:
    history = History()
    history.see_all(events)
    return Scene("run", "digits", state, history, now or Now(), T0 + 100, "kid", **more)


def _text(scene: Scene, width: int, height: int, **more) -> str:
    lines = compose(scene, width, height, **more)
    text = text_of(lines)
    assert len(lines) <= height
    assert all(len(line) <= width for line in text.splitlines())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    return text


def test_a_grid_shows_state_number_and_trend_of_each_cell():
    now = Now({"0-0": 0.5}, {"0-0": (5, 3, 10)}, 2, 0.4, left=Left(480.0, 420.0, 600.0))
    now.view_s, now.wall_s = 0.35, 100.0
    events = [
        e for e in grid_events(3, 3, 6) if e["event"] not in ("cell_finished", "run_finished")
    ]
    text = _text(_scene(events, now=now, keys="q stop"), 80, 24)
    for row in range(3):
        for column in range(3):
            assert f"▸ {row}-{column}" in text
    assert "digits · cellular 3x3 · cellular-paper" in text
    assert "2 trainers, oldest heartbeat 0.4 s" in text
    assert "8m00s left (7m00s to 10m00s)" in text
    assert "round 6 of 6" in text
    assert "last commit" in text
    assert "train 6" in text
    assert "best " in text
    assert "█" in text
    assert "q stop" in text
    assert "this view 0.35 % of a core" in text


def test_a_list_of_classes_shows_each_with_its_round():
    text = _text(_scene(per_class_events(["cat", "dog"], 20), state="finished"), 80, 24)
    assert re.search(r"✓ cat +0\.025 r20 +\S", text)
    assert "2 classes  ✓ 2 done" in text
    assert "finished" in text.splitlines()[0]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_thousand_cells_make_a_readable_page(width, height):
    events = [*grid_events(25, 40, 1)]
    failed = {"t": T0, "event": "cell_failed", "cell": "24-39", "round": 1, "reason": "a NaN"}
    text = _text(_scene([*events, failed]), width, height)
    assert "1000 cells" in text
    assert "✗" in text.split("1 failed", 1)[1]
    if (width, height) == (80, 24):
        assert "one sign for" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_hundred_classes_make_a_readable_page(width, height):
    classes = [f"class number {n}" for n in range(100)]
    events = list(per_class_events(classes, 2))[:-60]
    text = _text(_scene(events), width, height)
    assert "100 classes" in text
    shown = len(re.findall(r"cla\S* ?n?\S*[…r] ?\d+", text))
    if height == 24:
        assert "more:" in text
        assert shown > 30
    if height == 50:
        assert shown >= 100


def test_nothing_begun_yet_is_a_page_too():
    text = _text(_scene([], state="new"), 80, 24)
    assert "not begun" in text
    assert "no cell has begun" in text


def test_states_have_signs_of_their_own_and_no_colour_where_none_is_wanted():
    events = list(per_class_events(["a", "b", "c"], 4))[:7]
    again = {
        "t": T0,
        "event": "rollback",
        "cell": "a",
        "round": 5,
        "step": 1,
        "attempt": 1,
        "reason": "NaN",
    }
    failed = {"t": T0, "event": "cell_failed", "cell": "b", "round": 1, "reason": "NaN"}
    scene = _scene([*events, again, failed])
    text = _text(scene, 80, 24)
    assert "↻ a" in text
    assert "✗ b" in text
    assert "· c" in text
    lines = compose(scene, 80, 24)
    assert "\x1b" not in painted(lines, colour=False)
    assert "\x1b[" in painted(lines, colour=True)
    plain = _text(scene, 80, 24, signs=ASCII)
    assert plain.isascii()
    assert "~ a" in plain


def test_names_with_control_characters_and_wide_signs_stay_in_their_columns():
    text = _text(_scene(per_class_events(["\x1b[31mred", "日本語"], 3)), 80, 24)
    assert "?[31mred" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0361, "0.036"),
        (15.26, "15.3"),
        (123456, "1e5"),
        (0.00012, "1e-4"),
        (7, "7.00"),
    ],
)
def test_numbers_are_short(value, text):
    assert short(value) == text
    assert len(short(value)) <= 6


def test_a_spark_line_has_its_lowest_and_highest():
    assert spark([1, 2, 3], 10) == "▁▅█"
    assert len(spark(list(range(100)), 8)) == 8
    assert spark([1.0], 5) == ""
    assert spark([2, 2], 5) == "▄▄"


def test_a_spark_line_of_any_length_ends_with_the_newest():
    """In floating point, the last of 29 values in 7 bars was the 30th."""
    for width in range(1, 25):
        for count in range(2, 200):
            bars = spark([*[0.0] * (count - 1), 1.0], width)
            assert len(bars) == min(width, count)
            assert width == 1 or bars == "▁" * (len(bars) - 1) + "█"


def test_the_time_left_has_a_spread_that_shrinks_with_steadiness():
    steady, wild = Pace(), Pace()
    for second in range(100):
        steady.see(second, second / 200)
        wild.see(second, (second // 10 * 10 + (second % 10) ** 2 / 10) / 200)
    assert steady.left().seconds == pytest.approx(101, abs=2)
    assert steady.left().high - steady.left().low < 3
    assert Pace().left() is None
    short_one = Pace()
    short_one.see(0.0, 0.0)
    short_one.see(2.0, 0.1)
    assert short_one.left() == (pytest.approx(18), None, None)


def test_what_goes_on_is_written_for_others_and_read_back(tmp_path):
    now = Now({"a": 0.25}, {"a": (1, 2, 3)}, 2, 0.5, paused=True, left=Left(9.0, 8.0, None))
    Pulse(tmp_path).write(now)
    found, _ = read_live(tmp_path)
    assert found == now
    for bad in ("", "{", "[]", json.dumps({"t": 1})):
        (tmp_path / "live.json").write_text(bad)
        assert read_live(tmp_path) is None
