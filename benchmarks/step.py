"""CPU seconds of one training step: our form against the common one, side by side.

    python benchmarks/step.py [--steps 4] [--repeats 5] [--json FILE]

Three forms of the same mathematics (`tests/unit/cell/test_step.py` holds them together):

- *fast*: as `manege train` runs it.
- *plain*: as public code usually writes it: nearest-neighbour upsampling, then convolution;
  pictures channels first; Adam unfused, a parameter at a time; the discriminator's fakes made with
  a graph and then detached; the discriminator's weights gathering gradients in the generator's
  step that nobody uses.
- *plain, kept memory*: the plain form with our setting of the C library's allocator
  (`device.keep_memory`), which public code does not make.

Every measurement is a process of its own with one thread; the forms take turns, medians count.
On a shared machine only the ratios mean something.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

FORMS = ("fast", "plain", "plain, kept memory")
BATCH = 64
SIZE = 32
WARM_UP = 2


def main() -> None:
    """Print the table; write it as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="steps in one measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each form")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--one", nargs=2, metavar=("FORM", "N_CRITIC"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.steps)))
        return

    print(f"{cpu()}, one thread; batch {BATCH}, {SIZE}x{SIZE}x3, the papers' networks, Wasserstein")
    print(f"{'':14}{'CPU seconds per step (median)':^44}{'ratio to fast':^30}")
    print(f"{'':14}" + "".join(f"{form:>20}" for form in FORMS))
    rows = []
    for n_critic in (1, 5):
        seconds, peak = compare(n_critic, args.steps, args.repeats)
        ratios = {form: seconds[form] / seconds["fast"] for form in FORMS}
        rows.append(
            {"n_critic": n_critic, "seconds": seconds, "ratios": ratios, "matmul_gflops": peak}
        )
        cells = "".join(f"{seconds[form]:>12.4f} ({ratios[form]:.2f}x)" for form in FORMS)
        print(f"n_critic {n_critic:<5}{cells}   matrix multiply {peak:.0f} GFLOP/s")
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu(), "rows": rows}, indent=2))


def compare(n_critic: int, steps: int, repeats: int) -> tuple[dict[str, float], float]:
    """Median CPU seconds a step of each form, and the median matrix-multiply rate seen."""
    found: dict[str, list[float]] = {form: [] for form in FORMS}
    peaks = []
    for _ in range(repeats):
        for form in FORMS:
            command = [sys.executable, __file__, "--steps", str(steps)]
            done = subprocess.run(
                [*command, "--one", form, str(n_critic)], capture_output=True, text=True, check=True
            )
            told = json.loads(done.stdout)
            found[form].append(told["seconds"])
            peaks.append(told["matmul_gflops"])
    return {form: statistics.median(values) for form, values in found.items()}, statistics.median(
        peaks
    )


def measure(form: str, n_critic: int, steps: int) -> dict[str, float]:
    """CPU seconds a step in this process; drawing the noise counts."""
    import torch
    from tests.plain_form import PlainPair

    from manege import device
    from manege.cell import draw_noise, new_pair, train_step
    from manege.config import DcganNetworks, Loss, Training, stream
    from manege.models import PictureShape

    torch.set_num_threads(1)
    peak = matmul_gflops()
    if form != "plain":
        device.keep_memory()
    training = Training(loss=Loss.WASSERSTEIN, batch=BATCH, n_critic=n_critic)
    rng = stream(0, cell="bench", purpose="init")
    shape = PictureShape(size=SIZE, channels=3)
    pair = new_pair(DcganNetworks(), shape, training, torch.device("cpu"), rng, rng)
    generator = torch.Generator().manual_seed(0)
    reals = [torch.rand(BATCH, 3, SIZE, SIZE, generator=generator) for _ in range(n_critic)]
    if form == "fast":
        reals = [batch.contiguous(memory_format=torch.channels_last) for batch in reals]
        run: Callable = lambda noise: train_step(pair, reals, noise, training)  # noqa: E731
    else:
        plain = PlainPair.like(pair, training)
        run = lambda noise: plain.train_step(reals, noise)  # noqa: E731
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            start = time.process_time()
        run([draw_noise(pair, BATCH, rng, rng) for _ in range(n_critic + 1)])
    return {"seconds": (time.process_time() - start) / steps, "matmul_gflops": peak}


def matmul_gflops(side: int = 1024, times: int = 8) -> float:
    """This core's float32 matrix-multiply rate just now."""
    import torch

    a = torch.rand(side, side, generator=torch.Generator().manual_seed(0))
    a @ a
    start = time.process_time()
    for _ in range(times):
        a @ a
    return 2 * side**3 * times / (time.process_time() - start) / 1e9


def cpu() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
