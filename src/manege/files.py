"""Write files whole or not at all, and read them without surprises.

Owns the order aside → fsync → rename → fsync folder and the words for a disk that refuses; knows
nothing of runs or checkpoints.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manege.errors import ConfigError, MachineError

_WRITTEN_BY = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp", re.DOTALL)
"""Names of the temporary files of `write_atomic`, with the number of the writing process."""

_REMEDIES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your disk quota",
    errno.EFBIG: "raise the limit on file size (ulimit -f)",
    errno.EACCES: "give yourself the right to use it or choose another place",
    errno.EPERM: "give yourself the right to use it or choose another place",
    errno.EROFS: "choose a place that is not mounted read-only",
    errno.ENOENT: "a folder of it does not exist",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or end other programs",
}


def user_path(text: str | os.PathLike[str]) -> Path:
    """Return the path with ~ replaced by a home folder; an unknown user's is left as it is."""
    # Path.expanduser raises where os.path's leaves it: no such path is there, and so it is told.
    return Path(os.path.expanduser(text))  # noqa: PTH111


def below(folder: Path, *names: str) -> Path:
    """Return the path of those names in the folder; raise ConfigError when it lies elsewhere.

    Whatever is to be written under a name that somebody else chose is asked for here: the name may
    be empty, absolute or hold "..", and a link on the way may lead anywhere.
    """
    path = folder.joinpath(*names)
    try:
        # The folder itself may be a link: whoever asked for it meant where it leads.
        real, home = path.resolve(), folder.resolve()
        leads = "" if home in real.parents else f" leads to {real}"
    except (OSError, ValueError, RuntimeError) as error:
        leads = f" leads nowhere ({error})"
    if leads:
        raise ConfigError(
            f"{ascii(str(path))[1:-1]}:{leads}, expected a place below {folder}; take the link or "
            "the name away, or choose another folder"
        )
    return path


def machine_error(path: Path, error: OSError) -> MachineError:
    """Return an error that says in one line what the operating system refused, and its remedy."""
    reason = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "check the disk and try again")
    return MachineError(f"{path}: {reason[:1].lower()}{reason[1:]}; {remedy}")


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn any OSError inside into a MachineError about that path."""
    try:
        yield
    except OSError as error:
        raise machine_error(path, error) from error


def write_atomic(path: Path, data: bytes) -> None:
    """Write data to a file, on the disk; after a crash at any moment it is the old or the new.

    A refusal of the machine (full, quota, size limit, permission, read-only) is a MachineError and
    leaves the old file as it was and nothing beside it.
    """
    path = Path(path)
    # Whose it is stands in the name: `remove_abandoned` removes those of writers that have died.
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    write_aside(aside, data, blame=path)
    name_aside(aside, path)


def write_aside(aside: Path, data: bytes, *, blame: Path) -> None:
    """Write data to a temporary name, on the disk; on failure that name is free again.

    `blame` is the name they are meant for: what a complaint should speak of.
    """
    with blaming(blame):
        # No name aside is a link, unless somebody wants it written through.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = os.open(aside, flags, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def name_aside(aside: Path, path: Path) -> None:
    """Rename a temporary file in the same folder, on the disk; remove it on failure."""
    with blaming(path):
        try:
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; they order renames themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, within: Path | None = None) -> None:
    """Make a folder with its parents, and write their names to the disk.

    `within` must be there already: a run that was deleted is not brought back without its
    configuration.
    """
    if folder.is_dir():
        return
    if folder == within:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    make_folder(folder.parent, within=within)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def read_capped(path: Path, cap: int) -> bytes:
    """Read a whole regular file; raise OSError above the cap and for folders, pipes and devices."""
    # Without O_NONBLOCK, opening a pipe that somebody put there would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", closefd=True) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError("not a regular file")
        if found.st_size > cap:
            raise OSError(f"it has {found.st_size} bytes, at most {cap} expected")
        return file.read(cap)


def remove_asides(folder: Path) -> None:
    """Remove the temporary files that a killed writer left in the folder."""
    for aside in folder.glob(".*.tmp"):
        aside.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files of `write_atomic`, in the folder and below, whose process died.

    What a process writes that lives on this machine is left alone.
    """
    for aside in folder.rglob(".*.tmp"):
        written = _WRITTEN_BY.fullmatch(aside.name)
        if written is not None and not _lives(int(written[1])):
            aside.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # Another user's.
    return True
