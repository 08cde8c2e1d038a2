"""Whether a space sees the data at hand: on real data, and on a real run that drew noise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny import TINY

import manege
from manege import pictures as sheets
from manege.cli.flags import FLAGS
from manege.config import DataConfig
from manege.data import Split, open_dataset, set_of
from manege.errors import DataError, fields_named
from manege.metrics import (
    Space,
    classifier_for,
    feature_weights,
    lite0_space,
    points_space,
    random_space,
)
from manege.metrics.controls import EARLY_GENERATOR, FRESH_GENERATOR, Check, check, instead, told
from manege.report import single
from manege.report.writing import write

pytestmark = pytest.mark.usefixtures("score_cache")


def checked(space: Space, data: DataConfig, **drawn: np.ndarray) -> Check:
    dataset = open_dataset(data)
    found = check(space, *(set_of(dataset, split, 512).pictures for split in Split), drawn)
    assert found is not None
    return found


def lite0(dataset) -> Space:
    return lite0_space(dataset.size, dataset.channels, feature_weights())


NAMES = {"one picture repeated", "uniform noise", "shuffled pixels", "a strong blur"}


def test_digits_are_seen_by_lite0_and_by_their_classifier():
    data = DataConfig(source="digits")
    dataset = open_dataset(data)
    for space in (lite0(dataset), classifier_for(dataset)):
        found = checked(space, data)
        assert found.blind == ()
        assert found.controls.keys() == NAMES
        for one in found.controls.values():
            assert one.kid.low > found.real.kid.high
            assert one.coverage.value < found.real.coverage.value
        assert found.as_dict()["told"] is None


@pytest.mark.parametrize("source", ["ring8", "grid25"])
def test_points_see_themselves(source):
    found = checked(points_space(), DataConfig(source=source))
    assert found.blind == ()
    # A point has no pixels to shuffle and nothing to blur.
    assert found.controls.keys() == {"one picture repeated", "uniform noise"}


@pytest.mark.full
@pytest.mark.parametrize("source", ["mnist", "cifar10"])
def test_lite0_sees_mnist_and_cifar(source, real_data):
    data = DataConfig(source=source, root=str(real_data))
    found = checked(lite0(open_dataset(data)), data)
    assert found.blind == ()
    # Not by a hair: the nearest control is many times as far off as the interval is wide.
    wide = found.real.kid.high - found.real.kid.value
    assert min(one.kid.low for one in found.controls.values()) > 20 * wide


@pytest.mark.full
def test_real_pictures_drawn_early_would_make_a_space_blind():
    """What cannot be told from real pictures is: with real ones for a control the check fails."""
    data = DataConfig(source="digits")
    dataset = open_dataset(data)
    real = set_of(dataset, Split.TRAIN, 400).pictures
    found = checked(lite0(dataset), data, **{EARLY_GENERATOR: real})
    assert found.blind == (EARLY_GENERATOR,)
    line = found.as_dict()["told"]
    assert line.startswith("lite0-64-128-")
    assert "is blind for these data: it does not tell real pictures from the run's early" in line
    assert line.endswith("use features inception")


def test_few_pictures_tell_nothing():
    space, few = random_space(8, 1), np.zeros((6, 8, 8, 1), np.uint8)
    assert check(space, few, few, {}) is None
    dataset = open_dataset(DataConfig(source="digits"))
    real = set_of(dataset, Split.TRAIN, 100).pictures
    # Nothing is held out: training pictures stand for both.
    found = check(lite0(dataset), real, few[:0], {})
    assert found is not None
    assert found.real.pictures == 50
    # Nor does a sheet of three pictures, by itself.
    three = {EARLY_GENERATOR: real[:3]}
    assert check(lite0(dataset), real, real, three, made=False) is None


def test_what_to_use_instead():
    assert (
        instead("classifier-1") == instead("random-1") == ("features lite0, or features inception")
    )
    assert instead("lite0-64-128-1") == "features inception"
    assert instead("inception-1") == "features lite0"
    assert told("random-1", ()) is None
    assert told("random-1", ("a", "b")) == (
        "random-1 is blind for these data: it does not tell real pictures from a or b; use "
        "features lite0, or features inception"
    )


# The run that drew noise.


def noise_run(real_data: Path, folder: Path, each: int) -> Path:
    """A run of some seconds on five classes of so many photographs: it draws coloured noise."""
    source = real_data / "imagefolder-sample" / "tiny-imagenet-10x64px" / "train"
    for label in sorted(path for path in source.iterdir() if path.is_dir())[:5]:
        (folder / "photographs" / label.name).mkdir(parents=True)
        for file in sorted(path for path in label.iterdir() if path.is_file())[:each]:
            shutil.copy(file, folder / "photographs" / label.name)
    quick = {"stability__every_rounds": None, "score__metric": "none", "data__size": 32}
    data, out = str(folder / "photographs"), folder / "run"
    return manege.train(data, preset="modern-pixels", rounds=15, out=out, **quick).path


@pytest.fixture(scope="module")
def run(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_run(real_data, tmp_path_factory.mktemp("noise"), each=26)


@pytest.mark.full
def test_noise_that_training_drew_is_told_by_lite0(run: Path):
    found = manege.evaluate(run, samples=200, metrics=["kid", "prdc"])
    ((name, control),) = found.controls.items()
    assert name.startswith("lite0-64-128-")
    assert not control["blind"]
    assert control["controls"].keys() == {*NAMES, EARLY_GENERATOR, FRESH_GENERATOR}
    assert found.blind() == []
    kid = found.score("kid")
    assert kid.marks == ()
    # Every control is as far off: this is what noise gets.
    assert kid.value > 10 > 10 * abs(kid.floor.value)
    assert kid.low > kid.floor.high
    kept = json.loads((run / "scorer" / "controls.json").read_text())
    assert kept.keys() == {name}


@pytest.mark.full
def test_it_is_not_told_by_random_features_which_uniform_noise_does_not_show(run: Path):
    found = manege.evaluate(run, samples=200, metrics=["kid", "prdc"], features="random")
    ((name, control),) = found.controls.items()
    assert EARLY_GENERATOR in control["blind"]
    assert "uniform noise" not in control["blind"]
    assert {score.marks for score in found.scores} == {("blind",)}
    assert found.blind() == [told(name, tuple(control["blind"]))]


@pytest.mark.full
def test_what_was_found_before_is_told_in_the_words_of_who_asks(run: Path):
    """Fields and flags, whoever asked first: of what the run keeps and of what the cache does."""

    def line(**options: Any) -> str:
        (found,) = manege.evaluate(run, samples=200, features="random", **options).blind()
        return found.partition("; ")[2]

    with fields_named(FLAGS):
        assert line(metrics=["kid"]) == "use --features lite0, or --features inception"
    for metrics in (["kid"], ["prdc"]):
        assert line(metrics=metrics) == "use features lite0, or features inception"


@pytest.mark.full
def test_what_the_classifier_says_is_marked_where_it_is_blind(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Whether it is hangs on the processor's arithmetic: of three, two trained one that was.
    run = noise_run(real_data, tmp_path, each=18)
    with monkeypatch.context() as patch:
        patch.setattr("manege.metrics.controls.MARGIN", 1e9)
        by_classifier = manege.evaluate(run, samples=200, metrics=["kid"], features="classifier")
    assert by_classifier.score("kid").marks == ("blind",)
    ((name, control),) = by_classifier.controls.items()
    assert name.startswith("classifier-")
    assert control["told"].endswith("use features lite0, or features inception")
    # Where it says no more than what pictures show, it is marked there alone.
    both = manege.evaluate(run, samples=200, metrics=["kid", "labels"])
    assert both.score("kid").marks == ()
    assert both.score("agreement").marks == ("blind",)
    assert both.blind() == [control["told"]]
    # A kept evaluation says the same.
    assert manege.evaluate(run, samples=200, metrics=["kid", "labels"]) == both


@pytest.mark.full
def test_a_report_withholds_what_a_blind_space_says(run: Path, tmp_path: Path):
    manege.evaluate(run, samples=150, metrics=["kid"], features="random")
    write(single.report(run), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "withheld: its feature space is blind" in text
    assert "is blind for these data" in text


# What a run keeps for it.


def test_a_sheet_can_be_cut_up_again(tmp_path):
    for side, channels in ((8, 1), (32, 3), (64, 3)):
        drawn = np.random.default_rng(0).integers(0, 256, (9, side, side, channels), np.uint8)
        path = tmp_path / f"{side}.png"
        path.write_bytes(sheets.png_bytes(sheets.grid(drawn), {}, sheets.viewing_scale(side)))
        np.testing.assert_array_equal(sheets.cut_up(path, side), drawn)
    (tmp_path / "no.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="cannot be read as a sheet"):
        sheets.cut_up(tmp_path / "no.png", 8)
    with pytest.raises(DataError, match="not of pictures of 99"):
        sheets.cut_up(tmp_path / "8.png", 99)


def test_a_short_run_keeps_what_it_drew_last_and_a_long_one_what_it_drew_early(tmp_path):
    for rounds, out in ((1, "short"), (60, "long")):
        more = {"rounds": rounds, "data__classes": ["3"], "stability__every_rounds": None}
        manege.train("digits", out=tmp_path / out, **TINY | more)
    short, long = (
        sheets.read_text(tmp_path / one / "samples/3/early.png") for one in ("short", "long")
    )
    assert short["round"] == "1"
    # Four batches of forty a round.
    assert 1 < int(long["round"]) < 60


@pytest.mark.full
def test_digits_that_features_taught_to_draw_at_once_make_no_space_blind(tmp_path):
    """A critic on features teaches these in a hundred steps: what they draw then is no control."""
    more: dict[str, Any] = {"data__classes": ["0", "1", "8"], "stability__every_rounds": None}
    run = manege.train("digits", out=tmp_path / "run", rounds=34, **more)
    for label in more["data__classes"]:
        # Twenty steps, of five or six a round.
        kept = sheets.read_text(run.path / f"samples/{label}/early.png")
        assert int(kept["round"]) in (4, 5)
    found = manege.evaluate(run.path, samples=200, metrics=["kid"])
    assert found.score("kid").marks == ()
    assert found.blind() == []
