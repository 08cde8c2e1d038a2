"""Drawn pictures as files: a sheet, an image folder with its manifest, or an .npz."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from manege import pictures
from manege.errors import ConfigError, MachineError
from manege.rundir import cell_folder, write_atomic

if TYPE_CHECKING:
    from manege.sampler import Samples


def check_free(out: Path, *, force: bool) -> None:
    """Refuse to overwrite, before any work is done."""
    taken = out.exists() and not (out.is_dir() and not any(out.iterdir()))
    if taken and not force:
        raise ConfigError(f"{out}: already exists; choose another -o, or add --force")
    if out.suffix.lower() in (".jpg", ".jpeg", ".gif", ".npy", ".zip", ".bmp", ".webp"):
        raise ConfigError(f"{out}: found {out.suffix}, expected .png, .npz or a folder")
    if out.is_dir() and out.suffix.lower() in (".png", ".npz"):
        raise ConfigError(f"{out}: is a folder; choose another name for the file")


def parse_labels(text: str | None) -> list[str] | None:
    """`cat,dog`."""
    if text is None:
        return None
    labels = [part.strip() for part in text.split(",")]
    if not all(labels):
        raise ConfigError(f"--classes {text!r}: an empty label; expected names separated by commas")
    return labels


def parse_weights(text: str | None) -> dict[str, float] | None:
    """`cat=3,dog=1`."""
    if text is None:
        return None
    weights: dict[str, float] = {}
    for part in text.split(","):
        label, equals, number = part.rpartition("=")
        try:
            if not equals or not label.strip():
                raise ValueError
            weights[label.strip()] = float(number)
        except ValueError:
            raise ConfigError(
                f"--weights {text!r}: found {part!r}, expected label=number"
            ) from None
    return weights


def write(drawn: Samples, out: Path, recipe: Mapping[str, str]) -> list[str]:
    """The files made, relative to `out`'s folder."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        match out.suffix.lower():
            case ".png":
                sheet = pictures.grid(drawn.pictures)
                labels = {"labels": json.dumps(drawn.labels, ensure_ascii=False)}
                write_atomic(out, pictures.png_bytes(sheet, {**recipe, **labels}))
                return [out.name]
            case ".npz":
                buffer = io.BytesIO()
                np.savez_compressed(
                    buffer, images=drawn.pictures, labels=np.array(drawn.labels, dtype=np.str_)
                )
                write_atomic(out, buffer.getvalue())
                return [out.name]
            case _:
                return _write_folder(drawn, out, recipe)
    except OSError as error:
        raise MachineError(
            f"{out}: cannot be written ({error.strerror}); "
            "free some space or choose a place you may write to"
        ) from error


def _write_folder(drawn: Samples, out: Path, recipe: Mapping[str, str]) -> list[str]:
    """An image folder that `manege train` and others read, with a manifest beside it."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir()
    entries = []
    for picture, label, index in zip(drawn.pictures, drawn.labels, drawn.indices, strict=True):
        file = Path(cell_folder(label)) / f"{index:06d}.png"
        (out / file.parent).mkdir(exist_ok=True)
        text = {**recipe, "label": label, "index": str(index)}
        (out / file).write_bytes(pictures.png_bytes(picture, text))
        entries.append({"file": file.as_posix(), "label": label, "index": index})
    manifest = {**recipe, "pictures": entries}
    write_atomic(out / "manifest.json", json.dumps(manifest, indent=1).encode())
    return ["manifest.json", *(str(entry["file"]) for entry in entries)]
