"""`manege verdict` and `manege export --balance-to`: from a run to one plain sentence."""

from __future__ import annotations

import html
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.command import TINY, run_here
from tests.helpers.material import write_class

from .conftest import Command

QUICK = ("--seeds", "2", "--steps", "12")
ARMS = ["a", "b", "c", "b+c", "d", "e", "f"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on three digits, of the 3 only twenty pictures; not to be changed."""
    folder = tmp_path_factory.mktemp("tail")
    done = run_here(
        *("train", "digits", "--classes", "3,7,8", "--limit", "3=20", "--rounds", "2", *TINY),
        *("--out", "tail"),
        cwd=folder,
    )
    assert done.code == 0, done.err
    return folder / "tail"


@pytest.fixture
def tail(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "tail"))


@pytest.fixture(scope="module")
def judged(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with its verdict; not to be changed."""
    folder = tmp_path_factory.mktemp("judged")
    shutil.copytree(made, folder / "tail")
    done = run_here("verdict", "tail", "--data", "digits", *QUICK, cwd=folder)
    assert done.code == 0, done.err
    (folder / "out.txt").write_text(done.out)
    return folder


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# The verdict.


def test_limits_cut_a_class_and_its_probability(made: Path) -> None:
    classes = json.loads((made / "data.json").read_text())["classes"]
    assert {label: one["train"] for label, one in classes.items()} == {"3": 20, "7": 161, "8": 157}
    assert classes["3"]["held_out"] == 18
    components = json.loads((made / "model" / "model.json").read_text())["components"]
    assert {one["label"]: one["weight"] for one in components} == {"3": 20, "7": 161, "8": 157}


def test_a_verdict_is_a_table_a_sentence_and_files(judged: Path) -> None:
    out = (judged / "out.txt").read_text()
    assert "digits: 338 training pictures, 20 to 161 a class; tested on 36 that neither" in out
    for words in ("b+c  real, oversampled and augmented", "f    synthetic only", "near-copies: "):
        assert words in out
    sentence, *files = out.rsplit("\n\n", 1)[1].splitlines()
    assert sentence.split(":")[0] in ("Use it", "Don't", "Use it for 3", "Use it for 3, 8")
    paths = [judged / line.strip() for line in files]
    assert [path.name for path in paths] == [
        "verdict-2-seeds.json",
        "verdict-2-seeds.png",
        "nearest.png",
    ]
    for path in paths[1:]:
        with Image.open(path) as image:
            assert min(image.size) > 50


def test_the_report_says_it_too(judged: Path, tmp_path: Path) -> None:
    shutil.copytree(judged / "tail", tmp_path / "tail")
    done = run_here("report", "tail", cwd=tmp_path)
    assert done.code == 0, done.err
    text = (tmp_path / "tail" / "report.html").read_text()
    sentence = (judged / "out.txt").read_text().rsplit("\n\n", 1)[1].splitlines()[0]
    assert html.escape(sentence) in text
    assert "Near-copies of training pictures" in text
    assert (tmp_path / "tail" / "plots" / "verdict-arms.svg").is_file()


def test_a_report_tells_how_to_ask(tail: Path, tmp_path: Path) -> None:
    assert run_here("report", "tail", cwd=tmp_path).code == 0
    assert "<code>manege verdict tail</code>" in (tail / "report.html").read_text()


def test_the_file_holds_all_that_is_needed_to_do_it_again(judged: Path) -> None:
    (file,) = judged.glob("tail/verdict/*/verdict-2-seeds.json")
    tree = json.loads(file.read_text())
    protocol = tree["protocol"]
    assert list(tree["arms"]) == ARMS
    assert (protocol["seeds"], protocol["steps"], protocol["sample_seed"]) == (2, 12, 0)
    assert protocol["data"]["train"] == {"3": 20, "7": 161, "8": 157}
    assert protocol["data"]["calibration"] == {"3": 6, "7": 6, "8": 5}
    assert protocol["data"]["test"] == {"3": 12, "7": 12, "8": 12}
    assert len({*protocol["data"]["sha256"].values()}) == 3
    assert {*tree["versions"]} >= {"python", "torch", "numpy"}
    for arm in tree["arms"].values():
        for one in (arm["accuracy"], arm["mean_recall"], *arm["recall"].values()):
            assert 0 <= one["low"] <= one["value"] <= one["high"] <= 1
    # As many pictures are looked at for copies as would be added.
    memorisation = tree["memorisation"]["classes"]
    assert {label: one["pictures"] for label, one in memorisation.items()} == {"3": 141, "8": 4}
    assert {one["bound_from"] for one in memorisation.values()} == {"training"}
    assert tree["comparison"]["candidates"] == ["3", "8"]
    assert tree["comparison"]["arm"] in "de"
    assert tree["comparison"]["over"] in ("a", "b", "c", "b+c")
    assert tree["cas"]["synthetic_to_real"] == tree["arms"]["f"]["accuracy"]


def test_the_same_question_is_answered_from_the_run(judged: Path) -> None:
    before = files_below(judged / "tail")
    done = run_here("verdict", "tail", *QUICK, cwd=judged)
    assert done.err.startswith("judged before: tail/verdict/")
    assert done.out == (judged / "out.txt").read_text()
    assert files_below(judged / "tail") == before


@pytest.mark.full
def test_more_seeds_use_those_that_are_there(judged: Path, tmp_path: Path) -> None:
    shutil.copytree(judged / "tail", tmp_path / "tail")
    before = files_below(tmp_path / "tail")
    done = run_here("verdict", "tail", "--seeds", "3", "--steps", "12", "--json", cwd=tmp_path)
    assert "7 of 7 trainings" in done.err
    assert "seed 1" not in done.err
    assert done.json["protocol"]["seeds"] == 3
    after = files_below(tmp_path / "tail")
    assert {name: after[name] for name in before} == before
    assert sum(name.endswith("-seed-2.npz") for name in after) == 7


@pytest.mark.full
def test_trainings_side_by_side_answer_what_they_answer_alone(judged: Path, tmp_path: Path) -> None:
    shutil.copytree(judged / "tail", tmp_path / "tail")
    shutil.rmtree(tmp_path / "tail" / "verdict")
    done = run_here("verdict", "tail", *QUICK, "--workers", "1", cwd=tmp_path)
    assert done.code == 0, done.err
    shutil.rmtree(tmp_path / "tail" / "verdict")
    more = run_here("verdict", "tail", *QUICK, "--workers", "3", cwd=tmp_path)
    assert done.out == more.out == (judged / "out.txt").read_text()


@pytest.mark.full
def test_a_stopped_verdict_goes_on_where_it_was(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "tail")
    process = subprocess.Popen(
        [sys.executable, "-m", "manege", "verdict", "tail", "--seeds", "2", "--steps", "15"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT and hands that on; a user's command does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if "1 of 14 trainings" in line:
                break
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert (process.returncode, out) == (75, "")
    kept = list(tmp_path.glob("tail/verdict/*/*.npz"))
    assert 1 <= len(kept) < 14
    assert err.splitlines()[-1] == (
        f"manege: stopped; {len(kept)} of 14 trainings are kept, and the same command goes on"
    )
    stamps = {path: path.stat().st_mtime_ns for path in kept}
    again = run_here("verdict", "tail", "--seeds", "2", "--steps", "15", "--json", cwd=tmp_path)
    assert again.code == 0
    assert f"{14 - len(kept)} of {14 - len(kept)} trainings" in again.err
    assert {path: path.stat().st_mtime_ns for path in kept} == stamps
    shutil.rmtree(tmp_path / "tail" / "verdict")
    whole = run_here("verdict", "tail", "--seeds", "2", "--steps", "15", "--json", cwd=tmp_path)
    assert whole.json == again.json


def test_balanced_data_have_nothing_to_balance(manege: Command, run: Path) -> None:
    done = manege("verdict", "run", *QUICK)
    assert done.code == 0
    sentence = "There is nothing to balance: the smallest class has 157 training pictures"
    assert sentence in done.out
    # Before the trainings, which may take long.
    assert done.err.startswith(sentence)
    tree = manege("verdict", "run", *QUICK, "--json").json
    assert (tree["outcome"], list(tree["arms"])) == ("nothing-to-balance", ["a", "f"])
    assert tree["memorisation"]["pictures"] == 3 * 165


def test_a_moved_folder_is_named_with_data(trained_animals: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained_animals, tmp_path / "here")
    (folder / "animals").rename(folder / "elsewhere")
    run_config = (folder / "run" / "config.yaml").read_text()
    gone = str(trained_animals / "animals")
    (folder / "run" / "config.yaml").write_text(run_config.replace(gone, str(folder / "animals")))
    refused = run_here("verdict", "run", *QUICK, cwd=folder)
    assert refused.code == 2
    assert "no such path" in refused.err
    done = run_here("verdict", "run", "--data", "elsewhere", *QUICK, "--json", cwd=folder)
    assert done.json["protocol"]["data"]["train"] == {"cat": 18, "dog": 36}


# Pictures that balance.


def pictures_in(folder: Path) -> dict[str, int]:
    return {one.name: len(list(one.iterdir())) for one in folder.iterdir() if one.is_dir()}


@pytest.mark.full
def test_export_balances_every_class_to_a_number(
    manege: Command, tail: Path, tmp_path: Path
) -> None:
    done = manege("export", "tail", "--balance-to", "160", "-o", "more")
    assert (done.code, done.err) == (0, "")
    assert "143 pictures in more; with the real ones at least 160 of each class" in done.out
    assert pictures_in(tmp_path / "more") == {"3": 140, "8": 3}
    manifest = json.loads((tmp_path / "more" / "manifest.json").read_text())
    assert manifest["balanced_to"] == 160
    assert manifest["classes"]["3"] == {"real": 20, "kept": 140, "drawn": 140, "left_out": {}}
    assert (manifest["gate"], manifest["labelled_by"]) == (None, "model")
    assert len(manifest["pictures"]) == 143
    # The very pictures that `sample` draws.
    assert manege("sample", "tail", "-n", "5", "--label", "3", "-o", "five.npz").code == 0
    with np.load(tmp_path / "five.npz") as five, Image.open(tmp_path / "more/3/000004.png") as one:
        assert (np.asarray(one)[..., None] == five["images"][4]).all()
    again = manege("export", "tail", "--balance-to", "150", "-o", "more")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "more: already exists" in again.err
    assert pictures_in(tmp_path / "more") == {"3": 140, "8": 3}
    assert manege("export", "tail", "--balance-to", "150", "-o", "more", "--force").code == 0
    assert pictures_in(tmp_path / "more") == {"3": 130}


def test_one_class_alone_can_be_added_to(manege: Command, tmp_path: Path) -> None:
    train = ("train", "digits", "--classes", "3", "--rounds", "1", *TINY, "--out", "one")
    assert manege(*train).code == 0
    assert manege("export", "one", "--balance-to", "170", "-o", "more").code == 0
    assert pictures_in(tmp_path / "more") == {"3": 5}
    for command in (("verdict", "one"), ("export", "one", "--balance-to", "170", "--gate")):
        done = manege(*command, *(("-o", "gated") if command[0] == "export" else ()))
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "one: trained on one class, expected two or more" in done.err


def test_export_without_it_still_writes_the_model(manege: Command, tail: Path) -> None:
    assert "3 classes, 8x8, grey" in manege("export", "tail", "-o", "model").out


@pytest.mark.full
def test_an_exported_folder_can_be_trained_on(manege: Command, tail: Path) -> None:
    manege("export", "tail", "--balance-to", "170", "--seed", "4", "-o", "more")
    done = manege("train", "more", "--rounds", "1", *TINY, "--out", "second")
    assert done.code == 0, done.err


# Bad input.


def without_class(run: Path, label: str) -> None:
    path = run / "model" / "model.json"
    tree = json.loads(path.read_text())
    tree["components"] = [one for one in tree["components"] if one["label"] != label]
    tree["missing"] = {label: "its loss was not finite"}
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("verdict nowhere", ("nowhere", "no such folder")),
        ("verdict tail/model", ("tail/model", "config.yaml")),
        ("verdict tail --seeds 1", ("--seeds 1", "expected 2 to 100")),
        ("verdict tail --steps 0", ("--steps 0", "expected 1 to")),
        ("verdict tail --workers 0", ("--workers 0", "expected a number from 1, or auto")),
        ("verdict tail --seed -1", ("--seed -1", "expected 0 or more")),
        ("verdict tail --sedes 3", ("--sedes", "manege verdict --help")),
        ("verdict tail --data nowhere", ("nowhere", "no dataset of that name")),
        ("verdict tail --data animals", ("animals", "has no '3', '7', '8'")),
        ("verdict tail --data ~nobody-here/a", ("~nobody-here/a", "no such path")),
        ("verdict tail --data digitz", ("digitz", "did you mean digits?")),
        ("export tail -o m --gate", ("--gate", "expected --balance-to N")),
        ("export tail -o m --data digits", ("--data", "expected --balance-to N")),
        ("export tail -o m --seed 0", ("--seed", "expected --balance-to N")),
        ("export tail -o m --force", ("--force", "expected --balance-to N")),
        ("export tail -o m --balance-to 0", ("--balance-to 0", "at least 1")),
        ("export tail -o m --balance-to 20", ("--balance-to 20", "20 to 161", "more than")),
        (
            "export tail -o m --balance-to 99999999999999999999999",
            ("--balance-to 99999999999999999999999", "MB of memory", "ask for fewer"),
        ),
        ("sample tail -o m -n 99999999999999999999999", ("-n 99999999999999999999999", "fewer")),
        ("export tail -o tail/config.yaml --balance-to 30 --force", ("config.yaml", "a file")),
        ("export tail -o m --balance-to 30 --data-root .", ("--data-root: ", "with --gate alone")),
        ("export tail -o m --balance-to x", ("--balance-to", "a valid integer")),
        ("export tail -o m.png --balance-to 30", ("m.png", "the name of a folder")),
        (
            "export tail -o m --balance-to 30 --data digits",
            ("--data", "with --gate alone", "leave it out"),
        ),
        ("export animals -o m --balance-to 30", ("animals", "config.yaml")),
        ("train digits --limit 3=5", ("data.limits.3: found 5", "greater than or equal to 8")),
        ("train digits --limit 3", ("--limit '3'", "expected label=number")),
        ("train digits --limit 3=9,3=10", ("--limit", "'3' stands twice")),
        ("train digits --limit x=9", ("limits: digits has no 'x'", "choose among 0, 1")),
    ],
)
def test_bad_input_is_one_line(
    command: str, says: tuple[str, ...], manege: Command, tail: Path, tmp_path: Path
) -> None:
    write_class(tmp_path / "animals" / "cat", 12)
    write_class(tmp_path / "animals" / "dog", 12)
    before = files_below(tmp_path)
    done = manege(*command.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    for words in says:
        assert words in done.err
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("command", ["verdict tail", "export tail --balance-to 200 -o m"])
def test_a_model_with_a_missing_class_is_refused(command: str, manege: Command, tail: Path) -> None:
    without_class(tail, "8")
    done = manege(*command.split())
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "missing class '8' (its loss was not finite)" in done.err
    assert "manege resume tail" in done.err


def test_other_pictures_of_the_same_classes_are_refused(
    trained_animals: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained_animals, tmp_path / "here")
    shutil.rmtree(folder / "animals" / "cat")
    write_class(folder / "animals" / "cat", 21)
    done = run_here("verdict", "run", "--data", "animals", cwd=folder)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "the training pictures of class 'cat' are not those of run" in done.err


def test_a_damaged_training_is_named(judged: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(judged / "tail", tmp_path / "tail")
    (file,) = folder.glob("verdict/*/b-seed-1.npz")
    for content in (b"", b"PK\x03\x04 and nothing", os.urandom(100)):
        file.write_bytes(content)
        (result,) = folder.glob("verdict/*/verdict-2-seeds.json")
        result.rename(tmp_path / "aside.json")
        done = run_here("verdict", "tail", *QUICK, cwd=tmp_path)
        (tmp_path / "aside.json").rename(result)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "b-seed-1.npz: damaged" in done.err
    for content in ("{", "[]", '{"protocol": {"seeds": 2}}'):
        result.write_text(content)
        done = run_here("verdict", "tail", *QUICK, cwd=tmp_path)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "verdict-2-seeds.json: damaged" in done.err


def test_figures_that_somebody_removed_are_drawn_again_or_not_named(
    judged: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(judged / "tail", tmp_path / "tail")
    (figure,) = folder.glob("verdict/*/verdict-2-seeds.png")
    before = figure.read_bytes()
    figure.unlink()
    (figure.parent / "nearest.png").unlink()
    done = run_here("verdict", "tail", *QUICK, "--json", cwd=tmp_path)
    assert figure.read_bytes() == before
    assert (done.json["figure"], done.json["pairs"]) == (str(figure.relative_to(tmp_path)), None)
    assert "nearest.png" not in run_here("verdict", "tail", *QUICK, cwd=tmp_path).out


# Models without labels, and the gate.


GRID = (
    *("cellular", "--grid", "1x2", "--set", "cellular.mixture.samples=100"),
    *("--set", "cellular.fitness_samples=32", "--set", "training.batches_per_round=40"),
    *("--set", "cellular.mixture.steps=5", "--set", "cellular.mixture.final_samples=200"),
    *("--set", "cellular.mixture.final_steps=5"),
)


def train_unlabelled(folder: Path, *method: str) -> Path:
    """A run on two digits that was not told which is which."""
    done = run_here(
        *("train", "digits", "--classes", "0,1", "--limit", "1=60", "--method", *method),
        *("--preset", "cellular-modern", "--networks", "mlp", "--rounds", "2", "--out", "run"),
        cwd=folder,
    )
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a run; not to be changed."""
    steps = ("--set", "training.batches_per_round=150")
    return train_unlabelled(tmp_path_factory.mktemp("single"), "single", *steps, "--score", "none")


def check_balanced(folder: Path, out: Path) -> None:
    done = run_here("export", "run", "--balance-to", "180", "-o", out, "--json", cwd=folder)
    assert done.code == 0, done.err
    assert done.json["labelled_by"] == "classifier"
    assert pictures_in(out) == {"0": 20, "1": 120}
    assert json.loads((out / "manifest.json").read_text())["labelled_by"] == "classifier"


@pytest.mark.full
def test_a_classifier_names_the_pictures_of_a_model_without_labels(
    unlabelled: Path, tmp_path: Path
) -> None:
    check_balanced(unlabelled, tmp_path / "more")


@pytest.mark.full
def test_a_classifier_names_the_pictures_of_a_grid(tmp_path: Path) -> None:
    check_balanced(train_unlabelled(tmp_path, *GRID), tmp_path / "more")


@pytest.mark.full
def test_the_gate_of_an_export_is_counted(unlabelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "more"
    done = run_here(
        *("export", "run", "--balance-to", "180", "--gate", "--data", "digits", "-o", out),
        "--json",
        cwd=unlabelled,
    )
    assert done.code == 0, done.err
    manifest = json.loads((out / "manifest.json").read_text())
    for label, kept in (("0", 20), ("1", 120)):
        one = manifest["classes"][label]
        assert one["kept"] == kept == pictures_in(out)[label]
        assert one["drawn"] - one["kept"] == sum(one["left_out"].values())
        assert set(one["left_out"]) <= {"near-copy", "implausible"}
        assert {*manifest["gate"][label]} == {
            *("nearest", "nearest_from", "probability", "furthest", "space")
        }
    assert sum(sum(one["left_out"].values()) for one in manifest["classes"].values()) > 0


@pytest.mark.full
def test_a_verdict_with_the_gate_and_without_labels(unlabelled: Path, tmp_path: Path) -> None:
    shutil.copytree(unlabelled / "run", tmp_path / "run")
    done = run_here("verdict", "run", "--gate", *QUICK, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    tree = done.json
    assert (tree["labelled_by"], tree["protocol"]["gate"]) == ("classifier", True)
    assert tree["cas"]["real_to_synthetic"] is None
    assert set(tree["gate"]) == {"0", "1"}
    assert (tmp_path / "run" / "verdict").is_dir()


@pytest.mark.full
def test_a_class_that_hardly_passes_is_refused(tail: Path, manege: Command) -> None:
    """Two rounds make noise, which no classifier takes for a digit of its class."""
    done = manege("export", "tail", "--balance-to", "400", "--gate", "-o", "more")
    assert (done.code, done.out) == (2, "")
    complaint = done.err.splitlines()[-1]
    assert "pictures wanted came out of" in complaint
    assert "implausible" in complaint
    assert "ask for fewer, leave --gate out, or train longer" in complaint
