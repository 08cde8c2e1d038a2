"""Files written whole or not at all, and read without surprises.

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
"""The names of what `write_atomic` writes aside, with the number of the writing process."""

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
    """The path with ~ for a home folder; one of a user whom nobody knows is left as it is."""
    # Path.expanduser raises where os.path's leaves it: no such path is there, and so it is told.
    return Path(os.path.expanduser(text))  # noqa: PTH111


def below(folder: Path, *names: str) -> Path:
    """Return the path of those names in the folder; ConfigError when it lies elsewhere.

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
    """What the operating system refused, in one line with its remedy."""
    reason = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "check the disk and try again")
    return MachineError(f"{path}: {reason[:1].lower()}{reason[1:]}; {remedy}")


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Any OSError inside comes out as a MachineError about that path."""
    try:
        yield
    except OSError as error:
        raise machine_error(path, error) from error


def write_atomic(path: Path, data: bytes) -> None:
    """The file holds the data, on the disk; after a crash at any moment, the old or the new.

    A refusal of the machine (full, quota, size limit, permission, read-only) is a MachineError and
    leaves the old file as it was and nothing beside it.
    """
    path = Path(path)
    # Whose it is stands in the name: `remove_abandoned` removes those of writers that have died.
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    write_aside(aside, data, blame=path)
    name_aside(aside, path)


def write_aside(aside: Path, data: bytes, *, blame: Path) -> None:
    """The bytes are on the disk under a temporary name; on failure that name is free again.

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
    """What lies aside in the same folder has its name, on the disk; nothing is left aside."""
    with blaming(path):
        try:
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """The names in the folder are on the disk."""
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
    """The folder exists, with its parents, and their names are on the disk.

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
    """The whole regular file; OSError above the cap and for folders, pipes and devices."""
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
    """The folder is free of files a killed writer left aside."""
    for aside in folder.glob(".*.tmp"):
        aside.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Remove what `write_atomic` left aside, in the folder and below, in processes that died.

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
