"""Where a configuration comes from, and every problem with it at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from manege.config import (
    PRESETS,
    SIZES,
    LossName,
    amended,
    parse_duration,
    resolve,
    stored,
    to_yaml,
)
from manege.config.schema import TOY_NAMES
from manege.errors import ConfigError

DIGITS = {"data.source": "digits"}
PIXELS = {"preset": "modern-pixels"}


def _problems(**sources) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(**sources)
    head, *rest = str(caught.value).split("\n")
    return [line.strip() for line in rest] or [head]


def test_each_source_overrides_the_ones_before(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("preset: paper-dc\nseed: 1\ntraining: {batch: 11, n_critic: 2}\n")
    config = resolve(file=file, flags=DIGITS | {"training.batch": 12}, sets=["training.batch=13"])
    assert (config.preset, config.training.loss) == ("paper-dc", LossName.BCE)
    assert (config.seed, config.training.n_critic, config.training.batch) == (1, 2, 13)
    assert resolve(file=file, flags=DIGITS | {"training.batch": 12}).training.batch == 12
    assert resolve(preset="paper", file=file, flags=DIGITS).training.loss is LossName.WASSERSTEIN


@pytest.mark.parametrize(
    ("preset", "sets"),
    [
        ("paper", ["training.constraint.kind=clip"]),
        ("paper", ["training.constraint.kind=gp", "training.constraint.weight=3"]),
        ("paper-dc", ["training.constraint.kind=r1", "training.constraint.gamma=2"]),
        ("paper-dc", ["training.constraint.kind=r1r2", "training.loss=relativistic"]),
        ("paper-dc", ["training.constraint.kind=spectral", "training.loss=hinge"]),
        ("paper-dc", ["training.augment.kind=adaptive", "training.augment.target=0.4"]),
        ("paper", ["method=conditional", "training.flip=null", "training.attempts=3"]),
    ],
)
def test_the_printed_configuration_gives_the_same_one_back(tmp_path, preset, sets):
    assert preset in PRESETS
    sets = ["networks.kind=mlp", *sets, "data.classes=['1', 'no']"]
    config = resolve(preset=preset, flags=DIGITS | {"budget_s": "1h"}, sets=sets)
    file = tmp_path / "printed.yaml"
    file.write_text(to_yaml(config))
    assert resolve(file=file) == config
    assert resolve(file=file).identity() == config.identity()


def test_every_problem_is_told_at_once_with_path_and_nearest_name(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "sed: 3\nrounds: -1\ntraining:\n  los: bce\n  loss: wassersten\n  batch: many\n"
        "  constraint: {kind: clip, bund: 1}\nnetworks: {kind: dcgn}\ndata: {size: 30}\n"
    )
    problems = _problems(file=file, flags=DIGITS)
    told = "\n".join(problems)
    assert len(problems) == 8
    for expected in (
        "sed: unknown key, expected one of method, preset, seed,",
        "did you mean seed?",
        "rounds: found -1, expected greater than or equal to 1",
        "training.los: unknown key, expected one of loss,",
        "training.loss: found 'wassersten', expected one of bce, minimax, least-squares, hinge, "
        "relativistic, wasserstein, module:name; did you mean wasserstein?",
        "training.batch: found 'many', expected a whole number",
        "training.constraint.bund: unknown key, expected one of kind, bound; did you mean bound?",
        "networks.kind: found 'dcgn', expected one of dcgan, resnet, pyramid, mlp, module:name; "
        "did you mean dcgan?",
        "data.size: found 30, expected a side the networks can make; nearest are 28 and 32",
    ):
        assert expected in told


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("networks.hidden=8", "networks.hidden: unknown key, expected one of kind, latent,"),
        ("data.channels=2", "data.channels: found 2, expected one of 1, 3"),
        (
            "method=singel",
            "method: found 'singel', expected one of per-class, single, conditional, "
            "cellular, module:name; did you mean "
            "single?",
        ),
        (
            "networks.activation=relo",
            "networks.activation: found 'relo', expected one of leaky_relu, relu, silu, tanh; did "
            "you mean relu?",
        ),
        (
            "networks.kind=null",
            "networks.kind: found 'None', expected one of dcgan, resnet, pyramid, mlp",
        ),
        (
            "networks.kind=resnt",
            "expected one of dcgan, resnet, pyramid, mlp, module:name; did you mean resnet?",
        ),
        (
            "training.constraint.kind=spectrl",
            "training.constraint.kind: found 'spectrl', expected one of none, clip, gp, spectral, "
            "r1, r1r2; did you mean spectral?",
        ),
        (
            "training.augment.kind=adapt",
            "training.augment.kind: found 'adapt', expected one of none, adaptive, few; did you "
            "mean adaptive?",
        ),
        ("training.loss=hing", "relativistic, wasserstein, module:name; did you mean hinge?"),
        ("networks.discriminator_widht=4", "did you mean discriminator_width?"),
        (
            "networks.generator_width=5",
            "networks.generator_width: found 5, expected a multiple of 2",
        ),
        ("networks.discriminator_width=0", "found 0, expected greater than or equal to 2"),
        ("networks.dropout=1", "networks.dropout: found 1, expected less than 1"),
        ("training.attempts=0", "training.attempts: found 0, expected greater than or equal to 1"),
        ("training.ema=1", "training.ema: found 1, expected less than 1"),
        ("training.flip=often", "training.flip: found 'often', expected"),
        ("networks=3", "networks: found 3, expected a section of keys"),
        ("training.optimiser.beta1=1", "beta1: found 1, expected less than 1"),
        ("training.optimiser.generator_lr=0", "generator_lr: found 0, expected greater than 0"),
        (
            "checkpoints.every_s=soon",
            "checkpoints.every_s: found 'soon', expected a duration such as 90s, 10m or",
        ),
        ("data.classes=[yes]", "unquoted true/yes/on as a boolean: quote it"),
        ("data.classes=[a, a]", "data.classes: 'a' is named twice"),
        ("data.classes=['']", "data.classes.0: found '', expected text that could name a folder"),
        ("data.classes=[a/b]", "data.classes.0: found 'a/b', expected text that could name"),
        ("data.limits={..: 9}", "found '..', expected text that could name a folder"),
        ("data.classes=[]", "data.classes: found no label, expected at least one"),
        ("seed=-1", "seed: found -1"),
        ("device=gpu", "device: found 'gpu', expected auto, cpu, cuda or cuda:N"),
        ("rounds=null", "rounds and budget_s are both null"),
        ("preset=papr", "preset: found 'papr', expected one of modern, modern-pixels, paper, "),
        ("batch", "sets 'batch': expected key=value"),
        ("a=[", "sets 'a=[': line 1: not usable YAML"),
    ],
)
def test_one_problem_is_one_line(sets, expected):
    (problem,) = _problems(flags=DIGITS | PIXELS, sets=[sets])
    assert expected in problem


RING8 = {"data.source": "ring8", "networks.kind": "mlp"}


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["data.size=8"], "data.size: found 8, expected 1, for ring8 are points; leave size out"),
        (["data.size=30"], "data.size: found 30, expected 1, for ring8 are points"),
        (["data.channels=1"], "data.channels: found 1, expected 2, for ring8 are points; leave"),
        (["data.channels=3"], "data.channels: found 3, expected 2, for ring8 are points"),
        (["data.channels=x"], "data.channels: found 'x', expected one of 1, 2, 3"),
        (
            ["networks.kind=dcgan"],
            "networks: found dcgan for ring8, but points need networks mlp",
        ),
    ],
)
def test_points_have_one_form_and_one_kind_of_networks(sets, expected):
    (problem,) = _problems(flags=RING8, sets=sets)
    assert expected in problem


@pytest.mark.parametrize("source", ["digits", "./ring8", "Ring8"])
def test_pictures_have_no_form_of_points(source):
    problems = _problems(flags={"data.source": source, "data.size": 1, "data.channels": 2})
    assert problems == [
        "data.size: found 1, expected a side the networks can make; nearest are 8 and 12",
        "data.channels: found 2, expected one of 1, 3",
    ]


@pytest.mark.parametrize("name", TOY_NAMES)
def test_the_settled_form_of_points_is_accepted_and_read_back(tmp_path, name):
    config = resolve(flags=RING8 | {"data.source": name})
    assert (config.data.size, config.data.channels) == (None, None)
    settled = amended(config, {"data.size": 1, "data.channels": 2})
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(settled))
    assert resolve(file=file) == settled
    assert (settled.data.size, settled.data.channels) == (1, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x [1]\nb: *x\n", "alias *x refused"),
        ("- 1\n- 2\n", "found a list, expected `key: value` lines"),
        ("a: 1\na: 2\n", "key 'a' stands twice"),
        ("a: [1\n", "not usable YAML"),
        ("a: 2026-13-45\n", "not usable YAML"),
        ("[1, 2]: 3\n", "not usable YAML"),
        ("[" * 1000, "not usable YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "not usable YAML"),
        ("x" * 1_000_001, "expected at most 1,000,000"),
    ],
)
def test_bad_files_are_one_line(tmp_path, text, expected):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    (problem,) = _problems(file=file, flags=DIGITS)
    assert str(file) in problem
    assert expected in problem


def test_a_missing_file_and_one_that_is_no_text_are_told(tmp_path):
    (problem,) = _problems(file=tmp_path / "none.yaml", flags=DIGITS)
    assert "none.yaml: cannot be read (No such file or directory)" in problem
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in _problems(file=tmp_path / "b.yaml", flags=DIGITS)[0]


def test_an_empty_file_changes_nothing(tmp_path):
    (tmp_path / "a.yaml").write_text("")
    config = resolve(file=tmp_path / "a.yaml", flags=DIGITS | {"seed": None})
    assert config == resolve(flags=DIGITS)


def test_another_kind_replaces_its_section():
    assert resolve(flags=DIGITS, sets=["networks.kind=mlp"]).networks.latent == 64
    config = resolve(flags=DIGITS, sets=["networks.kind=mlp", "networks.latent=7"])
    assert (config.networks.kind, config.networks.latent) == ("mlp", 7)


def test_a_budget_lifts_the_presets_rounds_but_not_the_users():
    assert resolve(flags=DIGITS).rounds == 1000
    assert resolve(flags=DIGITS | {"budget_s": "10m"}).rounds is None
    both = resolve(flags=DIGITS | {"budget_s": "10m", "rounds": 7})
    assert (both.rounds, both.budget_s) == (7, 600)


def test_the_configuration_is_frozen():
    config = resolve(flags=DIGITS)
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 3
    with pytest.raises(ValidationError, match="frozen"):
        config.training.batch = 3


def test_the_identity_changes_with_the_arithmetic_and_with_nothing_else():
    config = resolve(preset="paper", flags=DIGITS)
    same = {"rounds": 3, "budget_s": 5, "checkpoints.every_s": 1, "data.root": "/x"}
    for key, value in same.items():
        assert amended(config, {key: value}).identity() == config.identity(), key
    other = {
        "seed": 1,
        "method": "conditional",
        "training.batch": 7,
        "training.loss": "hinge",
        "training.constraint.kind": "clip",
        "training.augment.kind": "adaptive",
        "training.attempts": 3,
        "training.flip": True,
        "training.ema": 0.9,
        "networks.latent": 3,
        "networks.activation": "relu",
        "networks.discriminator_batchnorm": False,
        "threads_per_cell": 2,
    }
    for key, value in (other | {"data.size": 16, "data.channels": 3}).items():
        assert amended(config, {key: value}).identity() != config.identity(), key


def test_missing_data_are_told():
    assert _problems() == ["configuration: data.source: missing, expected a value"]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (
            ["networks.kind=mlp", "networks.activation=relo"],
            "networks.activation: found 'relo', expected one of leaky_relu, relu, silu, tanh; did",
        ),
        (
            ["networks.kind=mlp", "networks.generator_width=4"],
            "networks.generator_width: unknown key, expected one of kind, latent, hidden, activ",
        ),
        (
            ["networks.kind=resnet", "networks.dropout=0.1"],
            "networks.dropout: unknown key, expected one of kind, latent, generator_width,",
        ),
        (
            ["networks.kind=mlp", "training.constraint.kind=gp", "training.constraint.wieght=1"],
            "training.constraint.wieght: unknown key, expected one of kind, weight; did you mean",
        ),
        (
            ["networks.kind=mlp", "training.constraint.kind=r1", "training.constraint.gamma=0"],
            "training.constraint.gamma: found 0, expected greater than 0",
        ),
        (
            ["training.augment.kind=adaptive", "training.augment.target=1"],
            "training.augment.target: found 1, expected less than 1",
        ),
        (
            ["training.augment.target=0.5"],
            "training.augment.target: unknown key, expected kind",
        ),
    ],
)
def test_values_of_a_chosen_kind_are_told(sets, expected):
    (problem,) = _problems(flags=DIGITS | PIXELS, sets=sets)
    assert expected in problem


BARE = "networks.discriminator_batchnorm=false"
NETWORKS = (
    ["networks.kind=dcgan"],
    ["networks.kind=dcgan", BARE],
    ["networks.kind=resnet"],
    ["networks.kind=mlp"],
)


@pytest.mark.parametrize("networks", NETWORKS, ids=["dcgan", "dcgan bare", "resnet", "mlp"])
@pytest.mark.parametrize("kind", ["none", "clip", "gp", "spectral", "r1", "r1r2"])
@pytest.mark.parametrize("loss", LossName)
def test_what_makes_sense_together_is_accepted_and_the_rest_refused(networks, kind, loss):
    sets = [*networks, f"training.constraint.kind={kind}", f"training.loss={loss}"]
    bounded = kind in ("gp", "spectral", "r1", "r1r2")
    refused = (kind == "clip" and loss is not LossName.WASSERSTEIN) or (
        networks == NETWORKS[0] and bounded
    )
    if refused:
        assert len(_problems(preset="paper", flags=DIGITS, sets=sets)) == 1
    else:
        training = resolve(preset="paper", flags=DIGITS, sets=sets).training
        assert (training.loss, training.constraint.kind) == (loss, kind)


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (
            ["training.loss=bce", "training.constraint.kind=clip"],
            "training.constraint: clip bounds a Wasserstein critic, and the loss is bce, whose "
            "logits must be free to grow; use r1, gp or spectral",
        ),
        (
            ["training.constraint.kind=gp"],
            "training.constraint: gp penalises each picture's own gradient, which BatchNorm mixes "
            "with its batch's; set networks.discriminator_batchnorm=false",
        ),
        (
            ["training.constraint.kind=r1r2", "training.loss=relativistic"],
            "training.constraint: r1r2 penalises each picture's own gradient, which BatchNorm",
        ),
        (
            ["training.constraint.kind=spectral", "training.loss=hinge"],
            "training.constraint: BatchNorm scales the discriminator up again after spectral norms "
            "have bounded it; set networks.discriminator_batchnorm=false",
        ),
    ],
)
def test_nonsense_is_refused_with_the_reason_and_the_way_out(sets, reason):
    (problem,) = _problems(preset="paper", flags=DIGITS, sets=sets)
    assert reason in problem
    if "batchnorm=false" in problem:  # The way out leads out.
        assert resolve(preset="paper", flags=DIGITS, sets=[*sets, BARE])


def test_nonsense_is_refused_in_an_amended_configuration_too():
    config = resolve(preset="paper", flags=DIGITS, sets=["training.constraint.kind=clip"])
    with pytest.raises(ConfigError, match="clip bounds a Wasserstein critic"):
        amended(config, {"training.loss": "hinge"})


def test_amending_is_validated():
    with pytest.raises(ConfigError, match="rounds: found 0"):
        amended(resolve(flags=DIGITS), {"rounds": 0})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5h", 1800), (7, 7)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@given(st.integers(0, 99), st.integers(0, 59), st.integers(1, 59))
def test_durations_add_up(hours, minutes, seconds):
    spelled = f"{hours}h{minutes}m{seconds}s"
    assert parse_duration(spelled) == hours * 3600 + minutes * 60 + seconds


def test_sizes_are_those_whose_start_resolution_is_whole():
    assert {8, 16, 28, 32, 48, 64, 96, 128, 256} <= set(SIZES)
    assert not {4, 7, 30, 36, 66, 100, 257} & set(SIZES)


def test_labels_given_as_numbers_are_text():
    assert resolve(flags=DIGITS, sets=["data.classes=[3, 8]"]).data.classes == ("3", "8")


def test_the_documented_example_of_precedence_holds(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text(to_yaml(resolve(preset="paper-dc", flags=DIGITS | {"seed": 4})))
    assert resolve(file=file, sets=["seed=5"]).seed == 5
    assert resolve(file=file).preset == "paper-dc"


def test_a_runs_own_configuration_is_read_without_its_preset(tmp_path):
    config = resolve(preset="modern-pixels", flags=DIGITS)
    tree = yaml.safe_load(to_yaml(config))
    # As an earlier version wrote it: the preset had that name, and there were no critics to choose.
    del tree["critic"], tree["feature_weights"]
    tree["preset"] = "modern"
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    found = stored(path)
    assert found.critic.kind == "pixels"
    assert found.identity() == config.identity()
