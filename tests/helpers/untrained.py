"""Models of untrained generators, for tests that need pictures and no training."""

from __future__ import annotations

import hashlib

import numpy as np
import safetensors.numpy
import torch

from manege.config import MlpNetworks, stream
from manege.models import PictureShape, Spec, build_generator, initialise, with_label
from manege.sampler import Component, Model

SHAPE = PictureShape(8, 1)
NETWORKS = MlpNetworks(latent=8, hidden=16)


def tensors(spec: Spec, shape: PictureShape, seed: int, labels: int = 0) -> dict[str, torch.Tensor]:
    """A generator's state dict; its statistics are not those of a fresh one."""
    generator = build_generator(spec, shape, labels).to_empty(device="cpu")
    initialise(generator, stream(seed, cell="", purpose="test"))
    rng = np.random.default_rng(seed)
    found = {name: tensor.detach() for name, tensor in generator.state_dict().items()}
    for name, tensor in found.items():
        if "running" in name:
            tensor.copy_(torch.from_numpy(rng.uniform(0.2, 1, tuple(tensor.shape))))
    return found


def component(
    label: str,
    seed: int,
    *,
    weight: float = 1.0,
    cell: str | None = None,
    networks: Spec = NETWORKS,
    shape: PictureShape = SHAPE,
) -> Component:
    return _of(tensors(networks, shape, seed), label, weight, cell, networks)


def conditional(
    labels: tuple[str, ...], networks: Spec = NETWORKS, shape: PictureShape = SHAPE
) -> Model:
    """The model of one network that is told the label."""
    told = tensors(networks, shape, 1, len(labels))
    parts = (
        _of(with_label(told, number), label, 1.0 + number, None, networks)
        for number, label in enumerate(labels)
    )
    return Model(shape, tuple(parts))


def mixture() -> Model:
    """A label of two generators, and one of a single one."""
    return Model(
        SHAPE,
        (
            component("cat", 1, weight=3.0, cell="0-0"),
            component("dog", 2, weight=4.0),
            component("cat", 3, weight=1.0, cell="0-1"),
        ),
    )


def _of(
    own: dict[str, torch.Tensor], label: str, weight: float, cell: str | None, networks: Spec
) -> Component:
    arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in own.items()}
    file = bytes(safetensors.numpy.save(arrays))
    digest = hashlib.sha256(file).hexdigest()
    return Component(label, weight, networks, {"rounds": 1}, digest, lambda: file, cell)
