"""A loss and networks from outside the package are tried before training, and refused by name."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.foreign import FOLDER

from manege.cell import new_state, try_parts
from manege.cell.individual import Individual
from manege.config import RunConfig, resolve, stream
from manege.errors import ConfigError
from manege.models import PictureShape, build_generator, generate, initialise

SHAPE = PictureShape(8, 1)
CPU = torch.device("cpu")
_numbers = itertools.count()

PAIR = """
import numpy, random, torch
from torch import nn
import manege
class Gen(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.net = nn.Linear(4, shape.channels * shape.size ** 2)
        {init}
    def forward(self, z):
        x = self.net(z)
        {forward}
        return torch.tanh(x).view(-1, self.shape.channels, self.shape.size, self.shape.size)
class Dis(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.net = nn.Linear(shape.channels * shape.size ** 2, 1)
    def forward(self, x):
        {judge}
        return self.net(x.flatten(1)).squeeze(1)
class Pair:
    latent = 4
    def generator(self, shape):
        return Gen(shape)
    def discriminator(self, shape):
        return Dis(shape)
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module of a new name, and return the name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str) -> str:
        name = f"stranger_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    yield make
    for name in [one for one in sys.modules if one.startswith("stranger_")]:
        del sys.modules[name]


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def _config(*sets: str) -> RunConfig:
    return resolve(preset="paper-dc", flags={"data.source": "digits", "rounds": 1}, sets=sets)


def _pair(*, init: str = "", forward: str = "", judge: str = "") -> str:
    return PAIR.format(init=init or "pass", forward=forward or "pass", judge=judge or "pass")


def _refusal(config: RunConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        try_parts(config, SHAPE, None)
    text = str(refused.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"init": "self.net.half()"}, "generator's net.weight is torch.float16, expected"),
        ({"init": "self.w = nn.Parameter(torch.ones(2).double())"}, "generator's w is torch.float"),
        ({"init": "self.lazy = nn.LazyLinear(3)"}, "generator's lazy.weight is lazy"),
        ({"init": "self.net.weight.requires_grad = False"}, "net.weight wants no gradient"),
        ({"init": "nn.init.zeros_(self.net.weight)"}, "generator's weights are all 0"),
        ({"init": "self.net.weight.data += float(numpy.random.rand())"}, "draw from torch's"),
        ({"forward": "x = x * random.random()"}, "two results for the same latents"),
        ({"forward": "random.random()"}, "draws from Python's random"),
        ({"forward": "x = x * float('nan')"}, "generator.forward gave numbers that are not finite"),
        ({"forward": "return 3 * torch.ones(len(z), 1, 8, 8)"}, "from 3 to 3, expected pictures"),
        ({"forward": "return x"}, "of shape (4, 64) for torch.float32 of shape (4, 4), expected"),
        ({"forward": "return [x]"}, "generator.forward returned a list, expected pictures"),
        ({"forward": "x = x.double()"}, "returned torch.float64 of shape (4, 1, 8, 8)"),
        ({"forward": "raise KeyError('here')"}, "raised KeyError at stranger_"),
        ({"forward": "z.mul_(2)"}, "generator.forward changes what it is given in place"),
        (
            {"forward": "self.late = nn.Parameter(torch.ones(2))"},
            "the generator's late comes or goes in forward",
        ),
        (
            {
                "init": "self.register_buffer('seen', torch.zeros(1, dtype=torch.int64))",
                "forward": "self.seen += int(self.training)",
            },
            "forward changes the generator's buffer seen, which is torch.int64",
        ),
        (
            {
                "init": "self.register_buffer('mean', torch.zeros(1))",
                "forward": "self.mean = self.mean + int(self.training)",
            },
            "in the generator buffer mean has left the individual's flat storage; change it in",
        ),
        ({"judge": "x.mul_(2)"}, "discriminator.forward changes what it is given in place"),
        ({"judge": "return self.net(x.flatten(1))"}, "(4, 1) for torch.float32 of shape (4, 1, 8"),
        ({"judge": "return self.net(x.flatten(1)).squeeze(1) / 0"}, "the losses are [inf, nan], e"),
        ({"judge": "return x.flatten(1).sum(1)"}, "returned what has no gradient"),
        ({"judge": "assert len(x) > 9, 'few'"}, "discriminator.forward raised AssertionError at"),
    ],
)
def test_networks_that_would_break_a_run_are_refused_by_name(write, parts, expected):
    name = write(_pair(**parts))
    found = _refusal(_config(f"networks.kind={name}:Pair", "training.constraint.kind=none"))
    assert expected in found
    assert f"{name}:Pair" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pair = 3", "is a int, expected a class or a function that makes networks"),
        ("class Pair:\n    latent = 4", "(a Pair) has no generator; expected generator(shape)"),
        (_pair().replace("latent = 4", "latent = 'a'"), "latent is 'a', expected a whole number"),
        (
            _pair().replace("return Gen(shape)", "return 3"),
            "generator(shape) returned a int, expec",
        ),
        (
            _pair().replace("return Dis(shape)", "return nn.Flatten()"),
            "has no parameters, expected",
        ),
        ("def Pair(a, /): ...", "its parameter a has no keyword; remove the / after it"),
    ],
)
def test_factories_that_make_no_pair_are_refused(write, text, expected):
    name = write(text)
    assert expected in _refusal(_config(f"networks.kind={name}:Pair"))


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("networks.widht=3", "networks.widht: unknown key, expected one of width, latent; did you"),
        ("networks.width=many", "networks.width: found 'many', expected a whole number"),
    ],
)
@pytest.mark.usefixtures("foreign")
def test_parameters_are_held_against_the_factorys_signature(sets, expected):
    found = _refusal(_config("networks.kind=foreign_parts:Pair", sets))
    assert found.startswith(expected)


def test_a_pydantic_models_fields_are_parameters_too(write):
    name = write(
        "import pydantic\nfrom foreign_parts import Pair as P\n"
        "class Pair(pydantic.BaseModel):\n"
        "    width: int = pydantic.Field(ge=2)\n    latent: int = 3\n"
        "    def generator(self, shape): return P(self.width, 3).generator(shape)\n"
        "    def discriminator(self, shape): return P(self.width).discriminator(shape)\n"
    )
    sys.path.insert(0, str(FOLDER))
    try:
        kind = f"networks.kind={name}:Pair"
        assert "networks.width: missing, expected a value" in _refusal(_config(kind))
        found = _refusal(_config(kind, "networks.width=1"))
        assert "networks.width: found 1, expected greater than or equal to 2" in found
        assert "networks.depth: unknown key" in _refusal(
            _config(kind, "networks.width=2", "networks.depth=1")
        )
        (told,) = try_parts(_config(kind, "networks.width=2"), SHAPE, None)
        assert told.startswith(f"networks {name}:Pair: generator ")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.usefixtures("foreign")
def test_a_strangers_networks_start_as_their_author_says_from_the_cells_stream():
    config = _config("networks.kind=foreign_parts:Pair")
    before = torch.get_rng_state()
    one, again, other = (
        new_state(config, cell, SHAPE, CPU).pair.generator for cell in ("3", "3", "7")
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.record, again.record)
    assert not torch.equal(one.weights, other.weights)
    module = one.network.module
    assert module.again.weight is module.mix.weight
    assert module.body[0].weight.tolist() == [1] * 4  # GroupNorm's, as torch sets it.
    assert float(module.body[2].weight.detach().std()) > 0.01
    assert not torch.equal(module.frequencies, other.network.module.frequencies)
    assert module.order.tolist() == [3, 2, 1, 0]
    one.check_views()


@pytest.mark.usefixtures("foreign")
def test_tied_weights_learn_once_from_all_their_uses():
    spec = _config("networks.kind=foreign_parts:Pair").networks
    individual = Individual(build_generator(spec, SHAPE), CPU)
    initialise(individual.network, stream(0, cell="3", purpose="test"))
    module = individual.network.module
    module(torch.ones(3, 8)).square().sum().backward()
    gathered = module.mix.weight.grad.clone()
    assert gathered.data_ptr() != module.mix.weight.grad.data_ptr()
    assert gathered.abs().sum() > 0
    individual.check_views()
    assert module.again.weight.grad is module.mix.weight.grad


@pytest.mark.usefixtures("foreign")
def test_what_is_drawn_depends_on_the_latents_alone():
    spec = _config("networks.kind=foreign_parts:Pair").networks
    network = build_generator(spec, SHAPE)
    z_BZ = np.random.default_rng(0).standard_normal((5, 8), dtype=np.float32)
    first = generate(network, z_BZ)
    torch.rand(3)
    assert np.array_equal(first, generate(network, z_BZ))


@pytest.mark.parametrize("constraint", ["none", "clip", "gp", "r1", "r1r2"])
@pytest.mark.parametrize("loss", ["smoothed", "paired"])
@pytest.mark.usefixtures("foreign")
def test_own_losses_and_networks_go_with_every_constraint_that_does_not_need_our_layers(
    loss, constraint
):
    kind = f"training.constraint.kind={constraint}"
    config = _config(
        "networks.kind=foreign_parts:Pair", f"training.loss=foreign_parts:{loss}", kind
    )
    (told,) = try_parts(config, SHAPE, None)
    assert told == "networks foreign_parts:Pair: generator 509 weights, discriminator 105"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mine = 3", "mine is a int, expected a manege.Loss"),
        ("mine = manege.Loss(lambda r, f: f, lambda f: f.mean())", "returned torch.float32 of sha"),
        ("mine = manege.Loss(lambda r, f: 1.0, lambda f: f.mean())", "returned 1.0, expected one"),
        (
            "mine = manege.Loss(lambda r, f: f.mean() / 0, lambda f: f.mean())",
            "loss of ordinary lo",
        ),
        ("mine = manege.Loss(lambda r, f: r.mean(), lambda f: f.mean())", "has no gradient by the"),
        ("mine = manege.Loss(lambda r, f: f.mean(), lambda r, f: f.mean())", "raised TypeError"),
        (
            "mine = manege.Loss(lambda r, f: f.men(), lambda f: f.mean())",
            "raised AttributeError at ",
        ),
        (
            "import numpy\nmine = manege.Loss(lambda r, f: f.mean() * numpy.random.rand(), "
            "lambda f: f.mean())",
            "draws from numpy.random, whose numbers are others after a restart",
        ),
    ],
)
def test_losses_that_could_teach_nothing_are_refused_by_name(write, text, expected):
    name = write(f"import manege\n{text}")
    found = _refusal(_config(f"training.loss={name}:mine"))
    assert expected in found
    assert f"{name}:mine" in found


def test_batchnorm_and_a_penalty_on_each_picture_do_not_go_together(write):
    judge = "x = nn.functional.batch_norm(x, None, None, training=True)"
    name = write(_pair(judge=judge))
    try_parts(_config(f"networks.kind={name}:Pair"), SHAPE, None)
    text = _pair().replace(
        "self.net = nn.Linear(shape",
        "self.n = nn.BatchNorm1d(1)\n        self.net = nn.Linear(shape",
    )
    name = write(text)
    found = _refusal(_config(f"networks.kind={name}:Pair", "training.constraint.kind=gp"))
    assert "mixes with its batch's; use GroupNorm there, or constraint none" in found
