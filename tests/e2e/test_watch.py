"""The terminal: a live page while it trains or from elsewhere, its keys, plain lines in a log."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from manege.api import start_run
from manege.config import resolve
from manege.observer import Observer
from manege.runs import RunDir
from tests.helpers.command import TINY
from tests.helpers.terminal import CONTROL, on_terminal

from .conftest import Command

LONG = (
    *("train", "digits", "--classes", "3,7,8", *TINY, "--out", "run"),
    *("--set", "stability.every_rounds=20"),
)


@pytest.mark.full
def test_training_on_a_terminal_shows_a_page_that_fits(tmp_path):
    words = (*LONG, "--rounds", "300", "--score", "none")
    columns, rows = 80, 24
    shown = on_terminal(words, cwd=tmp_path, columns=columns, rows=rows)
    assert shown.code == 0, shown.text[-2000:]
    assert len(shown.pages) > 3
    for page in shown.pages:
        lines = page.splitlines()
        assert len(lines) <= rows
        assert max(map(len, lines)) <= columns
    some = shown.pages[len(shown.pages) // 2]
    assert "digits · per-class · paper" in some
    assert re.search(r"\d trainers?, oldest heartbeat", some)
    assert "time train" in some
    assert "p pause   c checkpoint   s sample sheet   q stop, resume later" in some
    # The last page stays when all is done.
    assert re.search(r"━+ 100 %  round 300 of 300", shown.left)
    assert re.search(r"✓ 3 +\S+ r300 +[▁-█]+", shown.left)
    assert "finished in" in shown.left
    assert "3: done, 300 rounds (all)" in shown.left
    assert "Traceback" not in shown.text
    # The cursor and the first screen are back.
    assert shown.text.count("\x1b[?1049h") == shown.text.count("\x1b[?1049l") == 1
    assert shown.text.rindex("\x1b[?25h") > shown.text.rindex("\x1b[?25l")


@pytest.mark.full
def test_keys_pause_commit_draw_and_stop(tmp_path):
    pressed: list[str] = []
    times: dict[str, float] = {}

    def press(text: str) -> str:
        page = CONTROL.sub("", text.rsplit("\x1b[H", 1)[-1])
        now = time.monotonic()
        for key, sign in (("p", "q stop"), ("c", "paused"), ("s", "paused"), ("P", "paused")):
            if key not in pressed and sign in page and now - times.get("last", 0) > 0.7:
                pressed.append(key)
                times["last"] = now
                return key
        events = tmp_path / "run" / "events.jsonl"
        further = re.search(r"round (0-)?[1-9]", page)
        if "P" in pressed and "q" not in pressed and "going on" in page and further:
            times.setdefault("commits", events.read_text().count('"commit"'))
            pressed.append("q")
            return "q"
        return ""

    words = (*LONG, "--rounds", "5000", "--score", "none", "--checkpoint-every", "1h")
    shown = on_terminal(
        words, cwd=tmp_path, columns=80, rows=24, press=press, env={"NO_COLOR": "1"}
    )
    assert pressed == ["p", "c", "s", "P", "q"]
    assert shown.code == 75, shown.text[-2000:]
    assert "\x1b[38" not in shown.text
    assert "stopped and saved; go on with: manege resume run" in shown.left
    events = list(RunDir.open(tmp_path / "run").events())
    assert times["commits"] >= 1
    assert any(event["event"] == "sheet" for event in events)
    assert events[-1]["reason"] == "key q"
    # While it was paused, no round ended.
    ends = [event["t"] for event in events if event["event"] in ("round", "commit", "sheet")]
    assert max(b - a for a, b in pairwise(ends)) > 0.5


class Pausing(Observer):
    """Asks for a pause of three seconds in the first round."""

    def __init__(self) -> None:
        self.looks = 0

    def workers(self, count: int, silent_s: float, *, paused: bool) -> None:
        self.looks += 1

    def requests(self) -> list[str]:
        return {1: ["pause", "checkpoint", "sheet"], 31: ["resume"]}.get(self.looks, [])


@pytest.mark.full
def test_ctrl_z_gives_the_terminal_back_and_the_run_goes_on_later(tmp_path):
    pressed: list[str] = []

    def press(text: str) -> str:
        if not pressed and text.count("\x1b[H") > 2:
            pressed.append("Ctrl-Z")
            return "\x1a"
        return ""

    train = shlex.join([sys.executable, "-m", "manege", *LONG, "--rounds", "100"])
    # A shell that goes on when its command stops, and takes it up again.
    lines = f"{train} --score none; echo stopped with $?; stty -a; sleep 3; fg; exit $?"
    words = ["--norc", "-i", "-c", lines]
    shown = on_terminal(words, cwd=tmp_path, columns=80, rows=24, press=press, program=("bash",))
    assert shown.code == 0, shown.text[-2000:]
    before, after = shown.text.split(f"stopped with {128 + signal.SIGTSTP}")
    assert before.rindex("\x1b[?1049l") > before.rindex("\x1b[?1049h")
    between, again = after.split("\x1b[?1049h", 1)
    assert " icanon" in between
    assert "-echo " not in between
    assert "finished in" in again.rsplit("\x1b[?1049l", 1)[1]
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "trainer_died" not in events


def test_a_pause_is_part_of_no_round_and_what_is_asked_for_is_done(tmp_path):
    sets = ["networks.kind=mlp", "networks.hidden=16", "data.classes=[3]"]
    config = resolve(preset="paper", flags={"data.source": "digits", "rounds": 2}, sets=sets)
    run = start_run(config, out=tmp_path / "run", observer=Pausing())
    assert run.outcome.state == "finished"
    events = list(RunDir.open(tmp_path / "run").events())
    kinds = [event["event"] for event in events]
    assert kinds.index("commit") < kinds.index("sheet") < kinds.index("round")
    assert (tmp_path / "run" / "samples" / "3" / "round-000000-step-000001.png").exists()
    assert events[-1]["t"] - events[0]["t"] > 2.9
    rounds = [event for event in events if event["event"] == "round"]
    assert sum(event["phases_s"]["overall"] for event in rounds) < 2.5


def test_a_run_is_watched_from_elsewhere_and_left_alone(trained, tmp_path):
    """Another process appends to the run while it is looked at."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if '"cell_finished"' in line)
    (run / "events.jsonl").write_text("".join(lines[:end]))
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "state": "running"}))
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys, time; from pathlib import Path; from manege.runs.lock import held\n"
            "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
            str(run / "lock"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        keys = ["q"]
        closing = on_terminal(
            ("watch", run),
            cwd=tmp_path,
            columns=200,
            rows=50,
            press=lambda text: keys.pop() if keys and "q close" in text else "",
        )
        assert closing.code == 0
        assert "q close (the run goes on)" in closing.pages[0]
        assert 80 < max(map(len, closing.pages[0].splitlines())) <= 200
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before

        def finish(text: str) -> str:
            if "▸ 1 training" in CONTROL.sub("", text) and holder.poll() is None:
                with (run / "events.jsonl").open("a") as file:
                    file.writelines(lines[end:])
                (run / "status.json").write_text(json.dumps(status))
                holder.kill()
                holder.wait()
            return ""

        ending = on_terminal(("watch", run), cwd=tmp_path, columns=80, rows=24, press=finish)
        assert ending.code == 0
        assert "✓ 3 done" in ending.left
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_watching_elsewhere_than_on_a_terminal_is_plain(manege: Command, trained: Path) -> None:
    done = manege("watch", trained)
    assert done.out == "run: finished, rounds 2 to 2, 100% done\n"
    once = manege("watch", trained, "--once", env={"COLUMNS": "80", "LINES": "24"})
    assert "3 classes  ✓ 3 done" in once.out
    assert "\x1b" not in once.out


def test_watching_what_is_no_run_is_one_line(manege: Command, tmp_path: Path) -> None:
    done = manege("watch", tmp_path)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "is not a run directory" in done.err


def test_tensorboard_gets_scalars_sheets_and_the_configuration(manege: Command, tmp_path: Path):
    pytest.importorskip("tensorboard")
    words = ("train", "digits", "--classes", "3", "--rounds", "2", *TINY, "--sheet-every", "1")
    done = manege(*words, "--tensorboard", "--out", "run")
    assert done.code == 0, done.err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cell = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "3"))
    cell.Reload()
    assert [one.step for one in cell.Scalars("loss/generator")] == [1, 2]
    assert cell.Images("samples")[-1].encoded_image_string.startswith(b"\x89PNG")
    whole = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    whole.Reload()
    assert b"method: per-class" in whole.Tensors("configuration")[0].tensor_proto.string_val[0]


def test_tensorboard_that_is_missing_is_one_line(manege: Command, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    done = manege("train", "digits", "--tensorboard", "--rounds", "1", *TINY)
    assert done.code == 3
    assert "pip install 'manege[tensorboard]'" in done.err
