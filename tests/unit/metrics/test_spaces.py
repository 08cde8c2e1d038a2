"""Feature spaces: their names, their bits, their files, and what they refuse."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.generators import global_generators_left_alone

from manege.config import DataConfig, stream
from manege.data import PictureSet, Split, open_dataset, set_of
from manege.errors import CheckpointError, DataError
from manege.metrics import load_space, mnist_logits_space, points_space, random_space, save_space
from manege.metrics import spaces as module
from manege.metrics.networks import FeatureNetwork, initialise_random
from manege.metrics.spaces import Space, digest_of, weights_of

SIDES = (4, 8, 28, 32, 64)
FORMS = [(side, channels) for side in SIDES for channels in (1, 3)]


def noise(count: int, side: int, channels: int, seed: int = 0) -> np.ndarray:
    shape = (count, side, side, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def as_set(pictures: np.ndarray) -> PictureSet:
    return PictureSet("a", "all", pictures, None, hashlib.sha256(pictures.tobytes()).hexdigest())


def another_random_space(side: int = 8) -> Space:
    """As random as the one of everybody, from other numbers."""
    network = FeatureNetwork(1, num_labels=0)
    initialise_random(network, stream(1, cell="", purpose="another"))
    return Space("random", side, 1, network.eval(), digest_of(network))


# Names.


def test_a_name_is_the_kind_and_eight_digits_of_the_weights_digest(classifier):
    for space in (classifier, random_space(8, 1), another_random_space()):
        assert space.sha256 == hashlib.sha256(weights_of(space.network)).hexdigest()
        assert space.name == f"{space.kind}-{space.sha256[:8]}"
    assert points_space().name == "points"


def test_no_two_spaces_share_a_name(classifier):
    spaces = (
        random_space(8, 1),
        random_space(8, 3),
        another_random_space(),
        points_space(),
        classifier,
    )
    assert len({space.name for space in spaces}) == len(spaces)
    assert len({space.sha256 for space in spaces}) == len(spaces)


# Bits.


@pytest.mark.parametrize(("side", "channels"), FORMS)
def test_features_are_float32_rows_of_the_promised_length(side, channels):
    space = random_space(side, channels)
    features = space.features(noise(9, side, channels))
    assert space.dimensions == {1: 64, 3: 128}[channels] <= 128
    assert features.shape == (9, space.dimensions)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert (features >= 0).all()
    # A space that maps everything to one place would pass all that.
    assert np.ptp(features, axis=0).max() > 0.01


@pytest.mark.parametrize(("side", "channels"), FORMS)
def test_neither_chunks_nor_threads_outside_change_the_bits(side, channels, monkeypatch):
    space = random_space(side, channels)
    pictures = noise(40, side, channels)
    whole = space.features(pictures)
    calls = []
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1)
    np.testing.assert_array_equal(whole, space.features(pictures, lambda *done: calls.append(done)))
    assert calls == [(done, 40) for done in (8, 16, 24, 32, 40)]
    torch.set_num_threads(2)
    try:
        np.testing.assert_array_equal(whole, space.features(pictures))
    finally:
        torch.set_num_threads(1)


def test_the_network_runs_in_one_thread_and_the_callers_number_comes_back(monkeypatch, classifier):
    space = random_space(8, 1)
    seen = []

    def spy(network, name):
        before = getattr(network, name)

        def watched(x):
            seen.append(torch.get_num_threads())
            return before(x)

        monkeypatch.setattr(network, name, watched)

    spy(space.network, "features")
    spy(classifier.network, "logits")
    torch.set_num_threads(2)
    try:
        space.features(noise(8, 8, 1))
        classifier.labels_of(np.zeros((8, 64), np.float32))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 1]


def test_features_are_the_same_bits_in_any_memory_layout():
    space, pictures = random_space(8, 3), noise(20, 8, 3)
    mapped = np.asfortranarray(pictures)
    np.testing.assert_array_equal(space.features(pictures), space.features(mapped))
    np.testing.assert_array_equal(
        space.features(pictures)[::2][:8], space.features(pictures[::2][:8])
    )


def test_a_picture_larger_than_32_is_averaged_down_first():
    small = noise(10, 32, 1)
    large = small.repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_allclose(
        random_space(64, 1).features(large), random_space(32, 1).features(small), rtol=1e-4
    )


@pytest.mark.parametrize(("side", "channels"), [(16, 1), (8, 3)])
def test_pictures_of_another_form_are_refused(side, channels):
    with pytest.raises(DataError, match=rf"{side}x{side}x{channels}, but .* takes 8x8x1"):
        random_space(8, 1).features(noise(8, side, channels))


# The cache.


class Asked(Exception):
    """The network was asked."""


def deaf(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    def features(x):
        raise Asked

    monkeypatch.setattr(space.network, "features", features)


def test_features_of_a_set_are_computed_once(own_cache, monkeypatch):
    space, pictures = random_space(8, 1), as_set(noise(30, 8, 1))
    first = space.features_of(pictures)
    np.testing.assert_array_equal(first, space.features(pictures.pictures))
    deaf(space, monkeypatch)
    again = space.features_of(pictures)
    np.testing.assert_array_equal(first, again)
    assert again.dtype == np.float32
    assert again.flags.writeable


def test_other_pictures_or_other_weights_are_computed_anew(own_cache, monkeypatch):
    space, pictures = random_space(8, 1), as_set(noise(30, 8, 1))
    kept = space.features_of(pictures)
    other = another_random_space()
    assert not np.array_equal(other.features_of(pictures), kept)
    deaf(space, monkeypatch)
    with pytest.raises(Asked):
        space.features_of(as_set(noise(30, 8, 1, seed=1)))
    with pytest.raises(Asked):
        replace(space, sha256=hashlib.sha256(b"other weights").hexdigest()).features_of(pictures)
    with pytest.raises(Asked):
        replace(space, kind="classifier").features_of(pictures)
    np.testing.assert_array_equal(space.features_of(pictures), kept)


def test_a_cut_off_entry_is_computed_anew(own_cache):
    space, pictures = random_space(8, 1), as_set(noise(30, 8, 1))
    whole = space.features_of(pictures)
    (entry,) = (own_cache / "features").glob("*.npy")
    entry.write_bytes(entry.read_bytes()[:-100])
    np.testing.assert_array_equal(space.features_of(pictures), whole)


def test_a_flipped_bit_of_an_entry_is_computed_anew(own_cache, capsys):
    space, pictures = random_space(8, 1), as_set(noise(30, 8, 1))
    whole = space.features_of(pictures)
    (entry,) = (own_cache / "features").glob("*.npy")
    content = entry.read_bytes()
    entry.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    np.testing.assert_array_equal(space.features_of(pictures), whole)
    assert entry.read_bytes() == content
    assert f"warning: {entry}: " in capsys.readouterr().err


def test_no_pictures_have_no_features(own_cache):
    space, nothing = random_space(8, 1), as_set(noise(0, 8, 1))
    for _ in range(2):
        features = space.features_of(nothing)
        assert features.shape == (0, 64)
        assert features.dtype == np.float32


# The spaces by themselves.


def test_the_random_space_is_the_same_for_everybody():
    pinned = {
        1: "30bfec07188b40d713fc56cba90987b6151230c3da9f73f0c55e9cd070325596",
        3: "e51a5534c5b335f0c386893559474d3da4a80ee718b90e74326fee0d4cef8065",
    }
    for channels, sha256 in pinned.items():
        assert {random_space(side, channels).sha256 for side in SIDES} == {sha256}


def test_the_random_space_knows_no_labels():
    space = random_space(8, 1)
    assert space.labels == ()
    assert space.trained_on is None
    assert space.accuracy is None
    with pytest.raises(ValueError, match="knows no labels"):
        space.labels_of(np.zeros((3, 64), np.float32))


def test_no_layer_of_the_random_space_shrinks_what_it_is_given():
    features = random_space(32, 3).features(noise(64, 32, 3))
    assert 0.05 < features.std() < 5
    assert (np.ptp(features, axis=0) > 0).mean() > 0.9  # Units that never fire are few.


def test_features_of_a_point_are_its_coordinates():
    points = noise(50, 1, 2)
    features = points_space().features(points)
    assert points_space().dimensions == 2
    np.testing.assert_allclose(features, points.reshape(-1, 2) / 127.5 - 1, atol=1e-6)


def test_labels_are_those_of_the_largest_logit(three, classifier):
    held_out = set_of(three, Split.HELD_OUT)
    features = classifier.features(held_out.pictures)
    found = classifier.labels_of(features)
    head = classifier.network.head
    logits = features.astype(np.float64) @ head.weight.detach().numpy().T.astype(np.float64)
    np.testing.assert_array_equal(found, (logits + head.bias.detach().numpy()).argmax(1))
    assert np.mean(np.array(three.labels)[found] == np.array(held_out.labels)) > 0.9


# Files.


@pytest.fixture(params=["random", "classifier", "points"])
def space(request, classifier):
    return {
        "random": another_random_space(),
        "classifier": classifier,
        "points": points_space(),
    }[request.param]


def test_a_space_saved_and_loaded_gives_the_same_features(space, tmp_path):
    save_space(space, tmp_path / "new" / "scorer")
    loaded = load_space(tmp_path / "new" / "scorer")
    assert loaded == space
    assert loaded.description() == space.description()
    assert weights_of(loaded.network) == weights_of(space.network)
    pictures = noise(30, space.size, space.channels)
    np.testing.assert_array_equal(loaded.features(pictures), space.features(pictures))
    if space.labels:
        features = space.features(pictures)
        np.testing.assert_array_equal(loaded.labels_of(features), space.labels_of(features))


def edit(folder: Path, **changes) -> None:
    path = folder / "scorer.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(tree | changes))


def without(folder: Path, key: str) -> None:
    path = folder / "scorer.json"
    tree = json.loads(path.read_text())
    del tree[key]
    path.write_text(json.dumps(tree))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap_weights(folder: Path, network: FeatureNetwork) -> None:
    """Weights that do not fit, though the description even tells their digest."""
    data = weights_of(network)
    (folder / "space.safetensors").write_bytes(data)
    edit(folder, sha256=hashlib.sha256(data).hexdigest())


DAMAGES = {
    "flipped weights": lambda folder: flip(folder / "space.safetensors"),
    "cut weights": lambda folder: (folder / "space.safetensors").write_bytes(b"123"),
    "no weights": lambda folder: (folder / "space.safetensors").unlink(),
    "weights are a folder": lambda folder: (
        (folder / "space.safetensors").unlink(),
        (folder / "space.safetensors").mkdir(),
    ),
    "no description": lambda folder: (folder / "scorer.json").unlink(),
    "no folder": shutil.rmtree,
    "no JSON": lambda folder: (folder / "scorer.json").write_bytes(b"\xff{"),
    "empty": lambda folder: (folder / "scorer.json").write_bytes(b""),
    "a list": lambda folder: (folder / "scorer.json").write_text("[1]"),
    "deep": lambda folder: (folder / "scorer.json").write_text("[" * 100_000),
    "other format": lambda folder: edit(folder, format=2),
    "other kind": lambda folder: edit(folder, kind="inception"),
    "kind of other layers": lambda folder: edit(folder, kind="mnist-logits"),
    "more labels": lambda folder: edit(folder, labels=["a", "b"]),
    "labels are a number": lambda folder: edit(folder, labels=3),
    "other channels": lambda folder: edit(folder, channels=3),
    "channels of points": lambda folder: edit(folder, channels=2),
    "size in words": lambda folder: edit(folder, size="eight"),
    "odd accuracy": lambda folder: edit(folder, accuracy={"value": 1}),
    "no digest": lambda folder: without(folder, "sha256"),
    "no labels": lambda folder: without(folder, "labels"),
    "tensors of another network": lambda folder: swap_weights(folder, random_space(8, 3).network),
    "no safetensors at all": lambda folder: (
        (folder / "space.safetensors").write_bytes(b"junk" * 50),
        edit(folder, sha256=hashlib.sha256(b"junk" * 50).hexdigest()),
    ),
    "half precision": lambda folder: swap_weights(folder, random_space(8, 1).network.half()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_space_is_one_line(damage, tmp_path):
    folder = tmp_path / "scorer"
    save_space(random_space(8, 1), folder)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        load_space(folder)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert str(folder) in text
    assert len(text) < 500


def test_a_space_without_its_description_is_none(tmp_path, monkeypatch):
    """The description comes last: a writer that dies before it leaves no space behind."""
    written = []
    monkeypatch.setattr(module, "write_atomic", lambda path, data: written.append(path.name))
    save_space(random_space(8, 1), tmp_path / "scorer")
    assert written == ["space.safetensors", "scorer.json"]


# The classifier of Lipizzaner.


@pytest.fixture
def logits_file(real_data):
    return real_data / "classifiers" / "lipizzaner_mnist_cnn.pkl"


def test_mnist_logits_are_right_on_mnist(real_data, logits_file, tmp_path):
    space = mnist_logits_space(logits_file)
    dataset = open_dataset(DataConfig(source="mnist", root=str(real_data)))
    test = set_of(dataset, Split.HELD_OUT)
    assert len(test) == 10_000
    features = space.features(test.pictures)
    assert features.shape == (10_000, space.dimensions) == (10_000, 10)
    found = space.labels_of(features)
    np.testing.assert_array_equal(found, features.argmax(1))
    assert np.mean(np.array(space.labels)[found] == np.array(test.labels)) >= 0.992
    save_space(space, tmp_path / "scorer")
    loaded = load_space(tmp_path / "scorer")
    assert loaded == space
    np.testing.assert_array_equal(loaded.features(test.pictures[:100]), features[:100])


class Evil:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def pickled(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content))


def torch_saved(path: Path, content: object) -> None:
    torch.save(content, path)


def torch_saved_as_of_old(path: Path, content: object) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [pickled, torch_saved, torch_saved_as_of_old])
def test_a_pickle_that_would_do_something_is_refused_and_does_nothing(write, tmp_path):
    harm, file = tmp_path / "harm", tmp_path / "evil.pkl"
    write(file, {"conv1.weight": Evil(harm)})
    with pytest.raises(DataError, match="not the MNIST classifier") as caught:
        mnist_logits_space(file)
    assert len(str(caught.value).splitlines()) == 1
    assert not harm.exists()
    # The file is as evil as it pretends to be.
    if write is pickled:
        pickle.loads(file.read_bytes())
        assert harm.exists()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("not a pickle at all\n" * 40),
        lambda path: torch.save([1, 2, 3], path),
        lambda path: torch.save({"conv1.weight": torch.zeros(3)}, path),
        lambda path: torch.save({"a": 1}, path),
        lambda path: torch.save(random_space(8, 1).network.state_dict(), path),
    ],
    ids=["empty", "text", "list", "wrong shape", "no tensors", "another network"],
)
def test_a_file_that_is_no_such_state_dict_is_one_line(write, tmp_path):
    file = tmp_path / "file.pkl"
    write(file)
    with pytest.raises(DataError, match="not the MNIST classifier") as caught:
        mnist_logits_space(file)
    assert str(caught.value).startswith(str(file))
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_says_how_to_give_one(tmp_path):
    with pytest.raises(DataError, match="features mnist-logits=FILE") as caught:
        mnist_logits_space(tmp_path / "nowhere.pkl")
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(DataError):
        mnist_logits_space(tmp_path)


def test_making_spaces_leaves_the_global_generators_alone(tmp_path):
    with global_generators_left_alone():
        save_space(random_space(8, 1), tmp_path / "scorer")
        load_space(tmp_path / "scorer").features(noise(8, 8, 1))
        points_space().features(noise(8, 1, 2))


def test_strides_of_grey_pictures_do_not_count():
    pictures = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    odd = np.ascontiguousarray(pictures.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
    space = random_space(8, 1)
    assert np.array_equal(space.features(pictures), space.features(odd))
