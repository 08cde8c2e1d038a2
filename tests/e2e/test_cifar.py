"""Photographs from the command line: CIFAR where it is at hand, and folders with a labels.csv."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from manege.data import archives
from tests.helpers.cifar_files import (
    COARSE,
    FINE,
    KINDS,
    member,
    pack,
    write_cifar10,
    write_cifar100,
    write_tar,
)
from tests.helpers.command import TINY
from tests.helpers.material import write_class

from .conftest import Command

NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}


@pytest.mark.full
def test_cifar10_is_looked_at(real_data: Path, manege: Command) -> None:
    args = ("data", "check", "cifar10", "--classes", "cat", "--data-root", real_data)
    done = manege(*args)
    assert done.code == 0, done.err
    assert "cifar10: 1 classes, trained as 32x32 colour" in done.out
    assert "held out: official test split" in done.out
    assert "cat                    5,000 to train on   1,000 held out" in done.out
    assert "fine to train on" in done.out


@pytest.mark.full
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


# Small ones in the official formats.

LABELS = {"cifar10": KINDS, "cifar100": FINE, "cifar100-coarse": COARSE}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CIFAR-10, in folders, and a small CIFAR-100, in its archive; not to be changed."""
    root = tmp_path_factory.mktemp("small")
    write_cifar10(root / "cifar10")
    made = write_cifar100(tmp_path_factory.mktemp("made"))
    pack(made / "cifar-100-python", root / "cifar100" / "cifar-100-python.tar.gz")
    return root


def test_the_list_tells_of_every_cifar_where_it_is(small: Path, manege: Command) -> None:
    done = manege("data", "list", "--data-root", small, "--json")
    assert (done.code, done.err) == (0, "")
    rows = {row["name"]: row for row in done.json["datasets"]}
    archive = small / "cifar100" / "cifar-100-python.tar.gz"
    assert {name: rows[name]["where"] for name in LABELS} == {
        "cifar10": str(small / "cifar10" / "cifar-10-batches-py"),
        "cifar100": str(archive),
        "cifar100-coarse": str(archive),
    }
    shown = manege("data", "list", "--data-root", small).out
    assert all(f"\n{name} " in shown for name in LABELS)


@pytest.mark.parametrize(
    ("name", "train", "held_out"),
    [("cifar10", 10, 2), ("cifar100", 9, 1), ("cifar100-coarse", 45, 5)],
)
def test_every_cifar_is_looked_at_by_its_own_labels(
    name: str, train: int, held_out: int, small: Path, manege: Command
) -> None:
    few = LABELS[name][2:5]
    words = ("data", "check", name, "--data-root", small, "--classes", ",".join(few))
    done = manege(*words, "--json")
    assert (done.code, done.err) == (0, "")
    counts = {one["label"]: (one["train"], one["held_out"]) for one in done.json["classes"]}
    assert counts == dict.fromkeys(few, (train, held_out))
    assert done.json["problems"] == []
    shown = manege(*words).out
    assert f"{name}: 3 classes, trained as 32x32 colour" in shown
    assert "held out: official test split" in shown
    unknown = manege("data", "check", name, "--data-root", small, "--classes", "unicorn")
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert f"{name} has no 'unicorn'" in unknown.err


INSIDE = "cifar-10-batches-py"
HOSTILE = {
    "a path above": (member("../../evil", b"x"), "../../evil leads out of the archive"),
    "a path above, inside": (member(f"{INSIDE}/../../evil", b"x"), "evil leads out of the archive"),
    "an absolute path": (member("/tmp/manege-evil", b"x"), "/tmp/manege-evil leads out"),
    "a link": (member("x", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "x is a link"),
    "a link for a file": (
        member(f"{INSIDE}/test_batch", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "test_batch is a link",
    ),
    "a hard link": (
        member(f"{INSIDE}/test_batch", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        "test_batch is a link",
    ),
    "a file beyond its size": (
        member(f"{INSIDE}/batches.meta", bytes(2 << 20)),
        "batches.meta has 2097152 bytes, expected at most",
    ),
    "a bomb": (member("zeros", bytes(8 << 20)), "unzips to more than 4 MiB"),
}


@pytest.mark.parametrize("verb", ["data check", "train"])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_in_one_line_and_writes_nothing(
    case: str, verb: str, manege: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_MOST_BYTES", 4 << 20)  # A real bomb takes seconds to meet it.
    evil, says = HOSTILE[case]
    archive = write_tar(tmp_path / "data" / "cifar-10-python.tar.gz", [evil])
    cache = tmp_path / "cache"
    before = archive.read_bytes()
    done = manege(*verb.split(), "cifar10", "--data-root", "data", env={"MANEGE_CACHE": str(cache)})
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.err.startswith("manege: data/cifar-10-python.tar.gz: ")
    assert says in done.err
    assert {path.name for path in tmp_path.iterdir()} <= {"data", "cache"}
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert archive.read_bytes() == before
    assert not Path("/tmp/manege-evil").exists()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cifar100-coarse"])
def test_without_files_and_network_one_line_says_what_to_do(name: str, manege: Command) -> None:
    done = manege("train", name, env=NO_NETWORK)
    assert done.code == 2
    assert done.err.startswith(f"manege: {name}: cifar-10")
    for words in ("could not be downloaded", "-python.tar.gz or", "MANEGE_DATA"):
        assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.full
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
    words = ("--features", "random", "--metrics", "kid", "--reference", "train")
    done = manege("evaluate", "run", *words, "--json")
    assert done.code == 0, done.err
    assert done.json["protocol"]["reference"]["classes"] == ["a", "b"]
    table.write_text("image,class\n000.png,a\n000.png,b\n")
    done = manege("resume", "run", "--rounds", "2")
    assert done.code == 2
    assert "labels.csv: line 3 lists 000.png as 'b', line 2 as 'a'" in done.err
    assert done.err.count("\n") == 1
