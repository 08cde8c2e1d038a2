"""CPU seconds of one training step: our form against the common one, side by side.

    python benchmarks/step.py [--steps 2] [--repeats 3] [--json FILE] [LINE ...]

Three forms of the same mathematics (`tests/unit/cell/test_step.py` holds them together):

- *fast*: as `manege train` runs it.
- *plain*: as public code usually writes it: nearest-neighbour upsampling, then convolution;
  convolution, then averaging; pictures channels first; Adam unfused, a parameter at a time; the
  discriminator's fakes made with a graph and then detached; the discriminator's weights gathering
  gradients in the generator's step that nobody uses.
- *plain, kept memory* (the papers' lines only): the plain form with our setting of the C library's
  allocator (`device.keep_memory`), which public code does not make.

The forms take turns, each turn a process of its own with one thread that measures the lines which
have the same forms; medians count. On a shared machine only the ratios mean something.

The last column is what the fast form makes of the core: the multiplications and additions of a step
over its CPU seconds, as a share of the rate of a 1024×1024 matrix multiply in the same process.
Counted is what torch is asked for, from the shapes: for a convolution or linear layer one pass
forward, one back to the input, one back to the weight, each only where it is computed. So the
generator runs forward without a way back in the discriminator's update, the discriminator back to
its input alone in the generator's, and no first layer back to a picture that wants no gradient. A
penalised gradient counts in full: the pass to the pictures, and differentiating it again (two more
for a layer). A fused layer counts as what it is, 16 multiplications a pixel and channel pair where
the plain form has 36. Not counted: BatchNorm, activations, power iterations, losses, Adam, noise.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

FORMS = ("fast", "plain", "plain, kept memory")
BATCH = 64
SIZE = 32
LABELS = 10
WARM_UP = 1


class Line(NamedTuple):
    """What a line of the table measures: sections of a configuration."""

    networks: dict[str, Any]
    training: dict[str, Any]
    forms: tuple[str, ...] = FORMS[:2]
    num_labels: int = 0


MODERN: dict[str, Any] = {
    "kind": "dcgan",
    "batchnorm_eps": 1e-5,
    "generator_width": 32,
    "discriminator_batchnorm": False,
    "dropout": 0.0,
    "discriminator_width": 32,
}
"""The networks of the preset of that name."""
LINES = {
    "paper, n_critic 1": Line({"kind": "dcgan"}, {"n_critic": 1}, FORMS),
    "paper, n_critic 5": Line({"kind": "dcgan"}, {"n_critic": 5}, FORMS),
    "modern": Line(MODERN, {"loss": "relativistic", "constraint": {"kind": "r1r2"}}),
    "modern, hinge, spectral": Line(MODERN, {"loss": "hinge", "constraint": {"kind": "spectral"}}),
    "modern, wasserstein, gp": Line(MODERN, {"loss": "wasserstein", "constraint": {"kind": "gp"}}),
    "resnet, hinge, spectral": Line(
        {"kind": "resnet"}, {"loss": "hinge", "constraint": {"kind": "spectral"}}
    ),
    "modern, conditional": Line(
        MODERN, {"loss": "relativistic", "constraint": {"kind": "r1r2"}}, num_labels=LABELS
    ),
}


def main() -> None:
    """Print the table; write it as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2, help="steps in one measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each form")
    parser.add_argument("lines", nargs="*", help="the lines to measure; all when none is named")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--one", metavar="FORM", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [name for name in args.lines if name not in LINES]:
        parser.error(f"no line {unknown[0]!r}; expected some of {', '.join(map(repr, LINES))}")
    chosen = {name: LINES[name] for name in args.lines or LINES}
    if args.one:
        print(json.dumps({name: measure(args.one, chosen[name], args.steps) for name in chosen}))
        return

    print(f"{cpu()}, one thread; batch {BATCH}, {SIZE}x{SIZE}x3")
    print(f"{'':34}{'CPU seconds per step (median), ratio to fast':^60}")
    print(f"{'':34}" + "".join(f"{form:>20}" for form in FORMS))
    rows = []
    for forms in dict.fromkeys(line.forms for line in chosen.values()):
        names = [name for name, line in chosen.items() if line.forms == forms]
        for row in compare(names, forms, args.steps, args.repeats):
            rows.append(row)
            print(told(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu(), "rows": rows}, indent=2))


def told(row: dict[str, Any]) -> str:
    """A line of the table."""
    seconds = row["seconds"]
    cells = [
        f"{seconds[form]:.4f} ({row['ratios'][form]:.2f}x)" if form in seconds else ""
        for form in FORMS
    ]
    share = f"fast: {row['share']:.0%} of {row['matmul_gflops']:.0f} GFLOP/s".replace("%", " %")
    return f"{row['line']:34}" + "".join(f"{cell:>20}" for cell in cells) + f"   {share}"


def compare(
    names: list[str], forms: tuple[str, ...], steps: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """For each line the medians over processes."""
    turns: dict[str, list[dict[str, dict[str, float]]]] = {form: [] for form in forms}
    for _ in range(repeats):
        for form in forms:
            command = [sys.executable, __file__, "--steps", str(steps), "--one", form, "--", *names]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            turns[form].append(json.loads(done.stdout))
    for name in names:
        found = {form: [turn[name] for turn in turns[form]] for form in forms}
        seconds = {
            form: statistics.median(one["seconds"] for one in measured)
            for form, measured in found.items()
        }
        fast = found["fast"]
        yield {
            "line": name,
            "seconds": seconds,
            "ratios": {form: value / seconds["fast"] for form, value in seconds.items()},
            "gflop": fast[0]["gflop"],
            "matmul_gflops": statistics.median(one["matmul_gflops"] for one in fast),
            "share": statistics.median(
                one["gflop"] / one["seconds"] / one["matmul_gflops"] for one in fast
            ),
        }


def measure(form: str, line: Line, steps: int) -> dict[str, float]:
    """CPU seconds a step in this process; drawing the noise counts."""
    import torch
    from tests.helpers.plain_form import PlainPair

    from manege import device
    from manege.cell import Batch, Streams, draw_noise, new_pair, train_step
    from manege.config import DataConfig, RunConfig, stream
    from manege.models import PictureShape

    torch.set_num_threads(1)
    peak = matmul_gflops()
    if form != "plain":
        device.keep_memory()
    config = RunConfig(
        preset="bench",
        rounds=1,
        data=DataConfig(source="-"),
        networks=line.networks,
        training={**line.training, "batch": BATCH},
    )
    training = config.training
    rng = stream(0, cell="bench", purpose="init")
    shape = PictureShape(size=SIZE, channels=3)
    pair = new_pair(
        config.networks, shape, training, torch.device("cpu"), rng, rng, line.num_labels
    )
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(BATCH) % LABELS if line.num_labels else None
    reals = []
    for _ in range(training.n_critic):
        pictures = torch.rand(BATCH, 3, SIZE, SIZE, generator=generator) * 2 - 1
        if form == "fast":
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        reals.append(Batch(pictures, labels))
    streams = Streams(lambda purpose: stream(0, cell="bench", purpose=purpose))
    plain = None if form == "fast" else PlainPair.like(pair, training)

    def step() -> None:
        noise = [draw_noise(pair, BATCH, streams, training) for _ in range(training.n_critic + 1)]
        if plain is None:
            train_step(pair, reals, noise, training)
        else:
            plain.train_step(reals, noise)

    for _ in range(WARM_UP):
        step()
    start = time.process_time()
    for _ in range(steps):
        step()
    seconds = (time.process_time() - start) / steps
    gflop = gflop_of(step) if form == "fast" else 0.0
    return {"seconds": seconds, "gflop": gflop, "matmul_gflops": peak}


def gflop_of(step: Callable[[], None]) -> float:
    """Multiplications and additions of one step, in thousand millions."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Counter(TorchDispatchMode):
        """torch's FlopCounterMode without its hooks, which a gradient of a gradient trips over."""

        total = 0

        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = operator(*args, **(kwargs or {}))
            count = flop_registry.get(operator.overloadpacket)
            if count is not None:
                self.total += count(*args, **(kwargs or {}), out_val=result)
            return result

    with Counter() as counter:
        step()
    return counter.total / 1e9


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
