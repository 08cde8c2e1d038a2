"""The literature's scores by their names, intra-class KID, and stacked digits' modes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from tests.helpers.made_up import made_up

from manege.config import DataConfig, stream
from manege.data import PictureSet, Split, set_of, stacked, survey_measured
from manege.errors import ConfigError
from manege.metrics import (
    CLEAN,
    INCEPTION,
    Results,
    Score,
    ScoredSets,
    Space,
    conditions,
    inception,
    inception_space,
    measure,
    mnist_logits_space,
    random_space,
    suite,
)
from manege.metrics.distributions import inception_score
from manege.metrics.estimate import Estimate, mean_of
from manege.metrics.kid import kid
from manege.metrics.weights import InceptionWeights

SOURCE = ("file", "0" * 64)
COUNT = 10


def as_set(pictures: np.ndarray, labels: tuple[str, ...] | None = None) -> PictureSet:
    digest = hashlib.sha256(pictures.tobytes() + repr(labels).encode()).hexdigest()
    return PictureSet("made", "all", np.ascontiguousarray(pictures), labels, digest)


def noise(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)


def run(contest: ScoredSets, *groups: str) -> Results:
    return measure(contest, groups or None, lambda verb: None)


def named(results: Results, label: str | None = None) -> dict[str, Score]:
    return {score.name: score for score in results.scores if score.label == label}


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Sides of 75 instead of 299: no score here hangs on them, and they are 20 times as fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception, "SIDE", 75)
        yield


@pytest.fixture(scope="module")
def parts(three) -> tuple[PictureSet, PictureSet]:
    """Held-out and training pictures of three digits."""
    return set_of(three, Split.HELD_OUT), set_of(three, Split.TRAIN)


@pytest.fixture(scope="module")
def standard() -> Space:
    return inception_space(InceptionWeights(made_up(), "1" * 64, *SOURCE), INCEPTION, 8, 1)


@pytest.fixture(scope="module")
def contest(standard) -> ScoredSets:
    sets = [as_set(noise(COUNT, seed=seed)) for seed in range(3)]
    held_out, train = replace(sets[1], split="held-out"), replace(sets[2], split="train")
    return ScoredSets(sets[0], held_out, standard, other=train, allow_few=True)


def few_frechet(x: np.ndarray, y: np.ndarray) -> float:
    """The distance of fewer rows than dimensions, from products of rows."""
    a, b = (one.astype(np.float64) - one.mean(0, dtype=np.float64) for one in (x, y))
    a, b = a / np.sqrt(len(a) - 1), b / np.sqrt(len(b) - 1)
    apart = x.mean(0, dtype=np.float64) - y.mean(0, dtype=np.float64)
    shared = np.linalg.svd(a @ b.T, compute_uv=False).sum()
    return float(apart @ apart + (a**2).sum() + (b**2).sum() - 2 * shared)


def test_fid_and_is_bear_their_names_in_the_standard_protocol(contest, standard):
    found = named(run(contest, "fd", "is", "kid"))
    x, y = (standard.features(one.pictures) for one in (contest.generated, contest.reference))
    assert found["fid"].value == pytest.approx(few_frechet(x, y), rel=1e-6)
    assert found["fid"].full_name == "fid@inception-11111111"
    assert found["fid"].space_sha256 == "1" * 64
    assert found["fid"].marks == found["is"].marks == ("few-samples",)
    assert found["fid"].floor is not None
    assert "2015-12-05" in found["fid"].definition
    assert found["kid"].value == kid(x, y).value
    assert found["kid"].full_name == "kid@inception-11111111"


def test_the_inception_score_splits_at_random_not_class_by_class(contest, standard, monkeypatch):
    """Real pictures lie there class after class, and a split of one class says nothing."""
    for module in (conditions, suite):
        monkeypatch.setattr(module, "SPLITS", 2)
    x = standard.features(contest.generated.pictures)
    order = stream(0, cell="", purpose="inception score").permutation(len(x))
    expected = inception_score(standard.logits_of(x[order]), 2)
    assert expected.value != inception_score(standard.logits_of(x), 2).value > 1
    found = named(run(contest, "is"))["is"]
    assert found.value == expected.value
    assert found.floor is not None


def test_the_antialiased_fid_has_a_name_of_its_own(contest, standard):
    space = inception_space(InceptionWeights(made_up(), "1" * 64, *SOURCE), CLEAN, 8, 1)
    found = run(replace(contest, space=space), "fd")
    (score,) = found.scores
    assert score.full_name == "clean-fid@inception-clean-11111111"
    assert score.value != named(run(contest, "fd"))["fid"].value
    with pytest.raises(ConfigError, match="metrics is: needs features lite0 or inception"):
        run(replace(contest, space=space), "is")
    assert "is" not in run(replace(contest, space=space)).left_out


def test_fid_of_few_pictures_is_refused_unless_allowed(contest, monkeypatch):
    honest = replace(contest, allow_few=False)
    for group in ("fd", "is"):
        with pytest.raises(ConfigError) as told:
            run(honest, group)
        text = str(told.value)
        name = {"fd": "FID", "is": "IS"}[group]
        assert text == (
            f"metrics {group}: {COUNT} generated pictures are too few for {name}, which takes "
            "10,000; use kid, or allow_few_samples"
        )
    left_out = run(honest).left_out
    assert {"fd", "is"} <= left_out.keys()
    monkeypatch.setattr(conditions, "FEWEST_FOR_FID", COUNT)
    enough = named(run(honest, "fd", "is"))
    assert enough["fid"].marks == enough["is"].marks == ()
    nine = replace(contest, generated=as_set(noise(9, seed=0)))
    with pytest.raises(ConfigError, match="metrics is: 9 pictures cannot be split into 10"):
        run(nine, "is")


def test_without_the_last_layer_there_is_no_inception_score_and_it_is_said(contest):
    space = inception_space(
        InceptionWeights(made_up(head=False), "1" * 64, *SOURCE), INCEPTION, 8, 1
    )
    headless = replace(contest, space=space)
    assert "lack the network's last layer" in run(headless).left_out["is"]
    with pytest.raises(ConfigError, match=r"metrics is: .*last layer; give inception_weights"):
        run(headless, "is")
    assert run(headless, "fd").scores


def test_a_description_tells_the_file_the_weights_are_from(standard, classifier):
    assert standard.description()["source"] == {"file": "file", "sha256": "0" * 64}
    assert "source" not in classifier.description()


def test_no_more_real_pictures_go_through_the_network_than_are_compared(contest):
    many = replace(as_set(noise(40, seed=9)), split="train")
    done: dict[str, int] = {}

    def counting(verb: str):
        return lambda count, total: done.update({verb: total})

    found = measure(replace(contest, other=many), ("kid",), counting)
    assert found.scores[0].floor is not None
    assert done["real pictures: done"] == COUNT


# Intra-class KID.


def test_intra_class_kid_is_the_mean_of_the_classes(parts, classifier):
    held_out, train = parts
    classes = dict.fromkeys(classifier.labels)
    found = run(ScoredSets(train, held_out, classifier, other=train, classes=classes), "kid")
    each = [named(found, label)["kid"] for label in classifier.labels]
    mean = named(found)["intra-class-kid"]
    assert mean.value == pytest.approx(np.mean([one.value for one in each]))
    reach = np.sqrt(sum((one.high - one.low) ** 2 for one in each)) / 2 / len(each)
    assert mean.high - mean.value == pytest.approx(reach)
    assert mean.floor.value == pytest.approx(np.mean([one.floor.value for one in each]))
    assert mean.generated == sum(one.generated for one in each) == len(train)
    assert mean.full_name == f"intra-class-kid@{classifier.name}"


def test_intra_class_kid_sees_what_kid_does_not(parts, classifier):
    """Labels that are exchanged: all pictures are right, and every one is in the wrong class."""
    held_out, train = parts
    swap = dict(zip(classifier.labels, classifier.labels[1:] + classifier.labels[:1], strict=True))
    wrong = as_set(train.pictures, tuple(swap[label] for label in train.labels))
    classes = dict.fromkeys(classifier.labels)
    found = [
        named(run(ScoredSets(one, held_out, classifier, classes=classes), "kid"))
        for one in (train, wrong)
    ]
    assert found[0]["kid"].value == found[1]["kid"].value
    assert found[1]["intra-class-kid"].low > 10 * found[0]["intra-class-kid"].high


def test_a_class_with_too_few_pictures_leaves_the_mean_out(parts, classifier):
    held_out, train = parts
    rows = [row for row, label in enumerate(train.labels) if label != "7"][:60] + [
        row for row, label in enumerate(train.labels) if label == "7"
    ][:3]
    few = as_set(train.pictures[rows], tuple(train.labels[row] for row in rows))
    classes = dict.fromkeys(classifier.labels)
    found = run(ScoredSets(few, held_out, classifier, classes=classes), "kid")
    assert "intra-class-kid" not in named(found)
    assert found.left_out["intra-class-kid"] == "class '7' has too few pictures"


def test_the_mean_of_estimates_has_the_right_coverage():
    rng = np.random.default_rng(0)
    hits = 0
    reach = norm.ppf(0.975) * np.array([1.0, 2.0, 3.0])
    for _ in range(1000):
        values = rng.normal(0, [1.0, 2.0, 3.0])
        found = mean_of([Estimate(v, v - r, v + r) for v, r in zip(values, reach, strict=True)])
        hits += found.low <= 0 <= found.high
    assert 0.93 < hits / 1000 < 0.97


# Stacked digits.


@pytest.mark.full
def test_real_stacked_digits_cover_all_modes_and_few_digits_do_not(
    real_data, own_cache, monkeypatch
):
    monkeypatch.setattr(stacked, "COUNTS", dict.fromkeys(Split, 4000))
    digits = mnist_logits_space(real_data / "classifiers" / "lipizzaner_mnist_cnn.pkl")
    dataset = survey_measured(DataConfig(source="stacked-mnist", root=str(real_data)), None, None)
    held_out, train = (set_of(dataset, split) for split in (Split.HELD_OUT, Split.TRAIN))
    # The first channel repeated: ten modes.
    grey = replace(train, pictures=np.repeat(train.pictures[..., :1], 3, axis=-1))
    found = {
        name: named(run(ScoredSets(one, held_out, random_space(28, 3), stacked=digits), "modes"))
        for name, one in (("real", train), ("grey", grey))
    }
    # Of 1,000 equally likely modes 4,000 draws miss 1,000·e⁻⁴ = 18.
    assert found["real"]["modes-covered"].value == pytest.approx(982, abs=15)
    assert found["real"]["modes-covered"].floor.value == pytest.approx(982, abs=15)
    assert found["real"]["modes-kl"].value < 0.2
    assert found["real"]["modes-kl"].floor.value == pytest.approx(
        found["real"]["modes-kl"].value, abs=0.02
    )
    assert found["grey"]["modes-covered"].value == 10
    assert found["grey"]["modes-kl"].value > 4.5
    assert found["grey"]["modes-covered"].space == digits.name
