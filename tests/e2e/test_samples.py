"""The combined sampler from the command line: what is drawn, in which files, and how it lasts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import manege as package
from manege.api import start_run
from manege.config import resolve
from manege.pictures import read_text
from tests.helpers.command import TINY, run_here
from tests.helpers.observers import StopAfter

from .conftest import Command


def draw(manege: Command, source: str | Path, out: str, *args: str) -> None:
    done = manege("sample", source, "-o", out, *args)
    assert done.code == 0, done.err
    assert done.err == ""


def read(path: Path) -> tuple[np.ndarray, list[str]]:
    with np.load(path, allow_pickle=False) as archive:
        return archive["images"], archive["labels"].tolist()


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# What is drawn.


@pytest.mark.parametrize("name", ["out.png", "out.npz"])
def test_the_same_seed_gives_the_same_file(
    name: str, manege: Command, tmp_path: Path, trained: Path
) -> None:
    for place, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        draw(manege, trained, f"{place}/{name}", "-n", "20", "--seed", seed)
    a, b, c = ((tmp_path / place / name).read_bytes() for place in "abc")
    assert a == b
    assert a != c


def test_the_same_seed_gives_the_same_folder(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    for place, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        draw(manege, trained, place, "-n", "20", "--seed", seed)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a") != tree(tmp_path / "c")


def test_the_three_kinds_of_file_hold_the_same_pictures(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    for out in ("a.npz", "a", "a.png"):
        draw(manege, trained, out, "-n", "9")
    images, labels = read(tmp_path / "a.npz")
    sheet = pixels(tmp_path / "a.png")[::7, ::7]  # Tiny pictures are enlarged for the eye.
    entries = json.loads((tmp_path / "a" / "manifest.json").read_text())["pictures"]
    for place, entry in enumerate(entries):
        row, column = divmod(place, 3)
        top, left = 1 + 9 * row, 1 + 9 * column
        picture = pixels(tmp_path / "a" / entry["file"])
        np.testing.assert_array_equal(picture, images[place, :, :, 0])
        np.testing.assert_array_equal(picture, sheet[top : top + 8, left : left + 8])
        assert entry["label"] == labels[place]


def test_the_first_pictures_do_not_depend_on_how_many_follow(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "few.npz", "-n", "10")
    draw(manege, trained, "many.npz", "-n", "40")
    few, few_labels = read(tmp_path / "few.npz")
    many, many_labels = read(tmp_path / "many.npz")
    np.testing.assert_array_equal(few, many[:10])
    assert few_labels == many_labels[:10]


def test_a_label_s_pictures_do_not_depend_on_how_labels_are_chosen(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "alone.npz", "-n", "40", "--label", "7")
    draw(manege, trained, "mixed.npz", "-n", "90")
    alone, labels = read(tmp_path / "alone.npz")
    mixed, mixed_labels = read(tmp_path / "mixed.npz")
    assert set(labels) == {"7"}
    sevens = mixed[[label == "7" for label in mixed_labels]]
    np.testing.assert_array_equal(sevens, alone[: len(sevens)])


def test_balanced_is_equally_many_of_each_with_the_rest_on_the_first(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "a.npz", "-n", "10", "--balanced")
    _, labels = read(tmp_path / "a.npz")
    assert labels == ["3"] * 4 + ["7"] * 3 + ["8"] * 3


def proportions_fit(labels: list[str], expected: dict[str, float]) -> None:
    """Every share lies within four standard deviations of what it should be."""
    assert set(labels) == {label for label, p in expected.items() if p}
    for label, p in expected.items():
        spread = 4 * np.sqrt(len(labels) * p * (1 - p))
        assert abs(labels.count(label) - len(labels) * p) <= spread


def test_weights_decide_the_proportions(manege: Command, tmp_path: Path, trained: Path) -> None:
    draw(manege, trained, "a.npz", "-n", "2000", "--weights", "3=3, 8=1")
    proportions_fit(read(tmp_path / "a.npz")[1], {"3": 0.75, "8": 0.25, "7": 0.0})


def test_without_being_told_labels_follow_the_training_data(
    manege: Command, tmp_path: Path, trained_animals: Path
) -> None:
    draw(manege, trained_animals / "run", "a.npz", "-n", "2000")
    proportions_fit(read(tmp_path / "a.npz")[1], {"cat": 18 / 54, "dog": 36 / 54})


# Where it is written.


def test_a_sheet_carries_its_recipe(manege: Command, tmp_path: Path, trained: Path) -> None:
    draw(manege, trained, "a.png", "-n", "5", "--seed", "11")
    digest = manege("model", "show", trained, "--json").json["digest"]
    draw(manege, trained, "a.npz", "-n", "5", "--seed", "11")
    text = read_text(tmp_path / "a.png")
    assert (text["model"], text["seed"]) == (digest, "11")
    assert json.loads(text["labels"]) == read(tmp_path / "a.npz")[1]


def test_every_picture_of_a_folder_carries_its_recipe(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "a", "-n", "12", "--seed", "11")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert manifest["seed"] == "11"
    assert len(manifest["pictures"]) == 12
    for entry in manifest["pictures"]:
        text = read_text(tmp_path / "a" / entry["file"])
        assert text == {
            "model": manifest["model"],
            "seed": "11",
            "label": entry["label"],
            "index": str(entry["index"]),
        }


def test_a_folder_of_samples_can_be_trained_on(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "a", "-n", "60", "--balanced")
    told = manege("data", "check", "a", "--json").json
    assert [(entry["label"], entry["train"]) for entry in told["classes"]] == [
        ("3", 18),
        ("7", 18),
        ("8", 18),
    ]
    assert (told["size"], told["channels"], told["broken"]) == (8, 1, [])
    done = manege("train", "a", "--rounds", "1", *TINY, "--out", "again", "--json")
    assert done.json["rounds"] == {"3": 1, "7": 1, "8": 1}


def test_a_folder_of_samples_has_the_labels_of_its_model(manege: Command, tmp_path: Path) -> None:
    labels = ["Ankle boot", "naïve 猫", "..hidden", "t-shirt"]
    images = np.random.default_rng(0).integers(0, 256, (48, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.repeat(labels, 12))
    assert manege("train", "a.npz", "--rounds", "1", *TINY, "--out", "run").code == 0
    draw(manege, "run", "drawn", "-n", "8", "--balanced")
    told = manege("data", "check", "drawn", "--json").json
    found = {entry["label"] for entry in told["classes"]}
    assert {"Ankle boot", "naïve 猫", "t-shirt"} < found
    # A hidden folder would be no class at all.
    assert len(found) == 4


def test_force_replaces_only_what_sample_wrote(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "a", "-n", "30", "--balanced")
    (tmp_path / "a" / "3" / "mine.png").write_bytes(b"precious")
    (tmp_path / "a" / "notes.txt").write_text("precious")
    draw(manege, trained, "a", "-n", "4", "--label", "7", "--force")
    assert sorted(tree(tmp_path / "a")) == [
        "3/mine.png",
        *(f"7/{index:06d}.png" for index in range(4)),
        "manifest.json",
        "notes.txt",
    ]
    assert (tmp_path / "a" / "3" / "mine.png").read_bytes() == b"precious"


def test_a_replaced_folder_has_no_empty_classes(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "a", "-n", "30", "--balanced")
    draw(manege, trained, "a", "-n", "20", "--label", "7", "--force")
    told = manege("data", "check", "a", "--json").json
    assert [entry["label"] for entry in told["classes"]] == ["7"]
    assert told["problems"] == []


def test_force_replaces_a_file(manege: Command, tmp_path: Path, trained: Path) -> None:
    (tmp_path / "a.png").write_text("old")
    draw(manege, trained, "a.png", "-n", "4", "--force")
    assert pixels(tmp_path / "a.png").shape == (7 * 19, 7 * 19)


@pytest.mark.parametrize("name", ["../precious.png", "a/../../precious.png", "ABSOLUTE"])
def test_a_manifest_cannot_make_force_delete_outside_the_folder(
    name: str, manege: Command, tmp_path: Path, trained: Path
) -> None:
    precious = tmp_path / "precious.png"
    precious.write_bytes(b"precious")
    (tmp_path / "a").mkdir()
    entry = {"file": str(precious) if name == "ABSOLUTE" else name}
    (tmp_path / "a" / "manifest.json").write_text(json.dumps({"pictures": [entry]}))
    draw(manege, trained, "a", "-n", "4", "--force")
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", '{"pictures": [1]}', '{"pictures": 5}'])
def test_a_foreign_manifest_is_refused(
    content: str, manege: Command, tmp_path: Path, trained: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text(content)
    done = manege("sample", trained, "-o", "a", "--force")
    assert (done.code, done.out) == (2, "")
    assert done.err == "manege: a/manifest.json: not written by `manege sample`\n"
    assert tree(tmp_path / "a") == {"manifest.json": content.encode()}


# Mixtures: several generators draw one label.

CELLS = {"0-0": 0.5, "0-1": 0.2, "1-0": 0.3}


@pytest.fixture
def mixture(model: Path) -> Path:
    """The model's three generators as one mixture for all the data, put together by hand."""
    path = model / "model.json"
    described = json.loads(path.read_text())
    described["format"] = 2
    for entry, (cell, weight) in zip(described["components"], CELLS.items(), strict=True):
        entry.update(label="all", cell=cell, weight=weight)
    path.write_text(json.dumps(described))
    return model


def test_a_mixture_is_drawn_in_exact_proportion_unless_told_otherwise(
    manege: Command, tmp_path: Path, mixture: Path
) -> None:
    draw(manege, mixture, "a.npz", "-n", "50")
    draw(manege, mixture, "exact.npz", "-n", "50", "--mixing", "exact")
    draw(manege, mixture, "chance.npz", "-n", "50", "--mixing", "independent")
    a, exact, chance = ((tmp_path / f"{n}.npz").read_bytes() for n in ("a", "exact", "chance"))
    assert a == exact
    assert a != chance
    assert set(read(tmp_path / "a.npz")[1]) == {"all"}


@pytest.mark.parametrize("mixing", ["exact", "independent"])
def test_a_mixture_s_first_pictures_do_not_depend_on_how_many_follow(
    mixing: str, manege: Command, tmp_path: Path, mixture: Path
) -> None:
    draw(manege, mixture, "few.npz", "-n", "10", "--mixing", mixing)
    draw(manege, mixture, "many.npz", "-n", "40", "--mixing", mixing)
    few, many = (read(tmp_path / name)[0] for name in ("few.npz", "many.npz"))
    np.testing.assert_array_equal(few, many[:10])


def test_the_recipe_of_a_mixture_s_pictures_says_how_they_were_mixed(
    manege: Command, tmp_path: Path, mixture: Path, trained: Path
) -> None:
    for mixing in ("exact", "independent"):
        draw(manege, mixture, f"{mixing}.png", "-n", "4", "--mixing", mixing)
        assert read_text(tmp_path / f"{mixing}.png")["mixing"] == mixing
        draw(manege, mixture, mixing, "-n", "4", "--mixing", mixing)
        manifest = json.loads((tmp_path / mixing / "manifest.json").read_text())
        assert manifest["mixing"] == mixing
        for entry in manifest["pictures"]:
            assert read_text(tmp_path / mixing / entry["file"])["mixing"] == mixing
    draw(manege, trained, "plain.png", "-n", "4", "--mixing", "exact")
    assert "mixing" not in read_text(tmp_path / "plain.png")


@pytest.mark.parametrize("mixing", ["exactly", "", "INDEPENDENT"])
def test_an_unknown_mixing_is_refused_in_one_line(
    mixing: str, manege: Command, tmp_path: Path, mixture: Path
) -> None:
    done = manege("sample", mixture, "-o", "a.png", "--mixing", mixing)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"manege: --mixing {mixing!r}: expected exact or independent\n"
    assert not (tmp_path / "a.png").exists()


def test_mixing_is_refused_where_no_label_has_several_generators(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    done = manege("sample", trained, "-o", "a.png", "--mixing", "independent")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "manege: --mixing independent: found one generator a label, expected a label with several "
        "to mix; leave --mixing out\n"
    )
    assert not (tmp_path / "a.png").exists()


def test_a_mixture_is_shown_with_its_cells_and_weights(manege: Command, mixture: Path) -> None:
    [entry] = manege("model", "show", mixture, "--json").json["labels"]
    assert (entry["label"], entry["p"]) == ("all", 1.0)
    assert {one["cell"]: one["weight"] for one in entry["mixture"]} == pytest.approx(CELLS)
    assert all(one["trained"]["rounds"] == 2 for one in entry["mixture"])
    assert manege("model", "show", mixture).out.splitlines()[1:] == [
        "  all                  p 1.0000  a mixture of 3",
        "    cell 0-0           w 0.5000  2 rounds, preset paper",
        "    cell 0-1           w 0.2000  2 rounds, preset paper",
        "    cell 1-0           w 0.3000  2 rounds, preset paper",
    ]


def test_a_mixture_merged_and_dropped_again_draws_the_same(
    manege: Command, tmp_path: Path, mixture: Path, trained: Path
) -> None:
    chance = ("--label", "all", "--mixing", "independent")
    draw(manege, mixture, "before.npz", *chance)
    assert manege("model", "merge", trained, mixture, "-o", "both").code == 0
    assert len(list((tmp_path / "both").glob("*.safetensors"))) == 6
    draw(manege, "both", "both.npz", *chance)
    others = ("--class", "3", "--class", "7", "--class", "8")
    assert manege("model", "drop", "both", *others, "-o", "again").code == 0
    draw(manege, "again", "again.npz", *chance)
    drawn = [(tmp_path / f"{name}.npz").read_bytes() for name in ("before", "both", "again")]
    assert drawn[0] == drawn[1] == drawn[2]
    assert manege("model", "drop", "both", "--class", "all", "-o", "rest").code == 0
    assert len(list((tmp_path / "rest").glob("*.safetensors"))) == 3
    digests = [manege("model", "show", path, "--json").json["digest"] for path in ("rest", trained)]
    assert digests[0] == digests[1]


# How it lasts.


def test_an_exported_model_outlives_its_run(manege: Command, tmp_path: Path, run: Path) -> None:
    draw(manege, "run", "a.npz", "-n", "50")
    assert manege("export", "run", "-o", "model").code == 0
    shutil.rmtree(run)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "model").rename(tmp_path / "elsewhere" / "m")
    draw(manege, "elsewhere/m", "b.npz", "-n", "50")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.full
def test_a_new_process_draws_the_same(
    manege: Command, manege_process: Command, tmp_path: Path, model: Path
) -> None:
    draw(manege, "model", "a.npz", "-n", "40")
    assert manege_process("sample", "model", "-n", "40", "-o", "b.npz").code == 0
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_dropping_and_merging_leave_the_other_classes_pictures_alone(
    manege: Command, tmp_path: Path, model: Path
) -> None:
    for label in "378":
        draw(manege, "model", f"before-{label}.npz", "-n", "40", "--label", label)
    drop = ("model", "drop", "model")
    assert manege(*drop, "--class", "7", "-o", "less").code == 0
    assert manege(*drop, "--class", "3", "--class", "8", "-o", "seven").code == 0
    assert manege("model", "merge", "seven", "less", "-o", "both").code == 0
    for source, labels in (("less", "38"), ("seven", "7"), ("both", "378")):
        for label in labels:
            draw(manege, source, f"{source}-{label}.npz", "-n", "40", "--label", label)
            after = (tmp_path / f"{source}-{label}.npz").read_bytes()
            assert after == (tmp_path / f"before-{label}.npz").read_bytes()
    shown = [manege("model", "show", name, "--json").json for name in ("model", "both")]
    shares = [{entry["label"]: entry["p"] for entry in one["labels"]} for one in shown]
    assert shares[0] == pytest.approx(shares[1])


def test_merging_the_models_of_two_runs_keeps_both_runs_pictures(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    other = ("--classes", "5", "--rounds", "1", "--seed", "9", *TINY, "--out", "other")
    assert manege("train", "digits", *other).code == 0
    assert manege("model", "merge", trained, "other", "-o", "both").code == 0
    for source, label in ((trained, "8"), (tmp_path / "other", "5")):
        draw(manege, source, "a.npz", "--label", label, "--force")
        draw(manege, "both", "b.npz", "--label", label, "--force")
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was stopped in its second class of three."""
    config = resolve(
        preset="paper",
        flags={
            "data.source": "digits",
            "data.classes": ["3", "7", "8"],
            "rounds": 2,
            "networks.kind": "mlp",
            "networks.hidden": 16,
            "training.batch": 32,
        },
    )
    # Three questions while decoding, twelve steps of the first class, some of the second.
    run = start_run(config, out=tmp_path / "stopped", observer=StopAfter(3 + 12 + 8))
    assert run.outcome.state == "stopped"
    return run.path


def test_a_stopped_run_draws_what_it_has_and_names_what_it_lacks(
    manege: Command, tmp_path: Path, stopped: Path
) -> None:
    done = manege("sample", "stopped", "-n", "20", "-o", "a.npz", "--json")
    assert done.code == 0
    [line] = done.err.splitlines()
    assert "(not trained yet)" in line
    [missing] = done.json["missing"]
    assert repr(missing) in line
    assert set(read(tmp_path / "a.npz")[1]) == {"3", "7", "8"} - {missing}
    refused = manege("sample", "stopped", "--label", missing, "-o", "b.npz")
    assert refused.code == 2
    assert f"label {missing!r}: missing from this model (not trained yet)" in refused.err
    exported = manege("export", "stopped", "-o", "model", "--json").json
    assert exported["missing"] == {missing: "not trained yet"}


def test_a_stopped_run_resumed_draws_as_if_never_stopped(
    manege: Command, tmp_path: Path, stopped: Path, trained: Path
) -> None:
    assert manege("resume", "stopped").code == 0
    draw(manege, "stopped", "a.npz")
    draw(manege, trained, "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


# The same from Python.


def test_python_draws_what_the_command_draws(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    draw(manege, trained, "a.npz", "-n", "10", "--seed", "3")
    model = package.load_model(trained)
    drawn = package.sample(model, 10, seed=3)
    by_path = package.sample(str(trained), 10, seed=3)
    images, labels = read(tmp_path / "a.npz")
    np.testing.assert_array_equal(drawn.pictures, images)
    np.testing.assert_array_equal(by_path.pictures, images)
    assert list(drawn.labels) == labels
    assert model.labels == ("3", "7", "8")


def test_python_trains_exports_and_resumes(tmp_path: Path, trained: Path) -> None:
    run = package.train(
        "digits",
        preset="paper",
        out=tmp_path / "run",
        rounds=1,
        data__classes=["3", "7", "8"],
        networks__kind="mlp",
        networks__hidden=16,
        training__batch=32,
    )
    assert run.outcome.state == "finished"
    run = package.resume(run.path, rounds=2)
    exported = package.export(run.path, tmp_path / "model")
    assert exported.digest == run.model.digest == package.load_model(trained).digest


def test_every_public_name_is_there() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) >= {"train", "resume", "sample", "export", "load_model"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_failures_in_python_are_exceptions_with_the_same_words(tmp_path: Path) -> None:
    from manege.errors import ManegeError

    said = run_here("sample", "nowhere", "-o", "a.png", cwd=tmp_path).err
    with pytest.raises(ManegeError) as caught:
        package.load_model("nowhere")
    assert said == f"manege: {caught.value}\n"


def test_models_are_joined_and_thinned_in_python_too(tmp_path: Path, trained: Path) -> None:
    whole = package.load_model(trained)
    package.save_model(whole.without(["3"]), tmp_path / "less")
    package.save_model(whole.without(["7", "8"]), tmp_path / "three")
    less, three = (package.load_model(tmp_path / name) for name in ("less", "three"))
    joined = less.merged(three)
    assert set(joined.labels) == set(whole.labels)
    for label in whole.labels:
        np.testing.assert_array_equal(joined.pictures_of(label, 5), whole.pictures_of(label, 5))
