"""What scores are worth on MNIST: real pictures against real ones, and seconds for 10,000 pictures.

`python benchmarks/scores.py [--data mnist] [--draws 5]`, alone on the machine; MANEGE_DATA names
the folder of the datasets. Prints two tables in Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from manege import device
from manege.config import resolve, stream
from manege.data import PictureSet, Split, open_dataset, set_of
from manege.metrics import ScoredSets, Space, classifier_for, measure
from manege.metrics.frechet import frechet
from manege.metrics.kid import kid
from manege.metrics.neighbours import nearest, prdc

COUNTS = (100, 500, 1000, 5000)
NAMES = ("kid", "fd", "precision", "recall", "density", "coverage", "label-tvd")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--draws", type=int, default=5)
    arguments = parser.parse_args()
    dataset = open_dataset(resolve(flags={"data.source": arguments.data}).data)
    space = classifier_for(dataset)
    train, held_out = (set_of(dataset, split) for split in Split)
    print(f"{space.name}, {space.dimensions} dimensions, accuracy {space.accuracy}\n")
    with device.threads(1):
        real_against_real(space, train, held_out, arguments.draws)
        seconds(space, train, held_out)


def real_against_real(space: Space, train: PictureSet, held_out: PictureSet, draws: int) -> None:
    """The scores of training pictures in a generator's place, mean and spread over draws."""
    print(f"| training pictures | {' | '.join(NAMES)} |\n|---|{'---|' * len(NAMES)}")
    for count in COUNTS:
        found: dict[str, list[float]] = {name: [] for name in NAMES}
        inside = 0
        for draw in range(draws):
            rows = stream(draw, cell="", purpose="benchmark").permutation(len(train))[:count]
            labels = train.labels or ()
            some = replace(
                train,
                pictures=train.pictures[rows],
                labels=tuple(labels[row] for row in rows),
                digest=f"benchmark {draw} {count}",
            )
            contest = ScoredSets(some, held_out, space, allow_few=True)
            scores = measure(contest, ("kid", "fd", "prdc", "labels"), lambda verb: None).scores
            for score in scores:
                if score.name in found:
                    found[score.name].append(score.value)
                if score.name == "kid":
                    inside += score.low <= 0 <= score.high
        cells = [f"{np.mean(found[n]):.4g} ± {np.std(found[n], ddof=1):.2g}" for n in NAMES]
        print(f"| {count:,} ({inside} of {draws} kid intervals hold 0) | {' | '.join(cells)} |")


def seconds(space: Space, train: PictureSet, held_out: PictureSet) -> None:
    """CPU seconds of each part for 10,000 pictures against 10,000."""
    pictures = train.pictures[:10_000]
    x, y = space.features(pictures), space.features(held_out.pictures[:10_000])
    flat = [one.reshape(len(one), -1).astype(np.float32) for one in (pictures[:1000], pictures)]
    parts: dict[str, Callable[[], object]] = {
        "features": lambda: space.features(pictures),
        "kid": lambda: kid(x, y),
        "fd": lambda: frechet(x, y),
        "precision, recall, density, coverage": lambda: prdc(x, y),
        "nearest of 1,000 among 10,000": lambda: nearest(flat[0], flat[1]),
    }
    print("\n| 10,000 against 10,000 pictures | CPU seconds |\n|---|---|")
    for name, part in parts.items():
        start = time.process_time()
        part()
        print(f"| {name} | {time.process_time() - start:.1f} |")


if __name__ == "__main__":
    main()
