"""The run directory: configuration, status, events, checkpoints and loose files of one run.

Reporting learns of training from here alone. Whoever holds `RunDir.start` runs the run; anybody
may read. Knows text, bytes and numpy; neither torch nor what a configuration means.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from manege.errors import CheckpointError, ManegeError
from manege.files import (
    below,
    blaming,
    machine_error,
    make_folder,
    name_aside,
    read_capped,
    remove_abandoned,
    remove_asides,
    write_aside,
    write_atomic,
)
from manege.runs import checkpoints, creation, events, lock
from manege.runs.checkpoints import Checkpoint, Owner
from manege.runs.jsontext import finite, parse_object, readable
from manege.runs.manifest import Commit, Pending
from manege.runs.names import cell_folder
from manege.runs.tensors import Array

STATES = ("running", "stopped", "finished", "failed")
_CAP_BYTES = 1 << 24
# How names of loose files aside for adoption end: a start may remove those, whoever wrote them. Of
# other loose files only those of dead writers, since commands that do not hold the lock write too.
_FOR_ADOPTION = ".adopt.tmp"


class RunDir:
    """One run's folder; made by `create` or `open`, run inside `start`."""

    def __init__(self, path: Path) -> None:
        """Take a folder unchecked; use `create` or `open`, which check it."""
        self.path = path
        self.incarnation = int(self._stored_status()["incarnation"])
        # Per cell the commit this process wrote or verified last: no need to hash it again.
        self._trusted: dict[str, Commit] = {}

    @classmethod
    def create(
        cls,
        path: Path | None,
        *,
        parent: Path = Path("runs"),
        name: str,
        config: str,
        command: str,
        environment: Mapping[str, Any],
        data: Mapping[str, Any],
    ) -> Self:
        """Make a new run in the given folder, or in the next free ``parent/NNNN-name``."""
        # config.yaml last: it makes the folder a run.
        initial = {
            # A path in it need not be text; it is written escaped, as it is shown.
            "command.txt": (command.rstrip("\n") + "\n").encode(errors="backslashreplace"),
            "environment.json": readable(environment),
            "data.json": readable(data),
            "status.json": readable({"incarnation": 0, "state": "stopped"}),
            "config.yaml": config.encode(),
        }
        return cls(creation.create(path, parent=parent, name=name, initial=initial))

    @staticmethod
    def reserve(name: str, parent: Path = Path("runs")) -> Path:
        """Make and return the empty folder that `create` would choose for a run of this name."""
        return creation.numbered(parent, name)

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise CheckpointError if no run may be made there."""
        creation.check_free(Path(path))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the run in that folder; raise CheckpointError, saying what it is, if no run."""
        path = Path(path)
        creation.check_run(path)
        return cls(path)

    @contextmanager
    def start(self) -> Iterator[Self]:
        """Run the run in this process while inside: locked, a new incarnation, state running.

        A second process is refused by name of the first. The kernel frees the lock of a killed
        one; unless a final state was written, the run then counts as interrupted.
        """
        self._check_links()
        with lock.held(self.path / "lock"):
            with blaming(self.path):
                self._remove_asides()
            events.cut_torn_line(self._events)
            self.incarnation = int(self._stored_status()["incarnation"]) + 1
            self.write_status(state="running", incarnation=self.incarnation)
            yield self

    def config_text(self) -> str:
        """Return the text of config.yaml."""
        try:
            return self._read("config.yaml").decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.path / 'config.yaml'} is damaged ({error}); restore it from a copy"
            ) from error

    def environment(self) -> dict[str, Any]:
        """Return what the run began with; empty if the file is damaged, as nothing needs it."""
        try:
            return parse_object(self._read("environment.json"))
        except (ManegeError, ValueError):
            return {}

    def write_config(self, text: str) -> None:
        """Replace config.yaml by the text."""
        self.write_bytes("config.yaml", text.encode())

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """Append an event with time and incarnation; return it as written, non-finite as null."""
        head = {"t": time.time(), "incarnation": self.incarnation, "event": event}
        record: dict[str, Any] = finite(head | fields)
        events.append_line(self._events, record)
        return record

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events so far, without a line being written; raise for a damaged one."""
        return events.read_events(self._events)

    def status(self) -> dict[str, Any]:
        """Return the last status; "running" becomes "interrupted" if nobody runs the run."""
        stored = self._stored_status()
        if stored.get("state") == "running" and not lock.is_held(self.path / "lock"):
            # It may have ended between our two looks.
            stored = self._stored_status()
            if stored.get("state") == "running":
                stored["state"] = "interrupted"
        return stored

    def write_status(self, **fields: Any) -> None:
        """Set these fields of status.json, keep the others; for the process that runs the run."""
        if fields.get("state", "running") not in STATES:
            raise ValueError(f"state {fields['state']!r}, expected one of {STATES}")
        self.write_json("status.json", self._stored_status() | fields)

    def write_json(self, name: str, value: Any) -> None:
        """Write the value as JSON to the named file; non-finite floats become null."""
        self.write_bytes(name, readable(value))

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Write the data to the file of that relative path, and make folders as needed."""
        path = self._inside(relative)
        with blaming(path):
            make_folder(path.parent, within=self.path)
        write_atomic(path, data)

    def write_file_aside(self, relative: str, data: bytes, mark: str) -> str:
        """Write the data under a name aside; return that relative name, for `adopt_file`."""
        path = self._inside(relative)
        # Random, since the one written before may still wait for its adoption.
        name = f".{path.name}.{mark}.{secrets.token_hex(4)}{_FOR_ADOPTION}"
        aside = path.with_name(name)
        with blaming(path):
            make_folder(path.parent, within=self.path)
        write_aside(aside, data, blame=path)
        return str(aside.relative_to(self.path))

    def adopt_file(self, aside: str, path: str) -> None:
        """Give a file written aside its name, safely on the disk, in place of an older one.

        Raises ValueError unless the names are of a file aside and its place in the same folder.
        """
        written, named = self._inside(aside), self._inside(path)
        if written.parent != named.parent or not written.match(".*.tmp"):
            raise ValueError(f"{aside!r} is not the name of a file aside for {path!r}")
        with blaming(written):
            is_there = written.is_file()
        if not is_there:
            raise CheckpointError(
                f"{written} is missing, so {named.name} cannot be put in place; leave the files of "
                "a run alone while it is running"
            )
        name_aside(written, named)

    def commit(self, cell: str, *, identity: str, **state: Any) -> Commit:
        """Write the cell's new newest checkpoint, safely on the disk; keep the one before it."""
        mark = checkpoints.own_mark(self.incarnation)
        pending = self.write_pending(cell, identity=identity, mark=mark, **state)
        return self.adopt(cell, pending, identity=identity)

    def write_pending(
        self,
        cell: str,
        *,
        identity: str,
        round_: int,
        step: int,
        tensors: Mapping[str, Array],
        meta: Mapping[str, Any],
        mark: str,
    ) -> Pending:
        """Write a checkpoint, which is no commit until the process that runs the run adopts it.

        The mark, such as "3.17", tells writers apart: the incarnation and the worker's number.
        """
        return checkpoints.write_pending(
            self._made(cell),
            Owner(cell, identity),
            round_=round_,
            step=step,
            tensors=tensors,
            meta=meta,
            mark=mark,
        )

    def adopt(self, cell: str, pending: Pending, *, identity: str) -> Commit:
        """Make a checkpoint written aside the cell's newest, as `commit` does.

        It removes whatever else lies aside in the cell's folder.
        """
        new = checkpoints.adopt(
            below(self.path, "checkpoints", cell_folder(cell)),
            Owner(cell, identity),
            pending,
            incarnation=self.incarnation,
            trusted=self.verified(cell),
        )
        self.trust(cell, new)
        return new

    def trust(self, cell: str, commit: Commit) -> None:
        """Note a commit that another process wrote or verified: the next need not hash it."""
        self._trusted[cell] = commit

    def verified(self, cell: str) -> Commit | None:
        """Return the cell's commit that was written, verified or trusted last; None if none was."""
        return self._trusted.get(cell)

    def load(self, cell: str, *, identity: str) -> Checkpoint | None:
        """Return the cell's newest sound checkpoint, with warnings; None if it never committed."""
        found = checkpoints.load_from(self._cell(cell), Owner(cell, identity))
        if found is None:
            return None
        checkpoint, self._trusted[cell] = found
        return checkpoint

    def commits(self, cell: str) -> list[Commit]:
        """Return what the cell's manifest lists, newest first, without opening the files."""
        manifest = checkpoints.listed_in(self._cell(cell))
        return list(manifest.generations) if manifest else []

    def cells(self) -> list[str]:
        """Return the keys of the cells that have checkpoints, sorted."""
        keys = []
        for folder in self._checkpoints.glob("*/"):
            manifest = checkpoints.listed_in(folder)
            if manifest is None:
                continue
            if cell_folder(manifest.cell) != folder.name:
                raise CheckpointError(
                    f"{folder} holds the checkpoints of cell {manifest.cell!r}, expected in "
                    f"{cell_folder(manifest.cell)}; put the folder back where it came from"
                )
            keys.append(manifest.cell)
        return sorted(keys)

    @property
    def _events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _cell(self, key: str) -> Path:
        return self._checkpoints / cell_folder(key)

    def _made(self, key: str) -> Path:
        folder = below(self.path, "checkpoints", cell_folder(key))
        with blaming(folder):
            make_folder(folder, within=self.path)
        return folder

    def _check_links(self) -> None:
        """Refuse a run in which a link leads outside: writing would change files elsewhere."""
        folders = [self.path / name for name in creation.FOLDERS]
        inside = [path for folder in folders for path in folder.glob("*")]
        for path in (self.path / "lock", self._events, *folders, *inside):
            if path.is_symlink():
                below(self.path, str(path.relative_to(self.path)))

    def _remove_asides(self) -> None:
        for folder in (self.path, *self._checkpoints.glob("*/")):
            remove_asides(folder)
        for aside in self.path.rglob(f".*{_FOR_ADOPTION}"):
            aside.unlink(missing_ok=True)
        remove_abandoned(self.path)

    def _inside(self, relative: str) -> Path:
        parts = Path(relative)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ValueError(f"{relative!r} is not a path inside the run directory")
        return below(self.path, relative)

    def _stored_status(self) -> dict[str, Any]:
        if not (self.path / "status.json").exists():
            return {"incarnation": 0, "state": "stopped"}
        try:
            status = parse_object(self._read("status.json"))
            if type(status.get("incarnation")) is not int:
                raise ValueError("its incarnation is not a number")
        except ValueError as error:
            raise CheckpointError(
                f"{self.path / 'status.json'} is damaged ({error}); delete it and try again"
            ) from error
        return status

    def _read(self, name: str) -> bytes:
        path = self.path / name
        try:
            return read_capped(path, _CAP_BYTES)
        except PermissionError as error:
            raise machine_error(path, error) from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
