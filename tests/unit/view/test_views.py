"""Lines for logs, a page that cannot hurt, a run followed from elsewhere."""

from __future__ import annotations

import io
import json
import re

import pytest
from tests.helpers.synthetic_run import grid_events, make_run, per_class_events

from manege.errors import CheckpointError
from manege.observer import Observer, Observers
from manege.view import following, lines, live
from manege.view.lines import Lines
from manege.view.live import Live
from manege.view.scene import Now, Pulse


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes two seconds at each look."""
    now = [0.0]

    def tick() -> float:
        now[0] += 2.0
        return now[0]

    monkeypatch.setattr(lines.time, "monotonic", tick)


def _said(capsys) -> list[str]:
    text = capsys.readouterr().err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    return text.splitlines()


def test_a_class_gets_a_line_a_round(clock, capsys):
    watcher = Lines()
    for event in per_class_events(["a", "b"], 5):
        watcher.event(event)
    said = _said(capsys)
    rounds = [line for line in said if ": round" in line]
    assert len(rounds) == 10
    assert re.match(r"a: round 1 of 5  D 0\.\d+ G 1\.\d+  430 images/s  whole run", rounds[0])
    assert "a: done, 5 rounds (all) in 8s" in said


def test_a_grid_gets_a_line_a_round_for_all_its_cells(clock, capsys):
    watcher = Lines()
    for event in grid_events(2, 2, 6):
        watcher.event(event)
    rounds = [line for line in _said(capsys) if line.startswith("round")]
    assert [line.split()[1] for line in rounds] == ["1", "2", "3", "4", "5", "6"]
    assert "best " in rounds[0]


def test_rounds_of_less_than_a_second_share_a_line(capsys):
    watcher = Lines()
    for event in per_class_events(["a"], 50):
        watcher.event(event)
    assert len([line for line in _said(capsys) if ": round" in line]) <= 2


def test_a_name_with_control_characters_cannot_write_them_to_a_log(clock, capsys):
    watcher = Lines()
    for event in per_class_events(["\x1b[2J"], 1):
        watcher.event(event)
    assert any("?[2J: round 1" in line for line in _said(capsys))


class _Broken(io.StringIO):
    """A terminal that was closed."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_closed_does_not_stop_the_training(monkeypatch):
    monkeypatch.setattr(live.sys, "stderr", _Broken())
    view = Observers(Live())
    for event in per_class_events(["a"], 3):
        view.event(event)
    view.say("nobody hears it")
    assert view.requests() == []


def test_a_page_that_breaks_gives_way_to_lines(monkeypatch, capsys, clock):
    def broken(*args, **more):
        raise ZeroDivisionError("in the page")

    monkeypatch.setattr(live, "compose", broken)
    view = Observers(Live())
    for event in per_class_events(["a"], 3):
        view.event(event)
    text = capsys.readouterr().err
    assert "the live page broke (ZeroDivisionError: in the page)" in text
    assert "a: round 3 of 3" in text


def test_a_sink_that_breaks_is_left_out(capsys):
    class Sink(Observer):
        seen = 0

        def event(self, event) -> None:
            Sink.seen += 1
            raise OSError("the disk is full")

    view = Observers(Lines(), Sink())
    for event in per_class_events(["a"], 2):
        view.event(event)
    assert Sink.seen == 1
    assert "Sink broke and is left out" in capsys.readouterr().err


def test_a_run_is_followed_as_it_grows(tmp_path):
    events = list(per_class_events(["a", "b"], 10))
    path = make_run(tmp_path / "run", iter(events[:8]), labels=["a", "b"], method="per-class")
    followed = following.Followed(path)
    followed.refresh()
    assert followed.looked.history.cells["a"].last == 5
    with (path / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events[8:])
    fresh = followed.refresh()
    assert len(fresh) == len(events) - 8
    assert followed.state == "finished"
    assert not followed.going_on


def test_a_page_once_is_plain_text(tmp_path):
    path = make_run(tmp_path / "run", grid_events(2, 2, 4), labels=["0"], method="cellular")
    text = following.once(path, 80, 24)
    assert "cellular 2x2" in text
    assert "\x1b" not in text


def test_what_is_no_run_cannot_be_watched(tmp_path):
    with pytest.raises(CheckpointError, match="is not a run directory"):
        following.Followed(tmp_path)


def test_damaged_events_and_live_files_are_no_failure(tmp_path):
    path = make_run(tmp_path / "run", per_class_events(["a"], 4), labels=["a"], method="per-class")
    with (path / "events.jsonl").open("a") as file:
        file.write("rubbish\n" + json.dumps({"event": "cell_finished", "t": 1}) + "\n")
    (path / "live.json").write_text("{")
    (path / "status.json").write_text("[]")
    assert "1 damaged lines" in following.once(path, 80, 24)


@pytest.mark.parametrize(
    "content",
    [b"seed: !!int ''", b"seed: !!bool x", b"[" * 5000, b"\xff", b"a: 1" + b":1" * 400 + b".5"],
)
def test_a_damaged_configuration_is_noted(tmp_path, content):
    path = make_run(tmp_path / "run", per_class_events(["a"], 4), labels=["a"], method="per-class")
    assert "config.yaml" not in following.once(path, 200, 24)
    (path / "config.yaml").write_bytes(content)
    assert f"{path / 'config.yaml'}: " in following.once(path, 400, 24)


@pytest.mark.parametrize("text", ["data: 3", "data: {source: [1]}", "cellular: 3", "~: 1", ""])
def test_a_configuration_with_other_things_in_it_is_no_failure(tmp_path, text):
    path = make_run(tmp_path / "run", per_class_events(["a"], 4), labels=["a"], method="per-class")
    (path / "config.yaml").write_text(text)
    assert "run" in following.once(path, 80, 24)


def test_a_live_file_is_not_written_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("old")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".live.json.tmp").symlink_to(precious)
    Pulse(tmp_path / "run").write(Now(), at_once=True)
    assert precious.read_text() == "old"


def test_keys_pressed_at_once_are_taken_one_by_one(monkeypatch):
    view = Live()
    monkeypatch.setattr(view._keys, "pressed", lambda: "pcPsx?")
    assert view.requests() == ["pause", "checkpoint", "resume", "sheet"]
    assert view.should_stop() is None
    monkeypatch.setattr(view._keys, "pressed", lambda: "q")
    assert view.requests() == []
    assert view.should_stop() == "key q"
