"""Scores from the command line: evaluate anything, compare runs, keep the best while training."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manege.api import start_run
from manege.config import resolve
from manege.pictures import read_text
from manege.runs import RunDir
from manege.sampler import run_config
from tests.helpers.command import TINY, Done, run_here
from tests.helpers.material import noise, write_class, write_colour, write_idx, write_logits
from tests.helpers.observers import StopAfter

from .conftest import Command

DIGITS = ("--data", "digits", "--classes", "3,7,8")
THREE = ("--classes", "3,7,8", *TINY)
KID = ("--metrics", "kid")
RANDOM = ("--features", "random")
"""A space that takes no training."""

HELD_OUT, TRAIN = 53, 483
"""Pictures of the three digits."""


def one_object(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    return done.json


def told_by(manege: Command, *args: str | Path) -> dict[str, Any]:
    """What `manege evaluate` tells as one object."""
    return one_object(manege("evaluate", *args, "--json"))


def by_name(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The scores of all classes together, by their short names."""
    return {score["name"]: score for score in told["scores"] if score["label"] is None}


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.fixture(scope="module")
def drawn(evaluated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same ninety pictures of the model in every form there is; not to be changed."""
    folder = tmp_path_factory.mktemp("drawn")
    for out in ("classes", "labelled.npz"):
        done = run_here("sample", evaluated, "-n", "90", "-o", out, cwd=folder)
        assert done.code == 0, done.err
    (folder / "flat").mkdir()
    for place, file in enumerate(sorted((folder / "classes").rglob("*.png"))):
        shutil.copy(file, folder / "flat" / f"{place}.png")
    with np.load(folder / "labelled.npz") as archive:
        np.savez(folder / "plain.npz", images=archive["images"])
    shutil.copytree(evaluated / "model", folder / "model")
    return folder


# A run.


def test_a_run_is_judged_by_the_pictures_its_training_held_out(
    manege: Command, run: Path, evaluated: Path
) -> None:
    done = manege("evaluate", "run")
    assert (done.code, done.err) == (0, "")
    first, features, labels, heading, *rows = done.out.splitlines()
    assert first == f"run (1,000 pictures, seed 0) against digits, held-out ({HELD_OUT} pictures)"
    assert re.fullmatch(r"features: lite0-64-128-[0-9a-f]{8}, 128 dimensions", features)
    assert re.fullmatch(
        r"labels by classifier-[0-9a-f]{8}, right on [\d.]+% of held-out pictures", labels
    )
    assert re.split(r"\s{2,}", heading.strip()) == ["value", "95 % interval", "real pictures"]
    [kid] = [row for row in rows if row.startswith("  kid@lite0-64-128-")]
    number = r"-?[\d.e-]+"
    assert re.fullmatch(rf"  kid@\S+ +{number} +{number} to {number} +{number}", kid)
    assert any(
        re.match(f"left out: fd: {HELD_OUT} reference pictures are too few", row) for row in rows
    )
    kept = rows[-1].removeprefix("kept in ")
    assert re.fullmatch(r"run/evaluations/[0-9a-f]{12}\.json", kept)


def test_one_object_tells_all_that_the_numbers_depend_on(manege: Command, evaluated: Path) -> None:
    told = told_by(manege, evaluated)
    subject, reference, space = (told["protocol"][k] for k in ("subject", "reference", "space"))
    digest = manege("model", "show", evaluated, "--json").json["digest"]
    assert (subject["digest"], subject["pictures"]) == (digest, 1000)
    assert (reference["name"], reference["split"]) == ("digits", "held-out")
    assert (reference["pictures"], reference["classes"]) == (HELD_OUT, ["3", "7", "8"])
    assert "10 %" in reference["rule"]
    assert re.fullmatch("[0-9a-f]{64}", reference["digest"])
    assert space["name"] == f"lite0-64-128-{space['sha256'][:8]}"
    assert re.fullmatch("[0-9a-f]{64}", space["source"]["weights_sha256"])
    labeller = told["protocol"]["labeller"]
    weights = (evaluated / "classifier" / "space.safetensors").read_bytes()
    assert labeller["sha256"] == hashlib.sha256(weights).hexdigest()
    assert labeller["name"] == f"classifier-{labeller['sha256'][:8]}"
    assert 0.9 < labeller["accuracy"]["low"] <= labeller["accuracy"]["value"] <= 1
    assert told["protocol"]["seed"] == 0
    assert told["file"] in [str(path) for path in (evaluated / "evaluations").iterdir()]


def test_every_score_carries_its_interval_and_its_recipe(manege: Command, evaluated: Path) -> None:
    told = told_by(manege, evaluated)
    assert by_name(told).keys() == {
        *("kid", "precision", "recall", "density", "coverage"),
        *("label-entropy", "label-tvd", "label-modes", "agreement"),
        *("nearest-held-out", "nearest-train", "nearer-to-train"),
    }
    space, labeller = (told["protocol"][key]["name"] for key in ("space", "labeller"))
    for score in told["scores"]:
        assert score["low"] <= score["value"] <= score["high"]
        assert score["space"] in (space, labeller, "pixels")
        assert score["full_name"] == f"{score['name']}@{score['space']}"
        assert 0 < score["generated"] <= 1000
        assert 0 < score["reference"] <= HELD_OUT
        assert (score["split"], score["seed"]) == ("held-out", 0)
        assert score["definition"]
        assert score["interval"]
    assert list(told["left_out"]) == ["fd"]


def test_real_pictures_are_beside_what_they_would_score_in_the_models_place(
    manege: Command, evaluated: Path
) -> None:
    for name in ("kid", "precision", "coverage"):
        score = by_name(told_by(manege, evaluated))[name]
        floor = score["floor"]
        assert floor["low"] <= floor["value"] <= floor["high"]
        assert abs(floor["value"] - (0 if name == "kid" else 1)) < 0.3
        # A model of two rounds is far from real pictures. Its precision need not be: all it draws
        # may look like one digit to the classifier.
        assert name == "precision" or abs(score["value"] - floor["value"]) > 0.3


def test_the_same_question_is_answered_from_what_the_run_has_kept(
    manege: Command, run: Path, evaluated: Path
) -> None:
    first = manege("evaluate", "run")
    files = tree(run)
    again = manege("evaluate", "run")
    [kept] = (run / "evaluations").glob("*.json")
    assert again.out == first.out
    assert again.err == f"evaluated before: run/evaluations/{kept.name}\n"
    assert tree(run) == files
    told = told_by(manege, "run")
    assert told.pop("file") == f"run/evaluations/{kept.name}"
    assert told == json.loads(kept.read_text())


def test_what_is_computed_again_is_the_same(
    manege: Command, run: Path, evaluated: Path, tmp_path: Path
) -> None:
    (elsewhere,) = (evaluated / "evaluations").glob("*.json")
    told = json.loads(elsewhere.read_text())
    assert told_by(manege, "run")["scores"] == told["scores"]
    [kept] = (run / "evaluations").glob("*.json")
    assert kept.name == elsewhere.name


def test_a_run_keeps_its_scorer_and_the_pictures_nearest_to_training_ones(evaluated: Path) -> None:
    [kept] = (evaluated / "evaluations").glob("*.json")
    assert {path.name for path in (evaluated / "evaluations").iterdir()} == {
        kept.name,
        f"{kept.stem}-nearest.png",
    }
    text = read_text(evaluated / "evaluations" / f"{kept.stem}-nearest.png")
    assert text["evaluation"] == kept.stem
    assert {path.name for path in (evaluated / "classifier").iterdir()} == {
        "scorer.json",
        "space.safetensors",
    }
    assert {path.name for path in (evaluated / "scorer").iterdir()} == {"controls.json"}


def test_a_run_that_was_moved_has_its_evaluations_still(
    manege: Command, evaluated: Path, tmp_path: Path
) -> None:
    shutil.copytree(evaluated, tmp_path / "moved")
    done = manege("evaluate", "moved")
    assert done.err.startswith("evaluated before: moved/evaluations/")


def test_a_run_that_was_moved_is_called_by_its_new_name(
    manege: Command, evaluated: Path, tmp_path: Path
) -> None:
    shutil.copytree(evaluated, tmp_path / "moved")
    assert manege("evaluate", "moved").out.startswith("moved (")


@pytest.mark.full
def test_a_run_needs_no_cache_where_it_has_its_scorer(
    manege: Command, evaluated: Path, tmp_path: Path
) -> None:
    shutil.copytree(evaluated, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "evaluations")
    done = manege("evaluate", "run", env={"MANEGE_CACHE": str(tmp_path / "cache")})
    assert (done.code, done.err) == (0, "")


# Whatever else there is.


@pytest.mark.parametrize(
    "subject", [pytest.param("model", marks=pytest.mark.full), "classes", "labelled.npz"]
)
def test_whatever_has_labels_is_judged_and_nothing_is_written_beside_it(
    subject: str, manege: Command, drawn: Path
) -> None:
    before = tree(drawn)
    done = manege("evaluate", drawn / subject, *DIGITS)
    assert (done.code, done.err) == (0, "")
    assert "kept in" not in done.out
    told = told_by(manege, drawn / subject, *DIGITS)
    assert {"kid", "agreement", "nearest-train"} < by_name(told).keys()
    assert told["file"] is None
    assert tree(drawn) == before


@pytest.mark.parametrize("subject", ["flat", "plain.npz"])
def test_pictures_without_labels_are_judged_but_for_their_labels(
    subject: str, manege: Command, drawn: Path
) -> None:
    before = tree(drawn)
    told = told_by(manege, drawn / subject, "--data", "digits", *RANDOM)
    assert told["protocol"]["subject"]["pictures"] == 90
    assert {"kid", "precision", "nearest-train"} < by_name(told).keys()
    assert "agreement" not in by_name(told)
    assert tree(drawn) == before


@pytest.mark.full
def test_pictures_without_labels_are_given_some_by_the_classifier(
    manege: Command, drawn: Path, tmp_path: Path
) -> None:
    real = ("sample", drawn / "model", "-n", "40", "-o", "real")  # Labelled, and three of them.
    assert manege(*real).code == 0
    told = told_by(manege, drawn / "plain.npz", "--data", "real", "--reference", "train")
    assert "label-entropy" in by_name(told)
    assert "agreement" not in by_name(told)


@pytest.mark.parametrize("subject", ["model", "classes", "flat", "labelled.npz", "plain.npz"])
def test_a_folder_of_pictures_is_something_to_compare_with(
    subject: str, manege: Command, drawn: Path, tmp_path: Path
) -> None:
    write_class(tmp_path / "photos", 20)
    told = told_by(manege, drawn / subject, "--data", "photos")
    reference = told["protocol"]["reference"]
    assert (reference["name"], reference["split"]) == ("photos", "all")
    assert (reference["pictures"], reference["rule"]) == (20, None)
    assert told["protocol"]["space"]["kind"] == "lite0"
    assert by_name(told).keys() == {"kid", "precision", "recall", "density", "coverage"}
    assert told["left_out"].keys() == {"fd", "labels", "nearest"}


def test_an_image_folder_is_split_as_for_training(
    manege: Command, drawn: Path, trained_animals: Path
) -> None:
    animals = trained_animals / "animals"
    train = ("--reference", "train", *RANDOM, *KID)
    told = told_by(manege, drawn / "flat", "--data", animals, *train)
    assert told["protocol"]["reference"]["pictures"] == 18 + 36
    # Six are held out, and too few.
    assert "6 reference pictures" in manege("evaluate", animals, "--data", animals, *RANDOM).err


def test_the_form_pictures_are_kept_in_does_not_matter(manege: Command, drawn: Path) -> None:
    kid = [
        by_name(told_by(manege, drawn / subject, *DIGITS, *KID, *more))["kid"]["value"]
        for subject, *more in (("model", "--samples", "90"), ("classes",), ("labelled.npz",))
    ]
    assert kid[1:] == pytest.approx([kid[0], kid[0]], rel=1e-5)


@pytest.mark.full
def test_the_command_says_no_word_too_much(manege_process: Command, drawn: Path) -> None:
    done = manege_process("evaluate", drawn / "plain.npz", "--data", drawn / "flat", "--json")
    assert done.err == ""
    assert by_name(one_object(done))["kid"]["value"] < 0.01


# Options.


def test_per_class_tells_each_class_s_distance(manege: Command, drawn: Path) -> None:
    told = told_by(manege, drawn / "classes", *DIGITS, "--per-class")
    rows = {score["label"]: score for score in told["scores"] if score["name"] == "kid"}
    assert rows.keys() == {None, "3", "7", "8"}
    labels = [path.parent.name for path in (drawn / "classes").rglob("*.png")]
    for label in ("3", "7", "8"):
        assert rows[label]["generated"] == labels.count(label)
        assert rows[label]["floor"]["value"] < rows[label]["value"]
    table = manege("evaluate", drawn / "classes", *DIGITS, "--per-class").out
    assert re.search(r"^  kid@lite0-64-128-\w+ \[7\] ", table, re.MULTILINE)


def test_a_model_draws_more_of_a_class_it_drew_few_of(manege: Command, drawn: Path) -> None:
    told = told_by(manege, drawn / "model", *DIGITS, "--per-class", "--samples", "9", *KID)
    *kids, mean = told["scores"]
    counts = {score["label"]: score["generated"] for score in kids}
    assert counts == {None: 9, "3": 100, "7": 100, "8": 100}
    assert (mean["name"], mean["generated"]) == ("intra-class-kid", 300)


def test_per_class_without_the_score_it_is_of_is_refused(manege: Command, drawn: Path) -> None:
    done = manege("evaluate", drawn / "model", *DIGITS, "--per-class", "--metrics", "prdc")
    assert (done.code, done.out) == (2, "")
    assert "--per-class" in done.err


def test_only_what_was_asked_for_is_computed(manege: Command, drawn: Path) -> None:
    told = told_by(manege, drawn / "classes", *DIGITS, *KID)
    assert by_name(told).keys() == {"kid"}
    assert (told["protocol"]["metrics"], told["left_out"]) == (["kid"], {})
    told = told_by(manege, drawn / "classes", *DIGITS, "--metrics", "nearest, kid")
    assert by_name(told).keys() == {"kid", "nearest-train", "nearest-held-out", "nearer-to-train"}


def test_another_space_is_another_name(manege: Command, drawn: Path) -> None:
    own = by_name(told_by(manege, drawn / "classes", *DIGITS, *KID))["kid"]
    other = by_name(told_by(manege, drawn / "classes", *DIGITS, *KID, *RANDOM))["kid"]
    assert own["full_name"].startswith("kid@lite0-64-128-")
    assert other["full_name"].startswith("kid@random-")
    assert own["value"] != other["value"]


def test_the_space_can_be_named(
    manege: Command, drawn: Path, evaluated: Path, scored: Path
) -> None:
    for names in (("auto", "lite0", scored / "scorer"), ("classifier", evaluated / "classifier")):
        found = [
            told_by(manege, drawn / "classes", *DIGITS, *KID, "--features", name)["scores"]
            for name in names
        ]
        assert found[1:] == found[:1] * (len(names) - 1)


@pytest.mark.parametrize("subject", ["model", "labelled.npz"])
def test_samples_says_how_many_are_compared(subject: str, manege: Command, drawn: Path) -> None:
    told = told_by(manege, drawn / subject, *DIGITS, *KID, "--samples", "30")
    assert told["protocol"]["subject"]["pictures"] == 30
    assert by_name(told)["kid"]["generated"] == 30


@pytest.mark.full
@pytest.mark.parametrize("subject", ["model", "labelled.npz"])
def test_classes_restricts_both_sides(subject: str, manege: Command, drawn: Path) -> None:
    only = ("--data", "digits", "--classes", "3", "--per-class")
    told = told_by(manege, drawn / subject, *only)
    assert {score["label"] for score in told["scores"]} == {None, "3"}
    reference = told["protocol"]["reference"]
    assert (reference["classes"], reference["pictures"]) == (["3"], 18)
    with np.load(drawn / "labelled.npz") as archive:
        threes = archive["labels"].tolist().count("3")
    count = 1000 if subject == "model" else threes
    assert told["protocol"]["subject"]["pictures"] == count


def test_the_reference_may_be_the_training_pictures(manege: Command, drawn: Path) -> None:
    held_out, train = (
        told_by(manege, drawn / "classes", *DIGITS, *KID, "--reference", split)
        for split in ("held-out", "train")
    )
    reference = train["protocol"]["reference"]
    assert (reference["split"], reference["pictures"]) == ("train", TRAIN)
    assert by_name(train)["kid"]["split"] == "train"
    assert by_name(train)["kid"]["value"] != by_name(held_out)["kid"]["value"]


def test_size_brings_different_sides_together(manege: Command, drawn: Path, tmp_path: Path) -> None:
    write_class(tmp_path / "large", 20, side=12)
    for side in ("8", "12", "10"):
        told = told_by(manege, drawn / "flat", "--data", "large", "--size", side, *KID)
        assert told["protocol"]["space"]["size"] == int(side)
    told = told_by(manege, "large", "--data", "digits", "--size", "8", *RANDOM, *KID)
    assert told["protocol"]["space"]["size"] == 8


def test_channels_bring_grey_and_colour_together(
    manege: Command, drawn: Path, tmp_path: Path
) -> None:
    write_colour(tmp_path / "colour", 20)
    for channels in ("1", "3"):
        told = told_by(manege, "colour", "--data", drawn / "flat", "--channels", channels, *KID)
        assert told["protocol"]["space"]["channels"] == int(channels)


@pytest.mark.parametrize("option", ["--size 12", "--channels 3"])
@pytest.mark.parametrize("subject", ["run", "model"])
def test_an_option_is_obeyed_or_refused(
    subject: str, option: str, manege: Command, evaluated: Path, tmp_path: Path
) -> None:
    shutil.copytree(evaluated, tmp_path / "run")
    shutil.copytree(evaluated / "model", tmp_path / "model")
    done = manege("evaluate", subject, *DIGITS, *RANDOM, *KID, *option.split(), "--json")
    name, value = option.split()
    if done.code == 0:
        assert done.json["protocol"]["space"][name.removeprefix("--")] == int(value)
    else:
        assert (done.code, done.out) == (2, "")
        assert name in done.err


def test_a_reference_of_any_side_will_do(manege: Command, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_class(tmp_path / "photos" / name, 20, side=10)
    told = told_by(manege, "photos", "--data", "photos", "--reference", "train", *RANDOM, *KID)
    assert told["protocol"]["space"]["size"] == 10


def test_the_seed_decides_the_numbers(manege: Command, drawn: Path) -> None:
    first, again, other = (
        told_by(manege, drawn / "model", *DIGITS, "--samples", "50", "--seed", seed)
        for seed in ("1", "1", "2")
    )
    assert first == again
    assert (first["protocol"]["seed"], other["protocol"]["seed"]) == (1, 2)
    assert by_name(first)["kid"]["value"] != by_name(other)["kid"]["value"]


def test_a_distance_on_too_few_pictures_is_marked(manege: Command, drawn: Path) -> None:
    few = ("--metrics", "fd", "--allow-few-samples")
    told = told_by(manege, drawn / "classes", *DIGITS, *few)
    assert by_name(told)["fd"]["marks"] == ["few-samples"]
    assert "(few-samples)" in manege("evaluate", drawn / "classes", *DIGITS, *few).out


@pytest.mark.full
def test_lipizzaner_s_classifier_gives_its_distance_its_name(
    manege: Command, tmp_path: Path
) -> None:
    write_idx(tmp_path / "data" / "mnist")
    write_logits(tmp_path / "data" / "classifiers" / "lipizzaner_mnist_cnn.pkl")
    np.savez(tmp_path / "mine.npz", images=noise(5, 90, 28, 28))
    words = ("mine.npz", "--data", "mnist", "--reference", "train", "--metrics", "fd", "--json")
    root = {"MANEGE_DATA": str(tmp_path / "data")}
    done = manege("evaluate", *words, "--features", "mnist-logits", env=root)
    [score] = one_object(done)["scores"]
    assert score["full_name"].startswith("fid-mnist-logits")
    # Pictures of noise are no digits, and it says so.
    assert re.match(r"warning: lipizzaner_mnist_cnn.pkl is right on [\d.]+% of mnist", done.err)
    file = tmp_path / "data" / "classifiers" / "lipizzaner_mnist_cnn.pkl"
    given = ("--data-root", "data", "--features", f"mnist-logits={file}")
    named = manege("evaluate", *words, *given)
    assert one_object(named)["scores"] == [score]


# Runs that lack a class.


def remedy(done: Done, missing: str) -> tuple[str, ...]:
    """The option that a refusal recommends."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"the model has no class {missing!r}" in done.err
    found = re.search(r"leave it out with (--classes) (\S+)\n", done.err)
    assert found, done.err
    return found[1], found[2]


def test_a_model_that_lacks_a_class_is_judged_without_it(
    manege: Command, drawn: Path, tmp_path: Path
) -> None:
    out = ("--class", "7", "-o", "less")
    assert manege("model", "drop", drawn / "model", *out).code == 0
    words = ("less", "--data", "digits", *RANDOM, *KID)
    done = manege("evaluate", *words)
    assert remedy(done, "0") == ("--classes", "3,8")
    told = told_by(manege, *words, *remedy(done, "0"))
    assert told["protocol"]["reference"]["classes"] == ["3", "8"]


@pytest.mark.full
def test_a_run_whose_class_failed_is_judged_without_it(manege: Command, run: Path) -> None:
    rundir = RunDir.open(run)
    identity = run_config(rundir).identity()
    found = rundir.load("7", identity=identity)
    assert found is not None
    found.tensors["generator"][5] = np.nan
    rundir.commit(
        *("7",),
        identity=identity,
        round_=found.round_,
        step=found.step,
        tensors=found.tensors,
        meta=found.meta,
    )
    assert manege("resume", "run", "--rounds", "3").code == 4
    done = manege("evaluate", "run", *RANDOM, *KID)
    assert "(failed: " in done.err
    told = told_by(manege, "run", *RANDOM, *KID, *remedy(done, "7"))
    assert told["protocol"]["reference"]["classes"] == ["3", "8"]


@pytest.fixture
def stopped(tmp_path: Path, evaluated: Path) -> Path:
    """A scored run that was stopped in the last round of its last class."""
    config = resolve(
        preset="paper",
        flags={
            "data.source": "digits",
            "data.classes": ["3", "7", "8"],
            "rounds": 2,
            "networks.kind": "mlp",
            "networks.hidden": 16,
            "training.batch": 32,
            "training.ema": 0.9,
            "score.metric": "kid",
            "score.every_rounds": 1,
        },
    )
    # Three questions while decoding, and one for each step.
    run = start_run(config, out=tmp_path / "stopped", observer=StopAfter(3 + 12 + 12 + 8))
    assert run.outcome.state == "stopped"
    assert min(run.outcome.rounds.values()) == 1
    return run.path


@pytest.mark.full
def test_a_stopped_run_is_judged_as_it_stands_and_anew_when_it_has_gone_on(
    manege: Command, stopped: Path
) -> None:
    before = told_by(manege, "stopped")["protocol"]
    assert before["reference"]["classes"] == ["3", "7", "8"]
    assert manege("resume", "stopped", "--rounds", "3").code == 0
    done = manege("evaluate", "stopped", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["protocol"]["subject"]["digest"] != before["subject"]["digest"]
    assert len(list((stopped / "evaluations").glob("*.json"))) == 2


@pytest.mark.full
def test_a_run_stopped_early_is_judged_by_the_classes_it_has(
    manege: Command, stopped: Path
) -> None:
    shutil.rmtree(stopped / "checkpoints" / "3")
    done = manege("evaluate", "stopped", *RANDOM, *KID)
    assert "(not trained yet)" in done.err
    assert told_by(manege, "stopped", *RANDOM, *KID, *remedy(done, "3"))["scores"]


# Comparisons.


@pytest.fixture
def pair(evaluated: Path, scored: Path, tmp_path: Path) -> tuple[str, str]:
    """Two runs on the same data, side by side in the test's folder."""
    shutil.copytree(evaluated, tmp_path / "a")
    shutil.copytree(scored, tmp_path / "b")
    return "a", "b"


def test_a_comparison_tells_differences_and_scores_and_draws_both(
    pair: tuple[str, str], manege: Command, tmp_path: Path
) -> None:
    done = manege("compare", *pair)
    assert done.code == 0, done.err
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:]}
    assert rows["score.metric"].split()[1:] == ["none", "kid"]
    assert rows["training.ema"].split()[1:] == ["0.0", "0.9"]
    [kid] = [line for name, line in rows.items() if name.startswith("kid@lite0-64-128-")]
    assert re.fullmatch(r"kid@\S+(  +\S+ \[\S+, \S+\]){2}", kid)
    assert done.out.splitlines()[-1] == "sheet: comparison.png"
    assert read_text(tmp_path / "comparison.png") == {"runs": "a, b", "seed": "0"}
    for run in pair:
        assert len(list((tmp_path / run / "evaluations").glob("*.json"))) == 1
    sheets = [tmp_path / run / "samples" / "seed-0.png" for run in pair]
    widths = []
    for sheet in sheets:
        assert read_text(sheet)["rows"] == "3, 7, 8"
        with Image.open(sheet) as image:
            widths.append(image.width)
    with Image.open(tmp_path / "comparison.png") as image:
        assert image.width >= sum(widths)


def test_a_comparison_is_one_object_too(
    pair: tuple[str, str], manege: Command, tmp_path: Path
) -> None:
    done = manege("compare", *pair, "-o", "c.png", "--seed", "3", "--json")
    told = one_object(done)
    assert (told["runs"], told["sheet"]) == (["a", "b"], "c.png")
    assert told["differences"] == {
        "training.ema": [0.0, 0.9],
        "score.metric": ["none", "kid"],
        "score.every_rounds": [5, 1],
    }
    alone = [told_by(manege, run, "--seed", "3") for run in pair]
    for name, row in told["scores"].items():
        assert row == [by_name(one)[name.split("@")[0]] for one in alone]
    assert [one["file"] for one in alone] == told["evaluations"]
    assert (tmp_path / "a" / "samples" / "seed-3.png").is_file()


@pytest.mark.full
def test_a_comparison_overwrites_when_told_to(
    pair: tuple[str, str], manege: Command, tmp_path: Path
) -> None:
    (tmp_path / "c.png").write_text("mine")
    words = ("compare", *pair, "-o", "c.png", *KID)
    assert manege(*words).code == 2
    assert (tmp_path / "c.png").read_text() == "mine"
    assert manege(*words, "--force").code == 0
    assert read_text(tmp_path / "c.png")["runs"] == "a, b"


def test_runs_that_are_the_same_are_said_to_be(
    evaluated: Path, manege: Command, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        shutil.copytree(evaluated, tmp_path / name)
    done = manege("compare", "a", "b")
    assert done.out.startswith("the configurations are the same\n")
    for row in manege("compare", "a", "b", "--json", "--force").json["scores"].values():
        assert row[0] == row[1]


def test_scores_against_different_pictures_are_in_different_rows(
    evaluated: Path, trained_animals: Path, manege: Command, tmp_path: Path
) -> None:
    shutil.copytree(evaluated, tmp_path / "a")
    shutil.copytree(trained_animals / "run", tmp_path / "b")
    words = ("compare", "a", "b", *RANDOM, *KID, "--reference", "train")
    told = one_object(manege(*words, "--json"))
    shown = {name: [bool(score) for score in row] for name, row in told["scores"].items()}
    assert list(shown.values()) == [[True, False], [False, True]]
    digits, animals = shown
    assert re.fullmatch(r"kid@random-\w+ vs digits-[0-9a-f]{8}", digits)
    assert re.fullmatch(r"kid@random-\w+ vs animals-[0-9a-f]{8}", animals)
    table = manege(*words, "--force").out
    assert re.search(r"^kid@\S+ vs animals-\w+ +- +\S+ \[", table, re.MULTILINE)


@pytest.mark.full
def test_scores_against_the_same_pictures_are_in_one_row_whatever_the_runs_learned(
    evaluated: Path, trained_animals: Path, manege: Command, tmp_path: Path
) -> None:
    shutil.copytree(evaluated, tmp_path / "a")
    shutil.copytree(trained_animals / "run", tmp_path / "b")
    write_class(tmp_path / "photos", 20)
    told = one_object(manege("compare", "a", "b", "--data", "photos", *KID, "--json"))
    [row] = told["scores"].values()
    assert None not in row


@pytest.mark.full
def test_a_comparison_makes_the_folder_it_goes_into(
    pair: tuple[str, str], manege: Command, tmp_path: Path
) -> None:
    done = manege("compare", *pair, "-o", "new/c.png", *KID)
    assert done.code == 0, done.err
    assert (tmp_path / "new" / "c.png").is_file()


# Training.


def test_training_tells_every_score_and_the_best_so_far(scored: Path) -> None:
    told = events(scored, "score")
    assert [(event["cell"], event["round"]) for event in told] == [
        (cell, round_) for cell in ("3", "7", "8") for round_ in (1, 2)
    ]
    space = json.loads((scored / "scorer" / "scorer.json").read_text())["name"]
    for event in told:
        assert (event["metric"], event["space"]) == ("kid", space)
        assert event["scores"].keys() == {"raw", "ema"}
        for score in event["scores"].values():
            assert score["low"] <= score["value"] <= score["high"]
            assert event["best"]["value"] <= score["value"]


def test_the_model_has_the_best_of_each_class_and_says_which_it_is(scored: Path) -> None:
    best = {event["cell"]: event["best"] for event in events(scored, "score")}
    tree = json.loads((scored / "model" / "model.json").read_text())
    assert [component["label"] for component in tree["components"]] == list(best)
    for component in tree["components"]:
        told, expected = component["trained"], best[component["label"]]
        assert (told["rounds"], told["weights"]) == (expected["round"], expected["weights"])
        assert told["score"] == {"metric": "kid", **expected}


def test_without_scores_there_are_none(trained: Path) -> None:
    assert events(trained, "score") == []
    assert not (trained / "scorer").exists()
    for component in json.loads((trained / "model" / "model.json").read_text())["components"]:
        told = component["trained"]
        assert (told["rounds"], told["weights"], told["score"]) == (2, "raw", None)


def test_scoring_changes_nothing_in_the_training(trained: Path, scored: Path) -> None:
    losses = [[event["losses"] for event in events(run, "round")] for run in (trained, scored)]
    assert losses[0] == losses[1]


def test_score_none_is_the_same_as_no_score(manege: Command, trained: Path) -> None:
    done = manege("train", "digits", *THREE, "--rounds", "2", "--score", "none", "--out", "run")
    assert done.code == 0, done.err
    shown = [manege("model", "show", path, "--json").json["digest"] for path in ("run", trained)]
    assert shown[0] == shown[1]


@pytest.mark.full
@pytest.mark.parametrize("scorer", ["kept", "gone"])
def test_a_scored_run_goes_on_as_if_never_interrupted(
    scorer: str, manege: Command, stopped: Path, scored: Path
) -> None:
    if scorer == "gone":
        shutil.rmtree(stopped / "scorer")
    done = manege("resume", "stopped", "--json")
    assert one_object(done)["state"] == "finished"
    assert tree(stopped / "model") == tree(scored / "model")
    assert tree(stopped / "scorer") == tree(scored / "scorer")
    kept = ("cell", "round", "scores", "best")
    told = [[[one[k] for k in kept] for one in events(run, "score")] for run in (stopped, scored)]
    assert told[0] == told[1]


@pytest.mark.full
def test_a_longer_run_is_scored_on(manege: Command, scored: Path, tmp_path: Path) -> None:
    shutil.copytree(scored, tmp_path / "run")
    done = manege("resume", "run", "--rounds", "3", "--json")
    assert one_object(done)["rounds"] == {"3": 3, "7": 3, "8": 3}
    assert [event["round"] for event in events(tmp_path / "run", "score")[6:]] == [3, 3, 3]


def test_the_last_round_is_scored_whatever_the_interval(manege: Command, tmp_path: Path) -> None:
    words = ("--classes", "3", "--rounds", "3", *TINY, "--score", "kid", "--score-every", "2")
    done = manege("train", "digits", *words, "--out", "run", "--json")
    assert one_object(done)["state"] == "finished"
    assert [event["round"] for event in events(tmp_path / "run", "score")] == [2, 3]


def test_a_scored_run_is_judged_in_the_space_it_was_scored_in(
    manege: Command, scored: Path, tmp_path: Path
) -> None:
    shutil.copytree(scored, tmp_path / "run")
    space = told_by(manege, "run")["protocol"]["space"]
    assert space == json.loads((scored / "scorer" / "scorer.json").read_text())


@pytest.fixture
def cut_short(stopped: Path) -> Path:
    """The stopped run, killed while it wrote its scorer: the description comes last."""
    (stopped / "scorer" / "scorer.json").unlink()
    return stopped


@pytest.mark.full
def test_a_run_killed_while_it_wrote_its_scorer_writes_it_again(
    manege: Command, cut_short: Path
) -> None:
    done = manege("resume", "stopped")
    assert done.code == 0, done.err
    assert (cut_short / "scorer" / "scorer.json").is_file()


def test_reports_show_scores_nearest_pictures_and_differences(
    manege: Command, evaluated: Path, scored: Path, tmp_path: Path
) -> None:
    done = manege("report", evaluated, "-o", "page.html")
    assert done.code == 0, done.err
    text = (tmp_path / "page.html").read_text()
    assert "held-out pictures of digits" in text
    assert "nearest training pictures" in text
    assert not (evaluated / "report.html").exists()
    done = manege("report", evaluated, scored)
    assert done.code == 0, done.err
    text = (tmp_path / "comparison.html").read_text()
    assert "<code>score.metric</code>" in text
