"""Bytes to floats and back."""

from __future__ import annotations

import numpy as np
import torch

from manege.cell import Individual
from manege.config import DcganNetworks, stream
from manege.models import (
    PictureShape,
    build_generator,
    generate,
    initialise,
    to_bytes,
    to_floats,
)


def test_every_byte_survives_the_way_to_floats_and_back():
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    floats = to_floats(torch.from_numpy(ramp))
    assert floats.shape == (1, 1, 16, 16)
    assert floats.min() == -1
    assert floats.max() == 1
    assert np.array_equal(to_bytes(floats), ramp)


def test_floats_are_channels_last_and_keep_colours_in_place():
    pictures = np.zeros((2, 4, 4, 3), np.uint8)
    pictures[:, :, :, 1] = 255
    floats = to_floats(torch.from_numpy(pictures))
    assert floats.is_contiguous(memory_format=torch.channels_last)
    assert (floats[:, 1] == 1).all()
    assert (floats[:, 0] == -1).all()


def test_generating_changes_nothing_in_the_generator():
    individual = Individual(
        build_generator(DcganNetworks(), PictureShape(8, 1)), torch.device("cpu")
    )
    initialise(individual.network, stream(0, cell="x", purpose="init"))
    before = individual.record.clone()
    z = np.random.default_rng(0).standard_normal((4, 100), dtype=np.float32)
    alone = generate(individual.network, z[:1].repeat(4, axis=0))
    together = generate(individual.network, z)
    assert torch.equal(before, individual.record)
    assert individual.network.training
    assert np.array_equal(alone[0], together[0])  # No picture depends on its batch.
