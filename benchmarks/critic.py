"""CPU seconds of a training step with a critic on features, beside one on pixels.

    python benchmarks/critic.py [--batch 32] [--size 32] [--steps 20] [--repeats 5]

Both presets' own networks, losses and optimisers take turns in one process with one thread;
medians count. What is seen of real pictures comes from memory, as in a run. The parts of the step
on features are measured on their own: drawing, the frozen network forward and back to the pixels,
and the rest (heads and their update, the generator's way back, Adam). The share is the
multiplications and additions that torch was asked for over the CPU seconds, of the rate of a
1024×1024 matrix multiply in the same process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from manege import device
from manege.cell import Batch, Streams, draw_noise, new_pair, noises_in_step, train_step
from manege.config import FeatureCritic, RunConfig, resolve, stream
from manege.metrics import feature_weights
from manege.models import FrozenFeatures, PictureShape

CPU = torch.device("cpu")


def main() -> None:
    """Print both presets' steps and where the time of the one on features goes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="steps in one measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    device.keep_memory()
    steps = {name: _step(name, args.batch, args.size) for name in ("modern", "modern-pixels")}
    work = _flops(steps["modern"])  # benchmarks/step.py counts those of the one on pixels.
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.repeats):
        for name, step in steps.items():
            seconds[name].append(_cpu_s(step, args.steps))
    peak = _peak()
    print(f"one thread, {args.batch} pictures of {args.size}x{args.size}x3, {peak:.0f} GFLOP/s")
    found = {name: statistics.median(values) for name, values in seconds.items()}
    for name, each in found.items():
        share = f"  {work / each / 1e9 / peak:.0%} of the peak" if name == "modern" else ""
        print(f"{name:16}{1000 * each:8.1f} ms a step{share}")
    print(f"{'ratio':16}{found['modern'] / found['modern-pixels']:8.2f}")
    for name, each in _parts(args.batch, args.size, args.steps).items():
        print(f"  {name:30}{1000 * each:8.1f} ms")


def _config(preset: str) -> RunConfig:
    return resolve(preset=preset, flags={"data.source": "pictures", "rounds": 1})


def _features(config: RunConfig, shape: PictureShape) -> FrozenFeatures | None:
    critic = config.critic
    if not isinstance(critic, FeatureCritic):
        return None
    network = feature_weights().network
    return FrozenFeatures(
        network, critic.stages, shape, critic.width, critic.colour, critic.colour_head
    )


def _step(preset: str, batch: int, size: int) -> Callable[[], object]:
    config, shape = _config(preset), PictureShape(size, 3)
    features, training = _features(config, shape), config.training
    rngs = (stream(0, cell="", purpose=one) for one in ("generator", "discriminator"))
    pair = new_pair(config.networks, shape, training, CPU, *rngs, features=features)
    pictures = torch.rand(batch, size, size, 3).mul_(2).sub_(1).permute(0, 3, 1, 2)
    seen = None if features is None else features.of(pictures)
    number = iter(range(1 << 30))

    def step() -> object:
        at = next(number)
        streams = Streams(lambda purpose: stream(0, cell="", purpose=purpose, step=at))
        passes = noises_in_step(pair, training)
        noise = [draw_noise(pair, batch, streams, training) for _ in range(passes)]
        return train_step(pair, [Batch(pictures, None, seen)], noise, training)

    return step


def _parts(batch: int, size: int, steps: int) -> dict[str, float]:
    config, shape = _config("modern"), PictureShape(size, 3)
    features = _features(config, shape)
    assert features is not None
    rng = stream(0, cell="", purpose="generator")
    pair = new_pair(config.networks, shape, config.training, CPU, rng, rng, features=features)
    z_BZ = torch.randn(batch, pair.generator.network.latent)
    pictures = pair.generator.network(z_BZ).detach()

    def both() -> None:
        x = pictures.clone().requires_grad_()
        features.of(x).sum().backward()

    with torch.no_grad():
        drawing = _cpu_s(lambda: pair.generator.network(z_BZ), steps)
        forward = _cpu_s(lambda: features.of(pictures), steps)
    return {
        "drawing": drawing,
        "frozen network, forward": forward,
        "frozen network, back": _cpu_s(both, steps) - forward,
    }


def _cpu_s(work: Callable[[], object], times: int) -> float:
    work()
    started = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - started) / times


def _flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def _peak() -> float:
    """GFLOP/s of a matrix multiply."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    return 2 * 1024**3 / _cpu_s(lambda: a @ b, 10) / 1e9


if __name__ == "__main__":
    main()
