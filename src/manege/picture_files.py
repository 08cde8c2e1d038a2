"""Drawn pictures as files: a sheet, an image folder with its manifest, an .npz, or a GIF."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manege import pictures
from manege.errors import ConfigError, field
from manege.files import below, blaming, write_atomic
from manege.labels import namesakes
from manege.runs import cell_folder

if TYPE_CHECKING:
    from manege.sampler import Samples

MANIFEST = "manifest.json"
_LONGEST_NAME = 255
_PICTURE = re.compile(r"(?!\.\.?/)[^/\0\ud800-\udfff]+/[0-9]{6,}\.png")


def check_free(out: Path, *, force: bool, moving: bool = False) -> None:
    """Raise ConfigError rather than overwrite; a moving picture may be a GIF."""
    check_parents(out)
    taken = out.exists() and not (out.is_dir() and not any(out.iterdir()))
    if taken and not force:
        raise ConfigError(f"{out}: already exists; choose another name, or add {field('force')}")
    if taken and out.is_dir() and not (out / MANIFEST).is_file():
        # Even then: only what an earlier command wrote may be removed.
        raise ConfigError(f"{out}: a folder that manege did not make; choose another name")
    if out.suffix.lower() == ".gif" and not moving:
        raise ConfigError(
            f"{out}: a GIF shows the way between two pictures; add {field('interpolate')} A:B, or "
            "choose .png, .npz or a folder"
        )
    if out.suffix.lower() in (".jpg", ".jpeg", ".npy", ".zip", ".bmp", ".webp"):
        gif = ", .gif" if moving else ""
        raise ConfigError(f"{out}: found {out.suffix}, expected .png{gif}, .npz or a folder")
    if out.is_dir() and out.suffix.lower() in (".png", ".npz", ".gif"):
        raise ConfigError(f"{out}: is a folder; choose another name for the file")


def check_parents(out: Path) -> None:
    """Raise ConfigError for an output that would have to lie inside a file."""
    for place in out.parents:
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"{out}: {place} is not a folder; choose another name")
            return


def check_new_folder(out: Path) -> None:
    """Raise ConfigError for what cannot be the name of a folder to make."""
    if out.name in ("", ".."):
        raise ConfigError(f"{out}: expected the name of a new folder; choose another name")
    check_parents(out)


def write(
    drawn: Samples, out: Path, recipe: Mapping[str, str], columns: int | None = None
) -> list[str]:
    """Write pictures, and return the files made, relative to `out`'s folder.

    `columns` is for a sheet.
    """
    kind = out.suffix.lower()
    if pictures.is_points(drawn.pictures) and kind not in (".png", ".npz", ".gif"):
        raise ConfigError(f"{out}: points have no picture files; write .npz or .png")
    with blaming(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case ".png":
                sheet = pictures.grid(drawn.pictures, columns)
                scale = pictures.viewing_scale(drawn.pictures.shape[1])
                labels = {"labels": json.dumps(drawn.labels, ensure_ascii=False)}
                pictures.save_png(out, sheet, {**recipe, **labels}, scale)
                return [out.name]
            case ".gif":
                write_atomic(out, pictures.gif_bytes(drawn.pictures))
                return [out.name]
            case ".npz":
                buffer = io.BytesIO()
                np.savez_compressed(
                    buffer, images=drawn.pictures, labels=np.array(drawn.labels, dtype=np.str_)
                )
                write_atomic(out, buffer.getvalue())
                return [out.name]
            case _:
                return write_folder(drawn, out, recipe)


def write_folder(
    drawn: Samples, out: Path, recipe: Mapping[str, str], about: Mapping[str, Any] | None = None
) -> list[str]:
    """Write an image folder that `manege train` and others read, with a manifest beside it.

    `about` goes into the manifest alone.
    """
    labels = set(drawn.labels)
    folders = {label: _class_folder(label, labels) for label in sorted(labels)}
    if same := namesakes(folders.items()):
        one, other, folder = same
        raise ConfigError(
            f"{out}: {one!r} and {other!r} would share the folder {folder}; write .npz instead, or "
            f"one of them at a time with {field('label')}"
        )
    _remove_earlier(out)
    out.mkdir(exist_ok=True)
    places = {folder: below(out, folder) for folder in folders.values()}
    entries = [
        {"file": f"{folders[label]}/{index:06d}.png", "label": label, "index": index}
        for label, index in zip(drawn.labels, drawn.indices, strict=True)
    ]
    # The manifest first: what is cut short halfway can then still be told for ours.
    manifest = {**recipe, **(about or {}), "pictures": entries}
    write_atomic(out / MANIFEST, json.dumps(manifest, indent=1).encode())
    for place in places.values():
        place.mkdir(exist_ok=True)
    for picture, entry in zip(drawn.pictures, entries, strict=True):
        text = {**recipe, "label": str(entry["label"]), "index": str(entry["index"])}
        below(out, str(entry["file"])).write_bytes(pictures.png_bytes(picture, text))
    return [MANIFEST, *(str(entry["file"]) for entry in entries)]


def _class_folder(label: str, labels: set[str]) -> str:
    """Return the label itself where it can be, so that training gives the same labels."""
    plain = label.isprintable() and label == label.strip() and not set("/\\") & set(label)
    long = len(os.fsencode(label)) > _LONGEST_NAME
    # On a disk that ignores case two labels must not share a folder.
    shared = sum(other.casefold() == label.casefold() for other in labels) > 1
    if plain and not long and not shared and not label.startswith(".") and label != MANIFEST:
        return label
    # A cell's folder may be called like the manifest; no label has a slash.
    return cell_folder(f"{label}/" if label == MANIFEST else label)


def _remove_earlier(out: Path) -> None:
    """Remove the pictures an earlier `sample` wrote there, and nothing else."""
    try:
        listed = json.loads((out / MANIFEST).read_text())["pictures"]
        names = [str(entry["file"]) for entry in listed]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{out / MANIFEST}: not written by `manege sample`") from None
    # Pictures one folder deep, whatever the manifest says: never outside.
    ours = [below(out, name) for name in names if _PICTURE.fullmatch(name)]
    for path in ours:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in ours}:
        # An empty one would be a class without pictures; one with the user's own files stays.
        with contextlib.suppress(OSError):
            folder.rmdir()
