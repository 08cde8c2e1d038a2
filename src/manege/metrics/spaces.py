"""Feature spaces: a network, what it was made from, and a name that no other space has.

Numbers from different spaces cannot be compared, so every space's name carries the digest of its
weights. Owns the spaces' files (`scorer/` in a run directory); trains nothing.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from manege import device, errors
from manege.config import stream
from manege.data import PictureSet, cache
from manege.errors import CheckpointError, DataError, MachineError
from manege.files import blaming, make_folder, read_capped, write_atomic
from manege.metrics.estimate import Estimate
from manege.metrics.inception import DIMENSIONS, Inception
from manege.metrics.inception import clean as clean_inception
from manege.metrics.lite0 import DIMENSIONS as LITE0_DIMENSIONS
from manege.metrics.lite0 import SIDE as LITE0_SIDE
from manege.metrics.lite0 import Lite0Features
from manege.metrics.lite0_weights import FeatureWeights, feature_weights
from manege.metrics.networks import (
    FeatureNetwork,
    MnistLogits,
    Network,
    Points,
    bare,
    feature_dimensions,
    initialise_random,
)
from manege.metrics.parts import inception_features
from manege.metrics.weights import InceptionWeights
from manege.models import fill, to_floats
from manege.models.lite0 import CLASSES

FORMAT = 1
DESCRIPTION, WEIGHTS = "scorer.json", "space.safetensors"
CLASSIFIER, RANDOM, MNIST_LOGITS, POINTS = "classifier", "random", "mnist-logits", "points"
INCEPTION, CLEAN, LITE0 = "inception", "inception-clean", "lite0"

_CAP_BYTES = 1 << 26
_CHUNK_BYTES = 1 << 25
"""Bytes that the widest layer may take for the pictures of one batch."""


def planned_dimensions(kind: str, channels: int) -> int | None:
    """Return the dimensions of a space that is named by its kind; None where a folder tells."""
    known = {
        INCEPTION: DIMENSIONS,
        CLEAN: DIMENSIONS,
        LITE0: LITE0_DIMENSIONS,
        MNIST_LOGITS: MnistLogits.dimensions,
    }
    own = Points.dimensions if channels == 2 else feature_dimensions(channels)
    return (known | dict.fromkeys((CLASSIFIER, RANDOM, POINTS), own)).get(kind)


Progress = Callable[[int, int], None]
"""A callback that is called now and then with (done, in all)."""


@dataclass(frozen=True)
class Space:
    """A feature space in which pictures are compared: a network, and where it is from."""

    kind: str
    size: int
    channels: int
    network: Network | Inception | Lite0Features = field(compare=False, repr=False)
    sha256: str
    """Digest of the weights; for Lite0 also of the size and the projection."""
    labels: tuple[str, ...] = ()
    """The labels it tells apart; empty when it knows none."""
    trained_on: str | None = None
    """Digest of the pictures and labels it was trained on."""
    accuracy: Estimate | None = None
    """The accuracy of its labels on held-out pictures."""
    source: Mapping[str, str] | None = field(default=None, compare=False)
    """Published file that the weights are from, and its SHA-256."""

    @property
    def name(self) -> str:
        """Return the kind and eight digits of the digest; for Lite0 also side and dimensions."""
        if self.kind == POINTS:
            return self.kind
        form = f"-{LITE0_SIDE}-{self.dimensions}" if self.kind == LITE0 else ""
        return f"{self.kind}{form}-{self.sha256[:8]}"

    @property
    def published(self) -> bool:
        """Return whether its weights are published in a file, so that no run keeps a copy."""
        return isinstance(self.network, Inception | Lite0Features)

    @property
    def dimensions(self) -> int:
        """Return the length of a feature row."""
        return self.network.dimensions

    def features(self, pictures_NSSC: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Return features N×D float32; one thread makes them reproducible, but for Inception's."""
        _, side, _, channels = pictures_NSSC.shape
        if (side, channels) != (self.size, self.channels):
            raise DataError(
                f"pictures of {side}x{side}x{channels}, but the feature network {self.name} takes "
                f"{self.size}x{self.size}x{self.channels}; give {errors.field('size')} and "
                f"{errors.field('channels')}"
            )
        if isinstance(self.network, Inception):
            return inception_features(self.network, self.name, pictures_NSSC, progress)
        return self._through(self.network.features, self.dimensions, pictures_NSSC, progress)

    def features_and_classes(
        self, pictures_NSSC: np.ndarray, progress: Progress | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return Lite0's features, and its N×1000 outputs for ImageNet's classes."""
        assert isinstance(self.network, Lite0Features)
        width = self.dimensions + CLASSES
        found = self._through(self.network.both, width, pictures_NSSC, progress)
        return found[:, : self.dimensions].copy(), found[:, self.dimensions :]

    def _through(
        self,
        network: Callable[[Tensor], Tensor],
        width: int,
        pictures_NSSC: np.ndarray,
        progress: Progress | None,
    ) -> np.ndarray:
        """Send the pictures through a network in batches and return rows of that width."""
        count, side, _, channels = pictures_NSSC.shape
        found = np.empty((count, width), dtype=np.float32)
        chunk = max(8, _CHUNK_BYTES // (4 * 32 * min(side, 32) ** 2 + 8 * side**2 * channels))
        if isinstance(self.network, Lite0Features):
            chunk = self.network.CHUNK
        with device.threads(1), torch.no_grad():
            for start in range(0, count, chunk):
                # A copy: odd strides of an axis of length 1 would make torch choose other kernels.
                part = np.array(pictures_NSSC[start : start + chunk], order="C")
                rows = network(to_floats(torch.from_numpy(part)))
                found[start : start + chunk] = rows.numpy()
                if progress is not None:
                    progress(min(count, start + chunk), count)
        return found

    def features_of(
        self,
        pictures: PictureSet,
        progress: Progress | None = None,
        rows: slice | np.ndarray = slice(None),
    ) -> np.ndarray:
        """Return the features of a set, or of some of its rows, computed once and then cached."""
        if isinstance(self.network, Inception):
            return self.features(pictures.pictures[rows], progress)
        key = cache.key("features", self.sha256, self.kind, pictures.digest)
        entry = cache.find(key, kind="features")
        if entry is None:
            found = self.features(pictures.pictures, progress).view(np.uint8)
            entry = cache.store(key, found.shape, (), [found], kind="features")
        if 0 in entry.shape:
            return np.empty((0, self.dimensions), dtype=np.float32)
        return np.array(entry.open()).view(np.float32)[rows]

    def labels_of(self, features_ND: np.ndarray) -> np.ndarray:
        """Return, for each row, the number of its most likely label."""
        found: np.ndarray = self.logits_of(features_ND).argmax(1)
        return found

    def logits_of(self, features_ND: np.ndarray) -> np.ndarray:
        """Return the network's outputs for each row; raise ValueError if it knows no labels."""
        with device.threads(1), torch.no_grad():
            logits_NK = self.network.logits(torch.from_numpy(features_ND))
        if logits_NK is None:
            raise ValueError(f"the space {self.name} knows no labels")
        logits: np.ndarray = logits_NK.numpy()
        return logits

    def description(self) -> dict[str, Any]:
        """Return the description of the space that scorer.json and every evaluation hold."""
        # Only where there is one: what runs have kept is found by this.
        source = {} if self.source is None else {"source": dict(self.source)}
        return {
            "format": FORMAT,
            **source,
            "kind": self.kind,
            "name": self.name,
            "sha256": self.sha256,
            "size": self.size,
            "channels": self.channels,
            "dimensions": self.dimensions,
            "labels": list(self.labels),
            "trained_on": self.trained_on,
            "accuracy": asdict(self.accuracy) if self.accuracy else None,
        }


def weights_of(network: Network) -> bytes:
    """Return the network's tensors as a safetensors file; equal tensors give equal bytes."""
    tensors = {name: value.detach().numpy() for name, value in sorted(network.state_dict().items())}
    return bytes(safetensors.numpy.save(tensors))


def digest_of(network: Network) -> str:
    """Return the SHA-256 of `weights_of` the network."""
    return hashlib.sha256(weights_of(network)).hexdigest()


def random_space(size: int, channels: int) -> Space:
    """Return the space of untrained convolutions, always the same, for pictures without labels."""
    network = bare(FeatureNetwork, channels, 0)
    initialise_random(network, stream(0, cell="", purpose="random features"))
    return Space(RANDOM, size, channels, network.eval(), digest_of(network))


def points_space() -> Space:
    """Return the space of the toys: the plane itself."""
    network = Points()
    shape = network.SHAPE
    return Space(POINTS, shape.size, shape.channels, network.eval(), digest_of(network))


def mnist_logits_space(path: Path) -> Space:
    """Read the classifier of Lipizzaner from its file, a pickled dictionary of plain tensors."""
    network = bare(MnistLogits)
    try:
        # Admits tensors and nothing else.
        with warnings.catch_warnings(action="ignore"):
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(tensors)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in network.parameters()):
            raise ValueError("weights that are not finite")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give {errors.field('features')} "
            "mnist-logits=FILE the path of lipizzaner_mnist_cnn.pkl"
        ) from None
    except Exception as error:
        # torch raises whatever its unpickler met; a file from anywhere must not end in a traceback.
        reason = " ".join(str(error).split())[:120]
        raise DataError(
            f"{path}: not the MNIST classifier of Lipizzaner ({reason}); expected its state dict"
        ) from None
    shape, labels = network.SHAPE, tuple(str(digit) for digit in range(10))
    return Space(
        MNIST_LOGITS, shape.size, shape.channels, network.eval(), digest_of(network), labels
    )


def inception_space(weights: InceptionWeights, kind: str, size: int, channels: int) -> Space:
    """Return the space of FID, for pictures of any side; `kind` is INCEPTION or CLEAN."""
    network = (clean_inception if kind == CLEAN else Inception)(weights.tensors)
    source = {"file": weights.source, "sha256": weights.source_sha256}
    return Space(kind, size, channels, network, weights.sha256, source=source)


def lite0_space(size: int, channels: int, weights: FeatureWeights) -> Space:
    """Return the space of EfficientNet-Lite0, trained on ImageNet, for pictures of any side."""
    network = Lite0Features(weights)
    source = {"network": "EfficientNet-Lite0", "weights_sha256": weights.sha256}
    return Space(LITE0, size, channels, network, network.sha256, source=source)


def save_space(space: Space, folder: Path) -> None:
    """Write the space into a folder; the description is last and marks it as complete."""
    if isinstance(space.network, Inception):
        raise ValueError("Inception's weights are published: no run keeps a copy")
    with blaming(folder):
        make_folder(folder)
    if not isinstance(space.network, Lite0Features):
        write_atomic(folder / WEIGHTS, weights_of(space.network))
    text = json.dumps(space.description(), indent=1, ensure_ascii=False)
    write_atomic(folder / DESCRIPTION, text.encode())


def is_stored(folder: Path) -> bool:
    """Return whether a folder holds a complete space, not one that a killed process left."""
    return (folder / DESCRIPTION).is_file()


def kind_of(folder: Path) -> str:
    """Return the kind of space in a folder, or raise CheckpointError when it does not say."""
    with _blamed(folder):
        return str(_description(folder)["kind"])


def load_space(folder: Path, weights_file: str | Path | None = None) -> Space:
    """Read the space in a folder, and verify its weights.

    Lite0's are not there: they come from `weights_file`, or from where `feature_weights` looks.
    """
    with _blamed(folder):
        tree = _description(folder)
        if tree["kind"] == LITE0:
            return _lite0_of(tree, folder / DESCRIPTION, weights_file)
        blob = read_capped(folder / WEIGHTS, _CAP_BYTES)
        if hashlib.sha256(blob).hexdigest() != tree["sha256"]:
            raise ValueError(f"the SHA-256 of {WEIGHTS} differs")
        return _assembled(tree, blob)


def _description(folder: Path) -> Any:
    path = folder / DESCRIPTION
    tree = json.loads(read_capped(path, _CAP_BYTES))
    if tree["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: scorer format {tree['format']!r}, this manege reads {FORMAT}; delete the "
            f"folder {folder} and it is made again"
        )
    return tree


@contextmanager
def _blamed(folder: Path) -> Iterator[None]:
    """Turn any error in reading a space into one line about its folder."""
    path = folder / DESCRIPTION
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{folder}: no scorer there ({error.strerror or error}); expected {DESCRIPTION} and "
            f"{WEIGHTS}, as in the scorer/ of a run"
        ) from None
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise _damaged(path, error) from None
    except RecursionError as error:
        raise _damaged(path, error) from None
    except safetensors.SafetensorError as error:
        raise _damaged(path, error) from None


def _lite0_of(tree: Mapping[str, Any], path: Path, weights_file: str | Path | None) -> Space:
    size, channels = tree["size"], tree["channels"]
    if not isinstance(size, int) or channels not in (1, 3):
        raise ValueError(f"pictures of {size!r}x{size!r}x{channels!r}")
    try:
        space = lite0_space(size, channels, feature_weights(weights_file))
    except MachineError as error:
        raise CheckpointError(
            f"{path}: scores are computed with EfficientNet-Lite0; {error}"
        ) from None
    if space.sha256 != tree["sha256"]:
        raise CheckpointError(
            f"{path}: found weights that make {space.name}, expected those of {tree['name']}, with "
            f"which the run was scored; give back that file ({errors.field('feature_weights')})"
        )
    return space


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path}: damaged, or not a scorer of manege ({error!r}); delete the folder {path.parent} "
        "and it is made again"
    )


def _assembled(tree: Mapping[str, Any], blob: bytes) -> Space:
    labels = tuple(str(label) for label in tree["labels"])
    size, channels = int(tree["size"]), int(tree["channels"])
    network = _built(tree["kind"], channels, len(labels))
    if not isinstance(network, FeatureNetwork) and (size, channels) != (
        network.SHAPE.size,
        network.SHAPE.channels,
    ):
        raise ValueError(f"{tree['kind']} for pictures of {size}x{size}x{channels}")
    tensors = safetensors.numpy.load(blob)
    if isinstance(network, Points):
        if tensors:
            raise ValueError("points with a network")
    else:
        fill(network, {name: torch.from_numpy(value) for name, value in tensors.items()})
    accuracy = tree["accuracy"]
    if accuracy is not None:
        accuracy = Estimate(*(_number(accuracy[key]) for key in ("value", "low", "high")))
    return Space(
        kind=tree["kind"],
        size=size,
        channels=channels,
        network=network.eval(),
        sha256=str(tree["sha256"]),
        labels=labels,
        trained_on=None if tree["trained_on"] is None else str(tree["trained_on"]),
        accuracy=accuracy,
    )


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _built(kind: str, channels: int, num_labels: int) -> Network:
    match kind:
        case "classifier" | "random":
            if channels not in (1, 3):
                raise ValueError(f"{channels} channels")
            return bare(FeatureNetwork, channels, num_labels)
        case "mnist-logits":
            return bare(MnistLogits)
        case "points":
            return Points()
        case _:
            raise ValueError(f"kind {kind!r}")
