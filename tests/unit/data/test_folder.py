from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.samples import noise, write_class

from manege.config import DataConfig
from manege.data import ClassCount, Split, open_dataset
from manege.errors import DataError


def opened(root: Path, **options: object):
    return open_dataset(DataConfig(source=str(root), **options))


def test_a_folder_of_classes_is_divided_by_hash(image_folder: Path) -> None:
    dataset = opened(image_folder)
    assert dataset.name == "animals"
    assert dataset.labels == ("cat", "dog")
    assert dataset.classes == (ClassCount("cat", 18, 2), ClassCount("dog", 18, 2))
    assert (dataset.size, dataset.channels) == (16, 3)
    assert dataset.held_out_rule == "10 % of each class by a hash of the file name"
    train = set(dataset.names("cat", Split.TRAIN))
    held_out = set(dataset.names("cat", Split.HELD_OUT))
    assert train | held_out == {f"{place}.png" for place in range(20)}
    assert not train & held_out


def test_pictures_lie_in_the_order_of_their_names(image_folder: Path) -> None:
    dataset = opened(image_folder)
    for split in Split:
        pictures = dataset.pictures("dog", split)
        assert pictures.dtype == np.uint8
        for name, picture in zip(dataset.names("dog", split), pictures, strict=True):
            with Image.open(image_folder / "dog" / name) as image:
                np.testing.assert_array_equal(picture, np.asarray(image))


def test_the_split_does_not_depend_on_where_the_dataset_lies(
    image_folder: Path, tmp_path: Path
) -> None:
    before = opened(image_folder)
    shutil.copytree(image_folder, tmp_path / "far" / "moved")
    after = opened(tmp_path / "far" / "moved")
    assert after.split_record() == before.split_record()
    assert after.digest("cat") == before.digest("cat")


@pytest.mark.parametrize("held_out", ["test", "val", "validation"])
def test_a_train_and_a_test_folder_are_the_official_split(tmp_path: Path, held_out: str) -> None:
    write_class(tmp_path / "d" / "train" / "a", 8)
    write_class(tmp_path / "d" / held_out / "a", 3)
    dataset = opened(tmp_path / "d")
    assert dataset.classes == (ClassCount("a", 8, 3),)
    assert dataset.held_out_rule == f"official {held_out} split"
    assert dataset.pictures("a", Split.HELD_OUT).shape == (3, 16, 16, 3)
    record = dataset.split_record()
    assert record == {
        "rule": f"official {held_out} split",
        "classes": {"a": {"train": 8, "held_out": 3}},
    }


def test_a_test_folder_without_labels_is_no_official_split(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "train" / "a", 10)
    write_class(tmp_path / "d" / "test" / "images", 3)
    dataset = opened(tmp_path / "d")
    assert dataset.classes == (ClassCount("a", 9, 1),)


def test_a_train_folder_alone_is_divided_by_hash(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "train" / "a", 10)
    assert opened(tmp_path / "d").classes == (ClassCount("a", 9, 1),)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "train", 10)
    write_class(tmp_path / "d" / "test", 10)
    assert opened(tmp_path / "d").labels == ("test", "train")
    write_class(tmp_path / "e" / "train" / "steam", 10)
    write_class(tmp_path / "e" / "car", 10)
    assert opened(tmp_path / "e").labels == ("car", "train")


def test_a_class_without_held_out_pictures_has_none(tmp_path: Path) -> None:
    for label in "ab":
        write_class(tmp_path / "d" / "train" / label, 8)
    write_class(tmp_path / "d" / "test" / "a", 3)
    dataset = opened(tmp_path / "d")
    assert dataset.classes[1] == ClassCount("b", 8, 0)
    assert dataset.pictures("b", Split.HELD_OUT).shape == (0, 16, 16, 3)
    assert len(dataset.digest("b", Split.HELD_OUT)) == 64


def test_nested_and_linked_files_count_hidden_ones_do_not(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "a", 9)
    write_class(tmp_path / "d" / "a" / "deep" / "er", 2)
    write_class(tmp_path / "elsewhere", 3)
    (tmp_path / "d" / "a" / "link").symlink_to(tmp_path / "elsewhere")
    write_class(tmp_path / "d" / "a" / ".hidden", 3)
    write_class(tmp_path / "d" / ".git", 3)
    (tmp_path / "d" / "a" / "._0.png").write_bytes(b"x")
    (tmp_path / "d" / "a" / "notes.txt").write_text("x")
    dataset = opened(tmp_path / "d")
    assert dataset.labels == ("a",)
    names = {*dataset.names("a", Split.TRAIN), *dataset.names("a", Split.HELD_OUT)}
    assert len(names) == 14
    assert {"deep/er/0.png", "link/2.png"} <= names


def test_links_in_circles_and_pipes_do_not_hang(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "a", 9)
    (tmp_path / "d" / "a" / "up").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "a" / "self").symlink_to(tmp_path / "d" / "a" / "self")
    (tmp_path / "d" / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d" / "loop")
    os.mkfifo(tmp_path / "d" / "a" / "pipe.png")
    dataset = opened(tmp_path / "d")
    assert dataset.classes == (ClassCount("a", 8, 1),)
    assert dataset.pictures("a", Split.TRAIN).shape == (8, 16, 16, 3)


def test_a_file_whose_name_is_not_unicode_is_loaded(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "a", 9)
    (tmp_path / "d" / "a" / "0.png").rename(tmp_path / "d" / "a" / os.fsdecode(b"\xff\n.png"))
    dataset = opened(tmp_path / "d")
    assert len(dataset.pictures("a", Split.TRAIN)) == 8
    json.dumps(dataset.split_record()).encode("ascii")


def test_a_class_whose_name_is_not_unicode_is_refused(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / os.fsdecode(b"\xff"), 9)
    with pytest.raises(DataError, match="cannot be a label"):
        opened(tmp_path / "d")


def test_mixed_sizes_become_32_and_mixed_modes_colour(tmp_path: Path) -> None:
    write_class(tmp_path / "d" / "a", 9, shape=(16, 16))
    write_class(tmp_path / "d" / "b", 9, shape=(16, 20, 3))
    assert (opened(tmp_path / "d").size, opened(tmp_path / "d").channels) == (32, 3)
    only = opened(tmp_path / "d", classes=("a",))
    assert (only.size, only.channels) == (16, 1)
    write_class(tmp_path / "e" / "a", 9, shape=(18, 18))
    assert opened(tmp_path / "e").size == 32  # 18 is no side the networks can make.


def test_a_broken_first_file_does_not_stop_other_classes(image_folder: Path) -> None:
    (image_folder / "cat" / "0.png").write_bytes(b"")
    dataset = opened(image_folder)
    assert (dataset.size, dataset.channels) == (16, 3)
    assert len(dataset.pictures("dog", Split.TRAIN)) == 18


def test_loading_a_class_opens_no_file_of_another(image_folder: Path) -> None:
    for path in (image_folder / "cat").iterdir():
        path.write_bytes(b"broken")
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
        [sys.executable, "-c", code, image_folder], capture_output=True, text=True, check=True
    )
    paths = [Path(path) for path in json.loads(done.stdout)]
    assert len(paths) == 18
    assert {path.parent for path in paths} == {image_folder / "dog"}


def test_a_broken_file_is_named_with_its_reason_and_how_many_more(image_folder: Path) -> None:
    dataset = opened(image_folder)
    bad = dataset.names("cat", Split.TRAIN)[3]
    for name in (bad, *dataset.names("cat", Split.TRAIN)[7:9]):
        (image_folder / "cat" / name).write_bytes(b"junk")
    with pytest.raises(DataError) as caught:
        dataset.pictures("cat", Split.TRAIN)
    message = str(caught.value)
    assert f"cat/{bad}: not a PNG, JPEG, BMP or WebP picture" in message
    assert "2 more of class 'cat' are broken" in message
    assert "run `manege data check`" in message


def test_a_file_that_vanishes_is_named(image_folder: Path) -> None:
    dataset = opened(image_folder)
    (image_folder / "cat" / dataset.names("cat", Split.TRAIN)[0]).unlink()
    with pytest.raises(DataError, match="not found; it was there"):
        dataset.pictures("cat", Split.TRAIN)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="d: an empty folder; expected a subfolder"):
        opened(tmp_path / "d")


def test_pictures_without_subfolders_are_refused(tmp_path: Path) -> None:
    write_class(tmp_path / "d", 9)
    with pytest.raises(DataError, match="9 pictures but no subfolders; put each class in its own"):
        opened(tmp_path / "d")


def test_classes_with_too_few_pictures_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "d" / "empty").mkdir(parents=True)
    write_class(tmp_path / "d" / "few", 7)
    write_class(tmp_path / "d" / "fine", 8)
    with pytest.raises(
        DataError,
        match=r"class 'empty' \(0\), 'few' \(7\); expected at least 8 each; .* classes$",
    ):
        opened(tmp_path / "d")
    assert opened(tmp_path / "d", classes=("fine",)).labels == ("fine",)


def test_unknown_classes_are_refused_with_the_nearest(image_folder: Path) -> None:
    with pytest.raises(DataError, match="animals has no 'cot'; nearest is 'cat'"):
        opened(image_folder, classes=("cot", "dog"))
    with pytest.raises(DataError, match="has no 'dog'"):
        opened(image_folder, classes=("cat",)).pictures("dog", Split.TRAIN)


def test_a_larger_limit_contains_a_smaller_one_and_counts_stay(image_folder: Path) -> None:
    small, large = (opened(image_folder, limit_per_class=limit) for limit in (8, 12))
    assert large.names("cat", Split.TRAIN)[:8] == small.names("cat", Split.TRAIN)
    assert small.pictures("cat", Split.TRAIN).shape[0] == 8
    np.testing.assert_array_equal(
        large.pictures("cat", Split.TRAIN)[:8], small.pictures("cat", Split.TRAIN)
    )
    assert small.classes == large.classes == opened(image_folder).classes
    assert len(small.pictures("cat", Split.HELD_OUT)) == 2
    assert small.digest("cat") != large.digest("cat")


def test_limits_cut_a_class_as_if_it_had_no_more(image_folder: Path) -> None:
    whole, cut = opened(image_folder), opened(image_folder, limits={"cat": 9})
    assert cut.classes == (ClassCount("cat", 9, 2), ClassCount("dog", 18, 2))
    assert cut.names("cat", Split.TRAIN) == whole.names("cat", Split.TRAIN)[:9]
    assert len(cut.pictures("cat", Split.TRAIN)) == 9
    for label, split in (("cat", Split.HELD_OUT), ("dog", Split.TRAIN)):
        assert cut.names(label, split) == whole.names(label, split)
        assert cut.digest(label, split) == whole.digest(label, split)
    both = opened(image_folder, limits={"cat": 9}, limit_per_class=12)
    assert [len(both.names(label, Split.TRAIN)) for label in both.labels] == [9, 12]
    with pytest.raises(DataError, match="limits: animals has no 'cot'; nearest is 'cat'"):
        opened(image_folder, limits={"cot": 9})


def test_every_mode_and_format_in_one_class_loads(tmp_path: Path) -> None:
    folder = tmp_path / "d" / "a"
    write_class(folder, 8)
    for mode in ("1", "L", "LA", "P", "RGBA"):
        Image.fromarray(noise(5, 30, 20, 3)).convert(mode).save(folder / f"mode-{mode}.png")
    Image.fromarray(noise(5, 20, 30, 3)).convert("CMYK").save(folder / "cmyk.JPG")
    Image.fromarray(noise(5, 20, 30, 3)).save(folder / "b.webp")
    Image.fromarray(noise(5, 20, 30, 3)).save(folder / "c.bmp")
    dataset = opened(tmp_path / "d", size=12, channels=3)
    assert dataset.classes == (ClassCount("a", 14, 2),)
    assert dataset.pictures("a", Split.TRAIN).shape == (14, 12, 12, 3)


def test_the_real_sample_has_its_known_counts(real_data: Path) -> None:
    dataset = opened(real_data / "imagefolder-sample" / "tiny-imagenet-10x64px")
    assert {(count.train, count.held_out) for count in dataset.classes} == {(100, 25)}
    assert (len(dataset.labels), dataset.size, dataset.channels) == (10, 64, 3)
    assert dataset.held_out_rule == "official val split"
    assert dataset.pictures(dataset.labels[3], Split.HELD_OUT).shape == (25, 64, 64, 3)
