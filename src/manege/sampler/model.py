"""The combined model, eq. (8): p(x) = Σ p(x | y) p(y); each label routes to its own generator.

Picture k of a label depends only on (seed, label, k): not on how many are asked for, nor on the
other labels in the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from manege import device
from manege.config import ALL, stream
from manege.errors import CheckpointError, ConfigError
from manege.models import Generator, PictureShape, Spec, build_generator, fill, generate
from manege.rundir import cell_folder
from manege.version import __version__

FORMAT = 1
CHUNK = 32
"""Pictures generated at once, always: a batch of another size gives other bits."""


@dataclass(frozen=True)
class Component:
    """One generator of the mixture."""

    label: str
    weight: float
    """Proportional to p(y)."""
    networks: Spec
    trained: Mapping[str, Any]
    """Where it comes from: rounds, seed, preset, loss, constraint."""
    sha256: str
    """Of the safetensors file."""
    read: Callable[[], bytes] = field(repr=False, compare=False)
    """The safetensors file, verified; read when needed: a model may have a thousand of them."""

    @property
    def file(self) -> str:
        """Name of the safetensors file in a model's folder."""
        return f"{cell_folder(self.label)}.safetensors"


@dataclass(frozen=True)
class Samples:
    """Pictures, N×S×S×C bytes, and for each its label and its number within that label."""

    pictures: np.ndarray
    labels: tuple[str, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A class-conditional sampler."""

    shape: PictureShape
    components: tuple[Component, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Labels the model ought to have and has not, with the reason."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels it can draw."""
        return tuple(component.label for component in self.components)

    @property
    def unlabelled(self) -> bool:
        """Whether it is one GAN for all the data, whose pictures have no labels."""
        return self.labels == (ALL,)

    @property
    def probabilities(self) -> dict[str, float]:
        """P(y), over the labels that are here."""
        total = sum(component.weight for component in self.components)
        return {component.label: component.weight / total for component in self.components}

    @property
    def digest(self) -> str:
        """Digest of the description, which holds the weights' own."""
        return hashlib.sha256(json.dumps(self.description(), sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def sample(
        self,
        count: int,
        *,
        label: str | None = None,
        balanced: bool = False,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
        device_name: str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> Samples:
        """Draw pictures; labels by p(y) unless told otherwise.

        Args:
            count: how many.
            label: all of this label.
            balanced: equally many of each label, in order.
            weights: draw labels by these instead of p(y); labels left out get none.
            seed: the same seed draws the same pictures.
            device_name: where the generators run.
            progress: called now and then with (pictures drawn, pictures in all).
        """
        if count < 1:
            raise ConfigError(f"-n {count}: expected at least 1 picture")
        if (label is not None) + balanced + (weights is not None) > 1:
            raise ConfigError("--label, --balanced and --weights exclude each other; give one")
        if label is not None:
            self.component(label)
            drawn = [label] * count
        elif balanced:
            drawn = sorted(
                (self.labels[k % len(self.labels)] for k in range(count)), key=self.labels.index
            )
        else:
            drawn = self._draw_labels(count, weights or self.probabilities, seed)
        numbers: dict[str, int] = dict.fromkeys(drawn, 0)
        indices = []
        for one in drawn:
            indices.append(numbers[one])
            numbers[one] += 1
        made: dict[str, np.ndarray] = {}
        for one, number in numbers.items():
            before = sum(len(pictures) for pictures in made.values())
            tell = None if progress is None else _shifted(progress, before, count)
            made[one] = self.pictures_of(one, number, seed, device_name, tell)
        pictures = np.stack([made[one][k] for one, k in zip(drawn, indices, strict=True)])
        return Samples(pictures, tuple(drawn), tuple(indices))

    def pictures_of(
        self,
        label: str,
        count: int,
        seed: int = 0,
        device_name: str = "cpu",
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Pictures 0 … count-1 of one label; `progress` is called with how many are there."""
        generator = self.generator(label, device.resolve(device_name))
        chunks = []
        # One thread: two would change a convolution's bits.
        with device.threads(1):
            for chunk in range(-(-count // CHUNK)):
                rng = stream(seed, cell=label, purpose="sample", step=chunk)
                z_BZ = rng.standard_normal((CHUNK, generator.latent), dtype=np.float32)
                chunks.append(generate(generator, z_BZ))
                if progress is not None:
                    progress(min(count, (chunk + 1) * CHUNK))
        return np.concatenate(chunks)[:count]

    def generator(self, label: str, on: torch.device) -> Generator:
        """The label's generator, ready to draw."""
        component = self.component(label)
        generator = build_generator(component.networks, self.shape)
        try:
            tensors = safetensors.numpy.load(component.read())
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"class {label!r}: not a safetensors file ({error})") from None
        try:
            fill(generator, {name: torch.from_numpy(value) for name, value in tensors.items()})
        except ValueError as error:
            raise CheckpointError(
                f"class {label!r}: {error}; expected its {component.networks.kind} generator: "
                "the model was changed by hand or made by another version"
            ) from None
        return generator.to(on).eval()

    def component(self, label: str) -> Component:
        """The component of a label; ConfigError says why there is none."""
        for component in self.components:
            if component.label == label:
                return component
        if label in self.missing:
            raise ConfigError(
                f"label {label!r}: missing from this model ({self.missing[label]}); "
                f"it has {_list(self.labels)}"
            )
        near = get_close_matches(label, self.labels, n=1)
        raise ConfigError(
            f"label {label!r}: not in this model, which has {_list(self.labels)}"
            + (f"; did you mean {near[0]}?" if near else "")
        )

    def merged(self, other: Model) -> Model:
        """All labels of both; each keeps its generator, p(y) follows the summed weights."""
        if other.shape != self.shape:
            raise ConfigError(
                f"models of different pictures: {_shape(self.shape)} and {_shape(other.shape)}; "
                "train both with the same --size and --channels"
            )
        both = sorted(set(self.labels) & set(other.labels))
        if both:
            raise ConfigError(
                f"label {both[0]!r} is in both models; drop it from one first: "
                f"manege model drop MODEL --class {both[0]} -o OTHER"
            )
        components = (*self.components, *other.components)
        have = {component.label for component in components}
        missing = {k: v for k, v in {**self.missing, **other.missing}.items() if k not in have}
        return replace(self, components=components, missing=missing)

    def without(self, labels: Iterable[str]) -> Model:
        """The model less some labels."""
        gone = {self.component(label).label for label in labels}
        if gone == set(self.labels):
            raise ConfigError("dropping every label would leave an empty model; keep at least one")
        kept = tuple(c for c in self.components if c.label not in gone)
        return replace(self, components=kept)

    def description(self) -> dict[str, Any]:
        """What model.json holds."""
        return {
            "format": FORMAT,
            "manege": __version__,
            "picture": {"size": self.shape.size, "channels": self.shape.channels},
            "components": [
                {
                    "label": component.label,
                    "weight": component.weight,
                    "networks": component.networks.model_dump(mode="json"),
                    "file": component.file,
                    "sha256": component.sha256,
                    "trained": dict(component.trained),
                }
                for component in self.components
            ],
            "missing": dict(self.missing),
        }

    def _draw_labels(self, count: int, weights: Mapping[str, float], seed: int) -> list[str]:
        for label, weight in weights.items():
            self.component(label)
            if not (weight >= 0 and np.isfinite(weight)):
                raise ConfigError(f"--weights {label}={weight}: expected a number from 0 up")
        total = sum(weights.values())
        if total <= 0:
            raise ConfigError("--weights: all are 0; give at least one label a positive weight")
        # By inverse distribution function, so that label i does not depend on how many follow.
        edges = np.cumsum([weight / total for weight in weights.values()])
        edges[-1] = 1.0
        uniform = stream(seed, cell="", purpose="labels").random(count)
        names = list(weights)
        return [names[i] for i in np.searchsorted(edges, uniform, side="right")]


def _shifted(
    progress: Callable[[int, int], None], before: int, total: int
) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


def _shape(shape: PictureShape) -> str:
    return f"{shape.size}x{shape.size}x{shape.channels}"


def _list(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:12])
    return shown + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")
