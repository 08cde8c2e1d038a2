"""Stores models on disk: a folder with ``model.json`` and a safetensors file per component.

Loads without the run it came from; trusts no file that does not match its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from manege.config import SIZES, Networks
from manege.errors import CheckpointError, ConfigError, field
from manege.files import below, blaming, write_atomic
from manege.labels import LABEL, is_label, namesakes, shown
from manege.models import PictureShape, Spec
from manege.sampler.model import FORMATS, Component, Model
from manege.sampler.module import SAMPLER_FORMAT

MAX_JSON_BYTES = 64_000_000

_NETWORKS: TypeAdapter[Spec] = TypeAdapter(Networks)


def save(model: Model, folder: Path, *, replace: bool = False) -> None:
    """Write the model to a folder, which appears whole or not at all."""
    with new_folder(folder, replace=replace) as aside:
        write_model(model, aside, folder)


@contextmanager
def new_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder, which gets its name when all went well and is gone otherwise."""
    if folder.exists() and not replace and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder}: already exists; choose another {field('out')}, or remove it first"
        )
    aside = folder.with_name(f".{folder.name}.aside")
    with blaming(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            yield aside
            if folder.exists():
                shutil.rmtree(folder)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def write_model(model: Model, into: Path, folder: Path) -> None:
    """Write a model's files into a folder; errors name the one that it is to become."""
    if same := namesakes((component.name, component.file) for component in model.components):
        one, other, file = same
        raise ConfigError(
            f"{folder}: {one} and {other} would share the file {file}; drop one of them first: "
            "manege model drop"
        )
    for component in model.components:
        write_atomic(below(into, component.file), component.read())
    text = json.dumps(model.description(), indent=1, ensure_ascii=False)
    write_atomic(into / "model.json", text.encode())


def load(folder: Path) -> Model:
    """Return the model in a folder; each file is verified against model.json when it is read."""
    path = folder / "model.json"
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_JSON_BYTES:,} bytes; not a model")
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["format"] == SAMPLER_FORMAT:
            raise CheckpointError(
                f"{path}: found an export for use without manege, expected a model; its README.md "
                f"says how to draw from it, and {field('format')} folder makes a model"
            )
        if tree["format"] not in FORMATS:
            raise CheckpointError(
                f"{path}: model format {tree['format']!r}, this manege reads "
                f"{' and '.join(map(str, FORMATS))}"
            )
        components = tuple(_load_component(folder, entry) for entry in tree["components"])
        if not components:
            raise CheckpointError(f"{path}: no components; expected at least one")
        if sum(component.weight for component in components) == float("inf"):
            raise ValueError("weights without a finite sum")
        size, channels = tree["picture"]["size"], tree["picture"]["channels"]
        if not _is_shape(size, channels):
            raise ValueError(f"pictures of {size!r}x{size!r}x{channels!r}")
        missing = {_label(label): str(reason) for label, reason in tree["missing"].items()}
        return Model(PictureShape(size, channels), components, missing)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        what = error.errors()[0]
        raise CheckpointError(f"{path}: {what['loc']}: {what['msg']}; damaged?") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged, or not a manege model ({error!r})") from None


def _is_shape(size: Any, channels: Any) -> bool:
    """Return whether networks can make such pictures, or points."""
    # Not isinstance: JSON's true is an int in Python; nor equality alone: so is 8.0.
    whole = type(size) is int and type(channels) is int
    return whole and ((size in SIZES and channels in (1, 3)) or (size, channels) == (1, 2))


def _load_component(folder: Path, entry: dict[str, Any]) -> Component:
    file = folder / Path(str(entry["file"])).name  # Never outside the folder.
    sha256 = str(entry["sha256"])

    def read() -> bytes:
        try:
            data = file.read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CheckpointError(f"{shown(str(file))}: cannot be read ({reason})") from None
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise CheckpointError(
                f"{file}: its SHA-256 is {found[:12]}…, model.json says {sha256[:12]}…; "
                "damaged: copy or export the model again"
            )
        return data

    label, cell = _label(entry["label"]), entry.get("cell")
    if cell is not None and not is_label(cell):
        raise ValueError(f"cell {shown(cell)} of label {shown(label)}, expected {LABEL}")
    weight = float(entry["weight"])
    if not 0 < weight < float("inf"):
        raise ValueError(f"weight {weight} of label {label!r}")
    return Component(
        label=label,
        weight=weight,
        networks=_NETWORKS.validate_python(entry["networks"]),
        trained=dict(entry["trained"]),
        sha256=sha256,
        read=read,
        cell=cell,
    )


def _label(value: Any) -> str:
    if not is_label(value):
        raise ValueError(f"label {shown(value)}, expected {LABEL}")
    return value
