"""Drawn pictures as files: a sheet, an image folder with its manifest, or an .npz."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from manege import pictures
from manege.errors import ConfigError
from manege.files import blaming, write_atomic
from manege.rundir import cell_folder

if TYPE_CHECKING:
    from manege.sampler import Samples


MANIFEST = "manifest.json"


def check_free(out: Path, *, force: bool) -> None:
    """Refuse to overwrite, before any work is done."""
    taken = out.exists() and not (out.is_dir() and not any(out.iterdir()))
    if taken and not force:
        raise ConfigError(f"{out}: already exists; choose another -o, or add --force")
    if taken and out.is_dir() and not (out / MANIFEST).is_file():
        # Even then: only what an earlier `sample` wrote may be removed.
        raise ConfigError(f"{out}: a folder that `manege sample` did not make; choose another -o")
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
    with blaming(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        match out.suffix.lower():
            case ".png":
                sheet = pictures.grid(drawn.pictures)
                labels = {"labels": json.dumps(drawn.labels, ensure_ascii=False)}
                pictures.save_png(out, sheet, {**recipe, **labels})
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


def _write_folder(drawn: Samples, out: Path, recipe: Mapping[str, str]) -> list[str]:
    """An image folder that `manege train` and others read, with a manifest beside it."""
    _remove_earlier(out)
    out.mkdir(exist_ok=True)
    entries = []
    for picture, label, index in zip(drawn.pictures, drawn.labels, drawn.indices, strict=True):
        file = Path(cell_folder(label)) / f"{index:06d}.png"
        (out / file.parent).mkdir(exist_ok=True)
        text = {**recipe, "label": label, "index": str(index)}
        (out / file).write_bytes(pictures.png_bytes(picture, text))
        entries.append({"file": file.as_posix(), "label": label, "index": index})
    manifest = {**recipe, "pictures": entries}
    write_atomic(out / MANIFEST, json.dumps(manifest, indent=1).encode())
    return [MANIFEST, *(str(entry["file"]) for entry in entries)]


def _remove_earlier(out: Path) -> None:
    """Remove the pictures an earlier `sample` wrote there, and nothing else."""
    try:
        listed = json.loads((out / MANIFEST).read_text())["pictures"]
        names = [Path(entry["file"]) for entry in listed]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{out / MANIFEST}: not written by `manege sample`") from None
    for name in names:
        # One folder deep, whatever the manifest says: never outside.
        (out / name.parent.name / name.name).unlink(missing_ok=True)
