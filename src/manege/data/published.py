"""Finds and fetches published datasets; knows the ones in idx files by name.

Nothing is downloaded that already lies in a place of the user's or of the system's. What is in
the files is read elsewhere.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from manege.data.cache import cache_folder
from manege.data.labels import printable
from manege.data.split import Split
from manege.errors import DataError, MachineError, field
from manege.files import user_path

FILES_OF = {
    Split.TRAIN: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    Split.HELD_OUT: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
FILES = tuple(name for pair in FILES_OF.values() for name in pair)
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class IdxDataset:
    """A dataset published as four idx files."""

    name: str
    about: str
    url: str
    """Where the four .gz files are, with a slash at the end."""
    hashes: tuple[str, str, str, str]
    """The hashes of the published .gz files, in the order of FILES."""
    labels: tuple[str, ...]
    train_labels_sha256: str
    """The hash of the unzipped training labels: tells datasets apart whose files share names."""
    system: Path | None = None
    """The folder in which a distribution's package puts it."""


MNIST = IdxDataset(
    name="mnist",
    about="MNIST: 70,000 handwritten digits, 28x28 grey, official test split",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    hashes=(
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    labels=tuple(str(digit) for digit in range(10)),
    train_labels_sha256="1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
)
FASHION = IdxDataset(
    name="fashion-mnist",
    about="Fashion-MNIST: 70,000 articles of clothing, 28x28 grey, official test split",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    hashes=(
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "md5:25c81989df183df01b3e8a0aad5dffbe",
        "md5:bef4ecab320f06d8554ea6380940ec79",
        "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ),
    labels=(
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle-boot",
    ),
    train_labels_sha256="657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    # Debian's package dataset-fashion-mnist.
    system=Path("/usr/share/datasets/fashion-mnist"),
)
IDX_DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION)}


def locate(dataset: IdxDataset, root: str | None) -> dict[str, Path] | None:
    """Return the four files, from the first place that has them; None if none has.

    Order: ``root``, MANEGE_DATA (each itself or its subfolder of the dataset's name), the
    system's package, the download cache.
    """
    folders = places(dataset.name, root)
    if dataset.system is not None:
        folders.append(dataset.system)
    for folder in folders:
        files = _files_in(folder)
        missing = [name for name in FILES if name not in files]
        if files and missing:
            raise DataError(
                f"{dataset.name} in {folder}: {', '.join(missing)} not found (plain or .gz); "
                "put all four files there"
            )
        if files:
            return files
    # The cache may hold half a download: that is not the user's fault, and fetching mends it.
    files = _files_in(download_folder(dataset.name))
    return files if len(files) == len(FILES) else None


def download(dataset: IdxDataset) -> dict[str, Path]:
    """Fetch the four files into the download cache and check them against their hashes."""
    remedy = put_into(dataset.name, ", ".join(f"{name}.gz" for name in FILES))
    return {
        name: fetch(
            dataset.name, dataset.url, f"{name}.gz", known_hash, home=dataset.name, remedy=remedy
        )
        for name, known_hash in zip(FILES, dataset.hashes, strict=True)
    }


def places(home: str, root: str | None) -> list[Path]:
    """Return where users may keep data: ``root``, then MANEGE_DATA, a subfolder ``home`` first."""
    folders = []
    if root is not None:
        given = user_path(root)
        if not given.is_dir():
            raise DataError(
                f"{field('data_root')} {printable(root)}: no such folder; expected one with data"
            )
        folders += [given / home, given]
    if env := os.environ.get("MANEGE_DATA"):
        folders += [user_path(env) / home, user_path(env)]
    return folders


def download_folder(home: str) -> Path:
    """Return the folder for what is fetched for a dataset."""
    return cache_folder() / "downloads" / home


def put_into(home: str, needed: str) -> str:
    """Say what to do about files that cannot be downloaded."""
    return (
        f"put {needed} into {download_folder(home)}, or into a folder {home}/ below "
        f"{field('data_root')} or MANEGE_DATA"
    )


def fetch(dataset: str, url: str, file: str, known_hash: str, *, home: str, remedy: str) -> Path:
    """Fetch the published file into the download cache and check it against its hash.

    Args:
        dataset: its name, for people.
        url: where the file is, with a slash at the end.
        file: its name there and here.
        known_hash: ``md5:…`` or ``sha256:…``.
        home: the folder it is kept in, in the cache as in the user's places.
        remedy: what to do when it cannot be had, for people.
    """
    import pooch

    folder = download_folder(home)
    pooch.get_logger().setLevel(logging.WARNING)
    bar = _Bar(f"{dataset} {file.removesuffix('.gz')}") if sys.stderr.isatty() else False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fetched = pooch.retrieve(
            f"{url}{file}",
            known_hash=known_hash,
            fname=file,
            path=folder,
            downloader=pooch.HTTPDownloader(timeout=_TIMEOUT_S, progressbar=bar),
        )
    except Exception as error:
        # requests' own errors are OSErrors without a number; the disk's have one.
        if isinstance(error, OSError) and error.errno is not None:
            raise MachineError(
                f"{folder}: {dataset} cannot be kept there ({error.strerror}); "
                "free some space or set MANEGE_CACHE to another folder"
            ) from error
        raise DataError(
            f"{dataset}: {file} is not on this machine and could not be downloaded "
            f"from {url} ({_reason(error)}); {remedy}"
        ) from error
    return Path(fetched)


def _files_in(folder: Path) -> dict[str, Path]:
    found = {}
    for name in FILES:
        # The plain file first: it needs no unzipping.
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                found[name] = path
                break
    return found


def _reason(error: Exception) -> str:
    if type(error).__module__.startswith("requests"):
        status = getattr(getattr(error, "response", None), "status_code", None)
        return f"the server said {status}" if status else f"no connection: {type(error).__name__}"
    if isinstance(error, ValueError):
        return "what the server gave is not the published file"
    return " ".join(str(error).split()) or type(error).__name__


class _Bar:
    """A progress bar, as pooch calls it, on one line of the terminal."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.total = 0
        self.done = 0

    def update(self, step: int) -> None:
        self.done = min(self.done + step, self.total)
        part = 100 * self.done // self.total if self.total else 0
        sys.stderr.write(f"\r{self.title}: {part:3d} % of {self.total / 1e6:.1f} MB")
        sys.stderr.flush()

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        sys.stderr.write("\n")
