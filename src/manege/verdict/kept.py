"""Store a trial in its run: `verdict/<key>/`, a file for each training, and the result.

The key stands for all that a training depends on but its arm and seed, so that the same command
goes on where it was stopped, and more seeds reuse the trainings that are there.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from manege.errors import CheckpointError
from manege.files import machine_error, read_capped
from manege.metrics.networks import FeatureNetwork, bare
from manege.metrics.spaces import weights_of
from manege.models import fill
from manege.report.run import check_trial
from manege.runs import RunDir
from manege.verdict.arms import Arm

FOLDER = "verdict"

_CAP_BYTES = 1 << 28

Answers = dict[str, np.ndarray]
"""The labels that a classifier gave: `test`, `calibration`, for arm a also `synthetic`."""


@dataclass(frozen=True)
class TrialStore:
    """Reads and writes the files of one trial."""

    rundir: RunDir
    key: str

    def answers(self, arm: Arm, seed: int, counts: Mapping[str, int]) -> Answers | None:
        """Return the answers of a training that is done; None when it is not.

        Args:
            arm: the training's arm.
            seed: the training's seed.
            counts: how many answers there must be, by name.
        """
        blob = self._read(name := f"{arm}-seed-{seed}.npz")
        if blob is None:
            return None
        try:
            with np.load(io.BytesIO(blob), allow_pickle=False) as stored:
                found = {part: np.asarray(stored[part], dtype=np.int64) for part in counts}
            if any(answers.shape != (counts[part],) for part, answers in found.items()):
                raise ValueError("answers to other pictures")
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(name, error) from None
        return found

    def keep(self, arm: Arm, seed: int, answers: Mapping[str, np.ndarray]) -> None:
        """Write the answers of a training, which marks it as done."""
        buffer = io.BytesIO()
        small = {part: found.astype(np.uint16) for part, found in answers.items()}
        np.savez_compressed(buffer, **small)  # type: ignore[arg-type]
        self.write(f"{arm}-seed-{seed}.npz", buffer.getvalue())

    def network(self, channels: int, num_labels: int) -> FeatureNetwork | None:
        """Return the gate's classifier, or None when it has not been kept."""
        blob = self._read(name := "gate.safetensors")
        if blob is None:
            return None
        network = bare(FeatureNetwork, channels, num_labels)
        try:
            tensors = safetensors.numpy.load(blob)
            fill(network, {key: torch.from_numpy(value) for key, value in tensors.items()})
        except (ValueError, safetensors.SafetensorError) as error:
            raise self._damaged(name, error) from None
        return network.eval()

    def keep_network(self, network: FeatureNetwork) -> None:
        """Write the gate's classifier."""
        self.write("gate.safetensors", weights_of(network))

    def result(self, seeds: int) -> dict[str, Any] | None:
        """Return the verdict that an earlier trial reached, or None."""
        blob = self._read(name := result_name(seeds))
        if blob is None:
            return None
        try:
            tree = json.loads(blob)
            check_trial(tree)
            if tree["protocol"]["seeds"] != seeds:
                raise ValueError("of another number of seeds")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged(name, error) from None
        return dict(tree)

    def write(self, name: str, data: bytes) -> None:
        """Write the data to the named file."""
        self.rundir.write_bytes(f"{FOLDER}/{self.key}/{name}", data)

    def write_json(self, name: str, tree: Mapping[str, Any]) -> None:
        """Write the tree to the named file as JSON."""
        self.rundir.write_json(f"{FOLDER}/{self.key}/{name}", tree)

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.rundir.path / FOLDER / self.key / name

    def _read(self, name: str) -> bytes | None:
        try:
            return read_capped(self.path(name), _CAP_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise machine_error(self.path(name), error) from None

    def _damaged(self, name: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self.path(name)}: damaged ({error or type(error).__name__}); delete it, and it is "
            "made again"
        )


def result_name(seeds: int) -> str:
    """Return the file name of a verdict with so many seeds."""
    return f"verdict-{seeds}-seeds.json"


def key_of(protocol: Mapping[str, Any]) -> str:
    """Return the key of the trial with this protocol: a digest of it."""
    return hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:12]
