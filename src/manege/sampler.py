"""The combined model, eq. (8): p(x) = Σ p(x | y) p(y); each label routes to its own generator.

A model is a folder: ``model.json`` and one safetensors file for each component. It loads without
the run it came from. Picture k of a label depends only on (seed, label, k): not on how many are
asked for, nor on the other labels in the model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from pydantic import TypeAdapter, ValidationError

from manege import device
from manege.config import SIZES, Networks, RunConfig, resolve, stream
from manege.errors import CheckpointError, ConfigError
from manege.files import blaming, write_atomic
from manege.models import (
    Generator,
    PictureShape,
    Spec,
    build_generator,
    fill,
    generate,
    named_tensors,
)
from manege.rundir import RunDir, cell_folder
from manege.version import __version__

FORMAT = 1
CHUNK = 32
"""Pictures generated at once, always: a batch of another size gives other bits."""
MAX_JSON_BYTES = 64_000_000

_NETWORKS: TypeAdapter[Spec] = TypeAdapter(Networks)


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
    def probabilities(self) -> dict[str, float]:
        """P(y), over the labels that are here."""
        total = sum(component.weight for component in self.components)
        return {component.label: component.weight / total for component in self.components}

    @property
    def digest(self) -> str:
        """Digest of everything that decides what it draws."""
        return hashlib.sha256(json.dumps(self._json(), sort_keys=True).encode()).hexdigest()[:16]

    def sample(
        self,
        count: int,
        *,
        label: str | None = None,
        balanced: bool = False,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
        device_name: str = "cpu",
    ) -> Samples:
        """Draw pictures; labels by p(y) unless told otherwise.

        Args:
            count: how many.
            label: all of this label.
            balanced: equally many of each label, in order.
            weights: draw labels by these instead of p(y); labels left out get none.
            seed: the same seed draws the same pictures.
            device_name: where the generators run.
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
        made = {one: self.pictures_of(one, n, seed, device_name) for one, n in numbers.items()}
        pictures = np.stack([made[one][k] for one, k in zip(drawn, indices, strict=True)])
        return Samples(pictures, tuple(drawn), tuple(indices))

    def pictures_of(
        self, label: str, count: int, seed: int = 0, device_name: str = "cpu"
    ) -> np.ndarray:
        """Pictures 0 … count-1 of one label."""
        generator = self.generator(label, device.resolve(device_name))
        chunks = []
        # One thread: two would change a convolution's bits.
        with device.threads(1):
            for chunk in range(-(-count // CHUNK)):
                rng = stream(seed, cell=label, purpose="sample", step=chunk)
                z_BZ = rng.standard_normal((CHUNK, generator.latent), dtype=np.float32)
                chunks.append(generate(generator, z_BZ))
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

    def save(self, folder: Path, *, replace: bool = False) -> None:
        """Write the model; it appears whole or not at all."""
        if folder.exists() and not replace and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: already exists; choose another -o, or remove it first")
        aside = folder.with_name(f".{folder.name}.aside")
        with blaming(folder):
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir()
                for component in self.components:
                    write_atomic(aside / _file(component.label), component.read())
                text = json.dumps(self._json(), indent=1, ensure_ascii=False)
                write_atomic(aside / "model.json", text.encode())
                if folder.exists():
                    shutil.rmtree(folder)
                aside.rename(folder)
            finally:
                shutil.rmtree(aside, ignore_errors=True)

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

    def _json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "manege": __version__,
            "picture": {"size": self.shape.size, "channels": self.shape.channels},
            "components": [
                {
                    "label": component.label,
                    "weight": component.weight,
                    "networks": component.networks.model_dump(mode="json"),
                    "file": _file(component.label),
                    "sha256": component.sha256,
                    "trained": dict(component.trained),
                }
                for component in self.components
            ],
            "missing": dict(self.missing),
        }


def load(folder: Path) -> Model:
    """The model in a folder; each file is verified against model.json when it is read."""
    path = folder / "model.json"
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_JSON_BYTES:,} bytes; not a model")
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != FORMAT:
            raise CheckpointError(
                f"{path}: model format {tree['format']!r}, this manege reads {FORMAT}"
            )
        components = tuple(_load_component(folder, entry) for entry in tree["components"])
        if not components:
            raise CheckpointError(f"{path}: no components; expected at least one")
        size, channels = tree["picture"]["size"], tree["picture"]["channels"]
        if size not in SIZES or channels not in (1, 3):
            raise ValueError(f"pictures of {size!r}x{size!r}x{channels!r}")
        if len({component.label for component in components}) < len(components):
            raise ValueError("a label stands twice")
        missing = {str(label): str(reason) for label, reason in tree["missing"].items()}
        return Model(PictureShape(size, channels), components, missing)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        what = error.errors()[0]
        raise CheckpointError(f"{path}: {what['loc']}: {what['msg']}; damaged?") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged, or not a manege model ({error!r})") from None


def _load_component(folder: Path, entry: dict[str, Any]) -> Component:
    file = folder / Path(str(entry["file"])).name  # Never outside the folder.
    sha256 = str(entry["sha256"])

    def read() -> bytes:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise CheckpointError(
                f"{file}: its SHA-256 is {found[:12]}…, model.json says {sha256[:12]}…; "
                "damaged: copy or export the model again"
            )
        return data

    weight = float(entry["weight"])
    if not 0 < weight < float("inf"):
        raise ValueError(f"weight {weight} of label {entry['label']!r}")
    return Component(
        label=str(entry["label"]),
        weight=weight,
        networks=_NETWORKS.validate_python(entry["networks"]),
        trained=dict(entry["trained"]),
        sha256=sha256,
        read=read,
    )


def of_run(rundir: RunDir) -> Model:
    """The model of a run as it stands: the last commit of every class that did not fail."""
    config = run_config(rundir)
    classes = run_data(rundir)["classes"]
    cells = run_cells(rundir)
    shape = PictureShape(config.data.size or 0, config.data.channels or 0)
    network = build_generator(config.networks, shape)
    components: list[Component] = []
    missing: dict[str, str] = {}
    for label, known in classes.items():
        if cells.get(label, {}).get("state") == "failed":
            missing[label] = f"failed: {cells[label]['reason']}"
            continue
        found = rundir.load(label, identity=config.identity())
        if found is None:
            missing[label] = "not trained yet"
            continue
        trained = {
            "rounds": found.round_,
            "seed": config.seed,
            "preset": config.preset,
            "loss": config.training.loss.value,
            "constraint": config.training.constraint.kind,
        }
        file = safetensors.numpy.save(named_tensors(network, found.tensors["generator"]))
        sha256 = hashlib.sha256(file).hexdigest()
        components.append(
            Component(
                label, float(known["train"]), config.networks, trained, sha256, partial(bytes, file)
            )
        )
    if not components:
        raise CheckpointError(
            f"{rundir.path}: no class has a commit yet; continue it: manege resume {rundir.path}"
        )
    return Model(shape, tuple(components), missing)


def run_config(rundir: RunDir) -> RunConfig:
    """The configuration a run was made with."""
    return resolve(file=rundir.path / "config.yaml")


def run_cells(rundir: RunDir) -> dict[str, dict[str, Any]]:
    """What each cell of a run has come to, from status.json."""
    cells = rundir.status().get("cells", {})
    if not isinstance(cells, dict) or not all(isinstance(e, dict) for e in cells.values()):
        raise CheckpointError(
            f"{rundir.path / 'status.json'}: damaged (cells); delete it and try again"
        )
    return cells


def run_data(rundir: RunDir) -> dict[str, Any]:
    """What a run's dataset was, from data.json; `classes` maps each label to its counts."""
    path = rundir.path / "data.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not all(int(entry["train"]) > 0 for entry in tree["classes"].values()):
            raise ValueError("a class without training pictures")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: missing or damaged ({error!r}); restore it from a copy of the run"
        ) from None
    return dict(tree)


def open_model(path: Path) -> Model:
    """The model at a path: a model folder, or a run (its finished model, else its last commits)."""
    if (path / "model.json").is_file():
        return load(path)
    rundir = RunDir.open(path)
    finished = rundir.status()["state"] in ("finished", "failed")
    if finished and (path / "model" / "model.json").is_file():
        return load(path / "model")
    return of_run(rundir)


def _file(label: str) -> str:
    return f"{cell_folder(label)}.safetensors"


def _shape(shape: PictureShape) -> str:
    return f"{shape.size}x{shape.size}x{shape.channels}"


def _list(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:12])
    return shown + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")
