"""How pictures of each size are best shown to EfficientNet-Lite0: what a linear probe reads there.

    python benchmarks/feeding.py [--folder PHOTOS] [--per-class 100] [--data-root DIR]

For each dataset and each side at which its pictures are shown (pixels repeated or averaged to that
side), the accuracy of a ridge regression on the critic's maps (stages 24 and 40, averaged over a
2×2 grid) and on the pooled last layer, trained on some pictures of each class and tested on 100
held-out ones a class (the best of four ridges, alike for all); and CPU milliseconds for 32
pictures, forward to stage 40 and to the last. Grey pictures are shown as colourless ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from manege.config import DataConfig
from manege.data import PictureSet, Split, open_dataset, set_of
from manege.errors import ManegeError
from manege.metrics import feature_weights
from manege.models.lite0 import Lite0

SIDES = (24, 32, 48, 64, 96)
STAGES = (24, 40)
TESTED = 100
BLOCK = 100
DATA = (
    ("digits", None, (8, *SIDES)),
    ("mnist", None, (28, 56, 84)),
    ("cifar10", 16, (16, *SIDES[1:])),
    ("cifar10", None, SIDES[1:]),
)
"""Source, side to which its pictures are brought, and the sides at which they are shown."""
FOLDER_SIDES = (32, 64, 96)


def main() -> None:
    """Print a line for each dataset and side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--folder", help="pictures of 64 px, shown at 32, 64 and 96")
    parser.add_argument("--data-root")
    args = parser.parse_args()
    torch.set_num_threads(1)
    network = feature_weights().network
    print(f"{'data':12}{'side':>5}{'shown':>6}{'maps':>8}{'pooled':>8}{'ms maps':>9}{'ms last':>9}")
    own = [(args.folder, None, FOLDER_SIDES)] if args.folder else []
    for source, size, sides in (*DATA, *own):
        try:
            data = open_dataset(DataConfig(source=source, size=size, root=args.data_root))
        except ManegeError as error:
            print(f"{source}: {error}")
            continue
        parts = [
            _some(set_of(data, split), count)
            for split, count in ((Split.TRAIN, args.per_class), (Split.HELD_OUT, TESTED))
        ]
        for side in sides:
            found, times = [], []
            for look in (_maps, _pooled):
                rows = [_rows(network, look, pictures, side) for pictures, _ in parts]
                found.append(_accuracy(rows[0], parts[0][1], rows[1], parts[1][1]))
                times.append(_ms(network, look, _shown(parts[0][0][:32], side)))
            name = source.split("/")[-1][:11]
            print(
                f"{name:12}{data.size:5}{side:6}{found[0]:8.3f}{found[1]:8.3f}"
                f"{times[0]:9.1f}{times[1]:9.1f}",
                flush=True,
            )


def _some(pictures: PictureSet, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """The first pictures of each class, and their classes' numbers."""
    labels = np.array(pictures.labels)
    names = sorted(set(pictures.labels))
    rows = [np.flatnonzero(labels == name)[:per_class] for name in names]
    numbers = np.concatenate([np.full(len(one), at) for at, one in enumerate(rows)])
    return pictures.pictures[np.concatenate(rows)], numbers


def _shown(pictures_NSSC: np.ndarray, side: int) -> Tensor:
    x = torch.from_numpy(pictures_NSSC).permute(0, 3, 1, 2).float() / 127.5 - 1
    mode = "nearest" if side >= x.shape[-1] else "area"
    return F.interpolate(x, size=(side, side), mode=mode)


def _maps(network: Lite0, x: Tensor) -> Tensor:
    maps = network.maps(x, STAGES)
    return torch.cat([F.adaptive_avg_pool2d(one, 2).flatten(1) for one in maps], 1)


def _pooled(network: Lite0, x: Tensor) -> Tensor:
    return network.features(x)


Look = Callable[[Lite0, Tensor], Tensor]


@torch.no_grad()
def _rows(network: Lite0, look: Look, pictures_NSSC: np.ndarray, side: int) -> Tensor:
    starts = range(0, len(pictures_NSSC), BLOCK)
    parts = [look(network, _shown(pictures_NSSC[one : one + BLOCK], side)) for one in starts]
    return torch.cat(parts).double()


def _accuracy(train: Tensor, is_: np.ndarray, test: Tensor, wanted: np.ndarray) -> float:
    mean, deviation = train.mean(0), train.std(0) + 1e-6
    a, b = (train - mean) / deviation, (test - mean) / deviation
    targets = F.one_hot(torch.from_numpy(is_)).double()
    targets = targets - targets.mean(0)
    best = 0.0
    # As many rows as features or fewer: solved in the rows' space.
    gram = a @ a.T
    for strength in (10.0, 100.0, 1000.0, 10000.0):
        weights = torch.linalg.solve(gram + strength * torch.eye(len(a), dtype=a.dtype), targets)
        said = (b @ (a.T @ weights)).argmax(1).numpy()
        best = max(best, float((said == wanted).mean()))
    return best


@torch.no_grad()
def _ms(network: Lite0, look: Look, x: Tensor) -> float:
    look(network, x)
    started = time.process_time()
    for _ in range(5):
        look(network, x)
    return 200 * (time.process_time() - started)


if __name__ == "__main__":
    main()
