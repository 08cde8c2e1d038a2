"""Inception's FID and KID of what sweeps trained, their classes' models joined.

`manege evaluate --features inception` says the same and what real pictures get, which takes the
network through 10,000 training pictures more. Features are kept in the cache, block by block: a
killed command goes on where it was.

    python benchmarks/inception_of_sweep.py SWEEP --recipe modern --seed 0 --samples 10000

Several sweeps of the same data, each with classes of its own, are joined too.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from manege.config import DataConfig
from manege.data import Split, open_dataset, set_of
from manege.metrics import INCEPTION, inception_space, load_weights
from manege.metrics.frechet import frechet_between, spread
from manege.metrics.kid import kid
from manege.sampler import open_model


def scores(sweeps: list[Path], recipe: str, seed: int, samples: int) -> dict[str, Any]:
    """FID (of 2,048 pictures or more), KID and each class's KID, with 95 % intervals."""
    plans = [yaml.safe_load((sweep / "plan.yaml").read_text()) for sweep in sweeps]
    folders = [sweep / "runs" / recipe / f"seed-{seed}" for sweep in sweeps]
    paths = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir()]
    assert paths, f"nothing was trained in {folders}"
    model = reduce(
        lambda joined, path: joined.merged(open_model(path)), paths[1:], open_model(paths[0])
    )
    drawn = model.sample(samples, balanced=True, seed=0)
    dataset = open_dataset(DataConfig(source=plans[0]["data"]))
    space = inception_space(load_weights(), INCEPTION, dataset.size, dataset.channels)
    ours, theirs, found = [], [], {}
    for label in sorted(model.labels, key=dataset.labels.index):
        rows = np.array(drawn.labels) == label
        ours.append(space.features(drawn.pictures[rows]))
        theirs.append(space.features(set_of(dataset, Split.HELD_OUT, labels=(label,)).pictures))
        found[f"kid of {label}"] = kid(ours[-1], theirs[-1])
        print(label, found[f"kid of {label}"], flush=True)
    own_ND, real_MD = np.concatenate(ours), np.concatenate(theirs)
    found["kid"] = kid(own_ND, real_MD)
    if min(len(own_ND), len(real_MD)) >= own_ND.shape[1]:
        found["fid"] = frechet_between(spread(own_ND), spread(real_MD))
    counts = {"generated": len(own_ND), "reference": len(real_MD)}
    return counts | {name: asdict(one) for name, one in found.items()}


def main() -> None:
    """Print the scores and keep them in the first sweep's folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=10_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.process_time()
    found = scores(asked.sweeps, asked.recipe, asked.seed, asked.samples)
    found["cpu_s"] = time.process_time() - begin
    text = json.dumps(found, indent=1)
    (asked.sweeps[0] / f"inception-{asked.recipe}-{asked.seed}.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
