"""Reading events.jsonl for pictures: whatever is sound, and a count of what is not."""

from __future__ import annotations

import json

from manege.report.events import Tail


def _line(number: int) -> str:
    return json.dumps({"t": 1.0, "event": "commit", "number": number}) + "\n"


def test_a_missing_file_has_no_events(tmp_path):
    assert list(Tail(tmp_path / "events.jsonl").read()) == []


def test_only_what_is_new_is_read(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(_line(1) + _line(2))
    tail = Tail(file)
    assert [event["number"] for event in tail.read()] == [1, 2]
    assert list(tail.read()) == []
    with file.open("a") as stream:
        stream.write(_line(3))
    assert [event["number"] for event in tail.read()] == [3]


def test_a_half_written_line_waits_for_its_end(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(_line(1) + _line(2)[:10])
    tail = Tail(file)
    assert [event["number"] for event in tail.read()] == [1]
    assert tail.torn
    file.write_text(_line(1) + _line(2))
    assert [event["number"] for event in tail.read()] == [2]
    assert not tail.torn


def test_damaged_lines_are_counted_and_left_out(tmp_path):
    file = tmp_path / "events.jsonl"
    broken = [b"{not json}\n", b"[1]\n", b'{"t": 1}\n', b"\xff\xfe\n", b"[" * 5000 + b"\n"]
    file.write_bytes(_line(1).encode() + b"".join(broken) + _line(2).encode())
    tail = Tail(file)
    assert [event["number"] for event in tail.read()] == [1, 2]
    assert tail.damaged == [2, 3, 4, 5, 6]


def test_a_shorter_file_in_its_place_is_read_from_the_start(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(_line(1) * 5)
    tail = Tail(file)
    list(tail.read())
    file.write_text(_line(9))
    assert [event["number"] for event in tail.read()] == [9]
