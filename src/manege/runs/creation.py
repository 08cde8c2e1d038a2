"""Makes run directories, and tells them from anything else.

A folder is a run once it has config.yaml; the exclusive making of ``lock`` decides between two
processes that were given the same empty folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from manege.errors import CheckpointError, field
from manege.files import blaming, make_folder, write_atomic
from manege.runs.names import make_numbered

FOLDERS = ("checkpoints", "samples", "logs")


def create(path: Path | None, *, parent: Path, name: str, initial: Mapping[str, bytes]) -> Path:
    """Make a run's folder and write the initial files in their order; leave nothing on failure."""
    path = numbered(parent, name) if path is None else _given(Path(path))
    with blaming(path):
        try:
            (path / "lock").touch(exist_ok=False)
        except FileExistsError:
            raise _taken(path) from None
    try:
        for folder in FOLDERS:
            with blaming(path / folder):
                (path / folder).mkdir()
        for file, data in initial.items():
            write_atomic(path / file, data)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def check_free(path: Path) -> None:
    """Raise CheckpointError if no run may be made there; make nothing."""
    _check_folder(path)
    with blaming(path):
        if path.is_dir() and any(path.iterdir()):
            raise _taken(path)


def check_run(path: Path) -> None:
    """Raise CheckpointError, saying what the folder is, if it is not a run."""
    with blaming(path):
        if (path / "config.yaml").is_file():
            return
        what = _describe(path)
    raise CheckpointError(f"{path} is not a run directory: {what}")


def numbered(parent: Path, name: str) -> Path:
    """Make the next free ``parent/NNNN-name``, empty, and return it."""
    parent = Path(parent)
    _check_folder(parent)
    with blaming(parent):
        make_folder(parent)
        return make_numbered(parent, name)


def _given(path: Path) -> Path:
    check_free(path)
    with blaming(path):
        make_folder(path)
    return path


def _check_folder(path: Path) -> None:
    for place in (path, *path.parents):
        with blaming(place):
            exists, is_folder = place.exists(), place.is_dir()
        if exists and not is_folder:
            raise CheckpointError(
                f"{place} already exists and is not a folder; give another {field('out')}"
            )
        if exists:
            return


def _taken(path: Path) -> CheckpointError:
    if (path / "config.yaml").exists():
        return CheckpointError(
            f"{path} already exists; continue it with `manege resume {path}` or give another "
            f"{field('out')}"
        )
    return CheckpointError(
        f"{path} already exists and holds other files; give another {field('out')} or an empty "
        "folder"
    )


def _describe(path: Path) -> str:
    if not path.exists():
        return "there is no such folder; check the spelling"
    if not path.is_dir():
        return "it is a file; give the folder of a run"
    if (path / "model.json").exists():
        return "it is a model; give the run directory it came from, the one with config.yaml"
    runs = sorted(entry.parent.name for entry in path.glob("*/config.yaml"))
    if runs:
        return f"it is a folder of {len(runs)} runs; give one of them, such as {path / runs[-1]}"
    if (path / "lock").exists():
        return "its making was cut short, there is no config.yaml; delete it and train anew"
    return "it has no config.yaml; give the folder that `manege train` made"
