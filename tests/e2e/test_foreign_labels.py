"""Labels from elsewhere, and links: nothing is written outside the folder that was asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manege.runs import RunDir, cell_folder
from tests.helpers.command import TINY, Done

from .conftest import Command

NO_LABELS = [
    *(
        "",
        " ",
        ".",
        "..",
        " .. ",
        "/",
        "../x",
        "/x",
        "a/b",
        "a\\b",
        "\0",
        "a\0",
        "a\nb",
        "\x1b[31m",
    ),
    *("x" * 5000, "9" * 5000, "\ud800", "a\udcffb", "\u202e", 3, 1.5, None, True, ["a"], {"a": 1}),
]
LONGEST = "x" * 1000
SAME_FOLDER = ("\u4f16\u4e37", "\u4f16\u4ea4")
"""Two labels whose names of folders are one."""


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def name(model: Path, *labels: object) -> None:
    """Give the components of a model other labels."""

    def change(tree: dict[str, Any]) -> None:
        for entry, label in zip(tree["components"], labels, strict=False):
            entry["label"] = label

    edit(model / "model.json", change)


def everything(folder: Path) -> dict[str, bytes | None]:
    """All that lies below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def assert_refused(done: Done, *says: str) -> None:
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("manege: ")
    assert len(done.err.splitlines()) == 1
    assert len(done.err) < 1000
    for words in says:
        assert words in done.err, done.err


def ids(label: object) -> str:
    return ascii(label)[:20]


# Labels.


@pytest.mark.parametrize("label", NO_LABELS, ids=ids)
@pytest.mark.parametrize("out", ["a.npz", "folder"])
def test_a_model_whose_label_is_none_is_refused(
    label: object, out: str, manege: Command, tmp_path: Path, model: Path
) -> None:
    name(model, label)
    before = everything(tmp_path)
    says = ("model/model.json", "expected text that could name a folder")
    assert_refused(manege("sample", "model", "-n", "6", "--balanced", "-o", out), *says)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("label", ["", "../x", "\0", "x" * 5000], ids=ids)
def test_no_command_takes_such_a_model(
    label: str, manege: Command, tmp_path: Path, model: Path, trained_animals: Path
) -> None:
    name(model, label)
    before = everything(tmp_path)
    for command in (
        ("model", "show", "model"),
        ("model", "merge", trained_animals / "run", "model", "-o", "both"),
        ("model", "drop", "model", "--class", "7", "-o", "less"),
        ("evaluate", "model", "--data", "digits"),
    ):
        assert_refused(manege(*command), "expected text that could name a folder")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("label", ["", "a\nb", "/x"], ids=ids)
def test_a_missing_class_and_a_cell_have_such_names_neither(
    label: str, manege: Command, model: Path
) -> None:
    edit(model / "model.json", lambda tree: tree.update(missing={label: "gone"}))
    assert_refused(manege("model", "show", "model"), "expected text that could name a folder")
    edit(model / "model.json", lambda tree: tree.update(missing={}))
    edit(model / "model.json", lambda tree: tree["components"][0].update(cell=label))
    assert_refused(manege("model", "show", "model"), "expected text that could name a folder")


def test_two_generators_of_a_label_are_refused(manege: Command, model: Path) -> None:
    name(model, "a", "a")
    assert_refused(manege("sample", "model", "-o", "out"), "2 generators of label 'a'")


@pytest.mark.parametrize("file", ["\0", "\ud800", "..", "", "/etc/passwd", "../run/config.yaml"])
def test_a_component_s_file_is_one_of_the_folder(file: str, manege: Command, model: Path) -> None:
    edit(model / "model.json", lambda tree: tree["components"][0].update(file=file))
    assert_refused(manege("sample", "model", "--label", "3", "-o", "a.npz"), "cannot be read")


@pytest.mark.parametrize("label", ["", "..", "a/b", "a\nb", "x" * 5000], ids=ids)
def test_a_run_whose_data_have_no_such_labels_is_refused(
    label: str, manege: Command, tmp_path: Path, run: Path
) -> None:
    shutil.rmtree(run / "model")
    edit(run / "data.json", lambda tree: tree["classes"].update({label: {"train": 9}}))
    before = everything(tmp_path)
    says = ("run/data.json", "expected text that could name a folder")
    for command in (("sample", "run", "-o", "out"), ("export", "run", "-o", "out")):
        assert_refused(manege(*command), *says)
    assert everything(tmp_path) == before


def test_odd_labels_that_may_be_are_drawn_into_the_folder(
    manege: Command, tmp_path: Path, model: Path
) -> None:
    for labels in (
        (" a ", "..hidden", "naïve 猫"),
        (LONGEST, "manifest.json", "A"),
        ("~", "-o", "A"),
    ):
        name(model, *labels)
        before = everything(tmp_path)
        done = manege("sample", "model", "-n", "6", "--balanced", "-o", "out", "--json")
        assert done.code == 0, done.err
        listed = json.loads((tmp_path / "out" / "manifest.json").read_text())["pictures"]
        assert {entry["label"] for entry in listed} == set(labels)
        assert all((tmp_path / "out" / entry["file"]).is_file() for entry in listed)
        assert len(list((tmp_path / "out").glob("*/*.png"))) == 6
        shutil.rmtree(tmp_path / "out")
        assert everything(tmp_path) == before


def test_labels_of_numbers_without_end_are_refused_in_data(manege: Command, tmp_path: Path) -> None:
    images = np.zeros((40, 8, 8), np.uint8)
    for digits, told in ((5000, "strings of at most"), (1010, "cannot be a label")):
        np.savez(tmp_path / "a.npz", images=images, labels=np.repeat(["9" * digits, "b"], 20))
        assert_refused(manege("data", "check", "a.npz"), "a.npz", told)


# Labels that would share a folder.


def test_a_label_that_spells_another_s_folder_is_refused(
    manege: Command, tmp_path: Path, model: Path
) -> None:
    name(model, "..hidden", cell_folder("..hidden"))
    before = everything(tmp_path)
    done = manege("sample", "model", "-n", "6", "--balanced", "-o", "out")
    assert_refused(done, "'..hidden'", "would share the folder", ".npz")
    assert everything(tmp_path) == before
    assert manege("sample", "model", "-n", "6", "-o", "a.npz").code == 0


def test_labels_with_the_same_hash_are_neither_mixed_up_nor_trained(
    manege: Command, tmp_path: Path, model: Path
) -> None:
    assert cell_folder(SAME_FOLDER[0]) == cell_folder(SAME_FOLDER[1])
    name(model, *SAME_FOLDER)
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.repeat(SAME_FOLDER, 20))
    before = everything(tmp_path)
    for command, what in (
        (("model", "drop", "model", "--class", "8", "-o", "less"), "would share the file"),
        (("train", "a.npz", "--rounds", "1", *TINY, "--out", "other"), "would share the folder"),
    ):
        assert_refused(manege(*command), what)
    assert everything(tmp_path) == before


# Links.


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder that no command was asked to write into."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "000000.png").write_text("precious")
    (folder / ".old.tmp").write_text("precious")
    return folder


def test_a_linked_class_folder_is_neither_filled_nor_emptied(
    manege: Command, tmp_path: Path, trained: Path, elsewhere: Path
) -> None:
    sample = ("sample", trained, "-n", "6", "--balanced", "-o", "out")
    assert manege(*sample).code == 0
    shutil.rmtree(tmp_path / "out" / "3")
    (tmp_path / "out" / "3").symlink_to(elsewhere)
    before = everything(elsewhere)
    assert_refused(manege(*sample, "--force"), "out/3", "expected a place below", "elsewhere")
    assert everything(elsewhere) == before
    # Also where the manifest does not speak of it.
    edit(tmp_path / "out" / "manifest.json", lambda tree: tree.update(pictures=[]))
    assert_refused(manege(*sample, "--force"), "out/3", "expected a place below")
    assert everything(elsewhere) == before


def test_a_linked_picture_is_not_written_through(
    manege: Command, tmp_path: Path, trained: Path, elsewhere: Path
) -> None:
    sample = ("sample", trained, "-n", "6", "--balanced", "-o", "out")
    assert manege(*sample).code == 0
    picture = tmp_path / "out" / "3" / "000000.png"
    picture.unlink()
    picture.symlink_to(elsewhere / "000000.png")
    edit(tmp_path / "out" / "manifest.json", lambda tree: tree.update(pictures=[]))
    before = everything(elsewhere)
    assert_refused(manege(*sample, "--force"), "out/3/000000.png", "expected a place below")
    assert everything(elsewhere) == before


@pytest.mark.parametrize(
    "file", ["a/\0.png", "a/\ud800.png", "/etc", "../x/y.png", "..", "a/..", ""]
)
def test_a_manifest_from_elsewhere_removes_nothing(
    file: str, manege: Command, tmp_path: Path, trained: Path, elsewhere: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps({"pictures": [{"file": file}]}))
    before = everything(elsewhere)
    done = manege("sample", trained, "-n", "6", "-o", "out", "--force")
    assert done.code == 0, done.err
    assert everything(elsewhere) == before


@pytest.mark.parametrize(
    "place",
    ["checkpoints", "checkpoints/3", "samples", "samples/3", "logs", "lock", "events.jsonl"],
)
def test_a_run_with_a_link_that_leads_out_does_not_go_on(
    place: str, manege: Command, run: Path, elsewhere: Path
) -> None:
    there = elsewhere / "moved"
    shutil.move(run / place, there)
    (run / place).symlink_to(there)
    before = everything(elsewhere)
    done = manege("resume", "run", "--rounds", "3")
    assert done.code == 2, done
    assert "expected a place below" in done.err.splitlines()[-1]
    assert everything(elsewhere) == before


def test_a_run_with_links_is_still_read(manege: Command, run: Path, elsewhere: Path) -> None:
    shutil.rmtree(run / "model")
    shutil.move(run / "checkpoints", elsewhere / "moved")
    (run / "checkpoints").symlink_to(elsewhere / "moved")
    assert manege("sample", "run", "-n", "6", "-o", "a.npz").code == 0


def test_a_linked_run_goes_on(manege: Command, run: Path) -> None:
    (run.parent / "link").symlink_to(run)
    assert manege("resume", "link", "--rounds", "3").code == 0
    assert RunDir.open(run).commits("3")[0].round_ == 3


def test_figures_are_not_written_through_a_link(
    manege: Command, run: Path, elsewhere: Path
) -> None:
    (run / "plots").symlink_to(elsewhere)
    before = everything(elsewhere)
    assert_refused(manege("report", "run"), "plots", "expected a place below")
    assert everything(elsewhere) == before
