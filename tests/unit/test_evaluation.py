"""`manege.evaluate`: any pictures against any others, and the answer with its whole protocol."""

from __future__ import annotations

import json
import shutil
from math import exp
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.tiny import TINY

import manege
from manege.cli.flags import FLAGS
from manege.config import DataConfig
from manege.data import PictureSet, Split, open_dataset, set_of
from manege.errors import CheckpointError, ConfigError, DataError, ManegeError, fields_named
from manege.evaluation import Evaluation, EvaluationOptions
from manege.evaluation import evaluate as evaluate_and_tell
from manege.metrics import Space, feature_weights, lite0_space, load_space, random_space
from manege.sampler import Model, Samples

THREE = ("3", "7", "8")
pytestmark = pytest.mark.usefixtures("score_cache")

SMALL = TINY | {
    "data__classes": list(THREE),
    "data__limit_per_class": 40,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run on three digits; not to be changed."""
    return manege.train("digits", out=tmp_path_factory.mktemp("evaluated") / "run", **SMALL).path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="module")
def held_out() -> PictureSet:
    return set_of(open_dataset(DataConfig(source="digits", classes=THREE)), Split.HELD_OUT)


@pytest.fixture(scope="module")
def train() -> PictureSet:
    return set_of(open_dataset(DataConfig(source="digits", classes=THREE)), Split.TRAIN)


def samples(pictures: PictureSet) -> Samples:
    return Samples(pictures.pictures, pictures.labels, tuple(range(len(pictures))))


def lite0(size: int, channels: int) -> Space:
    return lite0_space(size, channels, feature_weights())


def noise(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def values(evaluation: Evaluation) -> dict[tuple[str, str | None], float]:
    return {(one.full_name, one.label): one.value for one in evaluation.scores}


# Good and bad pictures.


@pytest.mark.full
def test_real_pictures_against_themselves_score_as_well_as_can_be(held_out):
    found = manege.evaluate(samples(held_out), "digits", classes=THREE, allow_few_samples=True)
    # Unbiased: what every picture has in common with its copy takes it below 0.
    assert found.score("kid").low < found.score("kid").value <= 0
    assert found.score("fd").value < 1e-6
    for name in ("precision", "recall", "coverage"):
        assert found.score(name).value == 1
    # A network may err on some of 53 that it never saw; labels that do not fit agree in a third.
    assert found.score("label-tvd").value < 0.1
    assert found.score("label-modes").value == 3
    assert found.score("agreement").value > 0.9
    assert found.score("nearest-held-out").value == 0
    assert found.score("nearer-to-train").value == 0


def test_noise_scores_far_worse_than_real_pictures(train):
    bad = manege.evaluate(noise(200, 8, 8, 1), "digits", features="random")
    good = manege.evaluate(train.pictures, "digits", features="random")
    assert bad.score("kid").low > 10 * abs(good.score("kid").value)
    assert bad.score("kid").low > bad.score("kid").floor.high
    assert bad.score("precision").value < 0.1 < 0.9 < good.score("precision").value
    assert bad.score("nearest-held-out").low > 2 * good.score("nearest-held-out").high


def test_the_floor_is_what_real_pictures_get_in_the_same_place(train):
    """More noise than there are training pictures: all of those make its floor."""
    floors = manege.evaluate(noise(1000, 8, 8, 1), "digits", features="random")
    real = manege.evaluate(
        set_of(open_dataset(DataConfig(source="digits")), Split.TRAIN, 1000).pictures,
        "digits",
        features="random",
    )
    floor, score = floors.score("kid").floor, real.score("kid")
    assert floor.low <= score.value <= floor.high
    assert floor.value < 0.05 * floors.score("kid").value
    exact = manege.evaluate(noise(2000, 8, 8, 1), "digits", features="random", metrics=["kid"])
    everything = set_of(open_dataset(DataConfig(source="digits")), Split.TRAIN).pictures
    whole = manege.evaluate(everything, "digits", features="random", metrics=["kid"])
    assert exact.score("kid").floor.value == pytest.approx(whole.score("kid").value, abs=1e-8)


def test_the_training_split_may_be_the_reference(train):
    found = manege.evaluate(
        samples(train), "digits", classes=THREE, features="random", reference="train"
    )
    assert {one.split for one in found.scores} == {"train"}
    assert found.score("kid").reference == len(train)
    assert found.score("kid").value <= 0
    assert found.score("recall").value == found.score("precision").value == 1


# Order and repetition.


def test_the_order_of_the_pictures_does_not_matter_but_for_rounding(train):
    mixed = train.pictures[np.random.default_rng(0).permutation(len(train))]
    one, other = (
        manege.evaluate(
            pictures, "digits", features="random", metrics=["kid", "fd"], allow_few_samples=True
        )
        for pictures in (train.pictures, mixed)
    )
    for name in ("kid", "fd"):
        assert other.score(name).value == pytest.approx(one.score(name).value, rel=1e-5, abs=1e-7)
    assert one.protocol["subject"]["digest"] != other.protocol["subject"]["digest"]


@pytest.mark.full
def test_the_same_subject_twice_gives_the_same_numbers_to_the_bit(trained):
    model = manege.load_model(trained)
    one, other = (
        manege.evaluate(model, "digits", classes=THREE, per_class=True, samples=300)
        for _ in range(2)
    )
    assert one == other
    drawn = model.sample(100, seed=5)
    one, other = (manege.evaluate(drawn, "digits", classes=THREE) for _ in range(2))
    assert one == other


def test_a_seed_draws_other_pictures(trained):
    model = manege.load_model(trained)
    one, other = (
        manege.evaluate(model, "digits", classes=THREE, features="random", samples=50, seed=seed)
        for seed in (0, 1)
    )
    assert one.score("kid").value != other.score("kid").value
    assert (one.score("kid").seed, other.score("kid").seed) == (0, 1)


# Whatever can be judged.


def as_folder(drawn: Samples, folder: Path) -> Path:
    for number, (picture, label) in enumerate(zip(drawn.pictures, drawn.labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[:, :, 0]).save(folder / label / f"{number}.png")
    return folder


def as_flat_folder(drawn: Samples, folder: Path) -> Path:
    folder.mkdir()
    for number, picture in enumerate(drawn.pictures):
        Image.fromarray(picture[:, :, 0]).save(folder / f"{number}.png")
    return folder


def as_npz(drawn: Samples, path: Path) -> Path:
    np.savez(path, images=drawn.pictures, labels=np.array(drawn.labels))
    return path


def test_the_same_pictures_score_the_same_however_they_are_given(run, tmp_path):
    model = manege.load_model(run)
    drawn = model.sample(120, seed=0)
    subjects = {
        "Samples": drawn,
        "array": drawn.pictures,
        "array without channels": drawn.pictures[..., 0],
        "Model": model,
        "run": run,
        "run as text": str(run),
        "model folder": run / "model",
        "folder of classes": as_folder(drawn, tmp_path / "classes"),
        "folder of pictures": as_flat_folder(drawn, tmp_path / "pictures"),
        "npz": as_npz(drawn, tmp_path / "drawn.npz"),
    }
    found = {}
    for name, subject in subjects.items():
        labelled = name not in ("array", "array without channels", "folder of pictures")
        evaluation = manege.evaluate(
            subject,
            "digits",
            classes=THREE if labelled else None,
            features="random",
            samples=120,
            metrics=["kid", "prdc"],
        )
        kid = evaluation.score("kid")
        assert kid.generated == 120
        assert kid.reference == (53 if labelled else 179)
        found[name, labelled] = kid.value
    for labelled in (True, False):
        same = [value for (_, one), value in found.items() if one is labelled]
        assert same == pytest.approx([same[0]] * len(same), rel=1e-6)


@pytest.mark.full
def test_a_folder_or_an_array_may_be_the_reference_too(held_out, train, tmp_path):
    folder = as_flat_folder(samples(held_out), tmp_path / "pictures")
    by_array = manege.evaluate(train.pictures, held_out.pictures)
    by_folder = manege.evaluate(train.pictures, folder)
    assert by_array.score("kid").value == pytest.approx(by_folder.score("kid").value, rel=1e-5)
    for found in (by_array, by_folder):
        assert found.score("kid").space == lite0(8, 1).name
        assert found.score("kid").split == "all"
        assert found.score("kid").floor is None
        assert {"labels", "nearest"} <= set(found.left_out)


@pytest.mark.full
def test_a_run_is_compared_with_its_own_data(run):
    found = manege.evaluate(run, samples=200)
    assert found.protocol["reference"]["name"] == "digits"
    assert found.protocol["reference"]["classes"] == list(THREE)
    assert found.score("kid").reference == 53
    assert found.protocol["space"] == lite0(8, 1).description()
    # The classifier is that of the whole source: runs on other classes share it.
    assert len(found.protocol["labeller"]["labels"]) == 10
    assert found.score("agreement").space == found.protocol["labeller"]["name"]


# Spaces.


def test_numbers_of_two_spaces_bear_different_names(train):
    one, other = (
        manege.evaluate(samples(train), "digits", classes=THREE, features=kind)
        for kind in ("classifier", "random")
    )
    names = [
        {score.full_name for score in found.scores if score.space != "pixels"}
        for found in (one, other)
    ]
    assert not names[0] & names[1]
    assert one.score("kid").full_name.startswith("kid@classifier-")
    assert other.score("kid").full_name == f"kid@{random_space(8, 1).name}"
    # What is told of pixels has nothing to do with the space.
    assert one.score("nearest-train") == other.score("nearest-train")


def test_a_runs_classifier_serves_other_pictures_of_the_same_data(run, train):
    first = manege.evaluate(run, samples=100)
    own = load_space(run / "classifier")
    assert first.score("agreement").space_sha256 == own.sha256
    found = manege.evaluate(
        samples(train), "digits", classes=THREE, features=str(run / "classifier"), metrics=["kid"]
    )
    assert found.score("kid").space_sha256 == own.sha256


def test_a_scorer_of_other_data_is_refused(run, train, tmp_path):
    manege.evaluate(run, samples=100)
    data = as_npz(samples(train), tmp_path / "other.npz")
    with pytest.raises(ConfigError, match="a scorer of another dataset"):
        manege.evaluate(train.pictures, data, features=str(run / "classifier"))


# The whole protocol.


@pytest.mark.full
def test_every_score_and_the_whole_say_what_they_depend_on(run, train):
    for found in (
        manege.evaluate(run, per_class=True, allow_few_samples=True),
        manege.evaluate(train.pictures, "digits", features="random"),
    ):
        protocol = found.protocol
        for one in found.scores:
            assert one.low <= one.value <= one.high
            assert one.generated > 0
            assert one.reference > 0 or one.name == "is"
            assert one.split == protocol["reference"]["split"] == "held-out"
            assert one.seed == protocol["seed"] == 0
            assert one.definition
            assert one.interval
            known = [protocol["space"], protocol.get("labeller")]
            digests = {space["name"]: space["sha256"] for space in known if space}
            assert one.space_sha256 == (digests | {"pixels": None})[one.space]
        assert protocol["subject"]["digest"]
        assert protocol["reference"]["digest"]
        assert protocol["reference"]["rule"]
        json.dumps(found.as_dict(), allow_nan=False)


# What cannot be said honestly.


def test_a_frechet_distance_of_few_pictures_is_left_out_refused_or_marked(train):
    options = {"classes": THREE, "features": "random"}
    assert "too few" in manege.evaluate(samples(train), "digits", **options).left_out["fd"]
    with pytest.raises(ConfigError, match="metrics fd: 53 reference pictures are too few"):
        manege.evaluate(samples(train), "digits", metrics=["fd"], **options)
    marked = manege.evaluate(
        samples(train), "digits", metrics=["fd"], allow_few_samples=True, **options
    )
    assert marked.score("fd").marks == ("few-samples",)


@pytest.mark.full
def test_a_frechet_distance_of_enough_pictures_is_given_without_a_mark():
    two = noise(1100, 8, 8, 1), noise(1100, 8, 8, 1, seed=1)
    found = manege.evaluate(*two, metrics=["fd"])
    assert found.score("fd").marks == ()
    assert "fd" not in found.left_out


@pytest.mark.parametrize(
    ("subject", "data", "options", "complaint"),
    [
        (noise(20, 8, 8, 1) / 255, "digits", {}, "expected uint8"),
        (noise(20, 8, 6, 1), "digits", {}, "square"),
        (noise(20, 8, 8, 3), "digits", {}, "8x8x3, but digits has 8x8x1"),
        (noise(20, 16, 16, 1), "digits", {}, "16x16x1, but digits has 8x8x1"),
        (noise(3, 8, 8, 1), "digits", {}, "array: 3 .*pictures.*at least 8"),
        (noise(20, 8, 8, 1), noise(3, 8, 8, 1), {}, "array: 3 .*pictures.*at least 8"),
        (noise(20, 8, 8, 1), None, {}, "give data"),
        (noise(20, 8, 8, 1), "digits", {"samples": 21}, "20 pictures, but samples 21"),
        (noise(20, 8, 8, 1), "digits", {"samples": 0}, "expected at least 1"),
        (noise(20, 8, 8, 1), "digits", {"metrics": ["fid"]}, "metrics fid: not known"),
        (noise(20, 8, 8, 1), "digits", {"metrics": ["modes"]}, "metrics modes: only the toys"),
        (noise(20, 8, 8, 1), "digits", {"reference": "test"}, "expected held-out or train"),
        (noise(20, 8, 8, 1), "digits", {"classes": THREE}, "no labels"),
        (noise(20, 8, 8, 1), "digits", {"per_class": True}, "no labels"),
        (noise(20, 8, 8, 1), "digits", {"features": "vgg"}, "expected auto"),
        (noise(20, 8, 8, 1), noise(20, 8, 8, 1), {"features": "classifier"}, "no labels"),
        (noise(20, 8, 8, 1), "digits", {"features": "mnist-logits"}, "where is"),
        (noise(20, 8, 8, 1), "digits", {"feature": "random"}, "no such option"),
        ("nowhere", "digits", {}, "no such file or folder"),
    ],
)
def test_what_makes_no_sense_is_one_line(subject, data, options, complaint):
    with pytest.raises(ManegeError, match=complaint) as told:
        manege.evaluate(subject, data, **options)
    assert len(str(told.value).splitlines()) == 1


def test_a_model_without_one_of_the_classes_is_refused_with_the_way_out(trained):
    model = manege.load_model(trained)
    with pytest.raises(ConfigError, match="classes 3,7,8"):
        manege.evaluate(model, "digits")
    with pytest.raises(ConfigError, match="no class '7'"):
        manege.evaluate(model.without(["7"]), "digits", classes=THREE)
    found = manege.evaluate(
        model.without(["7"]), "digits", classes=["3", "8"], features="random", samples=50
    )
    assert found.protocol["reference"]["classes"] == ["3", "8"]


# Classes and labels.


@pytest.mark.full
def test_classes_are_scored_one_by_one(train, trained):
    found = manege.evaluate(samples(train), "digits", classes=THREE, per_class=True)
    assert {one.label for one in found.scores} == {None, *THREE}
    for label in THREE:
        own = found.score("kid", label)
        assert own.generated == train.labels.count(label)
        assert own.floor is not None
        alone = manege.evaluate(samples(train), "digits", classes=[label], metrics=["kid"])
        assert own.value == pytest.approx(alone.score("kid").value, rel=1e-6, abs=1e-7)
    # A model draws as many more as it takes.
    few = manege.evaluate(
        manege.load_model(trained), "digits", classes=THREE, per_class=True, samples=20
    )
    assert {few.score("kid", label).generated for label in THREE} == {100}
    assert few.score("kid").generated == 20


@pytest.mark.full
def test_a_missing_class_shows_in_the_labels(train):
    rows = np.flatnonzero(np.array(train.labels) != "7")
    lacking = Samples(train.pictures[rows], tuple(train.labels[k] for k in rows), tuple(rows))
    whole, found = (
        manege.evaluate(one, "digits", classes=THREE, metrics=["labels"])
        for one in (samples(train), lacking)
    )
    share = 18 / 53
    assert whole.score("label-modes").value == found.score("label-modes").value + 1 == 3
    assert whole.score("label-tvd").value < 0.05
    assert found.score("label-tvd").value == pytest.approx(share, abs=0.05)


# Toys.


@pytest.mark.full
@pytest.mark.parametrize(("name", "modes"), [("ring8", 8), ("grid25", 25)])
def test_a_toys_own_points_hit_every_mode_and_one_modes_points_one(name, modes):
    dataset = open_dataset(DataConfig(source=name))
    points = set_of(dataset, Split.HELD_OUT)
    found = manege.evaluate(points.pictures, name)
    assert found.score("modes").value == modes
    assert found.score("high-quality").value == pytest.approx(1 - exp(-4.5), abs=0.006)
    assert {one.space for one in found.scores} == {"points"}
    lost = manege.evaluate(dataset.pictures("3", Split.TRAIN), name)
    assert lost.score("modes").value == 1
    assert lost.score("high-quality").value > 0.97
    assert lost.score("fd").low > 0.1 > found.score("fd").high


# What a run keeps.


def told(subject, **options) -> tuple[Evaluation, list[str]]:
    said: list[str] = []
    return evaluate_and_tell(subject, None, EvaluationOptions(**options), say=said.append), said


def test_a_run_keeps_its_evaluation_and_finds_it_again(run):
    first, said = told(run, samples=100, per_class=True)
    assert first.file.parent == run / "evaluations"
    assert not [line for line in said if "evaluated before" in line]
    written = first.file.read_bytes()
    assert json.loads(written)["scores"]
    again, said = told(run, samples=100, per_class=True)
    assert again == first
    assert said == [f"evaluated before: {first.file}"]
    assert first.file.read_bytes() == written
    (sheet,) = (run / "evaluations").glob("*-nearest.png")
    assert sheet.name.startswith(first.file.stem)


def test_what_was_kept_is_told_in_the_words_of_who_asks(run):
    """Fields and flags, whoever asked first; the file stays as it is."""
    with fields_named(FLAGS):
        first, _ = told(run, samples=100, features="random")
    written = first.file.read_bytes()
    assert "--allow-few-samples" in first.left_out["fd"]
    again, said = told(run, samples=100, features="random")
    assert said == [f"evaluated before: {first.file}"]
    assert "; use kid, or allow_few_samples" in again.left_out["fd"]
    with fields_named(FLAGS):
        assert told(run, samples=100, features="random")[0] == first
    assert first.file.read_bytes() == written


def test_a_run_that_was_moved_finds_its_evaluation_too(run, tmp_path):
    first, _ = told(run, samples=100)
    moved = Path(shutil.move(run, tmp_path / "elsewhere"))
    again, said = told(moved, samples=100)
    assert "evaluated before" in said[0]
    assert again.scores == first.scores
    assert again.file.parent == moved / "evaluations"


@pytest.mark.full
def test_another_question_is_answered_anew(run):
    files = {
        manege.evaluate(run, **{"samples": 100, "features": "random", **options}).file
        for options in (
            {},
            {"samples": 101},
            {"seed": 1},
            {"per_class": True},
            {"metrics": ["kid"]},
            {"reference": "train"},
            {"classes": ["3", "7"]},
            {"allow_few_samples": True},
            {"features": "auto"},
        )
    }
    assert len(files) == 9
    # The run saw forty pictures of each class; held against all there are, floors are others.
    wider = manege.evaluate(run, "digits", classes=THREE, samples=100, features="random")
    assert wider.file not in files


def test_a_model_that_has_been_trained_further_is_evaluated_anew(run):
    first, _ = told(run, samples=50, features="random")
    manege.resume(run, rounds=2)
    later, said = told(run, samples=50, features="random")
    assert not said
    assert later.file != first.file
    assert later.score("kid").value != first.score("kid").value


DAMAGES = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "a list": lambda text: "[]",
    "no scores": lambda text: text.replace('"scores"', '"other"'),
    "a field lost": lambda text: text.replace('"interval"', '"intervall"'),
    "a word for a number": lambda text: text.replace('"generated":', '"generated":"many","x":'),
    "left_out is a list": lambda text: text.replace('"left_out"', '"left_out":["a"],"x"'),
    "deep": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_evaluation_is_one_line_with_the_remedy(run, damage):
    first, _ = told(run, samples=30, features="random", metrics=("kid",))
    text = first.file.read_text()
    assert damage(text) != text
    first.file.write_text(damage(text))
    with pytest.raises(CheckpointError, match="delete it") as caught:
        told(run, samples=30, features="random", metrics=("kid",))
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(str(first.file))
    first.file.unlink()
    again, _ = told(run, samples=30, features="random", metrics=("kid",))
    assert again == first


def test_a_model_keeps_nothing(run):
    found = manege.evaluate(run / "model", "digits", classes=THREE, features="random", samples=30)
    assert found.file is None
    assert not (run / "evaluations").exists()
    with pytest.raises(KeyError):
        found.score("fid")
    assert isinstance(manege.load_model(run / "model"), Model)
    with pytest.raises(DataError):
        found = manege.evaluate(run / "samples", "digits", features="random")
