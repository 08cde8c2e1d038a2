"""Pictures of given latents, and the way between two of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.untrained import component, conditional, mixture

from manege.config import DcganNetworks
from manege.errors import ConfigError
from manege.models import PictureShape
from manege.sampler import Model
from manege.sampler.latents import spherical


@pytest.mark.parametrize("model", [mixture(), conditional(("cat", "dog"))], ids=["mixture", "one"])
@pytest.mark.parametrize("mixing", ["exact", "independent"])
def test_the_latents_of_drawn_pictures_draw_them_again(model: Model, mixing: str) -> None:
    if mixing == "independent" and not model.mixed:
        mixing = "exact"
    drawn = model.sample(70, label="cat", seed=5, mixing=mixing)
    some = [0, 40, 3, 69]
    found = model.latents(some, label="cat", seed=5, mixing=mixing)
    again = model.generate(*found)
    assert (found.z.shape, found.z.dtype, again.labels) == ((4, 8), np.float32, ("cat",) * 4)
    np.testing.assert_array_equal(again.pictures, drawn.pictures[some])


def test_latents_may_be_tensors_and_have_a_label_each() -> None:
    model = conditional(("cat", "dog"))
    z = torch.from_numpy(model.latents(range(6), label="cat").z)
    mixed = model.generate(z, ["cat", "dog", "dog", "cat", "cat", "dog"])
    assert mixed.labels == ("cat", "dog", "dog", "cat", "cat", "dog")
    assert mixed.indices == tuple(range(6))
    for label in model.labels:
        own = [one == label for one in mixed.labels]
        alone = model.generate(z, label).pictures
        np.testing.assert_array_equal(mixed.pictures[own], alone[own])


def test_labels_are_drawn_by_their_probability_where_none_is_given() -> None:
    model = mixture()
    u = np.array([0.0, 0.49, 0.51, 0.99])
    drawn = model.generate(np.zeros((4, 8), np.float32), u=u)
    assert drawn.labels == ("cat", "cat", "dog", "dog")
    # The part of u within cat's half goes on to choose among its generators, 3 : 1.
    by_cat = model.generate(np.zeros((2, 8), np.float32), "cat", u=[0.0, 0.98])
    np.testing.assert_array_equal(drawn.pictures[:2], by_cat.pictures)
    assert (by_cat.pictures[0] != by_cat.pictures[1]).any()


Z = np.zeros((3, 8), np.float32)


@pytest.mark.parametrize(
    ("z", "label", "u", "told"),
    [
        (np.zeros((3, 7)), "dog", None, r"z: found ndarray of shape \(3, 7\) and dtype float64, "),
        (np.zeros(8), "dog", None, "expected an array of N latents"),
        (np.zeros((3, 8), int), "dog", None, r"shape \(3, 8\) and dtype int64, expected floats"),
        (torch.zeros(3, 9), "dog", None, r"Tensor of shape \(3, 9\) and dtype torch.float32, exp"),
        (np.full((1, 8), np.nan), "dog", None, "not finite"),
        ([[1.0], [1.0, 2.0]], "dog", None, "^z: found .*, expected an array of numbers"),
        (Z, "dgo", None, "label 'dgo': not in this model, .*; did you mean dog"),
        (Z, ["dog"], None, "label: found 1 labels, expected one for all, or one for each of 3"),
        (Z, "cat", None, "label 'cat': drawn by 2 generators, found no u"),
        (Z, None, None, "label: found none and 2 labels"),
        (Z, "cat", [0.5], "^u: found .*, expected 3 numbers, one a latent"),
        (Z, "cat", [0.5, 0.5, 1.0], r"u: found numbers outside \[0, 1\)"),
    ],
)
def test_what_cannot_be_drawn_is_told_by_shape_and_dtype(z, label, u, told) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        mixture().generate(z, label, u)
    assert "\n" not in str(raised.value)


def test_a_way_begins_and_ends_with_the_pictures_that_it_leads_between() -> None:
    model = mixture()
    drawn = model.sample(8, label="dog", seed=2).pictures
    found = model.interpolate(3, 7, 5, label="dog", seed=2)
    assert (found.labels, found.indices) == (("dog",) * 5, (0, 1, 2, 3, 4))
    np.testing.assert_array_equal(found.pictures[[0, -1]], drawn[[3, 7]])
    z = model.latents([3, 7], label="dog", seed=2).z
    given = model.interpolate(z[0], torch.from_numpy(z[1]), 5, label="dog")
    np.testing.assert_array_equal(given.pictures, found.pictures)
    assert len(np.unique(found.pictures, axis=0)) == 5


@pytest.mark.parametrize("convolutional", [False, True])
def test_a_conditional_network_leads_from_label_to_label(convolutional: bool) -> None:
    small = {"latent": 6, "generator_width": 4}
    which = (DcganNetworks(**small), PictureShape(16, 3)) if convolutional else ()
    model = conditional(("cat", "dog", "eel"), *which)
    found = model.interpolate(1, 2, 4, label="dog", to_label="eel")
    assert found.labels == ("dog to eel",) * 4
    np.testing.assert_array_equal(found.pictures[0], model.sample(2, label="dog").pictures[1])
    np.testing.assert_array_equal(found.pictures[-1], model.sample(3, label="eel").pictures[2])
    assert len(np.unique(found.pictures, axis=0)) == 4


@pytest.mark.parametrize(
    ("a", "b", "options", "told"),
    [
        (0, 1, {"label": "dog", "to_label": "cat"}, "between which no way leads"),
        (0, 2, {"label": "cat"}, "picture 0 of label 'cat' and picture 2 of label 'cat': drawn by"),
        (0, 1, {}, "label: found none, expected one of cat, dog"),
        (0, 1, {"label": "dog", "steps": 1}, "steps 1: expected at least 2"),
        (-1, 1, {"label": "dog"}, "indices: found -1, expected pictures' numbers from 0 up"),
        (np.zeros(7), 1, {"label": "dog"}, r"a: found ndarray of shape \(7,\) and dtype float64"),
        (np.zeros(8), 1, {"label": "cat"}, "a: found a latent, expected the number of a picture"),
        (np.ones(8), -np.ones(8), {"label": "dog"}, "opposite latents"),
        (0, 1, {"label": "dog", "to_label": "cta"}, "label 'cta': not in this model"),
    ],
)
def test_a_way_that_leads_nowhere_is_refused(a, b, options, told) -> None:
    with pytest.raises(ConfigError, match=told):
        mixture().interpolate(a, b, **options)


def test_the_way_stays_on_the_sphere_at_an_even_angle() -> None:
    a, b = np.array([3.0, 0.0, 0.0]), np.array([0.0, 3.0, 0.0])
    way = spherical(a, b, 7)
    np.testing.assert_allclose(np.linalg.norm(way, axis=1), 3, rtol=1e-6)
    np.testing.assert_allclose(
        np.arctan2(way[:, 1], way[:, 0]), np.linspace(0, np.pi / 2, 7), atol=1e-6
    )
    np.testing.assert_array_equal(spherical(a, a, 3), np.tile(a, (3, 1)).astype(np.float32))


def test_a_merged_model_takes_latents_as_wide_as_the_label_needs() -> None:
    from manege.config import MlpNetworks

    wide = component("owl", 4, networks=MlpNetworks(latent=12, hidden=16))
    model = mixture().merged(Model(mixture().shape, (wide,)))
    z = np.ones((2, 12), np.float32)
    both = model.generate(z, ["dog", "owl"]).pictures
    np.testing.assert_array_equal(both[0], model.generate(z[:1, :8], "dog").pictures[0])
    np.testing.assert_array_equal(both[1], model.generate(z[1:], "owl").pictures[0])
