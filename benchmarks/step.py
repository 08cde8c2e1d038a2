"""CPU seconds of one training step: our form against the common one, side by side.

    python benchmarks/step.py [--steps 6] [--repeats 5] [--json FILE]

The plain form is how public code usually writes the same step: nearest-neighbour upsampling,
then convolution; pictures channels first; Adam unfused, a parameter at a time; the
discriminator's fakes made with a graph and then detached; the discriminator's weights gathering
gradients in the generator's step that nobody uses. Both forms compute the same mathematics
(`tests/unit/cell/test_step.py` holds them against each other). One thread, interleaved
repeats, medians: on a noisy machine only the ratio counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.plain_form import PlainPair

from manege.cell import Pair, draw_noise, new_pair, train_step
from manege.config import DcganNetworks, Loss, Training, stream
from manege.models import PictureShape

BATCH = 64
SHAPE = PictureShape(size=32, channels=3)


def main() -> None:
    """Print the table; write it as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="steps timed at once")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved repeats of each form")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    args = parser.parse_args()

    torch.set_num_threads(1)
    peak = matmul_gflops()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, one thread")
    print(f"batch {BATCH}, {SHAPE.size}x{SHAPE.size}x{SHAPE.channels}, paper networks; ", end="")
    print(f"matrix multiply {peak:.0f} GFLOP/s\n")
    print(f"{'':12}{'fast':>12}{'plain':>12}{'ratio':>8}   CPU seconds per step, median")
    rows = []
    for n_critic in (1, 5):
        fast, plain = compare(n_critic, args.steps, args.repeats)
        ratio = plain / fast
        rows.append({"n_critic": n_critic, "fast_s": fast, "plain_s": plain, "ratio": ratio})
        print(f"n_critic {n_critic:<3}{fast:12.4f}{plain:12.4f}{ratio:8.2f}")
    if args.json:
        args.json.write_text(json.dumps({"matmul_gflops": peak, "rows": rows}, indent=2))


def compare(n_critic: int, steps: int, repeats: int) -> tuple[float, float]:
    """Median CPU seconds a step, of the fast and of the plain form."""
    training = Training(loss=Loss.WASSERSTEIN, batch=BATCH, n_critic=n_critic)
    rng = stream(0, cell="bench", purpose="init")
    pair = new_pair(DcganNetworks(), SHAPE, training, torch.device("cpu"), rng, rng)
    plain = PlainPair.like(pair, training)
    reals = [torch.rand(BATCH, 3, 32, 32) * 2 - 1 for _ in range(n_critic)]
    fast_reals = [batch.contiguous(memory_format=torch.channels_last) for batch in reals]
    seconds: dict[str, list[float]] = {"fast": [], "plain": []}
    for repeat in range(repeats + 1):  # The first warms up and is not counted.
        for name, run in (
            ("fast", lambda noise: train_step(pair, fast_reals, noise, training)),
            ("plain", lambda noise: plain.train_step(reals, noise)),
        ):
            spent = timed(run, pair, n_critic, steps if repeat else 1)
            if repeat:
                seconds[name].append(spent)
    return statistics.median(seconds["fast"]), statistics.median(seconds["plain"])


def timed(run, pair: Pair, n_critic: int, steps: int) -> float:
    """CPU seconds a step; drawing the noise counts for both."""
    rng = stream(0, cell="bench", purpose="noise")
    start = time.process_time()
    for _ in range(steps):
        run([draw_noise(pair, BATCH, rng, rng) for _ in range(n_critic + 1)])
    return (time.process_time() - start) / steps


def matmul_gflops(side: int = 1024, times: int = 8) -> float:
    """This core's measured float32 matrix-multiply rate."""
    a: Tensor = torch.rand(side, side)
    a @ a
    start = time.process_time()
    for _ in range(times):
        a @ a
    return 2 * side**3 * times / (time.process_time() - start) / 1e9


if __name__ == "__main__":
    main()
