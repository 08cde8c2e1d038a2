"""`manege.compare`: runs side by side."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.tiny import TINY

import manege
from manege.errors import ConfigError
from manege.evaluation import Evaluation
from manege.evaluation.comparison import Comparison
from manege.metrics import Score

pytestmark = pytest.mark.usefixtures("score_cache")

SMALL = TINY | {
    "data__classes": ["3", "7"],
    "data__limit_per_class": 40,
}
QUICK = {"features": "random", "samples": 60}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Runs that differ in one thing or another."""
    folder = tmp_path_factory.mktemp("compared")
    settings = {
        "plain": {},
        "other": {"seed": 1, "networks__hidden": 12, "training__ema": 0.5},
        "fewer": {"data__classes": ["3"]},
        "larger": {"data__size": 16},
        "limited": {"data__limit_per_class": 32},
    }
    return {
        name: manege.train("digits", out=folder / name, **SMALL | more).path
        for name, more in settings.items()
    }


def origin(evaluation: Evaluation, score: Score) -> tuple[str | None, str, str]:
    """What must agree for two numbers to stand in one row."""
    reference = evaluation.protocol["reference"]
    return score.space_sha256, score.space, reference["digest"]


def check_rows(comparison: Comparison) -> None:
    """No row holds numbers that cannot be compared, and none is lost."""
    rows = comparison.rows()
    for name, row in rows.items():
        assert len(row) == len(comparison.runs)
        there = [
            (evaluation, score)
            for evaluation, score in zip(comparison.evaluations, row, strict=True)
            if score is not None
        ]
        for (one, a), (other, b) in combinations(there, 2):
            assert origin(one, a) == origin(other, b), name
            assert (a.name, a.label, a.split) == (b.name, b.label, b.split)
    for place, evaluation in enumerate(comparison.evaluations):
        shown = [row[place] for row in rows.values() if row[place] is not None]
        assert len(shown) == len(evaluation.scores)
        assert all(score in shown for score in evaluation.scores)


def test_exactly_the_differing_keys_are_listed(runs):
    found = manege.compare([runs["plain"], runs["other"]], **QUICK)
    assert found.differences == {
        "seed": (0, 1),
        "networks.hidden": (16, 12),
        "training.ema": (0.0, 0.5),
    }
    found = manege.compare([runs["plain"], runs["larger"], runs["other"]], **QUICK)
    assert found.differences["data.size"] == (8, 16, 8)
    assert found.differences["seed"] == (0, 0, 1)
    assert set(found.differences) == {"data.size", "seed", "networks.hidden", "training.ema"}


def test_runs_alike_differ_in_nothing(runs, tmp_path):
    copy = Path(shutil.copytree(runs["plain"], tmp_path / "copy"))
    found = manege.compare([runs["plain"], copy], **QUICK)
    assert found.differences == {}
    assert all(a == b for a, b in found.rows().values())


def test_runs_on_the_same_pictures_share_their_rows(runs):
    found = manege.compare([runs["plain"], runs["other"]], per_class=True, **QUICK)
    check_rows(found)
    rows = found.rows()
    assert all(None not in row for row in rows.values())
    kid = rows[found.evaluations[0].score("kid").full_name]
    assert [score.value for score in kid] == [
        manege.evaluate(runs[name], per_class=True, **QUICK).score("kid").value
        for name in ("plain", "other")
    ]
    assert kid[0].value != kid[1].value
    assert len([name for name in rows if "[3]" in name]) == 1


@pytest.mark.parametrize("other", ["fewer", "larger"])
def test_numbers_against_different_pictures_never_share_a_row(runs, other):
    found = manege.compare([runs["plain"], runs[other]], **QUICK)
    check_rows(found)
    assert all(None in row for row in found.rows().values())
    assert all(" vs digits-" in name for name in found.rows())


def test_collapse_and_cycling_of_runs_on_the_same_pictures_share_their_rows(runs):
    found = manege.compare([runs["plain"], runs["other"]], **QUICK)
    ((name, row),) = found.stability.items()  # After one round nothing can have come back.
    assert name.startswith("collapse@random-")
    for run, settled in zip(("plain", "other"), row, strict=True):
        told = [
            json.loads(line)["indices"]["collapse"]
            for line in (runs[run] / "events.jsonl").read_text().splitlines()
            if '"event":"round"' in line.replace(" ", "")
        ]
        assert settled.mean == pytest.approx(np.mean(told))
        assert (settled.low, settled.high, settled.cells) == (min(told), max(told), 2)
    assert found.as_dict()["stability"][name][0]["mean"] == row[0].mean


def test_collapse_and_cycling_against_different_pictures_share_no_row(runs):
    found = manege.compare([runs["plain"], runs["limited"]], **QUICK)
    assert len(found.stability) == 2
    assert all(None in row for row in found.stability.values())


def test_numbers_of_different_spaces_never_share_a_row(runs):
    plain = [
        manege.evaluate(runs["plain"], samples=60, features=kind)
        for kind in ("random", "classifier")
    ]
    found = Comparison(("a", "b"), {}, tuple(plain), {}, np.zeros((1, 1, 3), np.uint8))
    check_rows(found)
    shared = [name for name, row in found.rows().items() if None not in row]
    assert shared
    assert all(name.endswith("@pixels") for name in shared)


@pytest.mark.full
def test_runs_on_one_source_share_a_space_whatever_they_saw_of_it(runs):
    found = manege.compare([runs["plain"], runs["limited"]], samples=60)
    check_rows(found)
    name = found.evaluations[0].score("kid").full_name
    assert name.startswith("kid@lite0-64-128-")
    assert any(row_name.startswith(name) for row_name in found.rows())
    assert {one.protocol["space"]["sha256"] for one in found.evaluations} == {
        found.evaluations[0].protocol["space"]["sha256"]
    }
    assert found.differences == {"data.limit_per_class": (40, 32)}


def test_the_same_runs_twice_give_the_same_to_the_bit(runs):
    one, other = (manege.compare([runs["plain"], runs["other"]], **QUICK) for _ in range(2))
    assert one.evaluations == other.evaluations
    assert one.differences == other.differences
    assert np.array_equal(one.sheet, other.sheet)
    json.dumps(one.as_dict(), allow_nan=False)
    assert one.as_dict() == other.as_dict()


def test_every_run_keeps_its_evaluation_and_its_sheet(runs):
    found = manege.compare([runs["plain"], runs["other"]], seed=3, **QUICK)
    for name, evaluation in zip(("plain", "other"), found.evaluations, strict=True):
        assert evaluation.file.parent == runs[name] / "evaluations"
        assert (runs[name] / "samples" / "seed-3.png").is_file()
        assert {score.seed for score in evaluation.scores} == {3}
    assert found.sheet.ndim == 3
    assert found.sheet.shape[2] == 3


def test_other_data_may_be_given_for_all(runs):
    found = manege.compare([runs["plain"], runs["limited"]], "digits", classes=["3", "7"], **QUICK)
    check_rows(found)
    assert all(None not in row for row in found.rows().values())


@pytest.mark.parametrize("names", [[], ["plain"], ["plain", "plain"]])
def test_one_run_alone_is_not_compared(runs, names):
    with pytest.raises(ConfigError, match="at least two different runs"):
        manege.compare([runs[name] for name in names], **QUICK)
