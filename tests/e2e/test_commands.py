"""The commands as commands: help, configuration, JSON, progress, signals, pipes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from manege import __version__
from manege.runs import RunDir
from tests.helpers.command import TINY, Done, run_here
from tests.helpers.material import write_class

from .conftest import Command

THREE = ("--classes", "3,7,8", "--rounds", "2", *TINY)

OPTIONS = {
    "train": (
        "--method --preset --rounds --budget --classes --size --channels --limit-per-class --limit "
        "--networks --loss --constraint --batch --seed --device --checkpoint-every --sheet-every "
        "--data-root --config --set --out --print-config --json"
    ),
    "resume": "--rounds --budget --json",
    "sample": "--out -n --label --balanced --weights --interpolate --to-label --steps --seed "
    "--device --force --json",
    "export": "--out --format --balance-to --gate --data --seed --data-root --force --json",
    "verdict": "--data --seeds --steps --gate --seed --data-root --json",
    "model show": "--json",
    "model merge": "--out --json",
    "model drop": "--class --out --json",
    "data list": "--data-root --json",
    "data check": "--classes --size --channels --data-root --sheet --force --json",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_help_teaches_every_option(command: str, manege: Command) -> None:
    done = manege(*command.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: manege {command}" in done.out
    told = {
        name: match[2]
        for match in re.finditer(
            r"^  (-[-a-z]+(?:, -[-a-z]+)?)(.*(?:\n {10,}.*)*)", done.out, re.MULTILINE
        )
        for name in match[1].split(", ")
    }
    assert set(OPTIONS[command].split()) <= told.keys()
    for option, line in told.items():
        assert len(line.split()) >= 2, f"{option} is not explained"


def test_the_first_help_names_every_command_and_where_to_begin(manege: Command) -> None:
    done = manege("--help")
    assert (done.code, done.err) == (0, "")
    for word in ("train", "resume", "sample", "export", "data", "model", "manege train digits"):
        assert word in done.out


@pytest.mark.parametrize("command", ["", "data", "model"])
def test_without_a_command_the_help_is_shown_and_the_code_says_so(
    command: str, manege: Command
) -> None:
    done = manege(*command.split())
    assert (done.code, done.out) == (2, "")
    assert f"Usage: manege {command}".rstrip() in done.err


@pytest.mark.full
def test_help_comes_at_once() -> None:
    """It costs little more than the library that prints it. CPU time: others are at work too."""
    parsing, helping = (
        min(_cpu_seconds(*words) for _ in range(5))
        for words in (("-c", "import typer"), ("-m", "manege", "--help"))
    )
    assert helping < 2.5 * parsing


def _cpu_seconds(*words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    "command", ["--help", "train --help", "data list", "train digits --print-config"]
)
def test_torch_is_not_imported_where_it_is_not_needed(command: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.argv = ['manege', *{command.split()!r}]\n"
        "from manege.cli import _run\n"
        "code = _run()\n"
        "sys.exit(code or ('torch was imported' if 'torch' in sys.modules else 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_runs_and_tells_its_version(manege_process: Command) -> None:
    assert manege_process("--version") == Done(0, f"manege {__version__}\n", "")


# Configuration.


def config(manege: Command, *args: str) -> dict:
    done = manege("train", "digits", *args, "--print-config")
    assert (done.code, done.err) == (0, "")
    tree = yaml.safe_load(done.out)
    assert isinstance(tree, dict)
    return tree


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--preset", "paper-dc", "--budget", "1h30m"),
        THREE,
        ("--loss", "wasserstein", "--constraint", "clip", "--set", "training.constraint.bound=0.1"),
        ("--classes", "no,007"),
        ("--method", "cellular", "--grid", "2x3", "--neighbourhood", "ring"),
        ("--checkpoint-every", "10", "--set", "training.batches_per_round=3", "--channels", "3"),
    ],
)
def test_a_printed_configuration_given_back_is_the_same(
    args: tuple[str, ...], manege: Command, tmp_path: Path
) -> None:
    first = manege("train", "digits", *args, "--print-config")
    (tmp_path / "c.yaml").write_text(first.out)
    again = manege("train", "digits", "--config", "c.yaml", "--print-config")
    assert first.code == 0
    assert again == first


def test_a_printed_configuration_makes_the_same_run(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    (tmp_path / "c.yaml").write_text(manege("train", "digits", *THREE, "--print-config").out)
    done = manege("train", "digits", "--config", "c.yaml", "--out", "again")
    assert done.code == 0, done.err
    digests = [
        manege("model", "show", path, "--json").json["digest"] for path in ("again", trained)
    ]
    assert digests[0] == digests[1]
    assert (tmp_path / "again" / "config.yaml").read_text() == (trained / "config.yaml").read_text()


def test_flags_override_the_file_and_set_overrides_all(manege: Command, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "rounds: 10\nseed: 1\ntraining: {batch: 10, n_critic: 5}\nsheets: {pictures: 9}\n"
    )
    tree = config(
        manege,
        *("--set", "seed=3", "--preset", "paper-dc", "--config", "c.yaml"),
        *("--batch", "20", "--seed", "2", "--set", "sheets.pictures=4"),
    )
    assert tree["training"]["loss"] == "bce"  # The preset's, nobody objects.
    assert (tree["rounds"], tree["training"]["n_critic"]) == (10, 5)  # The file's.
    assert tree["training"]["batch"] == 20  # The flag's, over the file's.
    assert (tree["seed"], tree["sheets"]["pictures"]) == (3, 4)  # Set, over all.


def test_a_file_overrides_the_preset_and_may_name_one(manege: Command, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("preset: paper-dc\n")
    assert config(manege, "--config", "c.yaml")["training"]["loss"] == "bce"
    named = config(manege, "--config", "c.yaml", "--preset", "paper")
    assert (named["preset"], named["training"]["loss"]) == ("paper", "wasserstein")
    (tmp_path / "c.yaml").write_text("training: {loss: wasserstein}\n")
    over = config(manege, "--config", "c.yaml", "--preset", "paper-dc")
    assert over["training"]["loss"] == "wasserstein"


def test_a_budget_replaces_the_presets_rounds(manege: Command) -> None:
    tree = config(manege, "--budget", "1h30m")
    assert (tree["rounds"], tree["budget_s"]) == (None, 5400)
    both = config(manege, "--budget", "90s", "--rounds", "7")
    assert (both["rounds"], both["budget_s"]) == (7, 90)


# Results.


def one_object(done: Done) -> dict:
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    return done.json


def test_training_tells_its_result_as_one_object(manege: Command, tmp_path: Path) -> None:
    told = one_object(manege("train", "digits", *THREE, "--out", "run", "--json"))
    assert told["state"] == "finished"
    assert (told["rounds"], told["failed"]) == ({"3": 2, "7": 2, "8": 2}, {})
    assert (tmp_path / told["model"] / "model.json").is_file()
    assert (tmp_path / told["sheet"]).is_file()
    assert (tmp_path / told["run"] / "command.txt").read_text().startswith("manege train digits")
    longer = one_object(manege("resume", "run", "--rounds", "3", "--json"))
    assert longer["rounds"] == {"3": 3, "7": 3, "8": 3}


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_resuming_under_other_vector_instructions_is_told_in_a_line(
    manege_process: Command, run: Path, runtime: str
) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    if here == "DEFAULT":
        pytest.skip("torch has no vector instructions here that could be left out")
    same = manege_process("resume", "run", "--rounds", "3", "--runtime", runtime)
    assert (same.code, "began with" in same.err) == (0, False), same.err
    plain = {"ATEN_CPU_CAPABILITY": "default"}
    other = manege_process("resume", "run", "--rounds", "4", "--runtime", runtime, env=plain)
    assert other.code == 0, other.err
    (line,) = [line for line in other.err.splitlines() if "began with" in line]
    assert line == (
        f"warning: run began with cpu_capability {here}, here it is DEFAULT: it may end in other "
        "bits than without the interruption; for the same bits go on as it began"
    )


def test_every_other_command_tells_its_result_as_one_object(manege: Command, run: Path) -> None:
    told = one_object(manege("train", "digits", "--print-config", "--json"))
    assert told["data"]["source"] == "digits"
    told = one_object(manege("sample", "run", "-n", "6", "--balanced", "-o", "a.png", "--json"))
    assert (told["count"], told["labels"]) == (6, {"3": 2, "7": 2, "8": 2})
    assert (told["files"], told["missing"]) == (["a.png"], {})
    told = one_object(manege("export", "run", "-o", "model", "--json"))
    assert [entry["label"] for entry in told["labels"]] == ["3", "7", "8"]
    assert one_object(manege("model", "show", "model", "--json"))["digest"] == told["digest"]
    less = one_object(manege("model", "drop", "model", "--class", "3", "-o", "less", "--json"))
    assert [entry["label"] for entry in less["labels"]] == ["7", "8"]
    rest = ("--class", "7", "--class", "8", "-o", "rest", "--json")
    one_object(manege("model", "drop", "model", *rest))
    both = one_object(manege("model", "merge", "rest", "less", "-o", "both", "--json"))
    assert sorted(entry["label"] for entry in both["labels"]) == ["3", "7", "8"]
    assert sum(entry["p"] for entry in both["labels"]) == pytest.approx(1)


def test_the_data_commands_tell_their_results_as_one_object(
    manege: Command, tmp_path: Path
) -> None:
    names = [row["name"] for row in one_object(manege("data", "list", "--json"))["datasets"]]
    assert names[:3] == ["digits", "mnist", "fashion-mnist"]
    sheet = ("--classes", "3,7", "--sheet", "sheet.png", "--json")
    told = one_object(manege("data", "check", "digits", *sheet))
    assert [entry["label"] for entry in told["classes"]] == ["3", "7"]
    assert (told["problems"], told["sheet"]) == ([], "sheet.png")
    assert (tmp_path / "sheet.png").is_file()


def test_results_are_told_in_words_too(manege: Command, run: Path) -> None:
    assert "digits" in manege("data", "list").out
    assert "fine to train on" in manege("data", "check", "digits", "--classes", "3").out
    assert "2 rounds" in manege("model", "show", "run").out
    assert manege("sample", "run", "-o", "a.npz").out == "64 pictures in a.npz\n"
    assert "3 classes, 8x8, grey" in manege("export", "run", "-o", "model").out


def test_a_check_names_what_is_wrong_with_a_dataset(manege: Command, tmp_path: Path) -> None:
    write_class(tmp_path / "animals" / "cat", 20)
    write_class(tmp_path / "animals" / "dog", 5)
    (tmp_path / "animals" / "cat" / "broken.png").write_text("no picture")
    (tmp_path / "animals" / "cat" / "notes.txt").write_text("no picture")
    twin = (tmp_path / "animals" / "cat" / "000.png").read_bytes()
    (tmp_path / "animals" / "dog" / "twin.png").write_bytes(twin)
    done = manege("data", "check", "animals")
    assert done.code == 0
    for words in (
        "broken: broken.png: not a PNG",
        "ignored: cat/notes.txt",
        "cat/000.png",
        "dog/twin.png",
        "PROBLEM: 1 broken",
        "PROBLEM: fewer than 8 training pictures of dog",
        "more than one class",
    ):
        assert words in done.out, done.out


def test_a_check_is_not_lost_when_its_sheet_cannot_be_drawn(
    manege: Command, tmp_path: Path
) -> None:
    write_class(tmp_path / "animals" / "cat", 20)
    (tmp_path / "animals" / "cat" / "broken.png").write_text("no picture")
    done = manege("data", "check", "animals", "--sheet", "new/sheet.png", "--json")
    assert done.code == 2
    assert [entry["name"] for entry in done.json["broken"]] == ["broken.png"]
    assert done.json["sheet"] is None
    assert done.err.startswith("manege: new/sheet.png: no sheet drawn; ")
    assert done.err.count("\n") == 1
    (tmp_path / "animals" / "cat" / "broken.png").unlink()
    assert manege("data", "check", "animals", "--sheet", "new/sheet.png").code == 0
    assert (tmp_path / "new" / "sheet.png").is_file()


def test_runs_without_a_name_are_numbered(manege: Command, tmp_path: Path) -> None:
    for number in ("0001", "0002"):
        done = manege("train", "digits", "--classes", "3", "--rounds", "1", *TINY, "--json")
        assert done.json["run"] == f"runs/{number}-digits-per-class"


def test_a_budget_is_shared_out_and_kept(manege: Command) -> None:
    start = time.monotonic()
    done = manege("train", "digits", "--classes", "3,7", "--budget", "1s", *TINY, "--json")
    assert done.json["state"] == "finished"
    assert min(done.json["rounds"].values()) >= 1
    assert 0.9 < time.monotonic() - start < 10
    assert done.err.count("budget used up") == 2


# Progress, signals, pipes.


def test_progress_elsewhere_than_on_a_terminal_is_plain_lines(
    manege: Command, tmp_path: Path
) -> None:
    done = manege("train", "digits", *THREE, "--out", "run")
    assert re.search(r"^3: done, 2 rounds \(all\) in \d+s$", done.err, re.MULTILINE)
    assert "whole run" in done.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.err + done.out)
    assert "manege sample run -n 64 -o samples.png" in done.out


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A long run in a process of its own, past its first rounds."""
    long = ("--classes", "3,7", "--rounds", "1000000", *TINY, "--out", "long")
    with subprocess.Popen(
        [sys.executable, "-m", "manege", "train", "digits", *long],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        events = tmp_path / "long" / "events.jsonl"
        deadline = time.monotonic() + 60
        while not (events.exists() and '"event": "round"' in spaced(events.read_text())):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
        process.kill()


def spaced(text: str) -> str:
    return text.replace('":"', '": "')


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_stops_with_everything_saved(
    number: signal.Signals, training: subprocess.Popen[str], manege: Command, tmp_path: Path
) -> None:
    refused = manege("resume", "long")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert f"long is being run by process {training.pid}" in refused.err
    training.send_signal(number)
    start = time.monotonic()
    out, err = training.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert training.returncode == 75
    assert out == "stopped and saved; go on with: manege resume long\n"
    assert f"stopping on {number.name}: everything is saved" in err
    assert json.loads((tmp_path / "long" / "status.json").read_text())["state"] == "stopped"
    drawn = manege("sample", "long", "-n", "4", "-o", "a.png")
    assert drawn.code == 0
    assert drawn.err == "manege: missing from this model: '7' (not trained yet)\n"
    rounds = str(RunDir.open(tmp_path / "long").commits("3")[0].round_ + 1)
    assert manege("resume", "long", "--rounds", rounds, "--json").json["state"] == "finished"


def test_an_interruption_before_the_start_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen(
        [sys.executable, "-m", "manege", "train", "digits", "--config", "pipe"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT and hands that on; a user's command does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # Opening waits for the reader: from here on the command waits for us.
    with process, (tmp_path / "pipe").open("w"):
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "manege: interrupted; what was finished is kept\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_the_machines_fault(
    unbuffered: str, manege_process: Command
) -> None:
    with Path("/dev/full").open("w") as full:
        done = manege_process(
            *("data", "list"),
            env={"PYTHONUNBUFFERED": unbuffered},
            capture_output=False,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.code == 3
    assert done.err == ("manege: standard output: No space left on device; the result is lost\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_reason_to_complain(
    unbuffered: str, manege_process: Command
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = manege_process(
            *("data", "list"),
            env={"PYTHONUNBUFFERED": unbuffered},
            capture_output=False,
            stdout=closed,
            stderr=subprocess.PIPE,
        )
    assert (done.code, done.err) == (3, "")


@pytest.mark.full
def test_a_name_that_is_not_text_is_shown_escaped(manege_process: Command, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.png")
    done = manege_process("data", "check", "digits", "--classes", "3", "--sheet", name)
    assert (done.code, done.err) == (0, "")
    assert "sheet: \\udcff.png" in done.out
    assert (tmp_path / name).is_file()


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_run_whose_name_is_not_text_is_a_run_like_any_other(
    runtime: str, manege_process: Command, tmp_path: Path
) -> None:
    name = os.fsdecode(b"r\xffn")
    few = ("--classes", "3,7", "--limit-per-class", "20", "--rounds", "1", "--workers", "1")
    done = manege_process("train", "digits", *few, *TINY, "--runtime", runtime, "--out", name)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert "r\\udcffn/model" in done.out
    assert r"--out 'r\udcffn'" in (tmp_path / name / "command.txt").read_text()
    for verb in (("resume", name, "--rounds", "2", "--runtime", runtime), ("report", name)):
        again = manege_process(*verb)
        assert (again.code, "Traceback" in again.err) == (0, False), again.err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--rounds", "1"), "'3' has had 2 rounds, --rounds 1 asks for fewer"),
        (("--budget", "0.001"), "--budget 0s asks for less; give a longer one"),
    ],
)
@pytest.mark.parametrize("runtime", ["inline", pytest.param("local", marks=pytest.mark.full)])
def test_a_shorter_length_than_was_trained_is_refused_and_changes_nothing(
    asked: tuple[str, ...], told: str, runtime: str, manege: Command, run: Path
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = manege("resume", "run", *asked, "--runtime", runtime)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert manege("resume", "run", "--rounds", "2").code == 0


def test_two_classes_that_differ_only_in_case_train_side_by_side(tmp_path: Path) -> None:
    write_class(tmp_path / "pets" / "Cat", 20)
    write_class(tmp_path / "pets" / "cat", 20)
    done = run_here("train", "pets", "--rounds", "1", *TINY, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    drawn = run_here("sample", "run", "-n", "8", "--balanced", "-o", "drawn", cwd=tmp_path)
    assert drawn.code == 0, drawn.err
    folders = [path.name.lower() for path in (tmp_path / "drawn").iterdir() if path.is_dir()]
    assert len(set(folders)) == 2
