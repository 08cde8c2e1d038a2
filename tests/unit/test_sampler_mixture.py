"""Labels drawn by several generators: who draws which picture, and how such models last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.generators import global_generators_left_alone

from manege.config import ALL, MlpNetworks, stream
from manege.errors import CheckpointError, ConfigError
from manege.models import PictureShape, build_generator, generate, layout_of
from manege.sampler import Component, Model, load, save
from manege.version import __version__

SHAPE = PictureShape(8, 1)
NETWORKS = MlpNetworks(latent=8, hidden=16)
BLACK, GREY, WHITE = 0, 128, 255
BOTH = ("exact", "independent")


def tensors(fill: Callable[[tuple[int, ...]], np.ndarray]) -> dict[str, np.ndarray]:
    slots = layout_of(build_generator(NETWORKS, SHAPE)).parameters
    return {slot.name: fill(slot.shape).astype(np.float32) for slot in slots}


def uniform(shade: int) -> bytes:
    """A generator of pictures of one shade: its last bias alone is not zero."""
    weights = tensors(np.zeros)
    weights["body.layers.2.bias"][:] = {BLACK: -20, GREY: 0, WHITE: 20}[shade]
    return bytes(safetensors.numpy.save(weights))


def patterns(seed: int) -> bytes:
    """A generator of black and white patterns, no two alike: no rounding can change a bit."""
    weights = tensors(np.random.default_rng(seed).standard_normal)
    weights["body.layers.2.weight"] *= 1e6
    return bytes(safetensors.numpy.save(weights))


def component(label: str, cell: str | None, weight: float, file: bytes) -> Component:
    sha256 = hashlib.sha256(file).hexdigest()
    return Component(label, weight, NETWORKS, {"rounds": 1}, sha256, lambda: file, cell)


def model(*components: Component) -> Model:
    return Model(SHAPE, components)


def shades(weights: Mapping[int, float]) -> Model:
    """A mixture whose every picture tells who drew it."""
    return model(
        *(
            component(ALL, f"{place}-0", weight, uniform(shade))
            for place, (shade, weight) in enumerate(weights.items())
        )
    )


def shades_of(pictures: np.ndarray) -> np.ndarray:
    """The one shade of each picture."""
    flat = pictures.reshape(len(pictures), -1)
    assert (flat == flat[:, :1]).all()
    return flat[:, 0].astype(int)


@pytest.fixture(scope="module")
def mixture() -> Model:
    """A label of two generators, and one of a single one."""
    return model(
        component("cat", "0-0", 3.0, patterns(1)),
        component("dog", None, 5.0, patterns(2)),
        component("cat", "0-1", 1.0, patterns(3)),
    )


@pytest.fixture(scope="module")
def pair() -> Model:
    """A generator for each label, as every model was once."""
    return model(component("3", None, 2.0, patterns(0)), component("8", None, 1.0, patterns(0)))


def digest(pictures: np.ndarray) -> str:
    return hashlib.sha256(pictures.tobytes()).hexdigest()


# A label with one generator is what it was before there were mixtures.


def test_a_single_generator_s_pictures_are_those_of_the_first_version(pair: Model) -> None:
    assert digest(pair.pictures_of("8", 70, seed=5)) == (
        "899b5f1537dc9974a67e7169d74fb7a8c27ce202888e057a959a0c66fb17e561"
    )
    drawn = pair.sample(70, seed=5)
    assert "".join(drawn.labels) == (
        "8338333833333833838333888838388383883883833333833333333883333333833338"
    )
    assert digest(drawn.pictures) == (
        "8a1cdecc311c3b45a489b741e967804810204de12a3dc291a7bba4058140f7d7"
    )


def test_a_model_without_cells_is_described_as_in_the_first_version(pair: Model) -> None:
    entry = {
        "networks": {"kind": "mlp", "latent": 8, "hidden": 16, "activation": "tanh"},
        "sha256": hashlib.sha256(patterns(0)).hexdigest(),
        "trained": {"rounds": 1},
    }
    assert pair.description() == {
        "format": 1,
        "manege": __version__,
        "picture": {"size": 8, "channels": 1},
        "components": [
            {"label": "3", "weight": 2.0, "file": "3.safetensors", **entry},
            {"label": "8", "weight": 1.0, "file": "8.safetensors", **entry},
        ],
        "missing": {},
    }


# Who draws which picture.


@pytest.mark.parametrize(
    "weights",
    [
        {BLACK: 1.0, WHITE: 1.0},
        {BLACK: 0.9, GREY: 0.07, WHITE: 0.03},
        {BLACK: 1.0, GREY: 41.0, WHITE: 7.5},
        {GREY: 2.0},
    ],
)
def test_exact_mixing_keeps_every_share_within_one_picture(weights: dict[int, float]) -> None:
    drawn = shades_of(shades(weights).pictures_of(ALL, 150))
    for shade, weight in weights.items():
        have = np.cumsum(drawn == shade)
        share = weight / sum(weights.values()) * np.arange(1, 151)
        assert np.abs(have - share).max() <= 1


def test_independent_mixing_follows_the_weights_by_chance() -> None:
    weights = {BLACK: 0.5, GREY: 0.2, WHITE: 0.3}
    drawn = shades_of(shades(weights).pictures_of(ALL, 3000, mixing="independent"))
    for shade, p in weights.items():
        spread = np.sqrt(3000 * p * (1 - p))
        assert abs((drawn == shade).sum() - 3000 * p) <= 4 * spread
    # Exact mixing would stay within one picture all along.
    assert np.abs(np.cumsum(drawn == BLACK) - 0.5 * np.arange(1, 3001)).max() > 5
    # Nor is it periodic: what follows black does not depend on it.
    after = drawn[1:][drawn[:-1] == BLACK]
    assert abs((after == BLACK).mean() - 0.5) <= 4 * np.sqrt(0.25 / len(after))


def test_independent_mixing_depends_on_the_seed_and_the_label() -> None:
    one = shades({BLACK: 1.0, WHITE: 1.0})
    other = model(*(replace(component, label="cat") for component in one.components))
    sequences = [
        tuple(shades_of(chosen.pictures_of(label, 64, seed, mixing="independent")))
        for chosen, label, seed in ((one, ALL, 0), (one, ALL, 1), (other, "cat", 0))
    ]
    assert len(set(sequences)) == 3


@pytest.mark.parametrize("mixing", BOTH)
def test_every_picture_is_the_next_one_of_its_own_generator(mixing: str) -> None:
    """The plain form: each generator's own stream, taken in order."""
    weights = {"0-0": (BLACK, 0.6), "0-1": (GREY, 0.1), "1-0": (WHITE, 0.3)}
    telling = model(*(component(ALL, c, w, uniform(s)) for c, (s, w) in weights.items()))
    drawing = model(
        *(component(ALL, cell, w, patterns(n)) for n, (cell, (_, w)) in enumerate(weights.items()))
    )
    owners = shades_of(telling.pictures_of(ALL, 130, seed=9, mixing=mixing))
    pictures = drawing.pictures_of(ALL, 130, seed=9, mixing=mixing)
    for one, (cell, (shade, _)) in zip(drawing.components, weights.items(), strict=True):
        generator = drawing.generator(one, torch.device("cpu"))
        streams = [stream(9, cell=ALL, purpose=f"sample {cell}", step=step) for step in range(5)]
        expected = np.concatenate(
            [generate(generator, rng.standard_normal((32, 8), dtype=np.float32)) for rng in streams]
        )
        own = pictures[owners == shade]
        assert len(own) > 0
        np.testing.assert_array_equal(own, expected[: len(own)])


def test_two_cells_with_the_same_weights_draw_different_pictures() -> None:
    twins = model(*(component(ALL, cell, 1.0, patterns(1)) for cell in ("0-0", "0-1")))
    pictures = twins.pictures_of(ALL, 40)
    assert len({picture.tobytes() for picture in pictures}) == 40


@pytest.mark.parametrize("mixing", BOTH)
def test_the_first_pictures_do_not_depend_on_how_many_follow(mixing: str, mixture: Model) -> None:
    many = mixture.sample(140, seed=3, mixing=mixing)
    cats = mixture.pictures_of("cat", 140, seed=3, mixing=mixing)
    own = many.pictures[[label == "cat" for label in many.labels]]
    np.testing.assert_array_equal(own, cats[: len(own)])
    for count in (1, 2, 5, 31, 32, 33, 64, 65, 129):
        few = mixture.sample(count, seed=3, mixing=mixing)
        np.testing.assert_array_equal(few.pictures, many.pictures[:count])
        assert few.labels == many.labels[:count]
        assert few.indices == many.indices[:count]
        some = mixture.pictures_of("cat", count, seed=3, mixing=mixing)
        np.testing.assert_array_equal(some, cats[:count])
        told: list[int] = []
        rest = mixture.pictures_of("cat", 140, 3, "cpu", told.append, mixing, start=count)
        np.testing.assert_array_equal(rest, cats[count:])
        assert told == sorted(told)
        assert count < told[0] <= told[-1] == 140


@pytest.mark.parametrize("mixing", BOTH)
def test_a_mixture_s_pictures_do_not_depend_on_the_other_labels(
    mixing: str, mixture: Model
) -> None:
    cats, dogs = mixture.without(["dog"]), mixture.without(["cat"])
    alone = cats.sample(50, mixing=mixing).pictures
    among = mixture.sample(200, mixing=mixing)
    mine = among.pictures[[label == "cat" for label in among.labels]][:50]
    np.testing.assert_array_equal(mine, alone)
    for whole in (dogs.merged(cats), cats.merged(dogs)):
        drawn = whole.sample(50, label="cat", mixing=mixing)
        np.testing.assert_array_equal(drawn.pictures, alone)


def test_drawing_leaves_the_global_generators_alone(mixture: Model) -> None:
    with global_generators_left_alone():
        for mixing in BOTH:
            mixture.sample(10, mixing=mixing)


def test_only_the_generators_that_draw_are_read_and_each_once() -> None:
    reads: list[str] = []

    def counted(cell: str, weight: float) -> Component:
        made = component(ALL, cell, weight, uniform(GREY))
        return replace(made, read=lambda: reads.append(cell) or made.read())

    many = model(*(counted(f"{k}-0", 0.5**k) for k in range(8)))
    many.pictures_of(ALL, 1)
    assert reads == ["0-0"]
    reads.clear()
    many.pictures_of(ALL, 70)
    assert len(reads) == len(set(reads)) < 8


def test_progress_counts_the_pictures_of_all_generators(mixture: Model) -> None:
    told: list[tuple[int, int]] = []
    mixture.sample(150, progress=lambda done, total: told.append((done, total)))
    done = [pictures for pictures, _ in told]
    assert done == sorted(done)
    assert told[-1] == (150, 150)
    assert {total for _, total in told} == {150}


# What the model says of itself.


def test_a_label_s_probability_is_the_sum_over_its_generators(mixture: Model) -> None:
    assert mixture.labels == ("cat", "dog")
    assert mixture.probabilities == pytest.approx({"cat": 4 / 9, "dog": 5 / 9})
    assert [one.cell for one in mixture.components_of("cat")] == ["0-0", "0-1"]
    assert [one.cell for one in mixture.components_of("dog")] == [None]
    labels = mixture.sample(3000).labels
    assert abs(labels.count("cat") - 3000 * 4 / 9) <= 4 * np.sqrt(3000 * 20 / 81)


def test_balanced_counts_labels_not_generators(mixture: Model) -> None:
    assert mixture.sample(5, balanced=True).labels == ("cat",) * 3 + ("dog",) * 2


def test_a_mixture_of_all_the_data_has_no_labels(mixture: Model) -> None:
    assert shades({BLACK: 1.0, WHITE: 1.0}).unlabelled
    assert not mixture.unlabelled


def test_dropping_a_label_drops_all_its_generators(mixture: Model) -> None:
    assert mixture.without(["cat"]).labels == ("dog",)
    assert len(mixture.without(["cat"]).components) == 1
    with pytest.raises(ConfigError, match="empty model"):
        mixture.without(["cat", "dog"])


def test_two_mixtures_of_one_label_do_not_merge(mixture: Model) -> None:
    other = model(component("cat", "7-7", 1.0, patterns(4)))
    with pytest.raises(ConfigError, match="label 'cat' is in both models"):
        mixture.merged(other)


def test_an_unknown_label_is_named(mixture: Model) -> None:
    with pytest.raises(ConfigError, match=r"'cats': not in .* cat, dog; did you mean cat\?"):
        mixture.components_of("cats")


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ((None, None), "2 generators of label 'cat', one without a cell"),
        (("0-0", None), "2 generators of label 'cat', one without a cell"),
        (("0-0", "0-1", "0-0"), "two generators of label 'cat' come from the same cell"),
    ],
)
def test_generators_of_a_label_that_cannot_be_told_apart_are_no_model(
    cells: tuple[str | None, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        model(*(component("cat", cell, 1.0, b"") for cell in cells))


# How pictures are shared out.


@pytest.mark.parametrize("mixing", ["", "Exact", "exactly", None])
def test_an_unknown_mixing_is_refused(mixing: str, mixture: Model, pair: Model) -> None:
    for one in (mixture, pair):
        with pytest.raises(ConfigError, match=r"mixing .*: expected exact or independent$"):
            one.sample(1, mixing=mixing)
        with pytest.raises(ConfigError, match=r"mixing .*: expected exact or independent$"):
            one.pictures_of(one.labels[0], 1, mixing=mixing)


@pytest.mark.parametrize(
    "choice", [{}, {"balanced": True}, {"label": "dog"}, {"weights": {"dog": 1.0}}]
)
def test_mixing_is_refused_where_there_is_nothing_to_mix(
    choice: dict[str, Any], mixture: Model, pair: Model
) -> None:
    one = mixture if {"label", "weights"} & set(choice) else pair
    with pytest.raises(ConfigError, match=r"mixing independent: .*leave mixing out$"):
        one.sample(1, mixing="independent", **choice)
    assert one.sample(1, mixing="exact", **choice).pictures.shape == (1, 8, 8, 1)


# How it lasts.


def test_a_mixture_is_saved_and_loaded_whole(mixture: Model, tmp_path: Path) -> None:
    save(mixture, tmp_path / "m")
    again = load(tmp_path / "m")
    assert again == mixture
    assert again.digest == mixture.digest
    for mixing in BOTH:
        before, after = (one.sample(60, mixing=mixing) for one in (mixture, again))
        np.testing.assert_array_equal(before.pictures, after.pictures)
    files = sorted(path.name for path in (tmp_path / "m").iterdir())
    assert len(files) == 4
    tree = json.loads((tmp_path / "m" / "model.json").read_text())
    assert tree["format"] == 2
    assert [(one["label"], one["cell"]) for one in tree["components"]] == [
        ("cat", "0-0"),
        ("dog", None),
        ("cat", "0-1"),
    ]


def test_a_model_of_the_first_format_is_still_read(pair: Model, tmp_path: Path) -> None:
    save(pair, tmp_path / "m")
    assert "cell" not in (tmp_path / "m" / "model.json").read_text()
    again = load(tmp_path / "m")
    assert (again, again.digest) == (pair, pair.digest)


def test_the_cells_are_part_of_the_digest(mixture: Model) -> None:
    moved = [replace(one, cell="5-5") if one.cell == "0-1" else one for one in mixture.components]
    assert model(*moved).digest != mixture.digest


def test_a_mixture_of_one_keeps_its_cell_and_its_pictures(tmp_path: Path) -> None:
    one = model(component(ALL, "0-0", 1.0, patterns(1)))
    assert not one.mixed
    save(one, tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.components[0].cell == "0-0"
    whole = model(*one.components, component(ALL, "0-1", 1e-9, patterns(2)))
    np.testing.assert_array_equal(again.pictures_of(ALL, 9), whole.pictures_of(ALL, 9))


NAMES = ["a", "b", "A", "a@b", "a-b", "a--b", "a b", "a.b", "a_b", "@", "", " ", "a@", "@b", "é"]
"""Of labels and of cells; some look like a label with a cell, some differ by case alone."""


def is_safe(file: str) -> bool:
    return file == file.lower() and len(file) < 200 and not set(file) & set('/\\:*?"<>| ')


def test_no_two_components_share_a_file() -> None:
    names = [*NAMES, "x" * 300]
    files = [component(one, cell, 1.0, b"").file for one in names for cell in (None, *names)]
    for one, other in combinations(files, 2):
        assert one.casefold() != other.casefold()
    assert all(is_safe(file) for file in files)


@given(
    st.tuples(st.text(), st.none() | st.text()),
    st.tuples(st.text(), st.none() | st.text()),
)
def test_different_labels_and_cells_have_different_files(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    files = [component(label, cell, 1.0, b"").file for label, cell in (one, other)]
    assert (files[0] == files[1]) == (one == other)
    assert all(is_safe(file) for file in files)


def test_labels_that_spell_each_other_s_files_are_saved_apart(tmp_path: Path) -> None:
    odd = model(
        component("a", "b", 1.0, uniform(BLACK)),
        component("a", "B", 1.0, uniform(GREY)),
        component("a@b", None, 1.0, uniform(WHITE)),
        component("a--b", None, 1.0, uniform(WHITE)),
    )
    save(odd, tmp_path / "m")
    again = load(tmp_path / "m")
    assert set(shades_of(again.pictures_of("a", 10))) == {BLACK, GREY}
    assert set(shades_of(again.pictures_of("a@b", 10))) == {WHITE}


def cells(*names: object) -> Callable[[dict[str, Any]], None]:
    """Gives the components of the label with the mixture other cells."""

    def change(tree: dict[str, Any]) -> None:
        cats = [entry for entry in tree["components"] if entry["label"] == "cat"]
        for entry, name in zip(cats, names, strict=True):
            entry["cell"] = name

    return change


def weight(value: object) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree["components"][2].update(weight=value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (cells("0-0", "0-0"), "two generators of label 'cat' come from the same cell"),
        (cells("0-0", None), "2 generators of label 'cat', one without a cell"),
        (cells(None, None), "2 generators of label 'cat', one without a cell"),
        (cells("0-0", 1), "cell 1 of label 'cat'"),
        (cells(["0"], "1"), r"cell \['0'\] of label 'cat'"),
        (cells("0-0", "\ud800"), r"cell .*ud800.* of label 'cat', expected text that could"),
        (
            lambda tree: tree["components"][1].update(label="\ud800"),
            r"label .*ud800.*, expected text that could name a folder",
        ),
        (lambda tree: tree["components"][1].update(label="cat"), "one without a cell"),
        (lambda tree: [entry.pop("cell") for entry in tree["components"]], "one without a cell"),
        (weight(0), "weight 0.0 of label 'cat'"),
        (weight(-1), "weight -1.0 of label 'cat'"),
        (weight(float("nan")), "weight nan of label 'cat'"),
        (weight(float("inf")), "weight inf of label 'cat'"),
        (
            lambda tree: [entry.update(weight=1e308) for entry in tree["components"]],
            "weights without a finite sum",
        ),
        (weight("much"), "could not convert"),
        (lambda tree: tree.update(format=3), "model format 3, this manege reads 1 and 2$"),
    ],
)
def test_a_damaged_mixture_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], None], problem: str, mixture: Model, tmp_path: Path
) -> None:
    save(mixture, tmp_path / "m")
    path = tmp_path / "m" / "model.json"
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match=problem) as caught:
        load(tmp_path / "m")
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_damaged_generator_is_named_with_its_cell(mixture: Model) -> None:
    small = safetensors.numpy.save({"body.layers.0.weight": np.zeros((2, 2), np.float32)})
    for file, problem in (
        (b"no tensors", "class 'cat', cell '0-1': not a safetensors file"),
        (small, "class 'cat', cell '0-1': tensors of another network .* mlp generator"),
    ):
        broken = model(mixture.components[0], component("cat", "0-1", 1.0, file))
        with pytest.raises(CheckpointError, match=problem):
            broken.pictures_of("cat", 10)
