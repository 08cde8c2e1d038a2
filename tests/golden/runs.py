"""A dozen small runs whose results must not change with the code's structure.

They are named by their command lines and read from their files, so that no change inside manege
touches this module. `python -m tests.golden.runs` records them anew in `recorded.json`: only after
a change that is meant to change models.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

RECORDED = Path(__file__).with_name("recorded.json")
BITS_REST_ON = ("torch", "numpy", "machine", "cpu", "cpu_capability", "cpu_settings")
"""Facts of environment.json without which the same code may round otherwise."""

_DIGITS = ("digits", "--classes", "3,8", "--limit-per-class", "24", "--batch", "8", "--rounds", "2")
_NARROW = ("--set", "networks.generator_width=16", "--set", "networks.discriminator_width=8")
_SMALL = ("--networks", "mlp", "--set", "networks.hidden=16")
_HEADS = ("--critic", "features", "--set", "networks.generator_width=16", "--set", "critic.width=8")
_GRID = (
    *("ring8", "--method", "cellular", "--grid", "2x2", "--batch", "20", "--rounds", "2"),
    *("--set", "training.batches_per_round=5"),
    *("--set", "networks.hidden=16", "--set", "networks.latent=4"),
    *("--set", "cellular.fitness_samples=32", "--set", "cellular.mixture.samples=100"),
    *("--set", "cellular.mixture.final_samples=200"),
)

RUNS: dict[str, tuple[str, ...]] = {
    "modern": (*_DIGITS, *_HEADS),
    "modern, conditional": (*_DIGITS, *_HEADS, "--method", "conditional"),
    "modern, single": (*_DIGITS, *_HEADS, "--method", "single"),
    "modern-pixels": (*_DIGITS, *_NARROW, "--preset", "modern-pixels"),
    "modern-pixels, adaptive augmentation": (
        *(*_DIGITS, *_NARROW, "--preset", "modern-pixels", "--augment", "adaptive"),
    ),
    "paper": (*_DIGITS, *_SMALL, "--preset", "paper"),
    "paper, gradient penalty": (*_DIGITS, *_SMALL, "--preset", "paper", "--constraint", "gp"),
    "paper-dc": (*_DIGITS, *_SMALL, "--preset", "paper-dc"),
    "paper-dc, convolutions": (*_DIGITS, *_NARROW, "--preset", "paper-dc", "--size", "16"),
    "cellular-paper": (*_GRID, "--preset", "cellular-paper"),
    "cellular-reference": (*_GRID, "--preset", "cellular-reference"),
    "cellular-mustangs": (*_GRID, "--preset", "cellular-mustangs"),
    "cellular-modern": (*_GRID, "--preset", "cellular-modern"),
}


OLD = ("paper-dc", "grid", "modern-before-colour-head")
"""Runs that earlier versions left behind, in `old/`."""


def result(run: Path) -> str:
    """Return a hash of a run's model and of what its rounds told."""
    digest = hashlib.sha256()
    for file in sorted((run / "model").glob("*.safetensors")):
        digest.update(file.name.encode())
        for name, tensor in sorted(load_file(file).items()):
            digest.update(name.encode() + tensor.tobytes())
    # Of a round that was trained twice the second telling counts.
    rounds = {}
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "round":
            told = [event[key] for key in ("steps", "images", "losses", "spread")]
            rounds[event["cell"], event["round"]] = told
    digest.update(repr(sorted(rounds.items())).encode())
    return digest.hexdigest()


def processor(run: Path) -> str:
    """Return the key under which hashes are recorded of a machine that began this run."""
    facts = json.loads((run / "environment.json").read_text())
    return json.dumps({key: facts.get(key) for key in BITS_REST_ON}, sort_keys=True)


def unpack_old(name: str, folder: Path) -> Path:
    """Unpack a run that an earlier version left behind; return where it lies."""
    with tarfile.open(Path(__file__).with_name("old") / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def record(folder: Path) -> None:
    """Train every run in one process and write what they come to, beside other processors'."""
    from tests.helpers.command import run_here

    found = {}
    for number, (name, args) in enumerate(RUNS.items()):
        out = folder / str(number)
        done = run_here("train", *args, "--runtime", "inline", "--out", out, cwd=folder)
        assert done.code == 0, done.err
        found[name] = result(out)
    for name in OLD:
        done = run_here("resume", unpack_old(name, folder), "--runtime", "inline", cwd=folder)
        assert done.code == 0, done.err
        found[f"old/{name}"] = result(folder / name)
    kept = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    for name, sha256 in found.items():
        kept.setdefault(name, {})[processor(folder / "0")] = sha256
        sys.stdout.write(f"{sha256[:12]}  {name}\n")
    RECORDED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder))
