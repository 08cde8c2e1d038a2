"""`manege report` as a command, on real runs."""

from __future__ import annotations

from pathlib import Path

from .conftest import Command


def test_a_report_is_one_file_and_figures_beside_it(manege: Command, run: Path) -> None:
    done = manege("report", "run", "--json")
    assert done.code == 0, done.err
    report = run / "report.html"
    assert done.json["report"] == "run/report.html"
    assert done.json["bytes"] == report.stat().st_size < 10_000_000
    text = report.read_text()
    assert "real pictures: 3" in text
    assert "generated pictures: 8" in text
    assert (run / "plots" / "losses.svg").exists()
    assert (run / "plots" / "losses.png").exists()
    again = manege("report", "run")
    assert again.code == 0, "a report of ours is written over"
    assert "report: run/report.html" in again.out


def test_a_report_that_cannot_be_is_one_line(manege: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    for words, reason in (
        (("report", "nowhere"), "is not a run directory"),
        (("report", "run", "run"), "is named twice"),
        (("report", "run", "-o", "page.txt"), "ends in .html"),
        (("report", "run", "-o", "mine.html"), "is no report of ours"),
    ):
        done = manege(*words)
        assert done.code == 2
        assert reason in done.err
        assert done.err.count("\n") == 1
