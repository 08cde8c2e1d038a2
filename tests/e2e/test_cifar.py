"""Photographs from the command line: CIFAR where it is at hand, and folders with a labels.csv."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .command import TINY
from .conftest import Command
from .material import write_class

# Read before the fixture of the session hides it.
_REAL = os.environ.get("MANEGE_DATA")
NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def real_data() -> Path:
    if _REAL is None or not (Path(_REAL) / "cifar-10-batches-py").is_dir():
        pytest.skip("MANEGE_DATA names no folder with CIFAR-10")
    return Path(_REAL)


def test_cifar10_is_looked_at(real_data: Path, manege: Command) -> None:
    args = ("data", "check", "cifar10", "--classes", "cat", "--data-root", real_data)
    done = manege(*args)
    assert done.code == 0, done.err
    assert "cifar10: 1 classes, trained as 32x32 colour" in done.out
    assert "held out: official test split" in done.out
    assert "cat                    5,000 to train on   1,000 held out" in done.out
    assert "fine to train on" in done.out


def test_two_classes_of_cifar10_are_trained(
    real_data: Path, manege: Command, tmp_path: Path
) -> None:
    classes = ("--classes", "cat,ship", "--limit-per-class", "16", "--data-root", real_data)
    done = manege("train", "cifar10", *classes, "--rounds", "1", *TINY, "--out", "run", "--json")
    assert done.code == 0, done.err
    assert done.json["rounds"] == {"cat": 1, "ship": 1}
    told = json.loads((tmp_path / "run" / "data.json").read_text())
    assert (told["name"], told["size"], told["channels"]) == ("cifar10", 32, 3)
    assert told["classes"]["cat"]["train"] == 5000
    assert manege("sample", "run", "-n", "4", "-o", "drawn").code == 0
    assert len(list((tmp_path / "drawn").rglob("*.png"))) == 4


def test_the_list_tells_where_cifar_is(real_data: Path, manege: Command) -> None:
    done = manege("data", "list", "--data-root", real_data, "--json")
    rows = {row["name"]: row for row in done.json["datasets"]}
    assert rows["cifar10"]["where"] == str(real_data / "cifar-10-batches-py")
    assert rows["cifar10"]["pictures"] == 60_000


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cifar100-coarse"])
def test_without_files_and_network_one_line_says_what_to_do(name: str, manege: Command) -> None:
    done = manege("train", name, env=NO_NETWORK)
    assert done.code == 2
    assert done.err.startswith(f"manege: {name}: cifar-10")
    for words in ("could not be downloaded", "-python.tar.gz or", "MANEGE_DATA"):
        assert words in done.err
    assert done.err.count("\n") == 1


def test_a_folder_with_a_table_is_looked_at_trained_and_scored_by_it(
    manege: Command, tmp_path: Path
) -> None:
    write_class(tmp_path / "photos", 40)
    lines = [f"{place:03d}.png,{'ab'[place % 2]}" for place in range(39)]
    table = tmp_path / "photos" / "labels.csv"
    table.write_text("\n".join(["image,class", *lines]))
    done = manege("data", "check", "photos")
    assert done.code == 0, done.err
    assert "ignored: 039.png" in done.out
    assert "photos: 2 classes, trained as 8x8 grey" in done.out
    done = manege("train", "photos", "--rounds", "1", *TINY, "--out", "run", "--json")
    assert done.code == 0, done.err
    assert done.json["rounds"] == {"a": 1, "b": 1}
    table.write_text("image,class\n000.png,a\n000.png,b\n")
    done = manege("resume", "run", "--rounds", "2")
    assert done.code == 2
    assert "labels.csv: line 3 lists 000.png as 'b', line 2 as 'a'" in done.err
    assert done.err.count("\n") == 1
