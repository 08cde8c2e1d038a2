"""The pictures of a sweep's table."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from manege.experiments.sweep import Plan, RecipeRow, Stage, write_table

PLAN = Plan(data="digits", classes=("3", "8"), seeds=(1, 2), budget_s=[30, 60], recipes={"one": {}})


def stage(each_s: float, *rows: dict[str, list[float]], floor: float = 0.001) -> Stage:
    found = [RecipeRow(f"recipe-{n}", [1, 2], values, [3.0, 4.0]) for n, values in enumerate(rows)]
    return Stage(
        each_s,
        found,
        {
            "floors": {"kid": floor, "coverage": 0.95},
            "space": {"name": "lite0"},
            "subject": {"pictures": 60},
            "reference": {"pictures": 60, "split": "held-out"},
        },
    )


@pytest.mark.parametrize(
    "rows",
    [
        [{"kid": [0.1, 0.2], "coverage": [0.5, 0.6]}],
        [{"kid": [0.1, 0.2], "coverage": [0.5, 0.6]}, {"kid": [0.001, 4.0]}, {}],
        [{"kid": [-0.001, 0.2]}, {"kid": [0.1]}],
    ],
)
def test_whatever_was_measured_is_drawn(rows, tmp_path):
    written = write_table([stage(30, *rows), stage(60, *rows, floor=-0.002)], PLAN, tmp_path)
    assert [path.name for path in written] == ["table.md", "plot.png", "curve.png"]
    for path in written[1:]:
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            assert image.width == 2000
            assert len(image.getcolors(1 << 20) or ()) > 10


def test_where_nothing_could_be_measured_there_are_no_pictures(tmp_path):
    written = write_table([stage(30, {}), stage(60, {})], PLAN, tmp_path)
    assert [path.name for path in written] == ["table.md"]
