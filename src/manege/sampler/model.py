"""The combined model, eq. (8): p(x) = Σ p(x | y) p(y); each label routes to its own generator.

A label may also be a mixture: several generators, each with its weight, draw its pictures. Picture
k of a label depends only on (seed, label, k, mixing): not on how many are asked for, nor on the
other labels in the model.

Shape legend: N pictures, S side, C channels, B batch, Z latent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from manege import device, errors, machine, picture_files, pictures
from manege.cell.mixture import proportions
from manege.config import ALL, OwnNetworks, stream
from manege.errors import CheckpointError, ConfigError
from manege.models import Generator, PictureShape, Spec, build_generator, fill, generate
from manege.plugins import check_sources
from manege.runs import cell_folder
from manege.sampler.latents import (
    CHUNK,
    End,
    Latents,
    by_chance,
    drawn_chunk,
    end_of,
    latents_of,
    pictures_at,
    shares,
    way,
)
from manege.sampler.module import module_of
from manege.sampler.plain import Sampler
from manege.version import __version__
from manege.view.notebook import axes, html_of_samples

FORMATS = (1, 2)
"""The formats of model.json. 1: a generator for each label. 2: some name their cell."""


class Mixing(StrEnum):
    """How the generators of a mixture share its pictures."""

    EXACT = "exact"
    """In proportion to the weights: however many are drawn, each is within one of its share."""
    INDEPENDENT = "independent"
    """By chance: each picture's generator is drawn independently of the others."""


@dataclass(frozen=True)
class Component:
    """One generator of the model."""

    label: str
    weight: float
    """A label's p(y) is proportional to its weights' sum, a generator's share of it to its own."""
    networks: Spec
    trained: Mapping[str, Any]
    """How it was trained: rounds, seed, preset, loss, constraint."""
    sha256: str
    """The digest of the safetensors file."""
    read: Callable[[], bytes] = field(repr=False, compare=False)
    """Reads and verifies the safetensors file; only when needed, as there may be a thousand."""
    cell: str | None = None
    """The cell of the grid that it comes from; None if it is its label's only generator."""

    @property
    def file(self) -> str:
        """The name of the safetensors file in a model's folder."""
        # No folder name has an @, so that no label can spell the file of another's cell.
        place = "" if self.cell is None else f"@{cell_folder(self.cell)}"
        return f"{cell_folder(self.label)}{place}.safetensors"

    @property
    def name(self) -> str:
        """What errors call this generator."""
        place = "" if self.cell is None else f", cell {self.cell!r}"
        return f"class {self.label!r}{place}"


@dataclass(frozen=True, repr=False)
class Samples:
    """Pictures, N×S×S×C bytes, and for each its label and its number within that label."""

    pictures: np.ndarray
    labels: tuple[str, ...]
    indices: tuple[int, ...]
    recipe: Mapping[str, str] = field(default_factory=dict)
    """What they come from: the model's digest, the seed."""

    def save(self, out: str | Path, columns: int | None = None) -> Path:
        """Write them as a sheet (.png), arrays (.npz), a moving picture (.gif) or a folder.

        What is there is written over, a folder only if manege made it; `columns` is for a sheet.
        """
        path = Path(out)
        picture_files.check_free(path, force=True, moving=True)
        picture_files.write(self, path, self.recipe, columns)
        return path

    def plot(self, ax: Any = None, columns: int | None = None) -> Any:
        """Draw a sheet of them on matplotlib's axes, new ones when None; return the axes."""
        ax = axes(ax)
        sheet = pictures.grid(self.pictures, columns)
        ax.imshow(sheet[..., 0] if sheet.shape[2] == 1 else sheet, cmap="gray", vmin=0, vmax=255)
        ax.set_axis_off()
        return ax

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.pictures.shape[1:]))
        return f"Samples({len(self)} pictures of {shape})"

    def _repr_html_(self) -> str:
        return html_of_samples(self.pictures, self.labels)


@dataclass(frozen=True)
class Model:
    """A class-conditional sampler, made of one or more generators for each label."""

    shape: PictureShape
    components: tuple[Component, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Labels that the model should have and has not, with the reason."""

    def __post_init__(self) -> None:
        for label, components in self._by_label.items():
            cells = [component.cell for component in components]
            if len(cells) > 1 and None in cells:
                raise ValueError(f"{len(cells)} generators of label {label!r}, one without a cell")
            if len(set(cells)) < len(cells):
                raise ValueError(f"two generators of label {label!r} come from the same cell")

    @cached_property
    def _by_label(self) -> dict[str, tuple[Component, ...]]:
        found: dict[str, list[Component]] = {}
        for component in self.components:
            found.setdefault(component.label, []).append(component)
        return {label: tuple(components) for label, components in found.items()}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the model can draw."""
        return tuple(self._by_label)

    @property
    def mixed(self) -> bool:
        """Whether some label is drawn by several generators."""
        return len(self._by_label) < len(self.components)

    @property
    def unlabelled(self) -> bool:
        """Whether it is made for all the data at once, so that its pictures have no labels."""
        return self.labels == (ALL,)

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability p(y) of every label that is here."""
        total = sum(component.weight for component in self.components)
        return {
            label: sum(component.weight for component in components) / total
            for label, components in self._by_label.items()
        }

    @property
    def digest(self) -> str:
        """The digest of the description, which includes the digests of the weights."""
        return hashlib.sha256(json.dumps(self.description(), sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def recipe(self, seed: int, mixing: str) -> dict[str, str]:
        """Return what a picture comes from, beside its label and index.

        The mixing is part of it where there is a mixture.
        """
        recipe = {"model": self.digest, "seed": str(seed)}
        return {**recipe, "mixing": str(mixing)} if self.mixed else recipe

    def sample(
        self,
        count: int,
        *,
        label: str | None = None,
        balanced: bool = False,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
        device_name: str = "cpu",
        mixing: str = Mixing.EXACT,
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
            mixing: how a mixture's generators share its pictures, a `Mixing`.
            progress: called now and then with (pictures drawn, pictures in all).
        """
        if count < 1:
            raise ConfigError(f"{errors.field('count')} {count}: expected at least 1 picture")
        require_memory(f"{errors.field('count')} {count}", count, self.shape)
        if (label is not None) + balanced + (weights is not None) > 1:
            raise ConfigError(
                f"{errors.field('label')}, {errors.field('balanced')} and "
                f"{errors.field('weights')} exclude each other; give one"
            )
        self._check_mixing(mixing, [label] if label is not None else weights or self.labels)
        if label is not None:
            drawn = [label] * count
        elif balanced:
            each, left = divmod(count, len(self.labels))
            drawn = [one for k, one in enumerate(self.labels) for _ in range(each + (k < left))]
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
            made[one] = self.pictures_of(one, number, seed, device_name, tell, mixing)
        pictures = np.stack([made[one][k] for one, k in zip(drawn, indices, strict=True)])
        recipe = self.recipe(seed, mixing)
        return Samples(pictures, tuple(drawn), tuple(indices), recipe)

    def pictures_of(
        self,
        label: str,
        count: int,
        seed: int = 0,
        device_name: str = "cpu",
        progress: Callable[[int], None] | None = None,
        mixing: str = Mixing.EXACT,
        start: int = 0,
    ) -> np.ndarray:
        """Return pictures start … count-1 of one label; tell `progress` how far it has come."""
        components, on = self.components_of(label), device.resolve(device_name)
        owner_N = _owners(components, count, seed, _known_mixing(mixing))
        size, channels = self.shape.size, self.shape.channels
        pictures_NSSC = np.empty((count - start, size, size, channels), np.uint8)
        done = start
        for place, component in enumerate(components):
            wanted_N = owner_N[start:] == place
            if not wanted_N.any():
                continue  # Its file is not even read.
            before = int((owner_N[:start] == place).sum())
            own = range(before, before + int(wanted_N.sum()))
            tell = None if progress is None else _from(progress, done)
            pictures_NSSC[wanted_N] = self._drawn_by(component, own, seed, on, tell)
            done += len(own)
        return pictures_NSSC

    def _drawn_by(
        self,
        component: Component,
        numbers: range,
        seed: int,
        on: torch.device,
        progress: Callable[[int], None] | None,
    ) -> np.ndarray:
        """Return the pictures with these numbers of one generator."""
        generator = self.generator(component, on)
        chunks = []
        first, last = numbers.start // CHUNK, -(-numbers.stop // CHUNK)
        # One thread: two would change a convolution's bits.
        with device.threads(1):
            for chunk in range(first, last):
                z_BZ = drawn_chunk(component, generator.latent, seed, chunk)
                chunks.append(generate(generator, z_BZ))
                if progress is not None:
                    progress(min(numbers.stop, (chunk + 1) * CHUNK) - numbers.start)
        return np.concatenate(chunks)[numbers.start - first * CHUNK :][: len(numbers)]

    def generator(self, component: Component, on: torch.device) -> Generator:
        """Return a component's generator, ready to draw."""
        if isinstance(component.networks, OwnNetworks):
            known = component.trained.get("plugins", {})
            require_source(component.name, component.networks, known)
        generator = build_generator(component.networks, self.shape)
        try:
            tensors = safetensors.numpy.load(component.read())
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"{component.name}: not a safetensors file ({error})") from None
        try:
            fill(generator, {name: torch.from_numpy(value) for name, value in tensors.items()})
        except ValueError as error:
            raise CheckpointError(
                f"{component.name}: {error}; expected its {component.networks.kind} generator: "
                "the model was changed by hand or made by another version"
            ) from None
        return generator.to(on).eval()

    def components_of(self, label: str) -> tuple[Component, ...]:
        """Return the components of a label; raise ConfigError, saying why, if there is none."""
        if label in self._by_label:
            return self._by_label[label]
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

    def module(self, label: str | None = None) -> Sampler:
        """Return the whole model, or one label of it, as a plain torch module.

        ``forward(z, label, u)`` takes latents N×Z, for each the position of its label in
        `labels` (-1: any, by p(y)), and a number from [0, 1) that chooses where several generators
        draw a label. It gives N×C×S×S floats from -1 to 1, those of `sample` at equal latents.

        Example:
            >>> import torch
            >>> module = manege.load_model("model").module("8")
            >>> pictures = module(torch.randn(16, module.latent))
        """
        return module_of(self, label)[0]

    def latents(
        self,
        indices: int | Sequence[int],
        *,
        label: str | None = None,
        seed: int = 0,
        mixing: str = Mixing.EXACT,
    ) -> Latents:
        """Return the latents of pictures that `sample` draws: ``generate(*latents)`` is these.

        Args:
            indices: the pictures' numbers within their label, from 0: `Samples.indices`.
            label: of all of them; may be left out where the model has one.
            seed: as for `sample`.
            mixing: as for `sample`.
        """
        own = self._only(label)
        numbers = (
            [int(indices)]
            if isinstance(indices, int | np.integer)
            else [int(index) for index in indices]
        )
        if not numbers or min(numbers) < 0:
            least = min(numbers, default="none")
            raise ConfigError(f"indices: found {least}, expected pictures' numbers from 0 up")
        how, components = _known_mixing(mixing), self.components_of(own)
        if len(components) > 1:
            require_memory(f"indices up to {max(numbers)}", max(numbers), self.shape)
        owner_N = _owners(components, max(numbers) + 1, seed, how)
        return latents_of(self, own, numbers, owner_N, seed)

    def generate(
        self,
        z: Any,
        label: str | Sequence[str] | None = None,
        u: Any = None,
        *,
        device_name: str = "cpu",
    ) -> Samples:
        """Draw the pictures at given latents.

        Args:
            z: latents N×Z, an array or a tensor, made for the standard normal distribution.
            label: one for all, or one for each; drawn by p(y), as `u` says, when None.
            u: a number from [0, 1) for each latent, which chooses the generator where a label has
                several; may be left out where there is no choice.
            device_name: where the generators run.
        """
        pictures, labels = pictures_at(self, z, label, u, device.resolve(device_name))
        return Samples(pictures, tuple(labels), tuple(range(len(labels))))

    def interpolate(
        self,
        a: Any,
        b: Any,
        steps: int = 16,
        *,
        label: str | None = None,
        to_label: str | None = None,
        seed: int = 0,
        mixing: str = Mixing.EXACT,
        device_name: str = "cpu",
    ) -> Samples:
        """Draw the way between two pictures, both included, along the sphere of their latents.

        Args:
            a: the first: its number within its label, as `sample` draws it, or a latent.
            b: the last, likewise.
            steps: how many pictures, at least 2.
            label: of the first; may be left out where the model has one.
            to_label: of the last, that of the first when None; another needs a conditional model.
            seed: that numbers are drawn with.
            mixing: as for `sample`.
            device_name: where the generators run.
        """
        if steps < 2:
            raise ConfigError(f"{errors.field('steps')} {steps}: expected at least 2 pictures")
        require_memory(f"{errors.field('steps')} {steps}", steps, self.shape)
        first = self._only(label)
        last = first if to_label is None else to_label
        self.components_of(last)

        def end(name: str, given: Any, own: str) -> End:
            whole = isinstance(given, int | np.integer)
            drawn = self.latents([given], label=own, seed=seed, mixing=mixing) if whole else None
            return end_of(self, name, own, given, drawn)

        ends = end("a", a, first), end("b", b, last)
        pictures = way(self, *ends, steps, device.resolve(device_name))
        named = first if first == last else f"{first} to {last}"
        recipe = self.recipe(seed, mixing)
        return Samples(pictures, (named,) * steps, tuple(range(steps)), recipe)

    def _only(self, label: str | None) -> str:
        """Return that label, or the only one there is."""
        if label is None and len(self.labels) > 1:
            raise ConfigError(
                f"{errors.field('label')}: found none, expected one of {_list(self.labels)}"
            )
        own = self.labels[0] if label is None else label
        self.components_of(own)
        return own

    def merged(self, other: Model) -> Model:
        """Return a model with the generators of both; its p(y) follows the summed weights."""
        if other.shape != self.shape:
            raise ConfigError(
                f"models of different pictures: {_shape(self.shape)} and {_shape(other.shape)}; "
                f"train both with the same {errors.field('size')} and {errors.field('channels')}"
            )
        both = sorted(set(self.labels) & set(other.labels))
        if both:
            raise ConfigError(
                f"label {both[0]!r} is in both models; drop it from one first: "
                f"manege model drop MODEL --class {both[0]} -o OTHER"
            )
        components = (*self.components, *other.components)
        have = {*self.labels, *other.labels}
        missing = {k: v for k, v in {**self.missing, **other.missing}.items() if k not in have}
        return replace(self, components=components, missing=missing)

    def without(self, labels: Iterable[str]) -> Model:
        """Return the model without some labels."""
        gone = {component.label for label in labels for component in self.components_of(label)}
        if gone == set(self.labels):
            raise ConfigError("dropping every label would leave an empty model; keep at least one")
        kept = tuple(c for c in self.components if c.label not in gone)
        return replace(self, components=kept)

    def description(self) -> dict[str, Any]:
        """Return what model.json holds."""
        # A model without cells is described as before there were any: it keeps its digest.
        with_cells = any(component.cell is not None for component in self.components)
        return {
            "format": 2 if with_cells else 1,
            "manege": __version__,
            "picture": {"size": self.shape.size, "channels": self.shape.channels},
            "components": [
                {
                    "label": component.label,
                    **({"cell": component.cell} if with_cells else {}),
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

    def _check_mixing(self, mixing: str, labels: Iterable[str]) -> None:
        """Refuse an unknown mixing, and one that would change nothing for these labels."""
        how = _known_mixing(mixing)
        alone = all(len(self.components_of(label)) == 1 for label in labels)
        if how is Mixing.INDEPENDENT and alone:
            raise ConfigError(
                f"{errors.field('mixing')} {how}: found one generator a label, expected a label "
                f"with several to mix; leave {errors.field('mixing')} out"
            )

    def _draw_labels(self, count: int, weights: Mapping[str, float], seed: int) -> list[str]:
        for label, weight in weights.items():
            self.components_of(label)
            if not (weight >= 0 and np.isfinite(weight)):
                raise ConfigError(
                    f"{errors.field('weights')} {label}={weight}: expected a number from 0 up"
                )
        if sum(weights.values()) <= 0:
            raise ConfigError(
                f"{errors.field('weights')}: all are 0; give at least one label a positive weight"
            )
        uniform_N = stream(seed, cell="", purpose="labels").random(count)
        names = list(weights)
        return [names[i] for i in by_chance(weights.values(), uniform_N)]


def require_source(what: str, networks: OwnNetworks, known: Mapping[str, str]) -> None:
    """Raise ConfigError unless networks from outside the package are here as they were trained."""
    module = networks.kind.partition(":")[0]
    try:
        check_sources(
            {"networks": networks.kind},
            known,
            f"put back the {module} that the networks were trained with: another source may draw "
            "other pictures from the same weights",
        )
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None


def require_memory(asked: str, count: int, shape: PictureShape) -> None:
    """Refuse pictures that would not fit: they are drawn, put in order and written at once."""
    need, free = 3 * count * shape.size**2 * shape.channels, machine.free_bytes()
    if need > free:
        raise ConfigError(
            f"{asked}: so many pictures take {need >> 20:,} MB of memory, {free >> 20:,} MB are "
            f"free; ask for fewer at a time, each time with another {errors.field('seed')}"
        )


def _owners(components: Sequence[Component], count: int, seed: int, mixing: Mixing) -> np.ndarray:
    """Return, for each picture of a label, which of its components draws it."""
    weights = [component.weight for component in components]
    if len(weights) == 1:
        return np.broadcast_to(np.int64(0), count)
    if mixing is Mixing.EXACT:
        return proportions(np.array(shares(weights)), count)
    uniform_N = stream(seed, cell=components[0].label, purpose="mixing").random(count)
    return by_chance(weights, uniform_N)


def _known_mixing(text: str) -> Mixing:
    if text not in list(Mixing):
        raise ConfigError(f"{errors.field('mixing')} {text!r}: expected {' or '.join(Mixing)}")
    return Mixing(text)


def _shifted(
    progress: Callable[[int, int], None], before: int, total: int
) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


def _from(progress: Callable[[int], None], before: int) -> Callable[[int], None]:
    return lambda done: progress(before + done)


def _shape(shape: PictureShape) -> str:
    return f"{shape.size}x{shape.size}x{shape.channels}"


def _list(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:12])
    return shown + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")
