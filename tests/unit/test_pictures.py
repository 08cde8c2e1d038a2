from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from manege.errors import DataError, MachineError
from manege.pictures import (
    BACKGROUND,
    enlarge,
    grid,
    is_points,
    read_text,
    save_png,
    scatter,
    viewing_scale,
)


@given(
    count=st.integers(1, 30),
    side=st.integers(1, 9),
    channels=st.sampled_from([1, 3]),
    columns=st.none() | st.integers(1, 12),
    gap=st.integers(0, 3),
)
def test_a_sheet_holds_every_picture_in_its_place(
    count: int, side: int, channels: int, columns: int | None, gap: int
) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (count, side, side, channels), np.uint8)
    sheet = grid(pictures, columns, gap)
    wide = columns or int(np.ceil(np.sqrt(count)))
    rows = -(-count // wide)
    assert sheet.shape == (rows * (side + gap) + gap, wide * (side + gap) + gap, channels)
    for index, picture in enumerate(pictures):
        top, left = (gap + place * (side + gap) for place in divmod(index, wide))
        np.testing.assert_array_equal(sheet[top : top + side, left : left + side], picture)
    inside = rows * wide * side * side
    assert (sheet == BACKGROUND).sum() >= (sheet.size // channels - inside) * channels


def test_a_sheet_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        grid(np.zeros((0, 4, 4, 1), np.uint8))
    with pytest.raises(ValueError, match="at least one"):
        grid(np.zeros((0, 1, 1, 2), np.uint8))


def points(*coordinates: tuple[int, int]) -> np.ndarray:
    return np.array(coordinates, np.uint8).reshape(-1, 1, 1, 2)


def test_points_are_drawn_with_x_to_the_right_and_y_upwards() -> None:
    drawn = scatter(points((0, 0), (255, 0), (0, 128)))
    assert drawn.shape == (160, 160, 1)
    dark = np.argwhere(drawn[:, :, 0] < 255)
    corners = {(159, 0), (158, 1), (159, 159), (158, 158)}
    assert corners <= set(map(tuple, dark.tolist()))
    assert len(dark) == 4 + 4 + 6  # Two corners and an edge cut the squares of three pixels.
    assert drawn[79, 0, 0] < 255
    assert (drawn[:70] == 255).all()


def test_a_drawing_is_darker_where_more_points_fall() -> None:
    drawn = scatter(points((51, 51), (204, 204), (204, 204), *[(128, 128)] * 50))
    column, row = round(51 * 159 / 255), 159 - round(51 * 159 / 255)
    assert drawn[row, column, 0] == 153
    assert drawn[column, row, 0] == 92
    assert drawn.min() == 0
    assert drawn.max() == 255


def test_a_sheet_of_points_is_their_drawing_and_is_not_enlarged() -> None:
    many = np.random.default_rng(0).integers(0, 256, (20, 1, 1, 2), np.uint8)
    assert is_points(many)
    np.testing.assert_array_equal(grid(many, columns=4), scatter(many))
    assert viewing_scale(many.shape[1]) == 1
    for shape in ((20, 1, 1, 1), (20, 1, 1, 3), (20, 8, 8, 2)):
        assert not is_points(np.zeros(shape, np.uint8))


def test_enlarging_repeats_pixels() -> None:
    picture = np.array([[[1], [2]]], np.uint8)
    assert enlarge(picture, 2)[:, :, 0].tolist() == [[1, 1, 2, 2], [1, 1, 2, 2]]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_saved_picture_reads_back_with_its_recipe(
    tmp_path: Path, channels: int, mode: str
) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (5, 4, channels), np.uint8)
    recipe = {"manege": "seed=1\nlabel=7", "Label": "naïve 猫", "file": "bad\udcff"}
    save_png(tmp_path / "a.png", picture, recipe, scale=2)
    with Image.open(tmp_path / "a.png") as image:
        assert (image.mode, image.size) == (mode, (8, 10))
        got = np.asarray(image).reshape(10, 8, channels)
    np.testing.assert_array_equal(got, enlarge(picture, 2))
    assert read_text(tmp_path / "a.png") == {**recipe, "file": "bad\\udcff"}


def test_equal_inputs_give_equal_bytes_and_nothing_else_is_left(tmp_path: Path) -> None:
    picture = np.full((8, 8, 1), 9, np.uint8)
    save_png(tmp_path / "a.png", picture, {"x": "1", "y": "2"})
    save_png(tmp_path / "b.png", picture, {"y": "2", "x": "1"})
    save_png(tmp_path / "b.png", picture, {"y": "2", "x": "1"})
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]


@pytest.mark.parametrize(("side", "scale"), [(8, 7), (28, 2), (32, 2), (64, 1), (256, 1)])
def test_small_pictures_are_enlarged_for_people(side: int, scale: int) -> None:
    assert viewing_scale(side) == scale


def test_a_missing_folder_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"a\.png.*: no such file"):
        save_png(tmp_path / "no" / "a.png", np.zeros((4, 4, 1), np.uint8), {})
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="not a directory"):
        save_png(tmp_path / "file" / "a.png", np.zeros((4, 4, 1), np.uint8), {})


def test_a_full_disk_leaves_the_old_picture_and_no_half_one(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    save_png(path, np.zeros((4, 4, 1), np.uint8), {})
    before = path.read_bytes()
    code = (
        "import sys, numpy as np\n"
        "from manege.errors import MachineError\n"
        "from manege.pictures import save_png\n"
        "picture = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)\n"
        "try: save_png(sys.argv[1], picture, {})\n"
        "except MachineError as error: sys.exit(str(error))\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        [sys.executable, "-B", "-c", code, path], preexec_fn=limit, capture_output=True, text=True
    )
    assert "a.png" in done.stderr
    assert ": file too large; raise the limit on file size (ulimit -f)" in done.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_reading_text_refuses_what_is_no_png(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_text(tmp_path / "none.png")
    with pytest.raises(DataError, match="Is a directory"):
        read_text(tmp_path)
    (tmp_path / "a.png").write_bytes(b"GIF89a")
    with pytest.raises(DataError, match="not a PNG picture"):
        read_text(tmp_path / "a.png")
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    save_png(tmp_path / "b.png", picture, {"a": "b"})
    whole = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read as a PNG picture"):
        read_text(tmp_path / "b.png")
