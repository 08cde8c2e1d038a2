"""CPU seconds of one round of one cell at the cellular paper's Table I settings, part by part.

    python benchmarks/cellular.py [--repeats 3] [--images 60000] [--json FILE]

A cell of a 3x3 grid with its four neighbours (s = 5), 60,000 pictures of 28x28 in batches of 100,
one thread: everything that a round does is counted, what the driver adds (commit, events) is
measured apart. The pictures are noise: no part's cost depends on what they show.

Shares are of the rate of a 1024x1024 matrix multiply in the same process, see `step.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.step import cpu, gflop_of, matmul_gflops

PARTS = ("gather", "data", "train", "update_genomes", "mutate", "commit")


def main() -> None:
    """Print the table; write it as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="rounds that are measured")
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    args = parser.parse_args()
    found = measure(args.images, args.repeats)
    print(f"{cpu()}, one thread; one cell, {args.images:,} pictures of 28x28, batch 100, s = 5")
    print("CPU seconds a round (median)")
    for part in PARTS:
        print(f"  {part:16}{found[part]:8.3f}")
    print(f"  {'overall':16}{found['overall']:8.3f}")
    share = found["gflop"] / found["overall"] / found["matmul_gflops"]
    print(
        f"  {found['gflop']:.0f} GFLOP: {share:.0%} of {found['matmul_gflops']:.0f} GFLOP/s; the "
        f"multiplications alone would take {found['gflop'] / found['matmul_gflops']:.2f} s"
    )
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu(), **found}, indent=2))


def measure(images: int, repeats: int) -> dict[str, float]:
    """Median CPU seconds of each part of a round."""
    import numpy as np
    import torch

    from manege import device
    from manege.config import resolve
    from manege.data import open_dataset
    from manege.methods import Cellular
    from manege.metrics import FrechetMixture, random_space
    from manege.runs import RunDir

    torch.set_num_threads(1)
    peaks = [matmul_gflops()]
    device.keep_memory()
    spent: dict[str, float] = {}

    @contextmanager
    def timer(phase: str) -> Iterator[None]:
        start = time.process_time()
        yield
        spent[phase] = spent.get(phase, 0.0) + time.process_time() - start

    with tempfile.TemporaryDirectory() as folder:
        # A tenth is held out.
        count = -(-images * 10 // 9)
        drawn = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)
        np.savez(Path(folder) / "noise.npz", images=drawn, labels=np.arange(count) % 10)
        config = resolve(
            flags={
                "data.source": str(Path(folder) / "noise.npz"),
                "method": "cellular",
                "training.batches_per_round": -(-images // 100),
            }
        )
        dataset = open_dataset(config.data)
        space = random_space(28, 1)
        references = space.features(drawn[:10_000, :, :, None])
        method = Cellular(
            config, dataset, torch.device("cpu"), timer, FrechetMixture(space, references)
        )
        cell = "1-1"
        states = {one: method.init(one) for one in (cell, *method.neighbours(cell, 1))}
        rundir = RunDir.create(
            Path(folder) / "run", name="", config="", command="", environment={}, data={}
        )
        with rundir.start():
            rounds: list[dict[str, float]] = []
            for _ in range(repeats + 1):
                spent.clear()
                start = time.process_time()
                with timer("gather"):
                    inbox = {
                        one: states[one].published(states[cell].round_)
                        for one in method.neighbours(cell, states[cell].round_ + 1)
                    }
                for _ in method.advance(cell, states[cell], inbox):
                    pass
                with timer("commit"):
                    rundir.commit(
                        cell,
                        identity="bench",
                        round_=states[cell].round_,
                        step=0,
                        tensors=states[cell].to_arrays(),
                        meta=states[cell].counters(),
                    )
                spent["overall"] = time.process_time() - start
                rounds.append(dict(spent))
                peaks.append(matmul_gflops())

            def whole_round() -> None:
                for _ in method.advance(cell, states[cell], inbox):
                    pass

            gflop = gflop_of(whole_round)
    found: dict[str, Any] = {
        part: statistics.median(one[part] for one in rounds[1:]) for part in (*PARTS, "overall")
    }
    return {**found, "gflop": gflop, "matmul_gflops": statistics.median(peaks)}


if __name__ == "__main__":
    main()
