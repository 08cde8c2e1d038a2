"""The combined model as one plain module, and as programs: the same pictures, nothing changed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.generators import global_generators_left_alone
from tests.helpers.untrained import NETWORKS, SHAPE, component, conditional, mixture

from manege.config import Activation, DcganNetworks, MlpNetworks, PyramidNetworks, ResnetNetworks
from manege.errors import CheckpointError, ConfigError, MachineError
from manege.models import PictureShape, Spec, layers, to_bytes
from manege.sampler import Model, export_model, load
from manege.sampler.exporting import program_of

KINDS: dict[str, tuple[Spec, PictureShape]] = {
    "dcgan": (DcganNetworks(latent=6, generator_width=8), PictureShape(16, 3)),
    "resnet": (ResnetNetworks(latent=6, generator_width=8), PictureShape(16, 1)),
    "pyramid": (PyramidNetworks(latent=6, generator_width=16), PictureShape(16, 3)),
    "mlp": (MlpNetworks(latent=6, hidden=8), PictureShape(8, 1)),
    "silu": (MlpNetworks(latent=6, hidden=8, activation=Activation.SILU), PictureShape(8, 3)),
    "points": (MlpNetworks(latent=6, hidden=8), PictureShape(1, 2)),
}


def model_of(kind: str, *, shared: bool) -> Model:
    networks, shape = KINDS[kind]
    if shared:
        return conditional(("cat", "dog", "eel"), networks, shape)
    made = {"networks": networks, "shape": shape}
    return Model(
        shape,
        (
            component("cat", 1, weight=3.0, cell="0-0", **made),
            component("dog", 2, weight=4.0, **made),
            component("cat", 3, weight=1.0, cell="0-1", **made),
        ),
    )


def inputs(model: Model, count: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latents, labels of all kinds, any of them too, and numbers that choose."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal((count, 6), dtype=np.float32)
    label = np.arange(count) % (len(model.labels) + 1) - 1
    u = rng.random(count, dtype=np.float32)
    return torch.from_numpy(z), torch.from_numpy(label), torch.from_numpy(u)


def expected(model: Model, z: torch.Tensor, label: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Eq. 8 by the generators themselves, one picture after the other."""
    drawn = []
    for one, number, chance in zip(z, label.tolist(), u.double().tolist(), strict=True):
        among = model.components if number < 0 else model.components_of(model.labels[number])
        if number < 0:  # Label by label, as the module has them.
            among = [part for name in model.labels for part in model.components_of(name)]
        weights = np.array([part.weight for part in among])
        owner = among[int(np.searchsorted(np.cumsum(weights) / weights.sum(), chance, "right"))]
        with torch.no_grad():
            drawn.append(model.generator(owner, torch.device("cpu"))(one[None]))
    return torch.cat(drawn)


@pytest.mark.parametrize("shared", [False, True], ids=["mixture", "conditional"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_module_draws_what_the_generators_draw(kind: str, shared: bool) -> None:
    model = model_of(kind, shared=shared)
    with global_generators_left_alone():
        module = model.module()
    assert not any(type(one).__module__.startswith("manege.models") for one in module.modules())
    assert len(module.networks) == (1 if shared else 3)
    asked = inputs(model)
    with torch.no_grad():
        found = module(*asked)
    torch.testing.assert_close(found, expected(model, *asked), rtol=0, atol=1e-6)


def test_the_module_of_one_label_needs_no_label() -> None:
    model = mixture()
    latents = model.latents(range(5), label="dog", seed=4)
    module = model.module("dog")
    with torch.no_grad():
        found = module(torch.from_numpy(latents.z))
    np.testing.assert_array_equal(to_bytes(found), model.generate(*latents).pictures)
    assert (module.labels, module.latent) == (["dog"], NETWORKS.latent)


def test_the_latents_of_a_mixture_go_through_the_module() -> None:
    model = mixture()
    latents = model.latents(range(40), label="cat", seed=4)
    u = torch.from_numpy(latents.u).float()
    with torch.no_grad():
        found = model.module()(torch.from_numpy(latents.z), torch.zeros(40, dtype=torch.long), u)
    drawn = model.sample(40, label="cat", seed=4).pictures
    np.testing.assert_array_equal(to_bytes(found), drawn)


@pytest.mark.parametrize(
    ("label", "told"),
    [(None, "several labels: give label"), (torch.tensor([1]), "a mixture of generators: give u")],
)
def test_a_choice_is_never_made_silently(label: torch.Tensor | None, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        mixture().module()(torch.zeros(1, 8), label)
    pair = conditional(("cat", "dog")).module()
    with pytest.raises(ValueError, match="label -1 is drawn by p"):
        pair(torch.zeros(1, 8), torch.tensor([-1]))


def test_an_unknown_label_has_no_module() -> None:
    with pytest.raises(ConfigError, match="label 'dgo': not in this model"):
        mixture().module("dgo")


def test_a_tensor_made_while_torch_follows_a_program_is_not_kept(monkeypatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(layers, "_constants", {})
    weight = torch.ones(2, 3, 3, 3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        layers.spread_kernel(torch.empty(2, 3, 3, 3))
    with torch.inference_mode():
        layers.spread_kernel(weight)
    assert layers._constants == {}
    assert type(layers.spread_kernel(weight)) is torch.Tensor
    assert len(layers._constants) == 1


@pytest.mark.full
@pytest.mark.parametrize("sampled_before", [False, True])
def test_exporting_a_generator_changes_nothing(sampled_before: bool, monkeypatch) -> None:
    """A tensor kept from tracing once broke whatever was drawn later."""
    monkeypatch.setattr(layers, "_constants", {})
    model = model_of("dcgan", shared=False)
    generator = model.generator(model.components[1], torch.device("cpu"))
    z = torch.from_numpy(model.latents(range(4), label="dog").z)
    before = model.sample(4, label="dog").pictures if sampled_before else None
    with global_generators_left_alone(), torch.no_grad():
        traced = torch.export.export(generator, (z,)).module()
        program = program_of(model.module("dog")).module()
    after = model.sample(4, label="dog").pictures
    with torch.no_grad():
        torch.testing.assert_close(traced(z), generator(z), rtol=0, atol=1e-6)
        found = to_bytes(program(z, torch.zeros(4, dtype=torch.long), torch.zeros(4)))
    np.testing.assert_array_equal(found, after)
    np.testing.assert_array_equal(after if before is None else before, after)


@pytest.mark.full
@pytest.mark.parametrize("shared", [False, True], ids=["mixture", "conditional"])
@pytest.mark.parametrize("kind", ["dcgan", "resnet", "points"])
def test_programs_draw_what_the_generators_draw(kind: str, shared: bool, tmp_path: Path) -> None:
    import onnxruntime

    model = model_of(kind, shared=shared)
    export_model(model, tmp_path / "onnx", "onnx")
    program = program_of(model.module()).module()
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "sampler.onnx")
    assert [one.shape[0] for one in session.get_inputs()] == ["batch"] * 3
    for count in (1, 9):
        asked = inputs(model, count)
        wanted = expected(model, *asked)
        with torch.no_grad():
            torch.testing.assert_close(program(*asked), wanted, rtol=0, atol=1e-6)
        given = dict(zip(["z", "label", "u"], (one.numpy() for one in asked), strict=True))
        (found,) = session.run(None, given)
        torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=2e-6)


@pytest.mark.full
def test_torchscript_takes_the_module() -> None:
    model = mixture()
    rng = torch.Generator().manual_seed(1)
    z, u = torch.randn(4, 8, generator=rng), torch.rand(4, generator=rng)
    asked = z, torch.tensor([0, 1, -1, 0]), u
    module = model.module()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.testing.assert_close(torch.jit.script(module)(*asked), module(*asked))
        traced = torch.jit.trace(module, asked)
    with torch.no_grad():
        torch.testing.assert_close(traced(*(one[:1] for one in asked))[0], module(*asked)[0])


@pytest.mark.parametrize("kind", ["folder", "torch", "safetensors"])
def test_every_format_comes_with_the_models_own_facts(kind: str, tmp_path: Path) -> None:
    model = mixture()
    with global_generators_left_alone():
        export_model(model, tmp_path / "out", kind)
    text = (tmp_path / "out" / "README.md").read_text()
    for fact in ("2 labels", "8 x 8 pixels, grey", "| 0 | cat | 0.5000 | 2 |", model.digest):
        assert fact in text
    code = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 10
    assert json.loads((tmp_path / "out" / "model.json").read_text())
    with pytest.raises(ConfigError, match="already exists; choose another out"):
        export_model(model, tmp_path / "out", kind)


def test_an_export_without_manege_is_no_model_for_manege(tmp_path: Path) -> None:
    export_model(mixture(), tmp_path / "out", "torch")
    with pytest.raises(CheckpointError, match="found an export for use without manege, expected"):
        load(tmp_path / "out")


def test_an_unknown_format_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"format 'onx': expected folder, .*; did you mean onnx\?"
    ):
        export_model(mixture(), tmp_path / "out", "onx")
    assert not (tmp_path / "out").exists()


def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MachineError, match=r"format onnx: .*pip install 'manege\[onnx\]'"):
        export_model(mixture(), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_somebody_elses_layers_go_along_as_they_are(tmp_path: Path, monkeypatch) -> None:
    from manege.models import Generator

    class Own(Generator):
        latent = 8

        def __init__(self, inside: torch.nn.Module) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, z, labels=None):
            return self.inside(z)

    made = Model.generator
    monkeypatch.setattr(Model, "generator", lambda self, part, on: Own(made(self, part, on)))
    model = Model(SHAPE, (component("dog", 2),))
    latents = model.latents(range(5))
    with torch.no_grad():
        found = model.module()(torch.from_numpy(latents.z))
    np.testing.assert_array_equal(to_bytes(found), model.generate(*latents).pictures)
    with pytest.raises(ConfigError, match="found networks of a module outside manege"):
        export_model(model, tmp_path / "out", "torch")
