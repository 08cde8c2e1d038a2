from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.samples import noise, write_class

from manege.config import DataConfig
from manege.data import (
    ClassCount,
    Dataset,
    Split,
    check,
    has_labels,
    open_dataset,
    read_set,
    survey,
)
from manege.data.labelled import open_images
from manege.errors import DataError

LINES = [f"{place}.png,{'cat' if place < 20 else 'dog'}" for place in range(40)]


def opened(root: Path, **options: object) -> Dataset:
    return open_dataset(DataConfig(source=str(root), **options))


def write_table(folder: Path, lines: Sequence[str], header: str = "file,label") -> Path:
    path = folder / "labels.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def names_of(dataset: Dataset, label: str) -> set[str]:
    return {name for split in Split for name in dataset.names(label, split)}


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures, written once."""
    folder = tmp_path_factory.mktemp("forty")
    write_class(folder, 40)
    return folder


@pytest.fixture
def flat(forty: Path, tmp_path: Path) -> Path:
    """Forty pictures in one folder: a table says that the first twenty are cats, the rest dogs."""
    folder = Path(shutil.copytree(forty, tmp_path / "animals"))
    write_table(folder, LINES)
    return folder


# What is read.


def test_the_labels_are_those_of_the_table(flat: Path) -> None:
    dataset = opened(flat)
    assert (dataset.name, dataset.size, dataset.channels) == ("animals", 16, 3)
    assert dataset.classes == (ClassCount("cat", 18, 2), ClassCount("dog", 18, 2))
    assert dataset.held_out_rule == "10 % of each class by a hash of the file name"
    assert names_of(dataset, "dog") == {f"{place}.png" for place in range(20, 40)}
    for split in Split:
        pictures = dataset.pictures("dog", split)
        for name, picture in zip(dataset.names("dog", split), pictures, strict=True):
            with Image.open(flat / name) as image:
                np.testing.assert_array_equal(picture, np.asarray(image))


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("filename", "label"),
        ("image", "class"),
        ("path", "category"),
        (" File ", " LABEL"),
    ],
)
def test_columns_have_several_names_and_any_order(flat: Path, file: str, label: str) -> None:
    lines = [f"7,{line.split(',')[1]},,{line.split(',')[0]}" for line in LINES]
    write_table(flat, lines, f"id,{label},note,{file}")
    assert opened(flat).labels == ("cat", "dog")


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\n\n").encode(),
        lambda text: text.replace(",", ", ").encode(),
        lambda text: text.replace("cat", '"cat"').replace("\n9.png", '\n"9.png"').encode(),
        lambda text: text.rstrip("\n").encode(),
        lambda text: text.replace("cat", "cat ").encode(),
        lambda text: text.replace("\n7.png", "\n./7.png").replace("\n8", "\n.//8").encode(),
    ],
)
def test_the_ways_to_write_the_same_table(flat: Path, encode) -> None:
    before = opened(flat)
    content = (flat / "labels.csv").read_text()
    (flat / "labels.csv").write_bytes(encode(content))
    after = opened(flat)
    assert after.labels == ("cat", "dog")
    assert after.split_record() == before.split_record()


def test_quotes_hold_commas_quotes_and_words_of_any_language(tmp_path: Path) -> None:
    write_class(tmp_path / "d", 18)
    (tmp_path / "d" / "0.png").rename(tmp_path / "d" / 'a, "b".png')
    (tmp_path / "d" / "9.png").rename(tmp_path / "d" / "ß 猫.png")
    lines = ['"a, ""b"".png","große Katze, grau"']
    lines += [f'{place}.png,"große Katze, grau"' for place in range(1, 9)]
    lines += ["ß 猫.png,猫", *(f"{place}.png,猫" for place in range(10, 18))]
    write_table(tmp_path / "d", lines)
    dataset = opened(tmp_path / "d")
    assert dataset.labels == ("große Katze, grau", "猫")
    assert 'a, "b".png' in names_of(dataset, "große Katze, grau")
    assert len(dataset.pictures("猫", Split.TRAIN)) == 8


def test_files_may_lie_in_folders_that_mean_nothing(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "2023" / "may", 9)
    write_class(tmp_path / "d" / "2024", 9)
    (tmp_path / "d" / "2024" / ".hidden.jpeg").write_bytes(
        (tmp_path / "d" / "2024" / "8.png").read_bytes()
    )
    (tmp_path / "d" / "again").symlink_to(tmp_path / "d" / "2024")
    lines = [f"2023/may/{place}.png,a" for place in range(9)]
    lines += [f"2024/{place}.png,a" for place in range(4)]
    lines += [f"again/{place}.png,b" for place in range(4, 9)]
    lines += ["2024/.hidden.jpeg,b", "2024/0.png,a"] + [f"2024/{n}.png,b" for n in (4, 5, 6)]
    write_table(tmp_path / "d", lines)
    dataset = survey(DataConfig(source=str(tmp_path / "d")))
    assert names_of(dataset, "a") == {line.split(",")[0] for line in lines if line.endswith("a")}
    assert names_of(dataset, "b") == {line.split(",")[0] for line in lines if line.endswith("b")}


def test_a_file_may_be_listed_twice_with_the_same_label(flat: Path) -> None:
    write_table(flat, [*LINES, LINES[0], "./0.png,cat"])
    assert opened(flat).classes == (ClassCount("cat", 18, 2), ClassCount("dog", 18, 2))


def test_the_table_wins_over_folders_of_classes(image_folder: Path) -> None:
    lines = [f"{kind}/{place}.png,{place % 2}" for kind in ("cat", "dog") for place in range(20)]
    write_table(image_folder, lines)
    dataset = opened(image_folder)
    assert dataset.labels == ("0", "1")
    assert {"cat/0.png", "dog/18.png"} <= names_of(dataset, "0")
    assert read_set(image_folder).labels == ("0",) * 20 + ("1",) * 20


def test_a_table_in_another_place_or_of_another_name_is_only_ignored(image_folder: Path) -> None:
    write_table(image_folder / "cat", ["0.png,x"])
    (image_folder / "labels.tsv").write_text("file\tlabel\n")
    (image_folder / "labels").mkdir()
    report = check(DataConfig(source=str(image_folder), classes=("cat", "dog")))
    assert set(report.ignored) == {"cat/labels.csv", "labels.tsv"}


# Splits.


@pytest.mark.parametrize("value", ["test", "val", "validation", " Test "])
def test_a_column_may_tell_the_official_split(flat: Path, value: str) -> None:
    lines = [f"{line},{value if place % 4 == 0 else 'train'}" for place, line in enumerate(LINES)]
    write_table(flat, lines, "file,label,split")
    dataset = opened(flat)
    assert dataset.classes == (ClassCount("cat", 15, 5), ClassCount("dog", 15, 5))
    assert dataset.held_out_rule == f"official {value.strip().lower()} split"
    assert set(dataset.names("cat", Split.HELD_OUT)) == {f"{n}.png" for n in (0, 4, 8, 12, 16)}
    assert dataset.pictures("cat", Split.HELD_OUT).shape == (5, 16, 16, 3)
    assert read_set(flat).labels == ("cat",) * 20 + ("dog",) * 20


def test_whatever_is_not_trained_on_is_held_out(flat: Path) -> None:
    splits = ("train", "train", "val", "test")
    lines = [f"{line},{splits[place % 4]}" for place, line in enumerate(LINES)]
    write_table(flat, lines, "file,label,split")
    dataset = opened(flat)
    assert dataset.classes == (ClassCount("cat", 10, 10), ClassCount("dog", 10, 10))
    assert dataset.held_out_rule == "official test and val split"


def test_a_column_of_nothing_but_train_is_no_split(flat: Path) -> None:
    write_table(flat, [f"{line},train" for line in LINES], "file,label,split")
    assert opened(flat).held_out_rule.startswith("10 %")


@pytest.mark.parametrize("held_out", ["test", "val", "validation"])
def test_train_and_test_may_each_have_a_table(tmp_path: Path, held_out: str) -> None:
    write_class(tmp_path / "d" / "train" / "all", 20)
    write_class(tmp_path / "d" / held_out, 6)
    write_table(tmp_path / "d" / "train", [f"all/{place}.png,{place % 2}" for place in range(20)])
    write_table(tmp_path / "d" / held_out, [f"{place}.png,{place % 2}" for place in range(6)])
    dataset = opened(tmp_path / "d")
    assert dataset.classes == (ClassCount("0", 10, 3), ClassCount("1", 10, 3))
    assert dataset.held_out_rule == f"official {held_out} split"
    with Image.open(tmp_path / "d" / held_out / dataset.names("1", Split.HELD_OUT)[0]) as image:
        np.testing.assert_array_equal(dataset.pictures("1", Split.HELD_OUT)[0], np.asarray(image))
    assert read_set(tmp_path / "d").labels == ("0",) * 13 + ("1",) * 13


def test_a_table_in_train_alone_is_divided_by_hash(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "train", 20)
    write_table(tmp_path / "d" / "train", [f"{place}.png,a" for place in range(20)])
    # A contest's test folder: pictures without labels.
    write_class(tmp_path / "d" / "test", 5)
    dataset = opened(tmp_path / "d")
    assert dataset.classes == (ClassCount("a", 18, 2),)
    assert check(DataConfig(source=str(tmp_path / "d"))).ignored == ()
    with pytest.raises(DataError, match=r"5 pictures are below no labels.csv, test/0\.png for one"):
        read_set(tmp_path / "d")


def test_a_test_folder_of_classes_is_not_lost_without_a_word(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "train", 20)
    write_table(tmp_path / "d" / "train", [f"{place}.png,a" for place in range(20)])
    write_class(tmp_path / "d" / "test" / "a", 5)
    with pytest.raises(DataError, match=r"d/test: subfolders but no labels\.csv, expected one as"):
        opened(tmp_path / "d")


def test_a_column_may_not_contradict_the_folders(tmp_path: Path) -> None:
    for part, split in (("train", "train"), ("test", "train")):
        write_class(tmp_path / "d" / part, 10)
        lines = [f"{place}.png,a,{split}" for place in range(10)]
        write_table(tmp_path / "d" / part, lines, "file,label,split")
    with pytest.raises(DataError, match=r"test/labels\.csv: line 2 says split train, but .* test/"):
        opened(tmp_path / "d")


# Looking, and the cache.


def test_what_is_not_listed_is_ignored_and_counted(flat: Path) -> None:
    write_class(flat / "more", 2)
    (flat / "notes.txt").write_text("x")
    write_table(flat, LINES[:-1])
    report = check(DataConfig(source=str(flat), classes=("cat",)))
    assert set(report.ignored) == {"39.png", "more/0.png", "more/1.png", "notes.txt"}
    assert report.modes == {"RGB": 20}
    assert report.problems == ()
    assert len(read_set(flat)) == 39


def test_broken_and_duplicate_pictures_are_found(flat: Path) -> None:
    (flat / "0.png").write_bytes(b"junk")
    (flat / "1.png").write_bytes((flat / "30.png").read_bytes())
    report = check(DataConfig(source=str(flat)))
    assert [(bad.label, bad.name) for bad in report.broken] == [("cat", "0.png")]
    (pair,) = report.duplicates
    assert pair.across_classes
    dataset = opened(flat)
    split = Split.TRAIN if "0.png" in dataset.names("cat", Split.TRAIN) else Split.HELD_OUT
    with pytest.raises(DataError, match=r"animals/0\.png: not a PNG.* class 'cat'"):
        dataset.pictures("cat", split)


def test_another_table_is_another_entry_and_the_same_one_is_not(flat: Path, cache: Path) -> None:
    def entries() -> int:
        return len(list((cache / "pictures").glob("*.npy")))

    before = opened(flat).digest("dog")
    opened(flat).digest("dog")
    assert entries() == 1
    write_table(flat, [*LINES[1:], "0.png,dog"])
    assert opened(flat).digest("dog") != before
    assert entries() == 2
    assert "0.png" in names_of(opened(flat), "dog")


def test_loading_a_class_opens_no_file_of_another(flat: Path) -> None:
    code = (
        "import json, sys\n"
        "from manege.config import DataConfig\n"
        "from manege.data import Split, open_dataset\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) "
        "if event == 'open' else None)\n"
        "dataset = open_dataset(DataConfig(source=sys.argv[1], size=8, channels=1))\n"
        "dataset.pictures('dog', Split.TRAIN)\n"
        "print(json.dumps([path for path in opened if path.endswith('.png')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, flat], capture_output=True, text=True, check=True
    )
    places = {int(Path(path).stem) for path in json.loads(done.stdout)}
    assert len(places) == 18
    assert min(places) >= 20


def test_a_set_has_the_labels_of_the_table(flat: Path) -> None:
    assert has_labels(flat)
    read = read_set(flat)
    assert (len(read), read.labels) == (40, ("cat",) * 20 + ("dog",) * 20)
    (flat / "labels.csv").unlink()
    assert not has_labels(flat)
    assert read_set(flat).labels is None


def test_the_split_does_not_depend_on_where_the_folder_lies(flat: Path, tmp_path: Path) -> None:
    before = opened(flat)
    record, digest = before.split_record(), before.digest("cat")
    flat.rename(tmp_path / "moved")
    after = opened(tmp_path / "moved")
    assert (after.split_record(), after.digest("cat")) == (record, digest)


# What is refused.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "an empty file; expected a first line that names the columns, separated by commas"),
        ("\n\n", "an empty file"),
        ("file,label\n", "a header and no line below"),
        ("0.png,cat\n1.png,cat\n", r"no column for the file among 0\.png, cat; expected a first"),
        ("file\n0.png\n", r"no column for the label among file; .*label \(or class, category\)"),
        ("name,label\n0.png,cat\n", r"no column for the file among name, label; .*another name if"),
        ("file;label\n0.png;cat\n", "no column for the file among file;label; .* by commas"),
        ("file\tlabel\n0.png\tcat\n", r"no column for the file among file\\tlabel;"),
        ("file,path,label\n0.png,x,cat\n", "2 columns for the file among file, path, label"),
        ("file,label,class\n0.png,x,cat\n", "2 columns for the label among"),
        ("file,label,split,Split\n0.png,x,train,test\n", "2 columns for the split"),
        ("file,label\n0.png\n", "line 2 has 1 fields, expected 2"),
        ("file,label\n0.png,cat,grey\n", "line 2 has 3 fields, expected 2 .* into quotes"),
        ("file,label\n0.png,\n", r"line 2: 0\.png has an empty label, expected one"),
        ('file,label\n0.png,"  "\n', r"line 2: 0\.png has an empty label"),
        ("file,label\n0.png,a/b\n", "line 2: 'a/b' cannot be a label"),
        ("file,label\n0.png,..\n", r"line 2: '\.\.' cannot be a label"),
        ('file,label\n0.png,"a\nb"\n', r"line 3: 'a\\nb' cannot be a label"),
        ("file,label\n,cat\n", "line 2: '' is no file's name"),
        ("file,label\n.,cat\n", r"line 2: '\.' is no file's name"),
        ("file,label\n0\0.png,cat\n", r"labels\.csv: line 2"),
        ("file,label\n/etc/passwd,cat\n", "line 2: /etc/passwd, expected a path below the folder"),
        ("file,label\n../0.png,cat\n", r"line 2: \.\./0\.png, expected a path below"),
        ("file,label\na/../0.png,cat\n", r"line 2: a/\.\./0\.png, expected a path below"),
        ("file,label\na\\0.png,cat\n", r"line 2: a\\0\.png, expected .* forward slashes"),
        ("file,label\n0.png,cat\n0.png,dog\n", r"line 3 lists 0\.png as 'dog', line 2 as 'cat'"),
        ("file,label\n0.png,cat\n./0.png,dog\n", r"line 3 lists 0\.png as 'dog', line 2 as 'cat'"),
        (
            "file,label,split\n0.png,cat,train\n0.png,cat,test\n",
            "as 'cat' of test, line 2 as 'cat' of train; expected every file once",
        ),
        ("file,label,split\n0.png,cat,dev\n", "line 2: split 'dev', expected train or test, val"),
        ("file,label,split\n0.png,cat,\n", "line 2: split '', expected train"),
        ("file,label,split\n0.png,cat,test\n", "no line of split train, expected some"),
        (
            "file,label\n0.png,cat\nno.png,cat\n40.png,dog\n",
            r"line 3 lists no\.png, which is not there; 1 more are missing",
        ),
        ("file,label\n0,cat\n", "line 2 lists 0, which is not there; 0 more"),
        ("file,label\nsub,cat\n", "line 2 lists sub, which is not there"),
        ("file,label\npipe.png,cat\n", r"line 2 lists pipe\.png, which is not there"),
        (f"file,label\n{'n' * 5000}.png,cat\n", "which is not there"),
        ('file,label\n"0.png,cat\n', r"cannot be read \(unexpected end of data\); mend its quotes"),
        ('file,label\n"0".png,cat\n', "line 2 cannot be read"),
        (f"file,label\n0.png,{'c' * 200_000}\n", r"cannot be read \(field larger than"),
        (b"file,label\n0.png,caf\xe9\n", "byte 20 is not UTF-8; save the file as UTF-8"),
        ("file,label\n0.png,cat\n".encode("utf-16"), "byte 0 is not UTF-8"),
    ],
)
def test_a_table_that_could_mislead_is_refused_in_one_line(
    flat: Path, content: str | bytes, message: str
) -> None:
    (flat / "sub").mkdir()
    os.mkfifo(flat / "pipe.png")
    raw = content if isinstance(content, bytes) else content.encode()
    (flat / "labels.csv").write_bytes(raw)
    with pytest.raises(DataError, match=message) as caught:
        open_images(flat)
    assert str(caught.value).startswith(f"{flat / 'labels.csv'}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=message):
        read_set(flat)


def test_too_few_of_a_class_and_unknown_classes_are_named_as_ever(flat: Path) -> None:
    write_table(flat, LINES[:24])
    with pytest.raises(DataError, match=r"class 'dog' \(4\); expected at least 8"):
        opened(flat)
    with pytest.raises(DataError, match="animals has no 'cot'; nearest is 'cat'"):
        opened(flat, classes=("cot", "dog"))


def test_pictures_alone_are_told_of_both_ways(tmp_path: Path) -> None:
    write_class(tmp_path / "d", 9)
    with pytest.raises(DataError, match=r"own subfolder, or name file and label in a labels\.csv"):
        opened(tmp_path / "d")


def test_a_table_is_as_good_as_folders(image_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "listed"
    folder.mkdir()
    lines = []
    for kind in ("cat", "dog"):
        for path in (image_folder / kind).iterdir():
            (folder / f"{kind}-{path.name}").write_bytes(path.read_bytes())
            lines.append(f"{kind}-{path.name},{kind}")
    write_table(folder, lines)
    one, other = read_set(image_folder), read_set(folder)
    assert one.labels == other.labels
    rows = [sorted(picture.tobytes() for picture in each.pictures) for each in (one, other)]
    assert rows[0] == rows[1]


def test_a_grey_picture_of_another_suffix_is_read_when_it_is_listed(tmp_path: Path) -> None:
    write_class(tmp_path / "d", 8, shape=(16, 16))
    Image.fromarray(noise(0, 16, 16)).save(tmp_path / "d" / "x.png")
    (tmp_path / "d" / "x.png").rename(tmp_path / "d" / "x")
    write_table(tmp_path / "d", [*(f"{place}.png,a" for place in range(8)), "x,a"])
    dataset = opened(tmp_path / "d")
    assert (dataset.channels, len(names_of(dataset, "a"))) == (1, 9)
    assert sum(len(dataset.pictures("a", split)) for split in Split) == 9
