"""Writes a model for use elsewhere: as a plain torch module, a program of torch or ONNX, weights.

Each folder has a README.md whose lines draw from it without manege.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from manege.errors import ConfigError, MachineError, field
from manege.files import write_atomic
from manege.sampler import plain
from manege.sampler.module import module_of
from manege.sampler.store import new_folder, write_model
from manege.version import __version__

if TYPE_CHECKING:
    from manege.sampler.model import Model
    from manege.sampler.plain import Sampler

OPSET = 18
"""The version of ONNX's operators that programs are written in."""
_BATCH = 2
"""Pictures in the example that torch follows; the program takes any number from 1 up."""


class ExportFormat(StrEnum):
    """What an export is for."""

    FOLDER = "folder"
    """manege: a file for each generator, as it was trained."""
    TORCH = "torch"
    """Torch without manege: a module, its weights in torch's format."""
    ONNX = "onnx"
    """A program for ONNX runtimes."""
    TORCH_EXPORT = "torch-export"
    """A program that `torch.export.load` reads."""
    SAFETENSORS = "safetensors"
    """A state dict as safetensors, and the layers as JSON."""


def export_model(
    model: Model, out: Path, format: str = ExportFormat.FOLDER, *, replace: bool = False
) -> None:
    """Write a model to a folder in a format; the folder appears whole or not at all."""
    kind = known_format(format)
    if kind is ExportFormat.ONNX:
        check_onnx()
    with new_folder(out, replace=replace) as aside:
        latent = None
        if kind is ExportFormat.FOLDER:
            write_model(model, aside, out)
        else:
            sampler, description = module_of(model)
            latent = sampler.latent
            _write_sampler(sampler, description, aside, kind)
        write_atomic(aside / "README.md", _readme(model, kind, latent).encode())


def known_format(text: str) -> ExportFormat:
    """Return the format of that name; raise ConfigError, with the nearest, if there is none."""
    if text in list(ExportFormat):
        return ExportFormat(text)
    near = get_close_matches(str(text), list(ExportFormat), n=1)
    raise ConfigError(
        f"{field('format')} {text!r}: expected {', '.join(ExportFormat)}"
        + (f"; did you mean {near[0]}?" if near else "")
    )


def check_onnx() -> None:
    """Raise MachineError when the extra is missing."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MachineError(
            f"{field('format')} onnx: the package {error.name} is missing; install it with "
            "`pip install 'manege[onnx]'`, or choose the format torch-export"
        ) from error


def _write_sampler(
    sampler: Sampler, description: dict[str, Any], folder: Path, kind: ExportFormat
) -> None:
    tree = json.dumps(description, indent=1, ensure_ascii=False)
    write_atomic(folder / "model.json", tree.encode())
    match kind:
        case ExportFormat.TORCH_EXPORT:
            torch.export.save(program_of(sampler), folder / "sampler.pt2")
        case ExportFormat.ONNX:
            _write_onnx(sampler, folder / "sampler.onnx")
        case _:
            _refuse_foreign(description, kind)
            # The very module that manege made the weights for.
            shutil.copyfile(plain.__file__, folder / "model.py")
            state = {name: tensor.contiguous() for name, tensor in sampler.state_dict().items()}
            if kind is ExportFormat.TORCH:
                torch.save(state, folder / "weights.pt")
            else:
                safetensors.torch.save_file(state, folder / "weights.safetensors")


def _refuse_foreign(description: dict[str, Any], kind: ExportFormat) -> None:
    if any("layers" not in network for network in description["networks"]):
        raise ConfigError(
            f"{field('format')} {kind}: found networks of a module outside manege, whose code the "
            "folder would lack; choose torch-export or onnx, which hold the operators"
        )


def program_of(sampler: Sampler) -> torch.export.ExportedProgram:
    """Return the sampler as a program of torch's operators: z, label and u, of any number."""
    arguments, shapes = _example(sampler)
    with torch.no_grad(), _quiet():
        return torch.export.export(sampler, arguments, dynamic_shapes=shapes)


def _example(sampler: Sampler) -> tuple[tuple[torch.Tensor, ...], Any]:
    """Return inputs that torch can follow, and what of their shapes may change."""
    z = torch.zeros(_BATCH, sampler.latent)
    batch = {0: torch.export.Dim("batch", min=1)}
    return (z, torch.zeros(_BATCH, dtype=torch.long), torch.zeros(_BATCH)), (batch, batch, batch)


def _write_onnx(sampler: Sampler, path: Path) -> None:
    arguments, shapes = _example(sampler)
    size = sum(tensor.numel() * tensor.element_size() for tensor in sampler.state_dict().values())
    with torch.no_grad(), _quiet():
        torch.onnx.export(
            sampler,
            arguments,
            path,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=["z", "label", "u"],
            output_names=["pictures"],
            opset_version=OPSET,
            external_data=size > _ONE_FILE_BYTES,
            verbose=False,
        )


_ONE_FILE_BYTES = 1 << 30
"""Larger weights lie beside the ONNX file, which holds 2 GB at most."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch's exporter says of its own insides, and of packages that are no use."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


_WITH_TORCH = """\
import torch
{load}

count, rng = 16, torch.Generator().manual_seed(1)
z = torch.randn(count, {latent}, generator=rng)
label = torch.full((count,), {position})  # {label}
u = torch.rand(count, generator=rng)
with torch.no_grad():
    pictures = sampler(z, label, u)  # {shape}
"""
_WITH_ONNX = """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("sampler.onnx")
count, rng = 16, np.random.default_rng(1)
z = rng.standard_normal((count, {latent}), dtype=np.float32)
label = np.full(count, {position})  # {label}
u = rng.random(count, dtype=np.float32)
(pictures,) = session.run(None, {{"z": z, "label": label, "u": u}})  # {shape}
"""
_WITH_MANEGE = """\
import manege

model = manege.load_model(".")
pictures = model.sample(16, label={label}).pictures  # {shape}
"""
_LINES = {
    ExportFormat.FOLDER: _WITH_MANEGE,
    ExportFormat.TORCH: _WITH_TORCH,
    ExportFormat.SAFETENSORS: _WITH_TORCH,
    ExportFormat.TORCH_EXPORT: _WITH_TORCH,
    ExportFormat.ONNX: _WITH_ONNX,
}
_LOAD = {
    ExportFormat.TORCH: 'from model import load\n\nsampler = load(".")',
    ExportFormat.SAFETENSORS: "from model import load\nfrom safetensors.torch import load_file\n\n"
    'sampler = load(".", load_file("weights.safetensors"))',
    ExportFormat.TORCH_EXPORT: '\nsampler = torch.export.load("sampler.pt2").module()',
}
_NEEDS = {
    ExportFormat.FOLDER: "These lines need manege. `manege export . --format torch -o plain` makes "
    "a folder that does not.",
    ExportFormat.TORCH: "These lines need torch alone. `model.py` holds the networks, "
    "`weights.pt` their weights, `model.json` how many layers there are and what the labels are.",
    ExportFormat.SAFETENSORS: "These lines need torch and safetensors. `weights.safetensors` is "
    "the state dict of the module in `model.py`; `model.json` names every layer, in order.",
    ExportFormat.TORCH_EXPORT: "These lines need torch alone: `sampler.pt2` is a program of "
    "torch's operators. A newer torch reads what an older one wrote, not always the other way.",
    ExportFormat.ONNX: f"These lines need numpy and onnxruntime. `sampler.onnx` is written in "
    f"version {OPSET} of ONNX's operators.",
}
_INPUTS = """\
- `z`: {latent} numbers for each picture, drawn from the standard normal distribution (float32).
- `label`: for each picture the number of its label, from the table (int64); -1 is any label, by
  p(y).
- `u`: for each picture a number drawn uniformly from [0, 1) (float32). It chooses among the
  generators of a label by their shares, and the label where that is -1. It decides nothing where a
  label has one generator.
- `pictures`: N x {channels} x {size} x {size} from -1 to 1 (float32), {colours}. As bytes:
  `round((pictures + 1) * 127.5)`, cut to 0 … 255.
"""
_MOST_ROWS = 200


def _readme(model: Model, kind: ExportFormat, latent: int | None) -> str:
    """Return the text of README.md, with this model's own numbers."""
    size, channels = model.shape.size, model.shape.channels
    colours = {1: "grey", 2: "points in the plane: x and y", 3: "red, green and blue"}[channels]
    first = model.labels[0]
    facts = {
        "load": _LOAD.get(kind, ""),
        "latent": latent,
        "position": 0,
        "label": json.dumps(first, ensure_ascii=False),
        "size": size,
        "channels": channels,
        "colours": colours,
        "shape": f"16 x {channels} x {size} x {size}, from -1 to 1"
        if latent
        else f"16 x {size} x {size} x {channels} bytes",
    }
    inputs = f"## What goes in and out\n\n{_INPUTS.format(**facts)}\n" if latent else ""
    missing = "".join(f"- {label}: {reason}\n" for label, reason in model.missing.items())
    return (
        f"# A generative model of {len(model.labels)} label{'s'[: len(model.labels) > 1]}\n\n"
        f"Made by manege {__version__} from model {model.digest}.\n"
        f"It draws pictures of {size} x {size} pixels, {colours}.\n\n"
        "## Draw pictures\n\nRun in this folder:\n\n"
        f"```python\n{_LINES[kind].format(**facts)}```\n\n"
        f"{_NEEDS[kind]}\n\n{inputs}"
        f"## Labels\n\n{_labels(model)}" + (f"\nMissing labels:\n\n{missing}" if missing else "")
    )


def _labels(model: Model) -> str:
    rows = ["| number | label | p(y) | generators | trained |", "|---|---|---|---|---|"]
    for number, (label, p) in enumerate(list(model.probabilities.items())[:_MOST_ROWS]):
        parts = model.components_of(label)
        trained = ", ".join(
            f"{name} {value}"
            for name, value in parts[0].trained.items()
            if isinstance(value, str | int) and name in _TOLD
        )
        shown = label.replace("|", "\\|")
        rows.append(f"| {number} | {shown} | {p:.4f} | {len(parts)} | {trained} |")
    more = len(model.labels) - _MOST_ROWS
    return "\n".join([*rows, *([f"\nAnd {more} more, in model.json."] if more > 0 else [])]) + "\n"


_TOLD = ("method", "preset", "rounds", "seed", "loss", "constraint")
"""What the table says of how a label's (first) generator was trained."""
